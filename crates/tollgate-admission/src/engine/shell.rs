//! The acquire future and the permit, over whoever owns the lock.

use super::{Attempt, Cause, Entered, Key, LaneId, Outcome, Request, State, Tick};
use crate::budget::Change;
use crate::deadline::Deadline;
use crate::error::{AcquireError, BuildError, NoTimer, TryAcquireError};
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

    /// Locks the state and calls `f`; takes what was settled; unlocks; then wakes whom it must, and has the timer call
    /// at [`State::next_deadline`], if the [`Alarm`](super::Alarm) says that it has to be asked. `f` runs no user code.
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
    lane: LaneId,
    weight: u64,
}

impl<E: Engine> Permit<E> {
    /// Takes charge of `weight` permits that are out of `lane` and that nobody else answers for.
    pub fn adopt(engine: Arc<E>, lane: LaneId, weight: u64) -> Self {
        Permit { engine, lane, weight }
    }

    /// The lane it came from.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// How much it takes of the capacity, 1 or more.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Whose permit it is.
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// Gives up charge without returning it: the caller answers for the permits now.
    pub fn disarm(mut self) -> (Arc<E>, LaneId, u64) {
        let weight = std::mem::replace(&mut self.weight, 0);
        (Arc::clone(&self.engine), self.lane, weight)
    }
}

impl<E: Engine> Drop for Permit<E> {
    fn drop(&mut self) {
        if self.weight > 0 {
            let engine = &self.engine;
            engine.with(|state| state.release(self.lane, self.weight, || engine.now()));
        }
    }
}

impl<E: Engine> fmt::Debug for Permit<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Permit");
        out.field("lane", &self.lane).field("weight", &self.weight).finish_non_exhaustive()
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
    engine.with(|state| {
        let cause = match state.try_acquire(&request, || engine.now()) {
            Attempt::Granted => return Ok(()),
            Attempt::Refused(cause) => cause,
            Attempt::Wait => {
                state.count_refusal(request.lane, Cause::Busy);
                Cause::Busy
            }
        };
        Err(state.try_acquire_error(&request, cause))
    })?;
    Ok(Permit::adopt(Arc::clone(engine), request.lane, request.weight))
}

/// A permit to come.
///
/// Does nothing before its first poll. Dropping it is safe at any time: a waiting one leaves its queue in O(1), and the
/// permit of one that was granted goes to the next waiter.
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire<E: Engine> {
    engine: Arc<E>,
    request: Request,
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
        Acquire { engine, request, at: At::Fresh }
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

    fn permit(&self) -> Permit<E> {
        Permit::adopt(Arc::clone(&self.engine), self.request.lane, self.request.weight)
    }

    fn start(&mut self, waker: &Waker) -> Poll<Result<Permit<E>, AcquireError>> {
        let (engine, request) = (&self.engine, self.request);
        let now = || engine.now();
        let first = engine.with(|state| match state.try_acquire(&request, now) {
            Attempt::Granted => Ok(None),
            Attempt::Wait => Ok(Some(state.needs_timer(&request))),
            Attempt::Refused(cause) => Err(state.acquire_error(&request, cause)),
        });
        let needs_timer = match first {
            Ok(Some(needs_timer)) => needs_timer,
            Ok(None) => return self.finish(Ok(self.permit())),
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
            Ok(None) => self.finish(Ok(self.permit())),
            Err(error) => self.finish(Err(error)),
        }
    }

    fn finish(
        &mut self,
        result: Result<Permit<E>, AcquireError>,
    ) -> Poll<Result<Permit<E>, AcquireError>> {
        self.at = At::Done;
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
                Some(Ok(Ok(()))) => return self.finish(Ok(self.permit())),
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
