//! The end of a pool, and the report about it.

use crate::core::Core;
use crate::stats::jobs;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tollgate_admission::engine::{Engine, Tick};
use tollgate_admission::{Closed, Deadline, JobInfo, Sleep};

/// The future of [`BlockingPool::shutdown`](crate::BlockingPool::shutdown).
#[must_use = "a shutdown does nothing until it is awaited"]
pub struct Shutdown {
    core: Arc<Core>,
    sleep: Sleep,
    started: Option<Tick>,
    place: Option<usize>,
}

impl Shutdown {
    pub(crate) fn new(core: Arc<Core>, deadline: Deadline) -> Self {
        let sleep = Sleep::until(Arc::clone(&core.time), deadline);
        Shutdown { core, sleep, started: None, place: None }
    }

    /// Whether everything has stopped; else leaves a waker to be told.
    fn poll_quiet(&mut self, cx: &Context<'_>) -> bool {
        let fresh = cx.waker().clone();
        let mut inner = self.core.lock();
        if inner.is_quiet() {
            return true;
        }
        let (place, stale) = inner.quiet.register(self.place, fresh);
        drop(inner);
        drop(stale);
        self.place = Some(place);
        false
    }
}

impl Future for Shutdown {
    type Output = ShutdownReport;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ShutdownReport> {
        let started = match self.started {
            Some(started) => started,
            None => {
                let now = self.core.now();
                self.core.close(Closed::Budget);
                *self.started.insert(now)
            }
        };
        if !self.poll_quiet(cx) && Pin::new(&mut self.sleep).poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(ShutdownReport::take(&self.core, started))
    }
}

impl Drop for Shutdown {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let _waker = self.core.lock().quiet.remove(place);
        }
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown").field("sleep", &self.sleep).finish_non_exhaustive()
    }
}

/// What had stopped and what had not, when a [shutdown](crate::BlockingPool::shutdown) ended.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ShutdownReport {
    /// No job is queued or running, every permit is back, and every thread has ended.
    pub complete: bool,
    /// Jobs that have not ended.
    pub jobs: Vec<JobInfo>,
    /// Permits that are out, those of jobs included, by weight.
    pub permits: u64,
    /// Threads that have not ended.
    pub threads: usize,
    /// Jobs and acquires that were refused because the pool had closed, so far.
    pub refused: u64,
    /// How long this shutdown took.
    pub took: Duration,
}

impl ShutdownReport {
    fn take(core: &Core, started: Tick) -> Self {
        let ((complete, budget, threads), jobs) =
            jobs(core, |inner, now| (inner.is_quiet(), inner.state.stats(now), inner.crew.alive()));
        ShutdownReport {
            complete,
            jobs,
            permits: budget.running(),
            threads,
            refused: budget.lanes.iter().map(|lane| lane.refused.closed).sum(),
            took: core.now().since(started),
        }
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShutdownReport { complete, jobs, permits, threads, refused, took } = self;
        if *complete {
            write!(f, "everything has stopped, after {took:?}; {refused} refused as closed")?;
            return Ok(());
        }
        write!(
            f,
            "not everything has stopped after {took:?}: {} jobs, {permits} permits and {threads} threads are left; \
             {refused} refused as closed",
            jobs.len()
        )?;
        for job in jobs {
            write!(f, "\n  {job}")?;
        }
        Ok(())
    }
}
