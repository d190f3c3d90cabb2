//! A pool that belongs to a scope as a whole, with its threads.

use crate::core::{Core, Whole};
use std::sync::{Arc, Weak};
use tollgate_admission::engine::{
    Engine, GroupId, GroupOwner, Member, Membership, Remaining, Tick,
};
use tollgate_admission::{Deadline, Scope};

/// The pool as its scope knows it. Kept by the core, which it does not keep.
struct ThePool(Weak<Core>);

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
    core.attach(Arc::clone(&membership));
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
            let threads = core.lock().alive;
            Remaining { threads, ..Member::remaining(core, group) }
        })
    }

    fn refused(&self, group: GroupId) -> u64 {
        self.with(|core| Member::refused(core, group))
    }
}
