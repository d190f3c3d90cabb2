//! The way in.

use crate::cell::{self, Header, Watch};
use crate::context::JobContext;
use crate::core::{Core, Link};
use crate::error::SubmitError;
use crate::pool::Handle;
use crate::run::{Accepted, Run, Way, submit};
use crate::ticket::Ticket;
use crate::worker;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_admission::engine::{self, Bound, Claim, Engine, LaneId, LeaseRef, Request, State};
use tollgate_admission::{
    AcquireError, Deadline, DrainLease, JobKind, JobName, Scope, TryAcquireError,
};

/// A handle to one lane of a pool. Clones are cheap and share everything.
///
/// While an executor lives, its pool stays open; see [`BlockingPool`](crate::BlockingPool) for what happens when the last
/// handle goes.
pub struct Executor {
    handle: Arc<Handle>,
    link: Link,
    lane: LaneId,
}

impl Clone for Executor {
    fn clone(&self) -> Self {
        Executor { handle: Arc::clone(&self.handle), link: self.link.renewed(), lane: self.lane }
    }
}

impl Executor {
    pub(crate) fn new(handle: Arc<Handle>, lane: LaneId) -> Self {
        let link = Link::for_executor(handle.core());
        Executor { handle, link, lane }
    }

    fn core(&self) -> &Arc<Core> {
        &self.link
    }

    fn bind(&self, scope: &Scope) -> Link {
        let name = Arc::clone(self.core().lane_name(self.lane));
        Link::for_scope(Arc::new(Bound::new(self.core(), scope, name)))
    }

    /// This executor for work of `scope`, in place of the scope that it was for.
    ///
    /// Its jobs and acquires are refused once the scope is closed, and those that wait then are refused at once. The
    /// scope's deadline covers them, cancelling the scope asks them to stop, and the scope is not closed before they have
    /// ended. Work that is under way stays with the scope if this is dropped.
    ///
    /// Keep the executor: making one registers it with the scope, a job that comes through it then costs nothing more.
    #[must_use]
    pub fn scoped(&self, scope: &Scope) -> Executor {
        Executor { handle: Arc::clone(&self.handle), link: self.bind(scope), lane: self.lane }
    }

    /// The lane's name.
    #[must_use]
    pub fn lane(&self) -> &str {
        self.core().lane_name(self.lane)
    }

    /// Starts a description of a job. What is not said is: [`JobKind::SHORT_IO`], weight 1, no deadline of its own.
    pub fn job(&self, name: impl Into<JobName>) -> JobBuilder<'_> {
        JobBuilder { executor: self, scoped: None, options: Options::new(name.into()) }
    }

    fn unnamed(&self) -> JobBuilder<'_> {
        self.job("unnamed")
    }

    /// Runs `f` on a thread of the pool. Short for [`job("unnamed").run(f)`](JobBuilder::run).
    pub fn run<F, R>(&self, f: F) -> Run<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.unnamed().run(f)
    }

    /// Hands `f` to the pool. Short for [`job("unnamed").submit(f)`](JobBuilder::submit).
    ///
    /// # Errors
    ///
    /// [`SubmitError`], at once.
    pub fn submit<F, R>(&self, f: F) -> Result<Ticket<R>, SubmitError>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.unnamed().submit(f)
    }

    /// A permit, when it is this caller's turn; work to run under it comes later. Short for
    /// [`job("unnamed").acquire()`](JobBuilder::acquire).
    pub fn acquire(&self) -> Acquire {
        self.unnamed().acquire()
    }

    /// A permit, if it can be had without waiting. Short for [`job("unnamed").try_acquire()`](JobBuilder::try_acquire).
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Busy`] also when a permit is free but others wait for it.
    pub fn try_acquire(&self) -> Result<Permit, TryAcquireError> {
        self.unnamed().try_acquire()
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("lane", &self.lane()).finish_non_exhaustive()
    }
}

/// What a job is to be like.
#[derive(Clone, Debug)]
struct Options {
    name: JobName,
    kind: JobKind,
    weight: u64,
    deadline: Deadline,
    lease: Option<LeaseRef>,
}

impl Options {
    fn new(name: JobName) -> Self {
        let (kind, deadline) = (JobKind::default(), Deadline::never());
        Options { name, kind, weight: 1, deadline, lease: None }
    }

    /// The earliest of its own deadline and its lease's.
    #[inline]
    fn deadline(&self) -> Deadline {
        let lease = self.lease.as_ref().map_or(Deadline::never(), LeaseRef::deadline);
        self.deadline.earliest(lease)
    }
}

/// A job in the making: options first, then one call that says what to do.
///
/// ```
/// # let rt = tokio::runtime::Runtime::new().unwrap();
/// # let pool = tollgate_blocking::BlockingPool::builder(rt.handle().clone())
/// #     .capacity(2)
/// #     .lane(tollgate_blocking::LanePolicy::new("cpu"))
/// #     .build()
/// #     .unwrap();
/// # let cpu = pool.executor("cpu").unwrap();
/// # rt.block_on(async move {
/// use std::time::Duration;
/// use tollgate_blocking::{Deadline, JobKind};
///
/// let digest = cpu
///     .job("digest")
///     .kind(JobKind::CPU_BOUND)
///     .deadline(Deadline::after(Duration::from_secs(2)))
///     .run(|| (0..1000_u64).sum::<u64>())
///     .await?;
/// assert_eq!(digest, 499_500);
/// # Ok::<_, tollgate_blocking::RunError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until it is run or submitted"]
pub struct JobBuilder<'a> {
    executor: &'a Executor,
    /// In place of the executor's, if it is for a scope of its own.
    scoped: Option<Link>,
    options: Options,
}

impl JobBuilder<'_> {
    /// What sort of work it is, for reports.
    pub fn kind(mut self, kind: JobKind) -> Self {
        self.options.kind = kind;
        self
    }

    /// By when it must have ended; the earliest one given counts. A job that is not started by then never is. One that
    /// runs then is treated as by the lane's task timeout.
    pub fn deadline(mut self, deadline: impl Into<Deadline>) -> Self {
        self.options.deadline = self.options.deadline.earliest(deadline.into());
        self
    }

    /// How many permits it takes, 1 or more. It takes one thread whatever its weight.
    pub fn weight(mut self, permits: u64) -> Self {
        self.options.weight = permits;
        self
    }

    /// The scope that it belongs to, in place of the executor's; see [`Executor::scoped`], which costs less where many
    /// jobs belong to one scope. Without effect on a job under a [lease](Self::lease), which belongs to the lease's scope.
    pub fn scope(mut self, scope: &Scope) -> Self {
        if self.options.lease.is_none() {
            self.scoped = Some(self.executor.bind(scope));
        }
        self
    }

    /// Makes it an operation under `lease`, and part of the lease's scope: it is admitted also while the scope drains,
    /// waits for its turn however many wait, and must have ended by the lease's deadline. The allowance is taken when it
    /// is submitted, and given back if its closure never starts.
    pub fn lease(mut self, lease: &DrainLease) -> Self {
        if self.link().scope() != Some(lease.scope()) {
            self.scoped = Some(self.executor.bind(lease.scope()));
        }
        self.options.lease = Some(lease.by_ref());
        self
    }

    /// Runs `f` on a thread of the pool, in this lane's turn.
    ///
    /// Submitted from inside a job of the same pool, it runs right there: in the same lane under the permit that the job
    /// holds, in another lane if a permit is free. If the job waits for it within `block_on` of a runtime, tokio lets it
    /// block on no other.
    pub fn run<F, R>(self, f: F) -> Run<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.run_with(move |_| f())
    }

    /// Like [`run`](Self::run), for a closure that looks at its [context](JobContext).
    pub fn run_with<F, R>(self, f: F) -> Run<R>
    where
        F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let (link, cell, way) = self.make(f);
        Run::new(link, cell, way)
    }

    /// Hands `f` to the pool, from async code or from a plain thread. The answer is immediate: it is accepted, to run now
    /// or in its turn, or refused.
    ///
    /// Submitted from inside a job of the same pool, it has run when this returns; see [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// [`SubmitError`]; `f` has been dropped then.
    pub fn submit<F, R>(self, f: F) -> Result<Ticket<R>, SubmitError>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.submit_with(move |_| f())
    }

    /// Like [`submit`](Self::submit), for a closure that looks at its [context](JobContext).
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn submit_with<F, R>(self, f: F) -> Result<Ticket<R>, SubmitError>
    where
        F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let (link, cell, way) = self.make(f);
        let key = match submit(&link, &cell, way, false)? {
            Accepted::Pool(key) => key,
            Accepted::Inline => None,
        };
        Ok(Ticket::new(link, cell, key))
    }

    /// The job, how it holds on to its pool, and how it is going to get its permit.
    fn make<F, R>(self, f: F) -> (Link, Arc<dyn Watch<R>>, Way)
    where
        F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let request = self.request();
        let link = self.scoped.unwrap_or_else(|| self.executor.link.clone());
        let Options { name, kind, lease, .. } = self.options;
        let cell = cell::new(f, Header::new(name, kind, &request), link.spans);
        (link, cell, Way::Admission(lease))
    }

    fn link(&self) -> &Link {
        self.scoped.as_ref().unwrap_or(&self.executor.link)
    }

    fn request(&self) -> Request {
        let link = self.link();
        Request {
            deadline: link.tick(self.options.deadline()),
            group: link.group(),
            leased: self.options.lease.is_some(),
            ..Request::new(self.executor.lane, self.options.weight)
        }
    }

    /// A permit with these options, when it is this caller's turn. The deadline covers the wait, and then the work.
    ///
    /// From inside a job of the same pool it does not wait, since the job may hold what it would wait for: when no permit
    /// is free, it is refused as [`AcquireError::Busy`].
    pub fn acquire(self) -> Acquire {
        let mut inner = engine::Acquire::new(Arc::clone(self.executor.core()), self.request());
        if let Some(lease) = &self.options.lease {
            inner.set_lease(lease.clone(), self.options.name.clone());
        }
        let link = self.scoped.unwrap_or_else(|| self.executor.link.clone());
        Acquire { inner, link, options: Some(self.options), polled: false }
    }

    /// A permit with these options, if it can be had without waiting.
    ///
    /// # Errors
    ///
    /// As [`Executor::try_acquire`].
    pub fn try_acquire(self) -> Result<Permit, TryAcquireError> {
        let core = self.executor.core();
        let mut request = self.request();
        let Options { name, kind, lease, .. } = &self.options;
        let refused =
            |request: &Request, cause| core.with(|state| state.try_acquire_error(request, cause));
        let _pinned = core
            .let_in(&request, *kind, lease.as_ref())
            .map_err(|cause| refused(&request, cause))?;
        let operation = lease
            .as_ref()
            .map(|lease| engine::begin(&**core, &mut request, lease, name.clone()))
            .transpose()
            .map_err(|cause| refused(&request, cause))?;
        let error = State::try_acquire_error;
        let inner = engine::try_acquire_under(core, request, operation, error)?;
        Ok(Permit { inner, options: self.options })
    }
}

/// The future of [`JobBuilder::acquire`]: a [`Permit`] to come.
///
/// # Errors
///
/// [`AcquireError`].
///
/// # Cancel safety
///
/// Dropping it gives up its place in the queue. If a permit had been granted meanwhile, it goes to whoever is next.
///
/// # Panics
///
/// When it is polled after it has completed.
#[derive(Debug)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    inner: engine::Acquire<Core>,
    /// Keeps the group of its scope.
    link: Link,
    options: Option<Options>,
    polled: bool,
}

/// The first poll, when it comes from a worker of the same pool.
fn without_waiting(
    acquire: &engine::Acquire<Core>,
) -> Option<Result<engine::Permit<Core>, AcquireError>> {
    let core = acquire.engine();
    worker::current(core)?;
    let mut request = *acquire.request();
    let begun = acquire
        .lease()
        .map(|(lease, name)| engine::begin(&**core, &mut request, lease, name.clone()))
        .transpose();
    Some(match begun {
        Ok(operation) => engine::try_acquire_under(core, request, operation, State::acquire_error),
        Err(cause) => Err(core.with(|state| state.acquire_error(&request, cause))),
    })
}

impl Future for Acquire {
    type Output = Result<Permit, AcquireError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Acquire { inner, link, options, polled } = self.get_mut();
        let first = !std::mem::replace(polled, true);
        let wanted = options.as_ref().expect("an acquire was polled after it had completed");
        let _pinned =
            match first.then(|| link.let_in(inner.request(), wanted.kind, wanted.lease.as_ref())) {
                Some(Err(cause)) => {
                    *options = None;
                    let error = link.with(|state| state.acquire_error(inner.request(), cause));
                    return Poll::Ready(Err(error));
                }
                Some(Ok(pinned)) => pinned,
                None => None,
            };
        let result = match first.then(|| without_waiting(inner)).flatten() {
            Some(result) => result,
            None => std::task::ready!(Pin::new(inner).poll(cx)),
        };
        let options = options.take().expect("seen above");
        Poll::Ready(result.map(|inner| Permit { inner, options }))
    }
}

/// The right to run one job in a pool, taken before the work is known. Dropping it returns it.
#[derive(Debug)]
#[must_use = "a permit returns as soon as it is dropped"]
pub struct Permit {
    inner: engine::Permit<Core>,
    options: Options,
}

impl Permit {
    /// How much of the capacity it takes, 1 or more.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.inner.weight()
    }

    /// The job answers for the permit from here on.
    fn way(self) -> Way {
        let (_, _, operation) = self.inner.disarm();
        Way::Held(operation.map(Box::new))
    }

    fn header(&self) -> Header {
        let Options { name, kind, lease, .. } = &self.options;
        let Claim { lane, weight, group } = self.inner.claim();
        let request = Request {
            deadline: self.inner.engine().tick(self.options.deadline()),
            group,
            leased: lease.is_some(),
            ..Request::new(lane, weight)
        };
        Header::new(name.clone(), *kind, &request)
    }

    /// Runs `f` under this permit, which comes back when `f` has ended. Dropping the future before its first poll
    /// returns the permit.
    pub fn run<F, R>(self, f: F) -> Run<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.run_with(move |_| f())
    }

    /// Like [`run`](Self::run), for a closure that looks at its [context](JobContext).
    pub fn run_with<F, R>(self, f: F) -> Run<R>
    where
        F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let core = Arc::clone(self.inner.engine());
        let cell = cell::new(f, self.header(), core.spans);
        Run::new(Link::direct(core), cell, self.way())
    }

    /// Hands `f` to the pool, to run under this permit.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when the deadline has passed, or the runtime that owns the pool is gone. The permit is back then.
    pub fn spawn<F, R>(self, f: F) -> Result<Ticket<R>, SubmitError>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.spawn_with(move |_| f())
    }

    /// Like [`spawn`](Self::spawn), for a closure that looks at its [context](JobContext).
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with<F, R>(self, f: F) -> Result<Ticket<R>, SubmitError>
    where
        F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let core = Arc::clone(self.inner.engine());
        let cell = cell::new(f, self.header(), core.spans);
        submit(&core, &cell, self.way(), false)?;
        Ok(Ticket::new(Link::direct(core), cell, None))
    }
}
