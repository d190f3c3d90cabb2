//! Ctrl-c: the first asks for a graceful end, the second does not ask.

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// What a shell expects of a process that ctrl-c ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Returns a token that the first ctrl-c cancels; a second one ends the process on the spot.
///
/// `runtime` must never run blocking work, or ctrl-c waits for it.
pub(crate) fn listen(runtime: &Handle) -> CancellationToken {
    let interrupt = CancellationToken::new();
    let token = interrupt.clone();
    runtime.spawn(async move {
        // Where the signal cannot be watched, it keeps its default: it ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            return;
        }
        eprintln!("\nctrl-c: shutting down gracefully; press it again to exit at once");
        token.cancel();
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(EXIT_CODE.into());
        }
    });
    interrupt
}
