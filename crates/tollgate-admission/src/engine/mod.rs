//! The seam for crates that put something else than a future into a budget's queues.
//!
//! [`State`] is the arithmetic: pure, and generic over what waits. [`Engine`] is whoever owns the lock around one. A
//! budget's engine lets wakers wait; the engine of a pool of threads lets jobs wait beside them, so that a worker that
//! ends one job can return its permit and pick the next job under the same lock. [`Acquire`] and [`Permit`] are written
//! once, over any engine.
//!
//! # The protocol
//!
//! Under the lock an engine only calls methods of the state, then takes what was settled with
//! [`State::next_settled`]; it unlocks; then it wakes, drops and calls. A waker's clone and drop are user code as much
//! as its wake, so they happen outside as well. Nothing of this is needed to *use* a budget: it is for building on one.

mod alarm;
mod board;
mod cause;
mod class;
mod due;
mod group;
mod heap;
mod room;
mod shell;
mod slab;
mod state;
mod tick;
mod wake;

pub use crate::budget::Change;
pub use crate::scope::{Bound, LeaseRef, Member, Membership, Operation, Remaining};
pub use crate::sync::{Mutex, MutexGuard};
pub use alarm::Alarm;
pub use cause::Cause;
pub use group::{GroupId, GroupOwner, GroupStats, Told};
pub use shell::{Acquire, Engine, Permit, Resizable, begin, try_acquire, try_acquire_under};
pub use slab::Key;
pub use state::{Attempt, Claim, Entered, LaneId, Outcome, Request, Settled, State, Status};
pub use tick::Tick;
pub use wake::{WakeList, WakerSet, contain};
