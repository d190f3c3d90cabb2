//! Where budgets and pools get the time from, and who tells them that a deadline has passed.

use crate::engine::contain;
use crate::error::NoTimer;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A monotonic clock and a way to be called at a given time.
///
/// The default is [`ThreadTimer`]. Tests use [`ManualTime`]; where no thread may be started, [`ClockOnly`] still allows
/// everything but waiting under a deadline.
pub trait TimeSource: fmt::Debug + Send + Sync + 'static {
    /// The present. Readings that go back in time count as the latest one.
    ///
    /// Called under the lock of a budget or a scope, so it must not use one.
    fn now(&self) -> Instant;

    /// Makes sure that [`call_at`](Self::call_at) will work. Called before that is, and cheap when called again.
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
    /// Calls that were left by the last sweep, at most those that are left now: those to targets that are gone go once
    /// they may be half of all.
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

    fn add(&mut self, call: Call) {
        self.heap.push(call);
        self.sweep();
    }

    fn take(&mut self) -> Option<Call> {
        let call = self.heap.pop();
        // else a burst that is over would let as many calls to nobody pile up
        self.swept = self.swept.min(self.heap.len());
        call
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
        calls.add(Call { at, target });
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
                    let call = calls.take();
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
/// Advances add up, also those of several threads at once.
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
pub struct ManualTime(Arc<SharedManual>);

struct SharedManual {
    manual: Mutex<Manual>,
    /// A call has returned.
    returned: Condvar,
}

struct Manual {
    now: Instant,
    calls: BinaryHeap<Call>,
    /// The thread that makes a call at this moment. The clock stands still for all others until the call has returned.
    calling: Option<ThreadId>,
}

impl ManualTime {
    /// A clock that shows the present and stands still.
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "a default clock would hide that it reads the present"
    )]
    pub fn new() -> Self {
        let manual = Manual { now: Instant::now(), calls: BinaryHeap::new(), calling: None };
        ManualTime(Arc::new(SharedManual { manual: Mutex::new(manual), returned: Condvar::new() }))
    }

    /// Moves the clock by `span` and makes the calls that fall due on the way.
    ///
    /// While another thread makes a call the clock stands still, so this waits for the call to return. A call may advance
    /// the clock itself; whoever made the call then goes on from there, by what is left of its own span.
    ///
    /// # Panics
    ///
    /// When the clock would show more than an [`Instant`] can hold.
    pub fn advance(&self, span: Duration) {
        let me = std::thread::current().id();
        // what is left, not a moment to reach: others may move the clock meanwhile, and that must add up
        let mut left = span;
        loop {
            let mut manual = lock(&self.0.manual);
            while manual.calling.is_some_and(|thread| thread != me) {
                manual = self.0.returned.wait(manual).unwrap_or_else(PoisonError::into_inner);
            }
            let until = manual.now + left;
            let due = manual.calls.peek().map(|first| first.at).filter(|&at| at <= until);
            let Some(at) = due else {
                manual.now = until;
                return;
            };
            // what was asked for too late is called at once
            let step = at.saturating_duration_since(manual.now);
            manual.now += step;
            left -= step;
            let call = manual.calls.pop();
            let _calling = Calling { time: self, outer: manual.calling.replace(me) };
            drop(manual);
            if let Some(target) = call.and_then(|call| call.target.upgrade()) {
                target.on_time();
            }
        }
    }

    /// Calls that are outstanding, those to targets that are gone included.
    #[must_use]
    pub fn pending(&self) -> usize {
        lock(&self.0.manual).calls.len()
    }
}

/// A call that is being made; ended by its drop, also when it panics.
struct Calling<'a> {
    time: &'a ManualTime,
    /// A call on this thread from within which this one is made.
    outer: Option<ThreadId>,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        lock(&self.time.0.manual).calling = self.outer;
        self.time.0.returned.notify_all();
    }
}

impl TimeSource for ManualTime {
    fn now(&self) -> Instant {
        lock(&self.0.manual).now
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }
    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>) {
        lock(&self.0.manual).calls.push(Call { at, target });
    }
}

impl fmt::Debug for SharedManual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manual = lock(&self.manual);
        f.debug_struct("Manual")
            .field("now", &manual.now)
            .field("pending", &manual.calls.len())
            .finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;
    impl OnTime for Nobody {
        fn on_time(self: Arc<Self>) {}
    }

    #[test]
    fn a_burst_of_calls_that_were_made_leaves_no_room_for_as_many_to_nobody() {
        let (mut calls, at) = (Calls::default(), Instant::now());
        let somebody: Arc<dyn OnTime> = Arc::new(Nobody);
        for _ in 0..10_000 {
            calls.add(Call { at, target: Arc::downgrade(&somebody) });
        }
        while calls.take().is_some() {}
        for _ in 0..10_000 {
            let gone: Arc<dyn OnTime> = Arc::new(Nobody);
            calls.add(Call { at, target: Arc::downgrade(&gone) });
        }
        let left = calls.heap.len();
        assert!(left < 200, "{left} calls to nobody are kept after the burst");
    }
}
