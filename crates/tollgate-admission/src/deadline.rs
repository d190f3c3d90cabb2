use std::time::{Duration, Instant};

/// An absolute instant by which something must have happened, or never.
///
/// Every [`Duration`] makes a valid deadline: one that reaches past what an [`Instant`] can hold never passes.
/// Deadlines combine by [`earliest`](Self::earliest), so they are only ever tightened.
///
/// ```
/// use std::time::Duration;
/// use tollgate_admission::Deadline;
///
/// let caller = Deadline::after(Duration::from_secs(5));
/// assert_eq!(caller.earliest(Deadline::after(Duration::MAX)), caller);
/// assert_eq!(Deadline::after(Duration::MAX), Deadline::never());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// A deadline that never passes. Also the default.
    #[must_use]
    pub const fn never() -> Self {
        Deadline(None)
    }

    /// Passes at `instant`.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Deadline(Some(instant))
    }

    /// Passes `span` from now, by the system's monotonic clock.
    #[must_use]
    pub fn after(span: Duration) -> Self {
        Deadline(Instant::now().checked_add(span))
    }

    /// The one of the two that passes first.
    #[must_use]
    pub fn earliest(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Deadline(Some(a.min(b))),
            (a, b) => Deadline(a.or(b)),
        }
    }

    /// The instant at which it passes; `None` is never.
    #[must_use]
    pub const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Time left at `now`: zero once passed, `None` is for ever.
    #[must_use]
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now))
    }

    /// Whether it has passed at `now`.
    #[must_use]
    pub fn has_passed(self, now: Instant) -> bool {
        self.0.is_some_and(|at| at <= now)
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Deadline::at(instant)
    }
}
