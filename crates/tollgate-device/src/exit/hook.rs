//! The system's list of what to call when the process exits. The only foreign call of this crate.
#![expect(unsafe_code, reason = "the standard library has no hook for the exit of the process")]

use std::sync::OnceLock;

static CALL: OnceLock<fn()> = OnceLock::new();

/// Has `f` called when the process exits, before whatever was registered earlier. Always the same `f`. `false` when the
/// system refuses.
pub(super) fn register(f: fn()) -> bool {
    let _ = CALL.set(f);
    // SAFETY: `called` is a function of the C calling convention without arguments that lives as long as the process does,
    // and does not unwind: `f` contains what panics, and a panic that got through would abort.
    let refused = unsafe { libc::atexit(called) };
    refused == 0
}

extern "C" fn called() {
    if let Some(f) = CALL.get() {
        f();
    }
}
