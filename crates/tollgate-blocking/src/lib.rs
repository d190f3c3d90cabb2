//! Runs synchronous work for async services, on bounded threads of its own.
//!
//! A [`BlockingPool`] has a capacity that named lanes share (see [`tollgate_admission`]), threads that start on demand,
//! and an owner: the tokio runtime that its closures see. An [`Executor`] is the way into one lane.
//!
//! | need | use |
//! | --- | --- |
//! | run a closure and await its result | [`Executor::run`], [`Executor::job`] |
//! | let it go on whether or not somebody waits | [`JobBuilder::submit`], [`Ticket`] |
//! | admission first, work later | [`JobBuilder::acquire`], [`Permit::run`] |
//! | stop a closure that cooperates | [`JobContext`] |
//! | own work, and end it with its owner | [`Scope`], [`Executor::scoped`], [`JobBuilder::scope`] |
//! | finish something while the owner drains | [`JobBuilder::lease`] |
//! | threads and a capacity apart from others | [`BlockingPoolBuilder::scope`] |
//! | work that runs as long as its service | [`Dedicated`] |
//! | bounds, timeouts, warnings | [`LanePolicy`] |
//! | see what goes on | [`BlockingPool::stats`], [`BlockingPool::snapshot`] |
//! | stop, and know what has stopped | [`BlockingPool::shutdown`], [`ShutdownReport`] |
//!
//! # What is guaranteed
//!
//! * A job runs once or is dropped once. Nothing is admitted, counted or timed before the first poll.
//! * A permit comes back when the closure has really ended, whoever stopped waiting for it.
//! * At every end, in this order: the captures are dropped, the permit returns, the diagnostics go, the result is
//!   delivered. Who has a result can use the slot.
//! * A panic reaches whoever waits, and hurts no thread.
//! * Work that a job submits to its own pool runs on the same thread, or is refused: it never waits there.
//!
//! # Features
//!
//! `tracing` (default): span propagation and warnings. `serde`: figures and reports can be serialised.

mod attached;
mod cell;
mod context;
mod core;
mod dedicated;
mod error;
mod executor;
mod histogram;
mod owner;
mod policy;
mod pool;
mod run;
mod shutdown;
mod stats;
mod sync;
mod thread;
mod ticket;
mod worker;

pub use context::JobContext;
pub use dedicated::Dedicated;
pub use error::{BuildError, Cancelled, DedicatedError, Panic, RunError, SubmitError};
pub use executor::{Acquire, Executor, JobBuilder, Permit};
pub use histogram::Histogram;
pub use policy::LanePolicy;
pub use pool::{BlockingPool, BlockingPoolBuilder, DEFAULT_KEEP_ALIVE};
pub use run::Run;
pub use shutdown::{Shutdown, ShutdownReport};
pub use stats::{JobCounts, KindStats, LaneJobs, PoolStats, Snapshot, ThreadStats};
pub use thread::WorkerThread;
pub use ticket::{Ticket, WaitUntil};

pub use tollgate_admission::{
    self as admission, AcquireError, Closed, Deadline, DrainLease, JobId, JobInfo, JobKind,
    JobName, JobState, JobStates, Scope, ScopeReport, TryAcquireError, UnknownLane,
};
