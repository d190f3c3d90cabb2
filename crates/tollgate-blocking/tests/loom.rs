//! The pool's own source under loom: every interleaving of a few threads, up to a bound on preemptions.
#![cfg(tollgate_loom)]

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tollgate_blocking::admission::time::OnTime;
use tollgate_blocking::admission::{NoTimer, TimeSource};
use tollgate_blocking::{
    AcquireError, BlockingPool, BlockingPoolBuilder, Deadline, Executor, LanePolicy, RunError,
    Scope, SubmitError,
};

/// Time that passes when a test says so; the calls that were asked for are then made by the test's thread.
#[derive(Debug)]
struct Scripted {
    start: Instant,
    passed: AtomicUsize,
    calls: loom::sync::Mutex<Vec<Weak<dyn OnTime>>>,
}

impl Scripted {
    fn new() -> Arc<Self> {
        let (passed, calls) = (AtomicUsize::new(0), loom::sync::Mutex::new(Vec::new()));
        Arc::new(Scripted { start: Instant::now(), passed, calls })
    }

    fn pass(&self, seconds: usize) {
        self.passed.fetch_add(seconds, Ordering::SeqCst);
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        for target in calls.iter().filter_map(Weak::upgrade) {
            target.on_time();
        }
    }
}

impl TimeSource for Scripted {
    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.passed.load(Ordering::SeqCst) as u64)
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }
    fn call_at(&self, _at: Instant, target: Weak<dyn OnTime>) {
        self.calls.lock().unwrap().push(target);
    }
}

/// Three preemptions: every model ends within seconds, and each bug that was put in to try the models (a broken promise
/// to look again, a permit not returned, a result delivered twice) shows at two. Four make minutes of it.
const PREEMPTIONS: usize = 3;

fn model(f: impl Fn() + Send + Sync + 'static) {
    // both make an unfinished exploration pass
    assert!(std::env::var_os("LOOM_MAX_DURATION").is_none());
    assert!(std::env::var_os("LOOM_MAX_PERMUTATIONS").is_none());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.max_branches = 100_000;
    builder.check(f);
}

fn lane(max_waiting: usize) -> LanePolicy {
    LanePolicy::new("lane").max_waiting(max_waiting)
}

/// A pool of one lane, whose threads stay.
fn builder(capacity: u64, lane: LanePolicy, time: Arc<Scripted>) -> BlockingPoolBuilder {
    BlockingPool::builder().capacity(capacity).lane(lane).keep_alive(Duration::MAX).time(time)
}

fn build(builder: BlockingPoolBuilder) -> (BlockingPool, Executor) {
    let pool = builder.build().unwrap();
    let lane = pool.executor("lane").unwrap();
    (pool, lane)
}

fn pool(capacity: u64, max_waiting: usize) -> (BlockingPool, Executor) {
    build(builder(capacity, lane(max_waiting), Scripted::new()))
}

/// Counts its drop.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for everything to stop; a permit, job or thread that was lost is a deadlock that loom reports.
fn shut_down(pool: &BlockingPool) {
    let report = loom::future::block_on(pool.shutdown(Deadline::never()));
    assert!(report.complete && report.jobs.is_empty() && report.permits == 0, "{report}");
}

/// A10: worker idle against submit. A submit that wakes nobody because a worker has promised to look, while that worker
/// goes to sleep, would leave its job for ever.
#[test]
fn a_job_submitted_while_the_worker_goes_idle_runs() {
    model(|| {
        let (pool, lane) = pool(1, 1);
        assert_eq!(lane.submit(|| 1).unwrap().join().unwrap(), 1);
        // the result is out before the worker has looked again
        assert_eq!(lane.submit(|| 2).unwrap().join().unwrap(), 2);
        shut_down(&pool);
    });
}

/// A10: the same from two threads, with room for two workers.
#[test]
fn jobs_submitted_from_two_threads_all_run() {
    model(|| {
        let (pool, lane) = pool(2, 0);
        let other = {
            let lane = lane.clone();
            thread::spawn(move || lane.submit(|| 1).unwrap().join().unwrap())
        };
        assert_eq!(lane.submit(|| 2).unwrap().join().unwrap(), 2);
        assert_eq!(other.join().unwrap(), 1);
        drop(lane);
        shut_down(&pool);
    });
}

/// ADM-5: a job that waits is taken by the worker that returns the permit.
#[test]
fn a_job_that_waits_for_a_permit_runs_when_the_permit_returns() {
    model(|| {
        let (pool, lane) = pool(1, 1);
        let permit = lane.try_acquire().unwrap();
        let ticket = lane.submit(|| 1).unwrap();
        let returner = thread::spawn(move || drop(permit));
        assert_eq!(ticket.join().unwrap(), 1);
        returner.join().unwrap();
        shut_down(&pool);
    });
}

/// BLK-6, BLK-10: result delivery against drop. The captures are dropped once, and the permit returns once.
#[test]
fn dropping_a_run_while_its_result_is_delivered_loses_nothing() {
    model(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let (pool, lane) = pool(1, 0);
        let (captured, returned) = (Counted(Arc::clone(&drops)), Counted(Arc::clone(&drops)));
        let mut run = lane.run(move || {
            drop(captured);
            returned
        });
        let done = poll_once(&mut run).is_ready();
        assert!(!done, "nothing runs on the submitting thread");
        drop(run);
        shut_down(&pool);
        assert_eq!(drops.load(Ordering::SeqCst), 2);
    });
}

/// BLK-9: cancel against start. The closure runs or is dropped, never both, and the ticket resolves either way.
#[test]
fn cancelling_while_the_worker_starts_the_job_resolves_the_ticket() {
    model(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let (pool, lane) = pool(1, 0);
        let captured = Counted(Arc::clone(&drops));
        let ticket = lane
            .submit(move || {
                drop(captured);
                1
            })
            .unwrap();
        let cancelled = ticket.cancel();
        match ticket.join() {
            Ok(1) => assert!(!cancelled),
            Err(RunError::Cancelled { .. }) => assert!(cancelled),
            other => panic!("{other:?}"),
        }
        shut_down(&pool);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    });
}

/// BLK-15, A18: close against submit. The job runs or is refused as closed; its ticket never hangs.
#[test]
fn a_job_submitted_while_the_pool_closes_runs_or_is_refused() {
    model(|| {
        let (pool, lane) = pool(1, 1);
        let closer = {
            let pool = pool.clone();
            thread::spawn(move || pool.close())
        };
        match lane.submit(|| 1) {
            Ok(ticket) => match ticket.join() {
                Ok(1) | Err(RunError::Refused(AcquireError::Closed { .. })) => {}
                other => panic!("{other:?}"),
            },
            Err(SubmitError::Refused(AcquireError::Closed { .. })) => {}
            Err(other) => panic!("{other:?}"),
        }
        closer.join().unwrap();
        shut_down(&pool);
    });
}

/// ADM-7 in the pool: dropping a queued run against the hand-off of its permit.
#[test]
fn dropping_a_queued_run_while_its_permit_arrives_loses_no_permit() {
    model(|| {
        let (pool, lane) = pool(1, 1);
        let permit = lane.try_acquire().unwrap();
        let mut run = lane.run(|| 1);
        assert!(poll_once(&mut run).is_pending());
        let returner = thread::spawn(move || drop(permit));
        drop(run);
        returner.join().unwrap();
        // whatever became of the job, its permit can be had again
        assert_eq!(loom::future::block_on(lane.run(|| 2)).unwrap(), 2);
        shut_down(&pool);
    });
}

/// BLK-6: the time is up while the closure ends. Either the waiter is told so or it gets the result; the permit returns.
#[test]
fn a_task_timeout_that_meets_the_end_of_its_job_tells_one_story() {
    model(|| {
        let time = Scripted::new();
        let policy = lane(0).task_timeout(Duration::from_secs(1));
        let (pool, lane) = build(builder(1, policy, time.clone()));
        let ticket = lane.submit(|| 1).unwrap();
        time.pass(2);
        match ticket.join() {
            // the last: the worker had the job, and had not started it
            Ok(1)
            | Err(RunError::TimedOut { .. } | RunError::Refused(AcquireError::Deadline { .. })) => {
            }
            other => panic!("{other:?}"),
        }
        shut_down(&pool);
    });
}

/// BLK-7, ADM-8: a queued job's deadline meets the hand-off of its permit. It runs or is refused, and its closure is
/// dropped once.
#[test]
fn a_deadline_that_meets_the_hand_off_refuses_or_runs() {
    model(|| {
        let time = Scripted::new();
        let policy = lane(1).queue_timeout(Duration::from_secs(1));
        let (pool, lane) = build(builder(1, policy, time.clone()));
        let drops = Arc::new(AtomicUsize::new(0));
        let captured = Counted(Arc::clone(&drops));
        let permit = lane.try_acquire().unwrap();
        let ticket = lane.submit(move || drop(captured)).unwrap();
        let returner = thread::spawn(move || drop(permit));
        time.pass(2);
        match ticket.join() {
            Ok(()) | Err(RunError::Refused(AcquireError::Deadline { .. })) => {}
            other => panic!("{other:?}"),
        }
        returner.join().unwrap();
        shut_down(&pool);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    });
}

fn scope() -> Scope {
    Scope::root_by("scope", Scripted::new())
}

/// Waits for a scope to close. A job or an operation that it does not know of would still be there.
fn end(scope: &Scope) {
    let report = loom::future::block_on(scope.shutdown(Deadline::never()));
    assert!(report.complete && report.nodes.is_empty(), "{report}");
}

/// ADM-15, A18: the close of a scope against submit. What gets in is waited for.
#[test]
fn a_job_submitted_while_its_scope_closes_runs_before_the_scope_is_closed_or_is_refused() {
    model(|| {
        let ((pool, lane), scope) = (pool(1, 1), scope());
        let lane = lane.scoped(&scope);
        let ran = Arc::new(AtomicUsize::new(0));
        let submitter = {
            let ran = Arc::clone(&ran);
            thread::spawn(move || match lane.submit(move || ran.fetch_add(1, Ordering::SeqCst)) {
                Ok(ticket) => match ticket.join() {
                    Ok(0) | Err(RunError::Refused(AcquireError::Closed { .. })) => {}
                    other => panic!("{other:?}"),
                },
                Err(SubmitError::Refused(AcquireError::Closed { .. })) => {}
                Err(other) => panic!("{other:?}"),
            })
        };
        end(&scope);
        let ran_by_then = ran.load(Ordering::SeqCst);
        submitter.join().unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), ran_by_then, "it ran in a closed scope");
        shut_down(&pool);
    });
}

/// ADM-16, BLK-12: the end of the last operation against the threads of an attached pool.
#[test]
fn an_attached_pool_that_is_used_under_a_lease_while_it_drains_is_waited_for() {
    model(|| {
        let scope = scope();
        let (pool, lane) = build(builder(1, lane(0), Scripted::new()).scope(&scope));
        let lease = scope.drain_lease(1, Deadline::never()).unwrap();
        let flusher = thread::spawn(move || {
            let flush = lane.job("flush").lease(&lease).submit(|| 1).unwrap();
            assert_eq!(flush.join().unwrap(), 1);
        });
        end(&scope);
        assert_eq!(pool.stats().threads.alive, 0);
        flusher.join().unwrap();
    });
}
