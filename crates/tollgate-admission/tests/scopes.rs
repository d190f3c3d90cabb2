//! The tree of owners: who may come in, what ends with whom, and what a shutdown tells.

mod support;

use std::cell::RefCell;
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;
use support::{
    Counter, HandClock, Polled, Waiter, block_on, budget, granted, one_lane, poll_with, refused,
    without_deadlock,
};
use tokio_util::sync::CancellationToken;
use tollgate_admission::engine::{GroupId, Member, Membership, Remaining};
use tollgate_admission::{
    AcquireError, Budget, ClockOnly, Closed, Deadline, JobId, JobInfo, JobKind, JobState, Lane,
    LaneConfig, ManualTime, Scope, ScopeClosed, ScopeGuard, ScopePhase, ScopeReport, TimeSource,
    TryAcquireError,
};

const SECOND: Duration = Duration::from_secs(1);

fn root_by(time: &ManualTime) -> Scope {
    Scope::root_by("root", Arc::new(time.clone()))
}

fn root() -> (Scope, ManualTime) {
    let time = ManualTime::new();
    (root_by(&time), time)
}

/// A budget of one lane, the lane for a root, the root, and their time.
fn owned_lane(capacity: u64) -> (Budget, Lane, Scope, ManualTime) {
    let (budget, lane, time) = one_lane(capacity);
    let scope = root_by(&time);
    (budget, lane.scoped(&scope), scope, time)
}

fn phases<const N: usize>(scopes: [&Scope; N]) -> [ScopePhase; N] {
    scopes.map(Scope::phase)
}

fn is_closed_scope(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Closed { what: Closed::Scope, .. })
}

/// Whether the scope is closed and nothing is left.
fn is_drained(scope: &Scope) -> bool {
    let drained = Polled::new(scope.drained()).poll().is_ready();
    assert_eq!(drained, scope.phase() == ScopePhase::Closed);
    assert_eq!(drained, scope.report().complete);
    drained
}

/// The paths of what is left.
fn left(report: &ScopeReport) -> Vec<&str> {
    report.nodes.iter().map(|node| &*node.path).collect()
}

// ---- the tree ----

/// ADM-14
#[test]
fn a_child_cannot_open_under_a_parent_that_is_not_open() {
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let grandchild = child.child("grandchild").unwrap();
    let guard = grandchild.enter("work").unwrap();
    root.close();
    assert_eq!(phases([&root, &child, &grandchild]), [ScopePhase::Draining; 3]);
    let refusal = |scope: &Scope| scope.child("late").unwrap_err();
    assert_eq!(refusal(&root), ScopeClosed { scope: "root".into() });
    assert_eq!(refusal(&child).to_string(), "scope \"child\" is draining or closed");
    drop(guard);
    assert_eq!(phases([&root, &child, &grandchild]), [ScopePhase::Closed; 3]);
    assert_eq!(refusal(&grandchild), ScopeClosed { scope: "grandchild".into() });
}

/// ADM-14
#[test]
fn closing_a_scope_closes_its_subtree_and_nothing_else() {
    let (root, _) = root();
    let [a, b] = ["a", "b"].map(|name| root.child(name).unwrap());
    let below = ["a/1", "a/2"].map(|name| a.child(name).unwrap());
    let deepest = below[1].child("deepest").unwrap();
    let beside = b.child("b/1").unwrap();
    a.close();
    a.close();
    for scope in [&a, &below[0], &below[1], &deepest] {
        assert_eq!(scope.phase(), ScopePhase::Closed);
        assert!(!scope.is_open());
        let refusal = scope.enter("late").unwrap_err();
        assert_eq!(refusal.scope, scope.name());
        assert!(scope.track("late", ready(())).is_err());
    }
    for scope in [&root, &b, &beside] {
        assert!(scope.is_open());
        drop(scope.enter("in time").unwrap());
    }
    let late = root.child("c").unwrap();
    root.close();
    assert_eq!(phases([&root, &b, &beside, &late]), [ScopePhase::Closed; 4]);
}

/// ADM-14
#[test]
fn a_clone_is_the_same_scope() {
    let (root, _) = root();
    let clone = root.clone();
    let guard = clone.enter("work").unwrap();
    assert_eq!(&*guard.scope().name(), "root");
    drop(clone);
    root.close();
    assert!(guard.scope().child("late").is_err());
    assert!(!is_drained(&root));
    drop(guard);
    assert!(is_drained(&root));
}

/// ADM-14: whoever holds a child's work need not hold the child.
#[test]
fn dropping_the_last_handle_closes_nothing() {
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let grandchild = child.child("grandchild").unwrap();
    drop(child);
    let guard = grandchild.enter("work").unwrap();
    drop(grandchild);
    assert_eq!(left(&root.report()), ["root/child/grandchild"]);
    drop(guard.scope().enter("more").unwrap());
    root.close();
    assert!(guard.scope().enter("late").is_err());
    assert!(!is_drained(&root));
    drop(guard);
    assert!(is_drained(&root));
}

/// ADM-14: as long as anything is below it, and no longer.
#[test]
fn a_scope_is_freed_with_the_last_that_holds_it() {
    let (root, _) = root();
    let names = ["a", "b", "c"].map(Arc::<str>::from);
    let held = || names.each_ref().map(|name| Arc::strong_count(name) > 1);
    let a = root.child(Arc::clone(&names[0])).unwrap();
    let b = a.child(Arc::clone(&names[1])).unwrap();
    let c = b.child(Arc::clone(&names[2])).unwrap();
    drop((a, b));
    assert_eq!(held(), [true; 3]);
    let guard = c.enter("work").unwrap();
    let again = c.clone();
    drop((again, c));
    assert_eq!(held(), [true; 3]);
    let b = guard.scope().child("d").unwrap();
    drop(guard);
    assert_eq!(held(), [true; 3], "d is still below");
    drop(b);
    assert_eq!(held(), [false; 3]);
}

/// ADM-14
#[test]
fn siblings_that_leave_in_any_order_leave_the_others_below_their_parent() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let (root, _) = root();
        let mut children = ["0", "1", "2"].map(|name| Some(root.child(name).unwrap()));
        for (gone, index) in order.into_iter().enumerate() {
            children[index] = None;
            let guards: Vec<ScopeGuard> =
                children.iter().flatten().map(|child| child.enter("work").unwrap()).collect();
            assert_eq!(root.report().nodes.len(), 2 - gone, "{order:?}");
            drop(guards);
        }
        root.close();
        assert!(is_drained(&root));
    }
}

// ---- cancellation ----

/// ADM-14
#[test]
fn cancellation_reaches_descendants_and_neither_parents_nor_siblings() {
    let (root, _) = root();
    let middle = root.child("middle").unwrap();
    let below = middle.child("below").unwrap();
    let deepest = below.child("deepest").unwrap();
    let sibling = root.child("sibling").unwrap();
    let scopes = [&root, &middle, &below, &deepest, &sibling];
    let tokens = scopes.map(Scope::token);
    let mut waits = tokens.each_ref().map(|token| Polled::new(Box::pin(token.cancelled())));
    assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()));
    middle.cancel();
    let [yes, no] = [true, false];
    let expected = [no, yes, yes, yes, no];
    assert_eq!(tokens.each_ref().map(CancellationToken::is_cancelled), expected);
    assert_eq!(waits.each_ref().map(|wait| wait.wakes() == 1), expected);
    assert_eq!(scopes.map(|scope| !scope.is_open()), expected);
    // also of tokens that are asked for afterwards
    assert_eq!(scopes.map(|scope| scope.token().is_cancelled()), expected);
    middle.cancel();
    assert!(waits.iter().all(|wait| wait.wakes() <= 1));
}

/// ADM-14
#[test]
fn a_token_outlives_its_scope_and_is_cancelled_by_those_above() {
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let token = child.child("grandchild").unwrap().token();
    drop(child);
    assert!(!token.is_cancelled(), "dropping a scope cancels nothing");
    root.cancel();
    assert!(token.is_cancelled());
}

/// ADM-14
#[test]
fn cancelling_a_token_cancels_neither_a_scope_nor_another_token() {
    let (root, _) = root();
    let [token, other] = [root.token(), root.token()];
    let child = root.child("child").unwrap();
    token.cancel();
    assert!(root.is_open() && child.is_open());
    assert!(!other.is_cancelled() && !child.token().is_cancelled());
}

/// ADM-14
#[test]
fn closing_cancels_no_token() {
    let (root, _) = root();
    let token = root.token();
    root.close();
    assert!(!token.is_cancelled());
    root.cancel();
    assert!(token.is_cancelled(), "it can still be cancelled");
}

/// ADM-14, ADM-9
#[test]
fn a_cancelled_scope_admits_nothing_and_refuses_what_is_queued() {
    let lanes = [LaneConfig::new("a"), LaneConfig::new("b")];
    let (budget, [a, b], time) = budget(2, lanes);
    let root = root_by(&time);
    let [ended, sibling] = ["ended", "sibling"].map(|name| root.child(name).unwrap());
    let below = ended.child("below").unwrap();
    let (of_ended, of_below) = (a.scoped(&ended), b.scoped(&below));
    let [of_root, of_sibling] = [&root, &sibling].map(|scope| a.scoped(scope));
    let running = [of_ended.try_acquire().unwrap(), of_below.try_acquire().unwrap()];
    let told = [&of_ended, &of_below, &of_ended].map(|lane| Waiter::queue(lane.acquire()));
    let go_on = [&of_root, &of_sibling, &a].map(|lane| Waiter::queue(lane.acquire()));
    ended.cancel();
    ended.cancel();
    for waiter in told {
        assert_eq!(waiter.wakes(), 1);
        assert!(is_closed_scope(&waiter.refusal()));
    }
    assert!(go_on.iter().all(|waiter| waiter.wakes() == 0));
    let error = refused(of_ended.acquire());
    assert_eq!(error.to_string(), "lane `a` admits nothing more: its scope is closed");
    let attempt = of_below.try_acquire().unwrap_err();
    assert!(matches!(attempt, TryAcquireError::Closed { what: Closed::Scope, .. }));
    let stats = budget.stats();
    let refused = [0, 1].map(|lane| stats.lanes[lane].refused);
    assert_eq!(refused.map(|it| (it.closed, it.total())), [(3, 3), (2, 2)]);
    assert_eq!((stats.running(), stats.lanes[0].waiting), (2, 3), "the others go on");
    assert_eq!((ended.report().refused, root.report().refused), (5, 5));
    assert_eq!(sibling.report().refused, 0);
    // what runs keeps its permit, and what it frees goes to the others
    drop(running);
    for waiter in go_on {
        drop(waiter.permit());
    }
    assert_eq!(budget.stats().available, 2);
}

/// ADM-14, ADM-6: of those that are refused, some held up others.
#[test]
fn whoever_stood_behind_the_refused_is_granted_when_they_leave() {
    let (budget, [lane, other], time) =
        budget(3, [LaneConfig::new("l").reserved(2), LaneConfig::new("other")]);
    let scope = root_by(&time);
    let _running = other.try_acquire_many(2).unwrap();
    let large = Waiter::queue(lane.scoped(&scope).acquire_many(2));
    let small = Waiter::queue(lane.acquire());
    scope.close();
    assert!(is_closed_scope(&large.refusal()));
    assert_eq!(small.wakes(), 1);
    drop(small.permit());
    assert_eq!(budget.stats().lanes[0].admitted, 1);
}

/// ADM-14, ADM-4: a lane that waits has its reservation withheld from borrowers.
#[test]
fn what_was_withheld_for_the_refused_goes_to_borrowers() {
    let (_budget, [lane, other], time) =
        budget(3, [LaneConfig::new("l").reserved(2), LaneConfig::new("other")]);
    let scope = root_by(&time);
    let _running = other.try_acquire_many(2).unwrap();
    let large = Waiter::queue(lane.scoped(&scope).acquire_many(2));
    let borrower = Waiter::queue(other.acquire());
    scope.close();
    assert_eq!((large.wakes(), borrower.wakes()), (1, 1));
    drop(borrower.permit());
}

/// ADM-14, ADM-8: the time of the one behind was up, and nobody had looked.
#[test]
fn nobody_is_granted_after_its_deadline_because_somebody_before_it_was_refused() {
    let clock = HandClock::new();
    let lane = LaneConfig::new("l");
    let builder = Budget::builder().capacity(2).time(Arc::new(clock.clone()));
    let lane = builder.lane(lane).build().unwrap().lane("l").unwrap();
    let scope = Scope::root_by("root", Arc::new(clock.clone()));
    let _running = lane.try_acquire().unwrap();
    let large = Waiter::queue(lane.scoped(&scope).acquire_many(2));
    let late = Waiter::queue(lane.acquire_until(clock.at(5)));
    clock.show(5);
    scope.close();
    assert!(is_closed_scope(&large.refusal()));
    assert!(matches!(late.refusal(), AcquireError::Deadline { .. }));
}

/// ADM-10, ADM-14: more than are told in one hold of the lock.
#[test]
fn everybody_has_been_told_when_close_returns_however_many_wait() {
    for waiting in [1, 63, 64, 65, 128, 1_000] {
        let lane = LaneConfig::new("l").unbounded_waiting();
        let (budget, [lane], time) = budget(1, [lane]);
        let scope = root_by(&time);
        let of_scope = lane.scoped(&scope);
        let permit = lane.try_acquire().unwrap();
        let waiters: Vec<_> = (0..waiting).map(|_| Waiter::queue(of_scope.acquire())).collect();
        let behind = Waiter::queue(lane.acquire());
        scope.close();
        assert!(waiters.iter().all(|waiter| waiter.wakes() == 1));
        assert!(is_drained(&scope));
        let stats = &budget.stats().lanes[0];
        assert_eq!((stats.waiting, stats.refused.closed), (1, waiting));
        assert_eq!(scope.report().refused, waiting);
        drop(permit);
        drop(behind.permit());
    }
}

/// ADM-14
#[test]
fn a_lane_that_is_asked_for_a_closed_scope_refuses_everything() {
    let (budget, lane, time) = one_lane(1);
    let scope = root_by(&time);
    scope.close();
    let lane = lane.scoped(&scope);
    assert!(is_closed_scope(&refused(lane.acquire())));
    assert!(lane.try_acquire().is_err());
    assert!(is_drained(&scope));
    assert_eq!(scope.report().refused, 2);
    drop(lane);
    assert_eq!((scope.report().refused, budget.stats().lanes[0].refused.closed), (2, 2));
}

/// ADM-14
#[test]
fn a_handle_for_a_scope_of_a_handle_for_a_scope_is_for_the_last() {
    let (_budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let [first, last] = ["first", "last"].map(|name| root.child(name).unwrap());
    let lane = lane.scoped(&first).scoped(&last);
    first.close();
    assert!(is_drained(&first));
    let permit = granted(lane.acquire());
    last.close();
    assert!(!is_drained(&last));
    drop(permit);
    assert!(is_drained(&last));
}

// ---- drained ----

/// ADM-14
#[test]
fn drained_resolves_when_the_scope_is_closed_and_no_guard_in_the_subtree_is_left() {
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let grandchild = child.child("grandchild").unwrap();
    let scopes = [&root, &child, &grandchild];
    let mut waits = scopes.map(|scope| Polled::new(scope.drained()));
    assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()), "they are open");
    let mut wakes = move || {
        waits.each_mut().map(|wait| {
            let ready = wait.poll().is_ready();
            assert_eq!(wait.wakes(), usize::from(ready), "woken once, when it was so");
            ready
        })
    };
    let [of_root, of_child] = [&root, &child].map(|scope| scope.enter("work").unwrap());
    let of_grandchild = [(); 2].map(|()| grandchild.enter("work").unwrap());
    child.close();
    assert_eq!(wakes(), [false; 3]);
    drop(of_child);
    assert_eq!(wakes(), [false; 3]);
    let [one, two] = of_grandchild;
    drop(two);
    root.close();
    assert_eq!(wakes(), [false; 3]);
    drop(one);
    assert_eq!(wakes(), [false, true, true]);
    drop(of_root);
    assert_eq!(wakes(), [true; 3]);
    block_on(root.drained());
}

/// ADM-14
#[test]
fn drained_resolves_at_the_close_when_nothing_is_left() {
    let (root, _) = root();
    let _child = root.child("child").unwrap();
    drop(root.enter("over").unwrap());
    let mut wait = Polled::new(root.drained());
    assert!(wait.poll().is_pending());
    root.close();
    assert_eq!(wait.wakes(), 1);
    assert!(wait.poll().is_ready());
}

/// ADM-14
#[test]
fn a_guard_may_be_dropped_on_any_thread() {
    let (root, _) = root();
    let guard = root.enter("work").unwrap();
    root.close();
    let thread = std::thread::spawn(move || drop(guard));
    without_deadlock(move || block_on(root.drained()));
    thread.join().unwrap();
}

/// ADM-14
#[test]
fn a_permit_keeps_its_scope_from_being_drained_and_a_refused_waiter_does_not() {
    let (budget, lane, scope, _) = owned_lane(2);
    let [one, two] = [granted(lane.acquire()), lane.try_acquire().unwrap()];
    let waiter = Waiter::queue(lane.acquire());
    scope.close();
    let report = scope.report();
    let member = &report.nodes[0].members[0];
    assert_eq!((&*member.name, member.waiting, member.permits), ("only", 0, 2));
    drop(one);
    assert!(!is_drained(&scope));
    let mut wait = Polled::new(scope.drained());
    assert!(wait.poll().is_pending());
    drop(two);
    assert_eq!(wait.wakes(), 1);
    assert!(is_drained(&scope));
    assert_eq!(budget.stats().available, 2);
    drop(waiter);
}

/// ADM-14, ADM-7
#[test]
fn a_granted_waiter_that_never_looked_keeps_its_scope_from_being_drained() {
    let (_budget, lane, scope, _) = owned_lane(1);
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    drop(permit);
    scope.close();
    assert!(!is_drained(&scope));
    drop(waiter);
    assert!(is_drained(&scope));
}

/// ADM-14: that one came before the other does not matter.
#[test]
fn a_drained_that_is_dropped_or_polled_by_another_waker_is_not_woken() {
    let (root, _) = root();
    let guard = root.enter("work").unwrap();
    root.close();
    let [former, latter, dropped] = [(); 3].map(|()| Arc::new(Counter::default()));
    let mut drained = root.drained();
    assert!(poll_with(&mut drained, &Waker::from(Arc::clone(&former))).is_pending());
    assert!(poll_with(&mut drained, &Waker::from(Arc::clone(&latter))).is_pending());
    let mut given_up = root.drained();
    assert!(poll_with(&mut given_up, &Waker::from(Arc::clone(&dropped))).is_pending());
    drop(given_up);
    let mut in_its_place = Polled::new(root.drained());
    assert!(in_its_place.poll().is_pending());
    let never_polled = root.drained();
    drop(guard);
    let wakes = [&former, &latter, &dropped].map(|counter| counter.wakes());
    assert_eq!(wakes, [0, 1, 0]);
    assert_eq!(in_its_place.wakes(), 1);
    assert_eq!(Arc::strong_count(&dropped), 1, "its waker was dropped");
    drop(never_polled);
    block_on(drained);
}

// ---- tasks ----

/// ADM-14
#[test]
fn a_tracked_task_keeps_its_scope_from_being_drained_until_it_ends() {
    let (root, time) = root();
    let (send, receive) = mpsc::channel();
    let task = std::future::poll_fn(move |_| match receive.try_recv() {
        Ok(answer) => Poll::Ready(answer),
        Err(_) => Poll::Pending,
    });
    let mut task = Polled::new(root.track("task", task).unwrap());
    assert!(task.poll().is_pending());
    root.close();
    time.advance(SECOND);
    let report = root.report();
    let guard = &report.nodes[0].guards[0];
    assert_eq!((guard.name.as_str(), guard.age), ("task", SECOND));
    send.send(42).unwrap();
    assert!(!is_drained(&root));
    assert_eq!(task.poll(), Poll::Ready(42));
    assert!(is_drained(&root), "before the task's future is dropped");
}

/// ADM-14
#[test]
fn a_tracked_task_that_is_dropped_leaves_its_scope() {
    let (root, _) = root();
    let never_polled = root.track("task", pending::<()>()).unwrap();
    let mut polled = Polled::new(root.track("task", pending::<()>()).unwrap());
    assert!(polled.poll().is_pending());
    root.close();
    drop(never_polled);
    assert!(!is_drained(&root));
    drop(polled);
    assert!(is_drained(&root));
}

/// Tells on its drop whether its scope was drained then.
struct Witness(Scope, Arc<AtomicBool>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.1.store(is_drained(&self.0), Ordering::SeqCst);
    }
}

/// ADM-14: as BLK-10 has it for jobs: what a task captured is gone when it has left its scope.
#[test]
fn a_tracked_task_drops_what_it_captured_before_it_leaves_its_scope() {
    for ends in [true, false] {
        let (root, _) = root();
        let drained_at_drop = Arc::new(AtomicBool::new(true));
        let witness = Witness(root.clone(), Arc::clone(&drained_at_drop));
        // one that still has what it captured when it has ended
        let task = std::future::poll_fn(move |_| {
            let _witness = &witness;
            if ends { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut task = Polled::new(root.track("task", task).unwrap());
        root.close();
        assert_eq!(task.poll().is_ready(), ends);
        drop(task);
        assert!(!drained_at_drop.load(Ordering::SeqCst));
        assert!(is_drained(&root));
    }
}

/// ADM-14
#[test]
fn a_tracked_task_that_panics_leaves_its_scope_when_it_is_dropped() {
    let (root, _) = root();
    let mut task = Polled::new(root.track("task", async { panic!("on purpose") }).unwrap());
    root.close();
    let poll = std::panic::AssertUnwindSafe(|| task.poll());
    assert!(std::panic::catch_unwind(poll).is_err());
    drop(task);
    assert!(is_drained(&root));
}

/// ADM-14
#[test]
#[should_panic(expected = "polled after it had completed")]
fn polling_a_completed_task_panics() {
    let (root, _) = root();
    let mut task = Polled::new(root.track("task", ready(())).unwrap());
    assert!(task.poll().is_ready());
    let _ = task.poll();
}

// ---- deadlines ----

/// ADM-14
#[test]
fn a_deadline_can_only_be_tightened() {
    let (root, time) = root();
    let [one, two, three] = [1, 2, 3].map(|n| Deadline::at(time.now() + n * SECOND));
    assert_eq!(root.deadline(), Deadline::never());
    let child = root.child("child").unwrap();
    let deadlines = || [&root, &child].map(Scope::deadline);
    root.tighten(two);
    assert_eq!(deadlines(), [two, two]);
    root.tighten(three);
    root.tighten(Deadline::never());
    assert_eq!(deadlines(), [two, two]);
    child.tighten(one);
    assert_eq!(deadlines(), [two, one], "those above have more time");
    root.tighten(two);
    child.tighten(two);
    assert_eq!(deadlines(), [two, one]);
    let late = child.child("late").unwrap();
    assert_eq!(late.deadline(), one);
    root.tighten(time.now() - SECOND);
    assert!([&root, &child, &late].iter().all(|it| it.deadline().has_passed(time.now())));
    assert!(root.is_open(), "it closes nothing");
}

/// ADM-14, ADM-8
#[test]
fn a_scopes_deadline_ends_waits_that_are_under_way() {
    let (budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let [child, sibling] = ["child", "sibling"].map(|name| root.child(name).unwrap());
    let below = child.child("below").unwrap();
    let lanes = [&root, &child, &below, &sibling].map(|scope| lane.scoped(scope));
    let _permit = lane.try_acquire().unwrap();
    let waits = lanes.each_ref().map(|lane| Waiter::queue(lane.acquire()));
    let hasty = Waiter::queue(lanes[2].acquire_until(time.now() + SECOND));
    let outside = Waiter::queue(lane.acquire());
    child.tighten(time.now() + 3 * SECOND);
    child.tighten(time.now() + 2 * SECOND);
    let woken = || waits.each_ref().map(Waiter::wakes);
    time.advance(SECOND);
    assert_eq!((woken(), hasty.wakes()), ([0; 4], 1));
    time.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(woken(), [0; 4]);
    time.advance(Duration::from_nanos(1));
    assert_eq!(woken(), [0, 1, 1, 0]);
    root.tighten(time.now());
    assert_eq!(woken(), [1; 4], "one that has passed ends them at once");
    assert_eq!(outside.wakes(), 0);
    for waiter in waits {
        assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
    }
    let stats = &budget.stats().lanes[0];
    assert_eq!((stats.waiting, stats.refused.deadline, stats.refused.total()), (1, 5, 5));
}

/// ADM-14, ADM-8
#[test]
fn a_scopes_deadline_refuses_what_comes_after_it_even_when_a_permit_is_free() {
    let (_budget, lane, scope, time) = owned_lane(1);
    scope.tighten(time.now() + SECOND);
    drop(granted(lane.acquire()));
    time.advance(SECOND);
    assert!(matches!(refused(lane.acquire()), AcquireError::Deadline { .. }));
    assert!(matches!(lane.try_acquire(), Err(TryAcquireError::Deadline { .. })));
    drop(scope.enter("closes nothing").unwrap());
}

/// ADM-14: a lane that a scope has tightened before it was asked for.
#[test]
fn a_lane_has_the_deadline_of_its_scope_from_the_start() {
    let (_budget, lane, time) = one_lane(1);
    let scope = root_by(&time);
    scope.tighten(time.now() + SECOND);
    let lane = lane.scoped(&scope);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_until(time.now() + 2 * SECOND));
    time.advance(SECOND);
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
}

/// ADM-13, ADM-14: nobody had needed the timer so far. The clock in the hand objects to a call that is asked for before
/// the timer was made ready.
#[test]
fn a_deadline_that_comes_later_makes_the_timer_ready() {
    let clock = HandClock::new();
    let builder = Budget::builder().capacity(1).time(Arc::new(clock.clone()));
    let lane = builder.lane(LaneConfig::new("l")).build().unwrap().lane("l").unwrap();
    let scope = Scope::root_by("root", Arc::new(clock.clone()));
    let lane = lane.scoped(&scope);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    scope.tighten(clock.at(3));
    assert_eq!(clock.asked_for(), [3]);
    clock.show(3);
    clock.call();
    assert_eq!(waiter.wakes(), 1);
}

// ---- shutdown ----

/// ADM-15
#[test]
fn a_shutdown_that_is_dropped_before_its_first_poll_changes_nothing() {
    let (_budget, lane, scope, time) = owned_lane(1);
    let token = scope.token();
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    drop(scope.shutdown(time.now()).cancel_at(time.now()));
    assert_eq!((scope.phase(), scope.deadline()), (ScopePhase::Open, Deadline::never()));
    assert!(!token.is_cancelled());
    assert_eq!((waiter.wakes(), time.pending()), (0, 0));
    drop(permit);
    drop(waiter.permit());
}

/// ADM-15
#[test]
fn a_shutdown_closes_refuses_and_cancels_at_its_first_poll() {
    let (budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let child = root.child("child").unwrap();
    let lanes = [&root, &child].map(|scope| lane.scoped(scope));
    let tokens = [&root, &child].map(Scope::token);
    let permit = lanes[0].try_acquire().unwrap();
    let waiters = lanes.each_ref().map(|lane| Waiter::queue(lane.acquire()));
    let deadline = Deadline::at(time.now() + 5 * SECOND);
    let mut shutdown = Polled::new(root.shutdown(deadline));
    assert!(shutdown.poll().is_pending());
    assert_eq!(phases([&root, &child]), [ScopePhase::Draining, ScopePhase::Closed]);
    assert_eq!(child.deadline(), deadline);
    for waiter in waiters {
        assert_eq!(waiter.wakes(), 1);
        assert!(is_closed_scope(&waiter.refusal()));
    }
    assert!(tokens.iter().all(CancellationToken::is_cancelled));
    assert!(lanes[1].try_acquire().is_err() && child.enter("late").is_err());
    time.advance(SECOND);
    assert_eq!(shutdown.wakes(), 0);
    drop(permit);
    assert_eq!(shutdown.wakes(), 1);
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert!(report.complete && report.nodes.is_empty());
    assert_eq!((report.refused, report.cancelled), (3, 0));
    let took = report.took;
    assert_eq!([took.closing, took.grace, took.draining], [Duration::ZERO, Duration::ZERO, SECOND]);
    assert_eq!(took.total(), SECOND);
    assert_eq!(budget.stats().available, 1);
}

/// ADM-15
#[test]
fn a_shutdown_of_what_is_idle_is_over_at_once_and_cancels_tokens_nevertheless() {
    let (root, time) = root();
    let token = root.child("gone").unwrap().token();
    // somebody watches it whom the scope does not count
    let mark = time.now() + SECOND;
    let mut shutdown = Polled::new(root.shutdown(Deadline::never()).cancel_at(mark));
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert!(report.complete);
    assert_eq!(report.took.total(), Duration::ZERO);
    assert!(token.is_cancelled());
}

/// ADM-15
#[test]
fn a_shutdown_cancels_at_its_grace_mark() {
    let (root, time) = root();
    let start = time.now();
    let guard = root.enter("work").unwrap();
    let token = root.token();
    let shutdown = root.shutdown(start + 5 * SECOND).cancel_at(start + 2 * SECOND);
    let mut shutdown = Polled::new(shutdown);
    assert!(shutdown.poll().is_pending());
    assert!(!root.is_open());
    time.advance(2 * SECOND - Duration::from_nanos(1));
    assert_eq!((shutdown.wakes(), token.is_cancelled()), (0, false));
    time.advance(Duration::from_nanos(1));
    assert_eq!(shutdown.wakes(), 1);
    assert!(shutdown.poll().is_pending());
    assert!(token.is_cancelled());
    time.advance(SECOND);
    drop(guard);
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert!(report.complete);
    let took = report.took;
    assert_eq!([took.closing, took.grace, took.draining], [Duration::ZERO, 2 * SECOND, SECOND]);
}

/// ADM-15
#[test]
fn a_shutdown_whose_scope_drains_within_the_grace_does_not_wait_for_its_end() {
    let (root, time) = root();
    let guard = root.enter("work").unwrap();
    let token = root.token();
    let shutdown = root.shutdown(time.now() + 5 * SECOND).cancel_at(time.now() + 4 * SECOND);
    let mut shutdown = Polled::new(shutdown);
    assert!(shutdown.poll().is_pending());
    time.advance(SECOND);
    drop(guard);
    assert_eq!(shutdown.wakes(), 1);
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert!(report.complete && token.is_cancelled());
    assert_eq!((report.took.grace, report.took.draining), (SECOND, Duration::ZERO));
}

/// ADM-15
#[test]
fn a_grace_mark_beyond_the_deadline_counts_as_the_deadline() {
    let (root, time) = root();
    let _guard = root.enter("work").unwrap();
    let token = root.token();
    for mark in [Deadline::at(time.now() + 9 * SECOND), Deadline::never()] {
        let token = root.token();
        let before = token.is_cancelled();
        let mut shutdown = Polled::new(root.shutdown(time.now() + SECOND).cancel_at(mark));
        assert!(shutdown.poll().is_pending());
        assert_eq!(token.is_cancelled(), before);
        time.advance(SECOND);
        let Poll::Ready(report) = shutdown.poll() else { panic!("the deadline has passed") };
        assert!(!report.complete);
    }
    assert!(token.is_cancelled());
}

/// ADM-15: it is closed that they are refused for, not the deadline.
#[test]
fn a_shutdown_without_time_refuses_what_waits_as_closed() {
    let (budget, lane, scope, time) = owned_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire());
    let mut shutdown = Polled::new(scope.shutdown(time.now()));
    let Poll::Ready(report) = shutdown.poll() else { panic!("there is no time to wait") };
    assert!(is_closed_scope(&waiter.refusal()));
    assert_eq!((report.complete, report.refused), (false, 1));
    assert_eq!(budget.stats().lanes[0].refused.closed, 1);
}

/// ADM-15
#[test]
fn a_shutdown_reports_what_is_left_at_its_deadline_over_the_whole_subtree() {
    let lanes = [LaneConfig::new("files"), LaneConfig::new("tables")];
    let (_budget, [files, tables], time) = budget(8, lanes);
    let root = root_by(&time);
    let store = root.child("store").unwrap();
    let shards = ["shard 1", "shard 2"].map(|name| store.child(name).unwrap());
    let idle = root.child("idle").unwrap();
    let [of_shard, of_idle] = [&shards[1], &idle].map(|scope| files.scoped(scope));
    let of_store = tables.scoped(&store);
    let _guard = root.enter(String::from("accept")).unwrap();
    let _permits = (of_shard.try_acquire_many(3).unwrap(), of_store.try_acquire().unwrap());
    drop(of_idle.try_acquire().unwrap());
    time.advance(SECOND);
    let _task = store.track("compact", pending::<()>()).unwrap();
    let _another = of_shard.try_acquire_many(2).unwrap();
    time.advance(SECOND);

    let mut shutdown = Polled::new(root.shutdown(time.now() + 3 * SECOND));
    assert!(shutdown.poll().is_pending());
    time.advance(3 * SECOND);
    assert_eq!(shutdown.wakes(), 1);
    let Poll::Ready(report) = shutdown.poll() else { panic!("the deadline has passed") };
    assert_eq!((&*report.scope, report.complete), ("root", false));
    assert_eq!(left(&report), ["root", "root/store", "root/store/shard 2"]);
    let [of_root, of_store, of_shard] = &report.nodes[..] else { panic!("three are left") };
    assert!(report.nodes.iter().all(|node| node.phase == ScopePhase::Draining));
    let guards = |guards: &[tollgate_admission::GuardReport]| {
        let named = guards.iter().map(|guard| (guard.name.to_string(), guard.age.as_secs()));
        named.collect::<Vec<_>>()
    };
    assert_eq!(guards(&of_root.guards), [("accept".to_owned(), 5)]);
    assert_eq!(guards(&of_store.guards), [("compact".to_owned(), 4)]);
    assert!(of_root.members.is_empty() && of_shard.guards.is_empty());
    let members = |node: &tollgate_admission::NodeReport| {
        let named = node.members.iter().map(|it| (it.name.to_string(), it.permits, it.waiting));
        named.collect::<Vec<_>>()
    };
    assert_eq!(members(of_store), [("tables".to_owned(), 1, 0)]);
    assert_eq!(members(of_shard), [("files".to_owned(), 5, 0)]);
    assert_eq!(report.took.draining, 3 * SECOND);
}

/// ADM-15
#[test]
fn a_report_that_is_not_complete_can_be_asked_for_again() {
    let (root, time) = root();
    let guards = [(); 2].map(|()| root.enter("work").unwrap());
    let deadline = Deadline::at(time.now() + SECOND);
    let mut first = Polled::new(root.shutdown(deadline));
    assert!(first.poll().is_pending());
    time.advance(SECOND);
    let Poll::Ready(report) = first.poll() else { panic!("the deadline has passed") };
    assert_eq!((report.complete, report.nodes[0].guards.len()), (false, 2));
    let [one, two] = guards;
    drop(one);
    // a later deadline waits longer, and gives the scope no more time
    let mut second = Polled::new(root.shutdown(time.now() + 4 * SECOND));
    assert!(second.poll().is_pending());
    assert_eq!(root.deadline(), deadline);
    time.advance(3 * SECOND);
    assert!(second.poll().is_pending());
    let Poll::Ready(report) = Polled::new(root.shutdown(time.now())).poll() else {
        panic!("there is no time to wait")
    };
    assert_eq!((report.complete, report.nodes[0].guards.len()), (false, 1));
    drop(two);
    let Poll::Ready(report) = second.poll() else { panic!("nothing is left") };
    assert!(report.complete);
    let Poll::Ready(report) = Polled::new(root.shutdown(Deadline::never())).poll() else {
        panic!("it stays so")
    };
    assert!(report.complete && root.report().complete);
}

/// ADM-15
#[test]
fn two_shutdowns_at_once_both_report() {
    let (root, time) = root();
    let child = root.child("child").unwrap();
    let guard = child.enter("work").unwrap();
    let mut shutdowns =
        [&root, &child, &root].map(|it| Polled::new(it.shutdown(Deadline::never())));
    assert!(shutdowns.iter_mut().all(|it| it.poll().is_pending()));
    time.advance(SECOND);
    drop(guard);
    for mut shutdown in shutdowns {
        assert_eq!(shutdown.wakes(), 1);
        assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
    }
}

/// ADM-15
#[test]
fn nothing_that_comes_during_a_shutdown_gets_in_and_no_report_hides_what_did_before() {
    let (_budget, lane, scope, _) = owned_lane(4);
    let child = scope.child("child").unwrap();
    let guard = child.enter("work").unwrap();
    let mut shutdown = Polled::new(scope.shutdown(Deadline::never()));
    assert!(shutdown.poll().is_pending());
    for scope in [&scope, &child] {
        assert!(scope.child("late").is_err());
        assert!(scope.enter("late").is_err());
        assert!(scope.track("late", ready(())).is_err());
        assert!(lane.scoped(scope).try_acquire().is_err());
        assert!(scope.drain_lease(1, Deadline::never()).is_err());
    }
    assert!(is_closed_scope(&refused(lane.acquire())));
    assert!(!scope.report().complete);
    assert!(shutdown.poll().is_pending());
    drop(guard);
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
}

/// ADM-15
#[test]
fn a_shutdown_of_a_child_leaves_its_parent_open() {
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let _beside = root.enter("work").unwrap();
    let mut shutdown = Polled::new(child.shutdown(Deadline::never()));
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
    assert!(root.is_open() && root.deadline() == Deadline::never());
    assert!(!root.token().is_cancelled());
}

/// ADM-15
#[test]
#[should_panic(expected = "polled after it had completed")]
fn polling_a_completed_shutdown_panics() {
    let (root, _) = root();
    let mut shutdown = Polled::new(root.shutdown(Deadline::never()));
    assert!(shutdown.poll().is_ready());
    let _ = shutdown.poll();
}

/// ADM-15: calls that come early, and a clock that is set back.
#[test]
fn a_shutdown_waits_by_its_scopes_clock_whatever_the_clock_does() {
    let clock = HandClock::new();
    let root = Scope::root_by("root", Arc::new(clock.clone()));
    let _guard = root.enter("work").unwrap();
    clock.show(1);
    let mut shutdown = Polled::new(root.shutdown(clock.at(5)));
    assert!(shutdown.poll().is_pending());
    assert_eq!(clock.asked_for(), [5]);
    clock.call();
    assert_eq!(shutdown.wakes(), 1);
    clock.show(0);
    assert!(shutdown.poll().is_pending(), "it was early");
    assert_eq!(clock.asked_for(), [5], "another call was asked for");
    clock.show(5);
    clock.call();
    assert_eq!(shutdown.wakes(), 2);
    let Poll::Ready(report) = shutdown.poll() else { panic!("the deadline has passed") };
    assert!(!report.complete);
}

/// A clock that shows an earlier time whenever it is read.
#[derive(Debug)]
struct Backwards(Mutex<std::time::Instant>);

impl TimeSource for Backwards {
    fn now(&self) -> std::time::Instant {
        let mut now = self.0.lock().unwrap();
        *now -= SECOND;
        *now
    }
    fn prepare(&self) -> Result<(), tollgate_admission::NoTimer> {
        Ok(())
    }
    fn call_at(&self, _: std::time::Instant, _: Weak<dyn tollgate_admission::time::OnTime>) {}
}

/// ADM-15: section 5, a clock that jumps.
#[test]
fn a_shutdown_that_cancels_at_once_does_so_by_a_clock_that_goes_back() {
    let start = std::time::Instant::now() + 1_000 * SECOND;
    let root = Scope::root_by("root", Arc::new(Backwards(Mutex::new(start))));
    let guard = root.enter("work").unwrap();
    let token = root.token();
    let mut shutdown = Polled::new(root.shutdown(start));
    assert!(shutdown.poll().is_pending());
    assert!(token.is_cancelled());
    drop(guard);
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert_eq!((report.complete, report.took.total()), (true, Duration::ZERO));
}

/// ADM-13, ADM-15: whoever has no timer polls again.
#[test]
fn a_shutdown_without_a_timer_ends_when_it_is_polled_after_its_deadline() {
    let root = Scope::root_by("root", Arc::new(ClockOnly));
    let _guard = root.enter("work").unwrap();
    let mut shutdown = Polled::new(root.shutdown(Deadline::after(Duration::MAX)));
    assert!(shutdown.poll().is_pending());
    let mut shutdown = Polled::new(root.shutdown(ClockOnly.now()));
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if !report.complete));
}

/// ADM-13, ADM-15: the real timer's thread, which nobody had needed before.
#[test]
fn a_shutdown_ends_at_its_deadline_by_the_shared_timer() {
    let root = Scope::root("root");
    let _guard = root.enter("work").unwrap();
    let end = root.clone();
    let report =
        without_deadlock(move || block_on(end.shutdown(Deadline::after(Duration::from_millis(1)))));
    assert!(!report.complete);
}

// ---- members other than budgets ----

/// A pool that has what the test says.
#[derive(Default)]
struct Pool {
    remaining: Mutex<Remaining>,
    refused: AtomicU64,
    /// Runs that can be asked to stop.
    running: AtomicU64,
    calls: Mutex<Vec<&'static str>>,
}

impl Member for Pool {
    fn close(&self, _: GroupId, leased: bool) {
        self.calls.lock().unwrap().push(if leased { "close all" } else { "close" });
    }
    fn cancel(&self, _: GroupId, _: bool) -> u64 {
        self.running.swap(0, Ordering::SeqCst)
    }
    fn tighten(&self, _: GroupId, _: Deadline) {
        self.calls.lock().unwrap().push("tighten");
    }
    fn remaining(&self, _: GroupId) -> Remaining {
        self.remaining.lock().unwrap().clone()
    }
    fn refused(&self, _: GroupId) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }
}

/// Some group; what names it does not matter to the pool.
fn a_group() -> GroupId {
    use tollgate_admission::engine::{GroupOwner, State, Tick};
    struct Nobody;
    impl GroupOwner for Nobody {
        fn idle(&self) {}
        fn gone(&self, _: u64) {}
    }
    let mut state: State<()> = State::new(1, vec![LaneConfig::new("l")], 0).unwrap();
    state.open_group(Arc::new(Nobody), Tick::NEVER)
}

fn join(pool: &Arc<Pool>, scope: &Scope) -> Membership {
    let weak: Weak<Pool> = Arc::downgrade(pool);
    let membership = Membership::new(scope, weak, "pool".into());
    membership.settle(a_group(), &**pool);
    membership
}

fn job(state: JobState) -> JobInfo {
    JobInfo {
        id: JobId::new(7),
        name: "copy".into(),
        kind: JobKind::SHORT_IO,
        lane: "disk".into(),
        state,
        waited: SECOND,
        ran: Some(2 * SECOND),
    }
}

/// ADM-15
#[test]
fn a_report_has_the_jobs_and_threads_of_every_pool_that_is_registered() {
    use tollgate_admission::engine::GroupOwner;
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let pool = Arc::new(Pool::default());
    let membership = join(&pool, &child);
    let jobs = vec![job(JobState::Running), job(JobState::Abandoned), job(JobState::Running)];
    *pool.remaining.lock().unwrap() =
        Remaining { waiting: 4, permits: 3, ending: 0, threads: 2, jobs };
    pool.running.store(3, Ordering::SeqCst);
    pool.refused.store(5, Ordering::SeqCst);
    let mut shutdown = Polled::new(root.shutdown(Deadline::never()));
    assert!(shutdown.poll().is_pending());
    assert_eq!(*pool.calls.lock().unwrap(), ["close"]);
    let report = root.report();
    let member = &report.nodes[0].members[0];
    assert_eq!((&*member.name, member.waiting, member.permits, member.threads), ("pool", 4, 3, 2));
    assert_eq!((member.states.running, member.states.abandoned, member.states.total()), (2, 1, 3));
    assert_eq!(member.jobs[0], job(JobState::Running));
    assert_eq!((report.refused, report.cancelled), (5, 3));
    membership.idle();
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
    // both counts are the subtree's, also when what they are about is gone
    membership.gone(6);
    drop((membership, child));
    let report = root.report();
    assert_eq!((report.refused, report.cancelled), (6, 3));
}

/// ADM-15: those that were asked by a scope below, which is gone.
#[test]
fn who_was_asked_to_stop_by_a_child_is_counted_when_the_child_is_gone() {
    let (root, _) = root();
    let child = root.child("child").unwrap();
    let pool = Arc::new(Pool::default());
    let membership = join(&pool, &child);
    pool.running.store(2, Ordering::SeqCst);
    child.cancel();
    assert_eq!(*pool.calls.lock().unwrap(), ["close all"]);
    assert_eq!((child.report().cancelled, root.report().cancelled), (2, 2));
    drop((membership, child));
    assert_eq!(root.report().cancelled, 2);
}

/// ADM-15: work that was let in by a lease, in a member that had said it was idle.
#[test]
fn a_member_that_is_busy_again_under_a_lease_keeps_the_scope_from_being_closed() {
    use tollgate_admission::engine::GroupOwner;
    let (root, _) = root();
    let pool = Arc::new(Pool::default());
    let membership = join(&pool, &root);
    let lease = root.drain_lease(1, Deadline::never()).unwrap();
    root.close();
    membership.idle();
    let mut operation = lease.by_ref().begin("flush".into()).unwrap();
    operation.start();
    membership.busy(1);
    membership.busy(2);
    drop((operation, lease));
    assert!(!is_drained(&root));
    membership.idle();
    assert!(is_drained(&root));
}

/// ADM-15: a pool that is made while its scope closes.
#[test]
fn a_member_that_settles_after_the_close_is_closed_then() {
    let (root, time) = root();
    let pool = Arc::new(Pool::default());
    let weak: Weak<Pool> = Arc::downgrade(&pool);
    let membership = Membership::new(&root, weak, "pool".into());
    root.close();
    root.tighten(time.now());
    assert!(pool.calls.lock().unwrap().is_empty(), "it has no group to close");
    assert!(!is_drained(&root), "it may have let something in");
    membership.settle(a_group(), &*pool);
    assert_eq!(*pool.calls.lock().unwrap(), ["tighten", "close"]);
    drop(membership);
    assert!(is_drained(&root));
}

/// ADM-14: it was decided that it is idle before it was gone, and told afterwards, by another thread.
#[test]
fn a_member_that_is_told_to_be_idle_after_it_is_gone_changes_nothing() {
    use tollgate_admission::engine::GroupOwner;
    let (root, _) = root();
    let pool = Arc::new(Pool::default());
    let gone = join(&pool, &root);
    let other = join(&pool, &root);
    root.close();
    gone.gone(0);
    let in_its_place = join(&pool, &root);
    gone.idle();
    gone.busy(1);
    drop(gone);
    assert!(!is_drained(&root), "the other is not idle");
    other.idle();
    assert!(is_drained(&root));
    drop(in_its_place);
}

// ---- reports as text and as data ----

/// ADM-15
#[test]
fn a_report_reads_well() {
    let (budget, lane, scope, time) = owned_lane(4);
    let child = scope.child("store\n\"1\"").unwrap();
    let guard = scope.enter("accept").unwrap();
    let lease = child.drain_lease(3, time.now() + 8 * SECOND).unwrap();
    let permit = lane.try_acquire_many(2).unwrap();
    let operation = lease.by_ref().begin("flush".into()).unwrap();
    time.advance(2 * SECOND);
    let pool = Arc::new(Pool::default());
    let _membership = join(&pool, &child);
    let jobs = vec![job(JobState::TimedOut)];
    *pool.remaining.lock().unwrap() =
        Remaining { waiting: 0, permits: 1, ending: 0, threads: 1, jobs };
    let expected = r#"scope "root" is not closed after 0ns; 0 refused, 0 asked to stop
  "root" (draining)
    "accept", for 2s
    "only": 0 waiting, 2 permits out
  "root/store\n\"1\"" (draining)
    a drain lease for 2 more operations, which ends in 6s
      "flush", for 2s
    "pool": 0 waiting, 1 permits out, 1 threads, 0 queued, 0 running, 0 abandoned, 1 timed out
      #7 "copy" (short_io, lane "disk") timed out, still running, for 2s"#;
    scope.close();
    assert_eq!(scope.report().to_string(), expected);
    drop((guard, permit, operation, lease, _membership));
    let mut shutdown = Polled::new(scope.shutdown(Deadline::never()));
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert!(lane.try_acquire().is_err());
    let expected = "scope \"root\" is closed, after 0ns; 0 refused, 0 asked to stop";
    assert_eq!(report.to_string(), expected);
    assert_eq!(budget.stats().available, 4);
}

/// ADM-15
#[cfg(feature = "serde")]
#[test]
fn a_report_is_data_for_serde() {
    let (_budget, lane, scope, time) = owned_lane(4);
    let _guard = scope.enter("accept").unwrap();
    let lease = scope.drain_lease(3, time.now() + 8 * SECOND).unwrap();
    let _operation = lease.by_ref().begin("flush".into()).unwrap();
    let _permit = lane.try_acquire_many(2).unwrap();
    let pool = Arc::new(Pool::default());
    let _membership = join(&pool, &scope);
    let jobs = vec![job(JobState::Running)];
    *pool.remaining.lock().unwrap() =
        Remaining { waiting: 1, permits: 1, ending: 0, threads: 1, jobs };
    time.advance(2 * SECOND);
    let mut shutdown = Polled::new(scope.shutdown(time.now()));
    let Poll::Ready(report) = shutdown.poll() else { panic!("there is no time to wait") };
    let seconds = |n: u64| serde_json::json!({ "secs": n, "nanos": 0 });
    // the lease had as much time as the shutdown
    let expected = serde_json::json!({
        "scope": "root",
        "complete": false,
        "nodes": [{
            "path": "root",
            "phase": "draining",
            "guards": [{ "name": "accept", "age": seconds(2) }],
            "leases": [{
                "remaining": 0,
                "expires_in": seconds(0),
                "operations": [{ "name": "flush", "age": seconds(2) }],
            }],
            "members": [
                {
                    "name": "only", "waiting": 0, "permits": 2, "ending": 0, "threads": 0,
                    "states": { "queued": 0, "running": 0, "abandoned": 0, "timed_out": 0 },
                    "jobs": [],
                },
                {
                    "name": "pool", "waiting": 1, "permits": 1, "ending": 0, "threads": 1,
                    "states": { "queued": 0, "running": 1, "abandoned": 0, "timed_out": 0 },
                    "jobs": [{
                        "id": 7, "name": "copy", "kind": "short_io", "lane": "disk",
                        "state": "running", "waited": seconds(1), "ran": seconds(2),
                    }],
                },
            ],
        }],
        "refused": 0,
        "cancelled": 0,
        "took": { "closing": seconds(0), "grace": seconds(0), "draining": seconds(0) },
    });
    assert_eq!(serde_json::to_value(&report).unwrap(), expected);
}

// ---- what goes away, and when ----

/// ADM-14: whatever goes first.
#[test]
fn nothing_stays_registered_in_whatever_order_things_are_dropped() {
    // budget, handle, waiter, permit, scope
    for order in permutations(5) {
        for closes in [None, Some(0), Some(2), Some(4)] {
            let (budget, lane, time) = one_lane(1);
            let root = root_by(&time);
            let name = Arc::<str>::from("child");
            let scope = root.child(Arc::clone(&name)).unwrap();
            let handle = lane.scoped(&scope);
            let lane_name = Arc::clone(&budget.stats().lanes[0].name);
            let permit = handle.try_acquire().unwrap();
            let waiter = Waiter::queue(handle.acquire());
            drop(lane);
            let (mut budget, mut handle) = (Some(budget), Some(handle));
            let (mut waiter, mut permit) = (Some(waiter), Some(permit));
            let mut scope = Some(scope);
            for (step, what) in order.iter().enumerate() {
                if closes == Some(step) {
                    root.close();
                }
                match what {
                    0 => drop(budget.take()),
                    1 => drop(handle.take()),
                    2 => drop(waiter.take()),
                    3 => drop(permit.take()),
                    _ => drop(scope.take()),
                }
            }
            let context = format!("{order:?}, closed before {closes:?}");
            assert_eq!(Arc::strong_count(&name), 1, "the scope is gone: {context}");
            assert_eq!(Arc::strong_count(&lane_name), 1, "the budget is gone: {context}");
            root.close();
            assert!(is_drained(&root), "{context}");
        }
    }
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    let longer = shorter.iter().flat_map(|order| {
        (0..n).map(|at| {
            let mut order = order.clone();
            order.insert(at, n - 1);
            order
        })
    });
    longer.collect()
}

// ---- code of the user within ----

/// A waker that calls what it is given.
struct Calls<F>(F);

impl<F: Fn() + Send + Sync> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

fn calls(f: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Calls(f)))
}

/// Uses everything that a scope and a lane of it have.
fn use_everything(scope: &Scope, lane: &Lane) {
    drop(scope.child("child"));
    drop(scope.enter("work"));
    drop(scope.track("work", ready(())));
    drop(scope.drain_lease(1, Deadline::never()));
    drop(lane.scoped(scope).try_acquire());
    drop(lane.try_acquire());
    drop(scope.token());
    scope.tighten(Deadline::after(Duration::from_secs(1_000)));
    let _ = (scope.report().to_string(), format!("{scope:?}"));
    let _ = Polled::new(scope.drained()).poll();
    let _ = Polled::new(scope.shutdown(Deadline::never())).poll();
    scope.close();
    scope.cancel();
}

/// ADM-5, ADM-14: no code of the user runs under a lock.
#[test]
fn wakers_and_destructors_may_use_the_scope_from_within() {
    without_deadlock(|| {
        let (_budget, lane, root, time) = owned_lane(1);
        let scope = root.child("scope").unwrap();
        let bound = lane.scoped(&scope);
        let used = Arc::new(AtomicUsize::new(0));
        let again = {
            let (scope, lane, used) = (scope.clone(), bound.clone(), Arc::clone(&used));
            move || {
                used.fetch_add(1, Ordering::SeqCst);
                use_everything(&scope, &lane);
            }
        };
        let waker = calls(again.clone());
        // who waits: for a permit, for the scope's end, for a cancellation, for a deadline
        let permit = bound.try_acquire().unwrap();
        let mut acquire = bound.acquire();
        assert!(poll_with(&mut acquire, &waker).is_pending());
        let mut timed = bound.acquire_until(time.now() + SECOND);
        assert!(poll_with(&mut timed, &waker).is_pending());
        let mut drained = scope.drained();
        assert!(poll_with(&mut drained, &waker).is_pending());
        let token = scope.token();
        let mut cancelled = Box::pin(token.cancelled());
        assert!(poll_with(&mut cancelled, &waker).is_pending());
        let mut shutdown = root.shutdown(time.now() + 2 * SECOND).cancel_at(time.now() + SECOND);
        // a destructor, in a task that the last waker takes along
        struct AtDrop<F: Fn()>(F);
        impl<F: Fn()> Drop for AtDrop<F> {
            fn drop(&mut self) {
                (self.0)();
            }
        }
        let at_drop = AtDrop(again);
        let task = scope.track("task", async move {
            let _at_drop = at_drop;
            pending::<()>().await;
        });
        time.advance(SECOND);
        assert!(poll_with(&mut shutdown, &waker).is_pending());
        time.advance(SECOND);
        drop(task);
        drop(permit);
        assert!(poll_with(&mut shutdown, &waker).is_ready());
        assert!(used.load(Ordering::SeqCst) >= 5);
        assert!(is_drained(&root));
    });
}

/// ADM-5, ADM-14
#[test]
fn a_waker_may_drop_the_last_handle_from_within() {
    without_deadlock(|| {
        let (root, _) = root();
        let child = root.child("child").unwrap();
        let guard = child.enter("work").unwrap();
        let drained = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&drained);
        let waker = calls(move || drop(slot.lock().unwrap().take()));
        let mut wait = child.drained();
        assert!(poll_with(&mut wait, &waker).is_pending());
        *drained.lock().unwrap() = Some((wait, child));
        root.close();
        drop(guard);
        assert!(drained.lock().unwrap().is_none());
        assert!(is_drained(&root));
    });
}

/// ADM-5, ADM-14
#[test]
fn a_waker_that_panics_harms_nobody() {
    thread_local! { static PANICS: RefCell<usize> = const { RefCell::new(0) } }
    let bad = || {
        calls(|| {
            PANICS.with_borrow_mut(|panics| *panics += 1);
            panic!("on purpose");
        })
    };
    let (budget, lane, root, time) = owned_lane(1);
    // above and below the one whose waker panics, whatever the order in which they are told
    let child = root.child("child").unwrap();
    let deeper = child.child("deeper").unwrap();
    let [above, below] = [&root, &deeper].map(Scope::token);
    let permit = lane.try_acquire().unwrap();
    let mut acquire = lane.acquire();
    assert!(poll_with(&mut acquire, &bad()).is_pending());
    let waiter = Waiter::queue(lane.acquire());
    let mut drained = root.drained();
    assert!(poll_with(&mut drained, &bad()).is_pending());
    let mut awaiter = Polled::new(root.drained());
    assert!(awaiter.poll().is_pending());
    let token = child.token();
    let mut bad_wait = Box::pin(token.cancelled());
    assert!(poll_with(&mut bad_wait, &bad()).is_pending());
    let mut waits = [&above, &below].map(|token| Polled::new(Box::pin(token.cancelled())));
    assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()));
    let mut shutdown = Polled::new(root.shutdown(Deadline::never()));
    assert!(shutdown.poll().is_pending(), "the panics stay where they are");
    assert_eq!((waiter.wakes(), waits.each_ref().map(Polled::wakes)), (1, [1, 1]));
    assert!(token.is_cancelled());
    drop(permit);
    assert_eq!((awaiter.wakes(), shutdown.wakes()), (1, 1));
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
    assert_eq!(PANICS.with_borrow(|panics| *panics), 3);
    assert_eq!(budget.stats().available, 1);
    // a timer's thread, too
    let late = root_by(&time);
    let _guard = late.enter("work").unwrap();
    let mut shutdown = late.shutdown(time.now() + SECOND);
    assert!(poll_with(&mut shutdown, &bad()).is_pending());
    time.advance(SECOND);
    assert_eq!(PANICS.with_borrow(|panics| *panics), 4);
    assert!(poll_with(&mut shutdown, Waker::noop()).is_ready());
}

/// The types go where futures go.
#[test]
fn scopes_and_what_they_give_may_be_sent() {
    fn sent<T: Send + Sync + 'static>() {}
    sent::<Scope>();
    sent::<ScopeGuard>();
    sent::<tollgate_admission::Shutdown>();
    sent::<tollgate_admission::ScopeDrained>();
    sent::<tollgate_admission::DrainLease>();
    sent::<tollgate_admission::Tracked<std::future::Ready<()>>>();
    fn pinned<T: Unpin>() {}
    pinned::<tollgate_admission::Tracked<Pin<Box<dyn Future<Output = ()> + Send>>>>();
}

// ---- many ----

/// A root with this many scopes below it, each with a lane handle, an acquire that waits and a token, every third with a
/// guard. If any step of a shutdown walked the tree or the queue for each of them, it would take 10^10 steps.
fn shut_down(nodes: usize, parent_of: impl Fn(usize) -> usize) {
    let (budget, [lane], time) = budget(1, [LaneConfig::new("l").unbounded_waiting()]);
    let mut scopes = vec![root_by(&time)];
    let mut parts = Vec::with_capacity(nodes);
    let permit = lane.try_acquire().unwrap();
    for node in 1..=nodes {
        let scope = scopes[parent_of(node)].child("node").unwrap();
        let token = scope.token();
        let guard = (node % 3 == 0).then(|| scope.enter("work").unwrap());
        parts.push((Waiter::queue(lane.scoped(&scope).acquire()), token, guard));
        scopes.push(scope);
    }
    let mut shutdown = Polled::new(scopes[0].shutdown(time.now() + SECOND));
    assert!(shutdown.poll().is_pending());
    assert!(parts.iter().all(|(waiter, token, _)| waiter.wakes() == 1 && token.is_cancelled()));
    assert_eq!(budget.stats().lanes[0].waiting, 0);
    for (.., guard) in &mut parts {
        *guard = None;
    }
    assert_eq!(shutdown.wakes(), 1);
    let Poll::Ready(report) = shutdown.poll() else { panic!("nothing is left") };
    assert_eq!((report.complete, report.refused), (true, nodes as u64));
    for (waiter, ..) in parts {
        assert!(is_closed_scope(&waiter.refusal()));
    }
    drop((scopes, shutdown, permit));
    assert_eq!(budget.stats().available, 1);
}

const MANY: usize = 100_000;

/// ADM-15
#[test]
fn a_hundred_thousand_scopes_side_by_side_are_shut_down_in_one_walk() {
    shut_down(MANY, |_| 0);
}

/// ADM-15
#[test]
fn a_hundred_thousand_scopes_in_a_tree_are_shut_down_in_one_walk() {
    shut_down(MANY, |node| (node - 1) / 10);
}

/// ADM-15: nothing recurses, and nothing walks up for each of them.
#[test]
fn a_hundred_thousand_scopes_one_below_the_other_are_shut_down_in_one_walk() {
    shut_down(MANY, |node| node - 1);
}

/// ADM-15, ADM-16: of those that wait in one scope, some go on and must not be looked at for each of the others.
#[test]
fn a_hundred_thousand_acquires_of_one_scope_are_refused_whoever_waits_under_leases() {
    let (budget, [lane], time) = budget(1, [LaneConfig::new("l").unbounded_waiting()]);
    let scope = root_by(&time);
    let lane = lane.scoped(&scope);
    let lease = scope.drain_lease(u64::MAX, Deadline::never()).unwrap();
    let permit = lane.try_acquire().unwrap();
    let leased = || Waiter::queue(lane.acquire().lease(&lease));
    let first: Vec<_> = (0..MANY / 10).map(|_| leased()).collect();
    let told: Vec<_> = (0..MANY).map(|_| Waiter::queue(lane.acquire())).collect();
    let last: Vec<_> = (0..MANY / 10).map(|_| leased()).collect();
    let mut shutdown = Polled::new(scope.shutdown(time.now() + SECOND));
    assert!(shutdown.poll().is_pending());
    assert!(told.iter().all(|waiter| waiter.wakes() == 1));
    assert!(first.iter().chain(&last).all(|waiter| waiter.wakes() == 0));
    scope.cancel();
    assert!(first.iter().chain(&last).all(|waiter| waiter.wakes() == 1));
    assert_eq!(budget.stats().lanes[0].refused.closed as usize, MANY + 2 * (MANY / 10));
    drop((permit, first, told, last));
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
}
