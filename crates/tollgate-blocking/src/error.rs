use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate_admission::{AcquireError, JobId};

/// Why a pool could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Capacity or lanes don't fit together.
    #[error(transparent)]
    Budget(#[from] tollgate_admission::BuildError),
    /// The thread that keeps the pool's deadlines could not be started.
    #[error("the pool's timer could not be started")]
    Timer(#[from] tollgate_admission::NoTimer),
    /// The scope that the pool was to belong to is not open.
    #[error(transparent)]
    Scope(#[from] tollgate_admission::ScopeClosed),
    /// A thread name with a zero byte, which no system accepts.
    #[error("the thread name {name:?} holds a zero byte")]
    ThreadName {
        /// The name.
        name: String,
    },
}

/// Why a job has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It was not admitted, and never started.
    #[error(transparent)]
    Refused(#[from] AcquireError),
    /// It was submitted from inside a job of the same pool, needed a permit of its own, and could not have one without
    /// waiting: waiting there could deadlock the pool. It never started.
    #[error("lane `{lane}` has no permit free, and a job may not wait for its own pool")]
    Busy {
        /// The lane.
        lane: Arc<str>,
    },
    /// The system refused a thread, and the pool has none. It never started.
    #[error("no thread could be started for the job, and the pool has none: {source}")]
    NoThread {
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// It was cancelled before it started, and never will.
    #[error("job {id} was cancelled before it started")]
    Cancelled {
        /// The job.
        id: JobId,
    },
    /// Its time ran out after it had started. The closure was asked to stop and *is still running*, under its permit;
    /// what it returns will be dropped.
    #[error("job {id} is still running after {ran:?}, which is past its deadline")]
    TimedOut {
        /// The job.
        id: JobId,
        /// How long it had run then.
        ran: Duration,
    },
    /// The closure panicked.
    #[error("the job panicked: {0}")]
    Panicked(Panic),
}

impl RunError {
    /// Whether the closure never started. It was dropped then.
    #[must_use]
    pub fn never_ran(&self) -> bool {
        !matches!(self, RunError::TimedOut { .. } | RunError::Panicked(_))
    }
}

/// Why a job was not accepted. Its closure was dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// It was not admitted.
    #[error(transparent)]
    Refused(#[from] AcquireError),
    /// Submitted from inside a job of the same pool, it needed a permit of its own and could not have one without
    /// waiting.
    #[error("lane `{lane}` has no permit free, and a job may not wait for its own pool")]
    Busy {
        /// The lane.
        lane: Arc<str>,
    },
}

impl From<SubmitError> for RunError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Refused(error) => RunError::Refused(error),
            SubmitError::Busy { lane } => RunError::Busy { lane },
        }
    }
}

/// Why there is no dedicated thread. Its closure was dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DedicatedError {
    /// Its name or its scope do not allow it.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its scope or its runtime ended meanwhile.
    #[error(transparent)]
    Refused(#[from] SubmitError),
}

/// What a closure panicked with.
pub struct Panic {
    /// Behind a lock only to be `Sync`, so that errors can be sent and shared; it is never contended.
    payload: std::sync::Mutex<Box<dyn Any + Send>>,
    message: Option<Box<str>>,
}

impl Panic {
    /// What [`catch_unwind`](std::panic::catch_unwind) caught.
    #[must_use]
    pub fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = match payload.downcast_ref::<&'static str>() {
            Some(text) => Some((*text).into()),
            None => payload.downcast_ref::<String>().map(|text| text.as_str().into()),
        };
        Panic { payload: std::sync::Mutex::new(payload), message }
    }

    /// The message, when it panicked with text, as `panic!` does.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// What it panicked with.
    #[must_use]
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Goes on panicking with it on this thread.
    pub fn resume(self) -> ! {
        std::panic::resume_unwind(self.into_payload())
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Panic").field("message", &self.message).finish_non_exhaustive()
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message().unwrap_or("with a value that is not text"))
    }
}

/// Why a closure should stop, from [`JobContext::checkpoint`](crate::JobContext::checkpoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cancelled {
    /// Somebody asked for it: its ticket was cancelled, or whoever waited for it left.
    #[error("the job was asked to stop")]
    Requested,
    /// Its deadline passed.
    #[error("the job's deadline passed")]
    Deadline,
}
