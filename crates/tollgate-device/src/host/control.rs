use super::core::Core;
use super::faults::Failure;
use super::stats::HostStats;
use crate::backend::{Fault, Operation};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The tester's end of a host device: what goes on in it, what is to go wrong, and whether it has ended.
///
/// It is no driver call: any thread may use it, also inside a kernel, also when the device has failed. It does not keep the
/// device. Clones are the same.
#[derive(Clone)]
pub struct HostControl {
    core: Arc<Core>,
}

impl HostControl {
    pub(super) fn new(core: Arc<Core>) -> Self {
        HostControl { core }
    }

    /// A consistent copy of all figures.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        self.core.stats()
    }

    /// The next call of the operation fails, whatever the plan says of it.
    pub fn fail_next(&self, operation: Operation, failure: Failure) {
        self.core.fail_next(operation, failure);
    }

    /// The stream with this number does nothing more until it is released; what it is doing it ends. One that does not
    /// exist yet will begin that way.
    pub fn stall(&self, stream: u64) {
        self.core.set_stalled(stream, true);
    }

    /// The stream goes on.
    pub fn release(&self, stream: u64) {
        self.core.set_stalled(stream, false);
    }

    /// The device has a sticky fault from now on, by no call's doing. What has not begun is dropped.
    pub fn fault(&self, message: impl Into<String>) {
        let fault = Fault { operation: None, stream: None, message: message.into() };
        self.core.fail(self.core.peek(), fault);
    }

    /// The device is gone from now on. What has not begun is dropped.
    pub fn lose(&self) {
        self.core.lose(self.core.peek());
    }

    /// Whether the threads of the device have ended: it was dropped, and what it had been given is done.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.core.stats().engines == 0
    }

    /// Blocks the calling thread until the threads of the device have ended, and says whether they have; `false` when the
    /// time was up before. On one of those threads themselves, in a kernel, it is `false` at once.
    ///
    /// They end when the last [`HostDevice`](super::HostDevice) is dropped: a test that waits in vain still has one.
    #[must_use]
    pub fn wait_ended(&self, within: Duration) -> bool {
        self.core.wait_ended(within)
    }
}

impl fmt::Debug for HostControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostControl").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
