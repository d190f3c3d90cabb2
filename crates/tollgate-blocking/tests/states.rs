//! A job's state says what is true, and who leaves a queue has left it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::*;
use tollgate_blocking::admission::TimeSource;
use tollgate_blocking::{AcquireError, JobState, LanePolicy, RunError};

const SECOND: Duration = Duration::from_secs(1);

/// Counts how often it was dropped.
fn tally() -> (Arc<AtomicUsize>, OnDrop<impl FnMut() + Send + 'static>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&drops);
    (drops, OnDrop(move || _ = count.fetch_add(1, Ordering::SeqCst)))
}

fn dropped(drops: &AtomicUsize) -> usize {
    drops.load(Ordering::SeqCst)
}

fn refused_by_deadline<T: std::fmt::Debug>(result: Result<T, RunError>) {
    let error = result.expect_err("its deadline had passed");
    assert!(matches!(error, RunError::Refused(AcquireError::Deadline { .. })), "{error:?}");
}

/// BLK-6, A7
#[test]
fn dropping_a_queued_run_drops_its_captures_and_leaves_the_queue_at_once() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 3);
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let (drops, mark) = tally();
    let middle = move || {
        drop(mark);
        2
    };
    let mut queued = [io.run(|| 1), io.run(middle), io.run(|| 3)];
    queued.iter_mut().for_each(start);
    let [first, middle, last] = queued;
    drop(middle);
    assert_eq!(dropped(&drops), 1, "the captures are gone");
    assert_eq!(pool.stats().budget.lanes[0].waiting, 2);
    assert_eq!(states(&pool), [JobState::Running, JobState::Queued, JobState::Queued]);
    assert_eq!(counts(&pool, "io").cancelled, 1);
    gate.open();
    block_on(running).unwrap();
    assert_eq!((block_on(first).unwrap(), block_on(last).unwrap()), (1, 3));
    assert_eq!(counts(&pool, "io").started, 3);
    assert_eq!(dropped(&drops), 1);
}

/// BLK-6
#[test]
fn the_place_of_a_run_that_left_the_queue_is_free_at_once() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 1);
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    for _ in 0..100 {
        let mut queued = io.run(|| ());
        start(&mut queued);
        assert!(block_on(io.run(|| ())).is_err(), "the queue is full");
        drop(queued);
    }
    assert_eq!(refused(&pool, "io").queue_full, 100);
    assert_eq!(counts(&pool, "io").cancelled, 100);
}

/// BLK-6, A7, A15
#[test]
fn a_run_dropped_while_running_is_abandoned_and_keeps_its_permit_until_the_closure_ends() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let (drops, mark) = tally();
    let (asked, told) = std::sync::mpsc::channel();
    let closure = gate.closure();
    let mut run = io.job("scan").run_with(move |job| {
        closure();
        asked.send(job.is_cancelled()).unwrap();
        mark
    });
    start(&mut run);
    gate.wait_started();
    assert_eq!(states(&pool), [JobState::Running]);
    drop(run);
    assert_eq!(states(&pool), [JobState::Abandoned]);
    assert_eq!(available(&pool), 0, "the closure runs, under its permit");
    assert!(io.try_acquire().is_err());
    assert_eq!(dropped(&drops), 0);
    gate.open();
    assert!(told.recv_timeout(PATIENCE).unwrap(), "it was asked to stop");
    eventually("the permit returns", || available(&pool) == 1);
    assert_eq!(dropped(&drops), 1, "nobody claims the result");
    let counts = counts(&pool, "io");
    assert_eq!((counts.finished, counts.abandoned, counts.timed_out), (1, 1, 0));
    let stats = pool.stats();
    assert_eq!((stats.lanes[0].unclaimed.count(), stats.lanes[0].finished.count()), (1, 0));
}

/// BLK-6
#[test]
fn a_task_that_is_aborted_abandons_its_job() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let run = io.run(gate.closure());
    let task = owned.runtime.spawn(run);
    gate.wait_started();
    task.abort();
    assert!(owned.runtime.block_on(task).unwrap_err().is_cancelled());
    assert_eq!(states(&pool), [JobState::Abandoned]);
    gate.open();
    eventually("the permit returns", || available(&pool) == 1);
}

/// BLK-7, A14
#[test]
fn a_job_that_was_admitted_is_queued_until_its_closure_starts() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let builder = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let mut run = io.run(gate.closure());
    start(&mut run);
    owned.time.advance(3 * SECOND);
    assert_eq!(available(&pool), 0, "it is admitted");
    let [job] = &pool.snapshot().jobs[..] else { panic!("one job") };
    assert_eq!((job.state, job.waited, job.ran), (JobState::Queued, 3 * SECOND, None));
    assert_eq!(counts(&pool, "io").started, 0);
    nursery.let_go();
    gate.wait_started();
    owned.time.advance(2 * SECOND);
    let [job] = &pool.snapshot().jobs[..] else { panic!("one job") };
    assert_eq!((job.state, job.waited), (JobState::Running, 3 * SECOND));
    assert_eq!(job.ran, Some(2 * SECOND));
    assert_eq!(counts(&pool, "io").started, 1);
    gate.open();
    block_on(run).unwrap();
    let stats = pool.stats();
    let waits = stats.lanes[0].waits.max();
    assert!(waits >= 3 * SECOND && waits < 4 * SECOND, "{waits:?}");
    assert_eq!(stats.lanes[0].waits.count(), 1);
}

/// BLK-7
#[test]
fn a_job_that_nobody_wants_any_more_when_its_worker_comes_is_not_run() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let builder = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let (drops, mark) = tally();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let mut run = io.run(move || {
        count.fetch_add(1, Ordering::SeqCst);
        drop(mark);
    });
    start(&mut run);
    drop(run);
    assert_eq!(dropped(&drops), 1);
    assert_eq!(available(&pool), 1, "the permit is back at once");
    assert!(pool.snapshot().jobs.is_empty());
    nursery.let_go();
    // the worker that was called for it serves the next
    assert_eq!(block_on(io.run(|| 1)).unwrap(), 1);
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    let counts = counts(&pool, "io");
    assert_eq!((counts.started, counts.cancelled, counts.finished), (1, 1, 1));
}

/// BLK-7
#[test]
fn a_job_whose_deadline_passed_before_its_worker_came_is_not_run() {
    let owned = Owned::new();
    let (nursery, clock) = (Nursery::default(), JumpyClock::new());
    let builder = owned.builder(1).lane(LanePolicy::new("io")).time(Arc::new(clock.clone()));
    let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let (drops, mark) = tally();
    let mut run = io.job("late").deadline(clock.now() + SECOND).run(move || drop(mark));
    start(&mut run);
    // and no timer says so
    clock.jump(SECOND);
    nursery.let_go();
    refused_by_deadline(block_on(run));
    assert_eq!(dropped(&drops), 1);
    let counts = counts(&pool, "io");
    assert_eq!((counts.started, counts.cancelled, counts.timed_out), (0, 0, 0));
    assert_eq!(refused(&pool, "io").deadline, 1);
    assert_eq!(available(&pool), 1);
    assert_eq!(pool.stats().lanes[0].waits.count(), 0, "it never started");
}

/// BLK-7
#[test]
fn a_job_that_a_worker_has_taken_is_queued_and_may_expire_until_its_closure_starts() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(60 * SECOND));
    let (gate, door) = (Gate::new(), Gate::new());
    let first = keeping_its_worker(&io, gate.closure(), &door);
    gate.wait_started();
    let second = io.job("second").deadline(owned.after(SECOND)).submit(|| "ran").unwrap();
    gate.open();
    door.wait_started();
    assert_eq!(states(&pool), [JobState::Queued], "its closure has not started");
    owned.time.advance(SECOND);
    door.open();
    refused_by_deadline(second.join());
    block_on(first).unwrap();
    let counts = counts(&pool, "io");
    assert_eq!((counts.started, counts.timed_out, counts.cancelled), (1, 0, 0));
    assert_eq!(refused(&pool, "io").deadline, 1);
    eventually("the permit returns", || available(&pool) == 1);
}

/// BLK-6
#[test]
fn a_run_that_times_out_is_told_so_and_its_closure_goes_on_under_its_permit() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(2 * SECOND));
    let gate = Gate::new();
    let (drops, mark) = tally();
    let closure = gate.closure();
    let mut run = io.run(move || {
        closure();
        mark
    });
    start(&mut run);
    gate.wait_started();
    owned.time.advance(2 * SECOND);
    let error = block_on(run).map(drop).unwrap_err();
    let RunError::TimedOut { id, ran } = error else { panic!("{error:?}") };
    assert_eq!((id.get(), ran), (1, 2 * SECOND));
    assert!(!error.never_ran());
    assert_eq!(states(&pool), [JobState::TimedOut]);
    assert_eq!((available(&pool), dropped(&drops)), (0, 0));
    gate.open();
    eventually("the permit returns", || available(&pool) == 1);
    assert_eq!(dropped(&drops), 1);
    let counts = counts(&pool, "io");
    assert_eq!((counts.finished, counts.timed_out, counts.abandoned), (1, 1, 0));
}

/// BLK-6, A15
#[test]
fn an_abandoned_job_whose_time_is_up_is_still_abandoned() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(SECOND));
    let gate = Gate::new();
    let mut run = io.run(gate.closure());
    start(&mut run);
    gate.wait_started();
    drop(run);
    owned.time.advance(5 * SECOND);
    assert_eq!(states(&pool), [JobState::Abandoned]);
    gate.open();
    eventually("the permit returns", || available(&pool) == 1);
    assert_eq!((counts(&pool, "io").abandoned, counts(&pool, "io").timed_out), (1, 0));
}

/// BLK-6
#[test]
fn a_timed_out_job_stays_so_when_its_run_is_dropped() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(SECOND));
    let gate = Gate::new();
    let mut run = io.run(gate.closure());
    start(&mut run);
    gate.wait_started();
    owned.time.advance(SECOND);
    drop(run);
    assert_eq!(states(&pool), [JobState::TimedOut]);
    gate.open();
    eventually("the permit returns", || available(&pool) == 1);
    assert_eq!((counts(&pool, "io").abandoned, counts(&pool, "io").timed_out), (0, 1));
}

/// BLK-9
#[test]
fn a_job_whose_ticket_was_dropped_is_running_not_abandoned() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(SECOND));
    let gate = Gate::new();
    drop(io.submit(gate.closure()).unwrap());
    gate.wait_started();
    assert_eq!(states(&pool), [JobState::Running]);
    owned.time.advance(SECOND);
    assert_eq!(states(&pool), [JobState::TimedOut], "its time is up, whoever watches");
    gate.open();
    eventually("the permit returns", || available(&pool) == 1);
}

/// BLK-6, ADM-6, A2
#[test]
fn those_behind_a_heavy_run_that_leaves_start_at_once() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(3, 8);
    let gate = Gate::new();
    let mut running = io.job("two").weight(2).run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let mut heavy = io.job("heavy").weight(3).run(|| ());
    let mut light = io.run(gate.closure());
    start(&mut heavy);
    start(&mut light);
    assert_eq!(states(&pool), [JobState::Running, JobState::Queued, JobState::Queued]);
    drop(heavy);
    gate.wait_started();
    assert_eq!(states(&pool), [JobState::Running, JobState::Running]);
    gate.open();
    block_on(light).unwrap();
    block_on(running).unwrap();
}

/// BLK-6
#[test]
fn jobs_are_cancelled_at_any_instant_of_their_life_and_each_runs_or_is_dropped_once() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, usize::MAX);
    let (ran, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let rounds = 20_000;
    for round in 0..rounds {
        let (ran, gone) = (Arc::clone(&ran), Arc::clone(&gone));
        let mark = OnDrop(move || _ = gone.fetch_add(1, Ordering::SeqCst));
        let mut run = io.run(move || {
            let _mark = mark;
            ran.fetch_add(1, Ordering::SeqCst);
        });
        let _ = poll(&mut run);
        // queued, taken, running or done by then
        for _ in 0..round % 64 {
            std::hint::spin_loop();
        }
        drop(run);
    }
    eventually("all permits return", || available(&pool) == 2);
    let counts = counts(&pool, "io");
    assert_eq!(gone.load(Ordering::SeqCst), rounds);
    assert_eq!(ran.load(Ordering::SeqCst) as u64, counts.finished);
    assert_eq!(counts.finished + counts.cancelled, rounds as u64);
    assert_eq!(counts.started, counts.finished);
    shut_down(&pool);
}

/// BLK-6, A16
#[test]
fn many_queued_runs_are_dropped_newest_first_and_nothing_is_left() {
    const MANY: usize = 64_000;
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, MANY);
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let shared = Arc::new(());
    let mut queued: Vec<_> = (0..MANY)
        .map(|_| {
            let shared = Arc::clone(&shared);
            let mut run = io.run(move || drop(shared));
            start(&mut run);
            run
        })
        .collect();
    assert_eq!(pool.stats().budget.lanes[0].waiting, MANY);
    for left in (0..MANY).rev() {
        queued.pop();
        assert_eq!(Arc::strong_count(&shared), left + 1);
    }
    assert_eq!(pool.stats().budget.lanes[0].waiting, 0);
    assert_eq!(counts(&pool, "io").cancelled, MANY as u64);
    let mut next = io.run(|| 1);
    start(&mut next);
    gate.open();
    assert_eq!(block_on(next).unwrap(), 1);
}
