//! Admission first, work later.

mod support;

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;
use support::*;
use tollgate_blocking::{
    AcquireError, Closed, JobState, LanePolicy, RunError, SubmitError, TryAcquireError,
};

const SECOND: Duration = Duration::from_secs(1);

/// BLK-4
#[test]
fn work_runs_under_a_permit_that_was_taken_before() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let permit = block_on(io.acquire()).unwrap();
    assert_eq!((available(&pool), permit.weight()), (0, 1));
    assert!(pool.snapshot().jobs.is_empty(), "there is no job yet");
    assert!(matches!(io.try_acquire(), Err(TryAcquireError::Busy { .. })));
    assert_eq!(block_on(permit.run(|| 7)).unwrap(), 7);
    let permit = io.try_acquire().expect("the result is there, so the permit is back");
    assert_eq!(permit.spawn(|| 8).unwrap().join().unwrap(), 8);
    assert_eq!(available(&pool), 1);
    let stats = pool.stats();
    assert_eq!((stats.budget.lanes[0].admitted, stats.lanes[0].counts.finished), (2, 2));
}

/// BLK-4
#[test]
fn the_options_of_a_permit_are_those_of_its_job() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(4, 0);
    let soon = owned.after(SECOND);
    let kind = tollgate_blocking::JobKind::CPU_BOUND;
    let job = || io.job("named").kind(kind).weight(3).deadline(soon);
    let options = |job: &tollgate_blocking::JobContext<'_>| {
        (job.name().to_owned(), job.kind(), job.deadline())
    };
    let permit = block_on(job().acquire()).unwrap();
    assert_eq!((permit.weight(), available(&pool)), (3, 1));
    let expected = ("named".to_owned(), kind, soon);
    assert_eq!(block_on(permit.run_with(options)).unwrap(), expected);
    let permit = job().try_acquire().unwrap();
    assert_eq!(permit.spawn_with(options).unwrap().join().unwrap(), expected);
    assert_eq!(available(&pool), 4);
}

/// BLK-4, ADM-2
#[test]
fn a_permit_that_is_dropped_returns_at_once() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 1);
    let permit = io.try_acquire().unwrap();
    let mut waiting = io.run(|| 7);
    start(&mut waiting);
    drop(permit);
    assert_eq!(block_on(waiting).unwrap(), 7);
    drop(io.try_acquire().unwrap().run(|| ()));
    assert_eq!(available(&pool), 1);
    assert_eq!(counts(&pool, "io").started, 1);
}

/// BLK-4, ADM-7, A3
#[test]
fn an_acquire_that_is_dropped_gives_up_its_place_or_its_permit() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let permit = io.try_acquire().unwrap();
    let (mut first, mut second) = (io.acquire(), io.acquire());
    start(&mut first);
    start(&mut second);
    assert_eq!(pool.stats().budget.lanes[0].waiting, 2);
    drop(first);
    assert_eq!(pool.stats().budget.lanes[0].waiting, 1);
    drop(permit);
    // granted to the second, which has not looked
    let mut third = io.acquire();
    start(&mut third);
    drop(second);
    let permit = block_on(third).unwrap();
    assert_eq!(available(&pool), 0);
    drop(permit);
    assert_eq!(available(&pool), 1);
}

/// ADM-3, BLK-4
#[test]
fn jobs_and_acquires_stand_in_one_line() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 8);
    let held = io.try_acquire().unwrap();
    let log = Log::default();
    let job_log = log.clone();
    let first = io.submit(move || job_log.add("job")).unwrap();
    let mut second = io.acquire();
    let (bell, waker) = Bell::new();
    let mut cx = Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut second).poll(&mut cx).is_pending());
    let job_log = log.clone();
    let third = io.submit(move || job_log.add("last")).unwrap();
    drop(held);
    first.join().unwrap();
    eventually("the acquire is woken", || bell.rung() == 1);
    assert_eq!(log.get(), ["job"], "the acquire holds the permit now");
    let permit = block_on(second).unwrap();
    let job_log = log.clone();
    permit.spawn(move || job_log.add("under the permit")).unwrap().join().unwrap();
    third.join().unwrap();
    assert_eq!(log.get(), ["job", "under the permit", "last"]);
}

/// BLK-15, ADM-10
#[test]
fn permits_that_are_out_when_the_pool_closes_stay_valid() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, 0);
    // with a thread that idles by then, and goes
    block_on(io.run(|| ())).unwrap();
    let (first, second) = (io.try_acquire().unwrap(), io.try_acquire().unwrap());
    let mut waiting = io.acquire();
    pool.close();
    assert!(matches!(block_on(&mut waiting), Err(AcquireError::Closed { .. })));
    assert!(matches!(io.try_acquire(), Err(TryAcquireError::Closed { .. })));
    assert_eq!(first.spawn(|| 7).unwrap().join().unwrap(), 7);
    assert_eq!(block_on(second.run(|| 8)).unwrap(), 8);
    shut_down(&pool);
}

/// BLK-15
#[test]
fn work_that_was_handed_in_under_a_permit_before_the_close_runs() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let builder = owned.builder(2).lane(LanePolicy::new("io"));
    let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let held = io.try_acquire().unwrap().spawn(|| 7).unwrap();
    let admitted = io.submit(|| 8).unwrap();
    pool.close();
    assert!(matches!(admitted.join(), Err(RunError::Refused(AcquireError::Closed { .. }))));
    assert_eq!(states(&pool), [JobState::Queued]);
    nursery.let_go();
    assert_eq!(held.join().unwrap(), 7);
    shut_down(&pool);
}

/// BLK-2
#[test]
fn no_permit_lets_work_start_once_the_runtime_is_gone() {
    for closed_before in [false, true] {
        let owned = Owned::new();
        let nursery = Nursery::default();
        let builder = owned.builder(3).lane(LanePolicy::new("io"));
        let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
        let io = pool.executor("io").unwrap();
        let handed_in = io.try_acquire().unwrap().spawn(|| ()).unwrap();
        let (later, lazy) = (io.try_acquire().unwrap(), io.try_acquire().unwrap());
        let lazy = lazy.run(|| ());
        if closed_before {
            pool.close();
        }
        let captured = Arc::new(());
        let kept = Arc::clone(&captured);
        drop(owned.runtime);
        let gone = |error: &AcquireError| {
            matches!(error, AcquireError::Closed { what: Closed::Runtime, .. })
        };
        let error = handed_in.join().unwrap_err();
        let RunError::Refused(cause) = &error else { panic!("{error:?}") };
        assert!(closed_before || gone(cause), "{cause:?}");
        let error = later.spawn(move || drop(kept)).unwrap_err();
        assert!(matches!(&error, SubmitError::Refused(cause) if gone(cause)), "{error:?}");
        assert_eq!(Arc::strong_count(&captured), 1);
        let error = block_on(lazy).unwrap_err();
        assert!(matches!(&error, RunError::Refused(cause) if gone(cause)), "{error:?}");
        assert_eq!((available(&pool), counts(&pool, "io").started), (3, 0));
    }
}

/// BLK-4, ADM-8
#[test]
fn the_deadline_of_a_permit_covers_the_wait_and_then_the_work() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let job = |after| io.job("x").deadline(owned.after(after));
    let held = job(SECOND).try_acquire().unwrap();
    let mut waiting = job(SECOND).acquire();
    start(&mut waiting);
    owned.time.advance(SECOND);
    assert!(matches!(block_on(waiting), Err(AcquireError::Deadline { .. })));
    let error = held.spawn(|| ()).unwrap_err();
    assert!(matches!(error, SubmitError::Refused(AcquireError::Deadline { .. })), "{error:?}");
    assert_eq!(available(&pool), 1);
    let gate = Gate::new();
    let ticket = job(SECOND).try_acquire().unwrap().spawn(gate.closure()).unwrap();
    gate.wait_started();
    owned.time.advance(SECOND);
    assert!(matches!(ticket.join(), Err(RunError::TimedOut { .. })));
    gate.open();
}

/// BLK-6
#[test]
fn a_run_under_a_permit_that_is_dropped_before_its_thread_comes_gives_the_permit_back() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let builder = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let captured = Arc::new(());
    let kept = Arc::clone(&captured);
    let mut run = io.try_acquire().unwrap().run(move || drop(kept));
    start(&mut run);
    assert_eq!(states(&pool), [JobState::Queued]);
    drop(run);
    assert_eq!((Arc::strong_count(&captured), available(&pool)), (1, 1));
    nursery.let_go();
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
    assert_eq!(counts(&pool, "io").cancelled, 1);
}

/// BLK-4
#[test]
#[should_panic = "an acquire was polled after it had completed"]
fn an_acquire_that_has_completed_is_not_to_be_polled() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let mut acquire = io.acquire();
    drop(block_on(&mut acquire));
    let _ = poll(&mut acquire);
}
