//! One job: how it is driven on the device's runtime, how it is stopped, and how its outcome gets to whoever waits for it.

use super::book::{Begun, Place};
use super::core::{Core, Next, Task};
use super::error::{JobError, Reason, Refused};
use super::events::Outcome;
use super::kind::{Class, DeviceKind, Seats};
use super::worker;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tokio_util::sync::CancellationToken;
use tollgate_admission::JobId;
use tollgate_admission::engine::contain;
use tollgate_blocking::Panic;

/// How a job is asked to stop, and made to.
pub(crate) struct Stop {
    /// Where it is in the pool's book; an id of 0 is nowhere. Written when it is accepted.
    index: AtomicUsize,
    id: AtomicU64,
    /// What kind of seat counts for what it submits: 0 for none. Written before it runs.
    seats: AtomicU8,
    /// It runs within whoever submitted it. Written before it runs.
    within: AtomicBool,
    /// The worker that it began on before it was run, and 1; 0 for none. Written before it runs.
    begun: AtomicU32,
    /// Of what is below, what there is. Each flag is set before the lock, and looked at under it by whoever is about to wait.
    flags: AtomicU8,
    waits: Mutex<Waits>,
}

/// It is to be dropped at its next await, or before it begins.
const ABORT: u8 = 1;
/// It was woken since it was polled last.
const WOKEN: u8 = 2;
/// It should end by itself.
const ASKED: u8 = 4;
/// It has waited, and `runner` is there unless somebody has taken it.
const PARKED: u8 = 8;

#[derive(Default)]
struct Waits {
    /// Where it waits, if it runs and does.
    runner: Option<Waker>,
    /// Made when somebody wants it.
    token: Option<CancellationToken>,
}

impl Stop {
    fn new() -> Self {
        Stop {
            index: AtomicUsize::new(0),
            id: AtomicU64::new(0),
            seats: AtomicU8::new(0),
            within: AtomicBool::new(false),
            begun: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            waits: Mutex::new(Waits::default()),
        }
    }

    /// It was accepted, and runs with seats of this kind; `within` whoever submitted it, or by itself.
    pub(crate) fn settle(&self, place: Place, seats: Option<Seats>, within: bool) {
        self.index.store(place.index, Ordering::Relaxed);
        // pairs with `place`: the index is seen with it
        self.id.store(place.id.get(), Ordering::Release);
        let seats = match seats {
            None => 0,
            Some(Seats::Lifecycle) => 1,
            Some(Seats::Execution) => 2,
        };
        // Relaxed: whoever runs it got it through the pool's lock, under which this is written
        self.seats.store(seats, Ordering::Relaxed);
        self.within.store(within, Ordering::Relaxed);
    }

    /// `None` until it is accepted.
    pub(crate) fn place(&self) -> Option<Place> {
        // pairs with `settle`
        let id = self.id.load(Ordering::Acquire);
        let index = self.index.load(Ordering::Relaxed);
        (id > 0).then(|| Place { index, id: JobId::new(id) })
    }

    pub(crate) fn seats(&self) -> Option<Seats> {
        match self.seats.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Seats::Lifecycle),
            _ => Some(Seats::Execution),
        }
    }

    /// Has it dropped at its next await. Says whether it was woken for that.
    #[must_use]
    pub(crate) fn abort(&self) -> bool {
        let woke = self.rouse(ABORT, |runner| contain(|| runner.wake()));
        self.ask();
        woke
    }

    /// Something that it waits for has come about. Says whether it waits, and so was woken.
    fn wake(&self) -> bool {
        self.rouse(WOKEN, Waker::wake)
    }

    fn rouse(&self, flag: u8, wake: impl FnOnce(Waker)) -> bool {
        // pairs with `unpark`: the poll that follows it sees what the job was woken for
        self.flags.fetch_or(flag, Ordering::Release);
        // who parks has the lock: it either sees the flag or leaves its waker for this
        let runner = self.waits.lock().runner.take();
        let woke = runner.is_some();
        if let Some(runner) = runner {
            wake(runner);
        }
        woke
    }

    /// It is to be polled: what woke it before is seen by that. Says whether it is to be dropped instead.
    fn unpark(&self) -> bool {
        // nearly always so: nothing has happened to it, and it has not waited
        if self.flags.load(Ordering::Relaxed) & !ASKED == 0 {
            return false;
        }
        // pairs with `rouse`
        let flags = self.flags.fetch_and(!(WOKEN | PARKED), Ordering::Acquire);
        let stale = self.waits.lock().runner.take();
        drop(stale);
        flags & ABORT != 0
    }

    /// Asks it to end by itself.
    pub(crate) fn ask(&self) {
        self.flags.fetch_or(ASKED, Ordering::Relaxed);
        // who makes the token has the lock: it either sees the flag or leaves the token for this
        let token = self.waits.lock().token.clone();
        if let Some(token) = token {
            // wakes those who wait for it, by code of theirs
            contain(|| token.cancel());
        }
    }

    fn is_aborted(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & ABORT != 0
    }

    /// It has returned from a poll and waits. Says whether it is to be dropped instead.
    fn park(&self, waker: &Waker) -> bool {
        // a waker's clone and drop are user code, hence not under the lock
        let mut fresh = Some(waker.clone());
        let mut waits = self.waits.lock();
        let flags = self.flags.fetch_or(PARKED, Ordering::Relaxed);
        let (abort, woken) = (flags & ABORT != 0, flags & WOKEN != 0);
        if !abort && !woken {
            waits.runner = fresh.take();
        }
        drop(waits);
        if woken && let Some(waker) = fresh {
            // while it was polled
            waker.wake();
        }
        abort
    }

    fn token(&self) -> CancellationToken {
        let mut waits = self.waits.lock();
        let token = waits.token.get_or_insert_default().clone();
        let asked = self.flags.load(Ordering::Relaxed) & ASKED != 0;
        drop(waits);
        if asked {
            token.cancel();
        }
        token
    }
}

/// A job, whatever its result is.
pub(crate) trait Stoppable: Send + Sync {
    fn stop(&self) -> &Stop;
}

impl Begun for Arc<dyn Stoppable> {
    fn begun(&self, worker: Option<u32>) {
        let number = worker.map_or(0, |worker| worker + 1);
        self.stop().begun.store(number, Ordering::Relaxed);
    }
}

/// What the future of a job is polled with. Whoever wakes it may be a job itself, and keep its thread.
impl<T: Send + 'static> Wake for Job<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.stop.wake() && !self.stop.within.load(Ordering::Relaxed) {
            self.core.nudge();
        }
    }
}

/// What becomes of a result.
enum Slot<T> {
    /// It is not there, and this one waits for it.
    Open(Option<Waker>),
    /// It is not there, and nobody will want it.
    Unwatched,
    Full(Result<T, Reason>),
    Taken,
}

/// A job with a result. Its future is not in here: whoever has a job's future ends the job by dropping it.
pub(crate) struct Job<T> {
    pub(crate) core: Arc<Core>,
    kind: DeviceKind,
    class: Class,
    stop: Stop,
    slot: Mutex<Slot<T>>,
    /// Nobody will want its result. Set before the slot says so.
    unwatched: AtomicBool,
    /// There is something to be called at its end.
    calls_back: bool,
    callback: Mutex<Option<Callback>>,
}

/// What is called once the outcome can be had.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

impl<T: Send> Stoppable for Job<T> {
    fn stop(&self) -> &Stop {
        &self.stop
    }
}

impl<T: Send + 'static> Job<T> {
    pub(crate) fn new(
        core: &Arc<Core>,
        kind: DeviceKind,
        class: Class,
        callback: Option<Callback>,
    ) -> Arc<Self> {
        Arc::new(Job {
            core: Arc::clone(core),
            kind,
            class,
            stop: Stop::new(),
            slot: Mutex::new(Slot::Open(None)),
            unwatched: AtomicBool::new(false),
            calls_back: callback.is_some(),
            callback: Mutex::new(callback),
        })
    }

    pub(crate) fn erased(self: &Arc<Self>) -> Arc<dyn Stoppable> {
        Arc::clone(self) as Arc<dyn Stoppable>
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    pub(crate) fn error(&self, reason: impl Into<Reason>) -> JobError {
        let device = self.core.device.ordinal;
        JobError { device, kind: self.kind, class: self.class, reason: reason.into() }
    }

    /// It was not accepted: what was to be called at its end never is.
    pub(crate) fn refused(&self, refused: Refused) -> JobError {
        let callback = self.callback.lock().take();
        contain(|| drop(callback));
        self.error(refused)
    }

    /// Nobody will want its result.
    pub(crate) fn unwatch(&self) {
        // Relaxed: who does not see it finds it in the slot, later
        self.unwatched.store(true, Ordering::Relaxed);
        let mut slot = self.slot.lock();
        let was = std::mem::replace(&mut *slot, Slot::Unwatched);
        drop(slot);
        // a result, or a waker
        contain(|| drop(was));
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.slot.lock(), Slot::Full(_) | Slot::Taken)
    }

    pub(crate) fn poll_result(&self, cx: &Context<'_>) -> Poll<Result<T, JobError>> {
        let mut fresh = None;
        loop {
            let mut slot = self.slot.lock();
            match &mut *slot {
                Slot::Open(waker) => {
                    if waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                        return Poll::Pending;
                    }
                    let Some(fresh) = fresh.take() else {
                        // a waker's clone is user code, hence not under the lock
                        drop(slot);
                        fresh = Some(cx.waker().clone());
                        continue;
                    };
                    let stale = waker.replace(fresh);
                    drop(slot);
                    drop(stale);
                    return Poll::Pending;
                }
                Slot::Full(_) => {
                    let was = std::mem::replace(&mut *slot, Slot::Taken);
                    drop(slot);
                    let Slot::Full(result) = was else { unreachable!("seen under the lock") };
                    return Poll::Ready(result.map_err(|reason| self.error(reason)));
                }
                Slot::Taken | Slot::Unwatched => {
                    panic!("a job was polled after it had completed")
                }
            }
        }
    }

    /// Drops a result that nobody wants.
    fn discard(&self, result: Result<T, Reason>) -> Option<Result<T, Reason>> {
        if !self.unwatched.load(Ordering::Relaxed) {
            return Some(result);
        }
        worker::end_as(self.core.id.get(), || contain(|| drop(result)));
        None
    }

    fn deliver(&self, result: Result<T, Reason>) {
        let mut slot = self.slot.lock();
        if matches!(*slot, Slot::Unwatched) {
            drop(slot);
            contain(|| drop(result));
            return;
        }
        let was = std::mem::replace(&mut *slot, Slot::Full(result));
        drop(slot);
        if let Slot::Open(Some(waker)) = was {
            contain(|| waker.wake());
        }
    }

    /// Its captures are gone. In this order: a result that nobody wants is dropped, the outcome is told and the permits
    /// return, the result can be had, what is to be called then is called, and the job is no longer counted. `last` when
    /// this thread does nothing more for the job.
    fn finish(&self, result: Result<T, Reason>, outcome: Outcome, last: bool) -> Option<Next> {
        let place = self.stop.place()?;
        let callback = if self.calls_back { self.callback.lock().take() } else { None };
        let result = self.discard(result);
        let leaves = callback.is_none();
        let next = self.core.end(place, outcome, leaves, last && leaves);
        let deliver = || {
            if let Some(result) = result {
                self.deliver(result);
            }
        };
        let pool = self.core.id.get();
        match (callback, &next) {
            (None, None) => deliver(),
            // this thread has the next job already
            (None, Some(_)) => worker::end_as(pool, deliver),
            (Some(callback), _) => {
                worker::end_as(pool, || {
                    deliver();
                    contain(callback);
                });
                self.core.leave(place);
            }
        }
        next
    }

    /// What becomes of it when it is made to end: somebody asked for that, or its runtime goes.
    fn stopped(&self) -> (Reason, Outcome) {
        let asked = self.stop.place().is_some_and(|at| self.core.book(|book| book.was_asked(at)));
        match asked {
            true => (Reason::Cancelled, Outcome::Cancelled),
            false => (Reason::Lost, Outcome::Dropped),
        }
    }
}

/// Whoever has this ends the job.
pub(crate) struct Guard<T: Send + 'static> {
    job: Arc<Job<T>>,
    worker: Option<u32>,
    /// It was polled.
    polled: bool,
    over: bool,
}

impl<T: Send + 'static> Guard<T> {
    /// The job begins on this thread.
    fn start(&mut self) -> Result<(), (Reason, Outcome)> {
        let job = &self.job;
        // nobody wants it any more
        if job.stop.is_aborted() {
            return Err(job.stopped());
        }
        if let Some(worker) = job.stop.begun.load(Ordering::Relaxed).checked_sub(1) {
            // it has begun, and may have come to another thread since; what the job calls says so if that can't be bound
            let _ = job.core.bind();
            self.worker = Some(worker);
            return Ok(());
        }
        job.core.bind().map_err(|error| (Reason::Unbound(error), Outcome::Failed))?;
        self.worker = job.stop.place().and_then(|place| job.core.start(place));
        Ok(())
    }

    pub(crate) fn context(&self) -> DeviceContext {
        let Job { core, kind, stop, .. } = &*self.job;
        let job = Arc::clone(&self.job) as Arc<dyn Stoppable>;
        let id = stop.place().map_or(JobId::new(0), |place| place.id);
        DeviceContext { id, worker: self.worker, device: core.device.ordinal, kind: *kind, job }
    }

    fn run_as<R>(&self, f: impl FnOnce() -> R) -> R {
        worker::run_as(self.job.core.id.get(), self.job.stop.seats(), self.worker, f)
    }

    /// Polls the job's future as the job.
    fn poll<F: Future<Output = T>>(
        &mut self,
        cx: &mut Context<'_>,
        body: Pin<&mut Option<F>>,
    ) -> Poll<Result<T, (Reason, Outcome)>> {
        let core = &self.job.core;
        if std::mem::replace(&mut self.polled, true) && core.is_here() {
            // the device may have been reset since; what the job then calls says so if this can't help it
            let _ = core.bind();
        }
        let body = body.as_pin_mut().expect("polled before it was dropped");
        if self.job.stop.unpark() {
            return Poll::Ready(Err(self.job.stopped()));
        }
        let waker = Waker::from(Arc::clone(&self.job));
        let mut own = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| self.run_as(|| body.poll(&mut own))));
        match polled {
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(payload) => Poll::Ready(Err(panicked(payload))),
            Ok(Poll::Pending) if self.job.stop.park(cx.waker()) => {
                Poll::Ready(Err(self.job.stopped()))
            }
            Ok(Poll::Pending) => Poll::Pending,
        }
    }

    fn finish(mut self, result: Result<T, (Reason, Outcome)>) -> Option<Next> {
        self.over = true;
        let (result, outcome) = match result {
            Ok(value) => (Ok(value), Outcome::Finished),
            Err((reason, outcome)) => (Err(reason), outcome),
        };
        let last = !self.job.stop.within.load(Ordering::Relaxed);
        self.job.finish(result, outcome, last)
    }
}

impl<T: Send + 'static> Drop for Guard<T> {
    fn drop(&mut self) {
        if !self.over {
            let (reason, outcome) = self.job.stopped();
            self.job.finish(Err(reason), outcome, false);
        }
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> (Reason, Outcome) {
    (Reason::Panicked(Panic::new(payload)), Outcome::Panicked)
}

/// Calls `f` and says what it panicked with.
fn attempt<R>(f: impl FnOnce() -> R) -> Result<R, (Reason, Outcome)> {
    catch_unwind(AssertUnwindSafe(f)).map_err(panicked)
}

/// What makes a job, and who ends it: dropped in this order, the first as the job.
struct Whole<M, T: Send + 'static> {
    make: Option<M>,
    guard: Option<Guard<T>>,
}

impl<M, T: Send + 'static> Whole<M, T> {
    fn new(job: Arc<Job<T>>, make: M) -> Self {
        let guard = Guard { job, worker: None, polled: false, over: false };
        Whole { make: Some(make), guard: Some(guard) }
    }
}

impl<M, T: Send + 'static> Drop for Whole<M, T> {
    fn drop(&mut self) {
        if let (Some(make), Some(guard)) = (self.make.take(), &self.guard) {
            contain(|| guard.run_as(|| drop(make)));
        }
    }
}

/// A job's future, and who ends the job: dropped in this order, the first as the job.
struct Body<'a, F: Future<Output = T>, T: Send + 'static> {
    future: Pin<&'a mut Option<F>>,
    guard: Option<Guard<T>>,
}

impl<F: Future<Output = T>, T: Send + 'static> Body<'_, F, T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, (Reason, Outcome)>> {
        let guard = self.guard.as_mut().expect("polled before it has ended");
        guard.poll(cx, self.future.as_mut())
    }

    fn finish(mut self, result: Result<T, (Reason, Outcome)>) -> Option<Next> {
        let guard = self.guard.take()?;
        match attempt(|| guard.run_as(|| self.future.set(None))) {
            Ok(()) => guard.finish(result),
            // it has panicked then, whatever it returned
            Err(panicked) => {
                contain(|| drop(result));
                guard.finish(Err(panicked))
            }
        }
    }
}

impl<F: Future<Output = T>, T: Send + 'static> Drop for Body<'_, F, T> {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            contain(|| guard.run_as(|| self.future.set(None)));
        }
    }
}

/// An async job as a task. `make` is called on the worker where it begins.
pub(crate) fn task<M, F, T>(job: &Arc<Job<T>>, make: M) -> Task
where
    M: FnOnce(&Guard<T>) -> F + Send + 'static,
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let mut whole = Whole::new(Arc::clone(job), make);
    Box::pin(async move {
        let whole = &mut whole;
        let (mut guard, make) = (whole.guard.take()?, whole.make.take()?);
        if let Err(ended) = guard.start() {
            contain(|| guard.run_as(|| drop(make)));
            return guard.finish(Err(ended));
        }
        match attempt(|| guard.run_as(|| make(&guard))) {
            Err(ended) => guard.finish(Err(ended)),
            Ok(future) => {
                let future = pin!(Some(future));
                let mut body = Body { future, guard: Some(guard) };
                let result = std::future::poll_fn(|cx| body.poll(cx)).await;
                body.finish(result)
            }
        }
    })
}

/// A blocking job as a closure, which ends the job when it is called or dropped.
pub(crate) fn closure<M, T>(
    job: &Arc<Job<T>>,
    make: M,
) -> impl FnOnce() + Send + 'static + use<M, T>
where
    M: FnOnce(&Guard<T>) -> T + Send + 'static,
    T: Send + 'static,
{
    let whole = Whole::new(Arc::clone(job), make);
    move || {
        // as a whole, so that it is dropped in its order
        let mut whole = whole;
        let (Some(mut guard), Some(make)) = (whole.guard.take(), whole.make.take()) else { return };
        let result = match guard.start() {
            Err(ended) => {
                contain(|| guard.run_as(|| drop(make)));
                Err(ended)
            }
            Ok(()) => attempt(|| guard.run_as(|| make(&guard))),
        };
        let next = guard.finish(result);
        debug_assert!(next.is_none(), "a blocking job has no seat to hand on");
    }
}

/// What a job knows of itself. Clones are the same job's.
#[derive(Clone)]
pub struct DeviceContext {
    id: JobId,
    worker: Option<u32>,
    device: u32,
    kind: DeviceKind,
    job: Arc<dyn Stoppable>,
}

impl DeviceContext {
    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }

    /// The worker that it has until it ends, from 0; nobody else has it meanwhile, but for jobs that run within this one.
    /// `None` for a blocking job, for one within that, and for one within a task that a job spawned while no seat was free.
    #[must_use]
    pub fn worker(&self) -> Option<u32> {
        self.worker
    }

    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The job's kind.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Cancelled when somebody wants the job to end: its await was dropped, it was cancelled, its scope asks for that, or
    /// the runtime ends. Async jobs are dropped at their next await, except on behalf of a scope; blocking ones have to look.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.job.stop().token()
    }
}

impl fmt::Debug for DeviceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceContext")
            .field("id", &self.id)
            .field("worker", &self.worker)
            .field("device", &self.device)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
