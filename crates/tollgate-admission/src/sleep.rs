use crate::deadline::Deadline;
use crate::engine::contain;
use crate::sync::Mutex;
use crate::time::{OnTime, TimeSource};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// Resolves when a deadline has passed, by the clock of a [`TimeSource`]: whoever polls it needs no timer.
///
/// The time source is asked for a call at the first poll that has to wait. Under [`ClockOnly`](crate::ClockOnly) nobody
/// calls: it resolves when it is polled after its time.
///
/// # Cancel safety
///
/// Nothing is lost by dropping it.
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    time: Arc<dyn TimeSource>,
    deadline: Deadline,
    bell: Option<Arc<Bell>>,
}

struct Bell(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    waker: Option<Waker>,
    /// The call has come, at its time or early: another one has to be asked for.
    rung: bool,
}

impl OnTime for Bell {
    fn on_time(self: Arc<Self>) {
        let mut ring = self.0.lock();
        ring.rung = true;
        let waker = ring.waker.take();
        drop(ring);
        if let Some(waker) = waker {
            // on the timer's thread, which others need
            contain(|| waker.wake());
        }
    }
}

impl Sleep {
    /// Sleeps until `deadline`, by `time`.
    pub fn until(time: Arc<dyn TimeSource>, deadline: impl Into<Deadline>) -> Self {
        Sleep { time, deadline: deadline.into(), bell: None }
    }

    /// Ends at another time. Takes effect when it is polled next.
    pub fn reset(&mut self, deadline: impl Into<Deadline>) {
        let deadline = deadline.into();
        if deadline != self.deadline {
            self.deadline = deadline;
            // the former one's call is skipped
            self.bell = None;
        }
    }

    /// When it ends.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.deadline.instant() else { return Poll::Pending };
        if at <= self.time.now() {
            return Poll::Ready(());
        }
        let fresh = cx.waker().clone();
        let bell = self
            .bell
            .get_or_insert_with(|| Arc::new(Bell(Mutex::new(Ring { waker: None, rung: true }))));
        let mut ring = bell.0.lock();
        let stale = ring.waker.replace(fresh);
        let ask = std::mem::replace(&mut ring.rung, false);
        drop(ring);
        drop(stale);
        if ask {
            let target: Weak<Bell> = Arc::downgrade(bell);
            // without a timer it ends when it is polled after its time
            let _ = self.time.prepare();
            self.time.call_at(at, target);
        }
        // the time may have passed before the bell was hung
        if at <= self.time.now() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
