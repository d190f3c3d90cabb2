//! Streams and events.

use super::core::Core;
use super::timeline::Point;
use crate::sync::plain::Mutex;
use std::fmt;
use std::sync::Arc;

/// A stream of a host device. Dropping it lets its work go on.
pub struct HostStream {
    pub(super) core: Arc<Core>,
    pub(super) generation: u64,
    pub(super) number: u64,
    pub(super) priority: i32,
}

impl HostStream {
    /// Its number, from 1 in the order of creation: faults, errors and [stalls](super::HostControl::stall) call it by that.
    /// Never used again by its device.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its priority, as it was asked for.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.core.close_stream(self.generation, self.number);
    }
}

impl fmt::Debug for HostStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostStream")
            .field("device", &self.core.info.ordinal)
            .field("number", &self.number)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

/// An event of a host device.
pub struct HostEvent {
    pub(super) core: Arc<Core>,
    pub(super) generation: u64,
    /// Of the last record. Its lock is taken under the device's.
    pub(super) point: Mutex<Option<Point>>,
}

impl fmt::Debug for HostEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEvent")
            .field("device", &self.core.info.ordinal)
            .field("recorded", &self.point.lock().is_some())
            .finish_non_exhaustive()
    }
}
