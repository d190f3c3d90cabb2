//! A pool at the exit of the process.

use super::core::Core;
use super::shutdown::{DevicePhaseTimes, DeviceReport, PhaseError};
use super::supervisor::Supervisor;
use super::worker::{self, Role};
use crate::backend::Bell;
use crate::exit::{AtExit, ExitPolicy, POOLS};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Instant;
use tollgate_admission::Closed;

/// Keeps the pool as long as its threads do.
pub(crate) struct PoolAtExit {
    pub(crate) core: Weak<Core>,
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) policy: ExitPolicy,
}

impl AtExit for PoolAtExit {
    fn rank(&self) -> u8 {
        POOLS
    }

    fn begin(&self) {
        if let Some(core) = self.core.upgrade() {
            core.close(Closed::Budget);
            core.request_exit();
        }
    }

    fn wait(&self, since: Instant) {
        let Some(core) = self.core.upgrade() else {
            // its thread has let go of it as the last thing it did
            let _ = self.supervisor.join();
            return;
        };
        if worker::role(core.id.get()) == Some(Role::Supervisor) {
            // a destructor exits the process while this thread ends the runtime: there is nobody else to do that
            return;
        }
        // a time that no clock will show is never up
        let until = self.policy.span().and_then(|span| since.checked_add(span));
        // the process exits from within a job: that one can't be waited for, nor can the thread that waits for it
        let own = worker::depth(core.id.get());
        match (has_ended(&core, own, until), own) {
            (true, None) => drop(self.supervisor.join()),
            (true, Some(_)) => {}
            (false, _) => {
                let failure = None::<PhaseError>;
                self.policy.report(&DeviceReport::take(
                    &core,
                    DevicePhaseTimes::default(),
                    failure,
                ));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.core.strong_count() == 0
    }
}

/// Waits until the pool has ended, or no more of its jobs are left than these. `false` when the time was up before.
///
/// By the process's own clock, without a timer's thread, and without thread-local storage that has a destructor: that of a
/// thread that exits the process is gone by now.
fn has_ended(core: &Core, jobs: Option<u64>, until: Option<Instant>) -> bool {
    let bell = Bell::new();
    let waker = Waker::from(Arc::new(Rings(bell.clone())));
    let mut place = None;
    loop {
        let seen = bell.rings();
        let over = core.poll_when(&mut place, waker.clone(), |inner| match jobs {
            None => inner.has_ended(),
            Some(jobs) => inner.book.counts().unfinished() <= jobs,
        });
        let late = !over
            && match until {
                None => bell.wait(seen) == seen,
                Some(until) => bell.wait_until(seen, until) == seen,
            };
        if over || late {
            if let Some(place) = place {
                core.forget_waiter(place);
            }
            return over;
        }
    }
}

/// Rings a bell when it is woken.
struct Rings(Bell);

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}
