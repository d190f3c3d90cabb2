//! What a pool tells about itself.

use crate::cell::{ABANDONED, Job, STARTED, TIMED_OUT};
use crate::core::{After, Core, Inner, Waiter};
use crate::histogram::Histogram;
use crate::job::{JobId, JobKind, JobName};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate_admission::BudgetStats;
use tollgate_admission::engine::{Engine, Tick};

/// Every figure of a pool at one moment.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolStats {
    /// The budget and its lanes.
    pub budget: BudgetStats,
    /// What became of jobs, per lane, in the same order.
    pub lanes: Vec<LaneJobs>,
    /// The threads.
    pub threads: ThreadStats,
}

/// How many threads a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ThreadStats {
    /// Started and not ended.
    pub alive: usize,
    /// Of these, parked without work.
    pub idle: usize,
    /// The most that there were to work at once.
    pub peak: usize,
}

/// What became of a lane's jobs. Refusals at admission are in [`LaneStats::refused`](tollgate_admission::LaneStats).
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LaneJobs {
    /// The lane's name.
    pub name: Arc<str>,
    /// The counts.
    pub counts: JobCounts,
    /// How long jobs waited that started.
    pub waits: Histogram,
    /// How long closures ran that returned to somebody.
    pub finished: Histogram,
    /// How long closures ran that panicked.
    pub panicked: Histogram,
    /// How long closures ran that returned after they had been abandoned or timed out.
    pub unclaimed: Histogram,
}

/// What became of jobs so far.
///
/// Those that started and have neither finished nor panicked are running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobCounts {
    /// Closures that started, `inline` included.
    pub started: u64,
    /// Closures that returned.
    pub finished: u64,
    /// Closures that panicked.
    pub panicked: u64,
    /// Jobs that were cancelled, or dropped by whoever waited, before they started.
    pub cancelled: u64,
    /// Closures that ended after whoever waited had left. Also in `finished` or `panicked`.
    pub abandoned: u64,
    /// Closures that ended after whoever waited had been told that the time was up. Also in `finished` or `panicked`.
    pub timed_out: u64,
    /// Jobs that ran on the worker that submitted them.
    pub inline: u64,
    /// Jobs that failed for want of a thread.
    pub no_thread: u64,
}

impl PoolStats {
    pub(crate) fn take(core: &Core) -> Self {
        let now = core.now();
        let mut inner = core.lock();
        let budget = inner.state.stats(now);
        let names = budget.lanes.iter().map(|lane| &lane.name);
        let lanes = inner.records(names);
        let threads = inner.thread_stats();
        let mut after = After::of_observer(&inner);
        core.finish(inner, &mut after);
        PoolStats { budget, lanes, threads }
    }

    /// What became of the jobs of the lane with this name. O(lanes).
    #[must_use]
    pub fn lane(&self, name: &str) -> Option<&LaneJobs> {
        self.lanes.iter().find(|lane| &*lane.name == name)
    }
}

impl Inner {
    fn thread_stats(&self) -> ThreadStats {
        ThreadStats { alive: self.alive, idle: self.idle_threads(), peak: self.peak_threads }
    }

    /// Every job that is queued or running.
    pub(crate) fn jobs(&self, core: &Core, now: Tick) -> Vec<JobInfo> {
        let queued = self.state.queued().filter_map(|(_, since, waiter)| match waiter {
            Waiter::Job(job) => Some((job, since)),
            Waiter::Acquire(_) => None,
        });
        let queued = queued.chain(self.ready()).map(|(job, since)| {
            let wait = now.since(since);
            JobInfo::new(core, &**job, JobState::Queued, wait, None)
        });
        let running = self.workers.iter().flat_map(|worker| &worker.running).map(|running| {
            let flags = running.job.header().flags();
            if flags & STARTED == 0 {
                // a worker has it, and is about to start or to refuse it
                return JobInfo::new(core, &*running.job, JobState::Queued, running.waited, None);
            }
            let state = if flags & TIMED_OUT != 0 {
                JobState::TimedOut
            } else if flags & ABANDONED != 0 {
                JobState::Abandoned
            } else {
                JobState::Running
            };
            let ran = Some(now.since(running.started));
            JobInfo::new(core, &*running.job, state, running.waited, ran)
        });
        queued.chain(running).collect()
    }
}

/// A pool's jobs at one moment.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Snapshot {
    /// The budget and its lanes.
    pub budget: BudgetStats,
    /// The threads.
    pub threads: ThreadStats,
    /// Jobs that are queued or running, in no order.
    pub jobs: Vec<JobInfo>,
}

impl Snapshot {
    pub(crate) fn take(core: &Core) -> Self {
        let now = core.now();
        let mut inner = core.lock();
        let budget = inner.state.stats(now);
        let threads = inner.thread_stats();
        let jobs = inner.jobs(core, now);
        let mut after = After::of_observer(&inner);
        core.finish(inner, &mut after);
        Snapshot { budget, threads, jobs }
    }
}

/// A job that is queued or running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// Its kind.
    pub kind: JobKind,
    /// Its lane.
    pub lane: Arc<str>,
    /// Where it stands.
    pub state: JobState,
    /// How long it has waited, or did before it started.
    pub waited: Duration,
    /// How long its closure has run.
    pub ran: Option<Duration>,
}

impl JobInfo {
    fn new(
        core: &Core,
        job: &dyn Job,
        state: JobState,
        waited: Duration,
        ran: Option<Duration>,
    ) -> Self {
        let header = job.header();
        JobInfo {
            id: header.id(),
            name: header.name.clone(),
            kind: header.kind,
            lane: Arc::clone(core.lane_name(header.lane)),
            state,
            waited,
            ran,
        }
    }
}

impl fmt::Display for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobInfo { id, name, kind, lane, state, waited, ran } = self;
        write!(f, "{id} {name} ({kind}, lane `{lane}`) {state}")?;
        match ran {
            Some(ran) => write!(f, ", for {ran:?}"),
            None => write!(f, ", waiting for {waited:?}"),
        }
    }
}

/// Where a job stands. Running means that its closure has started on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum JobState {
    /// Its closure has not started.
    Queued,
    /// Its closure runs.
    Running,
    /// Its closure runs, and whoever waited has left.
    Abandoned,
    /// Its closure runs, and whoever waited was told that the time is up.
    TimedOut,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Abandoned => "abandoned, still running",
            JobState::TimedOut => "timed out, still running",
        })
    }
}
