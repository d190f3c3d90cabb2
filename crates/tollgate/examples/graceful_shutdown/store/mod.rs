//! A log-structured store over tollgate.
//!
//! Its owners, from which follows the order in which it ends:
//!
//! ```text
//! store             the pool with its threads, the scrubber, the drain lease
//!   writes          appends and syncs, as jobs of the pool
//!   clients         tasks that write, and wait until their writes last
//! ```
//!
//! When `store` is shut down, appends and syncs that have not started are refused, and those that run go to their end.
//! Then `writes` has drained, so nothing is appended any more, and the last flush begins: it was promised by a drain
//! lease while the store was open. It makes the rest last, which ends what the clients wait for, and marks the log.

pub(crate) mod disk;
pub(crate) mod log;
pub(crate) mod record;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tollgate::admission::{LeaseError, ScopeClosed, UnknownLane};
use tollgate::blocking::{BuildError, DedicatedError};
use tollgate::prelude::*;

use log::{Log, LogError};
use record::Record;

/// What one of the store's jobs is called in reports.
pub(crate) const APPEND: &str = "append";
pub(crate) const SYNC: &str = "sync";
pub(crate) const LAST_FLUSH: &str = "last flush";
pub(crate) const SCRUBBER: &str = "scrubber";

/// Why the store could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Pool(#[from] BuildError),
    #[error(transparent)]
    Lane(#[from] UnknownLane),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Scrubber(#[from] DedicatedError),
    #[error(transparent)]
    Scope(#[from] ScopeClosed),
}

/// Why a write was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    /// Nothing of it is in the log.
    #[error("not written: {0}")]
    NotWritten(RunError),
    /// It may be in the log, and may be gone after a crash.
    #[error("written perhaps, but not known to last")]
    Unknown(#[source] Option<Cause>),
}

/// What kept a write from being known to last.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Log(#[from] LogError),
}

impl PutError {
    /// Too many wait at this moment. Another time it may be admitted.
    pub(crate) fn is_busy(&self) -> bool {
        let PutError::NotWritten(RunError::Refused(refused)) = self else { return false };
        matches!(refused, AcquireError::QueueFull { .. })
    }
}

/// How its shutdown ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) report: ScopeReport,
    /// Whether everything lasts and the log is marked.
    pub(crate) flush: Result<(), FlushError>,
    /// Up to where the scrubber read the log; `None` if it never began or did not end.
    pub(crate) scrubbed: Option<Result<u64, Cause>>,
}

/// Why there was no last flush.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlushError {
    #[error("the last flush failed")]
    Failed(#[source] Cause),
    #[error("the last flush had not ended by the deadline")]
    Late,
}

#[derive(Debug)]
pub(crate) struct Store {
    scope: Scope,
    writes: Scope,
    clients: Scope,
    log: Arc<Log>,
    /// For what belongs to the store as a whole.
    storage: Executor,
    sync: Executor,
    writer: Writer,
    lease: DrainLease,
    scrubber: Ticket<Result<u64, LogError>>,
}

impl Store {
    /// All of it belongs to `scope`. `runtime` owns the threads; `appends` may run at once and `max_waiting` wait for
    /// their turn.
    pub(crate) fn start(
        log: Log,
        scope: &Scope,
        runtime: &Handle,
        appends: u64,
        max_waiting: usize,
    ) -> Result<Self, StartError> {
        let log = Arc::new(log);
        let scope = scope.clone();
        let writes = scope.child("writes")?;
        let clients = scope.child("clients")?;
        let pool = BlockingPool::builder(runtime.clone())
            .scope(&scope)
            .thread_name("store")
            .capacity(appends + 1)
            .lane(LanePolicy::new("storage").limit(appends).max_waiting(max_waiting))
            // No sync waits behind appends, or they would all wait for it.
            .lane(LanePolicy::new("sync").reserved(1).limit(1))
            .build()?;
        let (storage, sync) = (pool.executor("storage")?, pool.executor("sync")?);
        let writer = Writer {
            storage: storage.scoped(&writes),
            sync: sync.scoped(&writes),
            log: Arc::clone(&log),
            leader: Arc::default(),
        };
        // Taken while the store is open: later nobody gets one. Whatever deadline a shutdown sets holds for it too.
        let lease = scope.drain_lease(1, Deadline::never())?;
        let scrubbed = Arc::clone(&log);
        let scrubber = Dedicated::new(runtime.clone(), SCRUBBER)
            .scope(&scope)
            .spawn_with(move |job| scrub(&scrubbed, job))?;
        Ok(Store { scope, writes, clients, log, storage, sync, writer, lease, scrubber })
    }

    /// The scope of the tasks that write.
    pub(crate) fn clients(&self) -> &Scope {
        &self.clients
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The lane of the appends, for other work of the store.
    pub(crate) fn storage(&self) -> &Executor {
        &self.storage
    }

    /// Ends everything, by the deadline if it can be. It can't always: nothing stops a closure from outside.
    pub(crate) async fn shutdown(self, deadline: Deadline) -> Ended {
        let Store { scope, writes, log, sync, lease, scrubber, .. } = self;
        let flush = tokio::spawn(async move {
            writes.drained().await;
            let finish = Arc::clone(&log);
            let result = sync.job(LAST_FLUSH).lease(&lease).run(move || finish.finish()).await;
            // If it failed, whoever still waits for it has to be told, or would hold up the rest.
            log.give_up();
            match result {
                Ok(result) => result.map_err(Cause::from),
                Err(error) => Err(error.into()),
            }
        });
        let report = scope.shutdown(deadline).await;
        // When the scope is closed, the flush is over and its task about to say so.
        let flush = if report.complete || flush.is_finished() {
            flush.await.map_or(Err(FlushError::Late), |result| result.map_err(FlushError::Failed))
        } else {
            Err(FlushError::Late)
        };
        let scrubbed = match scrubber.is_done() {
            true => match scrubber.await {
                Ok(result) => Some(result.map_err(Cause::from)),
                // The store ended before the thread had started.
                Err(error) if error.never_ran() => None,
                Err(error) => Some(Err(error.into())),
            },
            false => None,
        };
        Ended { report, flush, scrubbed }
    }
}

/// Reads back what was synced, as it comes, until the store ends.
fn scrub(log: &Log, job: &JobContext<'_>) -> Result<u64, LogError> {
    let (token, mut synced) = (job.token(), log.synced());
    let runtime = Handle::current();
    let mut checked = log.opened_at();
    loop {
        let more = runtime.block_on(async {
            tokio::select! {
                biased;
                () = token.cancelled() => false,
                more = synced.wait_for(|synced| synced.to > checked || synced.over) => {
                    more.is_ok_and(|synced| synced.to > checked)
                }
            }
        });
        if !more {
            return Ok(checked);
        }
        checked = log.check(checked)?;
    }
}

/// Writes, under the store's scope.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    storage: Executor,
    sync: Executor,
    log: Arc<Log>,
    /// Held by the one who syncs for all who have appended.
    leader: Arc<Mutex<()>>,
}

impl Writer {
    /// See [`Log::opened_at`].
    pub(crate) fn opened_at(&self) -> u64 {
        self.log.opened_at()
    }

    /// Writes a value, and returns once it lasts.
    pub(crate) async fn put(&self, key: String, value: Vec<u8>) -> Result<(), PutError> {
        let log = Arc::clone(&self.log);
        let append = move || log.append(&Record::Put { key, value });
        let end = match self.storage.job(APPEND).run(append).await {
            Ok(appended) => appended.map_err(unknown)?,
            Err(error) if error.never_ran() => return Err(PutError::NotWritten(error)),
            Err(error) => return Err(unknown(error)),
        };
        self.make_last(end).await
    }

    async fn make_last(&self, end: u64) -> Result<(), PutError> {
        let mut synced = self.log.synced();
        let leader = self.leader.lock().await;
        // Whoever led before may have synced for this one too.
        if synced.borrow().to < end {
            let log = Arc::clone(&self.log);
            match self.sync.job(SYNC).run(move || log.sync()).await {
                Ok(result) => result.map_err(unknown)?,
                // The store ends, and the last flush syncs for all who have appended.
                Err(RunError::Refused(AcquireError::Closed { what: Closed::Scope, .. })) => {}
                Err(error) => return Err(unknown(error)),
            }
        }
        drop(leader);
        match synced.wait_for(|synced| synced.to >= end || synced.over).await {
            Ok(synced) if synced.to >= end => Ok(()),
            _ => Err(PutError::Unknown(None)),
        }
    }
}

fn unknown(cause: impl Into<Cause>) -> PutError {
    PutError::Unknown(Some(cause.into()))
}
