//! The service under load, and the seam that lets the same load run over two implementations.

mod over_spawn_blocking;
mod over_tollgate;

pub(crate) use over_spawn_blocking::OverSpawnBlocking;
pub(crate) use over_tollgate::{OverTollgate, Policy, SetupError};

use serde::Serialize;

use crate::causes::with_causes;
use crate::corpus::{CorpusError, Digest};

/// A service that answers requests (read one file, then hash and compress it) and health probes.
pub(crate) trait Service: Send + Sync + 'static {
    fn request(&self, file: usize) -> impl Future<Output = Result<Digest, NotDone>> + Send;

    fn probe(&self) -> impl Future<Output = Result<(), NotDone>> + Send;
}

/// How a request that was not done ended.
#[derive(Debug)]
pub(crate) enum NotDone {
    /// Turned away before any work was spent on it.
    Refused(Refusal),
    /// Dropped before it had an answer.
    Cancelled,
    /// Something that should not happen.
    Failed(String),
}

/// Why a request was turned away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    QueueFull,
    Deadline,
    Closed,
}

/// Refused requests, by cause.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Refused {
    pub(crate) queue_full: u64,
    pub(crate) deadline: u64,
    pub(crate) closed: u64,
}

impl Refused {
    pub(crate) fn count(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::QueueFull => self.queue_full += 1,
            Refusal::Deadline => self.deadline += 1,
            Refusal::Closed => self.closed += 1,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.queue_full + self.deadline + self.closed
    }
}

impl From<CorpusError> for NotDone {
    fn from(error: CorpusError) -> Self {
        Self::Failed(with_causes(&error))
    }
}
