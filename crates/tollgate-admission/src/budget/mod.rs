//! A budget on its own: wakers wait in it, and nothing else.

pub(crate) mod config;
mod resize;

pub use config::{DEFAULT_MAX_WAITING, LaneConfig};
pub use resize::{Change, LaneChange, Resize};

use crate::deadline::Deadline;
use crate::engine::{self, Alarm, Bound, Engine, LaneId, Request, State, Tick, WakeList, WakerSet};
use crate::error::{AcquireError, BuildError, Closed, NoTimer, TryAcquireError, UnknownLane};
use crate::scope::{DrainLease, Scope};
use crate::stats::BudgetStats;
use crate::sync::{Mutex, MutexGuard};
use crate::time::{OnTime, ThreadTimer, TimeSource};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// How often a borrowing head may be passed by younger borrowers before capacity is saved up for it.
pub const DEFAULT_MAX_BYPASS: u32 = 16;

/// A capacity that is shared by lanes. Clones share it.
///
/// A permit is taken from a lane before work starts, travels with the work, and comes back when the work has ended.
///
/// # Fairness
///
/// Within a lane, first come, first served: neither a newcomer nor [`Lane::try_acquire`] passes a live waiter. A permit
/// that comes back goes straight to the waiter that gets it. Between lanes, those within their reservation go first,
/// then the earliest arrival that fits. A lane may borrow what is idle; it leaves alone what is *kept* for another lane,
/// and what is *reserved* for a lane whose first waiter fits inside its reservation. A borrower that needs much may be
/// passed by later ones that need less, [a set number of times](BudgetBuilder::max_bypass).
///
/// # Deadlines
///
/// A waiter whose time is up is never granted, and no longer counts for anything, whether or not it has been polled
/// since. Any executor may poll an acquire; a timer wakes it at its deadline (see [`TimeSource`](crate::TimeSource)).
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate_admission::{Budget, LaneConfig};
///
/// let budget = Budget::builder()
///     .capacity(8)
///     .lane(LaneConfig::new("queries").limit(7).max_waiting(100))
///     .lane(LaneConfig::new("probes").reserved(1).kept(1).max_waiting(10))
///     .build()?;
///
/// let queries = budget.lane("queries")?;
/// let held = queries.try_acquire_many(7)?;
/// assert!(queries.try_acquire().is_err());
/// // one permit is kept for probes, whatever the queries do
/// let probe = budget.lane("probes")?.try_acquire()?;
/// drop(held);
/// assert_eq!(budget.stats().available, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Budget {
    core: Arc<Core>,
}

/// Owner of a plain budget's lock.
pub(crate) struct Core {
    inner: Mutex<Inner>,
    time: Arc<dyn TimeSource>,
    epoch: Instant,
    me: Weak<Core>,
}

struct Inner {
    state: State<Waker>,
    /// Those who wait for the last permit after a close.
    drained: WakerSet,
    /// What the time source was asked for.
    alarm: Alarm,
}

impl Core {
    /// Hands on what `guard`'s holder settled, in batches, so that no lock is held for long.
    fn finish<'a>(&'a self, mut guard: MutexGuard<'a, Inner>) {
        let mut wakes = WakeList::new();
        loop {
            let inner = &mut *guard;
            while wakes.len() < WakeList::BATCH
                && let Some((key, _)) = inner.state.next_settled()
            {
                if let Some(waker) = inner.state.waiter_mut(key) {
                    wakes.push(std::mem::replace(waker, Waker::noop().clone()));
                }
            }
            let more = wakes.len() >= WakeList::BATCH;
            let told = if more { None } else { inner.state.next_told() };
            if inner.state.is_drained() {
                inner.drained.take_all(&mut wakes);
            }
            let call = inner.alarm.ask(inner.state.next_deadline(), inner.state.latest());
            drop(guard);
            if let Some(at) = call.and_then(|at| at.to_instant(self.epoch)) {
                self.time.call_at(at, self.me.clone());
            }
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
}

impl Engine for Core {
    type Waiter = Waker;

    fn wrap(waker: Waker) -> Waker {
        waker
    }

    fn waker(waiter: &mut Waker) -> Option<&mut Waker> {
        Some(waiter)
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut State<Waker>) -> R) -> R {
        let mut guard = self.inner.lock();
        let result = f(&mut guard.state);
        self.finish(guard);
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
}

impl OnTime for Core {
    fn on_time(self: Arc<Self>) {
        let now = self.now();
        let mut guard = self.inner.lock();
        guard.alarm.came();
        guard.state.advance(now);
        self.finish(guard);
    }
}

/// How a [`Budget`] is to be built.
#[derive(Clone, Debug)]
#[must_use]
pub struct BudgetBuilder {
    capacity: u64,
    lanes: Vec<LaneConfig>,
    max_bypass: u32,
    time: Option<Arc<dyn TimeSource>>,
}

impl BudgetBuilder {
    /// Permits that may be out at once, over all lanes. There is no default: a budget without it is an error.
    pub fn capacity(mut self, permits: u64) -> Self {
        self.capacity = permits;
        self
    }

    /// Adds a lane. At least one is needed.
    pub fn lane(mut self, lane: LaneConfig) -> Self {
        self.lanes.push(lane);
        self
    }

    /// How often a borrowing waiter at the head of its lane may be passed by younger borrowers that need less; after
    /// that, capacity is saved up until it fits. 0 is strict order of arrival among borrowers. By default
    /// [`DEFAULT_MAX_BYPASS`].
    pub fn max_bypass(mut self, times: u32) -> Self {
        self.max_bypass = times;
        self
    }

    /// Where the time comes from. By default a [`ThreadTimer`] that all budgets of the process share.
    pub fn time(mut self, time: Arc<dyn TimeSource>) -> Self {
        self.time = Some(time);
        self
    }

    /// Builds the budget.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names the lane and the numbers that don't fit.
    pub fn build(self) -> Result<Budget, BuildError> {
        let state = State::new(self.capacity, self.lanes, self.max_bypass)?;
        let time = self.time.unwrap_or_else(|| ThreadTimer::shared());
        let inner = Inner { state, drained: WakerSet::default(), alarm: Alarm::new() };
        let epoch = time.now();
        let core =
            Arc::new_cyclic(|me| Core { inner: Mutex::new(inner), time, epoch, me: me.clone() });
        Ok(Budget { core })
    }
}

impl Budget {
    /// Starts a description of a budget.
    pub fn builder() -> BudgetBuilder {
        BudgetBuilder { capacity: 0, lanes: Vec::new(), max_bypass: DEFAULT_MAX_BYPASS, time: None }
    }

    /// The lane with this name. O(lanes): keep the handle.
    ///
    /// # Errors
    ///
    /// [`UnknownLane`] when there is none.
    pub fn lane(&self, name: &str) -> Result<Lane, UnknownLane> {
        let found = self
            .core
            .with(|state| state.lane(name).map(|id| (id, Arc::clone(&state.config(id).name))));
        let (id, name) = found.ok_or_else(|| UnknownLane { lane: name.into() })?;
        Ok(Lane { core: Arc::clone(&self.core), id, name, bound: None })
    }

    /// Admits nothing more. When this returns, everybody who waited has been refused, whether or not it has looked
    /// yet. Permits that are out stay valid. Closing again does nothing.
    pub fn close(&self) {
        self.core.with(|state| state.close(Closed::Budget));
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.with(|state| state.closed().is_some())
    }

    /// Resolves when the budget is closed and every permit is back. Does not close it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it; it can be asked for again, any number of times.
    pub fn drained(&self) -> Drained {
        Drained { core: Arc::clone(&self.core), place: None }
    }

    /// Starts a change of capacity and lanes while work runs.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tollgate_admission::{Budget, LaneConfig};
    /// # let budget = Budget::builder().capacity(8).lane(LaneConfig::new("scans")).build()?;
    /// budget.resize().capacity(4).lane("scans", |lane| lane.limit(3).max_waiting(10)).apply()?;
    /// assert_eq!(budget.stats().capacity, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn resize(&self) -> Resize<'_> {
        Resize::new(&*self.core)
    }

    /// One consistent copy of every figure, taken under one lock. O(lanes), however many wait.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        let now = self.core.now();
        self.core.with(|state| state.stats(now))
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A handle to one lane of a budget. Clones are the same lane.
#[derive(Clone)]
pub struct Lane {
    core: Arc<Core>,
    id: LaneId,
    name: Arc<str>,
    /// The scope that its acquires belong to.
    bound: Option<Arc<Bound<Core>>>,
}

impl Lane {
    fn request(&self, weight: u64) -> Request {
        let group = self.bound.as_ref().map(|bound| bound.group());
        Request { group, ..Request::new(self.id, weight) }
    }

    /// This lane for work of `scope`: its acquires are refused once the scope is closed, and its deadline covers them;
    /// its permits count as something that is left in the scope until they are back. In place of a scope that this handle
    /// was for.
    ///
    /// Keep the handle: making one registers it with the scope, what is acquired through it then costs nothing more.
    #[must_use]
    pub fn scoped(&self, scope: &Scope) -> Lane {
        let bound = Bound::new(&self.core, scope, Arc::clone(&self.name));
        Lane { bound: Some(Arc::new(bound)), ..self.clone() }
    }

    /// The lane's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A permit of weight 1, when it is this caller's turn. [`Acquire`] says how it can be asked for more, or for a
    /// limited time.
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// A permit of this weight, all or nothing.
    pub fn acquire_many(&self, weight: u64) -> Acquire {
        let inner = engine::Acquire::new(Arc::clone(&self.core), self.request(weight));
        Acquire { inner, lane: Arc::clone(&self.name), bound: self.bound.clone() }
    }

    /// A permit of weight 1, if it can be had before `deadline`. An expired deadline is refused even when one is free.
    pub fn acquire_until(&self, deadline: impl Into<Deadline>) -> Acquire {
        self.acquire().until(deadline)
    }

    /// A permit of weight 1, if it can be had without waiting.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Busy`] also when a permit is free but others wait for it.
    pub fn try_acquire(&self) -> Result<Permit, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// A permit of this weight, if it can be had without waiting.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_many(&self, weight: u64) -> Result<Permit, TryAcquireError> {
        engine::try_acquire(&self.core, self.request(weight)).map(Permit)
    }

    /// A permit of this weight as an operation under `lease`, if it can be had without waiting. It belongs to the lease's
    /// scope, in place of one that this handle is for.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and when the lease allows no operation.
    pub fn try_acquire_leased(
        &self,
        weight: u64,
        lease: &DrainLease,
    ) -> Result<Permit, TryAcquireError> {
        let core = &self.core;
        let bound = bind(core, &self.name, self.bound.as_ref(), lease);
        let mut request = Request { group: Some(bound.group()), ..self.request(weight) };
        let name = Arc::clone(&self.name).into();
        let operation = engine::begin(&**core, &mut request, &lease.by_ref(), name)
            .map_err(|cause| core.with(|state| state.try_acquire_error(&request, cause)))?;
        engine::try_acquire_under(core, request, Some(operation), State::try_acquire_error)
            .map(Permit)
    }

    /// Admits nothing more in this lane, for good; other lanes go on, and may use what it had reserved.
    pub fn close(&self) {
        let core = &self.core;
        core.with(|state| state.close_lane(self.id, Closed::Lane, || core.now()));
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The future of [`Lane::acquire`]: a [`Permit`] to come.
///
/// It asks for nothing before its first poll, can be polled by any executor, and needs one of its own allocations
/// neither when it is granted at once nor when it waits.
///
/// # Errors
///
/// [`AcquireError`], at once when the queue is full, the budget closed or the weight too large.
///
/// # Cancel safety
///
/// Dropping it gives up its place in the queue, in O(1). If a permit had been granted meanwhile, it goes to the next
/// waiter.
///
/// # Panics
///
/// When it is polled after it has completed.
#[derive(Debug)]
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire {
    inner: engine::Acquire<Core>,
    lane: Arc<str>,
    /// Keeps the group of its scope.
    bound: Option<Arc<Bound<Core>>>,
}

impl Acquire {
    /// Asks for this weight instead. Without effect once it was polled.
    pub fn weight(mut self, weight: u64) -> Self {
        let request = Request { weight, ..*self.inner.request() };
        self.inner.set_request(request);
        self
    }

    /// Tightens the deadline: the earliest one given counts. Without effect once it was polled.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        let request = *self.inner.request();
        let deadline = self.inner.engine().tick(deadline.into()).min(request.deadline);
        self.inner.set_request(Request { deadline, ..request });
        self
    }

    /// Makes it an operation under `lease`, which begins at the first poll. It belongs to the lease's scope, in place of
    /// one that the handle of the lane is for. Without effect once it was polled.
    pub fn lease(mut self, lease: &DrainLease) -> Self {
        let bound = bind(self.inner.engine(), &self.lane, self.bound.as_ref(), lease);
        let group = Some(bound.group());
        self.inner.set_request(Request { group, ..*self.inner.request() });
        if self.inner.request().group == group {
            self.bound = Some(bound);
        }
        self.inner.set_lease(lease.by_ref(), Arc::clone(&self.lane).into());
        self
    }
}

/// The group of the scope of `lease`: `bound`'s if that is for it. Otherwise its end, or its deadline, would not reach
/// what waits, and another scope would have something left that nothing lets it know of.
fn bind(
    core: &Arc<Core>,
    lane: &Arc<str>,
    bound: Option<&Arc<Bound<Core>>>,
    lease: &DrainLease,
) -> Arc<Bound<Core>> {
    match bound {
        Some(bound) if bound.scope() == lease.scope() => Arc::clone(bound),
        _ => Arc::new(Bound::new(core, lease.scope(), Arc::clone(lane))),
    }
}

impl Future for Acquire {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(Pin::new(&mut self.inner).poll(cx));
        self.bound = None;
        Poll::Ready(result.map(Permit))
    }
}

/// The owned right to run. Dropping it returns it, on any thread, and hands it straight to the next waiter.
#[derive(Debug)]
#[must_use = "a permit returns as soon as it is dropped"]
pub struct Permit(engine::Permit<Core>);

impl Permit {
    /// How much of the capacity it takes, 1 or more.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.0.weight()
    }
}

/// The future of [`Budget::drained`].
#[must_use = "futures do nothing unless awaited"]
pub struct Drained {
    core: Arc<Core>,
    place: Option<usize>,
}

impl Future for Drained {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let fresh = cx.waker().clone();
        let mut inner = self.core.inner.lock();
        if inner.state.is_drained() {
            return Poll::Ready(());
        }
        let (place, stale) = inner.drained.register(self.place, fresh);
        drop(inner);
        drop(stale);
        self.place = Some(place);
        Poll::Pending
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let _waker = self.core.inner.lock().drained.remove(place);
        }
    }
}

impl fmt::Debug for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drained").finish_non_exhaustive()
    }
}
