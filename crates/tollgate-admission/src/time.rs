//! Where budgets and pools get the time from, and who tells them that a deadline has passed.

use crate::engine::contain;
use crate::error::NoTimer;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A monotonic clock and a way to be called at a given time.
///
/// The default is [`ThreadTimer`]. Tests use [`ManualTime`]; where no thread may be started, [`ClockOnly`] still allows
/// everything but waiting under a deadline.
pub trait TimeSource: fmt::Debug + Send + Sync + 'static {
    /// The present. Readings that go back in time count as the latest one.
    ///
    /// Called under a budget's lock, so it must not use a budget.
    fn now(&self) -> Instant;

    /// Makes sure that [`call_at`](Self::call_at) will work. Called before the first wait under a deadline, and cheap
    /// when called again.
    ///
    /// # Errors
    ///
    /// [`NoTimer`] when calls can't be made.
    fn prepare(&self) -> Result<(), NoTimer>;

    /// Has `target` called once, at `at` or soon after, on any thread but never from within `call_at`. A target that is
    /// gone by then is skipped.
    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>);
}

/// Somebody who asked to be called.
pub trait OnTime: Send + Sync {
    /// The time has come; it may also come more than once, or early.
    fn on_time(self: Arc<Self>);
}

/// A call to be made. Ordered so that the earliest is the greatest, for a max-heap.
struct Call {
    at: Instant,
    target: Weak<dyn OnTime>,
}

impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Call {}
impl PartialOrd for Call {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Call {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system's monotonic clock, and one thread that is started by the first wait under a deadline.
///
/// The thread sleeps until the earliest call is due and costs nothing in between. It ends when the timer is dropped.
/// A target that panics does not harm it.
pub struct ThreadTimer {
    shared: Arc<TimerShared>,
    started: OnceLock<()>,
    name: String,
}

#[derive(Default)]
struct TimerShared {
    calls: Mutex<Calls>,
    changed: Condvar,
}

#[derive(Default)]
struct Calls {
    heap: BinaryHeap<Call>,
    /// Calls that were left by the last sweep: those to targets that are gone go once they may be half of all.
    swept: usize,
    stopped: bool,
    starting: bool,
}

impl Calls {
    /// Forgets calls to targets that are gone: waits that ended early would pile up until their time. O(1) amortised.
    fn sweep(&mut self) {
        /// Below this a sweep is not worth its call.
        const FEW: usize = 64;
        if self.heap.len() > 2 * self.swept + FEW {
            self.heap.retain(|call| call.target.strong_count() > 0);
            self.swept = self.heap.len();
        }
    }
}

impl ThreadTimer {
    /// A timer of its own; `name` is its thread's.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        // the standard library panics at a thread's name with a NUL
        let name = name.into().replace('\0', "\u{fffd}");
        ThreadTimer { shared: Arc::default(), started: OnceLock::new(), name }
    }

    /// The timer that all budgets of the process share unless they are given another. It only wakes waiters.
    #[must_use]
    pub fn shared() -> Arc<ThreadTimer> {
        static SHARED: OnceLock<Arc<ThreadTimer>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(ThreadTimer::new("tollgate-timer"))))
    }
}

impl TimeSource for ThreadTimer {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn prepare(&self) -> Result<(), NoTimer> {
        if self.started.get().is_some() {
            return Ok(());
        }
        // under the lock, so that two first waits start one thread
        let mut calls = lock(&self.shared.calls);
        if !calls.starting {
            let shared = Arc::clone(&self.shared);
            std::thread::Builder::new()
                .name(self.name.clone())
                .spawn(move || shared.run())
                .map_err(|source| NoTimer { source: Some(source) })?;
            calls.starting = true;
        }
        let _ = self.started.set(());
        Ok(())
    }

    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>) {
        let mut calls = lock(&self.shared.calls);
        let sooner = calls.heap.peek().is_none_or(|first| at < first.at);
        calls.heap.push(Call { at, target });
        calls.sweep();
        drop(calls);
        if sooner {
            self.shared.changed.notify_one();
        }
    }
}

impl TimerShared {
    fn run(&self) {
        let mut calls = lock(&self.calls);
        while !calls.stopped {
            let now = Instant::now();
            let wait = match calls.heap.peek() {
                None => None,
                Some(first) if first.at > now => Some(first.at - now),
                Some(_) => {
                    let call = calls.heap.pop();
                    drop(calls);
                    if let Some(target) = call.and_then(|call| call.target.upgrade()) {
                        // the other targets still need their calls
                        contain(|| target.on_time());
                    }
                    calls = lock(&self.calls);
                    continue;
                }
            };
            calls = match wait {
                None => self.changed.wait(calls).unwrap_or_else(PoisonError::into_inner),
                Some(span) => {
                    let woken = self.changed.wait_timeout(calls, span);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        lock(&self.shared.calls).stopped = true;
        // not joined: the last owner may be a target on that very thread
        self.shared.changed.notify_one();
    }
}

impl fmt::Debug for ThreadTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadTimer")
            .field("name", &self.name)
            .field("started", &self.started.get().is_some())
            .finish_non_exhaustive()
    }
}

/// A clock that stands still until it is moved, for tests without sleeps.
///
/// [`advance`](Self::advance) makes the calls that fall due, in order, on the calling thread, each at its own time.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tollgate_admission::{ManualTime, TimeSource};
///
/// let time = ManualTime::new();
/// let before = time.now();
/// time.advance(Duration::from_secs(3600));
/// assert_eq!(time.now() - before, Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone)]
pub struct ManualTime(Arc<Mutex<Manual>>);

struct Manual {
    now: Instant,
    calls: BinaryHeap<Call>,
}

impl ManualTime {
    /// A clock that shows the present and stands still.
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "a default clock would hide that it reads the present"
    )]
    pub fn new() -> Self {
        ManualTime(Arc::new(Mutex::new(Manual { now: Instant::now(), calls: BinaryHeap::new() })))
    }

    /// Moves the clock and makes the calls that fall due on the way.
    ///
    /// # Panics
    ///
    /// When the clock would show more than an [`Instant`] can hold.
    pub fn advance(&self, span: Duration) {
        let until = lock(&self.0).now + span;
        loop {
            let mut manual = lock(&self.0);
            match manual.calls.peek() {
                Some(first) if first.at <= until => {
                    manual.now = manual.now.max(first.at);
                    let call = manual.calls.pop();
                    drop(manual);
                    if let Some(target) = call.and_then(|call| call.target.upgrade()) {
                        target.on_time();
                    }
                }
                _ => {
                    manual.now = manual.now.max(until);
                    return;
                }
            }
        }
    }

    /// Calls that are outstanding, those to targets that are gone included.
    #[must_use]
    pub fn pending(&self) -> usize {
        lock(&self.0).calls.len()
    }
}

impl TimeSource for ManualTime {
    fn now(&self) -> Instant {
        lock(&self.0).now
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }
    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>) {
        lock(&self.0).calls.push(Call { at, target });
    }
}

impl fmt::Debug for Manual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manual")
            .field("now", &self.now)
            .field("pending", &self.calls.len())
            .finish()
    }
}

/// The system's monotonic clock, and nobody to call: waits under a deadline are refused with
/// [`AcquireError::NoTimer`](crate::AcquireError::NoTimer).
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockOnly;

impl TimeSource for ClockOnly {
    fn now(&self) -> Instant {
        Instant::now()
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Err(NoTimer { source: None })
    }
    fn call_at(&self, _at: Instant, _target: Weak<dyn OnTime>) {}
}
