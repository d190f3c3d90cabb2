use std::sync::Arc;

/// What was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Closed {
    /// The whole budget.
    Budget,
    /// The lane alone.
    Lane,
    /// The runtime that owns the work.
    Runtime,
    /// The scope that the work belongs to: it is draining or closed.
    Scope,
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Closed::Budget => "its budget is closed",
            Closed::Lane => "it is closed",
            Closed::Runtime => "the runtime that owns it is gone",
            Closed::Scope => "its scope is closed",
        })
    }
}

/// Why a budget could not be built or resized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Nothing could ever run.
    #[error("the capacity is 0")]
    ZeroCapacity,
    /// Nobody could ever ask.
    #[error("there are no lanes")]
    NoLanes,
    /// A lane in which nothing could ever run.
    #[error("lane `{lane}` has limit 0")]
    ZeroLimit {
        /// Its name.
        lane: Arc<str>,
    },
    /// `kept` is a part of `reserved`.
    #[error("lane `{lane}` keeps {kept} permits but reserves {reserved}")]
    KeptAboveReserved {
        /// Its name.
        lane: Arc<str>,
        /// What it keeps.
        kept: u64,
        /// What it reserves.
        reserved: u64,
    },
    /// A reservation that could never be used up.
    #[error("lane `{lane}` reserves {reserved} permits but its limit is {limit}")]
    ReservedAboveLimit {
        /// Its name.
        lane: Arc<str>,
        /// What it reserves.
        reserved: u64,
        /// The most it may run.
        limit: u64,
    },
    /// The lane at which the reservations, added up in order, exceed the capacity.
    #[error(
        "lane `{lane}` brings the reservations to {reserved} permits but the capacity is {capacity}"
    )]
    ReservationsAboveCapacity {
        /// Its name.
        lane: Arc<str>,
        /// The sum up to this lane; [`u64::MAX`] also when it is more.
        reserved: u64,
        /// The capacity.
        capacity: u64,
    },
    /// Lanes are told apart by name.
    #[error("there is more than one lane `{lane}`")]
    DuplicateLane {
        /// The name.
        lane: Arc<str>,
    },
    /// A resize named a lane that the budget does not have.
    #[error(transparent)]
    UnknownLane(#[from] UnknownLane),
}

/// A name that no lane has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no lane `{lane}`")]
pub struct UnknownLane {
    /// The name that was asked for.
    pub lane: Arc<str>,
}

/// Why an acquire was refused. Each is counted once, by cause, in [`LaneStats::refused`](crate::LaneStats::refused).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// As many are waiting as the lane allows.
    #[error("lane `{lane}` already has {max_waiting} waiting, which is its bound")]
    QueueFull {
        /// The lane.
        lane: Arc<str>,
        /// Its bound.
        max_waiting: usize,
    },
    /// The caller's deadline, or the lane's queue timeout, passed first.
    #[error("the deadline passed before lane `{lane}` had room")]
    Deadline {
        /// The lane.
        lane: Arc<str>,
    },
    /// Nothing more is admitted.
    #[error("lane `{lane}` admits nothing more: {what}")]
    Closed {
        /// The lane.
        lane: Arc<str>,
        /// What was closed.
        what: Closed,
    },
    /// More than could ever be granted: the lane's limit, or the capacity that other lanes do not keep.
    #[error("a weight of {weight} exceeds {limit}, the most that lane `{lane}` can ever grant")]
    TooLarge {
        /// The lane.
        lane: Arc<str>,
        /// What was asked for.
        weight: u64,
        /// The most that can be had.
        limit: u64,
    },
    /// Permits weigh at least 1.
    #[error("a weight of 0 was asked of lane `{lane}`; permits weigh at least 1")]
    ZeroWeight {
        /// The lane.
        lane: Arc<str>,
    },
    /// It would have had to wait, from where it may not: inside a job of the pool that it asks.
    #[error("lane `{lane}` has no permit free, and the caller may not wait for one")]
    Busy {
        /// The lane.
        lane: Arc<str>,
    },
    /// It would have had to wait under a deadline, and nothing could have told it that the deadline passed.
    #[error("lane `{lane}` is full and there is no timer to end the wait at its deadline")]
    NoTimer {
        /// The lane.
        lane: Arc<str>,
    },
    /// The drain lease that it came with had expired.
    #[error("the drain lease had expired when lane `{lane}` was asked")]
    LeaseExpired {
        /// The lane.
        lane: Arc<str>,
    },
    /// The drain lease that it came with allows no more operations.
    #[error("the drain lease allows no more operations, and lane `{lane}` was asked for one")]
    LeaseExhausted {
        /// The lane.
        lane: Arc<str>,
    },
    /// It is of the kind [`LONG_RUNNING`](crate::JobKind::LONG_RUNNING), which has no place in a pool that others share.
    #[error("long-running work was given to lane `{lane}`: it needs a dedicated thread")]
    LongRunning {
        /// The lane.
        lane: Arc<str>,
    },
}

/// Why a permit could not be had without waiting. Each is counted once, by cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TryAcquireError {
    /// The lane is full, or others wait there.
    #[error("lane `{lane}` has no permit free")]
    Busy {
        /// The lane.
        lane: Arc<str>,
    },
    /// The caller's deadline had passed.
    #[error("the deadline had passed when lane `{lane}` was asked")]
    Deadline {
        /// The lane.
        lane: Arc<str>,
    },
    /// Nothing more is admitted.
    #[error("lane `{lane}` admits nothing more: {what}")]
    Closed {
        /// The lane.
        lane: Arc<str>,
        /// What was closed.
        what: Closed,
    },
    /// More than could ever be granted.
    #[error("a weight of {weight} exceeds {limit}, the most that lane `{lane}` can ever grant")]
    TooLarge {
        /// The lane.
        lane: Arc<str>,
        /// What was asked for.
        weight: u64,
        /// The most that can be had.
        limit: u64,
    },
    /// Permits weigh at least 1.
    #[error("a weight of 0 was asked of lane `{lane}`; permits weigh at least 1")]
    ZeroWeight {
        /// The lane.
        lane: Arc<str>,
    },
    /// The drain lease that it came with had expired.
    #[error("the drain lease had expired when lane `{lane}` was asked")]
    LeaseExpired {
        /// The lane.
        lane: Arc<str>,
    },
    /// The drain lease that it came with allows no more operations.
    #[error("the drain lease allows no more operations, and lane `{lane}` was asked for one")]
    LeaseExhausted {
        /// The lane.
        lane: Arc<str>,
    },
    /// It is of the kind [`LONG_RUNNING`](crate::JobKind::LONG_RUNNING), which has no place in a pool that others share.
    #[error("long-running work was given to lane `{lane}`: it needs a dedicated thread")]
    LongRunning {
        /// The lane.
        lane: Arc<str>,
    },
}

/// There is no timer to wake a waiter at its deadline.
#[derive(Debug, thiserror::Error)]
#[error("there is no timer")]
pub struct NoTimer {
    /// What kept its thread from starting, if one was to be started.
    #[source]
    pub source: Option<std::io::Error>,
}

/// A scope that admits nothing more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scope {scope:?} is draining or closed")]
pub struct ScopeClosed {
    /// Its name.
    pub scope: Arc<str>,
}

/// Why there is no drain lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// It would allow nothing.
    #[error("a drain lease was asked for 0 operations")]
    NoOperations,
    /// Its deadline, or its scope's, had passed.
    #[error("the deadline of the drain lease had passed when it was asked for")]
    Expired,
    /// The scope is not open.
    #[error("scope {scope:?} is draining or closed, and lends nothing")]
    Closed {
        /// Its name.
        scope: Arc<str>,
    },
}
