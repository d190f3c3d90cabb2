//! What the entrants are asked to do.

use std::time::Duration;

use tollgate_benches::entrants::Work;

/// One closed loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// Callers at once.
    pub(crate) callers: usize,
    /// What each job does.
    pub(crate) work: Work,
    /// Who does it.
    pub(crate) side: Side,
}

/// Who is compared with whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// A pool of threads, with its peers.
    Threads,
    /// Async jobs of a device's pool, with a bare runtime.
    Device,
    /// Blocking jobs of a device's pool, with the threads alone.
    DeviceBlocking,
}

/// All of them.
pub(crate) const SIDES: [Side; 3] = [Side::Threads, Side::Device, Side::DeviceBlocking];

const BUSY: Work = Work::busy(Duration::from_micros(20));

/// All of them, in the order they run.
pub(crate) const WORKLOADS: [Workload; 6] = [
    ONE_CALLER,
    Workload { name: "noop_64", callers: 64, work: Work::NOTHING, side: Side::Threads },
    Workload { name: "noop_1024", callers: 1024, work: Work::NOTHING, side: Side::Threads },
    Workload { name: "busy20us_64", callers: 64, work: BUSY, side: Side::Threads },
    Workload { name: DEVICE, callers: 64, work: Work::NOTHING, side: Side::Device },
    Workload {
        name: DEVICE_BLOCKING,
        callers: 64,
        work: Work::NOTHING,
        side: Side::DeviceBlocking,
    },
];

/// The one that fresh processes measure too: a single caller's time depends on where the system
/// happened to place the threads, and stays that way for the life of a process.
pub(crate) const ONE_CALLER: Workload =
    Workload { name: "noop_1", callers: 1, work: Work::NOTHING, side: Side::Threads };

/// Async jobs on a device's pool.
pub(crate) const DEVICE: &str = "device_noop_64";
/// Blocking jobs on a device's pool.
pub(crate) const DEVICE_BLOCKING: &str = "device_blocking_64";
