//! The way in.

use crate::cell::{self, Header};
use crate::context::JobContext;
use crate::core::{Core, Link};
use crate::error::SubmitError;
use crate::job::{JobKind, JobName};
use crate::pool::Handle;
use crate::run::{Accepted, Run, Way, submit};
use crate::ticket::Ticket;
use crate::worker;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_admission::engine::{self, Engine, LaneId, Request};
use tollgate_admission::{AcquireError, Deadline, TryAcquireError};

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
        Executor::new(Arc::clone(&self.handle), self.lane)
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

    /// The lane's name.
    #[must_use]
    pub fn lane(&self) -> &str {
        self.core().lane_name(self.lane)
    }

    /// Starts a description of a job. What is not said is: [`JobKind::SHORT_IO`], weight 1, no deadline of its own.
    pub fn job(&self, name: impl Into<JobName>) -> JobBuilder<'_> {
        JobBuilder { executor: self, options: Options::new(name.into()) }
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
}

impl Options {
    fn new(name: JobName) -> Self {
        Options { name, kind: JobKind::default(), weight: 1, deadline: Deadline::never() }
    }

    fn header(self, core: &Core, lane: LaneId) -> Header {
        let deadline = core.tick(self.deadline);
        Header::new(self.name, self.kind, lane, self.weight, deadline)
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
        let core = self.executor.core();
        let cell = cell::new(f, self.options.header(core, self.executor.lane), core.spans);
        Run::new(self.executor.link.clone(), cell, Way::Admission)
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
        let core = self.executor.core();
        let cell = cell::new(f, self.options.header(core, self.executor.lane), core.spans);
        let key = match submit(core, &cell, Way::Admission)? {
            Accepted::Pool(key) => key,
            Accepted::Inline => None,
        };
        Ok(Ticket::new(self.executor.link.clone(), cell, key))
    }

    fn request(&self) -> Request {
        let core = self.executor.core();
        let deadline = core.tick(self.options.deadline);
        Request { lane: self.executor.lane, weight: self.options.weight, deadline }
    }

    /// A permit with these options, when it is this caller's turn. The deadline covers the wait, and then the work.
    ///
    /// From inside a job of the same pool it does not wait, since the job may hold what it would wait for: when no permit
    /// is free, it is refused as [`AcquireError::Busy`].
    pub fn acquire(self) -> Acquire {
        let inner = engine::Acquire::new(Arc::clone(self.executor.core()), self.request());
        Acquire { inner, options: Some(self.options), polled: false }
    }

    /// A permit with these options, if it can be had without waiting.
    ///
    /// # Errors
    ///
    /// As [`Executor::try_acquire`].
    pub fn try_acquire(self) -> Result<Permit, TryAcquireError> {
        let permit = engine::try_acquire(self.executor.core(), self.request())?;
        Ok(Permit { inner: permit, options: self.options })
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
    options: Option<Options>,
    polled: bool,
}

impl Acquire {
    /// The first poll, when it comes from a worker of the same pool.
    fn without_waiting(&self) -> Option<Result<engine::Permit<Core>, AcquireError>> {
        let core = self.inner.engine();
        worker::current(core)?;
        let refused = match engine::try_acquire(core, *self.inner.request()) {
            Ok(permit) => return Some(Ok(permit)),
            Err(refused) => refused,
        };
        let weight = self.inner.request().weight;
        Some(Err(match refused {
            TryAcquireError::Deadline { lane } => AcquireError::Deadline { lane },
            TryAcquireError::Closed { lane, what } => AcquireError::Closed { lane, what },
            TryAcquireError::TooLarge { lane, limit, .. } => {
                AcquireError::TooLarge { lane, weight, limit }
            }
            TryAcquireError::ZeroWeight { lane } => AcquireError::ZeroWeight { lane },
            _ => {
                let lane = Arc::clone(core.lane_name(self.inner.request().lane));
                AcquireError::Busy { lane }
            }
        }))
    }
}

impl Future for Acquire {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.options.is_some(), "an acquire was polled after it had completed");
        let first = !std::mem::replace(&mut self.polled, true);
        let result = match first.then(|| self.without_waiting()).flatten() {
            Some(result) => result,
            None => std::task::ready!(Pin::new(&mut self.inner).poll(cx)),
        };
        let options = self.options.take().expect("seen above");
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
        let cell = cell::new(f, self.options.header(&core, self.inner.lane()), core.spans);
        Run::new(Link::Direct(core), cell, Way::Held(self.inner))
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
        let cell = cell::new(f, self.options.header(&core, self.inner.lane()), core.spans);
        submit(&core, &cell, Way::Held(self.inner))?;
        Ok(Ticket::new(Link::Direct(core), cell, None))
    }
}
