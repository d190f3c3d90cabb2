//! A pool that belongs to a scope as a whole, with its threads.

use crate::core::{Core, Waiter};
use std::mem;
use std::sync::{Arc, Weak};
use tollgate_admission::engine::{
    Engine, GroupId, GroupOwner, Member, Membership, Remaining, State, Tick,
};
use tollgate_admission::{Deadline, Scope};

/// The pool as its scope knows it. Kept by the core, which it does not keep.
struct ThePool(Weak<Core>);

/// What a pool that is attached to a scope has of it.
pub(crate) struct Whole {
    /// For all its work, but what belongs to another scope.
    pub(crate) group: GroupId,
    pub(crate) scope: Scope,
    /// What the scope knows the pool by, and does not keep.
    _member: Arc<dyn Member>,
}

/// What the scope of a whole pool was told of it, as the pool keeps it under its lock.
pub(crate) struct Attached {
    membership: Arc<Membership>,
    group: GroupId,
    /// The scope was told that the pool is quiet.
    told: bool,
    /// Numbers what the scope is told. It is told outside the lock, and so maybe in another order.
    news: u64,
    /// Submissions under way that are under a lease: whatever the pool has, it is not quiet.
    pins: usize,
}

/// Something to tell the scope, once the pool's lock is released.
pub(crate) struct News {
    membership: Arc<Membership>,
    number: u64,
    quiet: bool,
}

impl News {
    pub(crate) fn tell(self) {
        if self.quiet {
            self.membership.quiet(self.number);
        } else {
            self.membership.busy(self.number);
        }
    }
}

impl Attached {
    pub(crate) fn new(membership: Arc<Membership>, group: GroupId) -> Self {
        Attached { membership, group, told: false, news: 0, pins: 0 }
    }

    /// The pool is being dropped: its scope keeps the count of what was refused in it.
    pub(crate) fn part(&self, state: &State<Waiter>) {
        self.membership.gone(state.group_stats(self.group).refused);
    }

    /// The scope wants to be told that the pool is quiet, also when it was.
    pub(crate) fn ask_again(&mut self) {
        self.told = false;
    }

    /// The pool is quiet: what is to be told, if that was not.
    pub(crate) fn quiet(&mut self) -> Option<News> {
        let tell = self.pins == 0 && !mem::replace(&mut self.told, true);
        tell.then(|| self.next(true))
    }

    /// The pool is not quiet until it is [unpinned](Self::unpin): what is to be told, if the scope thinks otherwise.
    pub(crate) fn pin(&mut self) -> Option<News> {
        self.pins += 1;
        mem::take(&mut self.told).then(|| self.next(false))
    }

    pub(crate) fn unpin(&mut self) {
        self.pins -= 1;
    }

    fn next(&mut self, quiet: bool) -> News {
        self.news += 1;
        News { membership: Arc::clone(&self.membership), number: self.news, quiet }
    }
}

/// The owner of the group in which all work of the pool is: the pool itself tells the scope, once its threads have ended.
struct Nobody;

impl GroupOwner for Nobody {
    fn idle(&self) {}
    fn gone(&self, _refused: u64) {}
}

/// Makes a new pool belong to `scope`.
pub(crate) fn attach(core: &Arc<Core>, scope: &Scope) -> Whole {
    let group = core.with(|state| state.open_group(Arc::new(Nobody), Tick::NEVER));
    let member = Arc::new(ThePool(Arc::downgrade(core)));
    let weak: Weak<ThePool> = Arc::downgrade(&member);
    let membership = Arc::new(Membership::new(scope, weak, core.threads.name.as_str().into()));
    core.attach(Arc::clone(&membership), group);
    membership.settle(group, &*member);
    Whole { group, scope: scope.clone(), _member: member }
}

impl ThePool {
    /// A pool that is gone has nothing.
    fn with<R: Default>(&self, f: impl FnOnce(&Core) -> R) -> R {
        self.0.upgrade().map_or_else(R::default, |core| f(&core))
    }
}

/// As any engine of a group, but the pool closes with it, and its threads are the scope's.
impl Member for ThePool {
    fn close(&self, group: GroupId, leased: bool) {
        self.with(|core| {
            Member::close(core, group, leased);
            core.close_for_scope(leased);
        });
    }

    fn cancel(&self, group: GroupId, leased: bool) -> u64 {
        self.with(|core| Member::cancel(core, group, leased))
    }

    fn tighten(&self, group: GroupId, deadline: Deadline) {
        self.with(|core| Member::tighten(core, group, deadline));
    }

    fn remaining(&self, group: GroupId) -> Remaining {
        self.with(|core| {
            let threads = core.lock().crew.alive();
            Remaining { threads, ..Member::remaining(core, group) }
        })
    }

    fn refused(&self, group: GroupId) -> u64 {
        self.with(|core| Member::refused(core, group))
    }
}
