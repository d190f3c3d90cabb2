//! The runtime that owns a pool, and what happens when it is gone.

mod support;

use std::time::Duration;
use support::*;
use tokio::runtime::{Builder, Handle, Id, Runtime};
use tollgate_blocking::{
    AcquireError, BlockingPool, Closed, Deadline, Executor, LanePolicy, RunError, SubmitError,
    TryAcquireError,
};

const SECOND: Duration = Duration::from_secs(1);

fn here() -> Id {
    Handle::current().id()
}

fn pool_of(runtime: &Runtime, capacity: u64) -> (BlockingPool, Executor) {
    let builder = BlockingPool::builder(runtime.handle().clone());
    let pool = builder.capacity(capacity).lane(LanePolicy::new("io")).build().unwrap();
    let io = pool.executor("io").unwrap();
    (pool, io)
}

fn gone(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Closed { what: Closed::Runtime, .. })
}

/// BLK-2
#[test]
fn closures_see_the_owners_runtime_whoever_polls() {
    let owner = runtime();
    let owner_id = owner.handle().id();
    let (_pool, io) = pool_of(&owner, 2);
    let (other, single) = (runtime(), Builder::new_current_thread().build().unwrap());
    // a plain executor, another runtime, one with a single thread, a task of another, and a ticket
    assert_eq!(block_on(io.run(here)).unwrap(), owner_id);
    assert_eq!(other.block_on(io.run(here)).unwrap(), owner_id);
    assert_eq!(single.block_on(io.run(here)).unwrap(), owner_id);
    let task = other.spawn(io.run(here));
    assert_eq!(other.block_on(task).unwrap().unwrap(), owner_id);
    assert_eq!(io.submit(here).unwrap().join().unwrap(), owner_id);
    assert_ne!(other.handle().id(), owner_id);
}

/// BLK-2
#[test]
fn closures_may_block_on_the_owners_runtime_and_spawn_on_it() {
    let owner = runtime();
    let (_pool, io) = pool_of(&owner, 1);
    let closure = || {
        let task = tokio::spawn(async { here() });
        let slept = tokio::time::sleep(Duration::from_millis(1));
        Handle::current().block_on(async {
            slept.await;
            task.await.unwrap()
        })
    };
    assert_eq!(block_on(io.run(closure)).unwrap(), owner.handle().id());
}

/// BLK-2, BLK-11
#[test]
fn inner_work_sees_the_owners_runtime_within_another_one() {
    let (owner, other) = (runtime(), runtime());
    let (_pool, io) = pool_of(&owner, 1);
    let inner = io.clone();
    let other_handle = other.handle().clone();
    let seen = io.submit(move || {
        let polled = other_handle.block_on(async { (here(), inner.run(here).await.unwrap()) });
        let _entered = other_handle.enter();
        (polled, inner.submit(here).unwrap().join().unwrap(), here())
    });
    let (owner, other) = (owner.handle().id(), other.handle().id());
    assert_eq!(seen.unwrap().join().unwrap(), ((other, owner), owner, other));
}

/// BLK-2, BLK-11
#[test]
fn inner_work_that_blocks_on_a_runtime_within_another_block_on_is_told_that_it_panicked() {
    let owner = runtime();
    let (pool, io) = pool_of(&owner, 1);
    let inner = io.clone();
    let blocks = || Handle::current().block_on(async { 7 });
    let outer = io.submit(move || {
        let within = Handle::current().block_on(inner.run(blocks));
        // where the job itself blocks on nothing, it may
        (
            within.map_err(|error| matches!(error, RunError::Panicked(_))),
            block_on(inner.run(blocks)),
        )
    });
    let (within, beside) = outer.unwrap().join().unwrap();
    assert_eq!(within, Err(true));
    assert_eq!(beside.unwrap(), 7);
    assert_eq!(available(&pool), 1);
}

/// BLK-2
#[test]
fn the_submitting_side_needs_no_timer() {
    // nor does the owner: the pool keeps its deadlines itself, on the real clock here
    let owner = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let soon = Duration::from_millis(20);
    let lane = LanePolicy::new("io").queue_timeout(soon).task_timeout(soon);
    let pool = BlockingPool::builder(owner.handle().clone()).capacity(1).lane(lane);
    let pool = pool.build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let mut running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let late = io.run(|| ());
    let error = must_end("a deadline without a timer", || block_on(late)).unwrap_err();
    assert!(matches!(error, RunError::Refused(AcquireError::Deadline { .. })), "{error:?}");
    let wait = running.wait_until(Deadline::after(Duration::from_secs(1000)));
    let result = block_on(wait).expect("its time is up before a thousand seconds are");
    assert!(matches!(result, Err(RunError::TimedOut { .. })), "{result:?}");
    let shutdown = pool.shutdown(Deadline::after(soon));
    assert!(!must_end("a deadline without a timer", || block_on(shutdown)).complete);
}

/// BLK-2
#[test]
fn when_the_runtime_is_gone_submissions_fail_as_closed() {
    let owner = runtime();
    let (pool, io) = pool_of(&owner, 1);
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
    assert!(!pool.is_closed());
    drop(owner);
    assert!(pool.is_closed());
    let error = block_on(io.run(|| ())).unwrap_err();
    assert!(matches!(&error, RunError::Refused(error) if gone(error)), "{error:?}");
    let error = io.submit(|| ()).unwrap_err();
    assert!(matches!(&error, SubmitError::Refused(error) if gone(error)), "{error:?}");
    assert!(gone(&block_on(io.acquire()).unwrap_err()));
    let error = io.try_acquire().unwrap_err();
    assert!(matches!(error, TryAcquireError::Closed { what: Closed::Runtime, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "lane `io` admits nothing more: the runtime that owns it is gone"
    );
    shut_down(&pool);
}

/// BLK-2
#[test]
fn when_the_runtime_is_gone_queued_jobs_fail_as_closed_and_running_ones_finish() {
    for background in [false, true] {
        let owner = runtime();
        let (pool, io) = pool_of(&owner, 1);
        let gate = Gate::new();
        let closure = gate.closure();
        let running = io.submit(move || {
            closure();
            7
        });
        gate.wait_started();
        let queued = io.submit(|| ()).unwrap();
        let mut waiting = io.acquire();
        start(&mut waiting);
        if background {
            owner.shutdown_background();
            eventually("the pool notices", || pool.is_closed());
        } else {
            // does not hang on the job that runs
            must_end("dropping a runtime whose pool is at work", move || drop(owner));
        }
        let error = queued.join().unwrap_err();
        assert!(matches!(&error, RunError::Refused(error) if gone(error)), "{error:?}");
        assert!(gone(&block_on(waiting).unwrap_err()));
        assert_eq!(pool.snapshot().jobs.len(), 1);
        gate.open();
        assert_eq!(running.unwrap().join().unwrap(), 7);
        assert_eq!(counts(&pool, "io").started, 1);
        shut_down(&pool);
    }
}

/// BLK-2
#[test]
fn admitted_jobs_that_have_not_started_never_run_once_the_runtime_is_gone() {
    let owner = runtime();
    let nursery = Nursery::default();
    let builder = BlockingPool::builder(owner.handle().clone()).capacity(2);
    let pool =
        builder.lane(LanePolicy::new("io")).spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let admitted = io.submit(here).unwrap();
    drop(owner);
    nursery.let_go();
    let error = admitted.join().unwrap_err();
    assert!(matches!(&error, RunError::Refused(error) if gone(error)), "{error:?}");
    assert_eq!((counts(&pool, "io").started, available(&pool)), (0, 2));
    shut_down(&pool);
}

/// BLK-2
#[test]
fn a_pool_built_on_a_runtime_that_is_gone_is_closed() {
    let owner = runtime();
    let handle = owner.handle().clone();
    drop(owner);
    let pool = BlockingPool::builder(handle).capacity(1).lane(LanePolicy::new("io"));
    let pool = pool.build().unwrap();
    let io = pool.executor("io").unwrap();
    assert!(pool.is_closed());
    let error = block_on(io.run(here)).unwrap_err();
    assert!(matches!(&error, RunError::Refused(error) if gone(error)), "{error:?}");
    assert_eq!(pool.stats().threads.alive, 0);
    shut_down(&pool);
}

/// BLK-2
#[test]
fn a_runtime_with_one_thread_owns_a_pool_whether_or_not_it_is_driven() {
    let owner = Builder::new_current_thread().enable_all().build().unwrap();
    let (pool, io) = pool_of(&owner, 1);
    let id = owner.handle().id();
    assert_eq!(block_on(io.run(here)).unwrap(), id, "nobody drives it");
    assert_eq!(owner.block_on(io.run(here)).unwrap(), id);
    drop(owner);
    assert!(pool.is_closed());
    assert!(block_on(io.run(here)).is_err());
}

/// BLK-2
#[test]
fn the_owner_may_be_dropped_within_another_runtime() {
    let (owner, other) = (runtime(), runtime());
    let (pool, io) = pool_of(&owner, 1);
    let task = other.spawn(async move {
        let before = io.run(|| 7).await;
        owner.shutdown_background();
        (before, io)
    });
    let (before, io) = other.block_on(task).unwrap();
    assert_eq!(before.unwrap(), 7);
    eventually("the pool notices", || pool.is_closed());
    assert!(other.block_on(io.run(|| ())).is_err());
}

/// BLK-2
#[test]
fn a_pool_that_is_gone_leaves_no_task_in_its_owner() {
    let owner = runtime();
    let before = owner.metrics().num_alive_tasks();
    let (pool, io) = pool_of(&owner, 1);
    block_on(io.run(|| ())).unwrap();
    assert_eq!(owner.metrics().num_alive_tasks(), before + 1, "the one that watches it");
    drop((pool, io));
    eventually("the task ends", || owner.metrics().num_alive_tasks() == before);
}

/// BLK-15
#[test]
fn a_shutdown_after_the_runtime_is_gone_tells_what_is_left() {
    let owner = runtime();
    let (pool, io) = pool_of(&owner, 1);
    let gate = Gate::new();
    let running = io.job("left over").submit(gate.closure()).unwrap();
    gate.wait_started();
    drop(owner);
    let report = block_on(pool.shutdown(Deadline::after(Duration::from_millis(1))));
    assert!(!report.complete);
    assert_eq!(report.jobs[0].name.as_str(), "left over");
    gate.open();
    running.join().unwrap();
    let report = block_on(pool.shutdown(Deadline::after(20 * SECOND)));
    assert!(report.complete, "{report}");
}
