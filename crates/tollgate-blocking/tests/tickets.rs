//! Accepted work that is held, watched or let go.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::*;
use tollgate_blocking::{JobState, LanePolicy, RunError};

const SECOND: Duration = Duration::from_secs(1);

/// BLK-9
#[test]
fn a_ticket_can_be_awaited_until_a_deadline_and_awaited_again() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let mut ticket = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    for _ in 0..3 {
        let deadline = owned.after(SECOND);
        let mut wait = ticket.wait_until(deadline);
        start(&mut wait);
        owned.time.advance(SECOND / 2);
        start(&mut wait);
        owned.time.advance(SECOND / 2);
        assert!(block_on(wait).is_none(), "the deadline passed first");
        assert_eq!(states(&pool), [JobState::Running], "which changes nothing about the job");
    }
    gate.open();
    let result = block_on(ticket.wait_until(owned.after(SECOND)));
    assert!(matches!(result, Some(Ok(()))), "{result:?}");
    let counts = counts(&pool, "io");
    assert_eq!((counts.finished, counts.timed_out, counts.abandoned), (1, 0, 0));
}

/// BLK-9
#[test]
fn a_wait_wakes_at_its_deadline_on_any_executor() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let mut ticket = io.submit(gate.closure()).unwrap();
    let (bell, waker) = Bell::new();
    let mut wait = ticket.wait_until(owned.after(SECOND));
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut wait).poll(&mut cx).is_pending());
    assert_eq!(bell.rung(), 0);
    owned.time.advance(SECOND);
    assert_eq!(bell.rung(), 1, "the pool keeps the time itself");
}

/// BLK-9
#[test]
fn a_deadline_that_has_passed_does_not_hide_a_result_that_is_there() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let mut ticket = io.submit(|| 7).unwrap();
    eventually("the job ends", || ticket.is_done());
    owned.time.advance(SECOND);
    let past = std::time::Instant::now() - SECOND;
    assert_eq!(block_on(ticket.wait_until(past)).unwrap().unwrap(), 7);
}

/// BLK-9
#[test]
fn a_ticket_is_joined_from_a_plain_thread() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(2, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    let ticket = io
        .submit(move || {
            closure();
            7
        })
        .unwrap();
    let joiner = std::thread::spawn(move || ticket.join());
    gate.wait_started();
    gate.open();
    assert_eq!(must_end("a join", || joiner.join().unwrap()).unwrap(), 7);
}

/// BLK-9
#[test]
fn a_join_until_a_deadline_gives_the_ticket_back() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let ticket = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let (time, deadline) = (owned.time.clone(), owned.after(SECOND));
    let joiner = std::thread::spawn(move || ticket.join_until(deadline));
    eventually("the timer is asked", || time.pending() > 0);
    time.advance(SECOND);
    let ticket = must_end("a join", || joiner.join().unwrap()).unwrap_err();
    assert_eq!(states(&pool), [JobState::Running]);
    gate.open();
    ticket.join_until(owned.after(SECOND)).unwrap().unwrap();
}

/// BLK-9
#[test]
fn dropping_a_ticket_gives_up_watching_and_not_the_work() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let ran = Arc::new(AtomicUsize::new(0));
    let closure = gate.closure();
    drop(io.submit(closure).unwrap());
    gate.wait_started();
    for _ in 0..3 {
        let ran = Arc::clone(&ran);
        let job = io.job("x").submit_with(move |job| {
            assert!(job.checkpoint().is_ok(), "nobody asked it to stop");
            ran.fetch_add(1, Ordering::SeqCst)
        });
        drop(job.unwrap());
    }
    gate.open();
    eventually("all jobs run", || counts(&pool, "io").finished == 4);
    assert_eq!(ran.load(Ordering::SeqCst), 3);
    let counts = counts(&pool, "io");
    assert_eq!((counts.abandoned, counts.cancelled), (0, 0));
}

/// BLK-9, BLK-6
#[test]
fn cancelling_a_queued_job_drops_it_at_once_and_says_so() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 1);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let captured = Arc::new(());
    let kept = Arc::clone(&captured);
    let queued = io.submit(move || drop(kept)).unwrap();
    let (bell, waker) = Bell::new();
    let mut queued = Box::pin(queued);
    assert!(queued.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    assert!(queued.cancel(), "it never ran and never will");
    assert_eq!(Arc::strong_count(&captured), 1);
    assert_eq!(bell.rung(), 1);
    assert_eq!(states(&pool), [JobState::Running]);
    assert!(queued.cancel(), "it still never will");
    let error = block_on(queued).unwrap_err();
    assert!(matches!(error, RunError::Cancelled { id } if id.get() == 2), "{error:?}");
    assert!(error.never_ran());
    assert_eq!(counts(&pool, "io").cancelled, 1);
    gate.open();
    running.join().unwrap();
}

/// BLK-9, BLK-8
#[test]
fn cancelling_a_running_job_asks_it_to_stop_and_its_answer_is_the_result() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    let ticket = io
        .job("x")
        .submit_with(move |job| {
            closure();
            job.checkpoint()
        })
        .unwrap();
    gate.wait_started();
    assert!(!ticket.cancel(), "it runs");
    assert_eq!(states(&pool), [JobState::Running], "and somebody waits for it");
    gate.open();
    let answer = ticket.join().unwrap();
    assert_eq!(answer, Err(tollgate_blocking::Cancelled::Requested));
    let counts = counts(&pool, "io");
    assert_eq!((counts.finished, counts.cancelled, counts.abandoned), (1, 0, 0));
}

/// BLK-9
#[test]
fn cancelling_a_job_that_has_ended_changes_nothing() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let ticket = io.submit(|| 7).unwrap();
    eventually("the job ends", || ticket.is_done());
    assert!(!ticket.cancel());
    assert!(ticket.is_done());
    assert_eq!(ticket.join().unwrap(), 7);
    assert_eq!(counts(&pool, "io").cancelled, 0);
}

/// BLK-9, BLK-3
#[test]
fn accepted_work_may_still_be_refused_while_it_waits() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").queue_timeout(SECOND));
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let late = io.submit(|| ()).unwrap();
    owned.time.advance(SECOND);
    assert!(matches!(late.join(), Err(RunError::Refused(_))));
    let closed = io.submit(|| ()).unwrap();
    pool.close();
    assert!(matches!(closed.join(), Err(RunError::Refused(_))));
    gate.open();
    running.join().unwrap();
}

/// BLK-9
#[test]
fn cancels_race_workers_and_each_job_ends_in_one_way() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, usize::MAX);
    let ran = Arc::new(AtomicUsize::new(0));
    let (mut cancelled, mut finished) = (0, 0);
    for round in 0..10_000 {
        let ran = Arc::clone(&ran);
        let ticket = io.submit(move || ran.fetch_add(1, Ordering::SeqCst)).unwrap();
        for _ in 0..round % 50 {
            std::hint::spin_loop();
        }
        let never = ticket.cancel();
        match ticket.join() {
            Ok(_) => {
                assert!(!never, "it was said that it never ran");
                finished += 1;
            }
            Err(RunError::Cancelled { .. }) => {
                assert!(never);
                cancelled += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    let counts = counts(&pool, "io");
    assert_eq!((counts.finished, counts.cancelled), (finished, cancelled));
    assert_eq!(ran.load(Ordering::SeqCst) as u64, finished);
    shut_down(&pool);
}

/// BLK-9
#[test]
#[should_panic = "a ticket was polled after it had yielded its result"]
fn a_ticket_yields_its_result_once() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let mut ticket = io.submit(|| ()).unwrap();
    block_on(&mut ticket).unwrap();
    let _ = poll(&mut ticket);
}
