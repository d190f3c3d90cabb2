//! What a scope is told about its members, in whatever order it comes: each is told outside of its engine's lock.

use std::sync::{Arc, Weak};
use tollgate_admission::engine::{GroupId, GroupOwner, Member, Membership, Remaining};
use tollgate_admission::{Deadline, Scope};

struct Silent;

impl Member for Silent {
    fn close(&self, _group: GroupId, _leased: bool) {}
    fn cancel(&self, _group: GroupId, _leased: bool) -> u64 {
        0
    }
    fn tighten(&self, _group: GroupId, _deadline: Deadline) {}
    fn remaining(&self, _group: GroupId) -> Remaining {
        Remaining::default()
    }
    fn refused(&self, _group: GroupId) -> u64 {
        0
    }
}

fn member(scope: &Scope) -> (Arc<Silent>, Membership) {
    let silent = Arc::new(Silent);
    let weak: Weak<Silent> = Arc::downgrade(&silent);
    let membership = Membership::new(scope, weak, "silent".into());
    (silent, membership)
}

#[test]
fn a_member_that_is_gone_may_be_said_to_be_idle_late() {
    let scope = Scope::root("service");
    let (_silent, membership) = member(&scope);
    membership.gone(0);
    // takes the place that the first one had
    let (_other, stays) = member(&scope);
    scope.close();
    membership.idle();
    assert!(!scope.report().complete, "the member that stays has not said that it is idle");
    stays.idle();
    assert!(scope.report().complete);
}

#[test]
fn news_that_is_overtaken_by_later_news_is_no_news() {
    let scope = Scope::root("service");
    let (_silent, membership) = member(&scope);
    let guard = scope.enter("guard").unwrap();
    scope.close();
    membership.busy(2);
    membership.quiet(1);
    drop(guard);
    assert!(!scope.report().complete, "the member was quiet before it was busy");
    membership.quiet(3);
    assert!(scope.report().complete);
}
