//! The lock that engines are built on, in one place, so that loom's can stand in for it under `--cfg tollgate_loom`.

#[cfg(not(tollgate_loom))]
mod imp {
    use std::sync::PoisonError;

    pub use std::sync::MutexGuard;

    /// A mutex without poisoning: what it guards is consistent at every unlock, since no user code runs under it.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A mutex around `value`, unlocked.
        pub fn new(value: T) -> Self {
            Mutex(std::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(tollgate_loom)]
mod imp {
    pub use loom::sync::MutexGuard;

    /// A mutex without poisoning, instrumented by loom.
    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A mutex around `value`, unlocked.
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

pub use imp::{Mutex, MutexGuard};
