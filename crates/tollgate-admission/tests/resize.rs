//! Other numbers while work runs.

mod support;

use std::sync::Arc;
use std::time::Duration;
use support::{Waiter, budget, budget_with, granted, one_lane, refused};
use tollgate_admission::{
    AcquireError, Budget, BuildError, ClockOnly, Closed, LaneChange, LaneConfig, Permit,
    TimeSource, TryAcquireError, UnknownLane,
};

fn lane(name: &str) -> LaneConfig {
    LaneConfig::new(name)
}

/// ADM-11, ADM-2
#[test]
fn a_shrink_revokes_nothing_and_its_deficit_is_absorbed_as_permits_return() {
    let (budget, lane, _) = one_lane(4);
    let mut permits: Vec<Permit> = (0..4).map(|_| lane.try_acquire().unwrap()).collect();
    let waiter = Waiter::queue(lane.acquire());
    budget.resize().capacity(2).apply().unwrap();
    for (out, available, deficit) in [(4, 0, 2), (3, 0, 1), (2, 0, 0)] {
        let stats = budget.stats();
        assert_eq!((stats.running(), stats.available, stats.deficit), (out, available, deficit));
        assert_eq!(out + available, stats.capacity + deficit);
        assert_eq!(waiter.wakes(), 0, "nothing is granted while the capacity is exceeded or met");
        assert!(matches!(lane.try_acquire(), Err(TryAcquireError::Busy { .. })));
        permits.pop();
    }
    assert_eq!(waiter.wakes(), 1);
    drop((waiter, permits));
    assert_eq!((budget.stats().available, budget.stats().deficit), (2, 0));
}

/// ADM-11
#[test]
fn nothing_is_granted_in_a_deficit_even_within_what_is_kept() {
    let lanes = [lane("probes").reserved(1).kept(1), lane("busy")];
    let (budget, [probes, busy], _) = budget(4, lanes);
    let _three = busy.try_acquire_many(3).unwrap();
    budget.resize().capacity(1).apply().unwrap();
    assert!(matches!(probes.try_acquire(), Err(TryAcquireError::Busy { .. })));
}

/// ADM-11
#[test]
fn a_larger_capacity_is_handed_out_at_once() {
    let (budget, lane, _) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let waiters = [(); 3].map(|()| Waiter::queue(lane.acquire()));
    budget.resize().capacity(3).apply().unwrap();
    assert_eq!(waiters.each_ref().map(Waiter::wakes), [1, 1, 0]);
}

/// ADM-11
#[test]
fn a_higher_limit_takes_effect_on_waiters() {
    let (budget, [narrow], _) = budget(4, [lane("narrow").limit(1)]);
    let _permit = narrow.try_acquire().unwrap();
    let waiter = Waiter::queue(narrow.acquire());
    budget.resize().lane("narrow", |lane| lane.limit(2)).apply().unwrap();
    assert_eq!(waiter.wakes(), 1);
}

/// ADM-11
#[test]
fn a_lower_limit_revokes_nothing() {
    let (budget, [narrow], _) = budget(4, [lane("narrow")]);
    let permits = [(); 4].map(|()| narrow.try_acquire().unwrap());
    budget.resize().lane("narrow", |lane| lane.limit(2)).apply().unwrap();
    let stats = budget.stats();
    assert_eq!((stats.lanes[0].running, stats.deficit), (4, 0));
    let waiter = Waiter::queue(narrow.acquire());
    let [one, two, three, four] = permits;
    drop((one, two));
    assert_eq!(waiter.wakes(), 0);
    drop(three);
    assert_eq!(waiter.wakes(), 1);
    drop(four);
}

/// ADM-11, ADM-9
#[test]
fn waiters_that_can_never_be_granted_any_more_are_told_too_large() {
    let (budget, lane, _) = one_lane(4);
    let _permit = lane.try_acquire().unwrap();
    let [large, small, larger] = [4, 2, 3].map(|w| Waiter::queue(lane.acquire_many(w)));
    budget.resize().capacity(2).apply().unwrap();
    assert_eq!((large.wakes(), small.wakes(), larger.wakes()), (1, 0, 1));
    let error = large.refusal();
    assert!(matches!(error, AcquireError::TooLarge { weight: 4, limit: 2, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "a weight of 4 exceeds 2, the most that lane `only` can ever grant"
    );
    assert_eq!(budget.stats().lanes[0].refused.too_large, 2);
    assert!(matches!(larger.refusal(), AcquireError::TooLarge { weight: 3, limit: 2, .. }));
    assert_eq!(budget.stats().lanes[0].waiting, 1);
}

/// ADM-11
#[test]
fn waiters_are_told_too_large_when_another_lane_keeps_more_than_before() {
    let (budget, [files, busy], _) = budget(4, [lane("files"), lane("busy")]);
    let _permit = files.try_acquire().unwrap();
    let waiter = Waiter::queue(busy.acquire_many(4));
    budget.resize().lane("files", |lane| lane.reserved(2).kept(2)).apply().unwrap();
    assert!(matches!(waiter.refusal(), AcquireError::TooLarge { weight: 4, limit: 2, .. }));
}

/// ADM-11
#[test]
fn when_a_waiter_is_told_too_large_the_ones_behind_it_are_granted_at_once() {
    let (budget, lane, _) = one_lane(4);
    let _permit = lane.try_acquire().unwrap();
    let large = Waiter::queue(lane.acquire_many(4));
    let behind = Waiter::queue(lane.acquire());
    budget.resize().capacity(3).apply().unwrap();
    assert_eq!((large.wakes(), behind.wakes()), (1, 1));
}

/// ADM-11, ADM-8
#[test]
fn a_waiter_whose_time_was_up_is_told_so_and_not_too_large() {
    let (budget, lane, time) = one_lane(4);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_many(4).until(time.now() + Duration::from_secs(1)));
    time.advance(Duration::from_secs(1));
    budget.resize().capacity(1).apply().unwrap();
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
}

/// ADM-11
#[test]
fn a_higher_reservation_takes_effect_as_permits_return() {
    let (budget, [files, busy], _) = budget(2, [lane("files"), lane("busy")]);
    let [one, two] = [(); 2].map(|()| busy.try_acquire().unwrap());
    let older = Waiter::queue(busy.acquire());
    let file = Waiter::queue(files.acquire());
    budget.resize().lane("files", |lane| lane.reserved(1)).apply().unwrap();
    drop(one);
    assert_eq!((older.wakes(), file.wakes()), (0, 1));
    drop(two);
    assert_eq!(older.wakes(), 1);
}

/// ADM-11
#[test]
fn what_is_newly_kept_is_withheld_as_permits_return() {
    let (budget, [probes, busy], _) = budget(2, [lane("probes"), lane("busy")]);
    let [one, two] = [(); 2].map(|()| busy.try_acquire().unwrap());
    let waiter = Waiter::queue(busy.acquire());
    budget.resize().lane("probes", |lane| lane.reserved(1).kept(1)).apply().unwrap();
    drop(one);
    assert_eq!(waiter.wakes(), 0, "this one is kept now");
    drop(probes.try_acquire().unwrap());
    drop(two);
    assert_eq!(waiter.wakes(), 1);
}

/// ADM-11
#[test]
fn a_shorter_queue_lets_those_who_wait_stay() {
    let (budget, [short], _) = budget(1, [lane("short")]);
    let permit = short.try_acquire().unwrap();
    let waiters = [(); 3].map(|()| Waiter::queue(short.acquire()));
    budget.resize().lane("short", |lane| lane.max_waiting(2)).apply().unwrap();
    assert_eq!(budget.stats().lanes[0].waiting, 3);
    let error = refused(short.acquire());
    assert!(matches!(error, AcquireError::QueueFull { max_waiting: 2, .. }));
    budget.resize().lane("short", LaneChange::unbounded_waiting).apply().unwrap();
    let last = Waiter::queue(short.acquire());
    drop(permit);
    assert_eq!((waiters[0].wakes(), last.wakes()), (1, 0));
}

/// ADM-11
#[test]
fn a_queue_timeout_that_is_taken_away_ends_no_wait() {
    let second = Duration::from_secs(1);
    let (budget, [timed], time) = budget(1, [lane("timed").queue_timeout(second)]);
    let _permit = timed.try_acquire().unwrap();
    let waiter = Waiter::queue(timed.acquire());
    budget.resize().lane("timed", |lane| lane.queue_timeout(None)).apply().unwrap();
    time.advance(10 * second);
    assert_eq!(waiter.wakes(), 0);
    budget.resize().lane("timed", |lane| lane.queue_timeout(10 * second)).apply().unwrap();
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
}

/// ADM-11, ADM-13
#[test]
fn without_a_timer_a_new_queue_timeout_ends_a_wait_with_the_next_call() {
    let budget = Budget::builder().capacity(1).lane(lane("l")).time(Arc::new(ClockOnly));
    let budget = budget.build().unwrap();
    let lane = budget.lane("l").unwrap();
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    let soon = Duration::from_nanos(1);
    budget.resize().lane("l", |lane| lane.queue_timeout(soon)).apply().unwrap();
    assert_eq!(budget.stats().lanes[0].waiting, 0);
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
}

/// ADM-11, A8
#[test]
fn a_closed_lane_that_is_resized_stays_closed() {
    let (budget, [old, _other], _) = budget(4, [lane("old"), lane("other")]);
    old.close();
    budget.resize().capacity(8).lane("old", |lane| lane.reserved(4).kept(2)).apply().unwrap();
    let error = refused(old.acquire());
    assert!(matches!(error, AcquireError::Closed { what: Closed::Lane, .. }), "{error:?}");
    assert!(old.try_acquire().is_err());
    assert_eq!(budget.stats().lanes[0].closed, Some(Closed::Lane));
}

/// ADM-11, A8
#[test]
fn what_a_closed_lane_keeps_after_a_resize_is_withheld_from_nobody() {
    let (budget, [old, other], _) = budget(4, [lane("old"), lane("other")]);
    old.close();
    budget.resize().lane("old", |lane| lane.reserved(4).kept(4)).apply().unwrap();
    drop(granted(other.acquire_many(4)));
}

/// ADM-11, ADM-10, A8
#[test]
fn a_closed_budget_that_is_resized_stays_closed() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    budget.close();
    budget.resize().capacity(9).apply().unwrap();
    assert!(matches!(refused(lane.acquire()), AcquireError::Closed { .. }));
    drop(permit);
    support::block_on(budget.drained());
    assert_eq!(budget.stats().available, 9);
}

/// ADM-11, ADM-5
#[test]
fn how_often_a_head_was_passed_is_not_forgotten_by_a_resize() {
    let builder = Budget::builder().capacity(4).max_bypass(2);
    let (budget, [large, small], _) = budget_with(builder, [lane("large"), lane("small")]);
    let _one = small.try_acquire().unwrap();
    let _large = Waiter::queue(large.acquire_many(4));
    for _ in 0..2 {
        drop(small.try_acquire().unwrap());
        budget.resize().lane("small", |lane| lane.max_waiting(7)).apply().unwrap();
    }
    assert!(small.try_acquire().is_err());
}

/// ADM-11
#[test]
fn a_resize_that_is_refused_changes_nothing() {
    let lanes = [lane("files").reserved(2), lane("busy").max_waiting(5)];
    let (budget, [files, busy], _) = budget(4, lanes);
    let _all = busy.try_acquire_many(4).unwrap();
    let waiter = Waiter::queue(files.acquire());
    let before = budget.stats();
    let refusals = [
        budget.resize().capacity(0).apply(),
        budget.resize().capacity(1).apply(),
        budget.resize().capacity(9).lane("files", |lane| lane.kept(3)).apply(),
        budget.resize().capacity(9).lane("busy", |lane| lane.limit(0)).apply(),
        budget.resize().capacity(9).lane("nobody", |lane| lane.limit(1)).apply(),
    ];
    assert_eq!(budget.stats(), before);
    assert_eq!(waiter.wakes(), 0);
    let files = || "files".into();
    assert_eq!(
        refusals.map(Result::unwrap_err),
        [
            BuildError::ZeroCapacity,
            BuildError::ReservationsAboveCapacity { lane: files(), reserved: 2, capacity: 1 },
            BuildError::KeptAboveReserved { lane: files(), kept: 3, reserved: 2 },
            BuildError::ZeroLimit { lane: "busy".into() },
            BuildError::UnknownLane(UnknownLane { lane: "nobody".into() }),
        ]
    );
}

/// ADM-11
#[test]
fn changes_to_one_lane_in_one_resize_add_up() {
    let (budget, [_lane], _) = budget(4, [lane("l")]);
    let resize = budget.resize().lane("l", |lane| lane.limit(3));
    resize.lane("l", |lane| lane.reserved(2).max_waiting(1)).apply().unwrap();
    // both took effect: a reservation above the limit would be refused
    let error = budget.resize().lane("l", |lane| lane.limit(1)).apply().unwrap_err();
    assert_eq!(error, BuildError::ReservedAboveLimit { lane: "l".into(), reserved: 2, limit: 1 });
}

/// ADM-2, ADM-11
#[test]
fn no_permit_is_lost_when_threads_work_while_another_resizes() {
    let (budget, [a, b], _) = budget(3, [lane("a"), lane("b").reserved(1).kept(1)]);
    std::thread::scope(|scope| {
        for lane in [&a, &b, &a, &b] {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    drop(support::block_on(lane.acquire()).unwrap());
                }
            });
        }
        // at 1, all of which is kept for b, those who wait in a would be told too large
        for capacity in (2..=4).cycle().take(400) {
            budget.resize().capacity(capacity).apply().unwrap();
            let stats = budget.stats();
            assert_eq!(stats.running() + stats.available, stats.capacity + stats.deficit);
            std::thread::yield_now();
        }
        budget.resize().capacity(3).apply().unwrap();
    });
    let stats = budget.stats();
    assert_eq!((stats.available, stats.running()), (3, 0));
    assert_eq!(stats.lanes[0].admitted + stats.lanes[1].admitted, 8_000);
}
