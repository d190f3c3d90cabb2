//! What the drivers do things to.

use crate::engine::books::{LaneBook, Lent, Place, Spark};
use crate::engine::dice::Dice;
use crate::engine::janitor::{Bin, Janitor};
use crate::engine::tokens::{Bonds, Tally};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tollgate_blocking::admission::{ThreadTimer, TimeSource};
use tollgate_blocking::{
    BlockingPool, BlockingPoolBuilder, Deadline, Executor, JobBuilder, JobKind, LanePolicy, Scope,
    WorkerThread,
};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct World {
    pub(crate) tally: Arc<Tally>,
    pub(crate) bin: Bin,
    /// Lasts to the end.
    pub(crate) keeper: Runtime,
    /// Dropped on the way, with all that runs on it.
    pub(crate) doomed: Mutex<Option<Runtime>>,
    pub(crate) timer: Arc<ThreadTimer>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) root: Arc<Place>,
    /// Below the root, at any depth.
    places: Mutex<Vec<Arc<Place>>>,
    leases: Mutex<Vec<Arc<Lent>>>,
}

pub(crate) struct Pool {
    /// A job may wait for one of a pool with a higher number only: waiting in a circle is nobody's fault but the jobs'.
    pub(crate) number: usize,
    pub(crate) pool: BlockingPool,
    pub(crate) lanes: Vec<Lane>,
    /// The scope that it belongs to.
    pub(crate) attached: Option<Arc<Place>>,
    /// Executors for scopes.
    bound: Mutex<Vec<Arc<Bound>>>,
}

pub(crate) struct Lane {
    pub(crate) name: &'static str,
    pub(crate) executor: Executor,
    pub(crate) book: Arc<LaneBook>,
}

struct Bound {
    executor: Executor,
    place: Arc<Place>,
    book: Arc<LaneBook>,
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).build().expect("the system gives a thread")
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn lane(dice: &mut Dice, name: &'static str, capacity: u64) -> LanePolicy {
    let mut lane = LanePolicy::new(name).limit(1 + dice.below(capacity));
    lane = match dice.below(4) {
        0 => lane.max_waiting(0),
        1 => lane.max_waiting(4),
        2 => lane.max_waiting(64),
        _ => lane.unbounded_waiting(),
    };
    if dice.one_in(3) {
        lane = lane.queue_timeout(Duration::from_micros(50 + dice.below(1_000)));
    }
    if dice.one_in(3) {
        lane = lane.task_timeout(Duration::from_micros(20 + dice.below(300)));
    }
    if dice.one_in(4) {
        lane = lane.warn_after(dice.micros(100));
    }
    lane
}

impl Pool {
    fn build(
        number: usize,
        dice: &mut Dice,
        builder: BlockingPoolBuilder,
        attached: Option<Arc<Place>>,
    ) -> Self {
        let (lanes, capacity) = (1 + dice.below(NAMES.len() as u64), 1 + dice.below(6));
        let names = &NAMES[..lanes as usize];
        let mut builder = builder.capacity(capacity);
        for (at, name) in names.iter().enumerate() {
            let mut policy = lane(dice, name, capacity);
            if at == 0 && capacity > 1 && dice.one_in(2) {
                policy = policy.limit(capacity).reserved(1).kept(dice.below(2));
            }
            builder = builder.lane(policy);
        }
        if let Some(place) = &attached {
            builder = builder.scope(&place.scope);
        }
        let keep_alive = [Duration::from_micros(500), Duration::from_secs(60), Duration::MAX];
        builder = builder.keep_alive(*dice.pick(&keep_alive).expect("there are some"));
        let pool = builder.build().expect("it fits together");
        let lanes = names.iter().map(|name| Lane {
            name,
            executor: pool.executor(name).expect("it was built with this lane"),
            book: Arc::default(),
        });
        Pool { number, lanes: lanes.collect(), pool, attached, bound: Mutex::default() }
    }

    /// Changes capacity and lanes, or fails to.
    pub(crate) fn resize(&self, dice: &mut Dice) {
        let capacity = 1 + dice.below(6);
        let mut change = self.pool.resize().capacity(capacity);
        for lane in &self.lanes {
            let (limit, waiting) = (1 + dice.below(capacity), dice.below(64) as usize);
            let timeout = dice.one_in(4).then(|| Duration::from_micros(50 + dice.below(1_000)));
            change = change.lane(lane.name, |lane| {
                lane.reserved(0).kept(0).limit(limit).max_waiting(waiting).queue_timeout(timeout)
            });
        }
        change.apply().expect("it fits together");
    }
}

/// Threads that do not come, now and then, and hooks that panic.
fn grudging(builder: BlockingPoolBuilder, dice: &mut Dice) -> BlockingPoolBuilder {
    let own = Mutex::new(dice.split());
    let hooks = Mutex::new(dice.split());
    let handler = move |thread: WorkerThread| match lock(&own).below(8) {
        0 => Err(io::Error::other("not now")),
        // dropped, which says the same
        1 => Ok(()),
        // it comes, and is not wanted
        2 => {
            std::thread::Builder::new().spawn(move || thread.run())?;
            Err(io::Error::other("too late"))
        }
        _ => std::thread::Builder::new().spawn(move || thread.run()).map(drop),
    };
    builder.spawn_handler(handler).on_thread_start(move || {
        let spark = {
            let mut dice = lock(&hooks);
            dice.one_in(4).then(|| Spark::new(&mut dice))
        };
        if let Some(spark) = spark {
            spark.fly();
        }
    })
}

impl World {
    pub(crate) fn build(dice: &mut Dice, janitor: &Janitor) -> Self {
        let (keeper, doomed) = (runtime(), runtime());
        // one for all, so that it goes with the world: the one that is shared by the process would keep what it was asked
        let timer = Arc::new(ThreadTimer::new("chaos-timer"));
        let time = || Arc::clone(&timer) as Arc<dyn TimeSource>;
        let root = Place::new(Scope::root_by("root", time()));
        let whole = Place::new(root.scope.child("whole").expect("the root is open"));
        let on = |runtime: &Runtime| BlockingPool::builder(runtime.handle().clone());
        let plain = Pool::build(0, dice, on(&keeper), None);
        let attached = Pool::build(1, dice, on(&keeper).time(time()), Some(Arc::clone(&whole)));
        let orphan = Pool::build(2, dice, on(&doomed), None);
        let scarce = grudging(on(&keeper).time(time()), dice);
        let scarce = Pool::build(3, dice, scarce, None);
        World {
            tally: Arc::clone(&janitor.tally),
            bin: janitor.bin(),
            keeper,
            doomed: Mutex::new(Some(doomed)),
            timer: Arc::clone(&timer),
            pools: vec![plain, attached, orphan, scarce],
            root,
            places: Mutex::default(),
            leases: Mutex::default(),
        }
    }

    pub(crate) fn pool(&self, dice: &mut Dice) -> &Pool {
        dice.pick(&self.pools).expect("there are some")
    }

    /// A scope below the root, or the root where there is none.
    pub(crate) fn place(&self, dice: &mut Dice) -> Arc<Place> {
        let places = lock(&self.places);
        Arc::clone(dice.pick(&places).unwrap_or(&self.root))
    }

    /// Opens a scope below another one. Forgets one, too, when there are many.
    pub(crate) fn open(&self, dice: &mut Dice) {
        /// Few enough that many jobs meet in one.
        const MANY: usize = 10;
        let above = if dice.one_in(2) { self.place(dice) } else { Arc::clone(&self.root) };
        let Ok(scope) = above.scope.child("part") else { return };
        let mut places = lock(&self.places);
        places.push(Place::new(scope));
        let old =
            (places.len() > MANY).then(|| places.swap_remove(dice.below(MANY as u64) as usize));
        drop(places);
        drop(old);
    }

    /// No more jobs go to this scope, but for those that are bound to it already.
    pub(crate) fn forget(&self, place: &Arc<Place>) {
        lock(&self.places).retain(|it| !Arc::ptr_eq(it, place));
    }

    pub(crate) fn lend(&self, dice: &mut Dice) {
        const MANY: usize = 8;
        let (place, operations) = (self.place(dice), dice.below(6));
        let deadline = match dice.below(3) {
            0 => Deadline::never(),
            1 => Deadline::after(dice.micros(300)),
            _ => Deadline::after(dice.micros(20_000)),
        };
        // closed or too late
        let Ok(lease) = place.scope.drain_lease(operations, deadline) else { return };
        let lent = Lent::new(lease, place, operations);
        let mut leases = lock(&self.leases);
        leases.push(lent);
        let old =
            (leases.len() > MANY).then(|| leases.swap_remove(dice.below(MANY as u64) as usize));
        drop(leases);
        drop(old);
    }

    /// Lets go of scopes, leases and executors for scopes.
    pub(crate) fn let_go(&self) {
        let places = std::mem::take(&mut *lock(&self.places));
        let leases = std::mem::take(&mut *lock(&self.leases));
        let bound: Vec<_> =
            self.pools.iter().map(|pool| std::mem::take(&mut *lock(&pool.bound))).collect();
        drop((places, leases, bound));
    }

    fn bound(&self, dice: &mut Dice, pool: &Pool) -> Arc<Bound> {
        const MANY: u64 = 6;
        let mut bound = lock(&pool.bound);
        if bound.len() as u64 == MANY && !dice.one_in(20) {
            return Arc::clone(&bound[dice.below(MANY) as usize]);
        }
        let old = (bound.len() as u64 == MANY).then(|| bound.swap_remove(0));
        drop(bound);
        let place = self.place(dice);
        let lane = dice.pick(&pool.lanes).expect("there are some");
        let executor = lane.executor.scoped(&place.scope);
        let fresh = Arc::new(Bound { executor, place, book: Arc::clone(&lane.book) });
        let mut bound = lock(&pool.bound);
        if (bound.len() as u64) < MANY {
            bound.push(Arc::clone(&fresh));
        }
        drop(bound);
        drop(old);
        fresh
    }

    /// What a job of this pool is to be like.
    pub(crate) fn wish<'a>(&self, dice: &mut Dice, pool: &'a Pool) -> Wish<'a> {
        let bound = dice.one_in(3).then(|| self.bound(dice, pool));
        let lane = dice.pick(&pool.lanes).expect("there are some");
        let lent = dice.one_in(8).then(|| dice.pick(&lock(&self.leases)).cloned()).flatten();
        let place = match &lent {
            // an operation belongs to the scope that lent it
            Some(lent) => Some(Arc::clone(&lent.place)),
            None => dice.one_in(8).then(|| self.place(dice)),
        };
        let bound = bound.filter(|_| place.is_none());
        let mut weight = if dice.one_in(5) { 1 + dice.below(3) } else { 1 };
        if dice.one_in(500) {
            weight = [0, u64::MAX][dice.below(2) as usize];
        }
        let deadline = dice.one_in(4).then(|| Instant::now() + dice.micros(400));
        let kind = match dice.below(100) {
            0 => JobKind::LONG_RUNNING,
            1..30 => JobKind::CPU_BOUND,
            30..40 => JobKind::new("chaos"),
            _ => JobKind::SHORT_IO,
        };
        let owned = dice.one_in(20);
        Wish { pool, lane, bound, place, lent, weight, deadline, kind, owned }
    }
}

/// A job to be.
pub(crate) struct Wish<'a> {
    pub(crate) pool: &'a Pool,
    lane: &'a Lane,
    bound: Option<Arc<Bound>>,
    place: Option<Arc<Place>>,
    lent: Option<Arc<Lent>>,
    weight: u64,
    deadline: Option<Instant>,
    kind: JobKind,
    owned: bool,
}

impl Wish<'_> {
    pub(crate) fn builder(&self) -> JobBuilder<'_> {
        let executor = self.bound.as_ref().map_or(&self.lane.executor, |bound| &bound.executor);
        let job =
            if self.owned { executor.job(String::from("owned")) } else { executor.job("job") };
        let mut job = job.kind(self.kind).weight(self.weight);
        if let Some(deadline) = self.deadline {
            job = job.deadline(Deadline::at(deadline));
        }
        if let Some(place) = &self.place {
            job = job.scope(&place.scope);
        }
        if let Some(lent) = &self.lent {
            job = job.lease(&lent.lease);
        }
        job
    }

    /// The book of its lane.
    pub(crate) fn book(&self) -> Arc<LaneBook> {
        Arc::clone(self.bound.as_ref().map_or(&self.lane.book, |bound| &bound.book))
    }

    pub(crate) fn bonds(&self) -> Bonds {
        let bound = self.bound.as_ref().map(|bound| &bound.place);
        let place = self.place.as_ref().or(bound).or(self.pool.attached.as_ref());
        Bonds {
            running: place.map(|place| Arc::clone(&place.running)),
            allowance: self.lent.as_ref().map(|lent| Arc::clone(&lent.allowance)),
        }
    }
}
