//! A device's pool, on the host device, and what its jobs would cost without it.

use std::sync::Arc;

use tokio::runtime::{Handle, Runtime};
use tollgate_blocking::{BlockingPool, Executor, LanePolicy};
use tollgate_device::host::HostDevice;
use tollgate_device::{DeviceHandle, DevicePool, DeviceProfile, Recorder};

use super::{Client, Entrant, WORKERS, Work};

/// Jobs that are accepted at once: more than any workload has callers.
const ACCEPTED: u32 = 4096;

/// Async jobs on a device's pool.
#[derive(Debug)]
pub struct Device {
    pool: DevicePool<HostDevice>,
    /// Has the pool write its events.
    recorder: Option<Recorder>,
}

impl Device {
    /// A pool of its own, with a recorder or without anybody who observes it.
    ///
    /// # Errors
    ///
    /// When the device or the pool can't be built.
    pub fn new(recorded: bool) -> anyhow::Result<Self> {
        let pool = pool()?;
        let recorder = recorded.then(|| pool.recorder());
        Ok(Self { pool, recorder })
    }
}

fn pool() -> anyhow::Result<DevicePool<HostDevice>> {
    let device = HostDevice::builder().build()?;
    let profile = DeviceProfile::new(ACCEPTED, WORKERS as u32);
    Ok(DevicePool::builder(device, profile).build()?)
}

impl Entrant for Device {
    fn settings(&self) -> String {
        let events = if self.recorder.is_some() { "a recorder on" } else { "events off" };
        format!(
            "{ACCEPTED} root permits, {WORKERS} workers, 1 of them kept for lifecycle; {events}"
        )
    }

    fn client(&self, _index: usize) -> impl Client {
        DeviceCaller(self.pool.handle())
    }
}

struct DeviceCaller(DeviceHandle<HostDevice>);

impl Client for DeviceCaller {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(self.0.job("job").run(async move { work.run() }).await?)
    }
}

/// The same futures on a bare runtime of the same width, spawned and joined.
#[derive(Debug)]
pub struct BareRuntime(Option<Runtime>);

impl BareRuntime {
    /// A runtime of its own.
    ///
    /// # Errors
    ///
    /// When it can't be built.
    pub fn new() -> anyhow::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Ok(Self(Some(builder.worker_threads(WORKERS).enable_all().build()?)))
    }
}

impl Drop for BareRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Entrant for BareRuntime {
    fn settings(&self) -> String {
        format!("{WORKERS} workers, spawn and join")
    }

    fn client(&self, _index: usize) -> impl Client {
        BareCaller(self.0.as_ref().expect("there until the drop").handle().clone())
    }
}

struct BareCaller(Handle);

impl Client for BareCaller {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(self.0.spawn(async move { work.run() }).await?)
    }
}

/// Blocking jobs on a device's pool.
#[derive(Debug)]
pub struct DeviceBlocking(DevicePool<HostDevice>);

impl DeviceBlocking {
    /// A pool of its own.
    ///
    /// # Errors
    ///
    /// When the device or the pool can't be built.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(pool()?))
    }
}

impl Entrant for DeviceBlocking {
    fn settings(&self) -> String {
        format!("{ACCEPTED} root permits; events off")
    }

    fn client(&self, _index: usize) -> impl Client {
        DeviceBlockingCaller(self.0.handle())
    }
}

struct DeviceBlockingCaller(DeviceHandle<HostDevice>);

impl Client for DeviceBlockingCaller {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(self.0.job("job").submit_blocking(move || work.run())?.await?)
    }
}

/// The threads that a device's pool has for blocking jobs, without the pool.
#[derive(Debug)]
pub struct BlockingAlone {
    _pool: BlockingPool,
    lane: Arc<Executor>,
}

impl BlockingAlone {
    /// A pool of its own, for `owner`.
    ///
    /// # Errors
    ///
    /// When the pool refuses its policy.
    pub fn new(owner: Handle) -> anyhow::Result<Self> {
        let pool = BlockingPool::builder(owner)
            .capacity(u64::from(ACCEPTED))
            .lane(LanePolicy::new("blocking").unbounded_waiting())
            .build()?;
        let lane = Arc::new(pool.executor("blocking")?);
        Ok(Self { _pool: pool, lane })
    }
}

impl Entrant for BlockingAlone {
    fn settings(&self) -> String {
        format!("capacity {ACCEPTED}, one lane without timeouts")
    }

    fn client(&self, _index: usize) -> impl Client {
        AloneCaller(Arc::clone(&self.lane))
    }
}

struct AloneCaller(Arc<Executor>);

impl Client for AloneCaller {
    async fn call(&self, work: Work) -> anyhow::Result<u64> {
        Ok(self.0.submit(move || work.run())?.await?)
    }
}
