//! What the tests of the public API share: wakers that count, waits that are polled by hand, a clock in the hand.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt::Debug;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tollgate_admission::time::OnTime;
use tollgate_admission::{
    Acquire, AcquireError, Budget, BudgetBuilder, Lane, LaneConfig, ManualTime, NoTimer, Permit,
    TimeSource,
};

/// A waker that counts how often it is woken.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicUsize);

impl Counter {
    pub(crate) fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls once with this waker.
pub(crate) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// A future with a counting waker of its own, polled by hand.
pub(crate) struct Polled<F> {
    pub(crate) future: F,
    counter: Arc<Counter>,
}

impl<F: Future + Unpin> Polled<F> {
    pub(crate) fn new(future: F) -> Self {
        Polled { future, counter: Arc::default() }
    }

    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        poll_with(&mut self.future, &Waker::from(Arc::clone(&self.counter)))
    }

    /// How often it was woken since it was made.
    pub(crate) fn wakes(&self) -> usize {
        self.counter.wakes()
    }
}

/// An acquire that waits in its queue.
pub(crate) type Waiter = Polled<Acquire>;

impl Waiter {
    /// Permits are not to be had, so it waits.
    #[track_caller]
    pub(crate) fn queue(acquire: Acquire) -> Self {
        let mut waiter = Polled::new(acquire);
        match waiter.poll() {
            Poll::Pending => waiter,
            Poll::Ready(result) => panic!("it should have to wait, but: {result:?}"),
        }
    }

    /// It was granted meanwhile.
    #[track_caller]
    pub(crate) fn permit(mut self) -> Permit {
        match self.poll() {
            Poll::Ready(Ok(permit)) => permit,
            other => panic!("it should have been granted, but: {other:?}"),
        }
    }

    /// It was refused meanwhile.
    #[track_caller]
    pub(crate) fn refusal(mut self) -> AcquireError {
        match self.poll() {
            Poll::Ready(Err(error)) => error,
            other => panic!("it should have been refused, but: {other:?}"),
        }
    }
}

/// The acquire is granted at its first poll.
#[track_caller]
pub(crate) fn granted(acquire: Acquire) -> Permit {
    Polled::new(acquire).permit()
}

/// The acquire is refused at its first poll.
#[track_caller]
pub(crate) fn refused(acquire: Acquire) -> AcquireError {
    Polled::new(acquire).refusal()
}

/// A budget on a clock that stands still.
pub(crate) fn budget<const N: usize>(
    capacity: u64,
    lanes: [LaneConfig; N],
) -> (Budget, [Lane; N], ManualTime) {
    budget_with(Budget::builder().capacity(capacity), lanes)
}

/// As [`budget`], with more said about it.
pub(crate) fn budget_with<const N: usize>(
    mut builder: BudgetBuilder,
    lanes: [LaneConfig; N],
) -> (Budget, [Lane; N], ManualTime) {
    let time = ManualTime::new();
    let names = lanes.clone().map(|lane| lane.name().to_owned());
    for lane in lanes {
        builder = builder.lane(lane);
    }
    let budget = builder.time(Arc::new(time.clone())).build().expect("the numbers fit");
    let lanes = names.map(|name| budget.lane(&name).expect("it was just given"));
    (budget, lanes, time)
}

/// A budget with one lane of this name that has no numbers of its own.
pub(crate) fn one_lane(capacity: u64) -> (Budget, Lane, ManualTime) {
    let (budget, [lane], time) = budget(capacity, [LaneConfig::new("only")]);
    (budget, lane, time)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The plainest executor: polls on this thread, and parks it.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Runs `f` on a thread of its own, so that a deadlock fails the test instead of hanging it.
#[track_caller]
pub(crate) fn without_deadlock<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _ = done.send(f());
    });
    match result.recv_timeout(Duration::from_secs(60)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("deadlock"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => unreachable!("the result was sent"),
        },
    }
}

/// A clock that shows what it is told, and makes no call by itself.
#[derive(Clone, Debug)]
pub(crate) struct HandClock(Arc<Mutex<Hand>>);

struct Hand {
    start: Instant,
    now: Instant,
    prepared: bool,
    calls: Vec<(Instant, Weak<dyn OnTime>)>,
}

impl Debug for Hand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hand").field("now", &self.now).finish_non_exhaustive()
    }
}

impl HandClock {
    pub(crate) fn new() -> Self {
        // later than the system's clock began, so that it can also be set back
        let start = Instant::now() + Duration::from_secs(1_000);
        let hand = Hand { start, now: start, prepared: false, calls: Vec::new() };
        HandClock(Arc::new(Mutex::new(hand)))
    }

    /// This long after the clock's start.
    pub(crate) fn at(&self, seconds: u64) -> Instant {
        self.0.lock().unwrap().start + Duration::from_secs(seconds)
    }

    /// Shows a time, counted from the clock's start; it may be earlier than before.
    pub(crate) fn show(&self, seconds: u64) {
        let at = self.at(seconds);
        self.0.lock().unwrap().now = at;
    }

    /// The calls that were asked for and not made, in seconds since the clock's start.
    pub(crate) fn asked_for(&self) -> Vec<u64> {
        let hand = self.0.lock().unwrap();
        hand.calls.iter().map(|(at, _)| (*at - hand.start).as_secs()).collect()
    }

    /// Makes the earliest call that was asked for, whatever the clock shows.
    #[track_caller]
    pub(crate) fn call(&self) {
        let mut hand = self.0.lock().unwrap();
        let calls = hand.calls.iter().enumerate();
        let (first, _) = calls.min_by_key(|(_, (at, _))| *at).expect("a call was asked for");
        let (_, target) = hand.calls.remove(first);
        drop(hand);
        if let Some(target) = target.upgrade() {
            target.on_time();
        }
    }
}

impl TimeSource for HandClock {
    fn now(&self) -> Instant {
        self.0.lock().unwrap().now
    }

    fn prepare(&self) -> Result<(), NoTimer> {
        self.0.lock().unwrap().prepared = true;
        Ok(())
    }

    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>) {
        let mut hand = self.0.lock().unwrap();
        assert!(hand.prepared, "a call was asked for before the timer was made ready");
        hand.calls.push((at, target));
    }
}
