//! The ways to wait for a job.

use super::core::{Order, Placed, Task};
use super::error::JobError;
use super::job::Job;
use super::submit::Keep;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_admission::JobId;
use tollgate_admission::engine::contain;

/// A job that was described and not submitted.
pub(crate) struct Fresh<T: Send + 'static> {
    pub(crate) job: Arc<Job<T>>,
    pub(crate) task: Task,
    pub(crate) order: Order,
    pub(crate) bound: Keep,
}

impl<T: Send + 'static> Fresh<T> {
    pub(crate) fn submit(self, detached: bool) -> Result<Watched<T>, JobError> {
        let Fresh { job, task, order, bound } = self;
        let placed = job.core.submit(order, job.erased(), task, detached);
        drop(bound);
        match placed {
            Ok(Placed::There) => Ok(Watched { job, here: None }),
            Ok(Placed::Here(task)) => Ok(Watched { job, here: Some(task) }),
            Err((refused, task)) => {
                contain(|| drop(task));
                Err(job.refused(refused))
            }
        }
    }
}

/// A job that was accepted, and whose result somebody may want.
pub(crate) struct Watched<T: Send + 'static> {
    job: Arc<Job<T>>,
    /// The job itself, when it runs within whoever polls this.
    here: Option<Task>,
}

impl<T: Send + 'static> Watched<T> {
    pub(crate) fn new(job: Arc<Job<T>>) -> Self {
        Watched { job, here: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, JobError>> {
        if let Some(task) = &mut self.here {
            let next = std::task::ready!(task.as_mut().poll(cx));
            debug_assert!(next.is_none(), "it runs within another job");
            self.here = None;
        }
        self.job.poll_result(cx)
    }

    /// When it is awaited on a thread of the pool's, which may have what it waits for.
    fn take_here(&mut self) {
        if self.here.is_none() {
            self.here = self.job.core.take_here(self.job.stop());
        }
    }

    fn id(&self) -> JobId {
        self.job.stop().place().map_or(JobId::new(0), |place| place.id)
    }

    /// Nobody waits for it any more, and it is to end.
    fn cancel_and_leave(&mut self) {
        self.job.unwatch();
        self.job.core.cancel(self.job.stop(), true);
        if let Some(task) = self.here.take() {
            contain(|| drop(task));
        }
    }

    /// Nobody waits for it any more, and it goes on.
    fn leave(&mut self) {
        if self.here.is_some() {
            // there is nobody else to run it
            return self.cancel_and_leave();
        }
        self.job.unwatch();
        if let Some(place) = self.job.stop().place() {
            self.job.core.book(|book| book.abandon(place));
        }
    }
}

/// The future of [`DeviceJob::run`](super::DeviceJob::run): the job's result.
///
/// Nothing is accepted, counted or timed before the first poll. Polled first on a thread of the same pool, it runs right
/// there, as a part of whoever polls it: only while it is polled, and on whichever thread does that. So it is to be awaited
/// within the job that began it; elsewhere it would run without the device bound.
///
/// # Errors
///
/// [`JobError`]: refused, panicked, cancelled, lost with the runtime.
///
/// # Cancel safety
///
/// Dropping it cancels the job: one that waits is dropped at once, one that runs is dropped at its next await. What it
/// holds comes back when it has ended, not before.
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "a job does nothing until it is awaited"]
pub struct DeviceRun<T: Send + 'static> {
    at: At<T>,
}

enum At<T: Send + 'static> {
    Fresh(Fresh<T>),
    Watched(Watched<T>),
    Done,
}

impl<T: Send + 'static> DeviceRun<T> {
    pub(crate) fn new(fresh: Fresh<T>) -> Self {
        DeviceRun { at: At::Fresh(fresh) }
    }
}

impl<T: Send + 'static> Future for DeviceRun<T> {
    type Output = Result<T, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.at, At::Fresh(_))
            && let At::Fresh(fresh) = std::mem::replace(&mut self.at, At::Done)
        {
            match fresh.submit(false) {
                Ok(watched) => self.at = At::Watched(watched),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let At::Watched(watched) = &mut self.at else {
            panic!("a job was polled after it had completed");
        };
        let result = std::task::ready!(watched.poll(cx));
        self.at = At::Done;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for DeviceRun<T> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.at, At::Done) {
            At::Watched(mut watched) => watched.cancel_and_leave(),
            // captures that were never submitted
            At::Fresh(fresh) => contain(|| drop(fresh)),
            At::Done => {}
        }
    }
}

impl<T: Send + 'static> fmt::Debug for DeviceRun<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.at {
            At::Fresh(_) => "DeviceRun(not submitted)",
            At::Watched(_) => "DeviceRun(accepted)",
            At::Done => "DeviceRun(completed)",
        })
    }
}

/// An async job that goes on whether or not somebody watches: from [`DeviceJob::spawn`](super::DeviceJob::spawn) and
/// [`Attempt::release`](super::Attempt::release).
///
/// Dropping it gives up watching, not the job. Awaited on a thread of the same pool while the job still waits for a worker,
/// it runs the job right there.
///
/// # Errors
///
/// [`JobError`], as for [`DeviceRun`].
///
/// # Cancel safety
///
/// Await `&mut task` to keep it when the await is dropped. When it had begun to run the job on this thread, dropping it
/// cancels the job.
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "dropping a task lets its job go on unwatched"]
pub struct DeviceTask<T: Send + 'static> {
    watched: Watched<T>,
}

impl<T: Send + 'static> DeviceTask<T> {
    pub(crate) fn new(watched: Watched<T>) -> Self {
        DeviceTask { watched }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.watched.id()
    }

    /// Whether its outcome is known.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.watched.job.is_done()
    }

    /// Cancels the job, as dropping a [`DeviceRun`] does. Says whether this was the first time, and not too late.
    pub fn cancel(&self) -> bool {
        self.watched.job.core.cancel(self.watched.job.stop(), false)
    }

    /// Blocks the calling thread until the outcome is there. Not for async code, where the task is to be awaited.
    ///
    /// # Errors
    ///
    /// As for the future.
    pub fn join(self) -> Result<T, JobError> {
        futures_lite::future::block_on(self)
    }
}

impl<T: Send + 'static> Future for DeviceTask<T> {
    type Output = Result<T, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.watched.take_here();
        self.watched.poll(cx)
    }
}

impl<T: Send + 'static> Drop for DeviceTask<T> {
    fn drop(&mut self) {
        self.watched.leave();
    }
}

impl<T: Send + 'static> fmt::Debug for DeviceTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTask").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// A blocking job that was accepted. It holds no permit: whoever waits for it keeps nobody from anything.
///
/// As a future, or by [`join`](Self::join), it yields the outcome, once. By then the job's permit is back.
///
/// Dropping it gives up watching, not the job: one that has started always comes to its end.
///
/// # Errors
///
/// [`JobError`]. A job that was discarded before it started joins as [cancelled or lost](super::Reason).
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "dropping a task lets its job go on unwatched"]
pub struct BlockingTask<T: Send + 'static> {
    job: Arc<Job<T>>,
}

impl<T: Send + 'static> BlockingTask<T> {
    pub(crate) fn new(job: Arc<Job<T>>) -> Self {
        BlockingTask { job }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.job.stop().place().map_or(JobId::new(0), |place| place.id)
    }

    /// Whether its outcome is known.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.job.is_done()
    }

    /// Asks the job to stop, by its [token](super::DeviceContext::token); one that has not started never will. Says whether
    /// this was the first time, and not too late.
    pub fn cancel(&self) -> bool {
        self.job.core.cancel(self.job.stop(), false)
    }

    /// Blocks the calling thread until the outcome is there. Not for async code, where the task is to be awaited.
    ///
    /// # Errors
    ///
    /// As for the future.
    pub fn join(self) -> Result<T, JobError> {
        futures_lite::future::block_on(self)
    }
}

impl<T: Send + 'static> Future for BlockingTask<T> {
    type Output = Result<T, JobError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.job.poll_result(cx)
    }
}

impl<T: Send + 'static> Drop for BlockingTask<T> {
    fn drop(&mut self) {
        self.job.unwatch();
        if let Some(place) = self.job.stop().place() {
            self.job.core.book(|book| book.abandon(place));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for BlockingTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingTask").field("id", &self.id()).finish_non_exhaustive()
    }
}
