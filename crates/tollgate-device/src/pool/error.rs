//! What can go wrong with a pool, an attempt, a job and an end.

use super::kind::{Class, DeviceKind};
use crate::backend::{DeviceUuid, DriverError};
use std::io;
use std::sync::Arc;
use tollgate_admission::{AcquireError, Closed, JobId, ScopeClosed};
use tollgate_blocking::Panic;

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Nothing could ever be admitted.
    #[error("a device takes at least 1 attempt at once, not 0")]
    ZeroAttempts,
    /// No auxiliary job could ever be accepted.
    #[error("an attempt has at least 1 auxiliary slot, not 0")]
    ZeroAuxiliary,
    /// Setup and cleanup would wait behind execution.
    #[error("at least 1 worker is kept for setup and cleanup, not 0")]
    ZeroLifecycle,
    /// Nothing could ever be executed.
    #[error(
        "{lifecycle} of {workers} workers are kept for setup and cleanup, which leaves none for execution"
    )]
    NoExecutionSeat {
        /// All workers.
        workers: u32,
        /// Those that are kept.
        lifecycle: u32,
    },
    /// More workers than a pool may have.
    #[error("a pool has at most {most} workers, not {asked}")]
    Workers {
        /// What was asked for.
        asked: u32,
        /// What there may be.
        most: u32,
    },
    /// More memory than the device has.
    #[error("{asked} bytes are to be managed but the device has {total}")]
    ManagedBytes {
        /// What was asked for.
        asked: u64,
        /// What there is.
        total: u64,
    },
    /// A cache larger than what it is a part of.
    #[error("the cache is to have {asked} bytes but {managed} are managed")]
    CacheBytes {
        /// What was asked for.
        asked: u64,
        /// What is managed.
        managed: u64,
    },
    /// The stream of events could hold none.
    #[error("the stream of events holds at least 1, not 0")]
    ZeroEvents,
    /// The scope that the pool was to belong to is not open.
    #[error(transparent)]
    Scope(#[from] ScopeClosed),
    /// The device could not be bound to the thread that owns its runtime.
    #[error("the device can't be used")]
    Device(#[source] DriverError),
    /// The system refused a thread, or what else the device's runtime needs.
    #[error("the device's runtime could not be built")]
    Runtime(#[source] io::Error),
    /// Building the device's runtime panicked, which it does when a worker's thread is refused.
    #[error("building the device's runtime panicked: {message}")]
    RuntimePanicked {
        /// With what.
        message: Arc<str>,
    },
    /// The numbers make no budget. The others of these errors come first, so this is only met with numbers beyond reason.
    #[error(transparent)]
    Budget(#[from] tollgate_admission::BuildError),
    /// The pool of threads for blocking jobs could not be built.
    #[error(transparent)]
    Blocking(#[from] tollgate_blocking::BuildError),
}

/// Why a process-wide pool can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// There is one, of another width.
    #[error("device {uuid} has a shared pool with {existing} workers, not {asked}")]
    Width {
        /// The device.
        uuid: DeviceUuid,
        /// How many workers the pool has.
        existing: u32,
        /// How many were asked for.
        asked: u32,
    },
    /// There was one, which was closed, or whose last handle is gone, and its threads have not ended.
    #[error("the shared pool of device {uuid} has not ended yet")]
    Ending {
        /// The device.
        uuid: DeviceUuid,
    },
    /// It could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Why a job was not accepted. Nothing of it ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many jobs of its class were accepted as may be, or others wait for a permit of it.
    #[error("all {capacity} permits of class {class} are out")]
    ClassFull {
        /// The class.
        class: Class,
        /// How many permits it has.
        capacity: u64,
    },
    /// Its attempt has as many auxiliary jobs as it may.
    #[error("all {share} auxiliary slots of its attempt are taken")]
    ShareFull {
        /// How many it has.
        share: u32,
    },
    /// Auxiliary work belongs to an attempt, and this was submitted without one.
    #[error("a job of class {class} needs an attempt")]
    NoAttempt {
        /// The class.
        class: Class,
    },
    /// Only the cleanup that ends an attempt is of this class: [`Attempt::release`](super::Attempt::release).
    #[error("class release is for the cleanup that ends an attempt")]
    NotARelease,
    /// Its attempt has been released or dropped.
    #[error("its attempt is over")]
    AttemptOver,
    /// Its attempt has lent its root permit to another job that has not ended.
    #[error("its attempt has lent its root permit to job {to}")]
    RootLent {
        /// That job.
        to: JobId,
    },
    /// It was submitted by a job that has no seat for execution, none is free, and waiting for one would keep a worker
    /// from setup and cleanup.
    #[error("no worker for execution is free, and a {seats} job does not wait for one", seats = super::kind::Seats::Lifecycle)]
    NoSeat,
    /// The deadline of its scope has passed.
    #[error("the deadline of its scope has passed")]
    Deadline,
    /// Nothing more is accepted.
    #[error("the device pool is closed: {what}")]
    Closed {
        /// What was closed.
        what: Closed,
    },
}

/// Why an attempt was not admitted. It holds nothing.
#[derive(Debug, thiserror::Error)]
#[error("an attempt was not admitted to device {device}")]
pub struct AdmitError {
    pub(crate) device: u32,
    #[source]
    pub(crate) source: AcquireError,
}

impl AdmitError {
    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The cause. The lanes that it names are `root` and `release`.
    #[must_use]
    pub fn cause(&self) -> &AcquireError {
        &self.source
    }
}

/// Why there is no result of a job.
#[derive(Debug, thiserror::Error)]
#[error("no result of a job of kind {kind} (class {class}) on device {device}: {reason}")]
pub struct JobError {
    pub(crate) device: u32,
    pub(crate) kind: DeviceKind,
    pub(crate) class: Class,
    #[source]
    pub(crate) reason: Reason,
}

impl JobError {
    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The job's kind.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// What it was charged to.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// What became of it.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// What became of it.
    #[must_use]
    pub fn into_reason(self) -> Reason {
        self.reason
    }

    /// Why it was refused, if it was.
    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        match &self.reason {
            Reason::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// Whether it certainly never began: trying again repeats nothing.
    #[must_use]
    pub fn never_ran(&self) -> bool {
        matches!(self.reason, Reason::Refused(_) | Reason::Unbound(_))
    }
}

/// What became of a job that has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It was not accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It panicked.
    #[error("it panicked: {0}")]
    Panicked(Panic),
    /// Somebody cancelled it, or it was discarded before it started.
    #[error("it was cancelled")]
    Cancelled,
    /// The device's runtime ended before it did, or the system refused the pool a thread to run it on.
    #[error("the device's runtime ended before it did")]
    Lost,
    /// The device could not be bound to the thread that was to run it.
    #[error("the device could not be bound")]
    Unbound(#[source] DriverError),
}

/// The runtime of a pool that is not closed was to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool of device {device} is not closed: its runtime can't end before")]
pub struct NotClosed {
    pub(crate) device: u32,
}

impl NotClosed {
    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }
}
