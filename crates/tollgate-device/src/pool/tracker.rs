use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the jobs that run in several pools together, with exact peaks.
///
/// The peaks of the pools added up would be too high: they need not have come at the same time. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Tracker(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    active: Peaked,
    executing: Peaked,
}

#[derive(Debug, Default)]
struct Peaked {
    now: AtomicU64,
    peak: AtomicU64,
}

// Relaxed throughout: the counter's own order of changes is what the peak is taken of, and nothing else is ordered by it
impl Peaked {
    fn add(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn sub(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a [`Tracker`] has counted. The figures are read one after the other.
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
        let Figures { active, executing } = &*self.0;
        TrackerSnapshot {
            active: active.now.load(Ordering::Relaxed),
            peak_active: active.peak.load(Ordering::Relaxed),
            executing: executing.now.load(Ordering::Relaxed),
            peak_executing: executing.peak.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn started(&self, executes: bool) {
        self.0.active.add();
        if executes {
            self.0.executing.add();
        }
    }

    pub(crate) fn ended(&self, executes: bool) {
        self.0.active.sub();
        if executes {
            self.0.executing.sub();
        }
    }
}
