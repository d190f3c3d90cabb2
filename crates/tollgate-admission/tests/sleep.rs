//! Waiting for a moment, by the clock of a time source.

mod support;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use support::{Counter, HandClock, Polled, block_on, poll_with, without_deadlock};
use tollgate_admission::{ClockOnly, Deadline, ManualTime, Sleep, ThreadTimer, TimeSource};

const SECOND: Duration = Duration::from_secs(1);

fn manual() -> (ManualTime, Arc<dyn TimeSource>) {
    let time = ManualTime::new();
    (time.clone(), Arc::new(time))
}

/// ADM-13
#[test]
fn a_sleep_ends_at_its_deadline_and_is_woken_once() {
    let (time, source) = manual();
    let mut sleep = Polled::new(Sleep::until(source, time.now() + SECOND));
    assert_eq!(sleep.future.deadline(), Deadline::at(time.now() + SECOND));
    assert_eq!(time.pending(), 0, "nothing is asked for before the first poll");
    assert!(sleep.poll().is_pending() && sleep.poll().is_pending());
    assert_eq!(time.pending(), 1, "one call, however often it is polled");
    time.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(sleep.wakes(), 0);
    time.advance(Duration::from_nanos(1));
    assert_eq!(sleep.wakes(), 1);
    assert!(sleep.poll().is_ready());
    assert!(sleep.poll().is_ready(), "it stays so");
}

/// ADM-13
#[test]
fn a_sleep_whose_deadline_has_passed_ends_at_its_first_poll_and_one_without_never() {
    let (time, source) = manual();
    for passed in [time.now(), time.now() - SECOND] {
        assert!(Polled::new(Sleep::until(Arc::clone(&source), passed)).poll().is_ready());
    }
    let mut never = Polled::new(Sleep::until(source, Deadline::after(Duration::MAX)));
    assert!(never.poll().is_pending());
    assert_eq!(time.pending(), 0);
}

/// ADM-13
#[test]
fn a_sleep_that_is_reset_ends_at_its_new_deadline() {
    let (time, source) = manual();
    let at = |n| time.now() + n * SECOND;
    let [one, two, three] = [1, 2, 3].map(at);
    let mut sleep = Polled::new(Sleep::until(source, two));
    assert!(sleep.poll().is_pending());
    sleep.future.reset(three);
    assert!(sleep.poll().is_pending());
    time.advance(2 * SECOND);
    assert_eq!(sleep.wakes(), 0, "the former call is skipped");
    sleep.future.reset(one);
    assert!(sleep.poll().is_ready(), "an earlier one");
    sleep.future.reset(three);
    assert!(sleep.poll().is_pending());
    time.advance(SECOND);
    assert_eq!(sleep.wakes(), 1);
    sleep.future.reset(Deadline::never());
    assert!(sleep.poll().is_pending());
}

/// ADM-13
#[test]
fn a_sleep_asks_again_after_a_call_that_came_early() {
    let clock = HandClock::new();
    let mut sleep = Polled::new(Sleep::until(Arc::new(clock.clone()), clock.at(5)));
    assert!(sleep.poll().is_pending());
    clock.show(4);
    clock.call();
    assert_eq!((sleep.wakes(), clock.asked_for()), (1, vec![]));
    assert!(sleep.poll().is_pending());
    assert_eq!(clock.asked_for(), [5]);
    clock.show(5);
    clock.call();
    assert_eq!(sleep.wakes(), 2);
    assert!(sleep.poll().is_ready());
}

/// ADM-13
#[test]
fn a_sleep_wakes_who_polled_it_last_and_nobody_once_it_is_dropped() {
    let (time, source) = manual();
    let [former, latter, dropped] = [(); 3].map(|()| Arc::new(Counter::default()));
    let mut sleep = Sleep::until(Arc::clone(&source), time.now() + SECOND);
    assert!(poll_with(&mut sleep, &Waker::from(Arc::clone(&former))).is_pending());
    assert!(poll_with(&mut sleep, &Waker::from(Arc::clone(&latter))).is_pending());
    let mut given_up = Sleep::until(source, time.now() + SECOND);
    assert!(poll_with(&mut given_up, &Waker::from(Arc::clone(&dropped))).is_pending());
    drop(given_up);
    assert_eq!(Arc::strong_count(&dropped), 1);
    time.advance(SECOND);
    assert_eq!([former, latter, dropped].map(|counter| counter.wakes()), [0, 1, 0]);
}

/// ADM-13
#[test]
fn a_sleep_without_a_timer_ends_when_it_is_polled_after_its_time() {
    let mut sleep = Polled::new(Sleep::until(Arc::new(ClockOnly), Deadline::after(Duration::MAX)));
    assert!(sleep.poll().is_pending());
    sleep.future.reset(ClockOnly.now());
    assert!(sleep.poll().is_ready());
}

/// ADM-13: on a timer whose thread nobody had needed before.
#[test]
fn a_sleep_starts_the_timers_thread() {
    without_deadlock(|| {
        let timer = Arc::new(ThreadTimer::new("sleep"));
        block_on(Sleep::until(timer, Deadline::after(Duration::from_millis(1))));
    });
}
