//! What rough surroundings do to a pool: slow threads, early timers, closures that leave things behind.

mod support;

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use support::{Gate, eventually, must_end};
use tollgate_blocking::admission::time::OnTime;
use tollgate_blocking::admission::{ManualTime, NoTimer, TimeSource};
use tollgate_blocking::{BlockingPool, Deadline, LanePolicy, WorkerThread};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
}

/// BLK-3: threads that are on their way do not keep those that are idle from working.
#[test]
fn an_idle_thread_is_called_while_another_one_is_still_starting() {
    let runtime = runtime();
    let kept = Arc::new(Mutex::new(Vec::<WorkerThread>::new()));
    let keep = Arc::clone(&kept);
    let pool = BlockingPool::builder(runtime.handle().clone())
        .capacity(2)
        .lane(LanePolicy::new("io"))
        .spawn_handler(move |thread| {
            // the first thread comes, the second does not
            if thread.name().ends_with("-0") {
                std::thread::spawn(move || thread.run());
            } else {
                keep.lock().unwrap().push(thread);
            }
            Ok(())
        })
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let first = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    // this one asks for the second thread, and is left to the first
    let second = io.submit(|| 2).unwrap();
    gate.open();
    must_end("both jobs", move || {
        first.join().unwrap();
        assert_eq!(second.join().unwrap(), 2);
        assert_eq!(io.submit(|| 3).unwrap().join().unwrap(), 3);
    });
    kept.lock().unwrap().clear();
}

/// BLK-3, BLK-7: the caller's deadline holds until the closure starts, also when it is a thread that it waits for.
#[test]
fn a_job_that_waits_for_a_thread_is_refused_at_its_deadline() {
    let runtime = runtime();
    let time = ManualTime::new();
    let kept = Arc::new(Mutex::new(Vec::<WorkerThread>::new()));
    let keep = Arc::clone(&kept);
    let pool = BlockingPool::builder(runtime.handle().clone())
        .capacity(1)
        .lane(LanePolicy::new("io"))
        .time(Arc::new(time.clone()))
        .spawn_handler(move |thread| {
            keep.lock().unwrap().push(thread);
            Ok(())
        })
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    let deadline = Deadline::at(time.now() + Duration::from_secs(1));
    let ticket = io.job("late").deadline(deadline).submit(|| 1).unwrap();
    time.advance(Duration::from_secs(2));
    assert!(ticket.is_done(), "it is told by the timer, before any thread has come");
    assert!(ticket.join().unwrap_err().never_ran());
    assert_eq!(pool.stats().budget.running(), 0, "and its permit is back");
    kept.lock().unwrap().clear();
}

/// A timer whose first call for each deadline comes at once, as a clock that steps back would have it.
#[derive(Debug, Clone)]
struct Hasty {
    time: ManualTime,
    asked: Arc<Mutex<Vec<Instant>>>,
}

struct Call(Mutex<Option<Weak<dyn OnTime>>>);

impl OnTime for Call {
    fn on_time(self: Arc<Self>) {
        let target = self.0.lock().unwrap().take().and_then(|target| target.upgrade());
        if let Some(target) = target {
            target.on_time();
        }
    }
}

impl TimeSource for Hasty {
    fn now(&self) -> Instant {
        self.time.now()
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }
    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>) {
        let mut asked = self.asked.lock().unwrap();
        let first = !asked.contains(&at);
        asked.push(at);
        drop(asked);
        if first {
            std::thread::spawn(move || Arc::new(Call(Mutex::new(Some(target)))).on_time());
        } else {
            self.time.call_at(at, target);
        }
    }
}

/// BLK-9, section 5: a call that comes early is asked for again.
#[test]
fn a_wait_for_a_result_ends_at_its_deadline_when_the_timer_called_too_early() {
    let runtime = runtime();
    let time = ManualTime::new();
    let hasty = Hasty { time: time.clone(), asked: Arc::default() };
    let pool = BlockingPool::builder(runtime.handle().clone())
        .capacity(1)
        .lane(LanePolicy::new("io"))
        .keep_alive(Duration::MAX)
        .time(Arc::new(hasty.clone()))
        .build()
        .unwrap();
    let gate = Gate::new();
    let ticket = pool.executor("io").unwrap().submit(gate.closure()).unwrap();
    let at = time.now() + Duration::from_secs(1);
    let waiter = std::thread::spawn(move || ticket.join_until(at).is_err());
    let asked = Arc::clone(&hasty.asked);
    eventually("the second call is asked for", || {
        asked.lock().unwrap().iter().filter(|asked| **asked == at).count() == 2
    });
    time.advance(Duration::from_secs(1));
    assert!(must_end("the wait", move || waiter.join().unwrap()), "the closure is still held up");
    gate.open();
}

/// BLK-15: a closure that leaves a runtime entered on its thread does not keep the pool from stopping.
#[test]
fn a_closure_that_leaks_an_entered_runtime_does_not_keep_the_pool_from_stopping() {
    let runtime = runtime();
    let pool = BlockingPool::builder(runtime.handle().clone())
        .capacity(1)
        .lane(LanePolicy::new("io"))
        .build()
        .unwrap();
    let handle = runtime.handle().clone();
    let leak = move || {
        // a guard borrows its handle, so the handle is leaked first
        let handle: &'static tokio::runtime::Handle = Box::leak(Box::new(handle));
        std::mem::forget(handle.enter());
    };
    pool.executor("io").unwrap().submit(leak).unwrap().join().unwrap();
    let report = must_end("the shutdown", move || {
        futures_lite::future::block_on(pool.shutdown(Deadline::never()))
    });
    assert!(report.complete, "{report}");
}
