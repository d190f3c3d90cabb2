//! How much of everything a device pool has.

use super::error::BuildError;
use crate::backend::DeviceInfo;

/// Most workers that a pool may have.
pub const MAX_WORKERS: u32 = 1024;

/// How much a device takes on at once.
///
/// | | |
/// | --- | --- |
/// | jobs of class root | as many as attempts: `A` |
/// | jobs of class auxiliary | `A` x `S`, and `S` of one attempt |
/// | cleanups that end attempts | `A`, and each attempt has its own from the start |
/// | async jobs that run | as many as workers, those for execution on all but the kept ones |
/// | blocking jobs that run | as many as are accepted |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a profile is for the builder of a pool"]
pub struct DeviceProfile {
    attempts: u32,
    auxiliary: u32,
    workers: u32,
    lifecycle: u32,
    max_waiting: Option<u32>,
    managed: Option<u64>,
    cache: u64,
}

impl DeviceProfile {
    /// For a device that takes `attempts` at once (`A`, 1 or more) and has `workers` threads for async jobs (2 or more: one
    /// is kept for setup and cleanup). One auxiliary slot per attempt, no cache, all memory managed.
    pub const fn new(attempts: u32, workers: u32) -> Self {
        DeviceProfile {
            attempts,
            auxiliary: 1,
            workers,
            lifecycle: 1,
            max_waiting: None,
            managed: None,
            cache: 0,
        }
    }

    /// How many auxiliary jobs one attempt may have at once (`S`, 1 or more).
    pub const fn auxiliary(mut self, slots: u32) -> Self {
        self.auxiliary = slots;
        self
    }

    /// How many workers are kept for setup and cleanup, 1 unless given, and less than there are.
    pub const fn lifecycle_workers(mut self, workers: u32) -> Self {
        self.lifecycle = workers;
        self
    }

    /// How many attempts may wait to be admitted; as many as may be active unless given. 0 is none.
    pub const fn max_waiting(mut self, attempts: u32) -> Self {
        self.max_waiting = Some(attempts);
        self
    }

    /// Bytes of device memory that attempts may be granted; all that the device has unless given.
    pub const fn managed_bytes(mut self, bytes: u64) -> Self {
        self.managed = Some(bytes);
        self
    }

    /// How many of the managed bytes may hold what is only kept for speed. 0 unless given.
    pub const fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache = bytes;
        self
    }

    pub(super) fn workers(&self) -> u32 {
        self.workers
    }

    pub(super) fn resolve(&self, device: &DeviceInfo) -> Result<Capacities, BuildError> {
        let DeviceProfile { attempts, auxiliary, workers, lifecycle, max_waiting, managed, cache } =
            *self;
        if attempts == 0 {
            return Err(BuildError::ZeroAttempts);
        }
        if auxiliary == 0 {
            return Err(BuildError::ZeroAuxiliary);
        }
        if workers > MAX_WORKERS {
            return Err(BuildError::Workers { asked: workers, most: MAX_WORKERS });
        }
        if lifecycle == 0 {
            return Err(BuildError::ZeroLifecycle);
        }
        if lifecycle >= workers {
            return Err(BuildError::NoExecutionSeat { workers, lifecycle });
        }
        let total = device.total_memory;
        let managed = managed.unwrap_or(total);
        if managed > total {
            return Err(BuildError::ManagedBytes { asked: managed, total });
        }
        if cache > managed {
            return Err(BuildError::CacheBytes { asked: cache, managed });
        }
        Ok(Capacities {
            attempts,
            auxiliary_per_attempt: auxiliary,
            auxiliary: u64::from(attempts) * u64::from(auxiliary),
            workers,
            lifecycle_workers: lifecycle,
            max_waiting: max_waiting.unwrap_or(attempts),
            managed_bytes: managed,
            cache_bytes: cache,
        })
    }
}

/// What a [`DeviceProfile`] comes to on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Capacities {
    /// Attempts at once, and jobs of class root.
    pub attempts: u32,
    /// Auxiliary jobs at once under one attempt.
    pub auxiliary_per_attempt: u32,
    /// Jobs of class auxiliary.
    pub auxiliary: u64,
    /// Workers for async jobs.
    pub workers: u32,
    /// Those of them that are kept for setup and cleanup.
    pub lifecycle_workers: u32,
    /// Attempts that may wait to be admitted.
    pub max_waiting: u32,
    /// Bytes of device memory that attempts may be granted.
    pub managed_bytes: u64,
    /// Those of them that may hold what is only kept for speed.
    pub cache_bytes: u64,
}
