//! What a closure knows about itself, and how it is asked to stop.

mod support;

use std::sync::mpsc::channel;
use std::time::Duration;
use support::*;
use tollgate_blocking::{Cancelled, Deadline, LanePolicy};

const SECOND: Duration = Duration::from_secs(1);

/// BLK-8
#[test]
fn a_job_that_nobody_stops_goes_on() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let (deadline, cancelled, checkpoint) = block_on(
        io.job("x").run_with(|job| (job.deadline(), job.is_cancelled(), job.checkpoint())),
    )
    .unwrap();
    assert_eq!((deadline, cancelled, checkpoint), (Deadline::never(), false, Ok(())));
}

/// BLK-8, BLK-3
#[test]
fn a_job_knows_the_earliest_of_its_deadlines() {
    let owned = Owned::new();
    let (_pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(5 * SECOND));
    let deadline = |job: &tollgate_blocking::JobContext<'_>| job.deadline();
    let by_lane = owned.after(5 * SECOND);
    assert_eq!(block_on(io.job("x").run_with(deadline)).unwrap(), by_lane);
    let later = io.job("x").deadline(owned.after(9 * SECOND));
    assert_eq!(block_on(later.run_with(deadline)).unwrap(), by_lane);
    let soon = owned.after(2 * SECOND);
    // the earliest that was given counts, in whatever order
    let job = io.job("x").deadline(soon).deadline(owned.after(3 * SECOND));
    assert_eq!(block_on(job.run_with(deadline)).unwrap(), soon);
}

/// BLK-8
#[test]
fn a_checkpoint_says_that_the_deadline_has_passed() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    let (said, heard) = channel();
    let job = io.job("x").deadline(owned.after(SECOND));
    let ticket = job.submit_with(move |job| {
        said.send(job.checkpoint()).unwrap();
        closure();
        said.send(job.checkpoint()).unwrap();
    });
    gate.wait_started();
    owned.time.advance(SECOND);
    gate.open();
    drop(ticket);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Ok(())));
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Err(Cancelled::Deadline)));
}

/// BLK-8
#[test]
fn a_token_is_cancelled_when_the_job_is_asked_to_stop_and_not_before() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    let (give, take) = channel();
    let ticket = io
        .job("x")
        .submit_with(move |job| {
            give.send(job.token()).unwrap();
            closure();
            (job.token().is_cancelled(), job.is_cancelled(), job.checkpoint())
        })
        .unwrap();
    let token = take.recv_timeout(PATIENCE).unwrap();
    gate.wait_started();
    assert!(!token.is_cancelled());
    ticket.cancel();
    assert!(token.is_cancelled(), "one that was handed out before");
    gate.open();
    assert_eq!(ticket.join().unwrap(), (true, true, Err(Cancelled::Requested)));
}

/// BLK-8
#[test]
fn an_abandoned_and_a_timed_out_job_are_asked_to_stop() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(SECOND));
    for time_out in [false, true] {
        let gate = Gate::new();
        let closure = gate.closure();
        let (give, take) = channel();
        let mut run = io.job("x").run_with(move |job| {
            closure();
            give.send((job.is_cancelled(), job.checkpoint())).unwrap();
        });
        start(&mut run);
        gate.wait_started();
        let expected = if time_out {
            owned.time.advance(SECOND);
            Cancelled::Deadline
        } else {
            drop(run);
            Cancelled::Requested
        };
        gate.open();
        assert_eq!(take.recv_timeout(PATIENCE), Ok((true, Err(expected))));
        eventually("the permit returns", || available(&pool) == 1);
    }
}

/// BLK-8
#[test]
fn cancelling_a_job_leaves_others_alone() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(2, 0);
    let gate = Gate::new();
    let jobs: Vec<_> = (0..2)
        .map(|_| {
            let closure = gate.closure();
            let job = io.job("x").submit_with(move |job| {
                closure();
                job.is_cancelled()
            });
            gate.wait_started();
            job.unwrap()
        })
        .collect();
    jobs[0].cancel();
    gate.open();
    let seen: Vec<_> = jobs.into_iter().map(|ticket| ticket.join().unwrap()).collect();
    assert_eq!(seen, [true, false]);
}
