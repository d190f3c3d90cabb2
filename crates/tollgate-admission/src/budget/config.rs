use crate::error::BuildError;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How many may wait in a lane that did not say: enough for a burst, too few to hide an overload.
pub const DEFAULT_MAX_WAITING: usize = 1024;

/// A named share of a budget.
///
/// Counts are in permits, by weight. Without further calls a lane reserves nothing, may use the whole capacity, and lets
/// [`DEFAULT_MAX_WAITING`] acquires wait for as long as it takes.
///
/// ```
/// use std::time::Duration;
/// use tollgate_admission::LaneConfig;
///
/// let probes = LaneConfig::new("probes").reserved(1).kept(1).limit(2).max_waiting(16);
/// let scans = LaneConfig::new("scans").max_waiting(64).queue_timeout(Duration::from_millis(250));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    pub(crate) name: Arc<str>,
    pub(crate) reserved: u64,
    pub(crate) kept: u64,
    pub(crate) limit: u64,
    pub(crate) max_waiting: usize,
    pub(crate) queue_timeout: Option<Duration>,
}

impl LaneConfig {
    /// A lane with this name, which must be unique in its budget. Any characters will do.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        LaneConfig {
            name: name.into(),
            reserved: 0,
            kept: 0,
            limit: u64::MAX,
            max_waiting: DEFAULT_MAX_WAITING,
            queue_timeout: None,
        }
    }

    /// First in line for what is freed, up to this many permits. Others may borrow them while this lane does not ask.
    /// At most [`limit`](Self::limit); over all lanes at most the capacity.
    #[must_use]
    pub fn reserved(mut self, permits: u64) -> Self {
        self.reserved = permits;
        self
    }

    /// The part of [`reserved`](Self::reserved) that is never lent, so that it is free at once.
    #[must_use]
    pub fn kept(mut self, permits: u64) -> Self {
        self.kept = permits;
        self
    }

    /// The most this lane may run, borrowed permits included. More than the capacity means the capacity.
    #[must_use]
    pub fn limit(mut self, permits: u64) -> Self {
        self.limit = permits;
        self
    }

    /// How many acquires may wait; 0 means that an acquire that would have to wait is refused.
    #[must_use]
    pub fn max_waiting(mut self, acquires: usize) -> Self {
        self.max_waiting = acquires;
        self
    }

    /// Lets any number of acquires wait. Memory is then the only bound: prefer a number.
    #[must_use]
    pub fn unbounded_waiting(mut self) -> Self {
        self.max_waiting = usize::MAX;
        self
    }

    /// The longest an acquire may wait; one that waited this long is refused as if by its own deadline.
    #[must_use]
    pub fn queue_timeout(mut self, span: impl Into<Option<Duration>>) -> Self {
        self.queue_timeout = span.into();
        self
    }

    /// The lane's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Checks what [`BuildError`] lists.
pub(crate) fn validate(capacity: u64, lanes: &[LaneConfig]) -> Result<(), BuildError> {
    if capacity == 0 {
        return Err(BuildError::ZeroCapacity);
    }
    if lanes.is_empty() {
        return Err(BuildError::NoLanes);
    }
    let mut names = HashSet::with_capacity(lanes.len());
    let mut sum = 0_u64;
    for lane in lanes {
        let LaneConfig { ref name, reserved, kept, limit, .. } = *lane;
        let name = || Arc::clone(name);
        if !names.insert(&*lane.name) {
            return Err(BuildError::DuplicateLane { lane: name() });
        }
        if limit == 0 {
            return Err(BuildError::ZeroLimit { lane: name() });
        }
        if kept > reserved {
            return Err(BuildError::KeptAboveReserved { lane: name(), kept, reserved });
        }
        if reserved > limit {
            return Err(BuildError::ReservedAboveLimit { lane: name(), reserved, limit });
        }
        sum = sum.saturating_add(reserved);
        if sum > capacity {
            let reserved = sum;
            return Err(BuildError::ReservationsAboveCapacity { lane: name(), reserved, capacity });
        }
    }
    Ok(())
}

/// Per lane, the largest weight that can ever be granted: its limit, and what the others do not keep.
pub(crate) fn effective_limits(capacity: u64, lanes: &[LaneConfig]) -> Vec<u64> {
    let kept: u64 = lanes.iter().map(|lane| lane.kept).sum();
    lanes.iter().map(|lane| lane.limit.min(capacity - (kept - lane.kept))).collect()
}
