//! What a pool tells about itself.

use crate::cell::{ABANDONED, Job, STARTED, TIMED_OUT};
use crate::core::{After, Core, Inner, Running, Waiter};
use crate::histogram::Histogram;
use std::sync::Arc;
use std::time::Duration;
use tollgate_admission::engine::{Engine, GroupId, Tick};
use tollgate_admission::{BudgetStats, JobInfo, JobKind, JobState, JobStates};

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
    /// How many jobs there are in each state.
    pub states: JobStates,
    /// The jobs by kind, for every kind seen so far.
    pub kinds: Vec<KindStats>,
}

/// The jobs of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct KindStats {
    /// The kind.
    pub kind: JobKind,
    /// Jobs whose closures have not started.
    pub queued: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Option<Duration>,
    /// Closures that run, whether or not somebody waits for them.
    pub running: usize,
    /// How long the one that runs longest has run.
    pub oldest_run: Option<Duration>,
}

impl KindStats {
    fn add_queued(&mut self, jobs: usize, wait: Duration) {
        self.queued += jobs;
        self.oldest_wait = self.oldest_wait.max((jobs > 0).then_some(wait));
    }

    fn add_running(&mut self, run: Duration) {
        self.running += 1;
        self.oldest_run = self.oldest_run.max(Some(run));
    }
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
        let threads = inner.crew.stats();
        let (states, kinds) = inner.kind_stats(now);
        let mut after = After::of_observer(&inner);
        core.finish(inner, &mut after);
        PoolStats { budget, lanes, threads, states, kinds }
    }

    /// What became of the jobs of the lane with this name. O(lanes).
    #[must_use]
    pub fn lane(&self, name: &str) -> Option<&LaneJobs> {
        self.lanes.iter().find(|lane| &*lane.name == name)
    }
}

impl Inner {
    /// The jobs by state and by kind. O(kinds), and O(threads + jobs that wait for a thread).
    fn kind_stats(&self, now: Tick) -> (JobStates, Vec<KindStats>) {
        let mut states = JobStates::default();
        let (oldest_wait, oldest_run) = (None, None);
        let none = |kind| KindStats { kind, queued: 0, oldest_wait, running: 0, oldest_run };
        let mut kinds: Vec<_> = self.kinds.iter().map(none).collect();
        // the first class is that of acquires
        for (kind, (waiting, since)) in kinds.iter_mut().zip(self.state.classes().skip(1)) {
            states.queued += waiting;
            kind.add_queued(waiting, since.map_or(Duration::ZERO, |since| now.since(since)));
        }
        let place = |job: &dyn Job| self.kinds.place(job.header().kind);
        let mut admitted = Vec::new();
        for (job, since) in self.ready() {
            admitted.push((place(&**job), JobState::Queued, now.since(since)));
        }
        for running in self.crew.running() {
            let state = state_of(running);
            let span =
                if state == JobState::Queued { running.waited } else { now.since(running.started) };
            admitted.push((place(&*running.job), state, span));
        }
        for (at, state, span) in admitted {
            states.count(state);
            let Some(kind) = kinds.get_mut(at) else { continue };
            match state {
                JobState::Queued => kind.add_queued(1, span),
                _ => kind.add_running(span),
            }
        }
        (states, kinds)
    }

    /// The jobs that have their permit, of `group` if one is given. O(threads + jobs that wait for a thread).
    fn admitted(&self, core: &Core, now: Tick, group: Option<GroupId>) -> Vec<JobInfo> {
        let is_in = |job: &dyn Job| group.is_none() || job.header().group() == group;
        let ready = self.ready().filter(|(job, _)| is_in(&***job));
        let ready =
            ready.map(|(job, since)| info(core, &**job, JobState::Queued, now.since(since), None));
        let running = self.crew.running();
        let running = running.filter(|running| is_in(&*running.job)).map(|running| {
            let state = state_of(running);
            let ran = (state != JobState::Queued).then(|| now.since(running.started));
            info(core, &*running.job, state, running.waited, ran)
        });
        ready.chain(running).collect()
    }

    /// The jobs of `group`. O(its waiters + threads).
    pub(crate) fn jobs_of(&self, core: &Core, now: Tick, group: GroupId) -> Vec<JobInfo> {
        let mut jobs = self.admitted(core, now, Some(group));
        let waiting = self.state.waiting_in(group);
        jobs.extend(waiting.filter_map(|(_, since, waiter)| queued(core, now, since, waiter)));
        jobs
    }
}

/// Where a job stands that a worker has.
fn state_of(running: &Running) -> JobState {
    let flags = running.job.header().flags();
    if flags & STARTED == 0 {
        // about to be started, or to be refused
        JobState::Queued
    } else if flags & TIMED_OUT != 0 {
        JobState::TimedOut
    } else if flags & ABANDONED != 0 {
        JobState::Abandoned
    } else {
        JobState::Running
    }
}

fn queued(core: &Core, now: Tick, since: Tick, waiter: &Waiter) -> Option<JobInfo> {
    match waiter {
        Waiter::Job(job) => Some(info(core, &**job, JobState::Queued, now.since(since), None)),
        Waiter::Acquire(_) => None,
    }
}

/// Every job that is queued or running. `first` is called under the first hold of the lock, which shows all that have their
/// permit; those that wait for one are copied in steps, so that nobody waits long for the lock. One that starts meanwhile
/// may be missing.
pub(crate) fn jobs<R>(core: &Core, first: impl FnOnce(&mut Inner, Tick) -> R) -> (R, Vec<JobInfo>) {
    /// Waiters that are looked at under one hold of the lock: some tens of microseconds.
    const STEP: usize = 256;
    let now = core.now();
    let mut inner = core.lock();
    let mut after = After::of_observer(&inner);
    // whoever looks when a deadline has passed sees it passed, whether or not the timer has called
    inner.end_overdue(now, &mut after);
    let result = first(&mut inner, now);
    let mut jobs = inner.admitted(core, now, None);
    let mut at = 0;
    loop {
        // room for what a step finds is not made under the lock
        let (next, waiting) = inner.state.queued_from(at, STEP);
        jobs.extend(waiting.filter_map(|(_, since, waiter)| queued(core, now, since, waiter)));
        core.finish(inner, &mut after);
        match next {
            Some(next) => at = next,
            None => return (result, jobs),
        }
        jobs.reserve(STEP);
        inner = core.lock();
        after = After::of_observer(&inner);
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
        let ((budget, threads), jobs) =
            jobs(core, |inner, now| (inner.state.stats(now), inner.crew.stats()));
        Snapshot { budget, threads, jobs }
    }
}

fn info(
    core: &Core,
    job: &dyn Job,
    state: JobState,
    waited: Duration,
    ran: Option<Duration>,
) -> JobInfo {
    let header = job.header();
    JobInfo {
        id: header.id(),
        name: header.name.clone(),
        kind: header.kind,
        lane: Arc::clone(core.lane_name(header.lane())),
        state,
        waited,
        ran,
    }
}
