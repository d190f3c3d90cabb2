//! Time as numbers.

use crate::deadline::Deadline;
use std::time::{Duration, Instant};

/// A point in time: nanoseconds since an epoch that the owner of the state chose. Valid readings start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// Before every reading of the clock: a deadline that has always passed.
    pub const ZERO: Tick = Tick(0);
    /// After every reading of the clock: a deadline that never passes.
    pub const NEVER: Tick = Tick(u64::MAX);

    /// `self + span`; what does not fit is [`Tick::NEVER`].
    #[must_use]
    pub fn after(self, span: Duration) -> Tick {
        // in 64 bits throughout: this is on the path of every job
        let seconds = span.as_secs().saturating_mul(1_000_000_000);
        Tick(seconds.saturating_add(u64::from(span.subsec_nanos())).saturating_add(self.0))
    }

    /// When `deadline` passes, counted from `epoch`: what lies before it has passed at every valid reading.
    #[must_use]
    pub fn from_deadline(deadline: Deadline, epoch: Instant) -> Tick {
        let Some(at) = deadline.instant() else { return Tick::NEVER };
        at.checked_duration_since(epoch).map_or(Tick::ZERO, |span| Tick(1).after(span))
    }

    /// The instant that this is, counted from `epoch`; `None` for [`Tick::NEVER`] and for what an instant can't hold.
    #[must_use]
    pub fn to_instant(self, epoch: Instant) -> Option<Instant> {
        if self == Tick::NEVER { None } else { epoch.checked_add(self.since(Tick(1))) }
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
