//! Ctrl-c and SIGTERM.

use std::io;

/// What ends the process in good order. From when it is made, no signal is missed.
#[derive(Debug)]
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.interrupt.recv() => "ctrl-c",
            Some(()) = self.terminate.recv() => "SIGTERM",
            // They don't end while their runtime goes on.
            else => std::future::pending().await,
        }
    }
}

#[cfg(windows)]
impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Signals { interrupt: tokio::signal::windows::ctrl_c()? })
    }

    /// The name of the next one.
    pub(crate) async fn next(&mut self) -> &'static str {
        match self.interrupt.recv().await {
            Some(()) => "ctrl-c",
            // It doesn't end while its runtime goes on.
            None => std::future::pending().await,
        }
    }
}
