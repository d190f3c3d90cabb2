//! Waiting for a limited time, on clocks that do what clocks do.

mod support;

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    HandClock, Polled, Waiter, block_on, budget, granted, one_lane, refused, without_deadlock,
};
use tollgate_admission::time::OnTime;
use tollgate_admission::{
    AcquireError, Budget, ClockOnly, Deadline, Lane, LaneConfig, ManualTime, ThreadTimer,
    TimeSource, TryAcquireError,
};

const SECOND: Duration = Duration::from_secs(1);

/// A budget on a clock that makes no call by itself.
fn by_hand<const N: usize>(
    capacity: u64,
    lanes: [LaneConfig; N],
) -> (Budget, [Lane; N], HandClock) {
    let clock = HandClock::new();
    let mut builder = Budget::builder().capacity(capacity).time(Arc::new(clock.clone()));
    for lane in &lanes {
        builder = builder.lane(lane.clone());
    }
    let budget = builder.build().unwrap();
    let lanes = lanes.map(|lane| budget.lane(lane.name()).unwrap());
    (budget, lanes, clock)
}

fn is_deadline(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Deadline { .. })
}

/// ADM-8
#[test]
fn an_expired_deadline_is_refused_even_when_a_permit_is_free() {
    let (budget, lane, time) = one_lane(1);
    time.advance(SECOND);
    let now = time.now();
    for expired in [now, now - SECOND / 2, now - SECOND, now - 2 * SECOND] {
        let error = refused(lane.acquire_until(expired));
        assert!(is_deadline(&error), "{error:?}");
    }
    let stats = budget.stats();
    assert_eq!((stats.available, stats.lanes[0].waiting), (1, 0));
    assert_eq!((stats.lanes[0].refused.deadline, stats.lanes[0].admitted), (4, 0));
    drop(granted(lane.acquire_until(now + Duration::from_nanos(1))));
}

/// ADM-8
#[test]
fn a_deadline_between_the_call_and_the_first_poll_counts() {
    let (_budget, lane, time) = one_lane(1);
    let acquire = lane.acquire_until(time.now() + SECOND);
    time.advance(SECOND);
    assert!(is_deadline(&refused(acquire)));
}

/// ADM-8
#[test]
fn a_waiter_is_woken_at_its_deadline_and_refused() {
    let (budget, lane, time) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_until(time.now() + SECOND));
    time.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(waiter.wakes(), 0);
    time.advance(Duration::from_nanos(1));
    assert_eq!(waiter.wakes(), 1);
    let error = waiter.refusal();
    assert_eq!(error.to_string(), "the deadline passed before lane `only` had room");
    let stats = budget.stats();
    assert_eq!((stats.lanes[0].waiting, stats.lanes[0].refused.deadline), (0, 1));
}

/// ADM-8
#[test]
fn the_earliest_deadline_given_counts() {
    let (_budget, [lane], time) = budget(1, [LaneConfig::new("l").queue_timeout(5 * SECOND)]);
    let _permit = lane.try_acquire().unwrap();
    let in_seconds = |n| time.now() + n * SECOND;
    let by_caller = Waiter::queue(lane.acquire().until(in_seconds(9)).until(in_seconds(3)));
    let loosened = Waiter::queue(lane.acquire_until(in_seconds(4)).until(Deadline::never()));
    let by_lane = Waiter::queue(lane.acquire_until(in_seconds(9)));
    for (second, wakes) in [(2, [0, 0, 0]), (3, [1, 0, 0]), (4, [1, 1, 0]), (5, [1, 1, 1])] {
        time.advance(if second == 2 { 2 * SECOND } else { SECOND });
        let seen = [&by_caller, &loosened, &by_lane].map(Waiter::wakes);
        assert_eq!(seen, wakes, "after {second} seconds");
    }
    assert!(is_deadline(&by_lane.refusal()));
}

/// ADM-8
#[test]
fn a_queue_timeout_counts_from_the_start_of_the_wait() {
    let (budget, [lane], time) = budget(1, [LaneConfig::new("l").queue_timeout(3 * SECOND)]);
    let _permit = lane.try_acquire().unwrap();
    let first = Waiter::queue(lane.acquire());
    time.advance(SECOND);
    let second = Waiter::queue(lane.acquire());
    time.advance(2 * SECOND);
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    time.advance(SECOND);
    assert_eq!(second.wakes(), 1);
    assert_eq!(budget.stats().lanes[0].refused.deadline, 2);
}

/// ADM-8
#[test]
fn a_queue_timeout_of_zero_grants_what_is_free_and_queues_nobody() {
    let (budget, [lane], _) = budget(1, [LaneConfig::new("l").queue_timeout(Duration::ZERO)]);
    let _permit = granted(lane.acquire());
    assert!(is_deadline(&refused(lane.acquire())));
    assert_eq!(budget.stats().lanes[0].waiting, 0);
}

/// ADM-8
#[test]
fn a_waiter_whose_deadline_passed_unseen_is_never_granted() {
    let (budget, [lane], clock) = by_hand(1, [LaneConfig::new("l")]);
    let permit = lane.try_acquire().unwrap();
    let late = Waiter::queue(lane.acquire_until(clock.at(5)));
    let patient = Waiter::queue(lane.acquire_until(clock.at(50)));
    clock.show(5);
    // no timer has called, nobody has polled
    drop(permit);
    assert_eq!((late.wakes(), patient.wakes()), (1, 1));
    assert!(is_deadline(&late.refusal()));
    drop(patient.permit());
    assert_eq!(budget.stats().available, 1);
}

/// ADM-8
#[test]
fn a_waiter_whose_deadline_passed_unseen_fills_no_queue() {
    let (budget, [lane], clock) = by_hand(1, [LaneConfig::new("l").max_waiting(1)]);
    let _permit = lane.try_acquire().unwrap();
    let _late = Waiter::queue(lane.acquire_until(clock.at(5)));
    assert!(matches!(refused(lane.acquire()), AcquireError::QueueFull { .. }));
    clock.show(5);
    let _in_its_place = Waiter::queue(lane.acquire());
    assert_eq!(budget.stats().lanes[0].waiting, 1);
}

/// ADM-8
#[test]
fn a_waiter_whose_deadline_passed_unseen_holds_back_no_try_acquire() {
    let (_budget, [lane, other], clock) =
        by_hand(4, [LaneConfig::new("l"), LaneConfig::new("other")]);
    let _one = other.try_acquire().unwrap();
    let _late = Waiter::queue(lane.acquire_many(4).until(clock.at(5)));
    assert!(matches!(lane.try_acquire(), Err(TryAcquireError::Busy { .. })));
    clock.show(5);
    drop(lane.try_acquire().expect("nobody is waiting any more"));
}

/// ADM-8
#[test]
fn a_waiter_whose_deadline_passed_unseen_protects_no_reservation() {
    let lanes = [LaneConfig::new("files").reserved(2), LaneConfig::new("busy")];
    let (_budget, [files, busy], clock) = by_hand(2, lanes);
    let one = busy.try_acquire().unwrap();
    let _two = busy.try_acquire().unwrap();
    let _late = Waiter::queue(files.acquire_many(2).until(clock.at(5)));
    let borrower = Waiter::queue(busy.acquire());
    drop(one);
    assert_eq!(borrower.wakes(), 0);
    clock.show(5);
    // another call than the one that frees something
    assert!(matches!(busy.try_acquire(), Err(TryAcquireError::Busy { .. })));
    assert_eq!(borrower.wakes(), 1);
}

/// ADM-8, ADM-12
#[test]
fn a_waiter_whose_deadline_passed_unseen_is_not_shown_as_waiting() {
    let (budget, [lane], clock) = by_hand(1, [LaneConfig::new("l").queue_timeout(5 * SECOND)]);
    let _permit = lane.try_acquire().unwrap();
    let _late = Waiter::queue(lane.acquire());
    clock.show(4);
    assert_eq!(budget.stats().lanes[0].oldest_wait, Some(4 * SECOND));
    clock.show(5);
    let stats = &budget.stats().lanes[0];
    assert_eq!((stats.waiting, stats.oldest_wait, stats.refused.deadline), (0, None, 1));
}

/// ADM-8, A1
#[test]
fn after_waiters_timed_out_the_full_capacity_is_available_again() {
    let (budget, lane, time) = one_lane(3);
    let held = lane.try_acquire_many(3).unwrap();
    let waiters: Vec<_> = (1..=3)
        .flat_map(|weight| [weight; 4])
        .map(|weight| Waiter::queue(lane.acquire_many(weight).until(time.now() + SECOND)))
        .collect();
    time.advance(SECOND);
    drop(held);
    for waiter in waiters {
        assert_eq!(waiter.wakes(), 1);
        assert!(is_deadline(&waiter.refusal()));
    }
    assert_eq!(budget.stats().available, 3);
    drop(lane.try_acquire_many(3).unwrap());
}

/// ADM-8
#[test]
fn a_small_waiter_is_granted_when_the_large_one_before_it_times_out() {
    let (_budget, lane, time) = one_lane(3);
    let _one = lane.try_acquire().unwrap();
    let large = Waiter::queue(lane.acquire_many(3).until(time.now() + SECOND));
    let small = Waiter::queue(lane.acquire());
    time.advance(SECOND);
    assert_eq!((large.wakes(), small.wakes()), (1, 1));
    drop(small.permit());
}

/// ADM-8, A12
#[test]
fn huge_spans_never_pass_and_never_overflow() {
    for span in [Duration::MAX, Duration::from_secs(u64::MAX / 10), Duration::from_secs(u64::MAX)] {
        let lane = LaneConfig::new("l").queue_timeout(span);
        let (budget, [lane], time) = budget(1, [lane]);
        let permit = lane.try_acquire().unwrap();
        let waiter = Waiter::queue(lane.acquire_until(Deadline::after(span)));
        for _ in 0..3 {
            time.advance(Duration::from_secs(100 * 365 * 24 * 3600));
            assert_eq!(waiter.wakes(), 0);
        }
        assert_eq!(budget.stats().lanes[0].waiting, 1);
        drop(permit);
        drop(waiter.permit());
    }
    assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
}

/// ADM-8
#[test]
fn the_farthest_instant_that_can_be_told_is_a_valid_deadline() {
    let (_budget, lane, time) = one_lane(1);
    // doubles its way to the greatest instant there is
    let mut farthest = time.now();
    let mut step = Duration::from_secs(1 << 62);
    while step > Duration::from_nanos(1) {
        match farthest.checked_add(step) {
            Some(later) => farthest = later,
            None => step /= 2,
        }
    }
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_until(farthest));
    time.advance(Duration::from_secs(1 << 32));
    assert_eq!(waiter.wakes(), 0);
    drop(permit);
    drop(waiter.permit());
}

/// ADM-8
#[test]
fn deadlines_say_how_long_is_left() {
    let now = Instant::now();
    let deadline = Deadline::at(now + SECOND);
    assert_eq!(deadline.remaining(now), Some(SECOND));
    assert_eq!(deadline.remaining(now + 2 * SECOND), Some(Duration::ZERO));
    assert!(deadline.has_passed(now + SECOND) && !deadline.has_passed(now));
    assert_eq!(Deadline::never().remaining(now), None);
    assert!(!Deadline::never().has_passed(now));
    assert_eq!(deadline.earliest(Deadline::never()), deadline);
    assert_eq!(Deadline::never().earliest(deadline), deadline);
    assert_eq!(deadline.earliest(Deadline::at(now)), Deadline::at(now));
    assert_eq!(Deadline::from(now).instant(), Some(now));
    assert_eq!(Deadline::default(), Deadline::never());
}

// ---- clocks and timers ----

/// ADM-8, section 5: a clock that jumps.
#[test]
fn a_reading_that_goes_back_counts_as_the_latest_one() {
    let (budget, [lane], clock) = by_hand(1, [LaneConfig::new("l").queue_timeout(10 * SECOND)]);
    let _permit = lane.try_acquire().unwrap();
    clock.show(20);
    let first = Waiter::queue(lane.acquire());
    clock.show(5);
    let expired = refused(lane.acquire_until(clock.at(20)));
    assert!(is_deadline(&expired), "20 had been shown before");
    let second = Waiter::queue(lane.acquire());
    assert_eq!(budget.stats().lanes[0].oldest_wait, Some(Duration::ZERO));
    clock.show(29);
    assert_eq!(budget.stats().lanes[0].waiting, 2);
    clock.show(30);
    assert_eq!(budget.stats().lanes[0].waiting, 0);
    assert_eq!((first.wakes(), second.wakes()), (1, 1));
}

/// ADM-8, section 5: a clock that jumps.
#[test]
fn a_reading_from_before_the_budget_was_built_is_harmless() {
    let clock = HandClock::new();
    clock.show(100);
    let budget = Budget::builder().capacity(1).lane(LaneConfig::new("l"));
    let budget = budget.time(Arc::new(clock.clone())).build().unwrap();
    let lane = budget.lane("l").unwrap();
    clock.show(0);
    let permit = granted(lane.acquire_until(clock.at(101)));
    let waiter = Waiter::queue(lane.acquire_until(clock.at(101)));
    assert!(is_deadline(&refused(lane.acquire_until(clock.at(99)))));
    assert_eq!(budget.stats().lanes[0].oldest_wait, Some(Duration::ZERO));
    drop(permit);
    drop(waiter.permit());
}

/// ADM-8, section 5: a clock that jumps.
#[test]
fn a_deadline_is_not_missed_when_the_call_comes_early() {
    let (_budget, [lane], clock) = by_hand(1, [LaneConfig::new("l")]);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_until(clock.at(10)));
    let _later = Waiter::queue(lane.acquire_until(clock.at(20)));
    clock.show(3);
    clock.call();
    assert_eq!(waiter.wakes(), 0);
    assert_eq!(clock.asked_for(), [10], "it has to be called again");
    clock.show(10);
    clock.call();
    assert_eq!(waiter.wakes(), 1);
    assert_eq!(clock.asked_for(), [20]);
}

/// ADM-8
#[test]
fn a_call_that_comes_once_too_often_is_harmless() {
    let (budget, [lane], clock) = by_hand(1, [LaneConfig::new("l")]);
    let _permit = lane.try_acquire().unwrap();
    let first = Waiter::queue(lane.acquire_until(clock.at(20)));
    let second = Waiter::queue(lane.acquire_until(clock.at(10)));
    assert_eq!(clock.asked_for(), [20, 10]);
    clock.show(30);
    clock.call();
    assert_eq!((first.wakes(), second.wakes()), (1, 1));
    clock.call();
    assert_eq!((first.wakes(), second.wakes()), (1, 1));
    assert_eq!(budget.stats().lanes[0].refused.deadline, 2);
    assert!(clock.asked_for().is_empty());
}

/// ADM-8
#[test]
fn calls_do_not_pile_up_behind_a_late_deadline() {
    let (_budget, lane, time) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let _patient = Waiter::queue(lane.acquire_until(time.now() + 3_600 * SECOND));
    for _ in 0..100 {
        let hasty = Waiter::queue(lane.acquire_until(time.now() + SECOND));
        time.advance(SECOND);
        assert_eq!(hasty.wakes(), 1);
        assert!(time.pending() <= 2, "{} calls are outstanding", time.pending());
    }
}

/// ADM-8
#[test]
fn ever_earlier_deadlines_leave_few_calls_outstanding_and_none_is_missed() {
    type Span = fn(u32) -> Duration;
    let linear: Span = |n| (10_000 - n) * SECOND;
    // of every order of magnitude, down to nanoseconds
    let geometric: Span =
        |n| Duration::from_nanos(10 + 2_f64.powf(53.0 - f64::from(n) / 200.0) as u64);
    for span in [linear, geometric] {
        let (_budget, lane, time) = one_lane(1);
        let _permit = lane.try_acquire().unwrap();
        let start = time.now();
        let mut stayed = Vec::new();
        for n in 0..10_000 {
            let waiter = Waiter::queue(lane.acquire_until(start + span(n)));
            if n % 1_000 == 500 {
                stayed.push((span(n), waiter));
            }
            assert!(time.pending() <= 64, "{} calls are outstanding", time.pending());
        }
        while let Some((due, waiter)) = stayed.pop() {
            let shown = time.now() - start;
            time.advance(due - shown - Duration::from_nanos(1));
            assert_eq!(waiter.wakes(), 0, "it was woken before {due:?}");
            time.advance(Duration::from_nanos(1));
            assert_eq!(waiter.wakes(), 1, "it was not woken at {due:?}");
            assert!(is_deadline(&waiter.refusal()));
            assert!(time.pending() <= 64, "{} calls are outstanding", time.pending());
        }
        time.advance(Duration::from_nanos(1 << 60));
        assert_eq!(time.pending(), 0);
    }
}

/// Lanes with a queue timeout of ten seconds, as many as are looked at one by one, and more.
fn few_and_many_lanes() -> [(Budget, Vec<Lane>, ManualTime); 2] {
    [4, 20].map(|count| {
        let time = ManualTime::new();
        let mut budget = Budget::builder().capacity(1).time(Arc::new(time.clone()));
        let names: Vec<_> = (0..count).map(|n| format!("l{n}")).collect();
        for name in &names {
            budget = budget.lane(LaneConfig::new(name.as_str()).queue_timeout(10 * SECOND));
        }
        let budget = budget.build().unwrap();
        let lanes = names.iter().map(|name| budget.lane(name).unwrap()).collect();
        (budget, lanes, time)
    })
}

/// ADM-8
#[test]
fn a_queue_timeout_for_which_nobody_waits_any_more_costs_one_call() {
    for (_budget, lanes, time) in few_and_many_lanes() {
        let permit = lanes[0].try_acquire().unwrap();
        for lane in &lanes {
            drop(Waiter::queue(lane.acquire()));
        }
        assert_eq!(time.pending(), 1);
        // a moment that stayed in the past would have it called without end
        let clock = time.clone();
        without_deadlock(move || clock.advance(10 * SECOND));
        assert_eq!(time.pending(), 0);
        drop(permit);
    }
}

/// ADM-8
#[test]
fn each_queue_timeout_is_met_at_its_own_time_though_those_before_it_left() {
    for (budget, lanes, time) in few_and_many_lanes() {
        let _permit = lanes[0].try_acquire().unwrap();
        // two in each lane, a second apart; every third of those who came stays
        let mut stayed = Vec::new();
        for (n, lane) in lanes.iter().chain(&lanes).enumerate() {
            let waiter = Waiter::queue(lane.acquire());
            if n % 3 == 2 {
                stayed.push((time.now() + 10 * SECOND, waiter));
            }
            if n % 4 == 3 {
                time.advance(SECOND);
            }
        }
        for (due, waiter) in stayed {
            let left = due.saturating_duration_since(time.now());
            if let Some(left) = left.checked_sub(Duration::from_nanos(1)) {
                time.advance(left);
                assert_eq!(waiter.wakes(), 0);
                time.advance(Duration::from_nanos(1));
            }
            assert_eq!(waiter.wakes(), 1);
            assert!(time.pending() <= 2, "{} calls are outstanding", time.pending());
            assert!(is_deadline(&waiter.refusal()));
        }
        assert!(budget.stats().lanes.iter().all(|lane| lane.waiting == 0));
    }
}

/// ADM-8, ADM-10
#[test]
fn the_queue_timeout_of_one_who_was_told_of_a_close_is_due_no_more() {
    for (_budget, lanes, time) in few_and_many_lanes() {
        let _permit = lanes[0].try_acquire().unwrap();
        let told = Waiter::queue(lanes[1].acquire());
        time.advance(SECOND);
        let stays = Waiter::queue(lanes[2].acquire());
        lanes[1].close();
        let clock = time.clone();
        without_deadlock(move || clock.advance(9 * SECOND));
        assert_eq!((told.wakes(), stays.wakes()), (1, 0));
        time.advance(SECOND);
        assert_eq!(stays.wakes(), 1);
        assert_eq!(time.pending(), 0);
        assert!(matches!(told.refusal(), AcquireError::Closed { .. }));
        assert!(is_deadline(&stays.refusal()));
    }
}

/// ADM-8, ADM-11
#[test]
fn a_queue_timeout_that_comes_with_a_resize_ends_waits_that_are_under_way() {
    // this clock insists that it is made ready before it is asked for a call
    let (budget, [lane], clock) = by_hand(1, [LaneConfig::new("l")]);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    clock.show(5);
    budget.resize().lane("l", |lane| lane.queue_timeout(10 * SECOND)).apply().unwrap();
    assert_eq!(clock.asked_for(), [10], "counted from the start of the wait");
    clock.show(10);
    clock.call();
    assert!(is_deadline(&waiter.refusal()));
}

/// ADM-8
#[test]
fn a_budget_that_is_gone_is_not_called() {
    let (budget, lane, time) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_until(time.now() + SECOND));
    drop((budget, lane, permit, waiter));
    assert_eq!(time.pending(), 1);
    time.advance(2 * SECOND);
    assert_eq!(time.pending(), 0);
}

/// ADM-8, ADM-13
#[test]
fn the_default_timer_ends_a_wait_at_its_deadline() {
    let budget = Budget::builder().capacity(1).lane(LaneConfig::new("l")).build().unwrap();
    let lane = budget.lane("l").unwrap();
    let _permit = lane.try_acquire().unwrap();
    let span = Duration::from_millis(20);
    let before = Instant::now();
    let result = block_on(lane.acquire_until(Deadline::after(span)));
    assert!(is_deadline(&result.unwrap_err()));
    assert!(before.elapsed() >= span);
}

/// Sends the moment at which it is called.
struct Called(mpsc::Sender<Instant>);

impl OnTime for Called {
    fn on_time(self: Arc<Self>) {
        let _ = self.0.send(Instant::now());
    }
}

fn called() -> (Arc<dyn OnTime>, mpsc::Receiver<Instant>) {
    let (calls, called) = mpsc::channel();
    (Arc::new(Called(calls)), called)
}

/// ADM-8
#[test]
fn the_timer_calls_at_the_time_or_later_and_never_earlier() {
    let timer = ThreadTimer::new("test-timer");
    timer.prepare().unwrap();
    let (target, called) = called();
    for millis in [20, 0, 5] {
        let at = Instant::now() + Duration::from_millis(millis);
        timer.call_at(at, Arc::downgrade(&target));
        assert!(called.recv().unwrap() >= at);
    }
    timer.call_at(Instant::now(), Arc::downgrade(&target));
    called.recv().expect("also at a time that has passed");
}

/// ADM-8, section 5: names with any characters.
#[test]
fn any_characters_make_the_name_of_a_timer() {
    for name in ["", "a\0b", "a name that is longer than what a system takes", "früh 🚦"] {
        let timer = ThreadTimer::new(name);
        timer.prepare().unwrap();
        let (target, called) = called();
        timer.call_at(Instant::now(), Arc::downgrade(&target));
        called.recv().unwrap();
    }
}

/// ADM-8
#[test]
fn the_timer_is_on_time_for_a_call_that_is_asked_for_behind_a_later_one() {
    let timer = ThreadTimer::new("test-timer");
    timer.prepare().unwrap();
    let (later, _) = called();
    let (sooner, called) = called();
    timer.call_at(Instant::now() + 3_600 * SECOND, Arc::downgrade(&later));
    // so that the thread is already asleep until then
    for _ in 0..3 {
        timer.call_at(Instant::now() + Duration::from_millis(5), Arc::downgrade(&sooner));
        called.recv_timeout(60 * SECOND).expect("it does not wait for the later one");
    }
}

/// ADM-8
#[test]
fn a_target_that_panics_does_not_harm_the_timer() {
    struct Panics;
    impl OnTime for Panics {
        fn on_time(self: Arc<Self>) {
            panic!("a target that panics");
        }
    }
    let timer = ThreadTimer::new("test-timer");
    timer.prepare().unwrap();
    let panics: Arc<dyn OnTime> = Arc::new(Panics);
    let (target, called) = called();
    let now = Instant::now();
    timer.call_at(now, Arc::downgrade(&panics));
    timer.call_at(now + Duration::from_millis(1), Arc::downgrade(&target));
    called.recv_timeout(60 * SECOND).expect("the others still get their calls");
}

/// ADM-8
#[cfg(target_os = "linux")]
#[test]
fn the_thread_of_a_timer_ends_with_it() {
    fn runs(name: &str) -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.flatten().any(|task| {
            let comm = std::fs::read_to_string(task.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim() == name)
        })
    }
    let timer = ThreadTimer::new("timer-ends");
    assert!(!runs("timer-ends"), "it is started by the first wait");
    timer.prepare().unwrap();
    timer.prepare().unwrap();
    // it names itself once it runs
    without_deadlock(|| {
        while !runs("timer-ends") {
            thread::yield_now();
        }
    });
    let (target, _called) = called();
    timer.call_at(Instant::now() + 3_600 * SECOND, Arc::downgrade(&target));
    drop(timer);
    without_deadlock(|| {
        while runs("timer-ends") {
            thread::yield_now();
        }
    });
}

/// ADM-8
#[test]
fn one_timer_serves_deadlines_in_every_order_and_several_budgets() {
    let timer = Arc::new(ThreadTimer::new("test-timer"));
    let waits = [30, 10, 20].map(|millis| {
        let timer = Arc::clone(&timer);
        thread::spawn(move || {
            let budget = Budget::builder().capacity(1).lane(LaneConfig::new("l")).time(timer);
            let budget = budget.build().unwrap();
            let lane = budget.lane("l").unwrap();
            let _permit = lane.try_acquire().unwrap();
            for _ in 0..3 {
                let deadline = Deadline::after(Duration::from_millis(millis));
                assert!(is_deadline(&block_on(lane.acquire_until(deadline)).unwrap_err()));
            }
        })
    });
    for wait in waits {
        wait.join().unwrap();
    }
}

/// ADM-9, ADM-13
#[test]
fn a_wait_under_a_deadline_without_a_timer_is_refused_typed_and_counted() {
    let timed = LaneConfig::new("timed").queue_timeout(SECOND).limit(1);
    let budget = Budget::builder().capacity(2).lane(LaneConfig::new("l").limit(1)).lane(timed);
    let budget = budget.time(Arc::new(ClockOnly)).build().unwrap();
    let (lane, timed) = (budget.lane("l").unwrap(), budget.lane("timed").unwrap());
    let in_time = || Deadline::after(3_600 * SECOND);
    // what needs no wait needs no timer
    let permit = granted(lane.acquire_until(in_time()));
    let _timed = granted(timed.acquire());
    let error = refused(lane.acquire_until(in_time()));
    assert!(matches!(error, AcquireError::NoTimer { .. }));
    assert_eq!(
        error.to_string(),
        "lane `l` is full and there is no timer to end the wait at its deadline"
    );
    assert!(matches!(refused(timed.acquire()), AcquireError::NoTimer { .. }));
    let past = Deadline::at(Instant::now());
    assert!(is_deadline(&refused(lane.acquire_until(past))));
    let stats = budget.stats();
    for lane in &stats.lanes {
        assert_eq!((lane.refused.no_timer, lane.waiting), (1, 0), "{lane:?}");
    }
    // nor does a wait without a deadline
    let waiter = Waiter::queue(lane.acquire());
    drop(permit);
    drop(waiter.permit());
}

/// ADM-8
#[test]
fn manual_time_makes_the_calls_that_fall_due_each_at_its_own_time() {
    let (budget, lane, time) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let start = time.now();
    let mut waiters: Vec<_> = [3, 1, 2]
        .into_iter()
        .map(|seconds| Polled::new(lane.acquire_until(start + seconds * SECOND)))
        .collect();
    for waiter in &mut waiters {
        assert!(waiter.poll().is_pending());
    }
    time.advance(10 * SECOND);
    assert!(waiters.iter().all(|waiter| waiter.wakes() == 1));
    assert_eq!(time.now(), start + 10 * SECOND);
    assert_eq!(budget.stats().lanes[0].refused.deadline, 3);
}

/// When a call was due, and what the clock showed meanwhile.
type Seen = (Instant, [Instant; 2]);

/// Writes down what a clock shows when its call comes, and again after others had the chance to move it.
struct Witness {
    time: ManualTime,
    due: Instant,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl OnTime for Witness {
    fn on_time(self: Arc<Self>) {
        let first = self.time.now();
        // makes the other call that is due at this time, from within this one
        self.time.advance(Duration::ZERO);
        thread::yield_now();
        self.seen.lock().unwrap().push((self.due, [first, self.time.now()]));
    }
}

/// ADM-8
#[test]
fn advances_of_several_threads_add_up_and_each_call_still_comes_at_its_own_time() {
    const THREADS: u32 = 4;
    const TIMES: u32 = 1_000;
    const STEP: Duration = Duration::from_millis(3);
    let time = ManualTime::new();
    let start = time.now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let targets: Vec<_> = (1..=THREADS * TIMES)
        .map(|n| {
            let due = start + n.div_ceil(2) * Duration::from_millis(4);
            let witness = Arc::new(Witness { time: time.clone(), due, seen: Arc::clone(&seen) });
            let target: Arc<dyn OnTime> = witness;
            time.call_at(due, Arc::downgrade(&target));
            target
        })
        .collect();
    let begin = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                begin.wait();
                for _ in 0..TIMES {
                    time.advance(STEP);
                }
            });
        }
    });
    assert_eq!(time.now(), start + THREADS * TIMES * STEP);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), targets.len());
    assert!(seen.is_sorted_by_key(|(due, _)| *due), "in order");
    for (due, shown) in seen.iter() {
        assert_eq!(shown, &[*due; 2], "the clock stands still while a call is made");
    }
}

/// Advances the clock when its call comes.
struct Pusher(ManualTime);

impl OnTime for Pusher {
    fn on_time(self: Arc<Self>) {
        self.0.advance(5 * SECOND);
    }
}

/// ADM-8
#[test]
fn an_advance_from_within_a_call_adds_up_with_the_one_that_made_the_call() {
    let (_budget, lane, time) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let start = time.now();
    let waiter = Waiter::queue(lane.acquire_until(start + 14 * SECOND));
    let pusher: Arc<dyn OnTime> = Arc::new(Pusher(time.clone()));
    time.call_at(start + 2 * SECOND, Arc::downgrade(&pusher));
    let clock = time.clone();
    without_deadlock(move || clock.advance(9 * SECOND));
    assert_eq!(time.now(), start + 14 * SECOND);
    assert_eq!(waiter.wakes(), 1);
}
