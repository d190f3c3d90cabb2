use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the jobs that run in several pools together, with exact peaks.
///
/// The peaks of the pools added up would be too high: they need not have come at the same time. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Tracker(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    /// Jobs that run, and in the upper half those of them that execute.
    now: AtomicU64,
    peak_active: AtomicU64,
    peak_executing: AtomicU64,
}

/// One job that runs, and one that executes too.
const ACTIVE: u64 = 1;
const EXECUTING: u64 = ACTIVE + (1 << 32);

fn halves(now: u64) -> (u64, u64) {
    (now & u64::from(u32::MAX), now >> 32)
}

/// Relaxed, as all of this: the order of changes of each figure is what its peak is taken of, and nothing else is ordered by
/// it.
fn raise(peak: &AtomicU64, to: u64) {
    // seldom higher than before
    if peak.load(Ordering::Relaxed) < to {
        peak.fetch_max(to, Ordering::Relaxed);
    }
}

/// What a [`Tracker`] has counted: what is now at one instant, and then the peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TrackerSnapshot {
    /// Jobs that run.
    pub active: u64,
    /// Most that ever ran at once.
    pub peak_active: u64,
    /// Root jobs that execute.
    pub executing: u64,
    /// Most that ever executed at once.
    pub peak_executing: u64,
}

impl Tracker {
    /// One that has counted nothing. It is given to [builders](super::DevicePoolBuilder::tracker).
    #[must_use]
    pub fn new() -> Self {
        Tracker::default()
    }

    /// The figures.
    #[must_use]
    pub fn snapshot(&self) -> TrackerSnapshot {
        let Figures { now, peak_active, peak_executing } = &*self.0;
        let (active, executing) = halves(now.load(Ordering::Relaxed));
        TrackerSnapshot {
            active,
            // a job that is counted may be about to raise them
            peak_active: peak_active.load(Ordering::Relaxed).max(active),
            executing,
            peak_executing: peak_executing.load(Ordering::Relaxed).max(executing),
        }
    }

    pub(crate) fn started(&self, executes: bool) {
        let Figures { now, peak_active, peak_executing } = &*self.0;
        let one = if executes { EXECUTING } else { ACTIVE };
        let (active, executing) = halves(now.fetch_add(one, Ordering::Relaxed) + one);
        raise(peak_active, active);
        raise(peak_executing, executing);
    }

    pub(crate) fn ended(&self, executes: bool) {
        let one = if executes { EXECUTING } else { ACTIVE };
        self.0.now.fetch_sub(one, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    /// DEV-16
    #[test]
    fn no_peak_is_below_the_present_while_a_job_is_being_counted() {
        let tracker = Tracker::new();
        tracker.started(false);
        tracker.0.now.fetch_add(EXECUTING, Ordering::Relaxed);
        let it = tracker.snapshot();
        assert_eq!((it.active, it.peak_active, it.executing, it.peak_executing), (2, 2, 1, 1));
    }
}
