//! Who takes part in a comparison. Each entrant says how one job is run; the loop around it is the
//! same for all.

mod device;
mod peers;
mod tollgate;

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

pub use self::device::{BareRuntime, BlockingAlone, Device, DeviceBlocking};
pub use self::peers::{
    Blocking, RayonOneshot, RocketmqRuntime, SemaphoreSpawnBlocking, SpawnBlocking,
};
pub use self::tollgate::Tollgate;

/// Workers, or permits, that every bounded entrant has.
pub const WORKERS: usize = 4;

/// Jobs that may wait in an entrant whose queue has a bound: more than any workload has callers.
pub const MAX_WAITING: usize = 100_000;

/// Queue and task timeout and the warning mark, of the entrants that have them. None is meant to
/// pass in a run: what is measured is the price of having them.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// See [`QUEUE_TIMEOUT`].
pub const TASK_TIMEOUT: Duration = Duration::from_secs(30);
/// See [`QUEUE_TIMEOUT`].
pub const WARN_AFTER: Duration = Duration::from_secs(1);

/// What one job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    spin: Duration,
}

impl Work {
    /// What every job returns.
    pub const RESULT: u64 = 7;
    /// A job that returns at once.
    pub const NOTHING: Self = Self { spin: Duration::ZERO };

    /// A job that keeps its thread for `spin`, by the clock.
    pub const fn busy(spin: Duration) -> Self {
        Self { spin }
    }

    /// Does it.
    pub fn run(self) -> u64 {
        if !self.spin.is_zero() {
            let start = Instant::now();
            while start.elapsed() < self.spin {
                spin_loop();
            }
        }
        black_box(Self::RESULT)
    }
}

/// A way to run synchronous work from async code.
pub trait Entrant: Send + Sync + 'static {
    /// How it is set up, in words, for the report.
    fn settings(&self) -> String;

    /// What caller number `index` holds while it calls.
    fn client(&self, index: usize) -> impl Client;
}

/// One caller's handle.
pub trait Client: Send + Sync + 'static {
    /// Runs one job and waits for its result.
    ///
    /// # Errors
    ///
    /// When the job was refused, or failed.
    fn call(&self, work: Work) -> impl Future<Output = anyhow::Result<u64>> + Send;
}
