//! tollgate itself, with everything on.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tollgate_blocking::{BlockingPool, Executor, LanePolicy, Scope};

use super::{Client, Entrant, MAX_WAITING, QUEUE_TIMEOUT, TASK_TIMEOUT, WARN_AFTER, WORKERS, Work};

/// Idle threads stay for as long as any measurement takes, so that an idle pool has some.
const KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// Lanes of the pool that is raced.
const LANES: usize = 3;
/// What each of them has reserved.
const RESERVED: u64 = 1;

/// A pool whose lanes each may borrow every permit, and have a queue timeout, a task timeout and a
/// warning mark. Spans are propagated and histograms kept.
///
/// Callers are spread over the lanes, in turn.
#[derive(Debug, Clone)]
pub struct Tollgate {
    pool: BlockingPool,
    /// Every job belongs to it.
    _scope: Scope,
    lanes: Arc<[Executor]>,
    reserved: u64,
}

impl Tollgate {
    /// A pool of its own, for `owner`, as it is raced: three lanes, a permit reserved for each.
    ///
    /// # Errors
    ///
    /// When the pool refuses its policies.
    pub fn new(owner: Handle) -> anyhow::Result<Self> {
        Self::with_lanes(owner, LANES, RESERVED)
    }

    /// A pool with so many lanes, which each have `reserved` permits.
    ///
    /// # Errors
    ///
    /// When the pool refuses its policies.
    pub fn with_lanes(owner: Handle, lanes: usize, reserved: u64) -> anyhow::Result<Self> {
        let names: Vec<String> = (0..lanes).map(|lane| format!("lane {lane}")).collect();
        let builder = BlockingPool::builder(owner)
            .capacity(WORKERS as u64)
            .keep_alive(KEEP_ALIVE)
            .propagate_spans(true);
        let pool = names
            .iter()
            .fold(builder, |builder, name| {
                let policy = LanePolicy::new(name.as_str())
                    .reserved(reserved)
                    .limit(WORKERS as u64)
                    .max_waiting(MAX_WAITING)
                    .queue_timeout(QUEUE_TIMEOUT)
                    .task_timeout(TASK_TIMEOUT)
                    .warn_after(WARN_AFTER);
                builder.lane(policy)
            })
            .build()?;
        let scope = Scope::root("tollgate");
        let lanes = names
            .iter()
            .map(|name| pool.executor(name).map(|lane| lane.scoped(&scope)))
            .collect::<Result<_, _>>()?;
        Ok(Self { pool, _scope: scope, lanes, reserved })
    }

    /// The executor of the lane that caller number `index` uses.
    pub fn executor(&self, index: usize) -> &Executor {
        &self.lanes[index % self.lanes.len()]
    }

    /// The pool itself.
    pub fn pool(&self) -> &BlockingPool {
        &self.pool
    }
}

impl Entrant for Tollgate {
    fn settings(&self) -> String {
        format!(
            "capacity {WORKERS}, {} lanes, each: reserved {}, limit {WORKERS}, max_waiting \
             {MAX_WAITING}, queue_timeout {QUEUE_TIMEOUT:?}, task_timeout {TASK_TIMEOUT:?}, \
             warn_after {WARN_AFTER:?}; span propagation and histograms on, every job \
             bound to a scope",
            self.lanes.len(),
            self.reserved
        )
    }

    fn client(&self, index: usize) -> impl Client {
        Caller(self.executor(index).clone())
    }
}

#[derive(Debug)]
struct Caller(Executor);

impl Client for Caller {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(self.0.run(move || work.run()).await?)
    }
}
