//! Which device the calling thread is bound to.

use std::cell::Cell;

/// What a thread is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// Of the device, in this process.
    pub(super) device: u64,
    pub(super) ordinal: u32,
    /// How often the device had been reset.
    pub(super) generation: u64,
}

thread_local! {
    static BOUND: Cell<Option<Binding>> = const { Cell::new(None) };
    static DRIVER: Cell<bool> = const { Cell::new(false) };
}

/// A thread that ends, and runs destructors, is bound to nothing.
pub(super) fn bound() -> Option<Binding> {
    BOUND.try_with(Cell::get).ok().flatten()
}

pub(super) fn bind(binding: Option<Binding>) {
    let _ = BOUND.try_with(|bound| bound.set(binding));
}

/// The calling thread is a driver's own from now on.
pub(super) fn become_driver() {
    let _ = DRIVER.try_with(|driver| driver.set(true));
}

pub(super) fn is_driver() -> bool {
    DRIVER.try_with(Cell::get).unwrap_or(false)
}
