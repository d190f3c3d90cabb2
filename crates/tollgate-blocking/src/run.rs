//! The future of a job that somebody waits for.

use crate::cell::Watch;
use crate::core::{Core, Inline, Link};
use crate::error::{RunError, SubmitError};
use crate::worker;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_admission::engine::{self, Engine, Key, LeaseRef, Operation, Permit};

/// How a job is going to get its permit.
pub(crate) enum Way {
    /// In its turn, and under this lease if there is one.
    Admission(Option<LeaseRef>),
    /// It is out already, for this operation if it came under a lease. Whoever has this answers for it.
    Held(Option<Box<Operation>>),
}

/// Where an accepted job went.
pub(crate) enum Accepted {
    /// The pool has it; under this key, if it was queued.
    Pool(Option<Key>),
    /// It has run, on this very thread.
    Inline,
}

/// Hands a job to the pool. When it is refused, its closure is gone before the error is returned. With `awaited`, whoever
/// submits it is about to wait for it.
pub(crate) fn submit<R>(
    core: &Arc<Core>,
    cell: &Arc<dyn Watch<R>>,
    way: Way,
    awaited: bool,
) -> Result<Accepted, SubmitError> {
    match way {
        Way::Held(operation) => {
            let operation = operation.map(|boxed| *boxed);
            if let Err((error, operation)) = core.submit_held(Arc::clone(cell) as _, operation) {
                give_up(core, cell, operation);
                return Err(error);
            }
            // should the job here wait for it, nobody else may come to run it
            Ok(if help(core, cell, awaited) { Accepted::Inline } else { Accepted::Pool(None) })
        }
        Way::Admission(lease) => {
            submit_in_turn(core, cell, lease.as_ref()).inspect_err(|_| cell.discard())
        }
    }
}

/// Runs a job that waits for a thread, if this is called within a job of the same pool, and says whether it did: with
/// `always`, since that one is about to wait for it and no other thread may ever come; else only if the system refuses
/// threads.
fn help<R>(core: &Arc<Core>, cell: &Arc<dyn Watch<R>>, always: bool) -> bool {
    if let Some(id) = worker::current(core)
        && let Some(inline) = core.take_back(id, &(Arc::clone(cell) as _), always)
    {
        run_here(core, cell, id, &inline);
        return true;
    }
    false
}

/// The result, if it is there. Called within a job of the same pool, which is about to wait for it, runs what waits for a
/// thread: see [`help`].
pub(crate) fn look<R>(
    core: &Arc<Core>,
    cell: &Arc<dyn Watch<R>>,
    waker: &Waker,
) -> Poll<Result<R, RunError>> {
    let result = cell.poll(core, waker);
    if result.is_pending() && help(core, cell, true) {
        return cell.poll(core, waker);
    }
    result
}

/// Drops the captures of a job that was not handed to the pool; then its permit returns.
fn give_up<R>(core: &Arc<Core>, cell: &Arc<dyn Watch<R>>, operation: Option<Operation>) {
    cell.discard();
    drop(Permit::adopt(Arc::clone(core), cell.header().claim(), operation));
}

fn submit_in_turn<R>(
    core: &Arc<Core>,
    cell: &Arc<dyn Watch<R>>,
    lease: Option<&LeaseRef>,
) -> Result<Accepted, SubmitError> {
    let header = cell.header();
    let refused = |cause| core.with(|state| state.acquire_error(&header.request(), cause));
    let _pinned = core.let_in(&header.request(), header.kind, lease).map_err(refused)?;
    let operation = match lease {
        None => None,
        Some(lease) => {
            let (mut request, name) = (header.request(), header.name.clone());
            let operation = engine::begin(&**core, &mut request, lease, name).map_err(refused)?;
            // the lease's deadline may have become earlier since the job was made
            header.tighten(request.deadline);
            Some(operation)
        }
    };
    match worker::current(core) {
        None => core.submit(Arc::clone(cell) as _, operation).map(Accepted::Pool),
        Some(id) => run_inline(core, cell, id, operation).map(|()| Accepted::Inline),
    }
}

/// Runs a job that was submitted from worker `id` on that worker: waiting there for its own pool could deadlock it.
fn run_inline<R>(
    core: &Arc<Core>,
    cell: &Arc<dyn Watch<R>>,
    id: usize,
    operation: Option<Operation>,
) -> Result<(), SubmitError> {
    let job = Arc::clone(cell) as _;
    let held = worker::held(cell.header().lane());
    let inline = core.enter_inline(id, &job, held, operation)?;
    run_here(core, cell, id, &inline);
    Ok(())
}

/// Runs a job on worker `id`, within the one that runs there, or refuses it there if it has expired.
fn run_here<R>(core: &Arc<Core>, cell: &Arc<dyn Watch<R>>, id: usize, inline: &Inline) {
    // the outer closure may have entered another runtime
    let _runtime = core.owner.enter();
    let mut ended = (None, None);
    worker::hold(&cell.header().claim());
    cell.run(core, inline.expired, &mut |ending| {
        worker::let_go();
        ended = core.leave_inline(id, inline, ending);
    });
    if let Some(slow) = ended.1 {
        worker::warn(core, cell.header(), slow);
    }
}

/// The future of [`Executor::run`](crate::Executor::run): the result of a closure to come.
///
/// The closure was boxed when it was given, so this is small whatever the closure captures. Nothing is admitted, counted
/// or timed before the first poll. Any executor may poll it, with or without timers of its own. Its waker is called on a
/// thread of the pool, which does nothing else until that returns: one that blocks there may hold up other jobs.
///
/// # Errors
///
/// [`RunError`]: refusals at once, the rest when it happens.
///
/// # Cancel safety
///
/// Dropping it says that nobody wants the job any more. While the job waits, its closure is dropped and it leaves the
/// queue at once. While the closure runs, it is asked to stop, keeps its permit until it returns, and is reported as
/// abandoned. Hold a [`Ticket`](crate::Ticket) instead to let the work go on.
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "a job does nothing until it is awaited"]
pub struct Run<R> {
    core: Link,
    cell: Arc<dyn Watch<R>>,
    at: At,
}

enum At {
    Fresh(Way),
    Sent(Option<Key>),
    Done,
}

impl<R> Run<R> {
    pub(crate) fn new(core: Link, cell: Arc<dyn Watch<R>>, way: Way) -> Self {
        Run { core, cell, at: At::Fresh(way) }
    }

    fn start(&mut self, way: Way, waker: &Waker) -> Poll<Result<R, RunError>> {
        match submit(&self.core, &self.cell, way, true) {
            Ok(Accepted::Pool(key)) => {
                self.at = At::Sent(key);
                Poll::Pending
            }
            Ok(Accepted::Inline) => self.look(waker),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    fn look(&mut self, waker: &Waker) -> Poll<Result<R, RunError>> {
        let result = look(&self.core, &self.cell, waker);
        if result.is_ready() {
            self.at = At::Done;
        }
        result
    }
}

impl<R> Future for Run<R> {
    type Output = Result<R, RunError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let At::Fresh(way) = &self.at
            && (matches!(way, Way::Held(_)) || worker::current(&self.core).is_none())
        {
            // a waker's clone may panic: this answers for the permit until that is done
            self.cell.prime(cx.waker().clone());
        }
        match std::mem::replace(&mut self.at, At::Done) {
            At::Fresh(way) => self.start(way, cx.waker()),
            At::Sent(key) => {
                self.at = At::Sent(key);
                self.look(cx.waker())
            }
            At::Done => panic!("a job was polled after it had completed"),
        }
    }
}

impl<R> Drop for Run<R> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.at, At::Done) {
            At::Sent(key) if self.cell.leave(&self.core, true) => {
                self.core.withdraw(&(Arc::clone(&self.cell) as _), key);
            }
            At::Fresh(Way::Held(operation)) => {
                give_up(&self.core, &self.cell, operation.map(|boxed| *boxed));
            }
            _ => {}
        }
    }
}

impl<R> fmt::Debug for Run<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("name", &self.cell.header().name).finish_non_exhaustive()
    }
}
