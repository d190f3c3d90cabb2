//! The peers, each set up the way its own documentation shows.

use std::sync::Arc;

use anyhow::Context as _;
use rocketmq_runtime::{BlockingExecutor, BlockingKind, BlockingPoolPolicy, RuntimeContext};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

use super::{Client, Entrant, MAX_WAITING, QUEUE_TIMEOUT, TASK_TIMEOUT, WARN_AFTER, WORKERS, Work};

/// Bare [`spawn_blocking`]: no bound on what runs or waits.
#[derive(Debug, Clone, Copy)]
pub struct SpawnBlocking {
    /// The runtime's cap on its blocking threads, for the report.
    pub max_blocking_threads: usize,
}

impl Entrant for SpawnBlocking {
    fn settings(&self) -> String {
        format!("bare, max_blocking_threads {}", self.max_blocking_threads)
    }

    fn client(&self, _index: usize) -> impl Client {
        *self
    }
}

impl Client for SpawnBlocking {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(spawn_blocking(move || work.run()).await?)
    }
}

/// [`spawn_blocking`] behind a [`Semaphore`], the usual way to bound it. The permit travels with
/// the job.
#[derive(Debug, Clone)]
pub struct SemaphoreSpawnBlocking {
    permits: Arc<Semaphore>,
    max_blocking_threads: usize,
}

impl SemaphoreSpawnBlocking {
    /// One permit per worker; `max_blocking_threads` is for the report.
    pub fn new(max_blocking_threads: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(WORKERS)), max_blocking_threads }
    }
}

impl Entrant for SemaphoreSpawnBlocking {
    fn settings(&self) -> String {
        format!("{WORKERS} permits, max_blocking_threads {}", self.max_blocking_threads)
    }

    fn client(&self, _index: usize) -> impl Client {
        self.clone()
    }
}

impl Client for SemaphoreSpawnBlocking {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        let job = spawn_blocking(move || {
            let result = work.run();
            drop(permit);
            result
        });
        Ok(job.await?)
    }
}

/// The `blocking` crate's one pool per process.
#[derive(Debug, Clone, Copy)]
pub struct Blocking;

impl Blocking {
    /// The variable that caps its threads, read when its first job starts.
    pub const MAX_THREADS: &'static str = "BLOCKING_MAX_THREADS";
}

impl Entrant for Blocking {
    fn settings(&self) -> String {
        let threads = std::env::var(Self::MAX_THREADS);
        format!("{} {}", Self::MAX_THREADS, threads.as_deref().unwrap_or("unset (500)"))
    }

    fn client(&self, _index: usize) -> impl Client {
        *self
    }
}

impl Client for Blocking {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(blocking::unblock(move || work.run()).await)
    }
}

/// A rayon pool that answers through a [`oneshot`]: no admission, no order, no deadline. It is the
/// bare limit, and the gauge of how quiet the machine is.
#[derive(Debug, Clone)]
pub struct RayonOneshot {
    pool: Arc<rayon::ThreadPool>,
}

impl RayonOneshot {
    /// A pool of its own.
    ///
    /// # Errors
    ///
    /// When its threads cannot be started.
    pub fn new() -> anyhow::Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(WORKERS)
            .build()
            .context("cannot build the rayon pool")?;
        Ok(Self { pool: Arc::new(pool) })
    }
}

impl Entrant for RayonOneshot {
    fn settings(&self) -> String {
        format!("{WORKERS} threads, tokio oneshot")
    }

    fn client(&self, _index: usize) -> impl Client {
        self.clone()
    }
}

impl Client for RayonOneshot {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        let (answer, result) = oneshot::channel();
        self.pool.spawn(move || {
            // Nobody listens any more only when the run was given up.
            let _ = answer.send(work.run());
        });
        Ok(result.await?)
    }
}

/// rocketmq-runtime's isolated executor, with the same bounds and timeouts as tollgate.
#[derive(Debug, Clone)]
pub struct RocketmqRuntime {
    executor: BlockingExecutor,
    name: Arc<str>,
}

impl RocketmqRuntime {
    /// An executor on the runtime that is current.
    ///
    /// # Errors
    ///
    /// When it refuses its policy.
    pub fn new() -> anyhow::Result<Self> {
        let context = RuntimeContext::from_current("benches");
        let policy = BlockingPoolPolicy {
            name: "benches".to_owned(),
            max_concurrency: WORKERS,
            max_queue_depth: MAX_WAITING,
            queue_timeout: QUEUE_TIMEOUT,
            task_timeout: TASK_TIMEOUT,
            warn_after: WARN_AFTER,
        };
        let executor = BlockingExecutor::new_isolated(policy, context.root_group().clone())?;
        Ok(Self { executor, name: "job".into() })
    }

    /// A future that runs `job`, exactly as the executor gives it.
    pub fn spawn<F>(&self, job: F) -> impl Future + Send + '_
    where
        F: FnOnce() -> u64 + Send + 'static,
    {
        self.executor.spawn(Arc::clone(&self.name), BlockingKind::ShortIo, job)
    }
}

impl Entrant for RocketmqRuntime {
    fn settings(&self) -> String {
        format!(
            "isolated, max_concurrency {WORKERS}, max_queue_depth {MAX_WAITING}, \
             queue_timeout {QUEUE_TIMEOUT:?}, task_timeout {TASK_TIMEOUT:?}, \
             warn_after {WARN_AFTER:?}"
        )
    }

    fn client(&self, _index: usize) -> impl Client {
        self.clone()
    }
}

impl Client for RocketmqRuntime {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        let name = Arc::clone(&self.name);
        Ok(self.executor.spawn(name, BlockingKind::ShortIo, move || work.run()).await?)
    }
}
