//! What the driver knows of each thread: its stack of contexts, and whether it runs a host function.

use std::cell::{Cell, RefCell};

thread_local! {
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// The stack, the current one last. A thread that is on its way out has none.
fn contexts<T: Default>(with: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    CONTEXTS.try_with(|it| with(&mut it.borrow_mut())).unwrap_or_default()
}

pub(crate) fn current() -> Option<u64> {
    contexts(|it| it.last().copied())
}

pub(crate) fn push(context: u64) {
    contexts(|it| it.push(context));
}

pub(crate) fn pop() -> Option<u64> {
    contexts(Vec::pop)
}

/// In place of the current one. `None` takes that away.
pub(crate) fn set_current(context: Option<u64>) {
    contexts(|it| {
        it.pop();
        it.extend(context);
    });
}

pub(crate) fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

/// Calls `function` as a stream calls what is the user's: it may not call the driver.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.with(|it| it.set(true));
    function();
    IN_HOST_FUNCTION.with(|it| it.set(false));
}

/// The mode of this thread's stream captures from now on. Says which it was.
pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.try_with(|it| it.replace(mode)).unwrap_or(mode)
}
