//! The acquire future and the permit, over whoever owns the lock.

use super::{Attempt, Cause, Claim, Entered, GroupId, Key, Outcome, Request, State, Tick};
use crate::budget::Change;
use crate::deadline::Deadline;
use crate::error::{AcquireError, BuildError, NoTimer, TryAcquireError};
use crate::job::{JobInfo, JobName};
use crate::scope::{LeaseRef, Operation};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Owner of the lock around a [`State`].
pub trait Engine: Send + Sync + 'static {
    /// What waits: at least the waker of an acquire.
    type Waiter: Send + 'static;

    /// A waiter that is an acquire.
    fn wrap(waker: Waker) -> Self::Waiter;

    /// The waker in a waiter that is an acquire, `None` for any other.
    fn waker(waiter: &mut Self::Waiter) -> Option<&mut Waker>;

    /// Locks the state and calls `f`; takes what was settled, then what is to be [told](State::next_told); unlocks; then
    /// wakes and tells whom it must, and has the timer call in time for [`State::next_deadline`], when the
    /// [`Alarm`](super::Alarm) says that it has to be asked. `f` runs no user code.
    fn with<R>(&self, f: impl FnOnce(&mut State<Self::Waiter>) -> R) -> R;

    /// The present. Called under the lock at times: it must not take one that is held around [`with`](Self::with).
    fn now(&self) -> Tick;

    /// A deadline in the engine's ticks.
    fn tick(&self, deadline: Deadline) -> Tick;

    /// Makes sure that a wait under a deadline will be ended in time.
    ///
    /// # Errors
    ///
    /// [`NoTimer`] when nothing could end it.
    fn prepare_timer(&self) -> Result<(), NoTimer>;

    /// Admits nothing more for `group`, and refuses who waits in it, but for what is under a lease unless `leased` says so.
    fn close_group(&self, group: GroupId, leased: bool) {
        self.with(|state| {
            // whose time is up leaves as such
            state.advance(self.now());
            state.close_group(group, leased);
        });
    }

    /// Asks what runs in `group`, and what starts later, to stop; work under a lease only if `leased` says so. Returns how
    /// many were asked now. Only for an engine that runs something.
    fn cancel_group(&self, group: GroupId, leased: bool) -> u64 {
        let _ = (group, leased);
        0
    }

    /// Makes the deadline of a group earlier, for whatever is in it.
    fn tighten_group(&self, group: GroupId, deadline: Tick) {
        // for waits that are under way; without a timer they end with the first call after their time
        let _ = self.prepare_timer();
        self.with(|state| {
            state.tighten_group(group, deadline, |_| {});
            state.advance(self.now());
        });
    }

    /// The jobs in `group`. Only for an engine that has jobs.
    fn jobs_in(&self, group: GroupId) -> Vec<JobInfo> {
        let _ = group;
        Vec::new()
    }
}

/// A budget that can be resized, whoever its engine is.
pub trait Resizable {
    /// Puts `change` into effect, all of it or nothing.
    ///
    /// # Errors
    ///
    /// As for a build, and when a lane is named that is not there.
    fn resize(&self, change: &Change) -> Result<(), BuildError>;
}

impl<E: Engine> Resizable for E {
    fn resize(&self, change: &Change) -> Result<(), BuildError> {
        if change.sets_timeout() {
            // for waits that are under way; without a timer they end with the first call after their time
            let _ = self.prepare_timer();
        }
        self.with(|state| {
            let mut lanes = state.configs();
            change.apply_to(&mut lanes)?;
            let capacity = change.capacity.unwrap_or(state.capacity());
            state.resize(capacity, lanes, || self.now())
        })
    }
}

/// The owned right to run. Dropping it returns it, on any thread.
pub struct Permit<E: Engine> {
    engine: Arc<E>,
    claim: Claim,
    /// Ends once the permit is back.
    operation: Option<Operation>,
}

impl<E: Engine> Permit<E> {
    /// Takes charge of `claim`, which is out and which nobody else answers for, and of the operation under which it is.
    pub fn adopt(engine: Arc<E>, claim: Claim, operation: Option<Operation>) -> Self {
        Permit { engine, claim, operation }
    }

    /// What it takes.
    pub fn claim(&self) -> Claim {
        self.claim
    }

    /// How much it takes of the capacity, 1 or more.
    pub fn weight(&self) -> u64 {
        self.claim.weight
    }

    /// Whose permit it is.
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// Gives up charge without returning it: the caller answers for it now.
    pub fn disarm(mut self) -> (Arc<E>, Claim, Option<Operation>) {
        let claim = self.claim;
        self.claim.weight = 0;
        (Arc::clone(&self.engine), claim, self.operation.take())
    }
}

impl<E: Engine> Drop for Permit<E> {
    fn drop(&mut self) {
        if self.claim.weight > 0 {
            let engine = &self.engine;
            engine.with(|state| state.release(&self.claim, || engine.now()));
        }
    }
}

impl<E: Engine> fmt::Debug for Permit<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// Begins an operation under `lease` and makes `request` part of it. `name` is what reports call the operation.
///
/// # Errors
///
/// Why it may not begin, counted once.
pub fn begin<E: Engine>(
    engine: &E,
    request: &mut Request,
    lease: &LeaseRef,
    name: JobName,
) -> Result<Operation, Cause> {
    match lease.begin(name) {
        Ok(operation) => {
            request.leased = true;
            request.deadline = request.deadline.min(engine.tick(lease.deadline()));
            Ok(operation)
        }
        Err(cause) => {
            engine.with(|state| state.count_refused(request, cause));
            Err(cause)
        }
    }
}

/// Takes a permit without waiting.
///
/// # Errors
///
/// Why there is none, counted once.
pub fn try_acquire<E: Engine>(
    engine: &Arc<E>,
    request: Request,
) -> Result<Permit<E>, TryAcquireError> {
    try_acquire_under(engine, request, None, State::try_acquire_error)
}

/// Takes a permit without waiting, for an operation that was [begun](begin) for `request`.
///
/// # Errors
///
/// Why there is none, counted once, as `error` puts it: [`State::try_acquire_error`], or [`State::acquire_error`].
pub fn try_acquire_under<E: Engine, X>(
    engine: &Arc<E>,
    request: Request,
    mut operation: Option<Operation>,
    error: impl FnOnce(&State<E::Waiter>, &Request, Cause) -> X,
) -> Result<Permit<E>, X> {
    engine.with(|state| {
        let cause = match state.try_acquire(&request, || engine.now()) {
            Attempt::Granted => return Ok(()),
            Attempt::Refused(cause) => cause,
            Attempt::Wait => {
                state.count_refusal(request.lane, Cause::Busy);
                Cause::Busy
            }
        };
        Err(error(state, &request, cause))
    })?;
    operation.iter_mut().for_each(Operation::start);
    Ok(Permit::adopt(Arc::clone(engine), request.claim(), operation))
}

/// A permit to come.
///
/// Does nothing before its first poll. Dropping it is safe at any time: a waiting one leaves its queue in O(1), and the
/// permit of one that was granted goes to the next waiter.
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire<E: Engine> {
    engine: Arc<E>,
    request: Request,
    lease: Option<(LeaseRef, JobName)>,
    /// Begun at the first poll, if there is a lease.
    operation: Option<Operation>,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Fresh,
    Queued(Key),
    Done,
}

impl<E: Engine> Acquire<E> {
    /// An acquire that asks for `request`.
    pub fn new(engine: Arc<E>, request: Request) -> Self {
        Acquire { engine, request, lease: None, operation: None, at: At::Fresh }
    }

    /// Makes it an operation under `lease`, which a report calls `name`. Without effect once it was polled.
    pub fn set_lease(&mut self, lease: LeaseRef, name: JobName) {
        self.lease = Some((lease, name));
    }

    /// The lease, and what a report calls the operation.
    pub fn lease(&self) -> Option<&(LeaseRef, JobName)> {
        self.lease.as_ref()
    }

    /// What it asks for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Asks for something else. Without effect once it was polled.
    pub fn set_request(&mut self, request: Request) {
        if self.at == At::Fresh {
            self.request = request;
        }
    }

    /// Whose permit it is going to be.
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    fn permit(&mut self) -> Permit<E> {
        let mut operation = self.operation.take();
        operation.iter_mut().for_each(Operation::start);
        Permit::adopt(Arc::clone(&self.engine), self.request.claim(), operation)
    }

    fn start(&mut self, waker: &Waker) -> Poll<Result<Permit<E>, AcquireError>> {
        if let Some((lease, name)) = self.lease.take() {
            match begin(&*self.engine, &mut self.request, &lease, name) {
                Ok(operation) => self.operation = Some(operation),
                Err(cause) => {
                    let request = self.request;
                    let error = self.engine.with(|state| state.acquire_error(&request, cause));
                    return self.finish(Err(error));
                }
            }
        }
        let (engine, request) = (Arc::clone(&self.engine), self.request);
        let now = || engine.now();
        let first = engine.with(|state| match state.try_acquire(&request, now) {
            Attempt::Granted => Ok(None),
            Attempt::Wait => Ok(Some(state.needs_timer(&request))),
            Attempt::Refused(cause) => Err(state.acquire_error(&request, cause)),
        });
        let needs_timer = match first {
            Ok(Some(needs_timer)) => needs_timer,
            Ok(None) => {
                let permit = self.permit();
                return self.finish(Ok(permit));
            }
            Err(error) => return self.finish(Err(error)),
        };
        if needs_timer && engine.prepare_timer().is_err() {
            let error = engine.with(|state| {
                state.count_refusal(request.lane, Cause::NoTimer);
                state.acquire_error(&request, Cause::NoTimer)
            });
            return self.finish(Err(error));
        }
        // a waker's clone is user code, hence not under the lock
        let waiter = E::wrap(waker.clone());
        let entered = engine.with(|state| match state.enter(&request, waiter, now) {
            Entered::Granted(waiter) => (Ok(None), Some(waiter)),
            Entered::Queued(key) => (Ok(Some(key)), None),
            Entered::Refused(cause, waiter) => {
                (Err(state.acquire_error(&request, cause)), Some(waiter))
            }
        });
        match entered.0 {
            Ok(Some(key)) => {
                self.at = At::Queued(key);
                Poll::Pending
            }
            Ok(None) => {
                let permit = self.permit();
                self.finish(Ok(permit))
            }
            Err(error) => self.finish(Err(error)),
        }
    }

    fn finish(
        &mut self,
        result: Result<Permit<E>, AcquireError>,
    ) -> Poll<Result<Permit<E>, AcquireError>> {
        self.at = At::Done;
        // that of a refusal gives its allowance back
        self.operation = None;
        Poll::Ready(result)
    }

    fn look(&mut self, key: Key, waker: &Waker) -> Poll<Result<Permit<E>, AcquireError>> {
        let request = self.request;
        const MINE: &str = "an engine leaves the waiter of an acquire to the acquire";
        let mut fresh: Option<Waker> = None;
        loop {
            // what must be dropped outside the lock: the waiter of one that is settled, or a waker that was replaced
            let mut stale = (None, None);
            let seen = self.engine.with(|state| {
                if let Some((outcome, waiter)) = state.collect(key) {
                    stale.0 = waiter;
                    return Some(Ok(match outcome {
                        Outcome::Granted => Ok(()),
                        Outcome::Refused(cause) => Err(state.acquire_error(&request, cause)),
                    }));
                }
                let held = state.waiter_mut(key).and_then(E::waker).expect(MINE);
                if !held.will_wake(waker) {
                    let fresh = fresh.take()?;
                    stale.1 = Some(std::mem::replace(held, fresh));
                }
                Some(Err(()))
            });
            match seen {
                Some(Ok(Ok(()))) => {
                    let permit = self.permit();
                    return self.finish(Ok(permit));
                }
                Some(Ok(Err(error))) => return self.finish(Err(error)),
                Some(Err(())) => return Poll::Pending,
                None => fresh = Some(waker.clone()),
            }
        }
    }
}

impl<E: Engine> Future for Acquire<E> {
    type Output = Result<Permit<E>, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.at {
            At::Fresh => self.start(cx.waker()),
            At::Queued(key) => self.look(key, cx.waker()),
            At::Done => panic!("an acquire was polled after it had completed"),
        }
    }
}

impl<E: Engine> Drop for Acquire<E> {
    fn drop(&mut self) {
        if let At::Queued(key) = self.at {
            let engine = &self.engine;
            let _waiter = engine.with(|state| state.cancel(key, || engine.now()));
        }
    }
}

impl<E: Engine> fmt::Debug for Acquire<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("request", &self.request).finish_non_exhaustive()
    }
}
