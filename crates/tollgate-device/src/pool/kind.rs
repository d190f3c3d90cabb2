//! What a job is for, as data.

use std::fmt;
use tollgate_admission::JobKind;

/// Which permits bound how many jobs are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Class {
    /// What there is once per attempt: setup, execution, cleanup. As many as attempts may be active.
    Root,
    /// Work that is issued under an attempt, and counts against its share.
    Auxiliary,
    /// The cleanup that ends an attempt, under a permit that the attempt has had since it was admitted.
    Release,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Class::Root => "root",
            Class::Auxiliary => "auxiliary",
            Class::Release => "release",
        })
    }
}

/// Which workers an async job may run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Seats {
    /// Any, and some are kept for such jobs: they never wait behind the others.
    Lifecycle,
    /// Those that are not kept.
    Execution,
}

impl fmt::Display for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Seats::Lifecycle => "lifecycle",
            Seats::Execution => "execution",
        })
    }
}

/// What a job is for: what it is called in reports, which permits it is charged to, and which workers it may run on.
///
/// Four are named here. Others are made by [`new`](Self::new); kinds are equal when all three parts are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceKind {
    name: JobKind,
    class: Class,
    seats: Seats,
}

impl DeviceKind {
    /// Makes contexts, loads modules, reserves what an attempt needs.
    pub const SETUP: DeviceKind = DeviceKind::new("setup", Class::Root, Seats::Lifecycle);
    /// An attempt's root job.
    pub const EXECUTION: DeviceKind = DeviceKind::new("execution", Class::Root, Seats::Execution);
    /// Work that is issued under an attempt's root job.
    pub const AUXILIARY: DeviceKind =
        DeviceKind::new("auxiliary", Class::Auxiliary, Seats::Execution);
    /// Synchronises and destroys.
    pub const CLEANUP: DeviceKind = DeviceKind::new("cleanup", Class::Root, Seats::Lifecycle);

    /// A kind of your own. `name` is for reports.
    #[must_use]
    pub const fn new(name: &'static str, class: Class, seats: Seats) -> Self {
        DeviceKind { name: JobKind::new(name), class, seats }
    }

    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.name.as_str()
    }

    /// What it is charged to, unless the job says otherwise.
    #[must_use]
    pub const fn class(self) -> Class {
        self.class
    }

    /// Where its async jobs may run.
    #[must_use]
    pub const fn seats(self) -> Seats {
        self.seats
    }

    /// As reports of scopes and pools of threads call it.
    #[must_use]
    pub const fn job_kind(self) -> JobKind {
        self.name
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}, {})", self.as_str(), self.class, self.seats)
    }
}

/// By its name.
#[cfg(feature = "serde")]
impl serde::Serialize for DeviceKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
