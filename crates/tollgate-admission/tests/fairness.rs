//! Who goes next: inside a lane, between lanes, and past a large request.

mod support;

use std::sync::Barrier;
use support::{Waiter, budget, budget_with, granted, one_lane, refused};
use tollgate_admission::{AcquireError, Budget, LaneConfig, Permit, TryAcquireError};

fn lane(name: &str) -> LaneConfig {
    LaneConfig::new(name)
}

/// ADM-3
#[test]
fn waiters_of_a_lane_are_granted_in_the_order_in_which_they_came() {
    let (_budget, lane, _) = one_lane(1);
    let mut permit = lane.try_acquire().unwrap();
    let mut waiters: Vec<_> = (0..5).map(|_| Waiter::queue(lane.acquire())).collect();
    while !waiters.is_empty() {
        drop(permit);
        let wakes: Vec<_> = waiters.iter().map(Waiter::wakes).collect();
        assert_eq!(wakes[0], 1, "the first is granted");
        assert!(wakes[1..].iter().all(|&wakes| wakes == 0), "and nobody else: {wakes:?}");
        permit = waiters.remove(0).permit();
    }
}

/// ADM-3, A4
#[test]
fn try_acquire_between_a_hand_off_and_the_wake_is_refused() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    drop(permit);
    // handed on, but the waiter has not looked yet
    assert_eq!(waiter.wakes(), 1);
    let stats = budget.stats();
    assert_eq!((stats.available, stats.running()), (0, 1));
    assert!(matches!(lane.try_acquire(), Err(TryAcquireError::Busy { .. })));
    assert_eq!((budget.stats().available, budget.stats().running()), (0, 1));
    drop(waiter.permit());
    assert_eq!(budget.stats().available, 1);
}

/// ADM-3
#[test]
fn try_acquire_does_not_pass_a_waiter_of_its_own_lane() {
    let (budget, lane, _) = one_lane(3);
    let one = lane.try_acquire().unwrap();
    let large = Waiter::queue(lane.acquire_many(3));
    assert_eq!(budget.stats().available, 2);
    assert!(matches!(lane.try_acquire(), Err(TryAcquireError::Busy { .. })));
    let behind = Waiter::queue(lane.acquire());
    drop(one);
    assert_eq!((large.wakes(), behind.wakes()), (1, 0));
    drop(large.permit());
    drop(behind.permit());
}

/// ADM-4
#[test]
fn a_lane_borrows_what_is_idle_up_to_its_limit() {
    let lanes = [lane("quiet").reserved(3), lane("busy").limit(3)];
    let (budget, [_quiet, busy], _) = budget(4, lanes);
    let _three = busy.try_acquire_many(3).unwrap();
    assert_eq!(budget.stats().lane("busy").unwrap().borrowed, 3);
    assert!(matches!(busy.try_acquire(), Err(TryAcquireError::Busy { .. })), "its limit");
}

/// ADM-4
#[test]
fn what_is_kept_is_lent_to_nobody() {
    let lanes = [lane("probes").reserved(3).kept(2), lane("busy")];
    let (budget, [probes, busy], _) = budget(4, lanes);
    let _two = busy.try_acquire_many(2).unwrap();
    assert_eq!(budget.stats().available, 2);
    assert!(matches!(busy.try_acquire(), Err(TryAcquireError::Busy { .. })));
    let _kept = probes.try_acquire_many(2).unwrap();
    assert_eq!(budget.stats().available, 0);
}

/// ADM-4
#[test]
fn what_is_kept_is_not_lent_to_a_lane_within_its_own_reservation() {
    let lanes = [lane("probes").reserved(1).kept(1), lane("files").reserved(2), lane("busy")];
    let (_budget, [probes, files, busy], _) = budget(4, lanes);
    let borrowed = busy.try_acquire_many(3).unwrap();
    let file = Waiter::queue(files.acquire());
    let _probe = probes.try_acquire().expect("the last permit is kept for probes");
    drop(borrowed);
    assert_eq!(file.wakes(), 1);
}

/// ADM-4
#[test]
fn an_unmet_reservation_is_protected_from_borrowers_while_its_head_waits() {
    let lanes = [lane("files").reserved(3), lane("busy")];
    let (_budget, [files, busy], _) = budget(4, lanes);
    let mut borrowed: Vec<Permit> = (0..4).map(|_| busy.try_acquire().unwrap()).collect();
    let borrower = Waiter::queue(busy.acquire());
    let file = Waiter::queue(files.acquire_many(3));
    // one and two free permits are not enough for the lane that reserved three, and not for borrowers either
    for _ in 0..2 {
        borrowed.pop();
        assert_eq!((file.wakes(), borrower.wakes()), (0, 0));
        assert!(matches!(busy.try_acquire(), Err(TryAcquireError::Busy { .. })));
    }
    borrowed.pop();
    assert_eq!((file.wakes(), borrower.wakes()), (1, 0));
    borrowed.pop();
    assert_eq!(borrower.wakes(), 1);
}

/// ADM-4
#[test]
fn a_lane_within_its_reservation_is_not_held_back_to_protect_anothers() {
    let lanes = [lane("wide").reserved(3), lane("narrow").reserved(1), lane("busy")];
    let (_budget, [wide, narrow, busy], _) = budget(4, lanes);
    let mut borrowed: Vec<Permit> = (0..4).map(|_| busy.try_acquire().unwrap()).collect();
    let wide = Waiter::queue(wide.acquire_many(3));
    borrowed.pop();
    // the one free permit belongs to the reservation that `wide` waits for, and yet
    let _narrow = narrow.try_acquire().expect("it is within its reservation");
    assert_eq!(wide.wakes(), 0);
    borrowed.clear();
    assert_eq!(wide.wakes(), 1);
}

/// ADM-4
#[test]
fn heads_that_straddle_their_reservation_do_not_wait_for_each_other() {
    let straddling = |name| lane(name).reserved(2).limit(4);
    let lanes = [straddling("a"), straddling("b"), lane("busy")];
    let (_budget, [a, b, busy], _) = budget(4, lanes);
    let all = busy.try_acquire_many(4).unwrap();
    let a = Waiter::queue(a.acquire_many(3));
    let b = Waiter::queue(b.acquire_many(3));
    drop(all);
    assert_eq!((a.wakes(), b.wakes()), (1, 0));
    drop(a.permit());
    assert_eq!(b.wakes(), 1);
}

/// ADM-4
#[test]
fn with_nothing_running_some_waiter_runs_whatever_the_weights() {
    for first in 1..=6 {
        for second in 1..=6 {
            for reserved in 0..=3 {
                let with = |name| lane(name).reserved(reserved).kept(reserved / 2);
                let (_budget, [a, b, busy], _) = budget(6, [with("a"), with("b"), lane("busy")]);
                let most = 6 - reserved / 2 * 2;
                let running = busy.try_acquire_many(most).unwrap();
                let mut waiters = Vec::new();
                for (lane, weight) in [(&a, first), (&b, second)] {
                    let mut acquire = support::Polled::new(lane.acquire_many(weight));
                    if acquire.poll().is_pending() {
                        waiters.push(acquire);
                    }
                }
                let waited = waiters.len();
                drop(running);
                let granted = waiters.iter().filter(|waiter| waiter.wakes() == 1).count();
                assert!(granted > 0 || waited == 0, "{first}, {second} with {reserved} reserved");
            }
        }
    }
}

/// ADM-5
#[test]
fn a_released_permit_goes_to_the_earliest_arrival_of_all_lanes() {
    let (_budget, [a, b, c], _) = budget(1, [lane("a"), lane("b"), lane("c")]);
    let mut permit = c.try_acquire().unwrap();
    let arrivals = [&b, &a, &c, &a, &b].map(|lane| Waiter::queue(lane.acquire()));
    for waiter in arrivals {
        assert_eq!(waiter.wakes(), 0);
        drop(permit);
        assert_eq!(waiter.wakes(), 1);
        permit = waiter.permit();
    }
}

/// ADM-5
#[test]
fn a_lane_within_its_reservation_goes_before_older_borrowers() {
    let (_budget, [files, busy], _) = budget(2, [lane("files").reserved(1), lane("busy")]);
    let one = busy.try_acquire().unwrap();
    let two = busy.try_acquire().unwrap();
    let borrower = Waiter::queue(busy.acquire());
    let file = Waiter::queue(files.acquire());
    drop(one);
    assert_eq!((borrower.wakes(), file.wakes()), (0, 1));
    drop(two);
    assert_eq!(borrower.wakes(), 1);
}

/// ADM-5
#[test]
fn a_borrower_that_fits_passes_one_that_does_not() {
    let (_budget, [large, small, busy], _) = budget(4, [lane("l"), lane("s"), lane("busy")]);
    let one = busy.try_acquire().unwrap();
    let _three = busy.try_acquire_many(3).unwrap();
    let large = Waiter::queue(large.acquire_many(2));
    let small = Waiter::queue(small.acquire());
    drop(one);
    assert_eq!((large.wakes(), small.wakes()), (0, 1));
}

/// ADM-5
#[test]
fn a_borrower_that_was_passed_often_enough_is_passed_no_more() {
    for max_bypass in [0, 1, 5] {
        let builder = Budget::builder().capacity(4).max_bypass(max_bypass);
        let lanes = [lane("large"), lane("small"), lane("files").reserved(1)];
        let (_budget, [large, small, files], _) = budget_with(builder, lanes);
        let one = small.try_acquire().unwrap();
        let large = Waiter::queue(large.acquire_many(4));
        for _ in 0..max_bypass {
            drop(small.try_acquire().expect("it may still be passed"));
        }
        assert!(matches!(small.try_acquire(), Err(TryAcquireError::Busy { .. })));
        let mut younger = Waiter::queue(small.acquire());
        assert!(younger.poll().is_pending());
        let file = files.try_acquire().expect("a lane within its reservation still goes first");
        drop(one);
        assert_eq!((large.wakes(), younger.wakes()), (0, 0));
        drop(file);
        assert_eq!((large.wakes(), younger.wakes()), (1, 0));
        drop(large.permit());
        assert_eq!(younger.wakes(), 1);
    }
}

/// ADM-5
#[test]
fn a_head_that_waits_for_its_own_limit_holds_back_nobody() {
    let builder = Budget::builder().capacity(4).max_bypass(0);
    let (_budget, [narrow, other], _) = budget_with(builder, [lane("n").limit(1), lane("o")]);
    let running = narrow.try_acquire().unwrap();
    let waiter = Waiter::queue(narrow.acquire());
    let _three = other.try_acquire_many(3).expect("the older waiter could not use these");
    drop(running);
    assert_eq!(waiter.wakes(), 1);
}

/// ADM-5
#[test]
fn a_returned_permit_wakes_one_waiter() {
    let (_budget, lane, _) = one_lane(2);
    let one = lane.try_acquire().unwrap();
    let two = lane.try_acquire_many(1).unwrap();
    let waiters: Vec<_> = (0..100).map(|_| Waiter::queue(lane.acquire())).collect();
    let wakes = || waiters.iter().map(Waiter::wakes).sum::<usize>();
    drop(one);
    assert_eq!(wakes(), 1);
    drop(two);
    assert_eq!(wakes(), 2);
}

/// ADM-5
#[test]
fn a_returned_heavy_permit_goes_to_as_many_as_fit() {
    let (_budget, lane, _) = one_lane(6);
    let heavy = lane.try_acquire_many(6).unwrap();
    let waiters = [1, 2, 3, 1].map(|weight| Waiter::queue(lane.acquire_many(weight)));
    drop(heavy);
    assert_eq!(waiters.each_ref().map(Waiter::wakes), [1, 1, 1, 0]);
}

/// ADM-6, ADM-9
#[test]
fn a_weight_that_could_never_be_granted_is_refused_at_once_and_names_the_limit() {
    let lanes = [lane("narrow").limit(3), lane("wide"), lane("probes").reserved(2).kept(2)];
    let (budget, [narrow, wide, probes], _) = budget(10, lanes);
    for (lane, limit) in [(&narrow, 3), (&wide, 8), (&probes, 10)] {
        let AcquireError::TooLarge { weight, limit: named, .. } =
            refused(lane.acquire_many(limit + 1))
        else {
            panic!("too large")
        };
        assert_eq!((weight, named), (limit + 1, limit));
        let attempt = lane.try_acquire_many(u64::MAX).unwrap_err();
        assert!(
            matches!(attempt, TryAcquireError::TooLarge { weight: u64::MAX, limit: named, .. } if named == limit)
        );
        drop(granted(lane.acquire_many(limit)));
        assert_eq!(budget.stats().lane(lane.name()).unwrap().refused.too_large, 2);
    }
}

/// ADM-6
#[test]
fn a_permit_tells_its_weight() {
    let (_budget, lane, _) = one_lane(9);
    assert_eq!(lane.try_acquire().unwrap().weight(), 1);
    assert_eq!(lane.try_acquire_many(9).unwrap().weight(), 9);
    assert_eq!(granted(lane.acquire().weight(4)).weight(), 4);
    // what is asked for is fixed by the first poll
    let all = lane.try_acquire_many(9).unwrap();
    let mut waiter = Waiter::queue(lane.acquire_many(2));
    waiter.future = waiter.future.weight(8);
    drop(all);
    assert_eq!(waiter.permit().weight(), 2);
}

/// ADM-6
#[test]
fn a_waiting_large_request_is_not_overtaken_inside_its_lane() {
    let (_budget, lane, _) = one_lane(4);
    let permits: Vec<_> = (0..4).map(|_| lane.try_acquire().unwrap()).collect();
    let large = Waiter::queue(lane.acquire_many(4));
    let small = Waiter::queue(lane.acquire());
    for permit in permits {
        assert_eq!((large.wakes(), small.wakes()), (0, 0));
        drop(permit);
    }
    assert_eq!((large.wakes(), small.wakes()), (1, 0));
}

/// ADM-6, A2
#[test]
fn when_a_large_head_leaves_the_smaller_ones_behind_it_are_granted_at_once() {
    let (_budget, lane, _) = one_lane(4);
    let _two = lane.try_acquire_many(2).unwrap();
    let large = Waiter::queue(lane.acquire_many(3));
    let small = [1, 1, 1].map(|weight| Waiter::queue(lane.acquire_many(weight)));
    drop(large);
    assert_eq!(small.each_ref().map(Waiter::wakes), [1, 1, 0]);
}

/// ADM-9, A19
#[test]
fn other_lanes_are_not_told_full_when_one_lane_is() {
    let lanes = [lane("bulk").limit(1).max_waiting(1), lane("urgent").max_waiting(1)];
    let (budget, [bulk, urgent], _) = budget(2, lanes);
    let _running = bulk.try_acquire().unwrap();
    let _waiting = Waiter::queue(bulk.acquire());
    let error = refused(bulk.acquire());
    assert!(matches!(error, AcquireError::QueueFull { max_waiting: 1, .. }), "{error:?}");
    let _urgent = granted(urgent.acquire());
    let waiting = Waiter::queue(urgent.acquire());
    let stats = budget.stats();
    assert_eq!(stats.lane("bulk").unwrap().refused.queue_full, 1);
    assert_eq!(stats.lane("urgent").unwrap().refused.total(), 0);
    drop(waiting);
}

/// ADM-2, A5
#[test]
fn threads_that_race_for_the_last_permit_never_exceed_the_limit() {
    let (budget, [narrow, wide], _) = budget(5, [lane("narrow").limit(3), lane("wide")]);
    let _base = narrow.try_acquire_many(2).unwrap();
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let lane = if thread % 2 == 0 { &narrow } else { &wide };
            let (start, budget) = (&start, &budget);
            scope.spawn(move || {
                start.wait();
                for _ in 0..2_000 {
                    if thread % 4 < 2 {
                        drop(lane.try_acquire());
                    } else {
                        drop(support::block_on(lane.acquire()).unwrap());
                    }
                    let stats = budget.stats();
                    assert!(stats.running() <= 5 && stats.deficit == 0);
                    assert_eq!(stats.running() + stats.available, stats.capacity);
                }
            });
        }
    });
    let stats = budget.stats();
    assert_eq!(stats.lane("narrow").unwrap().peak, 3);
    assert!(stats.lane("wide").unwrap().peak <= 3);
    assert_eq!(stats.available, 3, "no permit was lost");
}
