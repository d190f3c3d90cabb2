//! What is done about devices when the process exits.
//!
//! A driver tears itself down while the process exits. Work that still runs then crashes, or hangs the exit. So whatever
//! uses a driver registers here once the driver is initialised, and is ended before the driver's turn comes.

mod hook;

use std::any::TypeId;
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::sync::plain::Mutex;

/// How long the exit of the process waits for a device's work to end, and who hears of what had not.
///
/// When the process exits (by a return from `main` or [`std::process::exit`], not by a signal or an abort), a pool accepts
/// nothing more, async jobs are dropped at their next await, and what runs synchronously is waited for. Pools end before
/// devices, and other threads of the process still run. A job that itself exits the process is not waited for.
///
/// ```
/// use std::time::Duration;
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::{DevicePool, DeviceProfile, ExitPolicy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = ExitPolicy::within(Duration::from_secs(10))
///     .on_leak(|left| eprintln!("gave up waiting for the device: {left}"));
/// let device = HostDevice::builder().build()?;
/// let pool = DevicePool::builder(device, DeviceProfile::new(4, 3)).exit(policy).build()?;
/// # drop(pool);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ExitPolicy {
    within: Option<Duration>,
    leak: Option<Arc<Leak>>,
}

type Leak = dyn Fn(&str) + Send + Sync;

impl ExitPolicy {
    /// Waits for as long as it takes. The default: nothing of the work then runs while the driver tears itself down.
    #[must_use]
    pub fn wait() -> Self {
        ExitPolicy::default()
    }

    /// Waits for so long, by the clock of the process, and then lets it exit with what is left still running; that is
    /// reported, on the standard error stream unless [`on_leak`](Self::on_leak) says otherwise. A span that no clock will show
    /// has no end.
    #[must_use]
    pub fn within(span: Duration) -> Self {
        ExitPolicy { within: Some(span), leak: None }
    }

    /// Is called with a readable report of what is left when the time is up. The process is about to end: thread-local
    /// storage of the main thread may be gone. A panic in it is contained.
    #[must_use]
    pub fn on_leak(mut self, f: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.leak = Some(Arc::new(f));
        self
    }

    pub(crate) fn span(&self) -> Option<Duration> {
        self.within
    }

    pub(crate) fn report(&self, left: &dyn fmt::Display) {
        let text = left.to_string();
        match &self.leak {
            Some(leak) => leak(&text),
            None => eprintln!("still running at the exit of the process: {text}"),
        }
    }
}

impl fmt::Debug for ExitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitPolicy").field("within", &self.within).finish_non_exhaustive()
    }
}

/// Something that has to end before the process does.
pub(crate) trait AtExit: Send + Sync {
    /// In which order: all of a lower number have ended before the next are begun with.
    fn rank(&self) -> u8;

    /// Begins with its end. Does not wait.
    fn begin(&self);

    /// Waits for its end, as its policy says. It was begun with `since` then.
    fn wait(&self, since: Instant);

    /// Nothing is left of it. Asked under a lock: it drops nothing.
    fn is_over(&self) -> bool;
}

/// Pools use devices.
pub(crate) const POOLS: u8 = 0;
pub(crate) const DEVICES: u8 = 1;

#[derive(Default)]
struct Registry {
    listed: Vec<Arc<dyn AtExit>>,
    /// The kinds of drivers that a hook was registered for.
    drivers: HashSet<TypeId>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// Lists something that uses the driver `D`, which is initialised: what is registered with the system later is called
/// earlier.
pub(crate) fn register<D: 'static>(at_exit: Arc<dyn AtExit>) {
    let mut registry = REGISTRY.lock();
    // in proportion to what there is, however many come and go. Policies have captures of users: not under the lock
    let over: Vec<_> = registry.listed.extract_if(.., |it| it.is_over()).collect();
    registry.listed.push(at_exit);
    if registry.drivers.insert(TypeId::of::<D>()) && !hook::register(run) {
        // the system takes no more: the hook of another driver, if there is one, does it
        registry.drivers.remove(&TypeId::of::<D>());
    }
    drop(registry);
    drop(over);
}

/// Ends all that is listed. Called by the system, once per driver; the first call does it.
fn run() {
    // not under the lock while it waits: whoever registers now is too late, and not to be held up
    let mut listed = std::mem::take(&mut REGISTRY.lock().listed);
    listed.sort_by_key(|it| it.rank());
    for rank in listed.chunk_by(|a, b| a.rank() == b.rank()) {
        let all = |f: &dyn Fn(&dyn AtExit)| {
            for it in rank {
                // the system can't take a panic
                let _ = catch_unwind(AssertUnwindSafe(|| f(&**it))).map_err(std::mem::forget);
            }
        };
        // one time for all, so that those who let go do not add up
        let since = Instant::now();
        all(&|it| it.begin());
        all(&|it| it.wait(since));
    }
    // their policies have captures of users, whose destructors may panic
    std::mem::forget(listed);
}
