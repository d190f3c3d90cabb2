//! The service: two devices, a pool for each, one scope that both end with.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use tollgate::admission::ScopeClosed;
use tollgate::device::host::{HostBuildError, HostControl, HostDevice};
use tollgate::device::{BuildError, EventStream, Refused, Tracker, TrackerSnapshot};
use tollgate::prelude::*;

use crate::causes::with_causes;
use crate::columns::{Answer, Columns, Query};
use crate::query::{QueryError, SCANS, Work, answer};

pub(crate) const DEVICES: u32 = 2;

/// Queries that a device has at once.
pub(crate) const ATTEMPTS: u32 = 4;

/// Queries that may wait for a device. One more is refused.
const MAX_WAITING: u32 = 8;

/// Threads of a device's pool for async jobs, one of them for setup and cleanup alone.
pub(crate) const WORKERS: u32 = 3;
pub(crate) const EXECUTING: u32 = WORKERS - 1;

/// More than all queries of a device need.
const MEMORY: u64 = 64 << 20;

/// How long the shutdown may take, and then the devices.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// How long a client's query may take on the whole, in microseconds: at least and at most.
const LEAST_WITHIN_US: u64 = 2_000;
const MOST_WITHIN_US: u64 = 60_000;

/// One client in this many goes away before it has its answer.
const ONE_LEAVES_IN: u32 = 16;
const LEAVES_AFTER_US: u64 = 5_000;

/// Why the service could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("cannot build a device")]
    Device(#[from] HostBuildError),
    #[error("cannot build a pool")]
    Pool(#[from] BuildError),
    #[error("cannot attach a pool")]
    Scope(#[from] ScopeClosed),
}

/// What a client asks for.
#[derive(Debug)]
pub(crate) struct Request {
    device: usize,
    pub(crate) query: Query,
    /// After this an answer is worth nothing.
    within: Duration,
    /// After this the client is gone.
    leaves: Option<Duration>,
}

/// What became of a query.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Answer),
    Refused,
    TimedOut,
    Cancelled,
    /// What must not happen.
    Failed(String),
}

/// What became of a query, and when.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// How long until then. The cleanup comes after that.
    pub(crate) took: Duration,
}

#[derive(Debug)]
pub(crate) struct Service {
    columns: Arc<Columns>,
    scope: Scope,
    units: Vec<Unit>,
    tracker: Tracker,
}

/// One device.
#[derive(Debug)]
struct Unit {
    pool: DevicePool<HostDevice>,
    /// All that who answers queries needs: it can't close the pool.
    handle: DeviceHandle<HostDevice>,
    control: HostControl,
    /// Attempts that were admitted to it.
    attempts: AtomicU64,
}

/// What was left when the service had ended.
#[derive(Debug)]
pub(crate) struct Shutdown {
    pub(crate) complete: bool,
    pub(crate) took: Duration,
    /// The scope's report, and each pool's, in words.
    pub(crate) reports: Vec<String>,
    /// Each pool's last figures.
    pub(crate) snapshots: Vec<DeviceSnapshot>,
    /// How many attempts were admitted to each.
    pub(crate) attempts: Vec<u64>,
    /// What both had counted together.
    pub(crate) tracker: TrackerSnapshot,
    /// Bytes that were still in use, of device memory and of pinned memory.
    pub(crate) bytes_left: u64,
    /// All threads of the devices had ended.
    pub(crate) devices_gone: bool,
}

/// What there is, in words.
pub(crate) fn description() -> String {
    let kept = WORKERS - EXECUTING;
    format!(
        "{DEVICES} devices on the CPU. Each takes {ATTEMPTS} queries at once and lets {MAX_WAITING} wait; its pool has \
         {WORKERS} workers,\n{kept} of them for setup and cleanup alone. Those count as waiting, too, who have a place \
         and wait\nfor the cleanup of the query before."
    )
}

impl Request {
    pub(crate) fn random(random: &mut StdRng) -> Self {
        let micros = |random: &mut StdRng, range| Duration::from_micros(random.random_range(range));
        Self {
            device: random.random_range(0..DEVICES as usize),
            query: Query::random(random),
            within: micros(random, LEAST_WITHIN_US..MOST_WITHIN_US),
            leaves: random
                .random_ratio(1, ONE_LEAVES_IN)
                .then(|| micros(random, 0..LEAVES_AFTER_US)),
        }
    }
}

impl Service {
    pub(crate) fn start(columns: Arc<Columns>) -> Result<Self, SetupError> {
        let (scope, tracker) = (Scope::root("queries"), Tracker::new());
        let profile =
            DeviceProfile::new(ATTEMPTS, WORKERS).auxiliary(SCANS as u32).max_waiting(MAX_WAITING);
        let unit = |ordinal| {
            let device = HostDevice::builder()
                .ordinal(ordinal)
                .name(format!("gpu{ordinal}"))
                .memory(MEMORY)
                .build()?;
            let control = device.control();
            let pool =
                DevicePool::builder(device, profile).scope(&scope).tracker(&tracker).build()?;
            Ok(Unit { handle: pool.handle(), pool, control, attempts: AtomicU64::new(0) })
        };
        let units = (0..DEVICES).map(unit).collect::<Result<_, SetupError>>()?;
        Ok(Self { columns, scope, units, tracker })
    }

    pub(crate) fn columns(&self) -> &Arc<Columns> {
        &self.columns
    }

    pub(crate) fn snapshots(&self) -> Vec<DeviceSnapshot> {
        self.units.iter().map(|unit| unit.pool.snapshot()).collect()
    }

    /// What becomes of each pool's jobs from now on.
    pub(crate) fn events(&self) -> Vec<EventStream> {
        self.units.iter().map(|unit| unit.pool.events()).collect()
    }

    /// Answers a query, unless it is refused, takes too long, or is `given_up` before.
    pub(crate) async fn ask(&self, request: &Request, given_up: impl Future<Output = ()>) -> Ended {
        let asked = Instant::now();
        let ended = |outcome| Ended { outcome, took: asked.elapsed() };
        let Unit { handle, attempts, .. } = &self.units[request.device];
        let mut gone = pin!(async {
            tokio::select! {
                () = given_up => (),
                () = after(request.leaves) => (),
            }
        });

        // The one place where a query may wait for permits.
        let admission = handle.admission().deadline(Deadline::after(request.within));
        let attempt = tokio::select! {
            biased;
            () = &mut gone => return ended(Outcome::Cancelled),
            admitted = admission => match admitted {
                Ok(attempt) => attempt,
                Err(error) => return ended(error.into()),
            },
        };

        // Relaxed: it is read when all have asked.
        attempts.fetch_add(1, Ordering::Relaxed);
        let mut work = None;
        // Whoever gives up drops the jobs that run for it, and only those.
        let outcome = tokio::select! {
            biased;
            answer =
                answer(&attempt, handle.backend(), &self.columns, &request.query, &mut work) =>
                answer.map_or_else(Outcome::from, Outcome::Done),
            () = &mut gone => Outcome::Cancelled,
            () = tokio::time::sleep_until((asked + request.within).into()) => Outcome::TimedOut,
        };
        let ended = ended(outcome);

        // Whatever became of it: the permit for this is there, and it never waits behind executions.
        let cleanup = attempt.release("clean up", async move { Work::clean_up(work) });
        let cleaned = match cleanup {
            Ok(cleanup) => cleanup.await,
            Err(error) => Err(error),
        };
        match cleaned.map_err(QueryError::from).and_then(|freed| freed.map_err(Into::into)) {
            Ok(()) => ended,
            Err(error) => Ended { outcome: Outcome::Failed(with_causes(&error)), took: ended.took },
        }
    }

    /// Ends both pools, and then the devices. Nobody may ask any more.
    pub(crate) async fn shut_down(self) -> Shutdown {
        let Self { scope, units, tracker, .. } = self;
        let started = Instant::now();
        let deadline = Deadline::after(SHUTDOWN_LIMIT);
        // The scope would end the pools by itself. Each has a report of its own beside the scope's.
        let ending = |unit: &Unit| tokio::spawn(unit.pool.shutdown(deadline));
        let endings: Vec<_> = units.iter().map(ending).collect();
        let report = scope.shutdown(deadline).await;
        let (mut complete, mut reports) = (report.complete, vec![report.to_string()]);
        let (mut snapshots, mut attempts) = (Vec::new(), Vec::new());
        for (unit, ending) in units.iter().zip(endings) {
            let report = ending.await.expect("a shutdown does not panic");
            complete &= report.complete;
            reports.push(report.to_string());
            snapshots.push(unit.pool.snapshot());
            attempts.push(unit.attempts.load(Ordering::Relaxed));
        }
        let controls: Vec<_> = units.iter().map(|unit| unit.control.clone()).collect();
        // A device ends when the last handle of it is gone: the pools have the last ones.
        drop(units);
        let gone = |control: &HostControl| {
            control.wait_ended(SHUTDOWN_LIMIT.saturating_sub(started.elapsed()))
        };
        Shutdown {
            complete,
            devices_gone: controls.iter().all(gone),
            took: started.elapsed(),
            reports,
            snapshots,
            attempts,
            tracker: tracker.snapshot(),
            bytes_left: controls
                .iter()
                .map(HostControl::stats)
                .map(|stats| stats.memory.in_use + stats.pinned.in_use)
                .sum(),
        }
    }
}

async fn after(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

impl From<AdmitError> for Outcome {
    fn from(error: AdmitError) -> Self {
        match error.cause() {
            AcquireError::QueueFull { .. } | AcquireError::Closed { .. } => Self::Refused,
            AcquireError::Deadline { .. } => Self::TimedOut,
            // It asks for one attempt at a time, and has a timer.
            _ => Self::Failed(with_causes(&error)),
        }
    }
}

impl From<QueryError> for Outcome {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::NotAdmitted(error) => error.into(),
            QueryError::Job(ref job) if matches!(job.refused(), Some(Refused::Closed { .. })) => {
                Self::Refused
            }
            // The share of auxiliary jobs is as large as it needs, and the device is well.
            error => Self::Failed(with_causes(&error)),
        }
    }
}
