//! A wait that ends at a deadline, by the pool's own clock and timer: the waiting side may have none.

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use tollgate_admission::time::OnTime;
use tollgate_admission::{Deadline, TimeSource};

use crate::sync::Mutex;

/// Tells when a deadline has passed. Asks the time source for a call at the first poll that has to wait.
pub(crate) struct Alarm {
    time: Arc<dyn TimeSource>,
    deadline: Deadline,
    bell: Option<Arc<Bell>>,
}

struct Bell(Mutex<Option<Waker>>);

impl OnTime for Bell {
    fn on_time(self: Arc<Self>) {
        let waker = self.0.lock().take();
        if let Some(waker) = waker {
            waker.wake();
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
        let fresh = Some(cx.waker().clone());
        match &self.bell {
            Some(bell) => {
                let stale = std::mem::replace(&mut *bell.0.lock(), fresh);
                drop(stale);
            }
            None => {
                let bell = Arc::new(Bell(Mutex::new(fresh)));
                let target: Weak<Bell> = Arc::downgrade(&bell);
                self.bell = Some(bell);
                self.time.call_at(at, target);
            }
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
