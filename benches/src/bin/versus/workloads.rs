//! What the entrants are asked to do.

use std::time::Duration;

use tollgate_benches::entrants::Work;

/// One closed loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// Callers at once.
    pub(crate) callers: usize,
    /// What each job does.
    pub(crate) work: Work,
}

const BUSY: Work = Work::busy(Duration::from_micros(20));

/// All of them, in the order they run.
pub(crate) const WORKLOADS: [Workload; 4] = [
    ONE_CALLER,
    Workload { name: "noop_64", callers: 64, work: Work::NOTHING },
    Workload { name: "noop_1024", callers: 1024, work: Work::NOTHING },
    Workload { name: "busy20us_64", callers: 64, work: BUSY },
];

/// The one that fresh processes measure too: a single caller's time depends on where the system
/// happened to place the threads, and stays that way for the life of a process.
pub(crate) const ONE_CALLER: Workload =
    Workload { name: "noop_1", callers: 1, work: Work::NOTHING };
