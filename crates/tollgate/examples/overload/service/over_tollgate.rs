//! STUB until the crates have their interface.
use super::{NotDone, Refusal, Service};
use crate::corpus::{Corpus, Digest};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::*;
use std::time::Duration;
use tokio::sync::Semaphore;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {}

#[derive(Debug, Serialize, Clone)]
pub(crate) struct Policy {
    pub(crate) in_flight: u64,
    pub(crate) max_waiting: usize,
}
impl Policy {
    pub(crate) fn for_cores(n: usize) -> Self {
        Self { in_flight: n as u64 + 2, max_waiting: 1000 }
    }
    pub(crate) fn closed_loop_callers(&self) -> usize {
        2 * self.in_flight as usize
    }
    pub(crate) fn bound_queue(&mut self, rate: f64) {
        self.max_waiting = (rate * 0.05) as usize;
    }
}
impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}
#[derive(Debug)]
pub(crate) struct OverTollgate {
    corpus: Arc<Corpus>,
    sem: Semaphore,
    cpu: Arc<Semaphore>,
    waiting: AtomicUsize,
    max: AtomicUsize,
}
impl OverTollgate {
    pub(crate) fn start(
        corpus: Arc<Corpus>,
        p: &Policy,
        _h: &tokio::runtime::Handle,
    ) -> Result<Self, SetupError> {
        Ok(Self {
            corpus,
            sem: Semaphore::new(p.in_flight as usize),
            cpu: Arc::new(Semaphore::new(2)),
            waiting: AtomicUsize::new(0),
            max: AtomicUsize::new(1000),
        })
    }
    pub(crate) fn apply(&self, p: &Policy) -> Result<(), SetupError> {
        self.max.store(p.max_waiting, Ordering::SeqCst);
        Ok(())
    }
    pub(crate) async fn shut_down(&self) -> (bool, String) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        (true, "stub".into())
    }
}
impl Service for OverTollgate {
    async fn request(&self, file: usize) -> Result<Digest, NotDone> {
        if self.waiting.load(Ordering::SeqCst) >= self.max.load(Ordering::SeqCst) {
            return Err(NotDone::Refused(Refusal::QueueFull));
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _p = self.sem.acquire().await.unwrap();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let corpus = Arc::clone(&self.corpus);
        let bytes = tokio::task::spawn_blocking(move || corpus.read(file)).await??;
        let cpu = Arc::clone(&self.cpu).acquire_owned().await.unwrap();
        Ok(tokio::task::spawn_blocking(move || {
            let _c = cpu;
            Digest::of(&bytes)
        })
        .await?)
    }
    async fn probe(&self) -> Result<(), NotDone> {
        Ok(tokio::task::spawn_blocking(|| ()).await?)
    }
}
