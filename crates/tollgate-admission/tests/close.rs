//! Closing a budget or a lane, and knowing when all is back.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;
use support::{Counter, Polled, Waiter, block_on, budget, one_lane, poll_with, refused};
use tollgate_admission::{AcquireError, Closed, LaneConfig, TimeSource, TryAcquireError};

fn closed(error: &AcquireError) -> Option<Closed> {
    match error {
        AcquireError::Closed { what, .. } => Some(*what),
        _ => None,
    }
}

/// ADM-10, ADM-9
#[test]
fn closing_refuses_whoever_waits_and_wakes_each_once() {
    let lanes = [LaneConfig::new("a"), LaneConfig::new("b").queue_timeout(Duration::from_secs(1))];
    let (budget, [a, b], time) = budget(2, lanes);
    let _a = a.try_acquire().unwrap();
    let _b = b.try_acquire().unwrap();
    let waiters = [&a, &b, &a, &b, &a].map(|lane| Waiter::queue(lane.acquire()));
    budget.close();
    budget.close();
    time.advance(Duration::from_secs(1));
    for waiter in waiters {
        assert_eq!(waiter.wakes(), 1);
        let error = waiter.refusal();
        assert_eq!(closed(&error), Some(Closed::Budget));
    }
    let stats = budget.stats();
    assert_eq!((stats.lanes[0].refused.closed, stats.lanes[1].refused.closed), (3, 2));
    assert_eq!((stats.lanes[0].refused.total(), stats.lanes[1].refused.total()), (3, 2));
    assert_eq!(stats.closed, Some(Closed::Budget));
    assert!(budget.is_closed());
}

/// ADM-10: more than are told in one hold of the lock.
#[test]
fn everybody_has_been_told_when_close_returns_however_many_wait() {
    for waiting in [1, 63, 64, 65, 128, 1_000] {
        let (budget, [lane], _) = budget(1, [LaneConfig::new("l").unbounded_waiting()]);
        let _permit = lane.try_acquire().unwrap();
        let waiters: Vec<_> = (0..waiting).map(|_| Waiter::queue(lane.acquire())).collect();
        budget.close();
        assert!(waiters.iter().all(|waiter| waiter.wakes() == 1));
        let stats = &budget.stats().lanes[0];
        assert_eq!((stats.waiting, stats.refused.closed), (0, waiting));
    }
}

/// ADM-10, ADM-9
#[test]
fn a_closed_budget_admits_nothing_though_permits_are_free() {
    let (budget, lane, time) = one_lane(2);
    budget.close();
    let error = refused(lane.acquire());
    assert_eq!(closed(&error), Some(Closed::Budget));
    assert_eq!(error.to_string(), "lane `only` admits nothing more: its budget is closed");
    let attempt = lane.try_acquire().unwrap_err();
    assert!(matches!(attempt, TryAcquireError::Closed { what: Closed::Budget, .. }));
    // closed comes before every other cause
    assert!(closed(&refused(lane.acquire_many(0))).is_some());
    assert!(closed(&refused(lane.acquire_many(9))).is_some());
    assert!(closed(&refused(lane.acquire_until(time.now()))).is_some());
    assert_eq!(budget.stats().lanes[0].refused.closed, 5);
}

/// ADM-10
#[test]
fn permits_that_are_out_stay_valid_when_the_budget_closes() {
    let (budget, lane, _) = one_lane(2);
    let one = lane.try_acquire().unwrap();
    let two = lane.try_acquire().unwrap();
    let handed_on = Waiter::queue(lane.acquire());
    drop(two);
    budget.close();
    assert_eq!(budget.stats().lanes[0].running, 2);
    // granted before the close, looked at after it
    drop(handed_on.permit());
    assert_eq!(budget.stats().lanes[0].running, 1);
    drop(one);
    assert_eq!((budget.stats().available, budget.stats().lanes[0].running), (2, 0));
}

/// ADM-10
#[test]
fn what_returns_to_a_closed_budget_is_handed_to_nobody() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    budget.close();
    drop(permit);
    assert_eq!(closed(&waiter.refusal()), Some(Closed::Budget));
    assert_eq!(budget.stats().lanes[0].admitted, 1);
}

/// ADM-10
#[test]
fn drained_resolves_with_the_last_permit_after_the_close() {
    let (budget, lane, _) = one_lane(2);
    let mut early = Polled::new(budget.drained());
    assert!(early.poll().is_pending(), "an idle budget that is open is not drained");
    let one = lane.try_acquire().unwrap();
    let two = lane.try_acquire().unwrap();
    budget.close();
    let mut late = Polled::new(budget.drained());
    assert!(late.poll().is_pending());
    drop(one);
    assert_eq!((early.wakes(), late.wakes()), (0, 0));
    drop(two);
    assert_eq!((early.wakes(), late.wakes()), (1, 1));
    assert!(early.poll().is_ready() && late.poll().is_ready());
    block_on(budget.drained());
}

/// ADM-10
#[test]
fn drained_resolves_at_the_close_when_nothing_is_out() {
    let (budget, _lane, _) = one_lane(2);
    let mut drained = Polled::new(budget.drained());
    assert!(drained.poll().is_pending());
    budget.close();
    assert_eq!(drained.wakes(), 1);
    assert!(drained.poll().is_ready());
}

/// ADM-10
#[test]
fn a_granted_waiter_that_never_looked_keeps_the_budget_from_being_drained() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    drop(permit);
    budget.close();
    let mut drained = Polled::new(budget.drained());
    assert!(drained.poll().is_pending());
    drop(waiter);
    assert_eq!(drained.wakes(), 1);
    assert!(drained.poll().is_ready());
}

/// ADM-10
#[test]
fn a_drained_that_is_polled_by_another_waker_wakes_that_one_only() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    budget.close();
    let [former, latter, dropped] = [(); 3].map(|()| Arc::new(Counter::default()));
    let mut drained = budget.drained();
    assert!(poll_with(&mut drained, &Waker::from(Arc::clone(&former))).is_pending());
    assert!(poll_with(&mut drained, &Waker::from(Arc::clone(&latter))).is_pending());
    let mut given_up = budget.drained();
    assert!(poll_with(&mut given_up, &Waker::from(Arc::clone(&dropped))).is_pending());
    drop(given_up);
    let mut in_its_place = Polled::new(budget.drained());
    assert!(in_its_place.poll().is_pending());
    drop(permit);
    assert_eq!([former, latter, dropped].map(|counter| counter.wakes()), [0, 1, 0]);
    assert_eq!(in_its_place.wakes(), 1);
}

/// ADM-10
#[test]
fn closing_a_lane_leaves_the_others_at_work() {
    let lanes = [LaneConfig::new("old"), LaneConfig::new("other")];
    let (budget, [old, other], _) = budget(2, lanes);
    let running = old.try_acquire_many(2).unwrap();
    let [told, granted] = [&old, &other].map(|lane| Waiter::queue(lane.acquire()));
    old.close();
    old.close();
    assert_eq!((told.wakes(), granted.wakes()), (1, 0));
    let error = told.refusal();
    assert_eq!(closed(&error), Some(Closed::Lane));
    assert_eq!(error.to_string(), "lane `old` admits nothing more: it is closed");
    assert_eq!(closed(&refused(old.acquire())), Some(Closed::Lane));
    drop(running);
    drop(granted.permit());
    let stats = budget.stats();
    assert_eq!(stats.closed, None);
    assert_eq!((stats.lanes[0].closed, stats.lanes[1].closed), (Some(Closed::Lane), None));
    assert!(!budget.is_closed());
}

/// ADM-10, ADM-4
#[test]
fn what_a_closed_lane_had_reserved_is_open_to_the_others() {
    let lanes = [LaneConfig::new("old").reserved(3).kept(2), LaneConfig::new("other")];
    let (_budget, [old, other], _) = budget(4, lanes);
    let _two = other.try_acquire_many(2).unwrap();
    assert!(matches!(
        other.try_acquire_many(3),
        Err(TryAcquireError::TooLarge { weight: 3, limit: 2, .. })
    ));
    let waiter = Waiter::queue(other.acquire_many(2));
    old.close();
    assert_eq!(waiter.wakes(), 1, "what it kept is handed on at once");
    assert!(matches!(other.try_acquire_many(4), Err(TryAcquireError::Busy { .. })));
}

/// ADM-10, ADM-4
#[test]
fn a_closed_lane_protects_nothing_for_the_waiters_it_refused() {
    let lanes = [LaneConfig::new("files").reserved(2), LaneConfig::new("busy")];
    let (_budget, [files, busy], _) = budget(2, lanes);
    let one = busy.try_acquire().unwrap();
    let _two = busy.try_acquire().unwrap();
    let file = Waiter::queue(files.acquire_many(2));
    let borrower = Waiter::queue(busy.acquire());
    drop(one);
    assert_eq!(borrower.wakes(), 0);
    files.close();
    assert_eq!((file.wakes(), borrower.wakes()), (1, 1));
}

/// ADM-10
#[test]
fn the_first_reason_for_a_close_is_the_one_that_is_told() {
    let (budget, lane, _) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    budget.close();
    lane.close();
    assert_eq!(closed(&waiter.refusal()), Some(Closed::Budget));
    assert_eq!(closed(&refused(lane.acquire())), Some(Closed::Budget));
}

/// ADM-10
#[test]
fn after_close_returned_no_thread_is_granted_anything() {
    for _ in 0..20 {
        let (budget, lane, _) = one_lane(2);
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (lane, closed) = (lane.clone(), &closed);
                scope.spawn(move || {
                    loop {
                        let after_close = closed.load(Ordering::SeqCst);
                        let result = if thread == 0 {
                            let is_closed = |e| matches!(e, TryAcquireError::Closed { .. });
                            lane.try_acquire().map_err(is_closed)
                        } else {
                            block_on(lane.acquire()).map_err(|error| self::closed(&error).is_some())
                        };
                        assert!(!after_close || result.is_err(), "granted after the close");
                        if matches!(result, Err(true)) {
                            return;
                        }
                    }
                });
            }
            std::thread::yield_now();
            budget.close();
            closed.store(true, Ordering::SeqCst);
            block_on(budget.drained());
        });
        let stats = budget.stats();
        assert_eq!((stats.available, stats.lanes[0].waiting), (2, 0));
        assert!(stats.lanes[0].refused.closed >= 3);
    }
}
