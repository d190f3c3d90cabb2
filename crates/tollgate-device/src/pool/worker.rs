//! What the current thread has to do with which pool.

use super::kind::Seats;
use std::cell::Cell;

/// What a thread is to a pool, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One of its runtime's.
    Worker,
    /// One for blocking jobs.
    Blocking,
    /// The one that owns the runtime.
    Supervisor,
}

/// The job that runs on this thread at the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pool: u64,
    /// Where it may run, and so what kind of seat it has; `None` on a thread for blocking jobs, which takes none.
    pub(crate) seats: Option<Seats>,
    pub(crate) worker: Option<u32>,
    /// How many jobs of the pool run within one another on this thread, this one included.
    depth: u64,
}

mod local {
    #![allow(clippy::missing_const_for_thread_local, reason = "loom takes no const initialiser")]
    use super::{Role, Running};
    use crate::sync;
    use std::cell::Cell;

    // without destructors, so that they are there for as long as the thread is
    sync::thread_local! {
        pub(super) static ROLE: Cell<Option<(u64, Role)>> = Cell::new(None);
        pub(super) static RUNNING: Cell<Option<Running>> = Cell::new(None);
        pub(super) static ENDING: Cell<Option<(u64, u64)>> = Cell::new(None);
    }
}

use local::{ENDING, ROLE, RUNNING};

/// This thread is one of the pool's from here on.
pub(crate) fn become_one(pool: u64, role: Role) {
    let _ = ROLE.try_with(|it| it.set(Some((pool, role))));
}

/// What this thread is to `pool`. A thread that ends, and runs destructors, is nothing to anybody.
pub(crate) fn role(pool: u64) -> Option<Role> {
    let (of, role) = ROLE.try_with(Cell::get).ok().flatten()?;
    (of == pool).then_some(role)
}

/// The job of `pool` that this thread runs.
pub(crate) fn running(pool: u64) -> Option<Running> {
    RUNNING.try_with(Cell::get).ok().flatten().filter(|it| it.pool == pool)
}

/// How many jobs of `pool` run or end on this thread, if it is one of the pool's or of the pool's supervisor.
pub(crate) fn depth(pool: u64) -> Option<u64> {
    role(pool).map(|_| running(pool).map_or(0, |it| it.depth) + ending(pool))
}

/// How many jobs of `pool` this thread has and does not run: they have ended but for what is called then, or are about to run.
fn ending(pool: u64) -> u64 {
    let ending = ENDING.try_with(Cell::get).ok().flatten();
    ending.filter(|&(of, _)| of == pool).map_or(0, |(_, jobs)| jobs)
}

/// Calls `f` while this thread has a job of `pool` that is counted and does not run: one that has nothing any more, or one
/// that is about to run.
pub(crate) fn end_as<R>(pool: u64, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<(u64, u64)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = ENDING.try_with(|it| it.set(self.0));
        }
    }
    let ending = Some((pool, ending(pool) + 1));
    let _restore = Restore(ENDING.try_with(|it| it.replace(ending)).ok().flatten());
    f()
}

/// Calls `f` as a job of `pool`.
pub(crate) fn run_as<R>(
    pool: u64,
    seats: Option<Seats>,
    worker: Option<u32>,
    f: impl FnOnce() -> R,
) -> R {
    struct Restore(Option<Running>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = RUNNING.try_with(|it| it.set(self.0));
        }
    }
    let depth = running(pool).map_or(0, |outer| outer.depth) + 1;
    let running = Running { pool, seats, worker, depth };
    let _restore = Restore(RUNNING.try_with(|it| it.replace(Some(running))).ok().flatten());
    f()
}
