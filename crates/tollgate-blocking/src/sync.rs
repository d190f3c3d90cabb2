//! The one place that names threads and atomics, so that loom's can stand in for them under `--cfg tollgate_loom`.

pub(crate) use tollgate_admission::engine::{Mutex, MutexGuard};

#[cfg(not(tollgate_loom))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::thread::{Thread, current, park, yield_now};
    pub(crate) use std::thread_local;
}

#[cfg(tollgate_loom)]
mod imp {
    pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::thread::{Thread, current, park, yield_now};
    pub(crate) use loom::thread_local;
}

pub(crate) use imp::*;
