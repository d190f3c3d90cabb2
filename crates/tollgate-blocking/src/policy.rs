use std::time::Duration;
use tollgate_admission::LaneConfig;

/// A lane of a pool: its share of the budget, and how long its jobs may wait and run.
///
/// Counts are permits, by weight; a job of weight 1 takes one thread and one permit. Without further calls a lane
/// reserves nothing, may use the whole capacity, lets
/// [`DEFAULT_MAX_WAITING`](tollgate_admission::DEFAULT_MAX_WAITING) jobs wait, and has no timeouts.
///
/// ```
/// use std::time::Duration;
/// use tollgate_blocking::LanePolicy;
///
/// let storage = LanePolicy::new("storage")
///     .reserved(2)
///     .limit(6)
///     .max_waiting(256)
///     .queue_timeout(Duration::from_millis(500))
///     .task_timeout(Duration::from_secs(10))
///     .warn_after(Duration::from_secs(1));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LanePolicy {
    pub(crate) lane: LaneConfig,
    pub(crate) timing: Timing,
}

/// The part of a policy that concerns jobs that run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub(crate) task_timeout: Option<Duration>,
    pub(crate) warn_after: Option<Duration>,
}

impl LanePolicy {
    /// A lane with this name, which must be unique in its pool.
    pub fn new(name: impl Into<std::sync::Arc<str>>) -> Self {
        LaneConfig::new(name).into()
    }

    /// See [`LaneConfig::reserved`].
    pub fn reserved(mut self, permits: u64) -> Self {
        self.lane = self.lane.reserved(permits);
        self
    }

    /// See [`LaneConfig::kept`].
    pub fn kept(mut self, permits: u64) -> Self {
        self.lane = self.lane.kept(permits);
        self
    }

    /// See [`LaneConfig::limit`].
    pub fn limit(mut self, permits: u64) -> Self {
        self.lane = self.lane.limit(permits);
        self
    }

    /// See [`LaneConfig::max_waiting`].
    pub fn max_waiting(mut self, jobs: usize) -> Self {
        self.lane = self.lane.max_waiting(jobs);
        self
    }

    /// See [`LaneConfig::unbounded_waiting`].
    pub fn unbounded_waiting(mut self) -> Self {
        self.lane = self.lane.unbounded_waiting();
        self
    }

    /// The longest a job may wait for its permit. One that waited this long is refused and never runs; `None` is for
    /// ever. What a thread takes to start is not counted: a [deadline](crate::JobBuilder::deadline) covers that too.
    ///
    /// The waiter of a job whose time is up is told at once. Its captures are dropped as it looks, or by a thread of the
    /// pool between two jobs, whichever comes first: a destructor that takes its time delays no deadline.
    pub fn queue_timeout(mut self, span: impl Into<Option<Duration>>) -> Self {
        self.lane = self.lane.queue_timeout(span);
        self
    }

    /// The longest a job should run, counted from its start. A closure can't be stopped from outside: its waiter is told
    /// [`TimedOut`](crate::RunError::TimedOut), its [context](crate::JobContext) says so, and it keeps its permit until
    /// it returns. `None` is for ever.
    pub fn task_timeout(mut self, span: impl Into<Option<Duration>>) -> Self {
        self.timing.task_timeout = span.into();
        self
    }

    /// A `tracing` warning is emitted for a job that took longer than this, once it has ended. `None` is never.
    pub fn warn_after(mut self, span: impl Into<Option<Duration>>) -> Self {
        self.timing.warn_after = span.into();
        self
    }
}

impl From<LaneConfig> for LanePolicy {
    fn from(lane: LaneConfig) -> Self {
        LanePolicy { lane, timing: Timing::default() }
    }
}
