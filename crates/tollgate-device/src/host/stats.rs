use crate::backend::{Fault, Operation};
use std::collections::BTreeMap;

/// How a device is, and what it was asked for: a consistent copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HostStats {
    /// Whether it works.
    pub health: HostHealth,
    /// How often it was reset.
    pub resets: u64,
    /// Its memory.
    pub memory: MemoryUse,
    /// Pinned memory of the host's.
    pub pinned: MemoryUse,
    /// Streams, those included whose handles are gone and whose work is not done.
    pub streams: usize,
    /// Pieces of work that have not begun.
    pub queued: usize,
    /// Pieces of work that are being done.
    pub running: usize,
    /// Engine threads that have not ended.
    pub engines: usize,
    /// Engine threads that have nothing to do.
    pub idle: usize,
    /// How often an engine thread was woken.
    pub wakes: u64,
    /// Threads that are blocked in a call that waits for the device.
    pub waiting: usize,
    /// Calls so far, by operation, as [`FaultPlan`](super::FaultPlan) counts them.
    pub calls: BTreeMap<Operation, u64>,
}

/// Memory under a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryUse {
    /// Bytes that may be in use at once.
    pub limit: u64,
    /// Bytes that are in use: allocated, and not passed by their free.
    pub in_use: u64,
    /// Most bytes that ever were in use at once.
    pub peak: u64,
    /// Allocations that are in use.
    pub allocations: usize,
}

/// Whether a device works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum HostHealth {
    /// It does.
    Well,
    /// It has this fault, until a reset that works.
    Faulted(Fault),
    /// It is gone.
    Lost,
}
