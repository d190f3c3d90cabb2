//! Why something was refused, and how that is put to users.

use crate::error::{AcquireError, Closed, TryAcquireError};
use std::sync::Arc;

/// Why an acquire was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// As many were waiting as the lane allows.
    QueueFull {
        /// The bound that was met.
        max_waiting: usize,
    },
    /// The deadline, or the lane's queue timeout, passed.
    Deadline,
    /// Nothing more is admitted.
    Closed(Closed),
    /// The weight can never be granted.
    TooLarge {
        /// The largest weight that could.
        limit: u64,
    },
    /// A weight of zero.
    ZeroWeight,
    /// It would have had to wait, and was asked not to.
    Busy,
    /// It would have had to wait under a deadline, and there is no timer.
    NoTimer,
    /// The drain lease that it came with had expired.
    LeaseExpired,
    /// The drain lease that it came with allows no more operations.
    LeaseExhausted,
    /// It is long-running work, in a pool that others share.
    LongRunning,
}

impl Cause {
    /// The public error for a refusal of an acquire of `weight` in `lane`.
    pub(super) fn acquire_error(self, lane: Arc<str>, weight: u64) -> AcquireError {
        match self {
            Cause::QueueFull { max_waiting } => AcquireError::QueueFull { lane, max_waiting },
            Cause::Deadline => AcquireError::Deadline { lane },
            Cause::Closed(what) => AcquireError::Closed { lane, what },
            Cause::TooLarge { limit } => AcquireError::TooLarge { lane, weight, limit },
            Cause::ZeroWeight => AcquireError::ZeroWeight { lane },
            // an acquire waits; if its owner says it may not, the queue has no room for it
            Cause::Busy => AcquireError::Busy { lane },
            Cause::NoTimer => AcquireError::NoTimer { lane },
            Cause::LeaseExpired => AcquireError::LeaseExpired { lane },
            Cause::LeaseExhausted => AcquireError::LeaseExhausted { lane },
            Cause::LongRunning => AcquireError::LongRunning { lane },
        }
    }

    /// The public error for an attempt that was refused, or would have had to wait.
    pub(super) fn try_acquire_error(self, lane: Arc<str>, weight: u64) -> TryAcquireError {
        match self {
            Cause::Closed(what) => TryAcquireError::Closed { lane, what },
            Cause::TooLarge { limit } => TryAcquireError::TooLarge { lane, weight, limit },
            Cause::ZeroWeight => TryAcquireError::ZeroWeight { lane },
            Cause::Deadline => TryAcquireError::Deadline { lane },
            Cause::LeaseExpired => TryAcquireError::LeaseExpired { lane },
            Cause::LeaseExhausted => TryAcquireError::LeaseExhausted { lane },
            Cause::LongRunning => TryAcquireError::LongRunning { lane },
            Cause::QueueFull { .. } | Cause::Busy | Cause::NoTimer => {
                TryAcquireError::Busy { lane }
            }
        }
    }
}
