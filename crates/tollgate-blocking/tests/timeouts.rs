//! How long jobs may wait and run.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;
use tollgate_blocking::admission::ThreadTimer;
use tollgate_blocking::{AcquireError, Deadline, JobState, LanePolicy, RunError};

const SECOND: Duration = Duration::from_secs(1);

fn is_late<T: std::fmt::Debug>(result: Result<T, RunError>) {
    let error = result.expect_err("its time was up");
    assert!(matches!(error, RunError::Refused(AcquireError::Deadline { .. })), "{error:?}");
}

/// BLK-3
#[test]
fn a_job_that_waits_longer_than_its_lane_allows_is_refused_and_never_runs() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").queue_timeout(2 * SECOND));
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let mut late = io.run(|| ());
    let ticket = io.submit(|| ()).unwrap();
    let mut acquire = io.acquire();
    start(&mut late);
    start(&mut acquire);
    owned.time.advance(2 * SECOND - Duration::from_nanos(1));
    assert_eq!(pool.stats().budget.lanes[0].waiting, 3);
    owned.time.advance(Duration::from_nanos(1));
    assert_eq!(pool.stats().budget.lanes[0].waiting, 0);
    is_late(block_on(late));
    is_late(ticket.join());
    assert!(matches!(block_on(acquire), Err(AcquireError::Deadline { .. })));
    assert_eq!(refused(&pool, "io").deadline, 3);
    // it counts the wait alone
    owned.time.advance(100 * SECOND);
    assert_eq!(states(&pool), [JobState::Running]);
    gate.open();
    block_on(running).unwrap();
    assert_eq!(counts(&pool, "io").started, 1);
}

/// BLK-3
#[test]
fn the_run_counts_from_the_start_and_not_from_the_wait() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(2 * SECOND));
    let (first, second) = (Gate::new(), Gate::new());
    let running = io.submit(first.closure()).unwrap();
    first.wait_started();
    let queued = io.submit(second.closure()).unwrap();
    owned.time.advance(SECOND);
    first.open();
    running.join().unwrap();
    second.wait_started();
    owned.time.advance(2 * SECOND - Duration::from_nanos(1));
    assert_eq!(states(&pool), [JobState::Running]);
    owned.time.advance(Duration::from_nanos(1));
    assert_eq!(states(&pool), [JobState::TimedOut]);
    let error = queued.join().unwrap_err();
    assert!(matches!(error, RunError::TimedOut { ran, .. } if ran == 2 * SECOND), "{error:?}");
    second.open();
}

/// BLK-3
#[test]
fn each_of_several_jobs_times_out_at_its_own_time() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(3, LanePolicy::new("io").task_timeout(10 * SECOND));
    let gate = Gate::new();
    let tickets: Vec<_> = [3, 1, 20]
        .iter()
        .map(|&seconds| {
            let job = io.job("x").deadline(owned.after(seconds * SECOND));
            let ticket = job.submit(gate.closure()).unwrap();
            gate.wait_started();
            ticket
        })
        .collect();
    use JobState::{Running, TimedOut};
    owned.time.advance(SECOND);
    assert_eq!(states(&pool), [Running, TimedOut, Running]);
    owned.time.advance(2 * SECOND);
    assert_eq!(states(&pool), [TimedOut, TimedOut, Running]);
    owned.time.advance(7 * SECOND);
    assert_eq!(states(&pool), [TimedOut, TimedOut, TimedOut], "the lane's is the earlier one");
    gate.open();
    for ticket in tickets {
        assert!(matches!(ticket.join(), Err(RunError::TimedOut { .. })));
    }
    eventually("all permits return", || available(&pool) == 3);
    assert_eq!(counts(&pool, "io").timed_out, 3);
}

/// BLK-3, ADM-8
#[test]
fn a_deadline_that_has_passed_is_refused_even_when_a_permit_is_free() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let past = owned.after(Duration::ZERO);
    is_late(block_on(io.job("x").deadline(past).run(|| ())));
    assert!(io.job("x").deadline(past).submit(|| ()).is_err());
    assert!(block_on(io.job("x").deadline(past).acquire()).is_err());
    assert!(io.job("x").deadline(past).try_acquire().is_err());
    let long_ago = Instant::now().checked_sub(Duration::from_secs(3600));
    if let Some(long_ago) = long_ago {
        is_late(block_on(io.job("x").deadline(long_ago).run(|| ())));
    }
    assert!(refused(&pool, "io").deadline >= 4);
    assert_eq!((counts(&pool, "io").started, available(&pool)), (0, 1));
}

/// BLK-3, A12, section 5
#[test]
fn huge_timeouts_never_expire_and_nothing_overflows() {
    for huge in [Duration::MAX, Duration::from_secs(u64::MAX / 10), Duration::from_secs(1 << 40)] {
        let owned = Owned::new();
        let lane = LanePolicy::new("io").queue_timeout(huge).task_timeout(huge).warn_after(huge);
        let pool = owned.builder(1).lane(lane).keep_alive(huge).build().unwrap();
        let io = pool.executor("io").unwrap();
        let gate = Gate::new();
        let deadline = Deadline::after(huge);
        let mut running = io.job("x").deadline(deadline).run(gate.closure());
        start(&mut running);
        gate.wait_started();
        let mut queued = io.job("x").deadline(deadline).run_with(|job| job.checkpoint().is_ok());
        start(&mut queued);
        let mut ticket = io.submit(|| ()).unwrap();
        let mut wait = ticket.wait_until(deadline);
        start(&mut wait);
        owned.time.advance(Duration::from_secs(100 * 365 * 24 * 3600));
        start(&mut wait);
        assert_eq!(states(&pool), [JobState::Running, JobState::Queued, JobState::Queued]);
        gate.open();
        block_on(running).unwrap();
        assert!(block_on(queued).unwrap(), "its deadline never passes");
        block_on(wait).unwrap().unwrap();
        let report = block_on(pool.shutdown(deadline));
        assert!(report.complete, "{report}");
    }
}

/// BLK-3
#[test]
fn timeouts_may_be_none_or_zero() {
    let owned = Owned::new();
    let lane = LanePolicy::new("io").queue_timeout(None).task_timeout(None).warn_after(None);
    let (_none, io) = owned.with_lane(1, lane);
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
    // nobody may wait, those who need not are welcome
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").queue_timeout(Duration::ZERO));
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    is_late(block_on(io.run(|| ())));
    assert_eq!(refused(&pool, "io").deadline, 1);
    gate.open();
    block_on(running).unwrap();
    // nothing may run for no time, and what has started ends
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(Duration::ZERO));
    let _ = block_on(io.run(|| 7));
    eventually("the permit returns", || available(&pool) == 1);
}

/// BLK-3
#[test]
fn a_timeout_that_is_tightened_takes_effect_on_waits_under_way() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").queue_timeout(60 * SECOND));
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let (bell, waker) = Bell::new();
    let mut waiting = Box::pin(io.run(|| ()));
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    owned.time.advance(3 * SECOND);
    pool.resize().lane("io", |lane| lane.queue_timeout(5 * SECOND)).apply().unwrap();
    owned.time.advance(SECOND);
    assert_eq!(bell.rung(), 0);
    owned.time.advance(SECOND);
    assert_eq!(bell.rung(), 1, "counted from when the wait began");
    is_late(block_on(waiting));
    // at once, for those that have waited longer
    let mut waiting = io.run(|| ());
    start(&mut waiting);
    owned.time.advance(4 * SECOND);
    pool.resize().lane("io", |lane| lane.queue_timeout(2 * SECOND)).apply().unwrap();
    is_late(block_on(waiting));
    // and it may be taken away
    let mut waiting = io.run(|| 7);
    start(&mut waiting);
    pool.resize().lane("io", |lane| lane.queue_timeout(None)).apply().unwrap();
    owned.time.advance(100 * SECOND);
    gate.open();
    assert_eq!(block_on(waiting).unwrap(), 7);
}

/// BLK-3, A1
#[test]
fn after_many_timeouts_the_full_capacity_is_there() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(2, LanePolicy::new("io").queue_timeout(SECOND));
    for _ in 0..50 {
        let gate = Gate::new();
        let running = [io.submit(gate.closure()).unwrap(), io.submit(gate.closure()).unwrap()];
        let waiting: Vec<_> = (0..20).map(|_| io.submit(|| ()).unwrap()).collect();
        owned.time.advance(SECOND);
        waiting.into_iter().for_each(|ticket| is_late(ticket.join()));
        gate.open();
        running.into_iter().for_each(|ticket| ticket.join().unwrap());
    }
    assert_eq!(available(&pool), 2);
    let stats = pool.stats();
    let lane = &stats.budget.lanes[0];
    assert_eq!((lane.refused.deadline, lane.admitted, lane.waiting), (1000, 100, 0));
}

/// BLK-3
#[test]
fn a_destructor_that_never_ends_delays_no_deadline_of_another_job() {
    let owned = Owned::new();
    let time = Arc::new(ThreadTimer::new("timer"));
    let lane = LanePolicy::new("io").queue_timeout(Duration::from_millis(1));
    let pool = owned.builder(1).time(time).lane(lane).build().unwrap();
    let io = pool.executor("io").unwrap();
    let (gate, door) = (Gate::new(), Gate::new());
    let full = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    // two that nobody asks for their error, and whose captures stay wherever they are dropped
    for _ in 0..2 {
        let keep = door.closure();
        let mark = OnDrop(move || keep.clone()());
        drop(io.submit(move || drop(mark)).unwrap());
    }
    eventually("their time is up", || pool.stats().budget.lanes[0].refused.deadline == 2);
    let late = io.submit(|| ()).unwrap();
    is_late(must_end("a deadline", move || late.join()));
    gate.open();
    full.join().unwrap();
    // by now the worker may be in the first destructor, and there is a permit for another job
    must_end("a job beside a destructor", move || io.submit(|| ()).unwrap().join()).unwrap();
    door.open();
    shut_down(&pool);
}

/// BLK-3
#[test]
fn calls_that_a_pool_asks_of_its_timer_do_not_pile_up() {
    let owned = Owned::new();
    let lane = LanePolicy::new("io").queue_timeout(600 * SECOND).task_timeout(3600 * SECOND);
    let pool = owned.builder(1).lane(lane).keep_alive(7200 * SECOND).build().unwrap();
    let io = pool.executor("io").unwrap();
    for _ in 0..2_000 {
        let gate = Gate::new();
        let running = io.job("x").deadline(owned.after(SECOND)).submit(gate.closure()).unwrap();
        gate.wait_started();
        let queued = io.job("x").deadline(owned.after(2 * SECOND)).submit(|| ()).unwrap();
        owned.time.advance(SECOND);
        gate.open();
        assert!(running.join().is_err());
        queued.join().unwrap();
    }
    assert!(owned.time.pending() < 10, "{} calls are outstanding", owned.time.pending());
}

/// Section 5
#[test]
fn a_clock_that_jumps_refuses_late_jobs_and_loses_none() {
    let owned = Owned::new();
    let clock = JumpyClock::new();
    let lane = LanePolicy::new("io").queue_timeout(60 * SECOND);
    let builder = owned.builder(1).lane(lane).time(Arc::new(clock.clone()));
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let queued: Vec<_> = (0..10).map(|_| io.submit(|| ()).unwrap()).collect();
    // nobody was called in time, and still none of them is granted
    clock.jump(3600 * SECOND);
    gate.open();
    running.join().unwrap();
    queued.into_iter().for_each(|ticket| is_late(ticket.join()));
    assert_eq!(counts(&pool, "io").started, 1);
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
}
