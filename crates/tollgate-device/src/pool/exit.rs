//! A pool at the exit of the process.

use super::core::Core;
use super::shutdown::{DevicePhaseTimes, DeviceReport, PhaseError};
use super::supervisor::Supervisor;
use super::worker::{self, Role};
use crate::exit::{AtExit, ExitPolicy, POOLS};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use tollgate_admission::{Closed, Deadline, Sleep};

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

    fn wait(&self) {
        let Some(core) = self.core.upgrade() else {
            // its thread has let go of it as the last thing it did
            let _ = self.supervisor.join();
            return;
        };
        if worker::role(core.id.get()) == Some(Role::Supervisor) {
            // a destructor exits the process while this thread ends the runtime: there is nobody else to do that
            return;
        }
        let deadline = self.policy.span().map_or(Deadline::never(), Deadline::after);
        // the process exits from within a job: that one can't be waited for, nor can the thread that waits for it
        let own = worker::depth(core.id.get());
        let ended = futures_lite::future::block_on(async {
            let mut place = None;
            let mut sleep = pin!(Sleep::until(Arc::clone(&core.time), deadline));
            let ended = poll_fn(|cx| {
                let over = core.poll_when(&mut place, cx.waker().clone(), |inner| match own {
                    None => inner.has_ended(),
                    Some(jobs) => inner.book.counts().unfinished() <= jobs,
                });
                match over {
                    true => Poll::Ready(true),
                    false => Pin::new(&mut sleep).poll(cx).map(|()| false),
                }
            })
            .await;
            if let Some(place) = place {
                core.forget_waiter(place);
            }
            ended
        });
        match (ended, own) {
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
        self.core.upgrade().is_none_or(|core| core.look(|inner| inner.has_ended()))
    }
}
