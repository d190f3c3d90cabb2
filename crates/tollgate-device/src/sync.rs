//! The locks, atomics and threads of this crate, in one place. Those of the pool are loom's under `--cfg tollgate_loom`; those
//! of the host device, and of what a process has one of, never are: models are of the pool.

pub(crate) use tollgate_admission::engine::{Mutex, MutexGuard};

#[cfg(not(tollgate_loom))]
mod imp {
    pub(crate) use super::plain::Condvar;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    pub(crate) use std::thread::{Builder, JoinHandle};
    pub(crate) use std::thread_local;
}

#[cfg(tollgate_loom)]
mod imp {
    pub(crate) use super::instrumented::Condvar;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    pub(crate) use loom::thread::{Builder, JoinHandle};
    pub(crate) use loom::thread_local;
}

pub(crate) use imp::*;

pub(crate) mod plain {
    use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};
    use std::time::Duration;

    pub(crate) use std::sync::MutexGuard;

    /// A mutex without poisoning: what it guards is consistent at every unlock, since no user code runs under it.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A condition of what a mutex guards.
    #[derive(Debug)]
    pub(crate) struct Condvar(std::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(std::sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn wait_for<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            span: Duration,
        ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
            self.0.wait_timeout(guard, span).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// A lock around the bytes of a block. Kernels *do* run under it, and may panic: what they wrote until then is what a
    /// real device would have written.
    #[derive(Debug)]
    pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            RwLock(std::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(tollgate_loom)]
mod instrumented {
    use super::MutexGuard;
    use loom::sync::WaitTimeoutResult;
    use std::sync::PoisonError;
    use std::time::Duration;

    /// A condition of what a [`Mutex`](super::Mutex) guards.
    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn wait_for<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            span: Duration,
        ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
            self.0.wait_timeout(guard, span).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
