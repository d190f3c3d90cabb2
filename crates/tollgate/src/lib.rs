//! Admission control and bounded execution for synchronous work in async services, and for work on devices.
//!
//! Bare `spawn_blocking` has an unbounded queue, no deadlines, no visibility, and a shutdown that hangs. tollgate decides
//! which work may start, runs it on threads of its own, and proves at shutdown what has stopped and what has not.
//!
//! One sentence holds it together: **a permit is taken before work starts, travels with the work, and comes back only
//! when the work has really ended**, whoever stopped waiting for it.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let rt = tokio::runtime::Runtime::new()?;
//! # rt.block_on(async {
//! let pool = BlockingPool::builder(tokio::runtime::Handle::current())
//!     .capacity(4)
//!     .lane(LanePolicy::new("storage").limit(3).max_waiting(64).queue_timeout(Duration::from_millis(250)))
//!     .lane(LanePolicy::new("probes").reserved(1).kept(1))
//!     .build()?;
//!
//! let storage = pool.executor("storage")?;
//! match storage.job("read manifest").run(|| std::fs::read_to_string("Cargo.toml")).await {
//!     Ok(text) => println!("{} bytes", text?.len()),
//!     Err(RunError::Refused(why)) => println!("try again later: {why}"),
//!     Err(error) => return Err(error.into()),
//! }
//!
//! let report = pool.shutdown(Deadline::after(Duration::from_secs(5))).await;
//! assert!(report.complete, "{report}");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```
//!
//! # Crates
//!
//! This one only re-exports. Each part can be had on its own:
//!
//! | module | crate | what it does |
//! | --- | --- | --- |
//! | [`admission`] | `tollgate-admission` | decides which work may start; knows no runtime |
//! | [`blocking`] | `tollgate-blocking` | runs what was admitted, on threads |
//! | `device` | `tollgate-device` | runs work on a device: a pool for each, and a device on the CPU |
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `device` | yes | the module `device`, with the host device; it needs no driver |
//! | `tracing` | yes | closures run within the submitter's span, slow ones are warned of, and what becomes of device jobs can be followed |
//! | `serde` | no | figures and reports can be serialised |

pub use tollgate_admission as admission;
pub use tollgate_blocking as blocking;
#[cfg(feature = "device")]
pub use tollgate_device as device;

/// What most programs need.
pub mod prelude {
    pub use tollgate_admission::{
        AcquireError, Budget, Closed, Deadline, DrainLease, JobKind, JobName, Lane, LaneConfig,
        Scope, ScopeGuard, ScopeReport, TryAcquireError,
    };
    pub use tollgate_blocking::{
        BlockingPool, Cancelled, Dedicated, Executor, JobContext, LanePolicy, Panic, PoolStats,
        RunError, ShutdownReport, SubmitError, Ticket,
    };
    #[cfg(feature = "device")]
    pub use tollgate_device::{
        AdmitError, Attempt, AttemptHandle, DeviceHandle, DeviceKind, DevicePool, DeviceProfile,
        DeviceReport, DeviceSnapshot, JobError, Reason, backend::Backend,
    };
}

/// The examples of the guides are tests too.
#[cfg(all(doctest, feature = "device"))]
mod guides {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/shutdown.md")]
    struct Shutdown;
}
