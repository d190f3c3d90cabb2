//! What a hold of the pool's lock leaves to be done, and how it is done once the lock is released.
//!
//! Every hold that changes something ends with [`Core::finish`], which restores the invariant of the [`Crew`](super::crew::Crew) and asks for
//! the timer under the lock, and then, outside of it, calls, wakes and tells whatever was collected. A worker between two
//! jobs does the same in two steps: [`Inner::hand_on`] while it has the lock anyway, [`Core::settle`] once its result is
//! out.

use super::crew::{Call, Demand};
use super::{Core, Inner};
use crate::attached::{Attached, News};
use crate::cell::Job;
use crate::error::RunError;
use crate::sync::{MutexGuard, Ordering, Thread};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use tollgate_admission::engine::{Tick, Told, WakeList};

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
        After { thread_refused: inner.crew.is_starved(), ..After::default() }
    }

    #[cold]
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    #[inline]
    pub(super) fn wake(&mut self, waker: Waker) {
        self.wakes.push(waker);
    }

    /// The job is told that it was refused, and what is left of it goes to the remains; with `held`, its permit is out.
    pub(super) fn refuse(&mut self, job: Arc<dyn Job>, error: RunError, held: bool) {
        self.rare().refused.push(Refusal { job, error, held });
    }

    /// The job, which runs, is told that its time is up.
    pub(super) fn time_out(&mut self, (job, error): (Arc<dyn Job>, RunError)) {
        self.rare().errands.push(Errand::TimeOut(job, error));
    }

    /// The thread is to look, or to end.
    pub(super) fn call(&mut self, thread: Thread) {
        self.rare().errands.push(Errand::Call(thread));
    }

    /// Time has to be looked at then.
    #[inline]
    pub(super) fn due_at(&mut self, at: Tick) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// A thread did not come. With `none` left, who asked for it ends what was refused.
    pub(super) fn thread_refused(&mut self, none: bool) {
        self.thread_refused = true;
        self.reap |= none;
    }

    /// What scopes are to be told is told.
    #[inline]
    pub(super) fn tell(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.told.drain(..).for_each(Told::tell);
        }
    }
}

impl Inner {
    /// Sorts what was settled, as much of it as one hold of the lock should.
    #[inline]
    pub(super) fn sort(&mut self, after: &mut After) {
        after.more = self.state.has_settled() && self.sort_settled(after);
    }

    /// The last thing under the lock.
    // always, here and below: on the path of every job, twice
    #[inline(always)]
    pub(super) fn hand_on(&mut self, core: &Core, after: &mut After) {
        self.call_worker(core, after);
        self.arm(after);
        self.collect_told(after);
    }

    /// Restores the invariant that no ready job is forgotten.
    #[inline(always)]
    fn call_worker(&mut self, core: &Core, after: &mut After) {
        core.ready_hint.store(self.ready.len(), Ordering::Relaxed);
        // one call per hold of the lock: whoever is called calls the next
        if after.unpark.is_some() || after.start.is_some() {
            return;
        }
        let demand = Demand {
            ready: self.ready.len(),
            remains: self.remains.are_here(),
            urgent: self.remains.are_urgent(),
            out: self.state.out(),
            capacity: self.state.capacity(),
        };
        match self.crew.call(demand, after.thread_refused) {
            Some(Call::Unpark(thread)) => after.unpark = Some(thread),
            Some(Call::Start(id)) => after.start = Some(id),
            None => {}
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

    /// Collects what scopes are to be told once the lock is gone.
    #[inline]
    fn collect_told(&mut self, after: &mut After) {
        if self.state.has_news() {
            after.rare().told.extend(std::iter::from_fn(|| self.state.next_told()));
        }
    }

    /// What the scope of the whole pool is to be told, if the pool has become quiet; who waits for that is to be woken.
    #[inline]
    fn tell_quiet(&mut self, after: &mut After) -> Option<News> {
        if !self.is_quiet() {
            return None;
        }
        self.quiet.take_all(&mut after.wakes);
        self.attached.as_mut().and_then(Attached::quiet)
    }
}

impl Core {
    /// Sorts and hands on what the holder of `guard` settled, then unlocks and does what was collected. In rounds, so
    /// that the lock is not held for long however many there are to tell.
    #[inline]
    pub(crate) fn finish<'a>(&'a self, mut guard: MutexGuard<'a, Inner>, after: &mut After) {
        loop {
            let inner = &mut *guard;
            inner.sort(after);
            inner.hand_on(self, after);
            let quiet = inner.tell_quiet(after);
            drop(guard);
            if let Some(news) = quiet {
                news.tell();
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

    /// Does what [`turn_over`](Self::turn_over) collected, once the result is out.
    #[inline]
    pub(crate) fn settle(&self, after: &mut After) {
        if let Some(guard) = self.run(after) {
            self.finish(guard, after);
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
        let is_closed =
            |job: &Arc<dyn Job>| guard.state.closed_to(&job.header().request()).is_some();
        let urgent = jobs.iter().any(is_closed);
        guard.remains.put(jobs, urgent);
        guard
    }
}
