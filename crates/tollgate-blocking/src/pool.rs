//! The pool as its owner sees it.

use crate::attached;
use crate::core::{Core, Parts};
use crate::error::BuildError;
use crate::executor::Executor;
use crate::owner::Owner;
use crate::policy::LanePolicy;
use crate::shutdown::Shutdown;
use crate::stats::{PoolStats, Snapshot};
use crate::thread::{Threads, WorkerThread};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tollgate_admission::engine::State;
use tollgate_admission::{
    Closed, DEFAULT_MAX_BYPASS, Deadline, JobInfo, Resize, Scope, ScopeClosed, ThreadTimer,
    TimeSource, UnknownLane,
};

/// How long an idle thread stays, unless the builder says otherwise.
pub const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A pool of threads with bounded lanes, owned by one runtime. Clones are handles to the same pool.
///
/// A job needs a permit of its lane before it may start, keeps it until its closure has really ended, and runs on a
/// thread of the pool with the owner's runtime as the current one, whoever waits for it. Threads start on demand, up to
/// the capacity, and end when they have been idle for a while.
///
/// # Its end
///
/// [`close`](Self::close) admits nothing more and refuses what has not started. [`shutdown`](Self::shutdown) also waits,
/// and reports what has stopped and what has not. When the last handle, pool or executor, is dropped, on any thread, the
/// pool closes; what runs then goes on to its end. When the owner's runtime is gone, the pool closes too. None of these
/// blocks.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tollgate_blocking::{BlockingPool, Deadline, LanePolicy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Runtime::new()?;
/// # rt.block_on(async {
/// let pool = BlockingPool::builder(tokio::runtime::Handle::current())
///     .capacity(4)
///     .lane(LanePolicy::new("storage").limit(3).max_waiting(64))
///     .lane(LanePolicy::new("probes").reserved(1).kept(1))
///     .build()?;
///
/// let storage = pool.executor("storage")?;
/// let bytes = storage.job("read").run(|| std::fs::read("Cargo.toml")).await??;
/// assert!(!bytes.is_empty());
///
/// let report = pool.shutdown(Deadline::after(Duration::from_secs(5))).await;
/// assert!(report.complete, "{report}");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct BlockingPool {
    handle: Arc<Handle>,
}

/// What all handles share; its end is theirs.
pub(crate) struct Handle {
    core: Arc<Core>,
}

impl Handle {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close(Closed::Budget);
    }
}

/// How a [`BlockingPool`] is to be built.
#[must_use]
pub struct BlockingPoolBuilder {
    owner: Owner,
    capacity: u64,
    lanes: Vec<LanePolicy>,
    max_bypass: u32,
    threads: Threads,
    keep_alive: Duration,
    spans: bool,
    time: Option<Arc<dyn TimeSource>>,
    scope: Option<Scope>,
    dedicated: bool,
}

impl BlockingPoolBuilder {
    /// The most permits that may be out at once, over all lanes, and so the most threads that run jobs. A thread that drops
    /// what refused jobs left, or emits a warning, holds no permit, and another may take its place meanwhile. There is no
    /// default.
    pub fn capacity(mut self, permits: u64) -> Self {
        self.capacity = permits;
        self
    }

    /// Adds a lane. At least one is needed.
    pub fn lane(mut self, lane: impl Into<LanePolicy>) -> Self {
        self.lanes.push(lane.into());
        self
    }

    /// See [`BudgetBuilder::max_bypass`](tollgate_admission::BudgetBuilder::max_bypass).
    pub fn max_bypass(mut self, times: u32) -> Self {
        self.max_bypass = times;
        self
    }

    /// What threads are called: this, a dash, and a number. By default `tollgate`.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.threads.name = name.into();
        self
    }

    /// The stack size of threads, in bytes. By default the system's.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.threads.stack_size = Some(bytes);
        self
    }

    /// Called on each thread before its first job, with the owner's runtime entered. A panic is contained.
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.threads.on_start = Some(Arc::new(hook));
        self
    }

    /// Called on each thread after its last job. A panic is contained. The thread no longer counts towards the capacity
    /// then, so a hook that takes long lets more threads exist for that time.
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.threads.on_stop = Some(Arc::new(hook));
        self
    }

    /// Starts threads in place of [`std::thread::Builder`], to pin them, say. An error means that no thread could be
    /// started: the job then runs later on another thread, or fails as [`NoThread`](crate::RunError::NoThread) if the pool
    /// has none. Called outside of any lock, on the thread that made the pool grow.
    pub fn spawn_handler(
        mut self,
        handler: impl Fn(WorkerThread) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.threads.handler = Some(Arc::new(handler));
        self
    }

    /// How long an idle thread stays. By default [`DEFAULT_KEEP_ALIVE`]; [`Duration::MAX`] is for ever.
    pub fn keep_alive(mut self, span: Duration) -> Self {
        self.keep_alive = span;
        self
    }

    /// Whether closures run within the `tracing` span of whoever submitted them. By default they do.
    pub fn propagate_spans(mut self, on: bool) -> Self {
        self.spans = on;
        self
    }

    /// Where the time comes from. By default a [`ThreadTimer`] of the pool's own.
    pub fn time(mut self, time: Arc<dyn TimeSource>) -> Self {
        self.time = Some(time);
        self
    }

    /// The scope that the whole pool belongs to, with its threads. Closing the scope closes the pool, but for work under a
    /// drain lease; the scope is not closed before the pool's work and threads have ended, also when nobody has a handle
    /// to the pool any more. Work of the pool belongs to this scope unless an executor or a job is for
    /// [another](Executor::scoped).
    pub fn scope(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.clone());
        self
    }

    /// For one job that runs as long as its service does.
    pub(crate) fn dedicated(mut self) -> Self {
        self.dedicated = true;
        self
    }

    /// Builds the pool. Its timer's thread is started here, all others on demand.
    ///
    /// # Errors
    ///
    /// [`BuildError`] names what does not fit, and the numbers.
    pub fn build(self) -> Result<BlockingPool, BuildError> {
        if self.threads.name.contains('\0') {
            return Err(BuildError::ThreadName { name: self.threads.name });
        }
        if let Some(scope) = self.scope.as_ref().filter(|scope| !scope.is_open()) {
            return Err(BuildError::Scope(ScopeClosed { scope: scope.name() }));
        }
        let timing = self.lanes.iter().map(|policy| policy.timing).collect();
        let lanes: Vec<_> = self.lanes.into_iter().map(|policy| policy.lane).collect();
        let names = lanes.iter().map(|lane| lane.name().into()).collect();
        let state = State::new(self.capacity, lanes, self.max_bypass)?;
        let time = self
            .time
            .unwrap_or_else(|| Arc::new(ThreadTimer::new(format!("{}-timer", self.threads.name))));
        time.prepare()?;
        let core = Core::new(Parts {
            state,
            names,
            timing,
            time,
            threads: self.threads,
            keep_alive: self.keep_alive,
            spans: self.spans,
            owner: self.owner,
            dedicated: self.dedicated,
        });
        if let Some(scope) = &self.scope {
            let whole = attached::attach(&core, scope);
            core.whole.set(whole).unwrap_or_else(|_| unreachable!("the pool is new"));
        }
        Ok(BlockingPool { handle: Arc::new(Handle { core }) })
    }
}

impl fmt::Debug for BlockingPoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPoolBuilder")
            .field("capacity", &self.capacity)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

impl BlockingPool {
    /// Starts a description of a pool whose owner is the runtime behind `owner`.
    #[cfg(not(tollgate_loom))]
    pub fn builder(owner: tokio::runtime::Handle) -> BlockingPoolBuilder {
        Self::builder_for(Owner::new(owner))
    }

    /// Starts a description of a pool without an owner, which loom can't follow.
    #[cfg(tollgate_loom)]
    pub fn builder() -> BlockingPoolBuilder {
        Self::builder_for(Owner)
    }

    fn builder_for(owner: Owner) -> BlockingPoolBuilder {
        BlockingPoolBuilder {
            owner,
            capacity: 0,
            lanes: Vec::new(),
            max_bypass: DEFAULT_MAX_BYPASS,
            threads: Threads { name: "tollgate".into(), ..Threads::default() },
            keep_alive: DEFAULT_KEEP_ALIVE,
            spans: true,
            time: None,
            scope: None,
            dedicated: false,
        }
    }

    fn core(&self) -> &Arc<Core> {
        self.handle.core()
    }

    /// The way into the lane with this name. O(lanes): keep the executor.
    ///
    /// # Errors
    ///
    /// [`UnknownLane`] when there is none.
    pub fn executor(&self, lane: &str) -> Result<Executor, UnknownLane> {
        let id = self.core().lock().state.lane(lane);
        let id = id.ok_or_else(|| UnknownLane { lane: lane.into() })?;
        Ok(Executor::new(Arc::clone(&self.handle), id))
    }

    /// Admits nothing more, and refuses every job that has not started and every acquire that waits. When this returns,
    /// they have been told. What runs goes on; permits that are out stay valid, and work can be run under them.
    pub fn close(&self) {
        self.core().close(Closed::Budget);
    }

    /// Whether the pool admits nothing more, for whatever reason.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core().lock().state.closed().is_some()
    }

    /// Closes the pool when first polled, waits until everything has stopped or `deadline` has passed, by the pool's
    /// own clock, and reports. It can be asked again, and tells the present truth then.
    ///
    /// # Cancel safety
    ///
    /// Dropping it before the first poll changes nothing; after that the pool is closed.
    pub fn shutdown(&self, deadline: impl Into<Deadline>) -> Shutdown {
        Shutdown::new(Arc::clone(self.core()), deadline.into())
    }

    /// Starts a change of capacity and lanes while work runs; see [`Budget::resize`](tollgate_admission::Budget::resize).
    /// With a larger capacity more threads start on demand; with a smaller one they retire as they become idle.
    pub fn resize(&self) -> Resize<'_> {
        Resize::new(&**self.core())
    }

    /// One consistent copy of every figure, taken under one lock. O(lanes + kinds + threads), however many jobs wait.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::take(self.core())
    }

    /// Every job that is queued or running, and the budget's figures. O(jobs). What has a permit is copied under one lock;
    /// what waits is copied in steps, so that nobody waits long for the lock: a job that starts meanwhile may be missing.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self.core())
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs: Vec<JobInfo> = self.snapshot().jobs;
        f.debug_struct("BlockingPool").field("jobs", &jobs).finish_non_exhaustive()
    }
}
