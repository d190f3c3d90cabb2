//! What the tests of this crate share: devices, gates that kernels wait at, and drops that are counted.
#![allow(dead_code, unused_imports, reason = "no test program uses all of it")]

pub(crate) mod pools;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tollgate_device::backend::{Backend, Cause, DriverError, ErrorClass};
use tollgate_device::host::{HostBuilder, HostDevice, HostKernel, HostStream};

/// How long a test waits for what must happen before it gives up. No test passes by waiting this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A device that the calling thread is bound to.
pub(crate) fn device() -> HostDevice {
    bound(HostDevice::builder())
}

pub(crate) fn bound(builder: HostBuilder) -> HostDevice {
    let device = builder.build().unwrap();
    device.bind().unwrap();
    device
}

/// Something that kernels wait for.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<usize>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        self.arrive();
    }

    pub(crate) fn arrive(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.1.notify_all();
    }

    /// Waits until it was opened, or so many have arrived.
    pub(crate) fn wait(&self) {
        self.wait_for(1);
    }

    pub(crate) fn wait_for(&self, count: usize) {
        let lock = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (lock, timeout) = self
            .0
            .1
            .wait_timeout_while(lock, PATIENCE, |arrived| *arrived < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "waited in vain: {} of {count} have come", *lock);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }

    /// A kernel that waits for it.
    pub(crate) fn kernel(&self) -> HostKernel {
        let gate = self.clone();
        HostKernel::new("gate", (), move |()| gate.wait())
    }
}

/// Kernels that do this.
pub(crate) fn kernel(run: impl FnOnce() + Send + 'static) -> HostKernel {
    HostKernel::new("test", (), move |()| run())
}

/// For what would hang where a lock is held that should not be: fails instead.
pub(crate) fn without_hanging(run: impl FnOnce() + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        run();
        let _ = tell.send(());
    });
    match told.recv_timeout(PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        // it has returned or panicked
        _ => thread.join().unwrap(),
    }
}

/// Waits for what another thread is about to do, and has no event of its own.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not so");
        std::thread::yield_now();
    }
}

/// A log that kernels write.
#[derive(Clone, Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T: Send + Clone + 'static> Log<T> {
    pub(crate) fn new() -> Self {
        Log(Arc::default())
    }
    pub(crate) fn push(&self, entry: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
    pub(crate) fn entries(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    pub(crate) fn kernel(&self, entry: T) -> HostKernel {
        let log = self.clone();
        kernel(move || log.push(entry))
    }
}

/// Counts how many of its tokens are alive.
#[derive(Clone, Default)]
pub(crate) struct Alive(Arc<AtomicUsize>);

pub(crate) struct Token(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn token(&self) -> Token {
        self.0.fetch_add(1, Ordering::SeqCst);
        Token(Arc::clone(&self.0))
    }
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The cause of the error that there must be.
#[track_caller]
pub(crate) fn cause<T>(result: Result<T, DriverError>) -> Cause {
    match result {
        Ok(_) => panic!("the call worked"),
        Err(error) => error.cause().clone(),
    }
}

/// The message of the fault that there must be.
#[track_caller]
pub(crate) fn fault<T>(result: Result<T, DriverError>) -> String {
    match cause(result) {
        Cause::Sticky(fault) => fault.message.clone(),
        other => panic!("not a fault: {other}"),
    }
}
