//! Ctrl-c and SIGTERM: the first asks for a graceful end, the second does not ask.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::signals::Signals;

/// Whether somebody wants the run to end early.
#[derive(Debug)]
pub(crate) struct Interrupt {
    token: CancellationToken,
    by: Arc<OnceLock<&'static str>>,
}

/// What a shell expects of a process that a signal ended.
pub(crate) fn exit_code(signal: &str) -> u8 {
    if signal == "SIGTERM" { 143 } else { 130 }
}

impl Interrupt {
    /// Listens from now on. A second signal ends the process on the spot.
    ///
    /// `runtime` must never run blocking work, or signals wait for it.
    pub(crate) fn listen(runtime: &Handle) -> io::Result<Self> {
        let _entered = runtime.enter();
        let mut signals = Signals::listen()?;
        let it = Self { token: CancellationToken::new(), by: Arc::default() };
        let (token, by) = (it.token.clone(), Arc::clone(&it.by));
        runtime.spawn(async move {
            let _ = by.set(signals.next().await);
            token.cancel();
            std::process::exit(exit_code(signals.next().await).into());
        });
        Ok(it)
    }

    /// Cancelled by the first signal.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// What the signal is called, if there was one.
    pub(crate) fn by(&self) -> Option<&'static str> {
        self.by.get().copied()
    }
}
