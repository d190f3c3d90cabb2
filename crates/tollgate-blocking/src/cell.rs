//! Where a job is kept from its submission until its result is taken: one allocation.
//!
//! # Protocol
//!
//! A cell passes through `Queued -> Running -> Done -> Gone`, or leaves early: to `Refused -> Done` when the pool refuses
//! it, to `Done` or `Gone` when it is withdrawn. Whoever takes a job out of the pool's queues (a worker, a refusal, its
//! own watcher) answers for its end, and nobody else touches its closure: so it runs once or is dropped once, and a
//! permit never returns before the captures are gone. A watcher that wants it no more leaves a flag
//! ([`UNWANTED`]) before it tries to take the job out: should somebody else have it, that one sees the flag.
//!
//! The captures of a refused job stay until somebody comes for them: its watcher as it is polled or leaves, or a worker
//! between two jobs. A destructor that takes its time holds up whoever it belongs to, not the thread that keeps the
//! pool's deadlines.
//!
//! User code (the closure, a drop, a waker) never runs under the cell's lock.
//!
//! At most one watcher waits for the result: a `Run` or a `Ticket`. When it leaves, the result is dropped by whoever
//! would have delivered it.
//!
//! The pool's lock may be held while the header's atomics are read, never while a cell's lock is taken by anybody who
//! holds it around user code: nobody does.

use crate::context::JobContext;
use crate::core::Core;
use crate::error::{Panic, RunError};
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use tokio_util::sync::CancellationToken;
use tollgate_admission::engine::{Claim, GroupId, LaneId, Request, Tick};
use tollgate_admission::{AcquireError, JobId, JobKind, JobName};

/// What the pool knows about a job, apart from what it does.
pub(crate) struct Header {
    pub(crate) name: JobName,
    pub(crate) kind: JobKind,
    // the parts of its claim one by one, so that there is no hole between them
    lane: LaneId,
    weight: u64,
    group: Option<GroupId>,
    /// The earliest of all that count for it so far: the caller's, its scope's, its lease's, and once it has started the
    /// end of its lane's task timeout. Only ever made earlier, under the pool's lock.
    deadline: AtomicU64,
    pub(crate) cancel: Cancel,
    /// Written once, under the pool's lock, when the job is accepted; 0 before.
    id: AtomicU64,
    flags: AtomicU8,
}

/// Whoever waited has left while the closure ran.
pub(crate) const ABANDONED: u8 = 1;
/// Whoever waited was told that the time was up while the closure ran.
pub(crate) const TIMED_OUT: u8 = 2;
/// Its time was up when a worker had it and had not started it: it is not to start.
pub(crate) const EXPIRED: u8 = 4;
/// Its closure has started.
pub(crate) const STARTED: u8 = 8;
/// Whoever waited has left, at whatever time.
pub(crate) const UNWATCHED: u8 = 16;
/// It was cancelled, or whoever waited has left, before it started: it is not to start.
pub(crate) const UNWANTED: u8 = 32;
/// It came under a drain lease.
const LEASED: u8 = 64;
/// It was refused after it had been accepted.
const REFUSED: u8 = 128;

impl Header {
    pub(crate) fn new(name: JobName, kind: JobKind, request: &Request) -> Self {
        Header {
            name,
            kind,
            lane: request.lane,
            weight: request.weight,
            group: request.group,
            deadline: AtomicU64::new(request.deadline.0),
            cancel: Cancel::new(),
            id: AtomicU64::new(0),
            flags: AtomicU8::new(if request.leased { LEASED } else { 0 }),
        }
    }

    pub(crate) fn lane(&self) -> LaneId {
        self.lane
    }
    /// The group of its scope, if it has one.
    pub(crate) fn group(&self) -> Option<GroupId> {
        self.group
    }
    /// What its permit takes.
    pub(crate) fn claim(&self) -> Claim {
        Claim { lane: self.lane, weight: self.weight, group: self.group }
    }
    pub(crate) fn is_leased(&self) -> bool {
        self.flags() & LEASED != 0
    }
    /// What it asks, or has asked, of its lane.
    pub(crate) fn request(&self) -> Request {
        let (group, deadline, leased) = (self.group, self.deadline(), self.is_leased());
        Request { deadline, group, leased, ..Request::new(self.lane, self.weight) }
    }
    pub(crate) fn deadline(&self) -> Tick {
        Tick(self.deadline.load(Ordering::Relaxed))
    }
    /// Makes the deadline earlier. Only under the pool's lock: one at a time.
    pub(crate) fn tighten(&self, deadline: Tick) {
        if deadline < self.deadline() {
            self.deadline.store(deadline.0, Ordering::Relaxed);
        }
    }

    // Relaxed, here and for the others: each is read for reports, or by a thread that got the job through a lock
    pub(crate) fn id(&self) -> JobId {
        JobId::new(self.id.load(Ordering::Relaxed))
    }
    pub(crate) fn set_id(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
    }
    pub(crate) fn flags(&self) -> u8 {
        self.flags.load(Ordering::Relaxed)
    }
    /// Only under the cell's lock: one at a time.
    fn raise(&self, flag: u8) {
        self.flags.store(self.flags() | flag, Ordering::Relaxed);
    }
}

/// A request to stop, with a token made only for those who want one.
pub(crate) struct Cancel {
    requested: AtomicU8,
    token: Mutex<Option<CancellationToken>>,
}

impl Cancel {
    fn new() -> Self {
        Cancel { requested: AtomicU8::new(0), token: Mutex::new(None) }
    }

    pub(crate) fn is_requested(&self) -> bool {
        // Acquire, with the Release in `request`: what the requester did before is visible to a closure that stops
        self.requested.load(Ordering::Acquire) != 0
    }

    pub(crate) fn request(&self) {
        self.requested.store(1, Ordering::Release);
        // either this sees the token, or its maker took the lock later and sees the store
        let token = self.token.lock().clone();
        if let Some(token) = token {
            // it wakes whoever waits for it
            quietly(|| token.cancel());
        }
    }

    /// A request to a job that has not started, and so has given nobody a token.
    pub(crate) fn note(&self) {
        // Release: as in `request`
        self.requested.store(1, Ordering::Release);
    }

    pub(crate) fn token(&self) -> CancellationToken {
        let token = self.token.lock().get_or_insert_default().clone();
        if self.is_requested() {
            token.cancel();
        }
        token
    }
}

/// How a closure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished,
    Panicked,
    /// There was nothing to run: the job was withdrawn before it started.
    Withdrawn,
    /// Its deadline had passed before it started.
    Expired,
}

impl Ending {
    /// Whether the closure had started.
    pub(crate) fn has_run(self) -> bool {
        matches!(self, Ending::Finished | Ending::Panicked)
    }
}

/// What the pool can do with a job, whatever it computes.
pub(crate) trait Job: Send + Sync {
    fn header(&self) -> &Header;

    /// Runs the closure, on the calling thread. `between` is called once: after the captures, and a result that nobody
    /// claims, are gone, and before the result can be seen. That is where the permit goes home. One that has `expired` is
    /// refused instead.
    fn run(&self, core: &Arc<Core>, expired: bool, between: &mut dyn FnMut(Ending));

    /// It will not run, for `error`: tells its watcher. The closure stays until the watcher or [`reap`](Self::reap) comes
    /// for it. With `held`, its permit is still out, and returns then.
    fn refuse(&self, error: RunError, held: bool);

    /// Ends a job that was refused, unless its watcher has: drops the closure, returns the permit, delivers the error.
    fn reap(&self, core: &Core);

    /// Drops the closure of a job that is unwanted; for who has taken it out of the pool. Its watcher goes on waiting.
    fn discard(&self);

    /// Delivers `error` while the closure runs, and asks it to stop. One that has not started never will: the worker
    /// that has it refuses it.
    fn time_out(&self, error: RunError);
}

/// What a watcher can do with a job, whatever its closure's type.
pub(crate) trait Watch<R>: Job {
    /// The result, once; else `waker` is woken when there is one. Ends a job that was refused.
    fn poll(&self, core: &Core, waker: &Waker) -> Poll<Result<R, RunError>>;

    /// Leaves the waker of a watcher that has only come to be: what [`poll`](Self::poll) does, in one step.
    fn prime(&self, waker: Waker);

    /// The watcher leaves. With `abandon`, nobody wants the job any more: one that has not started is marked as unwanted,
    /// one that runs is asked to stop. Returns whether it is unwanted now, and so to be taken out of the pool.
    fn leave(&self, core: &Core, abandon: bool) -> bool;

    /// Marks a job that has not started as unwanted, so that it never will; else asks it to stop.
    fn cancel(&self) -> CancelOutcome;

    /// Delivers that the job was cancelled.
    fn tell_cancelled(&self);

    /// Whether there is a result to take.
    fn is_done(&self) -> bool;
}

/// What became of a request to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelOutcome {
    /// It will not start: to be taken out of the pool.
    Unwanted,
    /// It will not start, and was told so before.
    Withdrawn,
    /// It runs, and was asked to stop; or it had ended.
    Started,
}

/// How a result is kept until it is taken: small ones in place, large ones in a box, so that a queue of jobs does not
/// hold room for results to come.
pub(crate) trait Keep: Send + 'static {
    type Result: Send + 'static;
    fn keep(result: Self::Result) -> Self;
    fn give(self) -> Self::Result;
}

struct InPlace<R>(R);
impl<R: Send + 'static> Keep for InPlace<R> {
    type Result = R;
    fn keep(result: R) -> Self {
        InPlace(result)
    }
    fn give(self) -> R {
        self.0
    }
}

struct Boxed<R>(Box<R>);
impl<R: Send + 'static> Keep for Boxed<R> {
    type Result = R;
    fn keep(result: R) -> Self {
        Boxed(Box::new(result))
    }
    fn give(self) -> R {
        *self.0
    }
}

/// What the submitter leaves with the closure, gone with it.
#[derive(Default)]
struct Diagnostics {
    #[cfg(feature = "tracing")]
    span: Option<tracing::Span>,
}

impl Diagnostics {
    fn capture(with_span: bool) -> Self {
        #[cfg(not(feature = "tracing"))]
        let _ = with_span;
        Diagnostics {
            #[cfg(feature = "tracing")]
            span: with_span.then(tracing::Span::current).filter(|span| !span.is_none()),
        }
    }

    fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        let _entered = self.span.as_ref().map(tracing::Span::enter);
        f()
    }
}

enum Phase<F, K> {
    Queued {
        closure: F,
        diagnostics: Diagnostics,
        waker: Option<Waker>,
        watched: bool,
    },
    Running {
        waker: Option<Waker>,
        watched: bool,
    },
    /// Refused, with the closure still here.
    Refused {
        closure: F,
        diagnostics: Diagnostics,
        /// Boxed, so that room for it is not taken from every job.
        error: Box<RunError>,
        /// Its permit is out.
        held: bool,
        watched: bool,
    },
    Done(Result<K, RunError>),
    /// Nothing is left to take. Also while the closure of a cancelled job is being dropped: its watcher still waits.
    Gone {
        waker: Option<Waker>,
        watched: bool,
    },
}

impl<F, K> Phase<F, K> {
    const fn gone() -> Self {
        Phase::Gone { waker: None, watched: false }
    }
}

pub(crate) struct Cell<F, K> {
    phase: Mutex<Phase<F, K>>,
    header: Header,
}

/// Results up to this size are kept in place.
const IN_PLACE: usize = 64;

/// A cell around `closure`, to be run within the present span if it is to have one.
pub(crate) fn new<F, R>(closure: F, header: Header, with_span: bool) -> Arc<dyn Watch<R>>
where
    F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
    R: Send + 'static,
{
    // decided at compile time, per type
    if size_of::<R>() <= IN_PLACE {
        Arc::new(Cell::<F, InPlace<R>>::new(closure, header, with_span))
    } else {
        Arc::new(Cell::<F, Boxed<R>>::new(closure, header, with_span))
    }
}

/// Calls what is the user's where a panic must not spread; `None` when it panicked.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        // the panic hook has reported it
        Err(payload) => {
            drop_quietly(payload);
            None
        }
    }
}

/// Drops what is the user's where a panic must not spread.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // a payload's drop may panic in its turn; the payload of that is one too many
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        dropped.unwrap_or_else(std::mem::forget);
    }
}

fn wake_quietly(waker: Option<Waker>) {
    if let Some(waker) = waker {
        quietly(|| waker.wake());
    }
}

impl<F, K> Cell<F, K> {
    fn new(closure: F, header: Header, with_span: bool) -> Self {
        let diagnostics = Diagnostics::capture(with_span);
        let phase = Phase::Queued { closure, diagnostics, waker: None, watched: true };
        Cell { phase: Mutex::new(phase), header }
    }

    /// Delivers, or drops if nobody is there to receive.
    fn deliver(&self, result: Result<K, RunError>) {
        let mut phase = self.phase.lock();
        match &mut *phase {
            Phase::Running { waker, watched: true } | Phase::Gone { waker, watched: true } => {
                let waker = waker.take();
                *phase = Phase::Done(result);
                drop(phase);
                wake_quietly(waker);
            }
            Phase::Queued { .. } => {
                unreachable!("a job is taken from its queue before it is settled")
            }
            _ => {
                drop(phase);
                drop_quietly(result);
            }
        }
    }

    /// Takes a refused job's closure out, to be dropped and ended; its watcher, if it still watches, goes on waiting.
    fn take_refused(&self) -> Option<RefusedJob<F>> {
        let mut phase = self.phase.lock();
        match std::mem::replace(&mut *phase, Phase::gone()) {
            Phase::Refused { closure, diagnostics, error, held, watched } => {
                *phase = Phase::Gone { waker: None, watched };
                Some(RefusedJob { closure, diagnostics, error, held })
            }
            other => {
                *phase = other;
                None
            }
        }
    }

    fn cancelled(&self) -> RunError {
        RunError::Cancelled { id: self.header.id() }
    }

    fn is_unwanted(&self) -> bool {
        self.header.flags() & UNWANTED != 0
    }

    /// Whether somebody may still claim what the closure returned. What counts is under the lock, at the delivery.
    fn is_claimed(&self) -> bool {
        self.header.flags() & (UNWATCHED | TIMED_OUT) == 0
    }
}

/// A refused job's remains.
struct RefusedJob<F> {
    closure: F,
    diagnostics: Diagnostics,
    error: Box<RunError>,
    held: bool,
}

impl<F> RefusedJob<F> {
    /// Captures, permit, diagnostics; what is left is the error to deliver.
    fn end(self, core: &Core, header: &Header) -> RunError {
        drop_quietly(self.closure);
        drop_quietly(self.diagnostics);
        core.part(header, self.held, false);
        *self.error
    }
}

impl<F, K> Job for Cell<F, K>
where
    F: FnOnce(&JobContext<'_>) -> K::Result + Send + 'static,
    K: Keep,
{
    fn header(&self) -> &Header {
        &self.header
    }

    fn run(&self, core: &Arc<Core>, expired: bool, between: &mut dyn FnMut(Ending)) {
        let mut phase = self.phase.lock();
        let (closure, diagnostics) = match std::mem::replace(&mut *phase, Phase::gone()) {
            Phase::Queued { closure, diagnostics, waker, watched }
                if expired || self.header.flags() & EXPIRED != 0 =>
            {
                *phase = Phase::Gone { waker, watched };
                drop(phase);
                drop_quietly((closure, diagnostics));
                between(Ending::Expired);
                let lane = Arc::clone(core.lane_name(self.header.lane()));
                return self.deliver(Err(RunError::Refused(AcquireError::Deadline { lane })));
            }
            Phase::Queued { closure, diagnostics, waker, watched } if self.is_unwanted() => {
                *phase = Phase::Gone { waker, watched };
                drop(phase);
                drop_quietly((closure, diagnostics));
                between(Ending::Withdrawn);
                // to whoever cancelled it and still watches
                return self.deliver(Err(self.cancelled()));
            }
            Phase::Queued { closure, diagnostics, waker, watched } => {
                *phase = Phase::Running { waker, watched };
                self.header.raise(STARTED);
                (closure, diagnostics)
            }
            _ => unreachable!("whoever takes a job out of the pool is the only one to end it"),
        };
        drop(phase);
        let context = JobContext { core, header: &self.header };
        // the captures go with the call, on return as on a panic
        let call = || catch_unwind(AssertUnwindSafe(|| closure(&context)));
        // the outer one is for a subscriber that panics when the span is entered or left
        let result = catch_unwind(AssertUnwindSafe(|| diagnostics.within(call))).flatten();
        // closing a span is a subscriber's code
        drop_quietly(diagnostics);
        let (result, ending) = match result {
            Ok(value) => (Ok(K::keep(value)), Ending::Finished),
            Err(payload) => (Err(RunError::Panicked(Panic::new(payload))), Ending::Panicked),
        };
        if self.is_claimed() {
            between(ending);
            self.deliver(result);
        } else {
            drop_quietly(result);
            between(ending);
        }
    }

    fn refuse(&self, error: RunError, held: bool) {
        let mut phase = self.phase.lock();
        let error = Box::new(if self.is_unwanted() { self.cancelled() } else { error });
        let waker = match std::mem::replace(&mut *phase, Phase::gone()) {
            Phase::Queued { closure, diagnostics, waker, watched } => {
                *phase = Phase::Refused { closure, diagnostics, error, held, watched };
                self.header.raise(REFUSED);
                waker
            }
            _ => unreachable!("whoever takes a job out of the pool is the only one to end it"),
        };
        drop(phase);
        wake_quietly(waker);
    }

    fn reap(&self, core: &Core) {
        if let Some(refused) = self.take_refused() {
            let error = refused.end(core, &self.header);
            self.deliver(Err(error));
        }
    }

    fn discard(&self) {
        let mut phase = self.phase.lock();
        match std::mem::replace(&mut *phase, Phase::gone()) {
            Phase::Queued { closure, diagnostics, waker, watched } => {
                *phase = Phase::Gone { waker, watched };
                drop(phase);
                drop_quietly((closure, diagnostics));
            }
            _ => unreachable!("whoever takes a job out of the pool is the only one to end it"),
        }
    }

    fn time_out(&self, error: RunError) {
        let mut phase = self.phase.lock();
        let waker = match &mut *phase {
            Phase::Running { waker, watched } => {
                let waker = waker.take();
                if *watched {
                    *phase = Phase::Done(Err(error));
                }
                // nobody is told about one that was abandoned
                if self.header.flags() & ABANDONED == 0 {
                    self.header.raise(TIMED_OUT);
                }
                waker
            }
            Phase::Queued { .. } => {
                self.header.raise(EXPIRED);
                return;
            }
            _ => return,
        };
        drop(phase);
        self.header.cancel.request();
        wake_quietly(waker);
    }
}

impl<F, K> Watch<K::Result> for Cell<F, K>
where
    F: FnOnce(&JobContext<'_>) -> K::Result + Send + 'static,
    K: Keep,
{
    fn poll(&self, core: &Core, waker: &Waker) -> Poll<Result<K::Result, RunError>> {
        let mut fresh: Option<Waker> = None;
        loop {
            let mut phase = self.phase.lock();
            let held = match &mut *phase {
                Phase::Done(_) => {
                    let Phase::Done(result) = std::mem::replace(&mut *phase, Phase::gone()) else {
                        unreachable!("seen under this lock")
                    };
                    drop(phase);
                    return Poll::Ready(result.map(K::give));
                }
                Phase::Refused { .. } => {
                    drop(phase);
                    match self.take_refused() {
                        Some(refused) => {
                            return Poll::Ready(Err(refused.end(core, &self.header)));
                        }
                        // a worker came first
                        None => continue,
                    }
                }
                Phase::Queued { waker, .. }
                | Phase::Running { waker, .. }
                | Phase::Gone { waker, .. } => waker,
            };
            if held.as_ref().is_some_and(|held| held.will_wake(waker)) {
                return Poll::Pending;
            }
            // cloning and dropping a waker is user code, hence not under the lock
            if let Some(fresh) = fresh.take() {
                let stale = held.replace(fresh);
                drop(phase);
                drop(stale);
                return Poll::Pending;
            }
            drop(phase);
            fresh = Some(waker.clone());
        }
    }

    fn prime(&self, fresh: Waker) {
        let mut phase = self.phase.lock();
        let stale = match &mut *phase {
            Phase::Queued { waker, .. }
            | Phase::Running { waker, .. }
            | Phase::Gone { waker, .. } => waker.replace(fresh),
            Phase::Refused { .. } | Phase::Done(_) => Some(fresh),
        };
        drop(phase);
        drop(stale);
    }

    fn leave(&self, core: &Core, abandon: bool) -> bool {
        let mut phase = self.phase.lock();
        self.header.raise(UNWATCHED);
        let (mut result, mut unwanted, mut asked) = (None, false, false);
        let waker = match &mut *phase {
            Phase::Queued { waker, watched, .. } => {
                *watched = false;
                if abandon {
                    self.header.raise(UNWANTED);
                    unwanted = true;
                }
                waker.take()
            }
            Phase::Gone { waker, watched } => {
                *watched = false;
                waker.take()
            }
            Phase::Running { waker, watched } => {
                *watched = false;
                if abandon {
                    self.header.raise(ABANDONED);
                    asked = true;
                }
                waker.take()
            }
            Phase::Refused { watched, .. } => {
                *watched = false;
                None
            }
            Phase::Done(_) => {
                result = Some(std::mem::replace(&mut *phase, Phase::gone()));
                None
            }
        };
        drop(phase);
        if asked {
            self.header.cancel.request();
        }
        // quietly: it may be a drop during a panic, and the pool has still to be told
        drop_quietly(result);
        drop_quietly(waker);
        self.reap(core);
        unwanted
    }

    fn cancel(&self) -> CancelOutcome {
        let phase = self.phase.lock();
        let outcome = match &*phase {
            Phase::Queued { .. } => {
                self.header.raise(UNWANTED);
                CancelOutcome::Unwanted
            }
            Phase::Refused { .. } => CancelOutcome::Withdrawn,
            _ if self.header.flags() & STARTED == 0 => CancelOutcome::Withdrawn,
            _ => CancelOutcome::Started,
        };
        let running = matches!(*phase, Phase::Running { .. });
        drop(phase);
        if running {
            self.header.cancel.request();
        }
        outcome
    }

    fn tell_cancelled(&self) {
        self.deliver(Err(self.cancelled()));
    }

    fn is_done(&self) -> bool {
        matches!(*self.phase.lock(), Phase::Done(_)) || self.header.flags() & REFUSED != 0
    }
}
