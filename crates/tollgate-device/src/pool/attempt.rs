//! Attempts: units of device work that were admitted, and what runs under them.

use super::book::{AttemptPlace, Facts};
use super::core::{Core, lane};
use super::error::{AdmitError, JobError};
use super::job::{Callback, Job, task};
use super::kind::{Class, DeviceKind};
use super::run::{DeviceTask, Watched};
use super::submit::{DeviceJob, Link, MayRun};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_admission::engine::{Acquire, Claim, Engine, Permit, Request, contain, try_acquire};
use tollgate_admission::{AcquireError, Deadline, JobName, Scope, TryAcquireError};

/// An attempt that is to be admitted: the one thing that may wait for permits of a pool, in turn, bounded, and for no longer
/// than its deadline.
///
/// As a future it yields the [`Attempt`]. Nothing is asked for before the first poll. It waits for a root permit, in order of
/// arrival, and then for the permit of its cleanup, which the cleanup of an earlier attempt may still have. Giving up is O(1),
/// however many wait. Any executor may poll it; the pool keeps the time.
///
/// ```
/// use std::time::Duration;
/// use tollgate_device::admission::{AcquireError, Deadline};
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::{DevicePool, DeviceProfile};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Runtime::new()?;
/// # rt.block_on(async {
/// let device = HostDevice::builder().build()?;
/// let pool = DevicePool::builder(device, DeviceProfile::new(1, 2)).build()?;
/// let attempt = pool.admission().await?;
///
/// let soon = Deadline::after(Duration::from_millis(1));
/// let late = pool.admission().deadline(soon).await.unwrap_err();
/// assert!(matches!(late.cause(), AcquireError::Deadline { .. }));
///
/// drop(attempt);
/// let attempt = pool.admission().try_admit()?;
/// # drop(attempt);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
///
/// # Errors
///
/// [`AdmitError`]: as many wait as [may](super::DeviceProfile::max_waiting), the deadline passed (its own or the scope's, also
/// when a permit is free), the pool or the scope is closed.
///
/// # Cancel safety
///
/// Dropping it gives up its place, and what it had already.
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "an attempt is not admitted until this is awaited"]
pub struct Admission {
    link: Link,
    deadline: Deadline,
    at: At,
}

enum At {
    Fresh,
    Root(Acquire<Core>),
    /// With the root permit.
    Release(Permit<Core>, Acquire<Core>),
    Done,
}

impl Admission {
    pub(crate) fn new(link: Link) -> Self {
        Admission { link, deadline: Deadline::never(), at: At::Fresh }
    }

    /// Until when it may wait; the earliest one given counts. Without effect once it was polled.
    pub fn deadline(mut self, deadline: impl Into<Deadline>) -> Self {
        self.deadline = self.deadline.earliest(deadline.into());
        self
    }

    /// The scope that the attempt belongs to, in place of the handle's: it is refused once the scope is closed, the scope's
    /// deadline covers the wait, and the scope has something left until the attempt is over and its jobs have ended. Without
    /// effect once it was polled.
    pub fn scope(mut self, scope: &Scope) -> Self {
        if matches!(self.at, At::Fresh) {
            self.link = self.link.scoped(scope);
        }
        self
    }

    /// Admits it if that is possible without waiting.
    ///
    /// # Errors
    ///
    /// As for the future; [`AcquireError::Busy`] when it would have had to wait.
    pub fn try_admit(self) -> Result<Attempt, AdmitError> {
        let core = &self.link.core;
        let take = |class| {
            let request = self.request(class);
            try_acquire(core, request).map_err(|error| self.error(or_busy(error)))
        };
        let (root, release) = (take(Class::Root)?, take(Class::Release)?);
        Ok(Attempt::new(self.link.clone(), root, release))
    }

    fn request(&self, class: Class) -> Request {
        let Link { core, bound } = &self.link;
        Request {
            deadline: core.tick(self.deadline),
            group: bound.as_ref().map(|bound| bound.group()),
            ..Request::new(lane(class), 1)
        }
    }

    fn error(&self, source: AcquireError) -> AdmitError {
        AdmitError { device: self.link.core.device.ordinal, source }
    }

    fn acquire(&self, class: Class) -> Acquire<Core> {
        Acquire::new(Arc::clone(&self.link.core), self.request(class))
    }
}

/// An attempt that would have had to wait is busy, whatever for.
fn or_busy(error: TryAcquireError) -> AcquireError {
    match error {
        TryAcquireError::Closed { lane, what } => AcquireError::Closed { lane, what },
        TryAcquireError::Deadline { lane } => AcquireError::Deadline { lane },
        TryAcquireError::Busy { lane } => AcquireError::Busy { lane },
        // a permit of weight 1 is neither too large nor of no size, and comes under no lease
        _ => AcquireError::Busy { lane: "root".into() },
    }
}

impl Future for Admission {
    type Output = Result<Attempt, AdmitError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.at {
                At::Fresh => self.at = At::Root(self.acquire(Class::Root)),
                At::Root(acquire) => match std::task::ready!(Pin::new(acquire).poll(cx)) {
                    Ok(root) => self.at = At::Release(root, self.acquire(Class::Release)),
                    Err(error) => {
                        self.at = At::Done;
                        return Poll::Ready(Err(self.error(error)));
                    }
                },
                At::Release(_, acquire) => {
                    let release = std::task::ready!(Pin::new(acquire).poll(cx));
                    let At::Release(root, _) = std::mem::replace(&mut self.at, At::Done) else {
                        unreachable!("matched above");
                    };
                    return Poll::Ready(match release {
                        Ok(release) => Ok(Attempt::new(self.link.clone(), root, release)),
                        Err(error) => Err(self.error(error)),
                    });
                }
                At::Done => panic!("an admission was polled after it had completed"),
            }
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A unit of device work that was admitted.
///
/// It has a root permit, which it lends to one root job after the other (its setup, its execution), so that it never counts
/// twice; a share of the auxiliary permits; and a permit for the cleanup that [ends it](Self::release), which therefore can
/// never be refused for want of one.
///
/// Dropping it ends it without a cleanup. Its permits come back when the last job under it has ended, and the pool has not
/// drained before.
///
/// ```
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::{Class, DeviceKind, DevicePool, DeviceProfile};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Runtime::new()?;
/// # rt.block_on(async {
/// let device = HostDevice::builder().build()?;
/// let pool = DevicePool::builder(device, DeviceProfile::new(4, 3).auxiliary(2)).build()?;
/// let attempt = pool.admission().await?;
///
/// attempt.job("plan").kind(DeviceKind::SETUP).run(async { /* load modules */ }).await?;
/// let under = attempt.handle();
/// let query = attempt.job("query").run(async move {
///     // runs right here, as a part of this job, and counts as auxiliary
///     let scan = under.job("scan").kind(DeviceKind::AUXILIARY).run(async { 40 }).await?;
///     // takes no worker
///     let read = under.job("read").kind(DeviceKind::AUXILIARY).submit_blocking(|| 2)?.await?;
///     Ok::<_, tollgate_device::JobError>(scan + read)
/// });
/// assert_eq!(query.await??, 42);
/// assert_eq!(pool.snapshot().class(Class::Root).map(|root| root.admitted), Some(1));
///
/// attempt.release("free", async { /* synchronise and free */ })?.await?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
pub struct Attempt {
    under: AttemptHandle,
    released: bool,
}

/// A way to run jobs under an attempt, for its jobs themselves. It does not keep the attempt: once that is over, its jobs
/// are refused. Clones are the same attempt's.
#[derive(Clone)]
pub struct AttemptHandle {
    link: Link,
    at: AttemptPlace,
}

impl Attempt {
    fn new(link: Link, root: Permit<Core>, release: Permit<Core>) -> Self {
        let (_, root, _): (_, Claim, _) = root.disarm();
        let (_, release, _): (_, Claim, _) = release.disarm();
        let at = link.core.admit(root, release);
        Attempt { under: AttemptHandle { link, at }, released: false }
    }

    /// A way to run jobs under it.
    #[must_use]
    pub fn handle(&self) -> AttemptHandle {
        self.under.clone()
    }

    /// Starts a description of a job under it: see [`AttemptHandle::job`].
    pub fn job(&self, name: impl Into<JobName>) -> DeviceJob<'_, MayRun> {
        self.under.job(name)
    }

    /// Ends it: nothing more may begin under it, and `cleanup` runs on a worker, as a job of kind
    /// [`CLEANUP`](DeviceKind::CLEANUP), which goes on whether or not somebody watches. It is accepted also when the pool or
    /// the scope is closed, and the pool has not drained before it has ended.
    ///
    /// It does not wait for the attempt's other jobs: one whose await was dropped may be on its way to its next await, and a
    /// blocking one runs to its end. What they and `cleanup` use is best shared with them, so that the last one frees it.
    ///
    /// # Errors
    ///
    /// [`JobError`] when the runtime was made to [end](super::DevicePool::request_exit) before; `cleanup` has been dropped then.
    pub fn release<F>(
        self,
        name: impl Into<JobName>,
        cleanup: F,
    ) -> Result<DeviceTask<F::Output>, JobError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.release_with(name.into(), cleanup, None)
    }

    /// Like [`release`](Self::release); `callback` is called when the cleanup's outcome can be had, whatever it is: see
    /// [`DeviceJob::on_complete`].
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release); `callback` is not called then.
    pub fn release_then<F>(
        self,
        name: impl Into<JobName>,
        cleanup: F,
        callback: impl FnOnce() + Send + 'static,
    ) -> Result<DeviceTask<F::Output>, JobError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.release_with(name.into(), cleanup, Some(Box::new(callback)))
    }

    fn release_with<F>(
        mut self,
        name: JobName,
        cleanup: F,
        callback: Option<Callback>,
    ) -> Result<DeviceTask<F::Output>, JobError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.released = true;
        let AttemptHandle { link, at } = &self.under;
        let (kind, class) = (DeviceKind::CLEANUP, Class::Release);
        let group = link.bound.as_ref().map(|bound| bound.group());
        let facts = Facts { name, kind, class, group };
        let job = Job::new(&link.core, kind, class, callback);
        let task = task(&job, move |_| cleanup);
        let accepted = link.core.submit_release(facts, *at, job.erased(), task);
        // after that, so that the pool is never seen without either
        link.core.close_attempt(*at);
        match accepted {
            Ok(()) => Ok(DeviceTask::new(Watched::new(job))),
            Err((refused, task)) => {
                contain(|| drop(task));
                Err(job.refused(refused))
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.released {
            self.under.link.core.close_attempt(self.under.at);
        }
    }
}

impl AttemptHandle {
    /// Starts a description of a job under the attempt.
    ///
    /// A root job borrows the attempt's root permit, and is refused while another one has it; so is an auxiliary job while
    /// the attempt's slots are taken. Neither ever waits to be accepted.
    pub fn job(&self, name: impl Into<JobName>) -> DeviceJob<'_, MayRun> {
        DeviceJob::new(&self.link, Some(self.at), name.into())
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("at", &self.under.at).finish_non_exhaustive()
    }
}

impl fmt::Debug for AttemptHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptHandle").field("at", &self.at).finish_non_exhaustive()
    }
}
