//! A pool's threads: which there are, what runs on each, and who is called when there is work.
//!
//! # Nobody is forgotten
//!
//! `looking` counts the workers that are awake and will look at the ready jobs, under the lock, before they park;
//! `starting` counts threads that were asked for and have not come to that. The invariant is: *if a job is ready, then a
//! worker is looking, or nobody is parked and every thread that may exist is starting or running a job* (and will look
//! at its end). [`Crew::call`] restores it after every change that adds a ready job or takes a looker away.
//! How many are called depends on how long jobs run: waking a second worker for a job of half a microsecond costs more
//! than it gains, and waking it late for a job of twenty costs the job's length.

use super::records::Notes;
use crate::cell::Job;
use crate::error::RunError;
use crate::stats::ThreadStats;
use crate::sync::Thread;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tollgate_admission::engine::Tick;

/// Above this mean run time, one worker is called per job; below it, one at a time.
const EAGER: u64 = 4_000;

/// All threads of a pool, by their places.
#[derive(Default)]
pub(crate) struct Crew {
    workers: Vec<Worker>,
    /// Parked workers, the one that parked last at the end.
    idle: Vec<usize>,
    vacant: Vec<usize>,
    /// Threads that may be given work: neither retired nor gone.
    threads: usize,
    /// Threads that were asked for, have not been refused and have not ended.
    alive: usize,
    /// Those of them that have come.
    present: usize,
    /// A thread was refused, and none has come since.
    starved: bool,
    peak: usize,
    looking: usize,
    /// Workers that end refused jobs, or emit a warning: they hold no permit, and may take their time.
    detained: usize,
    /// Threads that were asked for and have not come, or are in their start hook.
    starting: usize,
    /// Running mean of run times, in nanoseconds.
    mean_run: u64,
}

/// A place for a thread. Places are reused when threads retire. Aligned, so that no two share a cache line.
#[repr(align(128))]
struct Worker {
    thread: Option<Thread>,
    /// What runs on it: a job, and those it submitted to its own pool, innermost last.
    running: Vec<Running>,
    notes: Notes,
    idle_since: Tick,
    /// In `idle`, and to be unparked by whoever takes it out.
    parked: bool,
    /// Taken out of `idle` to end.
    retired: bool,
}

impl Worker {
    const fn vacant() -> Self {
        Worker {
            thread: None,
            running: Vec::new(),
            notes: Notes::new(),
            idle_since: Tick::ZERO,
            parked: false,
            retired: false,
        }
    }
}

/// A closure that runs.
pub(crate) struct Running {
    pub(crate) job: Arc<dyn Job>,
    pub(crate) started: Tick,
    pub(crate) waited: Duration,
    /// Its time is up, and it was told so.
    timed_out: bool,
    /// It is among those that started: its time was not up when the worker got it.
    counted: bool,
}

impl Running {
    pub(super) fn new(job: Arc<dyn Job>, started: Tick, waited: Duration, counted: bool) -> Self {
        Running { job, started, waited, timed_out: false, counted }
    }

    /// When it is to be told that its time is up; `None` if it was, or is to be refused anyway.
    pub(super) fn due(&self) -> Option<Tick> {
        (self.counted && !self.timed_out).then(|| self.job.header().deadline())
    }

    /// Its time is up: what it is to be told, once.
    pub(super) fn time_out(&mut self, now: Tick) -> (Arc<dyn Job>, RunError) {
        self.timed_out = true;
        let (id, ran) = (self.job.header().id(), now.since(self.started));
        (Arc::clone(&self.job), RunError::TimedOut { id, ran })
    }
}

/// What there is to do, as far as it says how many threads are of use.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    /// Jobs that have their permit and no thread.
    pub(super) ready: usize,
    /// Refused jobs are there to be ended.
    pub(super) remains: bool,
    /// Somebody may wait for that.
    pub(super) urgent: bool,
    /// Permits that are out: jobs that run or are ready hold them.
    pub(super) out: u64,
    pub(super) capacity: u64,
}

/// Who is called.
pub(crate) enum Call {
    Unpark(Thread),
    /// A thread for this place, to be asked of the system.
    Start(usize),
}

/// What a parked worker was called for.
pub(crate) enum Called {
    No,
    Look,
    Leave,
}

impl Crew {
    /// Calls one worker if not enough are looking. With `refused`, the system has just refused a thread, and is asked for
    /// another only if nothing would be done else.
    #[inline]
    pub(super) fn call(&mut self, demand: Demand, refused: bool) -> Option<Call> {
        // of a new pool nobody knows how long its jobs run: it starts its threads side by side
        let short = (1..=EAGER).contains(&self.mean_run);
        let some = usize::from(demand.remains);
        let enough = if short { 1.min(demand.ready) } else { demand.ready }.max(some);
        if self.looking >= enough {
            return None;
        }
        if let Some(id) = self.idle.pop() {
            let worker = &mut self.workers[id];
            worker.parked = false;
            self.looking += 1;
            return worker.thread.clone().map(Call::Unpark);
        }
        let more = self.looking + self.starting < enough
            && (self.threads as u64) < self.use_for_threads(demand)
            && (!refused || (self.threads == 0 && demand.ready > 0));
        more.then(|| {
            self.threads += 1;
            self.alive += 1;
            self.starting += 1;
            Call::Start(self.vacant.pop().unwrap_or_else(|| {
                self.workers.push(Worker::vacant());
                self.workers.len() - 1
            }))
        })
    }

    /// How many threads there could be something to do for.
    #[inline]
    fn use_for_threads(&self, demand: Demand) -> u64 {
        // jobs that run or are ready hold permits; a worker that is detained is none for them, and no part of the capacity
        let use_for_jobs = demand.out.saturating_add(self.detained as u64);
        // what refused jobs left is worth a thread, if the capacity has room for one; who waits for an end is not to wait
        // for closures of others, hence for him one more
        let remains = u64::from(demand.remains);
        let most = demand.capacity.saturating_add(u64::from(demand.urgent));
        use_for_jobs.max(most.min(use_for_jobs.saturating_add(remains)))
    }

    /// More threads than could ever run a job each: the capacity went down, or one came for what refused jobs left.
    #[inline]
    pub(super) fn has_surplus(&self, capacity: u64) -> bool {
        // one that is to come may not
        let there = self.threads - self.starting;
        there as u64 > capacity.saturating_add(self.detained as u64)
    }

    // ---- threads that come and go ----

    /// A worker is there, and is going to look.
    pub(super) fn arrive(&mut self, worker: usize, thread: Thread) {
        let place = &mut self.workers[worker];
        place.thread = Some(thread);
        place.notes.make_room();
        self.present += 1;
        self.starting -= 1;
        self.looking += 1;
        self.starved = false;
        self.peak = self.peak.max(self.present);
    }

    /// A thread that was asked for will not come.
    pub(super) fn lose(&mut self, worker: usize) {
        self.starved = true;
        self.threads -= 1;
        self.alive -= 1;
        self.starting -= 1;
        self.vacant.push(worker);
    }

    /// The thread may be given no more work; it has still to end.
    pub(super) fn leave(&mut self, worker: usize) {
        self.threads -= 1;
        self.workers[worker].retired = true;
    }

    /// The thread has done everything but return to the system. What it has noted is to be entered.
    pub(super) fn gone(&mut self, worker: usize) -> Notes {
        let place = mem::replace(&mut self.workers[worker], Worker::vacant());
        debug_assert!(place.running.is_empty(), "a thread ended with a job on it");
        self.vacant.push(worker);
        self.alive -= 1;
        self.present -= 1;
        place.notes
    }

    /// The system refused a thread, and none has come since.
    pub(super) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Whether no thread may be given work, nor is one to come.
    pub(super) fn is_empty(&self) -> bool {
        self.threads == 0
    }

    /// Threads that were asked for, have not been refused and have not ended.
    #[inline]
    pub(crate) fn alive(&self) -> usize {
        self.alive
    }

    pub(crate) fn stats(&self) -> ThreadStats {
        ThreadStats { alive: self.alive, idle: self.idle.len(), peak: self.peak }
    }

    // ---- workers between two jobs ----

    /// A worker has no job: with `promised`, it will look for one, else it is detained by something else.
    #[inline]
    pub(super) fn pause(&mut self, promised: bool) {
        *if promised { &mut self.looking } else { &mut self.detained } += 1;
    }

    /// Ends what [`pause`](Self::pause) counted.
    #[inline]
    pub(super) fn resume(&mut self, promised: bool) {
        *if promised { &mut self.looking } else { &mut self.detained } -= 1;
    }

    /// The worker is parked from here on, until it is [called](Self::called).
    pub(super) fn park(&mut self, worker: usize, now: Tick) {
        let place = &mut self.workers[worker];
        place.parked = true;
        place.idle_since = now;
        self.idle.push(worker);
    }

    /// For what a parked worker was called, if it was.
    pub(super) fn called(&self, worker: usize) -> Called {
        let place = &self.workers[worker];
        match (place.parked, place.retired) {
            (true, _) => Called::No,
            (false, false) => Called::Look,
            (false, true) => Called::Leave,
        }
    }

    /// Since when the worker is parked that has been for longest.
    pub(super) fn idle_since(&self) -> Option<Tick> {
        self.idle.first().map(|&id| self.workers[id].idle_since)
    }

    /// Retires the worker that has been parked for longest: it is to be called, to end.
    pub(super) fn retire(&mut self) -> Option<Thread> {
        if self.idle.is_empty() {
            return None;
        }
        let id = self.idle.remove(0);
        self.workers[id].parked = false;
        self.leave(id);
        self.workers[id].thread.clone()
    }

    /// All parked workers, to be called to look once more.
    pub(super) fn rouse(&mut self) -> Vec<Thread> {
        let Crew { workers, idle, looking, .. } = self;
        let rouse = |id: usize| {
            workers[id].parked = false;
            *looking += 1;
            workers[id].thread.clone()
        };
        idle.drain(..).filter_map(rouse).collect()
    }

    // ---- what runs ----

    /// This runs on `worker` from here on, within what ran there.
    #[inline]
    pub(super) fn begin(&mut self, worker: usize, running: Running) {
        self.workers[worker].running.push(running);
    }

    /// The innermost that runs on `worker` has ended.
    #[inline]
    pub(super) fn end(&mut self, worker: usize) -> Option<Running> {
        self.workers[worker].running.pop()
    }

    /// A closure ran for so long: how many workers are called goes by that.
    #[inline]
    pub(super) fn learn(&mut self, ran: Duration) {
        let nanos = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX).min(1 << 30);
        self.mean_run = (self.mean_run * 7 + nanos) / 8;
    }

    /// What `worker` has noted of jobs that have ended on it.
    #[inline]
    pub(super) fn notes(&mut self, worker: usize) -> &mut Notes {
        &mut self.workers[worker].notes
    }

    /// What all have noted.
    pub(super) fn all_notes(&mut self) -> impl Iterator<Item = &mut Notes> {
        self.workers.iter_mut().map(|worker| &mut worker.notes)
    }

    /// Everything that runs.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Running> {
        self.workers.iter().flat_map(|worker| &worker.running)
    }

    /// See [`running`](Self::running).
    pub(super) fn running_mut(&mut self) -> impl Iterator<Item = &mut Running> {
        self.workers.iter_mut().flat_map(|worker| &mut worker.running)
    }
}
