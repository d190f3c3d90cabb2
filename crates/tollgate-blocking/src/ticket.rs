//! A job that goes on whether or not somebody watches.

use crate::cell::{CancelOutcome, Watch};
use crate::core::Link;
use crate::error::RunError;
use crate::run::look;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use tollgate_admission::engine::Key;
use tollgate_admission::{Deadline, JobId, Sleep};

/// Accepted work: its result can be awaited, awaited for a limited time and awaited again, or joined from a plain thread.
///
/// Dropping a ticket gives up watching, not the work. [`cancel`](Self::cancel) is a call of its own.
///
/// As a future it yields the result, once.
///
/// # Errors
///
/// [`RunError`]. A job that was accepted can still be refused while it waits: by its deadline, or because the pool closed.
///
/// # Cancel safety
///
/// Await `&mut ticket` to keep the ticket when the await is dropped.
///
/// # Panics
///
/// When it is polled after it has yielded the result.
///
/// # Example
///
/// ```
/// # let rt = tokio::runtime::Runtime::new().unwrap();
/// # let pool = tollgate_blocking::BlockingPool::builder(rt.handle().clone())
/// #     .capacity(1)
/// #     .lane(tollgate_blocking::LanePolicy::new("storage"))
/// #     .build()
/// #     .unwrap();
/// # let storage = pool.executor("storage").unwrap();
/// let ticket = storage.job("compact").submit(|| 40 + 2)?;
/// assert_eq!(ticket.join()?, 42);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a ticket lets its job go on unwatched"]
pub struct Ticket<R> {
    core: Link,
    cell: Arc<dyn Watch<R>>,
    key: Option<Key>,
    taken: bool,
}

impl<R> Ticket<R> {
    pub(crate) fn new(core: Link, cell: Arc<dyn Watch<R>>, key: Option<Key>) -> Self {
        Ticket { core, cell, key, taken: false }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.cell.header().id()
    }

    /// Whether it is decided what the result is. Once true, it stays true. The result of a job that was refused can be taken
    /// when its captures are gone: if nobody has dropped them, whoever takes it does.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.cell.is_done()
    }

    /// Waits for the result until `deadline`. `None` when it passed first, which changes nothing about the job: the
    /// ticket can be awaited again. The time is kept by the pool.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub fn wait_until(&mut self, deadline: impl Into<Deadline>) -> WaitUntil<'_, R> {
        let sleep = Sleep::until(Arc::clone(&self.core.time), deadline);
        WaitUntil { ticket: self, sleep }
    }

    /// Blocks the calling thread until the result is there. Not for async code, where the ticket is to be awaited; nor for
    /// a job, if what it waits for waits for the permit that the job holds.
    ///
    /// # Errors
    ///
    /// As for the future.
    pub fn join(self) -> Result<R, RunError> {
        block_on(self)
    }

    /// Blocks the calling thread until the result is there or `deadline` has passed, by the pool's clock.
    ///
    /// # Errors
    ///
    /// The ticket, to go on waiting with, when the deadline passed first.
    pub fn join_until(
        mut self,
        deadline: impl Into<Deadline>,
    ) -> Result<Result<R, RunError>, Self> {
        let result = block_on(self.wait_until(deadline));
        result.ok_or(self)
    }

    /// Asks that the job should not go on. If its closure has not started, it is dropped at once and never will; the
    /// result is [`RunError::Cancelled`]. If it runs, its [context](crate::JobContext) says so; what it returns is the
    /// result. If it has ended, nothing happens.
    ///
    /// Returns `true` when the closure never ran and never will.
    pub fn cancel(&self) -> bool {
        match self.cell.cancel() {
            CancelOutcome::Unwanted => {
                if self.core.withdraw(&(Arc::clone(&self.cell) as _), self.key) {
                    self.cell.tell_cancelled();
                }
                // else whoever has it tells, once the permit is back
                true
            }
            CancelOutcome::Withdrawn => true,
            CancelOutcome::Started => false,
        }
    }
}

impl<R> Future for Ticket<R> {
    type Output = Result<R, RunError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.taken, "a ticket was polled after it had yielded its result");
        let result = look(&self.core, &self.cell, cx.waker());
        self.taken = result.is_ready();
        result
    }
}

impl<R> Drop for Ticket<R> {
    fn drop(&mut self) {
        self.cell.leave(&self.core, false);
    }
}

impl<R> fmt::Debug for Ticket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("id", &self.id())
            .field("name", &self.cell.header().name)
            .finish_non_exhaustive()
    }
}

/// The future of [`Ticket::wait_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct WaitUntil<'a, R> {
    ticket: &'a mut Ticket<R>,
    sleep: Sleep,
}

impl<R> Future for WaitUntil<'_, R> {
    type Output = Option<Result<R, RunError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(result) = Pin::new(&mut *self.ticket).poll(cx) {
            return Poll::Ready(Some(result));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| None)
    }
}

/// Unparks a thread.
struct Unpark(crate::sync::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` on this thread, parked in between.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker: Waker = Arc::new(Unpark(crate::sync::current())).into();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        crate::sync::park();
    }
}
