//! What a budget tells about itself.

use crate::engine::Cause;
use crate::error::Closed;
use std::sync::Arc;
use std::time::Duration;

/// Every figure of a budget at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BudgetStats {
    /// Permits that may be out at once.
    pub capacity: u64,
    /// Permits that are not out. What runs in all lanes + `available` = `capacity` + `deficit`.
    pub available: u64,
    /// Permits that are out beyond the capacity, after a shrink. Nothing is granted until it is 0.
    pub deficit: u64,
    /// Why the whole budget admits nothing, if it does not.
    pub closed: Option<Closed>,
    /// The lanes, in the order in which they were given at build.
    pub lanes: Vec<LaneStats>,
}

impl BudgetStats {
    /// The lane with this name. O(lanes).
    #[must_use]
    pub fn lane(&self, name: &str) -> Option<&LaneStats> {
        self.lanes.iter().find(|lane| &*lane.name == name)
    }

    /// Permits out in all lanes.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.running).sum()
    }
}

/// Every figure of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LaneStats {
    /// The lane's name.
    pub name: Arc<str>,
    /// Permits out, by weight. At most the lane's limit, except after a shrink.
    pub running: u64,
    /// The part of `running` above what the lane has reserved.
    pub borrowed: u64,
    /// Acquires that wait.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Option<Duration>,
    /// The most that ran at once, by weight, exactly.
    pub peak: u64,
    /// Permits granted so far.
    pub admitted: u64,
    /// Refusals so far, each counted once.
    pub refused: Refused,
    /// Why this lane alone admits nothing, if it was closed.
    pub closed: Option<Closed>,
}

/// Refusals by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Refused {
    /// The queue was as long as the lane allows.
    pub queue_full: u64,
    /// A deadline or a queue timeout passed.
    pub deadline: u64,
    /// Lane, budget or runtime was closed.
    pub closed: u64,
    /// More was asked for than could ever be granted.
    pub too_large: u64,
    /// Nothing was asked for.
    pub zero_weight: u64,
    /// It would have had to wait, and was asked not to.
    pub busy: u64,
    /// It would have had to wait under a deadline, without a timer.
    pub no_timer: u64,
    /// Its drain lease had expired.
    pub lease_expired: u64,
    /// Its drain lease allowed no more operations.
    pub lease_exhausted: u64,
    /// It was long-running work.
    pub long_running: u64,
}

impl Refused {
    /// All refusals.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Refused { queue_full, deadline, closed, too_large, zero_weight, busy, .. } = self;
        let Refused { no_timer, lease_expired, lease_exhausted, long_running, .. } = self;
        let asked = queue_full + deadline + closed + too_large + zero_weight + busy;
        asked + no_timer + lease_expired + lease_exhausted + long_running
    }

    pub(crate) fn count(&mut self, cause: Cause) {
        *match cause {
            Cause::QueueFull { .. } => &mut self.queue_full,
            Cause::Deadline => &mut self.deadline,
            Cause::Closed(_) => &mut self.closed,
            Cause::TooLarge { .. } => &mut self.too_large,
            Cause::ZeroWeight => &mut self.zero_weight,
            Cause::Busy => &mut self.busy,
            Cause::NoTimer => &mut self.no_timer,
            Cause::LeaseExpired => &mut self.lease_expired,
            Cause::LeaseExhausted => &mut self.lease_exhausted,
            Cause::LongRunning => &mut self.long_running,
        } += 1;
    }
}
