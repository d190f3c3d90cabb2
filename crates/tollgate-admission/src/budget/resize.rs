use super::LaneConfig;
use crate::engine::Resizable;
use crate::error::{BuildError, UnknownLane};
use std::fmt;
use std::time::Duration;

/// A change of a budget while work runs, put into effect by [`apply`](Self::apply).
///
/// What is not named stays as it is.
#[must_use = "a resize does nothing until it is applied"]
pub struct Resize<'a> {
    target: &'a dyn Resizable,
    change: Change,
}

/// What is to change, apart from whose budget it is.
#[derive(Debug, Default)]
pub struct Change {
    pub(crate) capacity: Option<u64>,
    lanes: Vec<(String, LaneChange)>,
}

impl Change {
    /// Whether a lane gets a queue timeout.
    pub(crate) fn sets_timeout(&self) -> bool {
        self.lanes.iter().any(|(_, change)| matches!(change.queue_timeout, Some(Some(_))))
    }

    /// Changes `lanes` in place.
    pub(crate) fn apply_to(&self, lanes: &mut [LaneConfig]) -> Result<(), UnknownLane> {
        for (name, change) in &self.lanes {
            let lane = lanes
                .iter_mut()
                .find(|lane| lane.name() == name)
                .ok_or_else(|| UnknownLane { lane: name.as_str().into() })?;
            change.apply_to(lane);
        }
        Ok(())
    }
}

/// What is to change about one lane.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LaneChange {
    reserved: Option<u64>,
    kept: Option<u64>,
    limit: Option<u64>,
    max_waiting: Option<usize>,
    queue_timeout: Option<Option<Duration>>,
}

impl LaneChange {
    /// See [`LaneConfig::reserved`].
    pub fn reserved(mut self, permits: u64) -> Self {
        self.reserved = Some(permits);
        self
    }

    /// See [`LaneConfig::kept`].
    pub fn kept(mut self, permits: u64) -> Self {
        self.kept = Some(permits);
        self
    }

    /// See [`LaneConfig::limit`].
    pub fn limit(mut self, permits: u64) -> Self {
        self.limit = Some(permits);
        self
    }

    /// See [`LaneConfig::max_waiting`]. Those who already wait stay.
    pub fn max_waiting(mut self, acquires: usize) -> Self {
        self.max_waiting = Some(acquires);
        self
    }

    /// See [`LaneConfig::unbounded_waiting`].
    pub fn unbounded_waiting(self) -> Self {
        self.max_waiting(usize::MAX)
    }

    /// See [`LaneConfig::queue_timeout`]. Takes effect on waits that are under way, counted from their start.
    pub fn queue_timeout(mut self, span: impl Into<Option<Duration>>) -> Self {
        self.queue_timeout = Some(span.into());
        self
    }

    fn apply_to(&self, lane: &mut LaneConfig) {
        lane.reserved = self.reserved.unwrap_or(lane.reserved);
        lane.kept = self.kept.unwrap_or(lane.kept);
        lane.limit = self.limit.unwrap_or(lane.limit);
        lane.max_waiting = self.max_waiting.unwrap_or(lane.max_waiting);
        lane.queue_timeout = self.queue_timeout.unwrap_or(lane.queue_timeout);
    }
}

impl<'a> Resize<'a> {
    /// Starts a change of whatever `target` holds.
    pub fn new(target: &'a dyn Resizable) -> Self {
        Resize { target, change: Change::default() }
    }

    /// The new capacity. A smaller one revokes nothing: until enough permits are back, nothing is granted.
    pub fn capacity(mut self, permits: u64) -> Self {
        self.change.capacity = Some(permits);
        self
    }

    /// What changes about the lane with this name.
    pub fn lane(mut self, name: &str, change: impl FnOnce(LaneChange) -> LaneChange) -> Self {
        self.change.lanes.push((name.to_owned(), change(LaneChange::default())));
        self
    }

    /// Puts the change into effect, all of it or nothing. Waiters that can never be granted any more are refused as
    /// too large. A closed lane stays closed.
    ///
    /// # Errors
    ///
    /// As for a build, and when a lane is named that the budget does not have.
    pub fn apply(self) -> Result<(), BuildError> {
        self.target.resize(&self.change)
    }
}

impl fmt::Debug for Resize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resize").field("change", &self.change).finish_non_exhaustive()
    }
}
