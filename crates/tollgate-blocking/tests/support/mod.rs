//! What the tests of this crate share: gates that jobs wait at, things that panic, and questions to a pool.
#![allow(dead_code, unused_imports, reason = "no test program uses all of it")]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tollgate_blocking::admission::time::OnTime;
use tollgate_blocking::admission::{ManualTime, NoTimer, Refused, TimeSource};
use tollgate_blocking::{
    BlockingPool, BlockingPoolBuilder, Deadline, Executor, JobCounts, JobState, LanePolicy, Run,
    WorkerThread,
};

pub(crate) use futures_lite::future::block_on;

/// How long a test waits for what must happen before it gives up. No test passes by waiting this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A runtime to own pools. Pools need no more of it than that it exists.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A runtime, and a builder of pools that it owns.
pub(crate) struct Owned {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) time: ManualTime,
}

impl Owned {
    pub(crate) fn new() -> Self {
        Owned { runtime: runtime(), time: ManualTime::new() }
    }

    /// A pool whose clock stands still unless the test moves it.
    pub(crate) fn builder(&self, capacity: u64) -> BlockingPoolBuilder {
        BlockingPool::builder(self.runtime.handle().clone())
            .capacity(capacity)
            .time(Arc::new(self.time.clone()))
    }

    /// With one lane, `io`, that lets `max_waiting` wait.
    pub(crate) fn pool(&self, capacity: u64, max_waiting: usize) -> (BlockingPool, Executor) {
        self.with_lane(capacity, LanePolicy::new("io").max_waiting(max_waiting))
    }

    /// With one lane, which must be called `io`.
    pub(crate) fn with_lane(&self, capacity: u64, lane: LanePolicy) -> (BlockingPool, Executor) {
        let pool = self.builder(capacity).lane(lane).build().unwrap();
        let io = pool.executor("io").unwrap();
        (pool, io)
    }

    /// With the lanes `a` and `b`, each of which may use the whole capacity.
    pub(crate) fn two_lanes(&self, capacity: u64) -> (BlockingPool, Executor, Executor) {
        let (a, b) = (LanePolicy::new("a"), LanePolicy::new("b"));
        let pool = self.builder(capacity).lane(a).lane(b).build().unwrap();
        let (a, b) = (pool.executor("a").unwrap(), pool.executor("b").unwrap());
        (pool, a, b)
    }

    /// So far from now, by the pool's clock.
    pub(crate) fn after(&self, span: Duration) -> Deadline {
        Deadline::at(self.time.now() + span)
    }
}

/// Where jobs stop until the test lets them go on.
pub(crate) struct Gate {
    door: Arc<(Mutex<bool>, Condvar)>,
    started: Receiver<()>,
    announce: Sender<()>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let (announce, started) = channel();
        Gate { door: Arc::default(), started, announce }
    }

    /// Says that it has started, then waits for [`open`](Self::open).
    pub(crate) fn closure(&self) -> impl FnOnce() + Send + Sync + Clone + 'static {
        let (door, announce) = (Arc::clone(&self.door), self.announce.clone());
        move || {
            let _ = announce.send(());
            let mut open = door.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*open {
                open = door.1.wait(open).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits until one more of the closures has started.
    pub(crate) fn wait_started(&self) {
        self.started.recv_timeout(PATIENCE).expect("a closure was to start");
    }

    pub(crate) fn has_started(&self) -> bool {
        self.started.try_recv().is_ok()
    }

    /// Lets every closure go on, those to come included.
    pub(crate) fn open(&self) {
        *self.door.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.door.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // a test that failed leaves no thread behind
        self.open();
    }
}

/// Waits for something that is bound to happen on another thread and can't be waited for in a better way.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Runs `f` on a thread of its own and fails, instead of hanging, when it does not end.
pub(crate) fn must_end<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        let value = f();
        let _ = done.send(());
        value
    });
    match ended.recv_timeout(PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("this hangs: {what}"),
        // it may have panicked, which `join` passes on
        _ => thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)),
    }
}

/// One poll, by nobody who wants to be woken.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// One poll, which must not be the last.
pub(crate) fn start<F: Future + Unpin>(future: &mut F) {
    assert!(poll(future).is_pending(), "it had to wait, and did not");
}

/// A waker that counts its calls.
#[derive(Default)]
pub(crate) struct Bell(AtomicUsize);

impl Bell {
    pub(crate) fn new() -> (Arc<Bell>, Waker) {
        let bell = Arc::new(Bell::default());
        (Arc::clone(&bell), bell.into())
    }

    pub(crate) fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that calls `f`.
pub(crate) fn waker(f: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Call<F>(F);
    impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Arc::new(Call(f)).into()
}

/// A job whose result keeps the worker that delivers it at `door`, with its next job in its hands.
pub(crate) fn keeping_its_worker(
    io: &Executor,
    closure: impl FnOnce() + Send + 'static,
    door: &Gate,
) -> Run<()> {
    let mut run = io.run(closure);
    let keep = door.closure();
    let waker = waker(move || keep.clone()());
    assert!(Pin::new(&mut run).poll(&mut Context::from_waker(&waker)).is_pending());
    run
}

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    pub(crate) fn get(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Calls a function when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Panics when it is dropped, with a payload that panics when it is dropped in its turn.
#[derive(Debug)]
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(Fuse);
        }
    }
}

/// A panic's payload that panics when it is dropped.
pub(crate) struct Fuse;

impl Drop for Fuse {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a payload was dropped");
        }
    }
}

pub(crate) fn counts(pool: &BlockingPool, lane: &str) -> JobCounts {
    pool.stats().lane(lane).unwrap().counts
}

pub(crate) fn refused(pool: &BlockingPool, lane: &str) -> Refused {
    pool.stats().budget.lane(lane).unwrap().refused
}

pub(crate) fn available(pool: &BlockingPool) -> u64 {
    pool.stats().budget.available
}

/// The states of all jobs that are queued or running, sorted by id.
pub(crate) fn states(pool: &BlockingPool) -> Vec<JobState> {
    let mut jobs = pool.snapshot().jobs;
    jobs.sort_by_key(|job| job.id);
    jobs.iter().map(|job| job.state).collect()
}

/// Waits until the pool has ended, and requires that nothing is left of it.
pub(crate) fn shut_down(pool: &BlockingPool) {
    let pool = pool.clone();
    let report = must_end("a shutdown", move || block_on(pool.shutdown(Deadline::never())));
    assert!(report.complete, "{report}");
    assert_eq!((report.jobs.len(), report.permits, report.threads), (0, 0, 0), "{report}");
}

/// A spawn handler that keeps threads back until the test lets them go: what was admitted meanwhile has not started.
#[derive(Clone, Default)]
pub(crate) struct Nursery(Arc<Mutex<Vec<WorkerThread>>>, Arc<AtomicBool>);

impl Nursery {
    pub(crate) fn handler(&self) -> impl Fn(WorkerThread) -> io::Result<()> + use<> {
        let (threads, open) = (Arc::clone(&self.0), Arc::clone(&self.1));
        move |thread| {
            let mut kept = threads.lock().unwrap_or_else(PoisonError::into_inner);
            if open.load(Ordering::SeqCst) {
                std::thread::spawn(move || thread.run());
            } else {
                kept.push(thread);
            }
            Ok(())
        }
    }

    /// How many threads have been asked for and are kept back.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Starts those that were asked for so far, and from now on all others.
    pub(crate) fn let_go(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.1.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut *kept);
        drop(kept);
        for thread in threads {
            std::thread::spawn(move || thread.run());
        }
    }

    pub(crate) fn take(&self) -> Vec<WorkerThread> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A clock that is moved by hand and calls nobody until it is told to: what only a timer would notice stays unnoticed.
#[derive(Debug, Clone)]
pub(crate) struct JumpyClock(Arc<Mutex<Jumpy>>);

type Jumpy = (Instant, Vec<Weak<dyn OnTime>>);

impl JumpyClock {
    pub(crate) fn new() -> Self {
        JumpyClock(Arc::new(Mutex::new((Instant::now(), Vec::new()))))
    }

    pub(crate) fn jump(&self, span: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 += span;
    }

    /// Makes every call that was asked for, due or not.
    pub(crate) fn call(&self) {
        let calls = std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).1);
        for target in calls.iter().filter_map(Weak::upgrade) {
            target.on_time();
        }
    }
}

impl TimeSource for JumpyClock {
    fn now(&self) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }
    fn call_at(&self, _at: Instant, target: Weak<dyn OnTime>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.push(target);
    }
}
