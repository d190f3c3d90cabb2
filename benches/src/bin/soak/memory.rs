//! What is live, and what is resident.

use std::fmt;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use tollgate_admission::ThreadTimer;
use tollgate_admission::time::{OnTime, TimeSource as _};

use crate::ALLOCATOR;

/// How long threads may take to end that have nothing to do any more.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes that were allocated and not freed, and in how many pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) bytes: usize,
    pub(crate) pieces: usize,
}

impl Live {
    pub(crate) fn now() -> Self {
        let stats = ALLOCATOR.stats();
        Live {
            bytes: stats.bytes_allocated.wrapping_sub(stats.bytes_deallocated),
            pieces: stats.allocations.wrapping_sub(stats.deallocations),
        }
    }

    /// What is live once the last threads have ended, which nobody tells: they have left their pool, and free what is
    /// their own on their way out of the system's hands. Waits until it is `before` again; when `warming`, it need not
    /// become so, and it is enough that it changes no more for a while.
    pub(crate) fn wait_for(before: Live, warming: bool) -> Live {
        /// Looks without a change.
        const CALM: u32 = 2_000;
        let start = Instant::now();
        let (mut last, mut same) = (Live::now(), 0);
        while last != before && start.elapsed() < PATIENCE && !(warming && same >= CALM) {
            std::thread::yield_now();
            if same % 500 == 499 {
                clear_shared_timer();
            }
            let now = Live::now();
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    }
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} pieces", self.bytes, self.pieces)
    }
}

/// Has the process's timer forget what it was asked for by those who are gone, and make room for more calls than it is ever
/// asked for at once.
///
/// It forgets by itself, but only once there are some tens of such calls, or at their time: until then each keeps the room
/// that its target took, which for the pool of a dedicated thread is more than a KiB.
pub(crate) fn clear_shared_timer() {
    struct Call(mpsc::Sender<()>);
    impl OnTime for Call {
        fn on_time(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }
    /// Several times what it keeps without a look at who is gone.
    const CALLS: usize = 512;
    let (sender, made) = mpsc::channel();
    let timer = ThreadTimer::shared();
    if timer.prepare().is_err() {
        // without its thread the rounds say what is wrong
        return;
    }
    let target: Arc<dyn OnTime> = Arc::new(Call(sender));
    // all at once
    let at = timer.now() + Duration::from_millis(2);
    for _ in 0..CALLS {
        timer.call_at(at, Arc::downgrade(&target) as Weak<dyn OnTime>);
    }
    for _ in 0..CALLS {
        let _ = made.recv_timeout(PATIENCE);
    }
}

/// Resident bytes, where the system tells.
pub(crate) fn resident() -> Option<u64> {
    status("VmRSS:")
}

/// The most that were resident so far.
pub(crate) fn peak_resident() -> Option<u64> {
    status("VmHWM:")
}

fn status(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let rest = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
