//! The device's tokio runtime and its threads for blocking jobs, as a machine for the supervisor.

use super::core::{Bind, Spawn, Task, run_all};
use super::error::BuildError;
use super::profile::Capacities;
use super::supervisor::Machine;
use super::worker::{self, Role};
use crate::backend::{Backend, DriverError};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tokio::runtime::{Handle, RuntimeMetrics};
use tollgate_admission::{Deadline, TimeSource};
use tollgate_blocking::{BlockingPool, LanePolicy};

/// The lane of the threads for blocking jobs. There is one: the classes bound what comes here.
pub(crate) const BLOCKING: &str = "blocking";

/// The device's runtime, for jobs.
struct Jobs {
    handle: Handle,
    metrics: RuntimeMetrics,
    /// Tasks that run jobs, and what the threads for blocking jobs have there.
    tasks: Arc<AtomicI64>,
}

impl Jobs {
    /// When everything is there that the runtime has besides jobs.
    fn new(handle: Handle) -> Self {
        let metrics = handle.metrics();
        let tasks = i64::try_from(metrics.num_alive_tasks()).unwrap_or(0);
        Jobs { handle, metrics, tasks: Arc::new(AtomicI64::new(tasks)) }
    }
}

impl Spawn for Jobs {
    fn spawn(&self, task: Task) {
        let counted = Counted(Arc::clone(&self.tasks));
        // one that comes when the runtime goes is dropped, which ends its job
        drop(self.handle.spawn(async move {
            let _counted = counted;
            run_all(task, tokio::task::yield_now).await;
        }));
        // Relaxed, as all of this: it is compared with what the runtime counts by itself. After the spawn and, at the end,
        // before the runtime's own count, so that what seems to be there besides may be too much, not too little
        self.tasks.fetch_add(1, Ordering::Relaxed);
    }

    fn has_others(&self) -> bool {
        let tasks = || self.tasks.load(Ordering::Relaxed);
        let (before, all, after) = (tasks(), self.metrics.num_alive_tasks(), tasks());
        i64::try_from(all).is_ok_and(|all| all > before.min(after))
    }
}

/// One of the tasks that run jobs.
struct Counted(Arc<AtomicI64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Binds a backend's device.
pub(crate) struct Binder<B>(pub(crate) B);

impl<B: Backend> Bind for Binder<B> {
    fn bind(&self) -> Result<(), DriverError> {
        if self.0.is_bound() { Ok(()) } else { self.0.bind() }
    }
}

/// What a machine is to be like.
pub(crate) struct Plan<B> {
    pub(crate) pool: u64,
    /// What its threads are named after.
    pub(crate) name: String,
    pub(crate) backend: B,
    pub(crate) capacities: Capacities,
    pub(crate) time: Arc<dyn TimeSource>,
}

/// Builds it, on the thread that is going to own it.
pub(crate) fn build<B: Backend>(plan: Plan<B>) -> Result<Machine, BuildError> {
    let Plan { pool, name, backend, capacities, time } = plan;
    // who can't use the device at all learns it now
    backend.bind().map_err(BuildError::Device)?;
    let numbers = AtomicU64::new(0);
    let names = format!("{name}-worker");
    let (start, stop) = (backend.clone(), backend.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(capacities.workers as usize)
        .thread_name_fn(move || {
            // Relaxed: nothing is ordered by it
            format!("{names}-{}", numbers.fetch_add(1, Ordering::Relaxed))
        })
        .on_thread_start(move || {
            worker::become_one(pool, Role::Worker);
            // one that can't be bound now is bound, or its job fails, when a job begins on it
            let _ = start.bind();
        })
        .on_thread_stop(move || stop.unbind())
        .enable_all()
        .build()
        .map_err(BuildError::Runtime)?;
    let handle = runtime.handle().clone();
    let (start, stop) = (backend.clone(), backend.clone());
    let most =
        u64::from(capacities.attempts).saturating_mul(2).saturating_add(capacities.auxiliary);
    #[cfg(not(tollgate_loom))]
    let builder = BlockingPool::builder(handle.clone());
    // models build no runtime
    #[cfg(tollgate_loom)]
    let builder = BlockingPool::builder();
    let blocking = builder
        .capacity(most)
        // a job's permit returns a moment before its thread is free
        .lane(LanePolicy::new(BLOCKING).unbounded_waiting())
        .thread_name(format!("{name}-blocking"))
        .on_thread_start(move || {
            worker::become_one(pool, Role::Blocking);
            let _ = start.bind();
        })
        .on_thread_stop(move || stop.unbind())
        .time(time)
        .build()?;
    let threads = blocking.executor(BLOCKING).expect("the lane is there: it was given above");
    let end = move || {
        // their closures see the runtime as the current one to their end
        let ended = blocking.shutdown(Deadline::never());
        let report = futures_lite::future::block_on(ended);
        debug_assert!(report.complete);
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(runtime)));
        backend.unbind();
        if let Err(payload) = dropped {
            resume_unwind(payload);
        }
    };
    Ok(Machine { spawn: Box::new(Jobs::new(handle)), threads, end: Box::new(end) })
}
