//! The service as it is often written: every blocking call goes to `spawn_blocking`.

use std::sync::Arc;

use tokio::task::{JoinError, spawn_blocking};

use super::{NotDone, Service};
use crate::corpus::{Corpus, Digest};

/// Must be polled on a tokio runtime, whose blocking threads it uses.
#[derive(Debug)]
pub(crate) struct OverSpawnBlocking {
    corpus: Arc<Corpus>,
}

impl OverSpawnBlocking {
    pub(crate) fn new(corpus: Arc<Corpus>) -> Self {
        Self { corpus }
    }
}

impl Service for OverSpawnBlocking {
    async fn request(&self, file: usize) -> Result<Digest, NotDone> {
        let corpus = Arc::clone(&self.corpus);
        let bytes = spawn_blocking(move || corpus.read(file)).await??;
        Ok(spawn_blocking(move || Digest::of(&bytes)).await?)
    }

    async fn probe(&self) -> Result<(), NotDone> {
        Ok(spawn_blocking(|| ()).await?)
    }
}

impl From<JoinError> for NotDone {
    fn from(error: JoinError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { Self::Failed(error.to_string()) }
    }
}
