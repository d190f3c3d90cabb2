//! A wait that ends at a deadline, by the pool's own clock and timer: the waiting side may have none.

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use tollgate_admission::time::OnTime;
use tollgate_admission::{Deadline, TimeSource};

use crate::cell::quietly;
use crate::sync::Mutex;

/// Tells when a deadline has passed. Asks the time source for a call at the first poll that has to wait.
pub(crate) struct Alarm {
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
            quietly(|| waker.wake());
        }
    }
}

impl Alarm {
    pub(crate) fn new(time: Arc<dyn TimeSource>, deadline: Deadline) -> Self {
        Alarm { time, deadline, bell: None }
    }

    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
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
            self.time.call_at(at, target);
        }
        // the time may have passed before the bell was hung
        if at <= self.time.now() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
