//! Decides which work may start.
//!
//! A [`Budget`] is a capacity that named lanes share. Each lane may have capacity reserved, may borrow what is idle up
//! to its limit, and lets a bounded number of acquires wait. A [`Permit`] is taken before work starts, travels with the
//! work, and comes back when it is dropped: straight to the next waiter.
//!
//! | need | use |
//! | --- | --- |
//! | bound what runs, and what waits | [`Budget`], [`LaneConfig`] |
//! | wait for a turn, for a limited time | [`Lane::acquire`], [`Acquire::until`], [`Deadline`] |
//! | never wait | [`Lane::try_acquire`] |
//! | keep room for probes or cleanup | [`LaneConfig::kept`] |
//! | change the numbers while work runs | [`Budget::resize`] |
//! | stop, and know when all is back | [`Budget::close`], [`Budget::drained`] |
//! | see what goes on | [`Budget::stats`] |
//! | own work, and end it with its owner | [`Scope`], [`Lane::scoped`] |
//! | stop all of it, with a report | [`Scope::shutdown`], [`ScopeReport`] |
//! | finish something while the owner drains | [`Scope::drain_lease`] |
//! | let something else than futures wait | [`engine`] |
//!
//! Any executor will do: this crate needs no runtime (of tokio's family it uses the cancellation token alone). Work that has to *run* on threads is the business of
//! `tollgate-blocking`, which is built from this crate.
//!
//! # Features
//!
//! `serde`: figures and reports can be serialised.

mod budget;
mod deadline;
pub mod engine;
mod error;
mod job;
mod scope;
mod sleep;
mod stats;
mod sync;
pub mod time;

pub use budget::{
    Acquire, Budget, BudgetBuilder, DEFAULT_MAX_BYPASS, DEFAULT_MAX_WAITING, Drained, Lane,
    LaneChange, LaneConfig, Permit, Resize,
};
pub use deadline::Deadline;
pub use error::{
    AcquireError, BuildError, Closed, LeaseError, NoTimer, ScopeClosed, TryAcquireError,
    UnknownLane,
};
pub use job::{JobId, JobInfo, JobKind, JobName, JobState, JobStates};
pub use scope::{
    DrainLease, GuardReport, LeaseReport, MemberReport, NodeReport, PhaseTimes, Scope,
    ScopeDrained, ScopeGuard, ScopePhase, ScopeReport, Shutdown, Tracked,
};
pub use sleep::Sleep;
pub use stats::{BudgetStats, LaneStats, Refused};
pub use time::{ClockOnly, ManualTime, ThreadTimer, TimeSource};
