use super::{Scope, ScopeDrained, ScopeReport, report};
use crate::deadline::Deadline;
use crate::sleep::Sleep;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long the phases of a shutdown took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PhaseTimes {
    /// Closing admission and refusing what waited.
    pub closing: Duration,
    /// From there until what ran was asked to stop.
    pub grace: Duration,
    /// From there until nothing was left or the deadline had passed.
    pub draining: Duration,
}

impl PhaseTimes {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.closing + self.grace + self.draining
    }
}

/// The future of [`Scope::shutdown`].
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "a shutdown does nothing until it is awaited"]
pub struct Shutdown {
    scope: Scope,
    deadline: Deadline,
    cancel_at: Option<Deadline>,
    drained: ScopeDrained,
    sleep: Sleep,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Fresh,
    /// Closed; what runs has not been asked to stop.
    Grace {
        started: Instant,
        closed: Instant,
    },
    /// It has.
    Draining {
        started: Instant,
        closed: Instant,
        asked: Instant,
    },
    Done,
}

impl Shutdown {
    pub(super) fn new(scope: Scope, deadline: Deadline) -> Self {
        let sleep = Sleep::until(Arc::clone(&scope.owners().time), deadline);
        let drained = scope.drained();
        Shutdown { scope, deadline, cancel_at: None, drained, sleep, at: At::Fresh }
    }

    /// What runs is asked to stop at this mark, not at once. Work under a drain lease is never asked: it has its lease's
    /// deadline.
    pub fn cancel_at(mut self, mark: impl Into<Deadline>) -> Self {
        self.cancel_at = Some(mark.into());
        self
    }

    fn now(&self) -> Instant {
        self.scope.owners().time.now()
    }

    fn finish(&mut self, took: PhaseTimes) -> Poll<ScopeReport> {
        self.at = At::Done;
        Poll::Ready(report::take(&self.scope, took))
    }
}

impl Future for Shutdown {
    type Output = ScopeReport;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ScopeReport> {
        loop {
            match self.at {
                At::Fresh => {
                    let started = self.now();
                    // first, so that what waits is refused as closed, however near the deadline is
                    self.scope.close();
                    self.scope.tighten(self.deadline);
                    let closed = self.now();
                    self.at = At::Grace { started, closed };
                    if let Some(mark) = self.cancel_at {
                        let deadline = self.deadline;
                        self.sleep.reset(mark.earliest(deadline));
                    }
                }
                At::Grace { started, closed } => {
                    let drained = Pin::new(&mut self.drained).poll(cx).is_ready();
                    // at once means so whatever the clock shows
                    let waits = !drained && self.cancel_at.is_some();
                    if waits && Pin::new(&mut self.sleep).poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let asked = self.now();
                    // also when nothing is left: somebody who was not counted may watch a token
                    self.scope.ask_to_stop(false);
                    if drained {
                        let (closing, grace) = (closed - started, asked - closed);
                        let draining = Duration::ZERO;
                        return self.finish(PhaseTimes { closing, grace, draining });
                    }
                    self.at = At::Draining { started, closed, asked };
                    let deadline = self.deadline;
                    self.sleep.reset(deadline);
                }
                At::Draining { started, closed, asked } => {
                    let drained = Pin::new(&mut self.drained).poll(cx).is_ready();
                    if !drained && Pin::new(&mut self.sleep).poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let (closing, grace) = (closed - started, asked - closed);
                    let draining = self.now() - asked;
                    return self.finish(PhaseTimes { closing, grace, draining });
                }
                At::Done => panic!("a shutdown was polled after it had completed"),
            }
        }
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown")
            .field("scope", &self.scope)
            .field("deadline", &self.deadline)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
