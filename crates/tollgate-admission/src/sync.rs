//! The one place that names a lock, an atomic or a thread, so that loom can stand in for all of them.

#[cfg(not(tollgate_loom))]
mod imp {
    use std::sync::PoisonError;

    pub(crate) use std::sync::MutexGuard;

    /// A mutex without poisoning: what it guards is consistent at every unlock, since no user code runs under it.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(std::sync::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(tollgate_loom)]
mod imp {
    pub(crate) use loom::sync::MutexGuard;

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

pub(crate) use imp::{Mutex, MutexGuard};
