use super::Tick;

/// The calls that were asked of a [`TimeSource`](crate::TimeSource) and have not come yet.
///
/// A call can't be taken back, so those that are asked for must not pile up, whatever deadlines come and go: not behind a
/// late one, and not when each is earlier than all before it. Hence one is asked for only when it has to come before all
/// that are outstanding, since whichever comes looks at the deadlines anew; and once some are outstanding, each further
/// one comes in half the time of the one before it at the latest. That may be early, and is never late. So what is
/// outstanding is at most the logarithm of a span in nanoseconds, and some.
#[derive(Debug, Default)]
pub struct Alarm {
    /// The latest first: each was asked for because it was earlier than the one before.
    owed: Vec<Tick>,
}

/// As many calls are asked for exactly when they are needed; an early one costs a wake-up for nothing.
const EXACT: usize = 8;

impl Alarm {
    /// Nothing was asked for.
    #[must_use]
    pub const fn new() -> Self {
        Alarm { owed: Vec::new() }
    }

    /// When a call must be asked for, so that `deadline` is not missed; `None` if one that is outstanding will do. It
    /// counts as asked for.
    ///
    /// That is at `deadline` or between `now` and `deadline`. `now` is a reading of the clock, by which `deadline` has
    /// not passed: [`State::latest`](super::State::latest) after whoever was due was settled. An older reading makes
    /// the call come earlier.
    #[must_use = "a call that counts as asked for has to be"]
    pub fn ask(&mut self, deadline: Tick, now: Tick) -> Option<Tick> {
        let next = self.owed.last().copied().unwrap_or(Tick::NEVER);
        if deadline >= next {
            return None;
        }
        let at = if self.owed.len() < EXACT {
            deadline
        } else {
            // later than `now`, since `deadline` lies between: a call that comes at once would ask for the next at once
            deadline.min(Tick(now.0.saturating_add(next.0.saturating_sub(now.0) / 2)))
        };
        self.owed.push(at);
        Some(at)
    }

    /// A call came, whatever the clock says: the earliest of the outstanding ones.
    pub fn came(&mut self) {
        self.owed.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_long_as_few_calls_are_outstanding_each_comes_exactly_when_it_is_needed() {
        let mut alarm = Alarm::new();
        for n in 0..EXACT as u64 {
            let deadline = Tick(1_000 - n);
            assert_eq!(alarm.ask(deadline, Tick(1)), Some(deadline));
            assert_eq!(alarm.ask(deadline, Tick(1)), None, "it was asked for");
        }
        assert_eq!(alarm.ask(Tick(900), Tick(1)), Some(Tick(497)));
        assert_eq!(
            alarm.ask(Tick(497), Tick(1)),
            None,
            "one that comes then looks at all deadlines"
        );
        assert_eq!(alarm.ask(Tick::NEVER, Tick(1)), None);
    }

    proptest! {
        /// Deadlines as a clock that moves on sees them, each alone at its time, and calls that come when they are due.
        #[test]
        fn no_deadline_is_missed_and_few_calls_are_outstanding(
            steps in proptest::collection::vec((0_u64..64, 0_u64..64, any::<u64>(), any::<bool>()), 1..400),
        ) {
            let (mut alarm, mut now) = (Alarm::new(), 1_u64);
            for (shift, moved, bits, moves) in steps {
                // spans of every order of magnitude
                let deadline = Tick(now.saturating_add(1 + (bits >> shift)));
                let asked = alarm.ask(deadline, Tick(now));
                prop_assert!(asked.is_none_or(|at| Tick(now) < at && at <= deadline));
                let first = alarm.owed.last().copied();
                prop_assert!(deadline == Tick::NEVER || first.is_some_and(|at| at <= deadline));
                prop_assert!(alarm.owed.is_sorted_by(|later, sooner| later > sooner));
                prop_assert!(alarm.owed.len() <= EXACT + 64, "{} are outstanding", alarm.owed.len());
                if moves {
                    now = now.saturating_add(bits >> moved.max(1)).min(u64::MAX - 1);
                    while alarm.owed.last().is_some_and(|at| at.0 <= now) {
                        alarm.came();
                    }
                }
            }
        }
    }
}
