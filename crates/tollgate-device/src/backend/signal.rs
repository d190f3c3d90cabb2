//! How a driver's own thread says that a stream has come to a point, without being able to do anything else.

use crate::sync::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A flag that a backend raises once a stream has come to a point: see [`Backend::notify`](super::Backend::notify).
///
/// It stands in for the callback that drivers have. A callback that calls the driver, or takes a lock under which
/// somebody else calls it, deadlocks the device; raising a flag can't. Whoever has something to do then waits at the
/// signal's [`Bell`], on a thread of its own.
///
/// Clones are the same signal.
#[derive(Clone, Debug)]
pub struct Signal(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    raised: AtomicBool,
    bell: Bell,
}

impl Signal {
    /// A signal that is not raised, and rings `bell` when it is.
    #[must_use]
    pub fn new(bell: &Bell) -> Self {
        Signal(Arc::new(Flag { raised: AtomicBool::new(false), bell: bell.clone() }))
    }

    /// Whether it is raised. This alone is no success: a driver may have raised it although the device failed, so the
    /// stream is queried before anybody is told.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        // pairs with `raise`: what was written before it is seen
        self.0.raised.load(Ordering::Acquire)
    }

    /// Raises it, for good. For backends; the second time does nothing. Never blocks for longer than a flag takes.
    pub fn raise(&self) {
        // pairs with `is_raised`; an acquire as well, so that all who raise it are in one order
        if !self.0.raised.swap(true, Ordering::AcqRel) {
            self.0.bell.ring();
        }
    }
}

/// Where a thread waits for signals: any number of them, at once.
///
/// A bell counts how often it was rung, so no ring is missed between a look at the signals and the wait:
///
/// ```
/// use tollgate_device::backend::{Bell, Signal};
///
/// let bell = Bell::new();
/// let signals = [Signal::new(&bell), Signal::new(&bell)];
/// let seen = bell.rings();
/// std::thread::spawn({
///     let signal = signals[1].clone();
///     move || signal.raise()
/// });
/// if !signals.iter().any(Signal::is_raised) {
///     bell.wait(seen);
/// }
/// assert!(signals[1].is_raised());
/// ```
///
/// Clones are the same bell.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Rope>);

#[derive(Debug)]
struct Rope {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    /// A bell that was never rung.
    #[must_use]
    pub fn new() -> Self {
        Bell(Arc::new(Rope { rings: Mutex::new(0), rung: Condvar::new() }))
    }

    /// How often it was rung.
    #[must_use]
    pub fn rings(&self) -> u64 {
        *self.0.rings.lock()
    }

    /// Rings it. Signals do; so may anybody who wants its thread to look up.
    pub fn ring(&self) {
        *self.0.rings.lock() += 1;
        self.0.rung.notify_all();
    }

    /// Waits until it was rung more often than `seen`, and says how often.
    pub fn wait(&self, seen: u64) -> u64 {
        let mut rings = self.0.rings.lock();
        while *rings == seen {
            rings = self.0.rung.wait(rings);
        }
        *rings
    }

    /// As [`wait`](Self::wait), but no longer than until `until`: what it says is `seen` when the time ran out.
    pub fn wait_until(&self, seen: u64, until: Instant) -> u64 {
        let mut rings = self.0.rings.lock();
        while *rings == seen {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            rings = self.0.rung.wait_for(rings, left).0;
        }
        *rings
    }
}

impl Default for Bell {
    fn default() -> Self {
        Bell::new()
    }
}
