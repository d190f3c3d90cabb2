//! The starters.

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tollgate_benches::closed_loop::{Loop, Sampler};
use tollgate_benches::entrants::{
    BareRuntime, Blocking, BlockingAlone, Device, DeviceBlocking, RayonOneshot, RocketmqRuntime,
    SemaphoreSpawnBlocking, SpawnBlocking, Tollgate,
};

use crate::workloads::Side;

/// Threads of each runtime that callers run on.
pub(crate) const RUNTIME_WORKERS: usize = 2;

pub(crate) const TOLLGATE: &str = "tollgate";
/// tollgate once more, with a pool of its own: how far the two differ is how far any two figures
/// of the run may differ by chance.
pub(crate) const TOLLGATE_AGAIN: &str = "tollgate_again";
pub(crate) const SPAWN_BLOCKING: &str = "tokio_spawn_blocking";
pub(crate) const SEMAPHORE: &str = "tokio_semaphore_spawn_blocking";
pub(crate) const BLOCKING: &str = "blocking";
/// The bare limit, and the gauge of how quiet the machine was in a round.
pub(crate) const RAYON: &str = "rayon_oneshot";
pub(crate) const ROCKETMQ: &str = "rocketmq_runtime";
/// The futures of a device's jobs, without the pool.
pub(crate) const BARE_RUNTIME: &str = "tokio_runtime";
/// A device's pool once more, with a recorder on.
pub(crate) const RECORDED: &str = "tollgate_recorded";
/// The threads of a device's blocking jobs, without the pool.
pub(crate) const BLOCKING_ALONE: &str = "tollgate_blocking_alone";

/// Sets an entrant up, in the context of the runtime given.
type Build = Box<dyn Fn(&Runtime) -> anyhow::Result<Box<dyn Sampler>>>;

/// An entrant under the name it has in the report.
pub(crate) struct Starter {
    pub(crate) name: &'static str,
    runtime: &'static Runtime,
    build: Build,
    sampler: Box<dyn Sampler>,
}

impl Starter {
    fn new<S, F>(name: &'static str, runtime: &'static Runtime, build: F) -> anyhow::Result<Self>
    where
        S: Sampler + 'static,
        F: Fn(&Runtime) -> anyhow::Result<S> + 'static,
    {
        let build: Build = Box::new(move |runtime| {
            let _entered = runtime.enter();
            Ok(Box::new(build(runtime)?))
        });
        let sampler = build(runtime).with_context(|| format!("{name} cannot be set up"))?;
        Ok(Self { name, runtime, build, sampler })
    }

    /// Sets it up once more. How fast one instance is depends on chance too: on where its memory
    /// lies, and which threads it got.
    fn renew(&mut self) -> anyhow::Result<()> {
        self.sampler = (self.build)(self.runtime)?;
        Ok(())
    }

    /// One closed loop, in microseconds per job.
    pub(crate) fn sample(&self, shape: Loop) -> anyhow::Result<f64> {
        let us = self.sampler.sample(self.runtime, shape);
        us.with_context(|| format!("{} failed to run", self.name))
    }

    pub(crate) fn settings(&self) -> String {
        self.sampler.settings()
    }
}

/// Whether this is one of the two that are the same thing.
pub(crate) fn is_ours(name: &str) -> bool {
    [TOLLGATE, TOLLGATE_AGAIN].contains(&name)
}

/// The runtimes that callers run on, and that peers use the blocking threads of.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) max_blocking_threads: usize,
    shared: Option<&'static Runtime>,
}

impl Ground {
    /// One runtime for all, or one for each.
    pub(crate) fn new(max_blocking_threads: usize, own_runtimes: bool) -> anyhow::Result<Self> {
        let mut ground = Self { max_blocking_threads, shared: None };
        if !own_runtimes {
            ground.shared = Some(ground.runtime()?);
        }
        Ok(ground)
    }

    /// A runtime that is never dropped: dropping one waits for its blocking threads, so a job that
    /// hangs would hang the exit too.
    fn runtime(&self) -> anyhow::Result<&'static Runtime> {
        if let Some(shared) = self.shared {
            return Ok(shared);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_WORKERS)
            .max_blocking_threads(self.max_blocking_threads)
            .enable_all()
            .build()?;
        Ok(Box::leak(Box::new(runtime)))
    }

    fn starter<S, F>(&self, name: &'static str, build: F) -> anyhow::Result<Starter>
    where
        S: Sampler + 'static,
        F: Fn(&Runtime) -> anyhow::Result<S> + 'static,
    {
        Starter::new(name, self.runtime()?, build)
    }

    fn tollgate(&self, name: &'static str) -> anyhow::Result<Starter> {
        self.starter(name, |runtime| Tollgate::new(runtime.handle().clone()))
    }

    fn spawn_blocking(&self) -> anyhow::Result<Starter> {
        let max_blocking_threads = self.max_blocking_threads;
        self.starter(SPAWN_BLOCKING, move |_| Ok(SpawnBlocking { max_blocking_threads }))
    }

    /// Who takes part on a side.
    pub(crate) fn field(&self, side: Side) -> anyhow::Result<Vec<Starter>> {
        match side {
            Side::Threads => self.threads(),
            Side::Device => Ok(vec![
                self.starter(TOLLGATE, |_| Device::new(false))?,
                self.starter(TOLLGATE_AGAIN, |_| Device::new(false))?,
                self.starter(RECORDED, |_| Device::new(true))?,
                self.starter(BARE_RUNTIME, |_| BareRuntime::new())?,
                self.starter(RAYON, |_| RayonOneshot::new())?,
            ]),
            Side::DeviceBlocking => Ok(vec![
                self.starter(TOLLGATE, |_| DeviceBlocking::new())?,
                self.starter(TOLLGATE_AGAIN, |_| DeviceBlocking::new())?,
                self.starter(BLOCKING_ALONE, |runtime| {
                    BlockingAlone::new(runtime.handle().clone())
                })?,
                self.starter(RAYON, |_| RayonOneshot::new())?,
            ]),
        }
    }

    fn threads(&self) -> anyhow::Result<Vec<Starter>> {
        let max_blocking_threads = self.max_blocking_threads;
        Ok(vec![
            self.tollgate(TOLLGATE)?,
            self.tollgate(TOLLGATE_AGAIN)?,
            self.spawn_blocking()?,
            self.starter(SEMAPHORE, move |_| {
                Ok(SemaphoreSpawnBlocking::new(max_blocking_threads))
            })?,
            self.starter(BLOCKING, |_| Ok(Blocking))?,
            self.starter(RAYON, |_| RayonOneshot::new())?,
            self.starter(ROCKETMQ, |_| RocketmqRuntime::new())?,
        ])
    }

    /// tollgate, and the peer that a single caller is compared with.
    pub(crate) fn pair(&self) -> anyhow::Result<Vec<Starter>> {
        Ok(vec![self.tollgate(TOLLGATE)?, self.spawn_blocking()?])
    }
}

/// Sets everybody up once more.
pub(crate) fn renew(field: &mut [Starter]) -> anyhow::Result<()> {
    field.iter_mut().try_for_each(Starter::renew)
}
