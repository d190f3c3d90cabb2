//! Giving up: before, during and after a wait.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use support::{Polled, Waiter, budget, one_lane};
use tollgate_admission::engine::{
    Cause, Entered, Key, LaneId, Outcome, Request, State, Status, Tick,
};
use tollgate_admission::{AcquireError, Closed, LaneConfig, TryAcquireError};

/// ADM-7
#[test]
fn an_acquire_that_was_never_polled_asks_for_nothing() {
    let (budget, lane, _) = one_lane(1);
    let acquire = lane.acquire();
    drop(lane.try_acquire().expect("nothing was asked for"));
    drop(acquire);
    let stats = budget.stats();
    assert_eq!((stats.available, stats.lanes[0].admitted), (1, 1));
}

/// ADM-7
#[test]
fn dropping_a_waiting_acquire_frees_its_place_in_the_queue() {
    let (budget, [lane], _) = budget(1, [LaneConfig::new("short").max_waiting(1)]);
    let permit = lane.try_acquire().unwrap();
    for _ in 0..3 {
        let waiter = Waiter::queue(lane.acquire());
        let full = support::refused(lane.acquire());
        assert!(matches!(full, AcquireError::QueueFull { max_waiting: 1, .. }));
        drop(waiter);
        assert_eq!(budget.stats().lanes[0].waiting, 0);
    }
    drop(permit);
    assert_eq!(budget.stats().available, 1);
}

/// ADM-7
#[test]
fn those_who_stay_keep_their_order_whoever_leaves() {
    let (_budget, lane, _) = one_lane(1);
    for leave in [vec![0], vec![4], vec![2], vec![1, 3], vec![3, 2, 0], vec![0, 1, 2, 3]] {
        let mut permit = lane.try_acquire().unwrap();
        let waiters = (0..5).map(|_| Some(Waiter::queue(lane.acquire())));
        let mut waiters: Vec<Option<Waiter>> = waiters.collect();
        for leaving in leave {
            waiters[leaving] = None;
        }
        for waiter in waiters.into_iter().flatten() {
            assert_eq!(waiter.wakes(), 0);
            drop(permit);
            assert_eq!(waiter.wakes(), 1);
            permit = waiter.permit();
        }
    }
}

/// ADM-7, A3
#[test]
fn the_permit_of_a_granted_acquire_that_is_dropped_goes_to_the_next_waiter() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let [first, second, third] = [(); 3].map(|()| Waiter::queue(lane.acquire()));
    drop(permit);
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    drop(first);
    assert_eq!((second.wakes(), third.wakes()), (1, 0));
    drop(second);
    assert_eq!(third.wakes(), 1);
    drop(third);
    assert_eq!(budget.stats().available, 1);
    assert_eq!(budget.stats().lanes[0].running, 0);
}

/// ADM-7, A3
#[test]
fn the_permit_of_a_granted_acquire_that_is_dropped_serves_other_lanes_too() {
    let (_budget, [a, b], _) = budget(4, [LaneConfig::new("a"), LaneConfig::new("b")]);
    let all = a.try_acquire_many(4).unwrap();
    let heavy = Waiter::queue(a.acquire_many(4));
    let light = [(); 3].map(|()| Waiter::queue(b.acquire()));
    drop(all);
    assert_eq!(heavy.wakes(), 1);
    drop(heavy);
    assert_eq!(light.each_ref().map(Waiter::wakes), [1, 1, 1]);
}

/// ADM-7
#[test]
fn a_permit_is_back_before_its_owner_can_ask_again() {
    let (_budget, lane, _) = one_lane(1);
    for _ in 0..10 {
        drop(lane.try_acquire().expect("the former one is back"));
        drop(support::granted(lane.acquire()));
    }
}

/// ADM-7, ADM-9
#[test]
fn dropping_a_refused_acquire_counts_nothing_twice() {
    let (budget, lane, _) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let looked = Waiter::queue(lane.acquire());
    let dropped = Waiter::queue(lane.acquire());
    budget.close();
    drop(dropped);
    assert!(matches!(looked.refusal(), AcquireError::Closed { .. }));
    assert_eq!(budget.stats().lanes[0].refused.closed, 2);
}

/// ADM-7
#[test]
#[should_panic(expected = "polled after it had completed")]
fn polling_a_completed_acquire_panics() {
    let (_budget, lane, _) = one_lane(1);
    let mut acquire = Polled::new(lane.acquire());
    assert!(acquire.poll().is_ready());
    let _ = acquire.poll();
}

/// ADM-7
#[test]
fn a_key_that_outlived_its_waiter_is_harmless() {
    let lane = LaneConfig::new("only");
    let mut state = State::new(1, vec![lane], 0).unwrap();
    let request = Request::new(LaneId(0), 1);
    let now = || Tick(1);
    assert_eq!(state.enter(&request, 'a', now), Entered::Granted('a'));
    let Entered::Queued(old) = state.enter(&request, 'b', now) else { panic!("it must wait") };
    assert_eq!(state.cancel(old, now), Some('b'));
    let Entered::Queued(new) = state.enter(&request, 'c', now) else { panic!("it must wait") };
    assert_ne!(old, new);
    assert_eq!(state.cancel(old, now), None);
    assert_eq!(state.status(old), Status::Gone);
    assert_eq!((state.status(new), state.waiting()), (Status::Waiting, 1));
}

const MANY: u64 = 1_000_000;

/// Fills a queue with this many, whose deadlines are far.
fn queue(waiters: u64, with_deadlines: bool) -> (State<u64>, Vec<Key>) {
    let lane = LaneConfig::new("only").unbounded_waiting();
    let mut state = State::new(1, vec![lane], 0).unwrap();
    let now = || Tick(1);
    let mut keys = Vec::new();
    for id in 0..=waiters {
        let deadline = if with_deadlines { Tick(u64::MAX - 1 - id) } else { Tick::NEVER };
        let request = Request { deadline, ..Request::new(LaneId(0), 1) };
        if let Entered::Queued(key) = state.enter(&request, id, now) {
            keys.push(key);
        }
    }
    assert_eq!(state.waiting() as u64, waiters);
    (state, keys)
}

/// ADM-7, A16: if cancelling walked the queue, this would take 5 x 10^11 steps, and hours.
#[test]
fn a_million_waiters_are_cancelled_newest_first_without_walking_the_queue() {
    let (mut state, keys) = queue(MANY, false);
    for (before, key) in keys.into_iter().enumerate().rev() {
        assert_eq!(state.cancel(key, || Tick(2)), Some(before as u64 + 1));
    }
    assert_eq!((state.waiting(), state.out()), (0, 1));
}

/// ADM-7, A16: in every order, and with deadlines, which are forgotten in sweeps.
#[test]
fn a_million_waiters_with_deadlines_are_cancelled_without_walking_the_queue() {
    let (mut state, mut keys) = queue(MANY, true);
    // from both ends and the middle by turns
    let mut order = Vec::with_capacity(keys.len());
    let middle = keys.split_off(keys.len() / 2);
    for (front, back) in keys.into_iter().zip(middle.into_iter().rev()) {
        order.extend([front, back]);
    }
    for key in order {
        assert!(state.cancel(key, || Tick(2)).is_some());
    }
    assert_eq!((state.waiting(), state.next_deadline()), (0, Tick::NEVER));
}

/// ADM-16: if each refusal looked at those before it who wait on, this would take 2.5 x 10^11 steps, and hours.
#[test]
fn those_who_wait_on_under_a_lease_are_not_looked_at_again_for_each_that_is_refused() {
    let lane = LaneConfig::new("only").unbounded_waiting();
    let mut state = State::new(1, vec![lane], 0).unwrap();
    let request = Request::new(LaneId(0), 1);
    let mut last = None;
    for id in 0..=MANY {
        let leased = id <= MANY / 2;
        match state.enter(&Request { leased, ..request }, id, || Tick(1)) {
            Entered::Queued(key) if leased => last = Some(key),
            _ => {}
        }
    }
    state.close(Closed::Scope);
    let mut told = 0;
    while let Some(settled) = state.announce() {
        assert_eq!(settled.outcome(), Outcome::Refused(Cause::Closed(Closed::Scope)));
        assert!(settled.take().unwrap() > MANY / 2, "it came under a lease");
        told += 1;
        // also when the last of those who wait on leaves
        if told == 1 {
            assert_eq!(state.cancel(last.unwrap(), || Tick(2)), Some(MANY / 2));
        }
    }
    assert_eq!((told, state.waiting() as u64), (MANY / 2, MANY / 2 - 1));
}

/// ADM-2, ADM-7
#[test]
fn no_permit_is_lost_or_doubled_when_threads_wait_and_give_up() {
    const CAPACITY: u64 = 3;
    let (budget, lane, _) = one_lane(CAPACITY);
    let running = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (lane, running) = (&lane, &running);
            scope.spawn(move || {
                for round in 0..3_000 {
                    let weight = 1 + (thread + round) % CAPACITY;
                    let mut acquire = Polled::new(lane.acquire_many(weight));
                    let polls = 1 + round % 3;
                    for _ in 0..polls {
                        if let Poll::Ready(permit) = acquire.poll() {
                            let _permit = permit.unwrap();
                            let before = running.fetch_add(weight, Ordering::SeqCst);
                            assert!(before + weight <= CAPACITY);
                            running.fetch_sub(weight, Ordering::SeqCst);
                            break;
                        }
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let stats = budget.stats();
    assert_eq!((stats.available, stats.lanes[0].waiting), (CAPACITY, 0));
    assert!(matches!(lane.try_acquire_many(CAPACITY + 1), Err(TryAcquireError::TooLarge { .. })));
    drop(lane.try_acquire_many(CAPACITY).expect("all of it is free"));
}
