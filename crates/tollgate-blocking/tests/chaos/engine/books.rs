//! What is counted from outside, to be held against what the crates count.

use crate::engine::dice::Dice;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Poll};
use tollgate_blocking::{
    Acquire, AcquireError, DrainLease, Permit, RunError, Scope, SubmitError, TryAcquireError,
};

/// A count that any thread adds to.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    // SeqCst throughout: these are compared with each other, and cost little beside what they count
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// What was found to be wrong while it happened.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<String>>);

impl Faults {
    /// More of the same says no more.
    const ENOUGH: usize = 20;

    pub(crate) fn add(&self, fault: impl Into<String>) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < Self::ENOUGH {
            faults.push(fault.into());
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Panics that called the hook: unplanned ones.
static UNPLANNED: Faults = Faults(Mutex::new(Vec::new()));

pub(crate) fn watch_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            UNPLANNED.add(format!("a panic that nobody planned: {info}"));
            before(info);
        }));
    });
}

pub(crate) fn unplanned_panics() -> Vec<String> {
    UNPLANNED.take()
}

/// What closures panic with that are to panic, and destructors. It may panic as it is dropped, in its turn.
pub(crate) struct Spark {
    fuse: bool,
}

impl Spark {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        Spark { fuse: dice.one_in(4) }
    }

    /// Panics with it, past the hook: planned panics are many, and say nothing.
    pub(crate) fn fly(self) -> ! {
        resume_unwind(Box::new(self))
    }
}

impl Drop for Spark {
    fn drop(&mut self) {
        if self.fuse && !std::thread::panicking() {
            // of no size: where no second payload can be dropped safely, it may be forgotten
            resume_unwind(Box::new(Ember));
        }
    }
}

/// What a [`Spark`] panics with.
pub(crate) struct Ember;

/// Does what may panic as planned, and as nothing else.
pub(crate) fn contained<T>(faults: &Faults, f: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    if !payload.is::<Spark>() && !payload.is::<Ember>() {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied());
        faults.add(format!("it panicked outside of any closure: {text:?}"));
    }
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
    None
}

/// What was asked of one lane, as far as it counts there.
#[derive(Debug, Default)]
pub(crate) struct LaneBook {
    /// Jobs that were given to the pool, accepted or not.
    pub(crate) jobs: Count,
    /// Acquires that were polled or tried.
    pub(crate) acquires: Count,
    /// Permits that arrived.
    pub(crate) granted: Count,
    /// Acquires that were dropped while they waited, or after they had been settled: the lane knows which.
    pub(crate) given_up: Count,
}

/// Counts a job when it is first polled.
pub(crate) struct Offered<F> {
    job: F,
    /// Until then.
    book: Option<Arc<LaneBook>>,
}

impl<F> Offered<F> {
    pub(crate) fn new(job: F, book: Arc<LaneBook>) -> Self {
        Offered { job, book: Some(book) }
    }
}

impl<F: Future + Unpin> Future for Offered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(book) = self.book.take() {
            book.jobs.add();
        }
        Pin::new(&mut self.job).poll(cx)
    }
}

/// Counts an acquire when it is first polled, and what becomes of it.
pub(crate) struct Asked {
    acquire: Acquire,
    book: Arc<LaneBook>,
    polled: bool,
    ended: bool,
}

impl Asked {
    pub(crate) fn new(acquire: Acquire, book: Arc<LaneBook>) -> Self {
        Asked { acquire, book, polled: false, ended: false }
    }
}

impl Future for Asked {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.polled, true) {
            self.book.acquires.add();
        }
        let result = std::task::ready!(Pin::new(&mut self.acquire).poll(cx));
        self.ended = true;
        if result.is_ok() {
            self.book.granted.add();
        }
        Poll::Ready(result)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.polled && !self.ended {
            self.book.given_up.add();
        }
    }
}

/// How many closures run that are bound to one scope. Apart from the scope's handle, which closures are not to keep.
#[derive(Debug, Default)]
pub(crate) struct Running(AtomicI64);

impl Running {
    pub(crate) fn begins(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn ends(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A scope, and what runs in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) scope: Scope,
    pub(crate) running: Arc<Running>,
}

impl Place {
    pub(crate) fn new(scope: Scope) -> Arc<Self> {
        Arc::new(Place { scope, running: Arc::default() })
    }

    /// For a scope that was said to be closed, with nothing left: that it is so, and stays so.
    pub(crate) fn check_closed(&self, faults: &Faults) {
        let running = self.running.0.load(Ordering::SeqCst);
        if running != 0 {
            faults.add(format!("{:?} is closed, and {running} closures run in it", self.scope));
        }
        let report = self.scope.report();
        if !report.complete || !report.nodes.is_empty() {
            faults.add(format!("{:?} was closed, and is not any more: {report}", self.scope));
        }
    }
}

/// How often a drain lease may be used, and was.
#[derive(Debug)]
pub(crate) struct Allowance {
    operations: u64,
    started: Count,
}

impl Allowance {
    pub(crate) fn use_up(&self, faults: &Faults) {
        self.started.add();
        let (started, operations) = (self.started.get(), self.operations);
        if started > operations {
            faults.add(format!("{started} closures ran under a lease for {operations}"));
        }
    }
}

/// A drain lease, and the scope that lent it.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) lease: DrainLease,
    pub(crate) place: Arc<Place>,
    pub(crate) allowance: Arc<Allowance>,
}

impl Lent {
    pub(crate) fn new(lease: DrainLease, place: Arc<Place>, operations: u64) -> Arc<Self> {
        let allowance = Arc::new(Allowance { operations, started: Count::default() });
        Arc::new(Lent { lease, place, allowance })
    }
}

/// A job may end in any way that is in the contract.
pub(crate) fn settle<R>(faults: &Faults, result: Result<R, RunError>) {
    match result {
        Ok(result) => drop(result),
        Err(RunError::Panicked(panic)) => {
            let payload = panic.into_payload();
            if !payload.is::<Spark>() && !payload.is::<Ember>() {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or(payload.downcast_ref::<&str>().copied());
                faults.add(format!("a closure panicked, and was not to: {text:?}"));
            }
        }
        Err(RunError::Refused(error)) => refused(faults, &error),
        Err(
            RunError::Busy { .. }
            | RunError::Cancelled { .. }
            | RunError::TimedOut { .. }
            | RunError::NoThread { .. },
        ) => {}
        Err(other) => faults.add(format!("a job ended with {other:?}")),
    }
}

pub(crate) fn refused(faults: &Faults, error: &AcquireError) {
    match error {
        AcquireError::QueueFull { .. }
        | AcquireError::Deadline { .. }
        | AcquireError::Closed { .. }
        | AcquireError::TooLarge { .. }
        | AcquireError::ZeroWeight { .. }
        | AcquireError::Busy { .. }
        | AcquireError::LeaseExpired { .. }
        | AcquireError::LeaseExhausted { .. }
        | AcquireError::LongRunning { .. } => {}
        other => faults.add(format!("it was refused with {other:?}")),
    }
}

pub(crate) fn tried(faults: &Faults, error: &TryAcquireError) {
    match error {
        TryAcquireError::Busy { .. }
        | TryAcquireError::Deadline { .. }
        | TryAcquireError::Closed { .. }
        | TryAcquireError::TooLarge { .. }
        | TryAcquireError::ZeroWeight { .. }
        | TryAcquireError::LeaseExpired { .. }
        | TryAcquireError::LeaseExhausted { .. }
        | TryAcquireError::LongRunning { .. } => {}
        other => faults.add(format!("there was no permit for {other:?}")),
    }
}

pub(crate) fn submitted(faults: &Faults, error: SubmitError) {
    settle(faults, Err::<(), _>(error.into()));
}
