//! A pool's lock, and what happens under it.
//!
//! # Who does what
//!
//! A job that is admitted goes to `ready`; a worker that is free takes it from there. A worker that ends a job returns the
//! permit, hands on what became free, and takes its next job under one hold of the lock, so that a saturated pool wakes
//! nobody but the caller who gets a result.
//!
//! Which threads there are and who is called is the [`Crew`]'s; what is left to do once the lock is released, and that
//! nothing of it is forgotten, is [`After`]'s; what became of jobs is kept in [`Records`].
//!
//! # Lock order
//!
//! The pool's lock is the only one taken here. Cells have locks of their own; nobody takes one while holding the pool's,
//! or the other way round.

mod after;
mod crew;
mod link;
mod records;
mod remains;

pub(crate) use after::After;
pub(crate) use crew::{Called, Running};
pub(crate) use link::Link;

use crate::attached::{Attached, Whole};
use crate::cell::{Ending, Header, Job, STARTED};
use crate::error::{RunError, SubmitError};
use crate::owner::{OnGone, Owner};
use crate::policy::Timing;
use crate::stats::LaneJobs;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, Thread};
use crate::thread::Threads;
use crew::Crew;
use crossbeam_utils::CachePadded;
use records::{Kinds, Records};
use remains::Remains;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use tollgate_admission::engine::{
    Alarm, Attempt, Cause, Claim, Engine, Entered, GroupId, Key, LaneId, LeaseRef, Membership,
    Operation, Outcome, Request, State, Status, Tick, WakeList, WakerSet,
};
use tollgate_admission::time::OnTime;
use tollgate_admission::{Closed, Deadline, JobId, JobInfo, JobKind, NoTimer, TimeSource};

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

/// What the lock is around.
pub(crate) struct Inner {
    pub(crate) state: State<Waiter>,
    ready: VecDeque<Ready>,
    pub(crate) crew: Crew,
    /// Refused jobs whose captures may still be there, for a worker to drop between two jobs.
    remains: Remains,
    jobs: u64,
    alarm: Alarm,
    /// The owner is gone: nothing starts any more, whatever permit it has.
    orphaned: bool,
    records: Records,
    /// Those who wait for the pool to be quiet.
    pub(crate) quiet: WakerSet,
    /// What jobs under a drain lease have of it, by id.
    operations: HashMap<JobId, Operation>,
    pub(crate) kinds: Kinds,
    /// The scope that the pool's threads belong to.
    attached: Option<Attached>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(attached) = &self.attached {
            attached.part(&self.state);
        }
    }
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
                after.wake(mem::replace(waker, Waker::noop().clone()));
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
        self.remains.expect_one();
        if let (false, Some(group)) = (held, job.header().group()) {
            // it leaves its scope when its captures are gone
            self.state.join(group);
        }
        after.refuse(job, error, held);
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
        for running in self.crew.running_mut() {
            match running.due() {
                Some(due) if due > now => after.due_at(due),
                Some(_) => after.time_out(running.time_out(now)),
                None => {}
            }
        }
    }

    /// Nothing is queued, nothing runs, no permit is out and no thread is left, for good.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.is_drained() && self.crew.alive() == 0 && self.remains.are_gone()
    }

    /// The thread for `id` did not come to be. The job runs later on another thread; if there is none, the jobs that
    /// wait for one fail.
    fn thread_refused(&mut self, id: usize, error: io::Error, after: &mut After) {
        self.crew.lose(id);
        let none = self.crew.is_empty();
        after.thread_refused(none);
        if none {
            let source = Arc::new(error);
            self.take_back_ready(
                |_| true,
                after,
                |inner, job| {
                    inner.records.count_no_thread(job.header().lane());
                    RunError::NoThread { source: Arc::clone(&source) }
                },
            );
        }
    }

    /// What became of the jobs of all lanes, to this moment.
    pub(crate) fn records<'a>(
        &mut self,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<LaneJobs> {
        for notes in self.crew.all_notes() {
            self.records.enter(notes);
        }
        let mut lanes = self.records.copy(names);
        for running in self.crew.running() {
            let header = running.job.header();
            let started = header.flags() & STARTED != 0;
            lanes[header.lane().0 as usize].counts.started += u64::from(started);
        }
        lanes
    }

    /// Gives a job its id, and the operation that it is; returns its class.
    fn register(&mut self, job: &dyn Job, operation: Option<Operation>) -> u16 {
        self.jobs += 1;
        job.header().set_id(self.jobs);
        if let Some(operation) = operation {
            self.operations.insert(job.header().id(), operation);
        }
        self.kinds.class_of(job.header().kind)
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

    /// See [`Crew::has_surplus`].
    #[inline]
    fn has_surplus(&self) -> bool {
        self.crew.has_surplus(self.state.capacity())
    }

    pub(crate) fn ready(&self) -> impl Iterator<Item = (&Arc<dyn Job>, Tick)> {
        self.ready.iter().map(|entry| (&entry.job, entry.since))
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
            crew: Crew::default(),
            remains: Remains::default(),
            jobs: 0,
            alarm: Alarm::new(),
            orphaned: false,
            records: Records::new(lanes),
            quiet: WakerSet::default(),
            operations: HashMap::new(),
            kinds: Kinds::default(),
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

    /// Ends a job that was refused, unless its watcher has.
    pub(crate) fn reap(&self, job: Arc<dyn Job>) {
        job.reap(self);
        drop(job);
        let mut after = After::default();
        let mut guard = self.lock();
        guard.remains.one_ended();
        self.finish(guard, &mut after);
    }

    /// Ends all jobs that were refused, where no worker can be had for them. One thread at a time does so, and does so for
    /// all, itself included when it comes here again.
    #[cold]
    fn reap_all(&self) {
        if !self.lock().remains.begin_to_reap() {
            return;
        }
        loop {
            // the lock is not to be held while the job ends
            let job = self.lock().remains.take_to_reap();
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
        if counted {
            guard.remains.one_ended();
        }
        let operation = guard.take_operation(header, false);
        self.finish(guard, &mut after);
        drop(operation);
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
    #[inline]
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
            inner.records.count_cancelled(header.lane());
            if let Some(group) = header.group() {
                // its scope, or that of the whole pool, waits for its captures
                inner.remains.expect_one();
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
                && inner.state.is_asked(group, header.is_leased())
            {
                header.cancel.note();
            }
        }
        inner.crew.begin(worker, Running::new(job, now, waited, counted));
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
        let running = inner.crew.end(worker)?;
        let header = running.job.header();
        let ran = now.since(running.started);
        match ending {
            Ending::Withdrawn => inner.records.count_cancelled(header.lane()),
            Ending::Expired => inner.state.count_refusal(header.lane(), Cause::Deadline),
            Ending::Finished | Ending::Panicked => {
                inner.crew.learn(ran);
                let Inner { crew, records, .. } = inner;
                records.note(crew.notes(worker), &running, ending == Ending::Panicked, ran);
            }
        }
        Some(running)
    }

    /// A worker is there, and is going to look. Called by its thread, once.
    pub(crate) fn arrive(&self, worker: usize, thread: Thread) {
        self.lock().crew.arrive(worker, thread);
    }

    /// `worker` looks for something to do. With `promised`, it counts as one that will, else as detained. Who has just
    /// ended refused jobs looks for a job first, others for refused jobs. Without either, it is parked from here on: its
    /// thread must park until [`called`](Self::called) says for what it was called.
    pub(crate) fn look(&self, worker: usize, promised: bool, reaped: bool) -> Look {
        let now = self.now();
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.crew.resume(promised);
        let found = if !inner.remains.are_here() || reaped {
            self.take(inner, worker, now, &mut after)
        } else {
            None
        };
        let look = match found {
            Some((job, expired)) => Look::Job(job, expired),
            None if let Some(job) = inner.remains.take() => {
                inner.crew.pause(false);
                Look::Reap(job)
            }
            None if inner.state.closed().is_some() || inner.has_surplus() => {
                inner.crew.leave(worker);
                Look::Leave
            }
            None => {
                inner.crew.park(worker, now);
                after.due_at(now.after(self.keep_alive));
                Look::Park
            }
        };
        self.finish(guard, &mut after);
        look
    }

    /// For what a parked worker was called, if it was.
    pub(crate) fn called(&self, worker: usize) -> Called {
        self.lock().crew.called(worker)
    }

    /// The thread has done everything but return to the system.
    pub(crate) fn gone(&self, worker: usize) {
        let mut after = After::default();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let mut notes = inner.crew.gone(worker);
        inner.records.enter(&mut notes);
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
        inner.sort(after);
        let next = if warn.is_some() || inner.remains.are_here() {
            None
        } else {
            self.take(inner, worker, now, after)
        };
        let promised = warn.is_none();
        if next.is_none() {
            // promised under this lock: a submit from here on wakes nobody, for this worker looks once more
            inner.crew.pause(promised);
        }
        inner.hand_on(self, after);
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
        inner.remains.hurry();
        // idle threads look once more, for what refused jobs left, and end
        inner.crew.rouse().into_iter().for_each(|thread| after.call(thread));
        self.finish(guard, &mut after);
    }

    /// Makes the pool's threads belong to a scope: closing it closes the pool, and it is not closed before they have ended.
    pub(crate) fn attach(&self, membership: Arc<Membership>, group: GroupId) {
        self.lock().attached = Some(Attached::new(membership, group));
    }

    /// The scope that the pool is attached to closes it: it wants to be told that the pool is quiet, also when it was.
    pub(crate) fn close_for_scope(&self, leases_over: bool) {
        if let Some(attached) = &mut self.lock().attached {
            attached.ask_again();
        }
        self.close_with(Closed::Scope, leases_over);
    }

    /// For as long as something is let in under a lease. The scope that the pool is attached to may think that the pool is
    /// quiet, and is told otherwise; nor is it told so before what is let in has shown itself.
    fn pin(&self) -> Pinned<'_> {
        let mut inner = self.lock();
        let roused = inner.attached.as_mut().and_then(Attached::pin);
        drop(inner);
        if let Some(news) = roused {
            news.tell();
        }
        Pinned(self)
    }

    /// A lease lets nothing into a pool that ended with a scope which has nothing to do with the lease's.
    fn ended_without(&self, lease: &LeaseRef) -> bool {
        let foreign = self.whole.get().is_some_and(|whole| !lease.scope().is_within(&whole.scope));
        foreign && self.lock().state.closed() == Some(Closed::Scope)
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
                inner.records.count_inline(lane);
                self.started(inner, worker, Arc::clone(job), now, true, now, &mut after);
                request.group.into_iter().for_each(|group| inner.state.join(group));
                Ok(Inline { extra: missing.claim(), joined: request.group, expired: false })
            }
        };
        let refused = result.is_err();
        let operation = refused.then(|| inner.take_operation(job.header(), false)).flatten();
        self.finish(guard, &mut after);
        drop(operation);
        result
    }

    /// Takes back a job that has its permit and waits for a thread, for `worker` to run within the job that it runs: with
    /// `always`, since that one waits for it; else only if the system refuses threads. One whose time is up is there only to
    /// be refused.
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
        if !(always || inner.crew.is_starved()) {
            return None;
        }
        let at = inner.ready.iter().position(|entry| is_same(&entry.job, job))?;
        let Ready { job, since, .. } = inner.ready.remove(at)?;
        let extra = job.header().claim();
        let expired = job.header().deadline() <= now;
        if !expired {
            inner.records.count_inline(extra.lane);
        }
        self.started(inner, worker, job, since, !expired, now, &mut after);
        self.finish(guard, &mut after);
        // its permit is its member in the group
        Some(Inline { extra, joined: None, expired })
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
    /// Its time was up: it is not to run.
    pub(crate) expired: bool,
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
        // after a resize; of those that idle, the one that has for longest
        while inner.has_surplus()
            && let Some(thread) = inner.crew.retire()
        {
            after.call(thread);
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
        inner.remains.hurry();
        self.finish(guard, &mut after);
    }

    fn cancel_group(&self, group: GroupId, leased: bool) -> u64 {
        let mut inner = self.lock();
        inner.state.ask_group(group, leased);
        let running = inner.crew.running();
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
        let running = inner.crew.running();
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

/// See [`Core::pin`].
pub(crate) struct Pinned<'a>(&'a Core);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if let Some(attached) = &mut inner.attached {
            attached.unpin();
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
        while let Some(since) = inner.crew.idle_since() {
            let due = since.after(self.keep_alive);
            if due > now {
                after.due_at(due);
                break;
            }
            inner.crew.retire().into_iter().for_each(|thread| after.call(thread));
        }
        self.finish(guard, &mut after);
    }
}
