//! The thread that looks at streams, so that nobody else has to: it marks points, asks the device whether it has passed them
//! when the driver says so or has been silent for long, and does what is to be done then.

use super::lease::StreamStats;
use super::lines::{LineKey, Lines};
use crate::backend::{Backend, Bell, Cause, DriverError, ErrorClass, Operation, Signal};
use crate::sync::plain::Mutex;
use std::any::Any;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tollgate_admission::engine::contain;
use tollgate_admission::{Budget, Lane, Permit};

/// Something that is kept until the device has passed what uses it.
pub(super) type Held = Box<dyn Any + Send>;

/// A point in a stream's work.
pub(super) struct Mark<B: Backend> {
    pub(super) event: Arc<B::Event>,
    pub(super) signal: Signal,
}

impl<B: Backend> Clone for Mark<B> {
    fn clone(&self) -> Self {
        Mark { event: Arc::clone(&self.event), signal: self.signal.clone() }
    }
}

/// What is to be done once the device has passed a point.
pub(super) enum What {
    /// Somebody is told.
    Tell(Arc<Waiter>),
    /// Something is dropped.
    Drop(Held),
    /// The stream is free, and the last of what it held is dropped.
    Free { held: Vec<Held>, permit: Permit, priority: i32 },
}

/// Where a completion's outcome is put.
pub(super) struct Waiter(Mutex<Wait>);

#[derive(Default)]
struct Wait {
    outcome: Option<Result<(), DriverError>>,
    waker: Option<Waker>,
}

impl Waiter {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Waiter(Mutex::new(Wait::default())))
    }

    /// The first outcome counts.
    pub(super) fn settle(&self, outcome: Result<(), DriverError>) {
        let mut wait = self.0.lock();
        if wait.outcome.is_none() {
            wait.outcome = Some(outcome);
        }
        let waker = wait.waker.take();
        drop(wait);
        if let Some(waker) = waker {
            contain(|| waker.wake());
        }
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), DriverError>> {
        // a waker's clone and drop are user code, hence not under the lock
        let fresh = cx.waker().clone();
        let mut wait = self.0.lock();
        if let Some(outcome) = &wait.outcome {
            return Poll::Ready(outcome.clone());
        }
        let stale = wait.waker.replace(fresh);
        drop(wait);
        drop(stale);
        Poll::Pending
    }
}

/// What a pool of streams shares with its thread and its leases.
pub(super) struct Engine<B: Backend> {
    pub(super) backend: B,
    pub(super) bell: Bell,
    pub(super) spin: Duration,
    watchdog: Duration,
    /// Bounds how many streams there are.
    budget: Budget,
    capacity: u64,
    pub(super) lane: Lane,
    inner: Mutex<Inner<B>>,
}

struct Inner<B: Backend> {
    lines: Lines<Arc<B::Stream>, Mark<B>, What>,
    /// Streams that nobody has, by priority.
    idle: BTreeMap<i32, Vec<Arc<B::Stream>>>,
    streams: u64,
    leased: u64,
    parked: u64,
    held: u64,
    /// Nobody has the pool any more.
    closed: bool,
    /// The thread runs.
    started: bool,
    /// It waits for nothing but the bell.
    asleep: bool,
}

impl<B: Backend> Engine<B> {
    pub(super) fn new(
        backend: B,
        budget: Budget,
        lane: Lane,
        spin: Duration,
        watchdog: Duration,
    ) -> Arc<Self> {
        let inner = Inner {
            lines: Lines::new(),
            idle: BTreeMap::new(),
            streams: 0,
            leased: 0,
            parked: 0,
            held: 0,
            closed: false,
            started: false,
            asleep: false,
        };
        let (bell, inner) = (Bell::new(), Mutex::new(inner));
        let capacity = budget.stats().capacity;
        Arc::new(Engine { backend, bell, spin, watchdog, budget, capacity, lane, inner })
    }

    /// A stream of this priority that was created or is idle. The caller has a permit for it.
    pub(super) fn take(&self, priority: i32) -> Result<(Arc<B::Stream>, LineKey), DriverError> {
        loop {
            let idle = {
                let mut inner = self.inner.lock();
                inner.idle.get_mut(&priority).and_then(Vec::pop)
            };
            let stream = match idle {
                Some(stream) => match self.backend.query_stream(&stream) {
                    Ok(_) => stream,
                    Err(error) => {
                        let mut inner = self.inner.lock();
                        if matches!(error.cause(), Cause::NotBound { .. }) {
                            inner.idle.entry(priority).or_default().push(stream);
                            return Err(error);
                        }
                        inner.streams -= 1;
                        drop(inner);
                        // of before a reset, and worth nothing
                        if error.class() == ErrorClass::Request {
                            continue;
                        }
                        return Err(error);
                    }
                },
                None => {
                    let stream = Arc::new(self.backend.create_stream(priority)?);
                    let surplus = self.inner.lock().add_stream(self.capacity);
                    // outside the lock: a drop is a call of the driver
                    drop(surplus);
                    stream
                }
            };
            let mut inner = self.inner.lock();
            inner.leased += 1;
            let line = inner.lines.open(Arc::clone(&stream));
            return Ok((stream, line));
        }
    }

    /// Marks the point that the stream has come to, as far as it was told by now. `None` when this thread may not ask that of
    /// the device.
    pub(super) fn mark(&self, stream: &B::Stream) -> Result<Option<Mark<B>>, DriverError> {
        if !self.backend.is_bound() {
            return Ok(None);
        }
        let event = self.backend.create_event()?;
        self.backend.record(&event, stream)?;
        let signal = Signal::new(&self.bell);
        self.backend.notify(stream, &signal)?;
        Ok(Some(Mark { event: Arc::new(event), signal }))
    }

    /// Has something done once the device has passed a mark; one that is to be made when there is none.
    pub(super) fn then(self: &Arc<Self>, line: LineKey, mark: Option<Mark<B>>, what: What) {
        let mut inner = self.inner.lock();
        let unmarked = mark.is_none();
        match &what {
            What::Tell(_) => {}
            What::Drop(_) => inner.held += 1,
            What::Free { held, .. } => {
                inner.held += held.len() as u64;
                inner.leased -= 1;
                inner.parked += 1;
            }
        }
        inner.lines.push(line, mark, what);
        let ring = unmarked || mem::take(&mut inner.asleep);
        let start = !mem::replace(&mut inner.started, true);
        drop(inner);
        if start {
            self.start();
        } else if ring {
            self.bell.ring();
        }
    }

    /// The stream is free at once: the device has passed all that it was given.
    pub(super) fn free(&self, line: LineKey, priority: i32, permit: Permit) {
        let mut inner = self.inner.lock();
        inner.leased -= 1;
        let stream = inner.lines.close(line);
        let surplus = inner.put_by(priority, stream);
        let closed = inner.closed;
        drop(inner);
        drop(surplus);
        drop(permit);
        if closed {
            // the thread may have waited for this lease alone
            self.bell.ring();
        }
    }

    /// Whether nothing waits on the stream's line.
    pub(super) fn is_clear(&self, line: LineKey) -> bool {
        self.inner.lock().lines.is_clear(line)
    }

    /// Nobody has the pool any more.
    pub(super) fn close(&self) {
        let idle = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            let idle = mem::take(&mut inner.idle);
            inner.streams -= idle.values().map(Vec::len).sum::<usize>() as u64;
            idle
        };
        drop(idle);
        self.budget.close();
        self.bell.ring();
    }

    pub(super) fn stats(&self) -> StreamStats {
        let budget = self.budget.stats();
        let inner = self.inner.lock();
        StreamStats {
            capacity: budget.capacity,
            streams: inner.streams,
            leased: inner.leased,
            parked: inner.parked,
            held: inner.held,
            pending: inner.lines.steps() as u64,
            waiting: budget.lanes.iter().map(|lane| lane.waiting).sum(),
        }
    }

    fn start(self: &Arc<Self>) {
        let engine = Arc::clone(self);
        let device = self.backend.info();
        let name =
            format!("{}:{}-completions", device.name, device.ordinal).replace('\0', "\u{fffd}");
        let started = std::thread::Builder::new().name(name).spawn(move || engine.run());
        if let Err(error) = started {
            // nobody could ever be told
            self.inner.lock().started = false;
            let message = error.to_string();
            let device = device.ordinal;
            let cause = Cause::NoThread { message: message.into() };
            self.fail_all(&DriverError::new(device, Operation::Notify, cause));
        }
    }

    fn run(self: Arc<Self>) {
        let mut looked = Instant::now();
        loop {
            let rings = self.bell.rings();
            // bound anew after a reset; if that can't be, the device is broken, and what is asked of it says so
            if !self.backend.is_bound() {
                let _ = self.backend.bind();
            }
            self.mark_all();
            let all = looked.elapsed() >= self.watchdog;
            if all {
                looked = Instant::now();
            }
            let passed = self.look(all);
            let mut inner = self.inner.lock();
            let pending = inner.lines.steps() > 0;
            if !pending && inner.closed && inner.leased == 0 {
                return;
            }
            inner.asleep = !pending;
            drop(inner);
            if passed {
                // what comes behind may have passed as well
                continue;
            }
            if pending {
                self.bell.wait_until(rings, looked + self.watchdog);
            } else {
                self.bell.wait(rings);
            }
        }
    }

    /// Marks the points of those who could not.
    fn mark_all(&self) {
        loop {
            let unmarked = self.inner.lock().lines.unmarked();
            if unmarked.is_empty() {
                return;
            }
            for (key, stream) in unmarked {
                match self.mark(&stream) {
                    Ok(Some(mark)) => self.inner.lock().lines.mark(key, mark),
                    Ok(None) => {
                        // this thread can't be bound: the device is broken
                        let broken = self.backend.query_stream(&stream).err();
                        if let Some(error) = broken {
                            self.fail(key, &error);
                        }
                    }
                    Err(error) => self.fail(key, &error),
                }
            }
        }
    }

    /// Asks the device about the marks that the driver has spoken of, or about all. Says whether one had passed.
    fn look(&self, all: bool) -> bool {
        let candidates = self.inner.lock().lines.candidates(all, |mark| mark.signal.is_raised());
        let mut any = false;
        for (key, count, mark) in candidates {
            // a signal is a hint, and the query the truth
            match self.backend.query_event(&mark.event) {
                Ok(true) => {
                    any = true;
                    let done = self.inner.lock().lines.pass(key, count);
                    self.done(key, done, &Ok(()));
                }
                Ok(false) => {}
                Err(error) => {
                    any = true;
                    self.fail(key, &error);
                }
            }
        }
        any
    }

    /// A stream will not come to its points; none will, when the device is broken.
    fn fail(&self, key: LineKey, error: &DriverError) {
        match error.class() {
            ErrorClass::Sticky | ErrorClass::DeviceLost => self.fail_all(error),
            ErrorClass::Request | ErrorClass::OutOfMemory => {
                let done = self.inner.lock().lines.fail(key);
                self.done(key, done, &Err(error.clone()));
            }
        }
    }

    fn fail_all(&self, error: &DriverError) {
        let keys = self.inner.lock().lines.keys();
        for key in keys {
            let done = self.inner.lock().lines.fail(key);
            self.done(key, done, &Err(error.clone()));
        }
    }

    /// Does what was to be done. After a failure as well: a stream is never used again then, and what it held is dropped, which
    /// the driver allows at any time.
    fn done(
        &self,
        key: LineKey,
        done: Vec<(Option<Mark<B>>, What)>,
        outcome: &Result<(), DriverError>,
    ) {
        for (_mark, what) in done {
            match what {
                What::Tell(waiter) => waiter.settle(outcome.clone()),
                What::Drop(held) => {
                    contain(|| drop(held));
                    self.inner.lock().held -= 1;
                }
                What::Free { held, permit, priority } => {
                    let count = held.len() as u64;
                    held.into_iter().for_each(|held| contain(|| drop(held)));
                    let mut inner = self.inner.lock();
                    inner.held -= count;
                    inner.parked -= 1;
                    let stream = inner.lines.close(key);
                    let surplus = match outcome {
                        Ok(()) => inner.put_by(priority, stream),
                        Err(_) => {
                            inner.streams -= 1;
                            Some(stream)
                        }
                    };
                    drop(inner);
                    drop(surplus);
                    drop(permit);
                }
            }
        }
    }
}

impl<B: Backend> Inner<B> {
    /// Nobody has the stream any more. It is handed back, to be dropped outside the lock, when nobody will want it.
    fn put_by(&mut self, priority: i32, stream: Arc<B::Stream>) -> Option<Arc<B::Stream>> {
        if self.closed {
            self.streams -= 1;
            return Some(stream);
        }
        self.idle.entry(priority).or_default().push(stream);
        None
    }

    /// One more stream. One of another priority that is idle goes when there are too many.
    fn add_stream(&mut self, most: u64) -> Option<Arc<B::Stream>> {
        self.streams += 1;
        if self.streams <= most {
            return None;
        }
        let idle = self.idle.values_mut().find_map(Vec::pop);
        if idle.is_some() {
            self.streams -= 1;
        }
        idle
    }
}
