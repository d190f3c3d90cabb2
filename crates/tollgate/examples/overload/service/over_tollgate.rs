//! The service over tollgate.
//!
//! A request is admitted once, at the door, and then holds its permit until it is answered. So
//! whatever has been started is finished: no file is read for a request that is refused later,
//! and no more files are in memory than requests are in flight. Behind the door each kind of work
//! has its own lane of one pool, sized for what it uses, and never has to refuse.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle;
use tollgate::admission::UnknownLane;
use tollgate::prelude::*;
use tollgate::{admission, blocking};

use super::{NotDone, Refusal, Service};
use crate::corpus::{Corpus, Digest};

/// How long a request may wait for its turn, on the whole. The queue is as long as what the
/// service gets done in this time, so nobody waits for an answer that comes too late.
const TARGET_WAIT: Duration = Duration::from_millis(50);

/// The longest wait, as a multiple of what a full queue takes at the measured capacity. It ends
/// the waits of those who came just before the machine was held up by something else.
const MOST_WAIT: f64 = 1.25;

/// Health probes that may wait: as many as come in a third of a second.
const MOST_PROBES_WAITING: usize = 64;

/// Even a slow service may have some waiting, or an uneven arrival would already be refused.
const LEAST_WAITING: usize = 16;

/// How long the shutdown waits for what is in flight.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// The numbers that bound the service.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Policy {
    /// Hash and compress: one per core, since more would only take turns.
    pub(crate) cpu_workers: u64,
    /// Read files, mostly waiting for the disk.
    pub(crate) storage_workers: u64,
    /// Answer health probes. Kept: never lent to the other lanes, so that a probe finds one free.
    pub(crate) control_workers: u64,
    /// Requests past the door: enough to keep all workers busy.
    pub(crate) in_flight: u64,
    /// Requests waiting at the door; one more is refused.
    pub(crate) max_waiting: usize,
    /// A request that has waited this long is refused.
    pub(crate) queue_timeout_ms: u64,
}

impl Policy {
    /// Before the capacity is known, the queue holds the closed loop's callers.
    pub(crate) fn for_cores(cores: usize) -> Self {
        let cpu_workers = cores as u64;
        let storage_workers = cpu_workers.max(2);
        let in_flight = cpu_workers + storage_workers;
        Self {
            cpu_workers,
            storage_workers,
            control_workers: 1,
            in_flight,
            max_waiting: LEAST_WAITING.max(in_flight as usize),
            queue_timeout_ms: SHUTDOWN_LIMIT.as_millis() as u64,
        }
    }

    /// As many as keep the service busy without anybody being refused.
    pub(crate) fn closed_loop_callers(&self) -> usize {
        2 * self.in_flight as usize
    }

    /// Bounds the queue by what a service of this capacity does in the time that one may wait.
    pub(crate) fn bound_queue(&mut self, per_second: f64) {
        let served_meanwhile = per_second * TARGET_WAIT.as_secs_f64();
        self.max_waiting = LEAST_WAITING.max(served_meanwhile as usize);
        let full_queue_ms = self.max_waiting as f64 / per_second * 1e3;
        self.queue_timeout_ms = (MOST_WAIT * full_queue_ms).ceil() as u64;
    }

    fn queue_timeout(&self) -> Duration {
        Duration::from_millis(self.queue_timeout_ms)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tollgate: {} requests in flight over {} storage and {} cpu workers, {} more may wait, \
             for {} ms at most; {} worker kept for health probes.",
            self.in_flight,
            self.storage_workers,
            self.cpu_workers,
            self.max_waiting,
            self.queue_timeout_ms,
            self.control_workers,
        )
    }
}

/// Why the service could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error(transparent)]
    Requests(#[from] admission::BuildError),
    #[error(transparent)]
    Pool(#[from] blocking::BuildError),
    #[error(transparent)]
    UnknownLane(#[from] UnknownLane),
}

#[derive(Debug)]
pub(crate) struct OverTollgate {
    corpus: Arc<Corpus>,
    requests: Budget,
    door: Lane,
    pool: BlockingPool,
    storage: Executor,
    cpu: Executor,
    control: Executor,
}

impl OverTollgate {
    /// `runtime` owns the pool: closures see it as the current one.
    pub(crate) fn start(
        corpus: Arc<Corpus>,
        policy: &Policy,
        runtime: &Handle,
    ) -> Result<Self, SetupError> {
        let requests = Budget::builder()
            .capacity(policy.in_flight)
            .lane(
                LaneConfig::new("requests")
                    .limit(policy.in_flight)
                    .max_waiting(policy.max_waiting)
                    .queue_timeout(policy.queue_timeout()),
            )
            .build()?;

        // What is in flight can all be waiting in one lane, and no more than that.
        let room = policy.in_flight as usize;
        let lane = |name, workers| {
            LanePolicy::new(name).reserved(workers).limit(workers).max_waiting(room)
        };
        let pool = BlockingPool::builder(runtime.clone())
            .capacity(policy.storage_workers + policy.cpu_workers + policy.control_workers)
            .lane(lane("storage", policy.storage_workers))
            .lane(lane("cpu", policy.cpu_workers))
            .lane(
                lane("control", policy.control_workers)
                    .kept(policy.control_workers)
                    .max_waiting(MOST_PROBES_WAITING),
            )
            .build()?;

        Ok(Self {
            corpus,
            door: requests.lane("requests")?,
            requests,
            storage: pool.executor("storage")?,
            cpu: pool.executor("cpu")?,
            control: pool.executor("control")?,
            pool,
        })
    }

    /// Changes the bound of the queue while the service runs.
    pub(crate) fn apply(&self, policy: &Policy) -> Result<(), SetupError> {
        self.requests
            .resize()
            .lane("requests", |lane| {
                lane.max_waiting(policy.max_waiting).queue_timeout(policy.queue_timeout())
            })
            .apply()?;
        Ok(())
    }

    /// Refuses what waits at the door, lets what is in flight finish, then stops the pool.
    ///
    /// Returns whether nothing was left, and what was and was not, in words.
    pub(crate) async fn shut_down(&self) -> (bool, String) {
        let deadline = Deadline::after(SHUTDOWN_LIMIT);
        self.requests.close();
        let drained = tokio::time::timeout(SHUTDOWN_LIMIT, self.requests.drained()).await.is_ok();
        let door = self.requests.stats();
        let in_flight = door.capacity + door.deficit - door.available;
        let report = self.pool.shutdown(deadline).await;
        let text = format!("door closed, {in_flight} requests in flight; {report}");
        (drained && report.complete, text)
    }
}

impl Service for OverTollgate {
    async fn request(&self, file: usize) -> Result<Digest, NotDone> {
        let _in_flight = self.door.acquire().await?;
        let corpus = Arc::clone(&self.corpus);
        let bytes = self.storage.run(move || corpus.read(file)).await??;
        Ok(self.cpu.run(move || Digest::of(&bytes)).await?)
    }

    async fn probe(&self) -> Result<(), NotDone> {
        Ok(self.control.run(|| ()).await?)
    }
}

impl From<AcquireError> for NotDone {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::QueueFull { .. } => Self::Refused(Refusal::QueueFull),
            AcquireError::Deadline { .. } => Self::Refused(Refusal::Deadline),
            AcquireError::Closed { .. } => Self::Refused(Refusal::Closed),
            // The service asks for one permit at a time, and has a timer.
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<RunError> for NotDone {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Refused(refusal) => refusal.into(),
            RunError::Cancelled { .. } => Self::Cancelled,
            other => Self::Failed(other.to_string()),
        }
    }
}
