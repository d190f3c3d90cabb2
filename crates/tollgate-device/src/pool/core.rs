//! The pool's one lock, and everything that is decided under it.
//!
//! Two budgets' states lie under it: permits that bound how many jobs are accepted, and seats that bound how many async jobs
//! run. Futures wait for the first, jobs for the second. A job is accepted, started and ended under one hold each.

use super::book::{AttemptPlace, Book, Facts, Payment, Place, Returned, lane_name};
use super::error::Refused;
use super::events::Outcome;
use super::job::{Stop, Stoppable};
use super::kind::{Class, Seats};
use super::profile::Capacities;
use super::shutdown::{Ended, Phase};
use super::tracker::Tracker;
use super::worker::{self, Role};
use crate::backend::{Bell, DeviceInfo, DriverError};
use crate::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Instant;
use tollgate_admission::engine::{
    self, Alarm, Attempt as Tried, Cause, Claim, Engine, Entered, GroupId, GroupOwner, LaneId,
    Member, Membership, Outcome as Settled, Remaining, Request, State, Tick, WakeList, WakerSet,
};
use tollgate_admission::time::OnTime;
use tollgate_admission::{
    Closed, DEFAULT_MAX_BYPASS, Deadline, JobInfo, LaneConfig, NoTimer, Scope, TimeSource,
};
use tollgate_blocking::Executor;

/// An async job with all that belongs to it. Dropping it ends the job. When it has ended, it hands over the job that its seat
/// went to, if it went to one, to be run by whoever ran this.
pub(crate) type Task = Pin<Box<dyn Future<Output = Option<Next>> + Send>>;

/// A job that has begun, as far as the pool's books go.
pub(crate) struct Next(pub(crate) Task);

/// Where async jobs run. It never runs one before it has returned.
pub(crate) trait Spawn: Send + Sync + 'static {
    /// Has somebody [`run_all`].
    fn spawn(&self, task: Task);

    /// Whether it may have something else to run, which a job has spawned by itself.
    fn has_others(&self) -> bool {
        false
    }
}

/// Jobs that one runs after the other before it lets others have their turn.
const STREAK: u32 = 32;

/// Runs a job, and then those that get its seat.
pub(crate) async fn run_all(mut task: Task, pause: impl AsyncFn()) {
    loop {
        for _ in 0..STREAK {
            let Some(Next(next)) = (&mut task).await else { return };
            task = next;
        }
        pause().await;
    }
}

/// How a thread comes to be bound to the device.
pub(crate) trait Bind: Send + Sync + 'static {
    /// Binds the device to the calling thread, unless it is.
    fn bind(&self) -> Result<(), DriverError>;
}

/// A number that no other pool of the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolId(u64);

impl PoolId {
    pub(crate) fn next() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: nothing is ordered by it
        PoolId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number, from 1.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What waits for a seat.
struct Waits {
    place: Place,
    seats: Seats,
    task: Task,
}

pub(crate) struct Inner {
    /// Permits of accepted jobs. What waits is a future.
    pub(crate) classes: State<Waker>,
    /// Seats of async jobs. What waits is the job.
    seats: State<Waits>,
    pub(crate) book: Book<Arc<dyn Stoppable>>,
    alarm: Alarm,
    /// Those who wait for a phase of the end.
    waiters: WakerSet,
    /// What has a seat, and was to be spawned by a thread that runs a job: the supervisor does it.
    errands: VecDeque<Task>,
    /// The runtime is to end.
    exit: bool,
    /// It is to end as soon as the pool has drained: nobody is there to say so then.
    exit_when_drained: bool,
    /// The runtime is gone.
    ended: Option<Ended>,
    /// The scope that the pool belongs to, and how it knows the pool: until the end, whoever has let go of it before.
    attached: Option<(Arc<Membership>, Arc<dyn Member>)>,
}

/// What became of somebody's wish to run within the pool's own thread.
enum Seat {
    /// It runs there, with this seat more or without one.
    May(Option<Claim>),
    /// It has to wait for one, which it may not.
    Busy,
}

impl Inner {
    pub(crate) fn is_closed(&self) -> bool {
        self.classes.closed().is_some()
    }

    /// Closed, and nothing that was accepted is left.
    pub(crate) fn is_drained(&self) -> bool {
        self.classes.is_drained() && self.book.is_empty()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Somebody is to be told, woken, spawned or called, now or later.
    fn has_news(&self) -> bool {
        let Inner { classes, seats, book, .. } = self;
        seats.has_settled()
            || classes.has_settled()
            || classes.has_news()
            || book.events.has_news()
            || classes.closed().is_some()
            || classes.waiting() > 0
    }

    /// A job that was given a seat while it waited.
    fn seated(&mut self) -> Option<(Place, Task)> {
        let settled = self.seats.announce()?;
        // nobody is refused a seat: they are never closed, and no wait for one has a deadline
        debug_assert_eq!(settled.outcome(), Settled::Granted);
        let Waits { place, seats, task } = settled.take()?;
        self.book.seated(place, seat_request(seats).claim());
        Some((place, task))
    }

    /// Refuses what comes too late, whatever else it lacks.
    fn check_open(&mut self, request: &Request) -> Result<(), Refused> {
        let what = if self.exit { Some(Closed::Runtime) } else { self.classes.closed_to(request) };
        let Some(what) = what else { return Ok(()) };
        self.classes.count_refused(request, Cause::Closed(what));
        Err(Refused::Closed { what })
    }

    /// Counts a job that is paid for. Its scope counts the permit that pays for it; when that is of another scope, the job.
    fn accept(
        &mut self,
        facts: Facts,
        payment: Payment,
        attempt: Option<AttemptPlace>,
        stop: Arc<dyn Stoppable>,
        now: Tick,
    ) -> Place {
        let place = self.book.accept(facts, payment, attempt, stop, now);
        if self.book.is_foreign(place)
            && let Some(group) = self.book.join(place)
        {
            self.classes.join(group);
        }
        place
    }

    /// The outcome of a job is known. Unless it `leaves` now, its scope counts it until it does.
    fn end(&mut self, place: Place, outcome: Outcome, leaves: bool, now: Tick) {
        if !leaves && let Some(group) = self.book.join(place) {
            self.classes.join(group);
        }
        let returned = self.book.end(place, outcome, now);
        self.give_back(returned, now);
        if leaves {
            self.leave(place);
        }
    }

    /// A job is no longer counted.
    fn leave(&mut self, place: Place) {
        if let Some(group) = self.book.leave(place) {
            self.classes.leave(group);
        }
    }

    /// Seats that are taken, jobs that wait for one, and jobs that have one and wait for the supervisor.
    #[cfg(test)]
    pub(crate) fn seats_in_use(&self) -> (u64, usize, usize) {
        (self.seats.out(), self.seats.waiting(), self.errands.len())
    }

    fn give_back(&mut self, returned: Returned, now: Tick) {
        for claim in returned.classes.into_iter().flatten() {
            self.classes.release(&claim, || now);
        }
        if let Some(claim) = returned.seat {
            self.seats.release(&claim, || now);
        }
    }
}

/// What a job that is to be accepted asks for.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) facts: Facts,
    pub(crate) attempt: Option<AttemptPlace>,
}

/// What became of an async job that was accepted.
pub(crate) enum Placed {
    /// It runs when its turn comes.
    There,
    /// It was submitted from within the pool, and runs within whoever submitted it.
    Here(Task),
}

pub(crate) struct Core {
    inner: Mutex<Inner>,
    pub(crate) id: PoolId,
    pub(crate) device: DeviceInfo,
    pub(crate) capacities: Capacities,
    pub(crate) time: Arc<dyn TimeSource>,
    epoch: Instant,
    me: Weak<Core>,
    spawn: Box<dyn Spawn>,
    bind: Box<dyn Bind>,
    pub(crate) tracker: Tracker,
    /// Rung when the supervisor has something to do.
    bell: Bell,
    /// The threads for blocking jobs.
    threads: OnceLock<Executor>,
}

/// What a core is built from.
pub(crate) struct Parts {
    pub(crate) id: PoolId,
    pub(crate) device: DeviceInfo,
    pub(crate) capacities: Capacities,
    pub(crate) time: Arc<dyn TimeSource>,
    pub(crate) spawn: Box<dyn Spawn>,
    pub(crate) bind: Box<dyn Bind>,
    pub(crate) tracker: Tracker,
    pub(crate) events: usize,
    pub(crate) bell: Bell,
}

const LANES: [Class; 3] = [Class::Root, Class::Auxiliary, Class::Release];

pub(crate) fn lane(class: Class) -> LaneId {
    let at = LANES.iter().position(|&it| it == class);
    LaneId(at.expect("all classes are listed") as u32)
}

fn seat_lane(seats: Seats) -> LaneId {
    match seats {
        Seats::Lifecycle => LaneId(0),
        Seats::Execution => LaneId(1),
    }
}

/// The two budgets that a device's profile comes to.
fn budgets(
    capacities: &Capacities,
) -> Result<(State<Waker>, State<Waits>), tollgate_admission::BuildError> {
    let &Capacities { attempts, auxiliary, workers, lifecycle_workers, max_waiting, .. } =
        capacities;
    let (attempts, workers) = (u64::from(attempts), u64::from(workers));
    let kept = u64::from(lifecycle_workers);
    // the classes share nothing: each is a part of the capacity that nobody else can have
    let class = |class, permits, waiting| {
        LaneConfig::new(lane_name(class)).reserved(permits).limit(permits).max_waiting(waiting)
    };
    let waiting = max_waiting as usize;
    let classes = vec![
        class(Class::Root, attempts, waiting),
        class(Class::Auxiliary, auxiliary, 0),
        // who waits here has a root permit
        class(Class::Release, attempts, attempts as usize),
    ];
    let seats = vec![
        LaneConfig::new("lifecycle").reserved(kept).kept(kept).unbounded_waiting(),
        // bounded by the permits of the classes
        LaneConfig::new("execution").limit(workers - kept).unbounded_waiting(),
    ];
    let capacity = attempts.saturating_mul(2).saturating_add(auxiliary);
    Ok((
        State::new(capacity, classes, DEFAULT_MAX_BYPASS)?,
        State::new(workers, seats, DEFAULT_MAX_BYPASS)?,
    ))
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Result<Arc<Self>, tollgate_admission::BuildError> {
        let Parts { id, device, capacities, time, spawn, bind, tracker, events, bell } = parts;
        let (classes, seats) = budgets(&capacities)?;
        let book = Book::new(
            capacities.workers,
            capacities.auxiliary_per_attempt,
            events,
            tracker.clone(),
        );
        let inner = Mutex::new(Inner {
            classes,
            seats,
            book,
            alarm: Alarm::new(),
            waiters: WakerSet::default(),
            errands: VecDeque::new(),
            exit: false,
            exit_when_drained: false,
            ended: None,
            attached: None,
        });
        let epoch = time.now();
        Ok(Arc::new_cyclic(|me| Core {
            inner,
            id,
            device,
            capacities,
            time,
            epoch,
            me: me.clone(),
            spawn,
            bind,
            tracker,
            bell,
            threads: OnceLock::new(),
        }))
    }

    pub(crate) fn set_threads(&self, threads: Executor) {
        let _ = self.threads.set(threads);
    }

    /// The threads for blocking jobs.
    pub(crate) fn blocking(&self) -> Option<&Executor> {
        self.threads.get()
    }

    pub(crate) fn bind(&self) -> Result<(), DriverError> {
        self.bind.bind()
    }

    /// Looks at what is under the lock, and changes nothing that anybody waits for.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    pub(crate) fn book<R>(&self, f: impl FnOnce(&mut Book<Arc<dyn Stoppable>>) -> R) -> R {
        self.look(|inner| f(&mut inner.book))
    }

    /// Locks, calls `f` with the present, and does what follows from it. `last` when this thread returns from its job next,
    /// so that what it spawns is not held up by it.
    fn change<R>(&self, last: bool, f: impl FnOnce(&mut Inner, Tick) -> R) -> R {
        let now = self.now();
        let mut guard = self.inner.lock();
        let result = f(&mut guard, now);
        self.finish(guard, last);
        result
    }

    /// Hands on what the holder of `guard` settled: jobs that have a seat, futures that have a permit, news for observers,
    /// scopes and the supervisor.
    #[inline]
    fn finish<'a>(&'a self, guard: MutexGuard<'a, Inner>, last: bool) {
        // nearly always so: a job that begins, or one that ends while others run
        if !guard.has_news() {
            return;
        }
        self.hand_on(guard, last);
    }

    fn hand_on<'a>(&'a self, mut guard: MutexGuard<'a, Inner>, last: bool) {
        let afar = !last && self.is_occupied();
        let mut wakes = WakeList::new();
        loop {
            let inner = &mut *guard;
            let (mut first, mut rest) = (None, Vec::new());
            while let Some((_, task)) = inner.seated() {
                match first {
                    None => first = Some(task),
                    Some(_) => rest.push(task),
                }
            }
            let mut ring = false;
            if afar && first.is_some() && !inner.exit {
                inner.errands.extend(first.take().into_iter().chain(rest.drain(..)));
                ring = true;
            }
            while wakes.len() < WakeList::BATCH
                && let Some((key, _)) = inner.classes.next_settled()
            {
                if let Some(waker) = inner.classes.waiter_mut(key) {
                    wakes.push(mem::replace(waker, Waker::noop().clone()));
                }
            }
            let more = wakes.len() >= WakeList::BATCH;
            let told = if more { None } else { inner.classes.next_told() };
            let drained = inner.is_drained();
            if drained || inner.exit {
                inner.waiters.take_all(&mut wakes);
            }
            if drained && inner.exit_when_drained && !mem::replace(&mut inner.exit, true) {
                ring = true;
            }
            inner.book.events.wake(&mut wakes);
            let call = inner.alarm.ask(inner.classes.next_deadline(), inner.classes.latest());
            drop(guard);
            if let Some(at) = call.and_then(|at| at.to_instant(self.epoch)) {
                self.time.call_at(at, self.me.clone());
            }
            if ring {
                self.bell.ring();
            }
            first.into_iter().chain(rest).for_each(|task| self.spawn.spawn(task));
            wakes.wake_all();
            if !more && told.is_none() {
                return;
            }
            if let Some(told) = told {
                told.tell();
            }
            guard = self.inner.lock();
        }
    }

    /// This is a thread of the pool's that runs jobs.
    pub(crate) fn is_here(&self) -> bool {
        matches!(worker::role(self.id.get()), Some(Role::Worker | Role::Blocking))
    }

    /// This is a thread of the runtime's. What it spawned would wait in that thread's own slot for the job that runs on it
    /// now, while other threads are idle: the supervisor spawns it.
    fn is_occupied(&self) -> bool {
        worker::role(self.id.get()) == Some(Role::Worker)
    }

    /// Takes the permit that a job is to be accepted with, and counts it.
    fn accept(
        inner: &mut Inner,
        order: Order,
        stop: Arc<dyn Stoppable>,
        now: Tick,
    ) -> Result<Place, Refused> {
        let Order { facts, attempt } = order;
        let class = facts.class;
        let request = Request { group: facts.group, ..Request::new(lane(class), 1) };
        inner.check_open(&request)?;
        let allowed = match (attempt, class) {
            (_, Class::Release) => Err(Refused::NotARelease),
            (None, Class::Auxiliary) => Err(Refused::NoAttempt { class }),
            (None, Class::Root) => Ok(()),
            (Some(at), Class::Auxiliary | Class::Root) => inner.book.admits(at, class),
        };
        allowed.inspect_err(|_| inner.classes.count_refused(&request, Cause::Busy))?;
        let payment = match (attempt, class) {
            (Some(_), Class::Root) => Payment::Lent,
            _ => take(&mut inner.classes, &request, now)?,
        };
        Ok(inner.accept(facts, payment, attempt, stop, now))
    }

    /// Whether what is submitted from this thread of the pool's may run on it.
    fn seat_here(&self, inner: &mut Inner, seats: Seats, now: Tick) -> Seat {
        let running = worker::running(self.id.get());
        let takes = match running {
            // its own seat, or the thread for blocking jobs that it is on, will do
            Some(running) => seats == Seats::Execution && running.seats == Some(Seats::Lifecycle),
            // a task that a job spawned, which has the job's seat for all that is known
            None => seats == Seats::Execution,
        };
        if !takes {
            return Seat::May(None);
        }
        let request = seat_request(seats);
        match inner.seats.try_acquire(&request, || now) {
            Tried::Granted => Seat::May(Some(request.claim())),
            _ if running.is_none() => Seat::May(None),
            _ => Seat::Busy,
        }
    }

    /// The seat that counts for what is submitted from within a job that runs here under `own`.
    fn effective(&self, seats: Seats, own: Option<&Claim>) -> Option<Seats> {
        match (own, worker::running(self.id.get())) {
            (Some(_), _) | (None, None) => Some(seats),
            (None, Some(outer)) => outer.seats,
        }
    }

    /// Accepts an async job, which runs when it has a seat; at once and right here if it comes from a thread of the pool's,
    /// unless `detached`.
    pub(crate) fn submit(
        &self,
        order: Order,
        job: Arc<dyn Stoppable>,
        task: Task,
        detached: bool,
    ) -> Result<Placed, (Refused, Task)> {
        let here = self.is_here();
        let seats = order.facts.kind.seats();
        let stop = Arc::clone(&job);
        let mut task = Some(task);
        let accepted = self.change(false, |inner, now| {
            if here && !detached {
                let Seat::May(seat) = self.seat_here(inner, seats, now) else {
                    let Facts { class, group, .. } = order.facts;
                    let request = Request { group, ..Request::new(lane(class), 1) };
                    // it need not try again
                    inner.check_open(&request)?;
                    inner.classes.count_refused(&request, Cause::Busy);
                    return Err(Refused::NoSeat);
                };
                let place = Self::accept(inner, order, job, now).inspect_err(|_| {
                    if let Some(seat) = &seat {
                        inner.seats.release(seat, || now);
                    }
                })?;
                stop.stop().settle(place, self.effective(seats, seat.as_ref()), true);
                if let Some(seat) = seat {
                    inner.book.seated(place, seat);
                }
                return Ok(false);
            }
            let place = Self::accept(inner, order, job, now)?;
            stop.stop().settle(place, Some(seats), false);
            Ok(self.sit(inner, place, seats, &mut task, now))
        });
        match (accepted, task) {
            (Ok(true), Some(task)) => {
                self.spawn.spawn(task);
                Ok(Placed::There)
            }
            (Ok(false), Some(task)) => Ok(Placed::Here(task)),
            (Ok(_), None) => Ok(Placed::There),
            (Err(refused), Some(task)) => Err((refused, task)),
            (Err(_), None) => unreachable!("a refused job keeps its task"),
        }
    }

    /// Gives a job that was accepted a seat, or has it wait for one. Says whether the caller is to spawn it.
    fn sit(
        &self,
        inner: &mut Inner,
        place: Place,
        seats: Seats,
        task: &mut Option<Task>,
        now: Tick,
    ) -> bool {
        let Some(own) = task.take() else { return false };
        let request = seat_request(seats);
        match inner.seats.enter(&request, Waits { place, seats, task: own }, || now) {
            Entered::Queued(key) => {
                inner.book.waits(place, key);
                false
            }
            Entered::Granted(waits) => {
                inner.book.seated(place, request.claim());
                if self.is_occupied() && !inner.exit {
                    inner.errands.push_back(waits.task);
                    self.bell.ring();
                    return false;
                }
                *task = Some(waits.task);
                true
            }
            Entered::Refused(_, waits) => {
                debug_assert!(false, "seats are never closed, and any number may wait");
                *task = Some(waits.task);
                true
            }
        }
    }

    /// A task was woken that another thread is to run: by a job on this one, which may go on for long before it returns to
    /// the runtime. What a worker woke last waits in a slot of its own, which others can't take from; what comes after it
    /// pushes it out of there.
    pub(crate) fn nudge(&self) {
        if self.is_occupied() && worker::depth(self.id.get()).is_some_and(|jobs| jobs > 0) {
            self.spawn.spawn(Box::pin(std::future::ready(None)));
        }
    }

    /// Accepts a blocking job, which needs no seat.
    pub(crate) fn submit_blocking(
        &self,
        order: Order,
        job: Arc<dyn Stoppable>,
    ) -> Result<(), Refused> {
        self.change(false, |inner, now| {
            let place = Self::accept(inner, order, Arc::clone(&job), now)?;
            job.stop().settle(place, None, true);
            Ok(())
        })
    }

    /// Accepts the cleanup that ends an attempt, which is over then.
    pub(crate) fn submit_release(
        &self,
        facts: Facts,
        at: AttemptPlace,
        job: Arc<dyn Stoppable>,
        task: Task,
    ) -> Result<(), (Refused, Task)> {
        let seats = facts.kind.seats();
        let mut task = Some(task);
        let spawns = self.change(false, |inner, now| {
            if inner.exit {
                // else it is accepted whatever is closed
                let request = Request::new(lane(Class::Release), 1);
                inner.check_open(&request)?;
            }
            let Some(claim) = inner.book.take_release(at) else {
                return Err(Refused::AttemptOver);
            };
            let place = inner.accept(facts, Payment::Own(claim), None, Arc::clone(&job), now);
            job.stop().settle(place, Some(seats), false);
            Ok(self.sit(inner, place, seats, &mut task, now))
        });
        match (spawns, task) {
            (Ok(_), Some(task)) => self.spawn.spawn(task),
            (Ok(_), None) => {}
            (Err(refused), Some(task)) => return Err((refused, task)),
            (Err(_), None) => unreachable!("a refused job keeps its task"),
        }
        Ok(())
    }

    /// Takes a job that waits for a seat out of the queue, to run it on this thread of the pool's, if that may be.
    pub(crate) fn take_here(&self, stop: &Stop) -> Option<Task> {
        let (place, seats) = (stop.place()?, stop.seats()?);
        if !self.is_here() {
            return None;
        }
        self.change(false, |inner, now| {
            let key = inner.book.take_wait(place)?;
            let Seat::May(seat) = self.seat_here(inner, seats, now) else {
                inner.book.waits(place, key);
                return None;
            };
            let waits = inner.seats.cancel(key, || now)?;
            stop.settle(place, self.effective(seats, seat.as_ref()), true);
            if let Some(seat) = seat {
                inner.book.seated(place, seat);
            }
            Some(waits.task)
        })
    }

    /// The job begins on this thread. Says on which worker that is.
    pub(crate) fn start(&self, place: Place) -> Option<u32> {
        let outer = worker::running(self.id.get()).and_then(|outer| outer.worker);
        self.change(false, |inner, now| inner.book.start(place, outer, now))
    }

    /// The job has ended. It `leaves` the counts now, or is to [`leave`](Self::leave) them later. When it is the `last` thing
    /// that this thread does for the job, it may go on with the job that is returned, which has begun.
    pub(crate) fn end(
        &self,
        place: Place,
        outcome: Outcome,
        leaves: bool,
        last: bool,
    ) -> Option<Next> {
        let goes_on = last && self.may_go_on();
        let now = self.now();
        let mut guard = self.inner.lock();
        guard.end(place, outcome, leaves, now);
        let next = if goes_on { guard.seated() } else { None };
        let Some((place, task)) = next else {
            self.finish(guard, last);
            return None;
        };
        guard.book.begin_next(place, now);
        // from here on this thread has that job
        worker::end_as(self.id.get(), || self.finish(guard, false));
        Some(Next(task))
    }

    /// Whether this thread, which is done with a job, may go on with the next one. A job begins where the device can be
    /// bound; and what the last job has spawned by itself would wait in this thread's own slot for the end of the next.
    fn may_go_on(&self) -> bool {
        let bound = catch_unwind(AssertUnwindSafe(|| self.bind()));
        bound.is_ok_and(|bound| bound.is_ok()) && !self.spawn.has_others()
    }

    /// What was to be called at the end of the job has been.
    pub(crate) fn leave(&self, place: Place) {
        self.change(false, |inner, _| inner.leave(place));
    }

    /// Somebody wants the job to end: one that waits is dropped here, one that runs is dropped where it runs, at its next
    /// await. `left` when nobody waits for it any more. Says whether that is the first time, and not too late.
    pub(crate) fn cancel(&self, stop: &Stop, left: bool) -> bool {
        let Some(place) = stop.place() else { return false };
        let (live, asked, waits) = self.change(false, |inner, now| {
            let live = inner.book.is_live(place);
            let asked = inner.book.ask(place, left, now);
            let key = inner.book.take_wait(place);
            (live, asked, key.and_then(|key| inner.seats.cancel(key, || now)))
        });
        if !live {
            return false;
        }
        if stop.abort() {
            self.nudge();
        }
        if let Some(waits) = waits {
            engine::contain(|| drop(waits));
        }
        asked
    }

    /// Asks the jobs that `which` picks to stop by their tokens. Returns how many were asked now.
    fn ask(&self, which: impl Fn(&Facts) -> bool) -> u64 {
        let asked = self.change(false, |inner, now| {
            let mut stops = inner.book.stops(which);
            stops.retain(|&(place, _)| inner.book.ask(place, false, now));
            stops
        });
        for (_, job) in &asked {
            job.stop().ask();
        }
        asked.len() as u64
    }

    /// Counts an attempt, whose two permits somebody got.
    pub(crate) fn admit(&self, root: Claim, release: Claim) -> AttemptPlace {
        self.book(|book| book.admit(root, release))
    }

    /// Nothing more begins under the attempt.
    pub(crate) fn close_attempt(&self, at: AttemptPlace) {
        self.change(false, |inner, now| {
            let returned = inner.book.close_attempt(at);
            inner.give_back(returned, now);
        });
    }

    /// Accepts nothing more. When this returns, who waited to be admitted has been told.
    pub(crate) fn close(&self, what: Closed) {
        self.change(false, |inner, _| inner.classes.close(what));
    }

    /// Accepts nothing more, and ends once all that was accepted has.
    pub(crate) fn close_for_good(&self, what: Closed) {
        self.change(false, |inner, _| {
            inner.classes.close(what);
            inner.exit_when_drained = true;
        });
    }

    /// The runtime is to end. `false` when the pool is not closed.
    pub(crate) fn request_exit(&self) -> bool {
        let closed = self.look(|inner| {
            let closed = inner.is_closed();
            inner.exit |= closed;
            closed
        });
        if closed {
            self.bell.ring();
        }
        closed
    }

    /// Has the runtime run it.
    pub(crate) fn spawn(&self, task: Task) {
        self.spawn.spawn(task);
    }

    /// For the supervisor: what there is to do, and whether the runtime is to end.
    pub(crate) fn take_errands(&self) -> (VecDeque<Task>, bool) {
        self.look(|inner| (mem::take(&mut inner.errands), inner.exit))
    }

    /// For the supervisor: waits for something to do, and says whether that is to end.
    pub(crate) fn next_errands(&self) -> (VecDeque<Task>, bool) {
        loop {
            let rings = self.bell.rings();
            let (errands, exit) = self.take_errands();
            if exit || !errands.is_empty() {
                return (errands, exit);
            }
            self.bell.wait(rings);
        }
    }

    /// For the supervisor, before the runtime goes: drops the async jobs that wait, and those that run at their next await.
    pub(crate) fn abandon(&self) {
        let (waiting, running) = self.change(false, |inner, now| {
            let stops = inner.book.stops(|_| true);
            let keys: Vec<_> =
                stops.iter().filter_map(|&(place, _)| inner.book.take_wait(place)).collect();
            let waiting: Vec<_> =
                keys.into_iter().filter_map(|key| inner.seats.cancel(key, || now)).collect();
            (waiting, stops)
        });
        for (_, job) in running {
            let _woke = job.stop().abort();
        }
        for waits in waiting {
            engine::contain(|| drop(waits));
        }
    }

    /// For the supervisor: the runtime is gone.
    pub(crate) fn ended(&self, ended: Ended) {
        let attached = self.change(false, |inner, _| {
            inner.ended = Some(ended);
            inner.book.events.finish();
            let mut wakes = WakeList::new();
            inner.waiters.take_all(&mut wakes);
            (wakes, inner.attached.clone())
        });
        let (mut wakes, attached) = attached;
        wakes.wake_all();
        if let Some((membership, _)) = attached {
            membership.quiet(1);
        }
    }

    /// Whether a phase of the end is over; else leaves a waker to be told.
    pub(crate) fn poll_phase(&self, phase: Phase, place: &mut Option<usize>, waker: Waker) -> bool {
        self.poll_when(place, waker, |inner| match phase {
            Phase::Drain => inner.is_drained(),
            Phase::Runtime | Phase::Supervisor => inner.has_ended(),
        })
    }

    /// Whether `over` holds; else leaves a waker to be called when it may. Only what comes about with the pool drained, or
    /// after its runtime was to end, is noticed.
    pub(crate) fn poll_when(
        &self,
        place: &mut Option<usize>,
        waker: Waker,
        over: impl FnOnce(&Inner) -> bool,
    ) -> bool {
        let mut fresh = Some(waker);
        let at = *place;
        let (over, stale) = self.look(|inner| {
            if over(inner) {
                return (true, None);
            }
            let fresh = fresh.take().expect("taken once");
            let (at, stale) = inner.waiters.register(at, fresh);
            *place = Some(at);
            (false, stale)
        });
        drop((stale, fresh));
        over
    }

    /// Whoever waited there does so no more.
    pub(crate) fn forget_waiter(&self, place: usize) {
        let _waker = self.look(|inner| inner.waiters.remove(place));
    }

    /// What reports say of all jobs. O(jobs).
    pub(crate) fn infos(&self) -> Vec<JobInfo> {
        let now = self.now();
        self.book(|book| book.infos(now, |_| true))
    }

    /// Makes a new pool belong to `scope`.
    pub(crate) fn attach(self: &Arc<Self>, scope: &Scope) {
        let group = self.with(|state| state.open_group(Arc::new(Nobody), Tick::NEVER));
        let member: Arc<dyn Member> = Arc::new(ThePool(Arc::downgrade(self)));
        let name = self.device.name.as_str().into();
        let membership = Arc::new(Membership::new(scope, Arc::downgrade(&member), name));
        let attached = (Arc::clone(&membership), Arc::clone(&member));
        self.look(|inner| inner.attached = Some(attached));
        membership.settle(group, &*member);
    }
}

fn seat_request(seats: Seats) -> Request {
    Request::new(seat_lane(seats), 1)
}

/// A permit of a job's own, without waiting.
fn take(classes: &mut State<Waker>, request: &Request, now: Tick) -> Result<Payment, Refused> {
    match classes.try_acquire(request, || now) {
        Tried::Granted => Ok(Payment::Own(request.claim())),
        Tried::Refused(Cause::Closed(what)) => Err(Refused::Closed { what }),
        Tried::Refused(Cause::Deadline) => Err(Refused::Deadline),
        Tried::Wait | Tried::Refused(_) => {
            classes.count_refused(request, Cause::Busy);
            let class = LANES[request.lane.0 as usize];
            Err(Refused::ClassFull { class, capacity: classes.largest(request.lane) })
        }
    }
}

impl Engine for Core {
    type Waiter = Waker;

    fn wrap(waker: Waker) -> Waker {
        waker
    }

    fn waker(waiter: &mut Waker) -> Option<&mut Waker> {
        Some(waiter)
    }

    fn with<R>(&self, f: impl FnOnce(&mut State<Waker>) -> R) -> R {
        let mut guard = self.inner.lock();
        let result = f(&mut guard.classes);
        self.finish(guard, false);
        result
    }

    fn now(&self) -> Tick {
        self.tick(Deadline::at(self.time.now()))
    }

    fn tick(&self, deadline: Deadline) -> Tick {
        Tick::from_deadline(deadline, self.epoch)
    }

    fn prepare_timer(&self) -> Result<(), NoTimer> {
        self.time.prepare()
    }

    fn cancel_group(&self, group: GroupId, _leased: bool) -> u64 {
        // nothing here comes under a lease
        self.ask(|facts| facts.group == Some(group))
    }

    fn jobs_in(&self, group: GroupId) -> Vec<JobInfo> {
        let now = self.now();
        self.book(|book| book.infos(now, |facts| facts.group == Some(group)))
    }
}

impl OnTime for Core {
    fn on_time(self: Arc<Self>) {
        self.change(false, |inner, now| {
            inner.alarm.came();
            inner.classes.advance(now);
        });
    }
}

/// A pool as the scope knows it that it belongs to as a whole.
struct ThePool(Weak<Core>);

/// The owner of the group that stands for the whole pool: the pool itself tells the scope, once its threads have ended.
struct Nobody;

impl GroupOwner for Nobody {
    fn idle(&self) {}
    fn gone(&self, _refused: u64) {}
}

impl Member for ThePool {
    fn close(&self, _group: GroupId, _leased: bool) {
        if let Some(core) = self.0.upgrade() {
            core.close_for_good(Closed::Scope);
        }
    }

    fn cancel(&self, _group: GroupId, _leased: bool) -> u64 {
        self.0.upgrade().map_or(0, |core| core.ask(|_| true))
    }

    fn tighten(&self, _group: GroupId, _deadline: Deadline) {
        // what waits is refused by the close, and what was accepted ends in its own time
    }

    fn remaining(&self, _group: GroupId) -> Remaining {
        let Some(core) = self.0.upgrade() else { return Remaining::default() };
        let jobs = core.infos();
        core.look(|inner| Remaining {
            waiting: inner.classes.waiting(),
            permits: inner.classes.out(),
            ending: inner.book.counts().ending,
            // the workers, and the one that owns their runtime
            threads: if inner.has_ended() { 0 } else { core.capacities.workers as usize + 1 },
            jobs,
        })
    }

    fn refused(&self, _group: GroupId) -> u64 {
        let Some(core) = self.0.upgrade() else { return 0 };
        let now = core.now();
        let stats = core.look(|inner| inner.classes.stats(now));
        stats.lanes.iter().map(|lane| lane.refused.closed).sum()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts itself, and hands over to as many more.
    fn chain(more: u32, ran: &Arc<AtomicU32>) -> Task {
        let ran = Arc::clone(ran);
        Box::pin(async move {
            ran.fetch_add(1, Ordering::Relaxed);
            more.checked_sub(1).map(|more| Next(chain(more, &ran)))
        })
    }

    /// DEV-4
    #[test]
    fn jobs_that_follow_one_another_let_others_have_their_turn() {
        let (ran, pauses) = (Arc::new(AtomicU32::new(0)), RefCell::new(Vec::new()));
        let pause = async || pauses.borrow_mut().push(ran.load(Ordering::Relaxed));
        futures_lite::future::block_on(run_all(chain(3 * STREAK, &ran), pause));
        assert_eq!(ran.load(Ordering::Relaxed), 3 * STREAK + 1);
        assert_eq!(pauses.into_inner(), [STREAK, 2 * STREAK, 3 * STREAK]);
    }
}
