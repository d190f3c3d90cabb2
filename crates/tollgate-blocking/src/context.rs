use crate::cell::Header;
use crate::core::Core;
use crate::error::Cancelled;
use std::fmt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tollgate_admission::engine::{Engine, Tick};
use tollgate_admission::{Deadline, JobId, JobKind};

/// What a closure may know about the job that it is, and whether it should go on.
///
/// ```
/// # let rt = tokio::runtime::Runtime::new().unwrap();
/// # let pool = tollgate_blocking::BlockingPool::builder(rt.handle().clone())
/// #     .capacity(1)
/// #     .lane(tollgate_blocking::LanePolicy::new("cpu"))
/// #     .build()
/// #     .unwrap();
/// # let cpu = pool.executor("cpu").unwrap();
/// # rt.block_on(async move {
/// let sum = cpu
///     .job("sum")
///     .run_with(|job| {
///         let mut sum = 0_u64;
///         for n in 0..1_000_000 {
///             if n % 4096 == 0 {
///                 job.checkpoint()?;
///             }
///             sum += n;
///         }
///         Ok::<_, tollgate_blocking::Cancelled>(sum)
///     })
///     .await;
/// assert_eq!(sum.unwrap(), Ok(499_999_500_000));
/// # });
/// ```
pub struct JobContext<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) header: &'a Header,
}

impl JobContext<'_> {
    /// The job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.header.id()
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.header.name.as_str()
    }

    /// The job's kind.
    #[must_use]
    pub fn kind(&self) -> JobKind {
        self.header.kind
    }

    /// The lane whose permit it runs under.
    #[must_use]
    pub fn lane(&self) -> &str {
        self.core.lane_name(self.header.lane())
    }

    /// When its time is up: the earliest of the caller's deadline, that of its scope and its lease, and the end of the
    /// lane's task timeout. It may become earlier while the job runs.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.core.deadline(self.header.deadline())
    }

    /// Whether somebody asked it to stop, or its time was up and it was told so. Cheap: one atomic load.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.header.cancel.is_requested()
    }

    /// A token that is cancelled when the job is asked to stop, to hand to code that takes one.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.header.cancel.token()
    }

    /// Whether to go on. Reads the clock when the job has a deadline.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] when the job was asked to stop or its deadline has passed.
    pub fn checkpoint(&self) -> Result<(), Cancelled> {
        let deadline = self.header.deadline();
        if deadline != Tick::NEVER && self.core.now() >= deadline {
            return Err(Cancelled::Deadline);
        }
        if self.is_cancelled() { Err(Cancelled::Requested) } else { Ok(()) }
    }
}

impl fmt::Debug for JobContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("id", &self.id())
            .field("name", &self.header.name)
            .field("kind", &self.header.kind)
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}
