//! A pool's lock, and what happens under it.
//!
//! # Who does what
//!
//! A job that is admitted goes to `ready`; a worker that is free takes it from there. A worker that ends a job returns the
//! permit, hands on what became free, and takes its next job under one hold of the lock, so that a saturated pool wakes
//! nobody but the caller who gets a result.
//!
//! # Nobody is forgotten
//!
//! `looking` counts the workers that are awake and will look at `ready`, under the lock, before they park; `starting`
//! counts threads that were asked for and have not come to that. The invariant is: *if `ready` holds a job, then a worker
//! is looking, or nobody is parked and every thread that may exist is starting or running a job* (and will look
//! at its end). [`Inner::call_worker`] restores it after every change that adds to `ready` or takes a looker away.
//! How many are called depends on how long jobs run: waking a second worker for a job of half a microsecond costs more
//! than it gains, and waking it late for a job of twenty costs the job's length.
//!
//! # Lock order
//!
//! The pool's lock is the only one taken here. Cells have locks of their own; nobody takes one while holding the pool's,
//! or the other way round.

use crate::cell::{Ending, Header, Job, STARTED};
use crate::error::{RunError, SubmitError};
use crate::histogram::Histogram;
use crate::owner::{OnGone, Owner};
use crate::policy::Timing;
use crate::stats::{JobCounts, LaneJobs};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, Thread};
use crate::thread::Threads;
use crossbeam_utils::CachePadded;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use tollgate_admission::engine::{
    self, Alarm, Attempt, Bound, Cause, Claim, Engine, Entered, GroupId, Key, LaneId, LeaseRef,
    Member, Membership, Operation, Outcome, Request, State, Status, Tick, Told, WakeList, WakerSet,
};
use tollgate_admission::time::OnTime;
use tollgate_admission::{
    Closed, Deadline, JobId, JobInfo, JobKind, JobName, NoTimer, Scope, TimeSource,
};

/// What waits for a permit of a pool.
pub(crate) enum Waiter {
    Acquire(Waker),
    Job(Arc<dyn Job>),
}

/// A job that has its permit and waits for a worker.
pub(crate) struct Ready {
    pub(crate) job: Arc<dyn Job>,
    /// When it was accepted.
    since: Tick,
    /// It came with a permit that was held before: closing the pool does not take it back.
    held: bool,
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

/// A job that has ended, to be entered into its lane's record.
#[derive(Clone, Copy)]
struct Ended {
    lane: u32,
    flags: u8,
    panicked: bool,
    waited: Duration,
    ran: Duration,
}

/// How many ended jobs a worker notes before they are entered. The records are shared by all workers, and so move from
/// core to core when they are written; the notes stay with the worker.
const NOTES: usize = 32;

/// A place for a thread. Places are reused when threads retire. Aligned, so that no two share a cache line.
#[repr(align(128))]
pub(crate) struct Worker {
    pub(crate) thread: Option<Thread>,
    /// What runs on it: a job, and those it submitted to its own pool, innermost last.
    pub(crate) running: Vec<Running>,
    /// Jobs that have ended on it, not yet in the records.
    notes: Vec<Ended>,
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
            notes: Vec::new(),
            idle_since: Tick::ZERO,
            parked: false,
            retired: false,
        }
    }
}

/// Figures of a lane beyond those of its budget.
#[derive(Default)]
pub(crate) struct LaneRecord {
    pub(crate) counts: JobCounts,
    pub(crate) waits: Histogram,
    pub(crate) finished: Histogram,
    pub(crate) panicked: Histogram,
    pub(crate) unclaimed: Histogram,
}

pub(crate) struct Inner {
    pub(crate) state: State<Waiter>,
    ready: VecDeque<Ready>,
    pub(crate) workers: Vec<Worker>,
    /// Parked workers, the one that parked last at the end.
    idle: Vec<usize>,
    vacant: Vec<usize>,
    /// Threads that may be given work: neither retired nor gone.
    threads: usize,
    /// Threads that were asked for, have not been refused and have not ended.
    pub(crate) alive: usize,
    /// Those of them that have come.
    present: usize,
    /// A thread was refused, and none has come since.
    starved: bool,
    pub(crate) peak_threads: usize,
    looking: usize,
    /// Workers that end refused jobs, or emit a warning: they hold no permit, and may take their time.
    detained: usize,
    /// Threads that were asked for and have not come, or are in their start hook.
    starting: usize,
    jobs: u64,
    /// Running mean of run times, in nanoseconds.
    mean_run: u64,
    alarm: Alarm,
    /// The owner is gone: nothing starts any more, whatever permit it has.
    orphaned: bool,
    pub(crate) lanes: Vec<LaneRecord>,
    /// Those who wait for the pool to be quiet.
    pub(crate) quiet: WakerSet,
    /// Refused jobs whose captures may still be there, for a worker to drop between two jobs.
    remains: VecDeque<Arc<dyn Job>>,
    /// Refused jobs that have not been through `remains`, and those that were taken from it and have not been ended.
    refusing: usize,
    /// Somebody is ending all of them.
    reaped: bool,
    /// What jobs under a drain lease have of it, by id.
    operations: HashMap<JobId, Operation>,
    /// Kinds of jobs seen so far: their places, from 1, are their classes in the state.
    pub(crate) kinds: Vec<JobKind>,
    /// The scope that the pool's threads belong to.
    attached: Option<Attached>,
}

/// The place of a whole pool in a scope.
struct Attached {
    membership: Arc<Membership>,
    /// The scope was told that the pool is quiet.
    told: bool,
    /// Numbers what the scope is told. It is told outside the lock, and so maybe in another order.
    news: u64,
    /// Submissions under way that are under a lease: whatever the pool has, it is not quiet.
    pins: usize,
}

/// What a pool that is attached to a scope has of it.
pub(crate) struct Whole {
    /// For all its work, but what belongs to another scope.
    pub(crate) group: GroupId,
    pub(crate) scope: Scope,
    /// What the scope knows the pool by, and does not keep.
    pub(crate) _member: Arc<dyn Member>,
}

/// A pool, shared by its handles, its workers and whoever waits for a result.
pub(crate) struct Core {
    /// Padded: the counts of handles beside it change with every job too, on other cores.
    inner: CachePadded<Mutex<Inner>>,
    /// Copy of `ready.len()`, for workers that look without the lock. A hint: what counts is under the lock.
    ready_hint: AtomicUsize,
    pub(crate) time: Arc<dyn TimeSource>,
    epoch: Instant,
    names: Vec<Arc<str>>,
    timing: Vec<Timing>,
    pub(crate) threads: Threads,
    pub(crate) keep_alive: Duration,
    pub(crate) spans: bool,
    pub(crate) owner: Owner,
    /// Jobs that run for as long as their service does are in their place here.
    pub(crate) dedicated: bool,
    pub(crate) whole: OnceLock<Whole>,
    pub(crate) me: Weak<Core>,
}

/// How those that come and go with every job hold on to their pool.
///
/// The count in an `Arc<Core>` is one cache line for all cores: counting every job there costs more than many a job. So
/// each executor has a count of its own, for the jobs that come through it.
#[derive(Clone)]
pub(crate) enum Link {
    Executor(Arc<ExecutorsOwn>),
    Direct(Arc<Core>),
}

/// The core, behind an executor's own count, and the scope that the executor is for.
pub(crate) struct ExecutorsOwn {
    core: Arc<Core>,
    bound: Option<Arc<Bound<Core>>>,
}

impl Link {
    /// For one executor.
    pub(crate) fn for_executor(core: &Arc<Core>) -> Self {
        Link::Executor(Arc::new(ExecutorsOwn { core: Arc::clone(core), bound: None }))
    }

    /// For one executor, whose jobs belong to a scope.
    pub(crate) fn for_scope(bound: Arc<Bound<Core>>) -> Self {
        let core = Arc::clone(bound.engine());
        Link::Executor(Arc::new(ExecutorsOwn { core, bound: Some(bound) }))
    }

    /// Another one, with a count of its own.
    pub(crate) fn renewed(&self) -> Self {
        match self {
            Link::Executor(own) => match &own.bound {
                Some(bound) => Link::for_scope(Arc::clone(bound)),
                None => Link::for_executor(&own.core),
            },
            Link::Direct(core) => Link::for_executor(core),
        }
    }

    /// The group of the jobs that come this way: that of the scope they are bound to, else that of the whole pool.
    pub(crate) fn group(&self) -> Option<GroupId> {
        match self {
            Link::Executor(own) if let Some(bound) = &own.bound => Some(bound.group()),
            _ => self.whole.get().map(|whole| whole.group),
        }
    }

    /// The scope of the jobs that come this way.
    pub(crate) fn scope(&self) -> Option<&Scope> {
        match self {
            Link::Executor(own) if let Some(bound) = &own.bound => Some(bound.scope()),
            _ => self.whole.get().map(|whole| &whole.scope),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("group", &self.group()).finish_non_exhaustive()
    }
}

impl Deref for Link {
    type Target = Arc<Core>;

    #[inline]
    fn deref(&self) -> &Arc<Core> {
        match self {
            Link::Executor(own) => &own.core,
            Link::Direct(core) => core,
        }
    }
}

/// What is to be done once the lock is released.
#[derive(Default)]
pub(crate) struct After {
    wakes: WakeList,
    /// What is not done for every job.
    rare: Option<Box<Rare>>,
    unpark: Option<Thread>,
    start: Option<usize>,
    /// The earliest moment, besides the state's own, at which time has to be looked at.
    due: Option<Tick>,
    /// A call to ask the time source for.
    arm: Option<Tick>,
    /// More was settled than one hold of the lock should tell.
    more: bool,
    /// A thread was refused on the way: another one is not asked for at once, lest it be refused for ever.
    thread_refused: bool,
    /// There is no worker to end the jobs that were refused.
    reap: bool,
}

/// What happens now and then.
#[derive(Default)]
struct Rare {
    /// What scopes are to be told.
    told: Vec<Told>,
    errands: Vec<Errand>,
    refused: Vec<Refusal>,
}

/// A job that is to be told that it was refused.
struct Refusal {
    job: Arc<dyn Job>,
    error: RunError,
    /// Its permit is out.
    held: bool,
}

/// Something that happens now and then.
enum Errand {
    /// The job's time is up while it runs.
    TimeOut(Arc<dyn Job>, RunError),
    /// The thread is to look, or to end.
    Call(Thread),
}

impl Refusal {
    fn tell(self) -> Arc<dyn Job> {
        self.job.refuse(self.error, self.held);
        self.job
    }
}

impl After {
    /// For those who only look: where the last thread was refused, they don't ask for another.
    pub(crate) fn of_observer(inner: &Inner) -> Self {
        After { thread_refused: inner.starved, ..After::default() }
    }

    #[cold]
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// What scopes are to be told is told.
    #[inline]
    fn tell(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.told.drain(..).for_each(Told::tell);
        }
    }

    #[inline]
    fn due_at(&mut self, at: Tick) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

/// Above this mean run time, one worker is called per job; below it, one at a time.
const EAGER: u64 = 4_000;

impl Inner {
    /// Sorts what the state settled: jobs to `ready`, wakers and refusals to `after`. `true` when there may be more.
    #[inline]
    fn sort_settled(&mut self, after: &mut After) -> bool {
        let mut told = 0;
        while told < WakeList::BATCH {
            let Some(mut settled) = self.state.announce() else { return false };
            told += 1;
            // an acquire stays until its owner looks
            if let Some(Waiter::Acquire(waker)) = settled.waiter() {
                after.wakes.push(mem::replace(waker, Waker::noop().clone()));
                continue;
            }
            let (outcome, since) = (settled.outcome(), settled.since());
            let Some(Waiter::Job(job)) = settled.take() else { continue };
            match outcome {
                Outcome::Granted => self.make_ready(job, since, false, after),
                Outcome::Refused(cause) => {
                    let error = self.state.acquire_error(&job.header().request(), cause);
                    self.refuse(job, RunError::Refused(error), false, after);
                }
            }
        }
        true
    }

    #[cold]
    fn refuse(&mut self, job: Arc<dyn Job>, error: RunError, held: bool, after: &mut After) {
        self.refusing += 1;
        if let (false, Some(group)) = (held, job.header().group()) {
            // it leaves its scope when its captures are gone
            self.state.join(group);
        }
        after.rare().refused.push(Refusal { job, error, held });
    }

    /// A job has its permit. Should it find no worker in time, it is refused all the same.
    #[inline]
    fn make_ready(&mut self, job: Arc<dyn Job>, since: Tick, held: bool, after: &mut After) {
        // the lane's queue timeout is for the wait that is over now; the caller's deadline is for the start
        after.due_at(job.header().deadline());
        self.ready.push_back(Ready { job, since, held });
    }

    /// Takes jobs that have waited for a worker for too long out of `ready`, to be refused.
    fn refuse_overdue(&mut self, now: Tick, after: &mut After) {
        for entry in mem::take(&mut self.ready) {
            let deadline = entry.job.header().deadline();
            if deadline > now {
                after.due_at(deadline);
                self.ready.push_back(entry);
                continue;
            }
            let request = entry.job.header().request();
            self.state.count_refusal(request.lane, Cause::Deadline);
            let error = self.state.acquire_error(&request, Cause::Deadline);
            self.refuse(entry.job, RunError::Refused(error), true, after);
        }
    }

    /// Refuses what has waited too long, and tells those that run for too long.
    pub(crate) fn end_overdue(&mut self, now: Tick, after: &mut After) {
        self.state.advance(now);
        self.refuse_overdue(now, after);
        for running in self.workers.iter_mut().flat_map(|worker| &mut worker.running) {
            if running.timed_out || !running.counted {
                continue;
            }
            let header = running.job.header();
            if header.deadline() > now {
                after.due_at(header.deadline());
                continue;
            }
            running.timed_out = true;
            let ran = now.since(running.started);
            let error = RunError::TimedOut { id: header.id(), ran };
            after.rare().errands.push(Errand::TimeOut(Arc::clone(&running.job), error));
        }
    }

    /// Restores the invariant that no ready job is forgotten.
    #[inline]
    fn call_worker(&mut self, core: &Core, after: &mut After) {
        core.ready_hint.store(self.ready.len(), Ordering::Relaxed);
        // of a new pool nobody knows how long its jobs run: it starts its threads side by side
        let short = (1..=EAGER).contains(&self.mean_run);
        let some = usize::from(!self.remains.is_empty());
        let enough = if short { 1.min(self.ready.len()) } else { self.ready.len() }.max(some);
        // one call per hold of the lock: whoever is called calls the next
        if self.looking >= enough || after.unpark.is_some() || after.start.is_some() {
            return;
        }
        if let Some(id) = self.idle.pop() {
            let worker = &mut self.workers[id];
            worker.parked = false;
            after.unpark.clone_from(&worker.thread);
            self.looking += 1;
        } else if self.looking + self.starting < enough
            && (self.threads as u64) < self.use_for_threads()
            && (!after.thread_refused || (self.threads == 0 && !self.ready.is_empty()))
        {
            let id = self.vacant.pop().unwrap_or_else(|| {
                self.workers.push(Worker::vacant());
                self.workers.len() - 1
            });
            self.threads += 1;
            self.alive += 1;
            self.starting += 1;
            after.start = Some(id);
        }
    }

    /// How many threads there could be something to do for.
    #[inline]
    fn use_for_threads(&self) -> u64 {
        // jobs that run or are ready hold permits; a worker that is detained is none for them, and no part of the capacity
        let use_for_jobs = self.state.out().saturating_add(self.detained as u64);
        // what refused jobs left is worth a thread, if the capacity has room for one
        let remains = u64::from(!self.remains.is_empty());
        use_for_jobs.max(self.state.capacity().min(use_for_jobs.saturating_add(remains)))
    }

    /// Collects what scopes are to be told once the lock is gone.
    #[inline]
    fn collect_told(&mut self, after: &mut After) {
        if self.state.has_news() {
            after.rare().told.extend(std::iter::from_fn(|| self.state.next_told()));
        }
    }

    /// Sees to it that the earliest of all moments to come is not missed. Once per hold of the lock.
    #[inline]
    fn arm(&mut self, after: &mut After) {
        let due = self.state.next_deadline().min(after.due.take().unwrap_or(Tick::NEVER));
        if let Some(at) = self.alarm.ask(due, self.state.latest()) {
            after.arm = Some(at);
        }
    }

    /// Nothing is queued, nothing runs, no permit is out and no thread is left, for good.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.is_drained() && self.alive == 0 && self.refusing == 0 && self.remains.is_empty()
    }

    /// The thread for `id` did not come to be. The job runs later on another thread; if there is none, the jobs that
    /// wait for one fail.
    fn thread_refused(&mut self, id: usize, error: io::Error, after: &mut After) {
        after.thread_refused = true;
        self.starved = true;
        self.threads -= 1;
        self.alive -= 1;
        self.starting -= 1;
        self.vacant.push(id);
        if self.threads == 0 {
            let source = Arc::new(error);
            self.take_back_ready(
                |_| true,
                after,
                |inner, job| {
                    inner.lanes[job.header().lane().0 as usize].counts.no_thread += 1;
                    RunError::NoThread { source: Arc::clone(&source) }
                },
            );
        }
    }

    /// Enters what `worker` has noted into the records of the lanes.
    fn enter_notes(&mut self, worker: usize) {
        let Inner { workers, lanes, .. } = self;
        for ended in workers[worker].notes.drain(..) {
            lanes[ended.lane as usize].enter(&ended);
        }
    }

    /// What became of the jobs of all lanes, to this moment.
    pub(crate) fn records<'a>(
        &mut self,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<LaneJobs> {
        for worker in 0..self.workers.len() {
            self.enter_notes(worker);
        }
        let mut lanes: Vec<_> =
            names.zip(&self.lanes).map(|(name, record)| record.copy(name)).collect();
        for running in self.workers.iter().flat_map(|worker| &worker.running) {
            let header = running.job.header();
            let started = header.flags() & STARTED != 0;
            lanes[header.lane().0 as usize].counts.started += u64::from(started);
        }
        lanes
    }

    /// The class of jobs of this kind; that of acquires is 0.
    #[inline]
    fn class_of(&mut self, kind: JobKind) -> u16 {
        let known = self.kinds.iter().position(|&known| known == kind);
        let place = known.unwrap_or_else(|| {
            // whoever makes up kinds without end finds them counted with the last
            if self.kinds.len() < usize::from(u16::MAX) {
                self.kinds.push(kind);
            }
            self.kinds.len() - 1
        });
        place as u16 + 1
    }

    /// Gives a job its id, and the operation that it is; returns its class.
    fn register(&mut self, job: &dyn Job, operation: Option<Operation>) -> u16 {
        self.jobs += 1;
        job.header().set_id(self.jobs);
        if let Some(operation) = operation {
            self.operations.insert(job.header().id(), operation);
        }
        self.class_of(job.header().kind)
    }

    /// The operation that a job was, to be dropped outside the lock.
    #[inline]
    fn take_operation(&mut self, header: &Header, started: bool) -> Option<Operation> {
        if !header.is_leased() {
            return None;
        }
        let mut operation = self.operations.remove(&header.id())?;
        if started {
            operation.start();
        }
        Some(operation)
    }

    /// Takes admitted jobs that have not started out of `ready`, to be refused and give back their permits.
    fn take_back_ready(
        &mut self,
        which: impl Fn(&Ready) -> bool,
        after: &mut After,
        error: impl Fn(&mut Self, &dyn Job) -> RunError,
    ) {
        for entry in mem::take(&mut self.ready) {
            if which(&entry) {
                let error = error(self, &*entry.job);
                self.refuse(entry.job, error, true, after);
            } else {
                self.ready.push_back(entry);
            }
        }
    }

    /// The error for a job that was refused as closed, once that is counted.
    fn closed_error(&mut self, job: &dyn Job, closed: Closed) -> RunError {
        let request = job.header().request();
        let cause = Cause::Closed(closed);
        self.state.count_refused(&request, cause);
        RunError::Refused(self.state.acquire_error(&request, cause))
    }

    /// A job that was refused, for the caller to [end](Core::reap). One at a time: those behind a destructor that never ends
    /// are for others.
    fn take_remains(&mut self) -> Option<Arc<dyn Job>> {
        let job = self.remains.pop_front()?;
        self.refusing += 1;
        Some(job)
    }

    pub(crate) fn ready(&self) -> impl Iterator<Item = (&Arc<dyn Job>, Tick)> {
        self.ready.iter().map(|entry| (&entry.job, entry.since))
    }

    /// More threads than could ever run a job each: the capacity went down.
    #[inline]
    fn has_surplus(&self) -> bool {
        // one that is to come may not
        let there = self.threads - self.starting;
        there as u64 > self.state.capacity().saturating_add(self.detained as u64)
    }

    pub(crate) fn idle_threads(&self) -> usize {
        self.idle.len()
    }
}

/// What a pool is made of, once it has been checked.
pub(crate) struct Parts {
    pub(crate) state: State<Waiter>,
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) timing: Vec<Timing>,
    pub(crate) time: Arc<dyn TimeSource>,
    pub(crate) threads: Threads,
    pub(crate) keep_alive: Duration,
    pub(crate) spans: bool,
    pub(crate) owner: Owner,
    pub(crate) dedicated: bool,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Arc<Core> {
        let lanes = parts.names.len();
        let inner = Inner {
            state: parts.state,
            ready: VecDeque::new(),
            workers: Vec::new(),
            idle: Vec::new(),
            vacant: Vec::new(),
            threads: 0,
            alive: 0,
            present: 0,
            starved: false,
            peak_threads: 0,
            looking: 0,
            detained: 0,
            starting: 0,
            jobs: 0,
            mean_run: 0,
            alarm: Alarm::new(),
            orphaned: false,
            lanes: (0..lanes).map(|_| LaneRecord::default()).collect(),
            quiet: WakerSet::default(),
            remains: VecDeque::new(),
            refusing: 0,
            reaped: false,
            operations: HashMap::new(),
            kinds: Vec::new(),
            attached: None,
        };
        let core = Arc::new_cyclic(|me| Core {
            inner: CachePadded::new(Mutex::new(inner)),
            ready_hint: AtomicUsize::new(0),
            epoch: parts.time.now(),
            time: parts.time,
            names: parts.names,
            timing: parts.timing,
            threads: parts.threads,
            keep_alive: parts.keep_alive,
            spans: parts.spans,
            owner: parts.owner,
            dedicated: parts.dedicated,
            whole: OnceLock::new(),
            me: me.clone(),
        });
        core.owner.watch(Arc::downgrade(&core));
        core
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn lane_name(&self, lane: LaneId) -> &Arc<str> {
        &self.names[lane.0 as usize]
    }

    pub(crate) fn deadline(&self, tick: Tick) -> Deadline {
        tick.to_instant(self.epoch).map_or(Deadline::never(), Deadline::at)
    }

    pub(crate) fn timing(&self, lane: LaneId) -> Timing {
        self.timing[lane.0 as usize]
    }

    pub(crate) fn ready_hint(&self) -> usize {
        // Relaxed: a stale reading is corrected by the look under the lock that follows
        self.ready_hint.load(Ordering::Relaxed)
    }

    /// Sorts and hands on what the holder of `guard` settled, then unlocks and does what was collected. In rounds, so
    /// that the lock is not held for long however many there are to tell.
    #[inline]
    pub(crate) fn finish<'a>(&'a self, mut guard: MutexGuard<'a, Inner>, after: &mut After) {
        loop {
            let inner = &mut *guard;
            after.more = inner.state.has_settled() && inner.sort_settled(after);
            inner.call_worker(self, after);
            inner.arm(after);
            inner.collect_told(after);
            let mut quiet = None;
            if inner.is_quiet() {
                inner.quiet.take_all(&mut after.wakes);
                quiet = inner.attached.as_mut().and_then(Attached::tell_quiet);
            }
            drop(guard);
            if let Some((membership, news)) = quiet {
                membership.quiet(news);
            }
            match self.run(after) {
                Some(next) => guard = next,
                None => break,
            }
        }
        after.thread_refused = false;
        if mem::take(&mut after.reap) {
            self.reap_all();
        }
    }

    /// Does what was collected under the lock. Locks again when that leaves more to be settled.
    #[inline]
    fn run(&self, after: &mut After) -> Option<MutexGuard<'_, Inner>> {
        if let Some(thread) = after.unpark.take() {
            thread.unpark();
        }
        after.tell();
        after.wakes.wake_all();
        if let Some(at) = after.arm.take().and_then(|tick| tick.to_instant(self.epoch)) {
            self.time.call_at(at, self.me.clone());
        }
        if let Some(rare) = &mut after.rare {
            Self::run_errands(&mut rare.errands);
            if !rare.refused.is_empty() {
                return Some(self.tell_refused(&mut rare.refused));
            }
        }
        if let Some(id) = after.start.take()
            && let Err(error) = self.start_thread(id)
        {
            let mut guard = self.lock();
            guard.thread_refused(id, error, after);
            after.reap |= guard.threads == 0;
            return Some(guard);
        }
        mem::take(&mut after.more).then(|| self.lock())
    }

    #[cold]
    fn run_errands(errands: &mut Vec<Errand>) {
        for errand in errands.drain(..) {
            match errand {
                Errand::TimeOut(job, error) => job.time_out(error),
                Errand::Call(thread) => thread.unpark(),
            }
        }
    }

    /// Tells jobs that they were refused, and leaves what remains of them to a worker.
    #[cold]
    fn tell_refused(&self, refused: &mut Vec<Refusal>) -> MutexGuard<'_, Inner> {
        let jobs: Vec<_> = refused.drain(..).map(Refusal::tell).collect();
        let mut guard = self.lock();
        guard.refusing -= jobs.len();
        guard.remains.extend(jobs);
        guard
    }

    /// Ends a job that was refused, unless its watcher has.
    pub(crate) fn reap(&self, job: Arc<dyn Job>) {
        job.reap(self);
        drop(job);
        let mut after = After::default();
        let mut guard = self.lock();
        guard.refusing -= 1;
        self.finish(guard, &mut after);
    }

    /// Ends all jobs that were refused, where no worker can be had for them. One thread at a time does so, and does so for
    /// all, itself included when it comes here again.
    #[cold]
    fn reap_all(&self) {
        if mem::replace(&mut self.lock().reaped, true) {
            return;
        }
        loop {
            let mut inner = self.lock();
            let job = inner.take_remains();
            inner.reaped = job.is_some();
            drop(inner);
            match job {
                Some(job) => self.reap(job),
                None => return,
            }
        }
    }

    /// A job that was refused or withdrawn, and whose captures are gone, leaves everything: with `held`, its permit is out;
    /// with `counted`, it is among those that the pool waits for.
    pub(crate) fn part(&self, header: &Header, held: bool, counted: bool) {
        if !held && header.group().is_none() && !header.is_leased() {
            return;
        }
        let mut after = After::default();
        let mut guard = self.lock();
        if held {
            guard.state.release(&header.claim(), || self.now());
        } else if let Some(group) = header.group() {
            guard.state.leave(group);
        }
        guard.refusing -= usize::from(counted);
        let operation = guard.take_operation(header, false);
        self.finish(guard, &mut after);
        drop(operation);
    }

    /// Does what [`turn_over`](Self::turn_over) collected, once the result is out.
    #[inline]
    pub(crate) fn settle(&self, after: &mut After) {
        if let Some(guard) = self.run(after) {
            self.finish(guard, after);
        }
    }

    // ---- submission ----

    /// Accepts a job: it is ready, or queued under the key that is returned.
    pub(crate) fn submit(
        &self,
        job: Arc<dyn Job>,
        operation: Option<Operation>,
    ) -> Result<Option<Key>, SubmitError> {
        let request = job.header().request();
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let request = Request { class: inner.register(&*job, operation), ..request };
        if request.group.is_some() {
            job.header().tighten(inner.state.deadline_of(&request));
        }
        let result = match inner.state.enter(&request, Waiter::Job(job), || now) {
            Entered::Queued(key) => Ok(Some(key)),
            Entered::Refused(cause, waiter) => Err((cause, waiter)),
            Entered::Granted(waiter) => {
                if let Waiter::Job(job) = waiter {
                    inner.make_ready(job, now, false, &mut after);
                }
                Ok(None)
            }
        };
        let result = result.map_err(|(cause, waiter)| {
            let error = SubmitError::Refused(inner.state.acquire_error(&request, cause));
            let operation = match &waiter {
                Waiter::Job(job) => inner.take_operation(job.header(), false),
                Waiter::Acquire(_) => None,
            };
            (error, waiter, operation)
        });
        self.finish(guard, &mut after);
        // a job that was refused is dropped here, outside the lock
        result.map_err(|(error, ..)| error)
    }

    /// Accepts a job whose permit is out already; when it is refused, the permit is still the caller's to return.
    pub(crate) fn submit_held(
        &self,
        job: Arc<dyn Job>,
        operation: Option<Operation>,
    ) -> Result<(), (SubmitError, Option<Operation>)> {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let request = job.header().request();
        job.header().tighten(inner.state.deadline_of(&request));
        let cause = if inner.orphaned {
            Some(Cause::Closed(Closed::Runtime))
        } else if job.header().deadline() <= now {
            Some(Cause::Deadline)
        } else {
            None
        };
        let result = match cause {
            None => {
                inner.register(&*job, operation);
                inner.make_ready(job, now, true, &mut after);
                Ok(())
            }
            Some(cause) => {
                inner.state.count_refusal(request.lane, cause);
                let error = SubmitError::Refused(inner.state.acquire_error(&request, cause));
                Err((error, operation, job))
            }
        };
        self.finish(guard, &mut after);
        result.map_err(|(error, operation, _job)| (error, operation))
    }

    /// Whether work of this kind, under this lease if there is one, has a place here. If it is under a lease, what is
    /// returned is to be kept until the work has shown itself: see [`Pinned`].
    ///
    /// # Errors
    ///
    /// Why it has none, counted once.
    pub(crate) fn let_in(
        &self,
        request: &Request,
        kind: JobKind,
        lease: Option<&LeaseRef>,
    ) -> Result<Option<Pinned<'_>>, Cause> {
        // pinned before it is looked at: the pool is not to end in between
        let pinned = lease.map(|_| self.pin());
        let cause = if kind == JobKind::LONG_RUNNING && !self.dedicated {
            Cause::LongRunning
        } else if lease.is_some_and(|lease| self.ended_without(lease)) {
            Cause::Closed(Closed::Scope)
        } else {
            return Ok(pinned);
        };
        self.with(|state| state.count_refused(request, cause));
        Err(cause)
    }

    /// Takes an unwanted job out of the pool, drops its captures, and returns its permit if it had one. `false` when a
    /// worker has it, or somebody who refuses it: that one ends it.
    pub(crate) fn withdraw(&self, job: &Arc<dyn Job>, key: Option<Key>) -> bool {
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let header = job.header();
        let (found, held) = if let Some(key) = key
            && inner.state.status(key) == Status::Waiting
        {
            (inner.state.cancel(key, || self.now()), false)
        } else {
            let at = inner.ready.iter().position(|entry| is_same(&entry.job, job));
            let entry = at.and_then(|at| inner.ready.remove(at));
            (entry.map(|entry| Waiter::Job(entry.job)), true)
        };
        if found.is_some() {
            inner.lanes[header.lane().0 as usize].counts.cancelled += 1;
            if let Some(group) = header.group() {
                // its scope, or that of the whole pool, waits for its captures
                inner.refusing += 1;
                if !held {
                    inner.state.join(group);
                }
            }
        }
        self.finish(guard, &mut after);
        if found.is_some() {
            job.discard();
            self.part(header, held, header.group().is_some());
        }
        found.is_some()
    }

    // ---- what workers do ----

    /// The next ready job, now `worker`'s, and whether its time is up: then it gets it only to refuse it.
    #[inline]
    pub(crate) fn take(
        &self,
        inner: &mut Inner,
        worker: usize,
        now: Tick,
        after: &mut After,
    ) -> Option<(Arc<dyn Job>, bool)> {
        let Ready { job, since, .. } = inner.ready.pop_front()?;
        let expired = job.header().deadline() <= now;
        self.started(inner, worker, Arc::clone(&job), since, !expired, now, after);
        Some((job, expired))
    }

    /// `job` is `worker`'s from here on. Unless it is only there to be refused, its run counts, and its task timeout
    /// begins.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "one call site per way of starting")]
    fn started(
        &self,
        inner: &mut Inner,
        worker: usize,
        job: Arc<dyn Job>,
        since: Tick,
        counted: bool,
        now: Tick,
        after: &mut After,
    ) {
        let waited = now.since(since);
        if counted {
            let header = job.header();
            if let Some(span) = self.timing(header.lane()).task_timeout {
                header.tighten(now.after(span));
            }
            after.due_at(header.deadline());
            if let Some(group) = header.group()
                && !header.is_leased()
                && inner.state.is_asked(group)
            {
                header.cancel.note();
            }
        }
        let running = Running { job, started: now, waited, timed_out: false, counted };
        inner.workers[worker].running.push(running);
    }

    /// The innermost closure on `worker` has ended: its diagnostics go.
    #[inline]
    pub(crate) fn ended(
        &self,
        inner: &mut Inner,
        worker: usize,
        ending: Ending,
        now: Tick,
    ) -> Option<Running> {
        let running = inner.workers[worker].running.pop()?;
        let header = running.job.header();
        let ran = now.since(running.started);
        match ending {
            Ending::Withdrawn => inner.lanes[header.lane().0 as usize].counts.cancelled += 1,
            Ending::Expired => inner.state.count_refusal(header.lane(), Cause::Deadline),
            Ending::Finished | Ending::Panicked => {
                let nanos = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX).min(1 << 30);
                inner.mean_run = (inner.mean_run * 7 + nanos) / 8;
                let (lane, flags, waited) = (header.lane().0, header.flags(), running.waited);
                let panicked = ending == Ending::Panicked;
                let notes = &mut inner.workers[worker].notes;
                notes.push(Ended { lane, flags, panicked, waited, ran });
                if notes.len() >= NOTES {
                    inner.enter_notes(worker);
                }
            }
        }
        Some(running)
    }

    /// A worker is there, and is going to look. Called by its thread, once.
    pub(crate) fn arrive(&self, worker: usize, thread: Thread) {
        let mut inner = self.lock();
        inner.workers[worker].thread = Some(thread);
        inner.workers[worker].notes.reserve_exact(NOTES);
        inner.present += 1;
        inner.starting -= 1;
        inner.looking += 1;
        inner.starved = false;
        inner.peak_threads = inner.peak_threads.max(inner.present);
    }

    /// `worker` looks for something to do. With `promised`, it counts as one that will, else as detained. Who has just ended refused jobs
    /// looks for a job first, others for refused jobs. Without either, it is parked from here on: its thread must park
    /// until [`called`](Self::called) says for what it was called.
    pub(crate) fn look(&self, worker: usize, promised: bool, reaped: bool) -> Look {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        *if promised { &mut inner.looking } else { &mut inner.detained } -= 1;
        let found = if inner.remains.is_empty() || reaped {
            self.take(inner, worker, now, &mut after)
        } else {
            None
        };
        let look = match found {
            Some((job, expired)) => Look::Job(job, expired),
            None if let Some(job) = inner.take_remains() => {
                inner.detained += 1;
                Look::Reap(job)
            }
            None if inner.state.closed().is_some() || inner.has_surplus() => {
                self.leave(inner, worker);
                Look::Leave
            }
            None => {
                let place = &mut inner.workers[worker];
                place.parked = true;
                place.idle_since = now;
                inner.idle.push(worker);
                after.due_at(now.after(self.keep_alive));
                Look::Park
            }
        };
        self.finish(guard, &mut after);
        look
    }

    /// For what a parked worker was called, if it was.
    pub(crate) fn called(&self, worker: usize) -> Called {
        let inner = self.lock();
        let place = &inner.workers[worker];
        match (place.parked, place.retired) {
            (true, _) => Called::No,
            (false, false) => Called::Look,
            (false, true) => Called::Leave,
        }
    }

    /// The thread may be given no more work; it has still to end.
    fn leave(&self, inner: &mut Inner, worker: usize) {
        inner.threads -= 1;
        inner.workers[worker].retired = true;
    }

    /// The thread has done everything but return to the system.
    pub(crate) fn gone(&self, worker: usize) {
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.enter_notes(worker);
        let place = mem::replace(&mut inner.workers[worker], Worker::vacant());
        debug_assert!(place.running.is_empty(), "a thread ended with a job on it");
        inner.vacant.push(worker);
        inner.alive -= 1;
        inner.present -= 1;
        self.finish(guard, &mut after);
    }

    /// Ends a job on `worker`: diagnostics, permit, and the next job, all under one lock.
    ///
    /// A worker that has something slow to do first takes no next job: not one that it would hold up.
    #[inline]
    pub(crate) fn turn_over(
        &self,
        worker: usize,
        job: &Arc<dyn Job>,
        ending: Ending,
        after: &mut After,
    ) -> Turn {
        let now = self.now();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let header = job.header();
        let ended = self.ended(inner, worker, ending, now);
        let warn = ended.as_ref().and_then(|running| self.slow(running, ending, now));
        inner.state.release(&header.claim(), || now);
        let operation = inner.take_operation(header, ending.has_run());
        after.more |= inner.state.has_settled() && inner.sort_settled(after);
        let next = if warn.is_some() || !inner.remains.is_empty() {
            None
        } else {
            self.take(inner, worker, now, after)
        };
        let promised = warn.is_none();
        if next.is_none() {
            // promised under this lock: a submit from here on wakes nobody, for this worker looks once more
            *if promised { &mut inner.looking } else { &mut inner.detained } += 1;
        }
        inner.call_worker(self, after);
        inner.arm(after);
        inner.collect_told(after);
        drop(guard);
        drop(operation);
        // before the result is out: who has it finds its scope without the job
        after.tell();
        Turn { next, promised, ended, warn }
    }

    /// How long a closure ran, if that is longer than its lane expects.
    #[inline]
    pub(crate) fn slow(&self, running: &Running, ending: Ending, now: Tick) -> Option<Slow> {
        let warn_after = self.timing(running.job.header().lane()).warn_after;
        let warn_after = warn_after.filter(|_| cfg!(feature = "tracing"))?;
        let ran = now.since(running.started);
        (ending.has_run() && ran > warn_after)
            .then_some(Slow { ran, panicked: ending == Ending::Panicked })
    }

    // ---- threads ----

    fn start_thread(&self, id: usize) -> io::Result<()> {
        // only a pool that is being dropped can't be upgraded, and that has no work
        let Some(core) = self.me.upgrade() else { return Ok(()) };
        self.threads.start(core, id)
    }

    /// A thread that was promised will not come.
    pub(crate) fn thread_lost(&self, id: usize, error: io::Error) {
        let mut after = After::default();
        let mut guard = self.lock();
        guard.thread_refused(id, error, &mut after);
        after.reap = guard.threads == 0;
        self.finish(guard, &mut after);
    }

    // ---- endings ----

    /// Admits nothing more, and refuses what has not started; closed as [`Closed::Scope`], not what is under a lease.
    pub(crate) fn close(&self, closed: Closed) {
        self.close_with(closed, false);
    }

    fn close_with(&self, closed: Closed, leases_over: bool) {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        // whose time is up leaves as such
        inner.end_overdue(now, &mut after);
        if leases_over {
            inner.state.close_to_leases();
        } else {
            inner.state.close(closed);
        }
        // a permit that was held before stays valid, but without its runtime no job starts
        inner.orphaned |= closed == Closed::Runtime;
        let orphaned = inner.orphaned;
        let is_closed_to = |entry: &Ready| {
            let leased = closed == Closed::Scope && !leases_over && entry.job.header().is_leased();
            orphaned || !(entry.held || leased)
        };
        inner.take_back_ready(is_closed_to, &mut after, |inner, job| {
            inner.closed_error(job, closed)
        });
        // idle threads look once more, for what refused jobs left, and end
        for id in mem::take(&mut inner.idle) {
            let place = &mut inner.workers[id];
            place.parked = false;
            inner.looking += 1;
            let thread = place.thread.clone();
            after.rare().errands.extend(thread.map(Errand::Call));
        }
        self.finish(guard, &mut after);
    }

    /// Makes the pool's threads belong to a scope: closing it closes the pool, and it is not closed before they have ended.
    pub(crate) fn attach(&self, membership: Arc<Membership>) {
        self.lock().attached = Some(Attached { membership, told: false, news: 0, pins: 0 });
    }

    /// The scope that the pool is attached to closes it: it wants to be told that the pool is quiet, also when it was.
    pub(crate) fn close_for_scope(&self, leases_over: bool) {
        if let Some(attached) = &mut self.lock().attached {
            attached.told = false;
        }
        self.close_with(Closed::Scope, leases_over);
    }

    /// For as long as something is let in under a lease. The scope that the pool is attached to may think that the pool is
    /// quiet, and is told otherwise; nor is it told so before what is let in has shown itself.
    fn pin(&self) -> Pinned<'_> {
        let mut inner = self.lock();
        let roused = inner.attached.as_mut().and_then(|attached| {
            attached.pins += 1;
            mem::take(&mut attached.told).then(|| attached.next_news())
        });
        drop(inner);
        if let Some((membership, news)) = roused {
            membership.busy(news);
        }
        Pinned(self)
    }

    /// A lease lets nothing into a pool that ended with a scope which has nothing to do with the lease's.
    fn ended_without(&self, lease: &LeaseRef) -> bool {
        let foreign = self.whole.get().is_some_and(|whole| !lease.scope().is_within(&whole.scope));
        foreign && self.lock().state.closed() == Some(Closed::Scope)
    }

    /// Begins the operation that a request is, if it comes under a lease.
    ///
    /// # Errors
    ///
    /// Why it may not begin, counted once.
    pub(crate) fn begin(
        &self,
        request: &mut Request,
        lease: Option<&LeaseRef>,
        name: &JobName,
    ) -> Result<Option<Operation>, Cause> {
        lease.map(|lease| engine::begin(self, request, lease, name.clone())).transpose()
    }

    fn retire(&self, inner: &mut Inner, id: usize, after: &mut After) {
        let place = &mut inner.workers[id];
        place.parked = false;
        after.rare().errands.extend(place.thread.clone().map(Errand::Call));
        self.leave(inner, id);
    }

    /// What an inline run needs: checks and a permit without waiting.
    pub(crate) fn enter_inline(
        &self,
        worker: usize,
        job: &Arc<dyn Job>,
        held: u64,
        operation: Option<Operation>,
    ) -> Result<Inline, SubmitError> {
        let request = job.header().request();
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let lane = request.lane;
        inner.register(&**job, operation);
        job.header().tighten(inner.state.deadline_of(&request));
        // what the permit that is held does not cover
        let missing =
            Request { weight: request.weight.saturating_sub(held), group: None, ..request };
        let cause = if let Some(closed) = inner.state.closed_to(&request) {
            Some(Cause::Closed(closed))
        } else if request.weight == 0 {
            Some(Cause::ZeroWeight)
        } else if request.weight > inner.state.largest(lane) {
            Some(Cause::TooLarge { limit: inner.state.largest(lane) })
        } else if job.header().deadline() <= now {
            Some(Cause::Deadline)
        } else {
            None
        };
        let cause = match cause {
            Some(cause) => {
                inner.state.count_refused(&request, cause);
                Some(cause)
            }
            None if missing.weight == 0 => None,
            None => match inner.state.try_acquire(&missing, || now) {
                Attempt::Granted => None,
                Attempt::Refused(cause) => Some(cause),
                Attempt::Wait => {
                    inner.state.count_refusal(lane, Cause::Busy);
                    Some(Cause::Busy)
                }
            },
        };
        let result = match cause {
            Some(Cause::Busy) => Err(SubmitError::Busy { lane: Arc::clone(self.lane_name(lane)) }),
            Some(cause) => Err(SubmitError::Refused(inner.state.acquire_error(&request, cause))),
            None => {
                inner.lanes[lane.0 as usize].counts.inline += 1;
                self.started(inner, worker, Arc::clone(job), now, true, now, &mut after);
                request.group.into_iter().for_each(|group| inner.state.join(group));
                Ok(Inline { extra: missing.claim(), joined: request.group })
            }
        };
        let refused = result.is_err();
        let operation = refused.then(|| inner.take_operation(job.header(), false)).flatten();
        self.finish(guard, &mut after);
        drop(operation);
        result
    }

    /// Takes back a job that has its permit and waits for a thread, for `worker` to run within the job that it runs: with
    /// `always`, since that one waits for it; else only if the system refuses threads.
    pub(crate) fn take_back(
        &self,
        worker: usize,
        job: &Arc<dyn Job>,
        always: bool,
    ) -> Option<Inline> {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        if !(always || inner.starved) {
            return None;
        }
        let at = inner.ready.iter().position(|entry| is_same(&entry.job, job))?;
        let Ready { job, since, .. } = inner.ready.remove(at)?;
        let extra = job.header().claim();
        inner.lanes[extra.lane.0 as usize].counts.inline += 1;
        self.started(inner, worker, job, since, true, now, &mut after);
        self.finish(guard, &mut after);
        // its permit is its member in the group
        Some(Inline { extra, joined: None })
    }

    /// Ends what [`enter_inline`](Self::enter_inline) started. What ended is to be looked at, and dropped, later.
    pub(crate) fn leave_inline(
        &self,
        worker: usize,
        inline: &Inline,
        ending: Ending,
    ) -> (Option<Running>, Option<Slow>) {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let ended = self.ended(inner, worker, ending, now);
        let warn = ended.as_ref().and_then(|running| self.slow(running, ending, now));
        if inline.extra.weight > 0 {
            inner.state.release(&inline.extra, || now);
        }
        inline.joined.into_iter().for_each(|group| inner.state.leave(group));
        let header = ended.as_ref().map(|running| running.job.header());
        let operation = header.and_then(|header| inner.take_operation(header, ending.has_run()));
        self.finish(guard, &mut after);
        drop(operation);
        (ended, warn)
    }
}

/// An inline run that may go ahead.
pub(crate) struct Inline {
    /// What it took beyond what the worker held.
    extra: Claim,
    /// The group that it is in besides.
    joined: Option<GroupId>,
}

/// What a worker found.
pub(crate) enum Look {
    /// A job, and whether it has expired.
    Job(Arc<dyn Job>, bool),
    /// A job that was refused, to be ended.
    Reap(Arc<dyn Job>),
    Park,
    Leave,
}

/// What a parked worker was called for.
pub(crate) enum Called {
    No,
    Look,
    Leave,
}

/// How a job's end went.
pub(crate) struct Turn {
    pub(crate) next: Option<(Arc<dyn Job>, bool)>,
    /// Without a next job, the worker counts as one that will look; else as detained.
    pub(crate) promised: bool,
    /// To be dropped outside the lock.
    pub(crate) ended: Option<Running>,
    /// To be warned of.
    pub(crate) warn: Option<Slow>,
}

/// A closure that ran for longer than its lane expects.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "nobody to warn"))]
pub(crate) struct Slow {
    pub(crate) ran: Duration,
    pub(crate) panicked: bool,
}

fn is_same(a: &Arc<dyn Job>, b: &Arc<dyn Job>) -> bool {
    // data pointers alone: the vtables of one type may differ between codegen units
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

impl Engine for Core {
    type Waiter = Waiter;

    fn wrap(waker: Waker) -> Waiter {
        Waiter::Acquire(waker)
    }

    fn waker(waiter: &mut Waiter) -> Option<&mut Waker> {
        match waiter {
            Waiter::Acquire(waker) => Some(waker),
            Waiter::Job(_) => None,
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut State<Waiter>) -> R) -> R {
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let result = f(&mut inner.state);
        while inner.has_surplus() && !inner.idle.is_empty() {
            // after a resize; of those that idle, the one that has for longest
            let id = inner.idle.remove(0);
            self.retire(inner, id, &mut after);
        }
        self.finish(guard, &mut after);
        result
    }

    #[inline]
    fn now(&self) -> Tick {
        self.tick(Deadline::at(self.time.now()))
    }

    fn tick(&self, deadline: Deadline) -> Tick {
        Tick::from_deadline(deadline, self.epoch)
    }

    fn prepare_timer(&self) -> Result<(), NoTimer> {
        self.time.prepare()
    }

    fn close_group(&self, group: GroupId, leased: bool) {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        // whose time is up leaves as such
        inner.end_overdue(now, &mut after);
        inner.state.close_group(group, leased);
        let is_closed_to = |entry: &Ready| {
            let header = entry.job.header();
            !entry.held && header.group() == Some(group) && (leased || !header.is_leased())
        };
        inner.take_back_ready(is_closed_to, &mut after, |inner, job| {
            inner.closed_error(job, Closed::Scope)
        });
        self.finish(guard, &mut after);
    }

    fn cancel_group(&self, group: GroupId, leased: bool) -> u64 {
        let mut inner = self.lock();
        inner.state.ask_group(group);
        let running = inner.workers.iter().flat_map(|worker| &worker.running);
        let asked = running.map(|running| &running.job).filter(|job| {
            let header = job.header();
            let is_in = header.group() == Some(group) && (leased || !header.is_leased());
            is_in && !header.cancel.is_requested()
        });
        let asked: Vec<_> = asked.cloned().collect();
        drop(inner);
        asked.iter().for_each(|job| job.header().cancel.request());
        asked.len() as u64
    }

    fn tighten_group(&self, group: GroupId, deadline: Tick) {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.state.tighten_group(group, deadline, |waiter| {
            if let Waiter::Job(job) = waiter {
                job.header().tighten(deadline);
            }
        });
        let running = inner.workers.iter().flat_map(|worker| &worker.running);
        let admitted = inner.ready.iter().map(|it| &it.job).chain(running.map(|it| &it.job));
        for job in admitted.filter(|job| job.header().group() == Some(group)) {
            job.header().tighten(deadline);
        }
        inner.end_overdue(now, &mut after);
        self.finish(guard, &mut after);
    }

    fn jobs_in(&self, group: GroupId) -> Vec<JobInfo> {
        let now = self.now();
        let mut inner = self.lock();
        let mut after = After::of_observer(&inner);
        // whoever looks when a deadline has passed sees it passed, whether or not the timer has called
        inner.end_overdue(now, &mut after);
        let jobs = inner.jobs_of(self, now, group);
        self.finish(inner, &mut after);
        jobs
    }
}

impl Attached {
    /// Whom to tell that the pool is quiet, if that was not told.
    fn tell_quiet(&mut self) -> Option<(Arc<Membership>, u64)> {
        let tell = self.pins == 0 && !mem::replace(&mut self.told, true);
        tell.then(|| self.next_news())
    }

    fn next_news(&mut self) -> (Arc<Membership>, u64) {
        self.news += 1;
        (Arc::clone(&self.membership), self.news)
    }
}

/// See [`Core::pin`].
pub(crate) struct Pinned<'a>(&'a Core);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if let Some(attached) = &mut inner.attached {
            attached.pins -= 1;
            let mut after = After::of_observer(&inner);
            self.0.finish(inner, &mut after);
        }
    }
}

impl OnGone for Core {
    fn runtime_is_gone(&self) {
        self.close(Closed::Runtime);
    }
}

impl OnTime for Core {
    /// Everything that only the passing of time brings about: waits that end, runs that take too long, threads that
    /// idle. O(threads), and O(log lanes) per waiter whose time is up.
    fn on_time(self: Arc<Self>) {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.alarm.came();
        inner.end_overdue(now, &mut after);
        while let Some(&id) = inner.idle.first() {
            let due = inner.workers[id].idle_since.after(self.keep_alive);
            if due > now {
                after.due_at(due);
                break;
            }
            inner.idle.remove(0);
            self.retire(inner, id, &mut after);
        }
        self.finish(guard, &mut after);
    }
}

impl LaneRecord {
    fn enter(&mut self, ended: &Ended) {
        use crate::cell::{ABANDONED, TIMED_OUT};
        self.counts.started += 1;
        self.waits.record(ended.waited);
        if ended.flags & TIMED_OUT != 0 {
            self.counts.timed_out += 1;
        } else if ended.flags & ABANDONED != 0 {
            self.counts.abandoned += 1;
        }
        if ended.panicked {
            self.counts.panicked += 1;
            self.panicked.record(ended.ran);
        } else {
            self.counts.finished += 1;
            let claimed = ended.flags & (TIMED_OUT | ABANDONED) == 0;
            if claimed { &mut self.finished } else { &mut self.unclaimed }.record(ended.ran);
        }
    }

    pub(crate) fn copy(&self, name: &Arc<str>) -> LaneJobs {
        LaneJobs {
            name: Arc::clone(name),
            counts: self.counts,
            waits: self.waits.clone(),
            finished: self.finished.clone(),
            panicked: self.panicked.clone(),
            unclaimed: self.unclaimed.clone(),
        }
    }
}
