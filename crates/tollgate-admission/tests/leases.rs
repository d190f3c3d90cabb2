//! Drain leases: what may still be begun while a scope drains.

mod support;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use support::{HandClock, Polled, Waiter, budget, granted, one_lane, refused, without_deadlock};
use tollgate_admission::{
    AcquireError, Budget, ClockOnly, Closed, Deadline, DrainLease, Lane, LaneConfig, LeaseError,
    ManualTime, Scope, ScopePhase, TimeSource, TryAcquireError,
};

const SECOND: Duration = Duration::from_secs(1);

fn root_by(time: &ManualTime) -> Scope {
    Scope::root_by("root", Arc::new(time.clone()))
}

/// A budget of one lane, the lane for a root, the root, and their time.
fn owned_lane(capacity: u64) -> (Budget, Lane, Scope, ManualTime) {
    let (budget, lane, time) = one_lane(capacity);
    let scope = root_by(&time);
    (budget, lane.scoped(&scope), scope, time)
}

fn lease(scope: &Scope, operations: u64) -> DrainLease {
    scope.drain_lease(operations, Deadline::never()).unwrap()
}

fn is_closed_scope(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Closed { what: Closed::Scope, .. })
}

/// ADM-16
#[test]
fn a_lease_is_refused_for_no_operations_for_an_expired_deadline_and_for_a_scope_that_is_not_open() {
    let time = ManualTime::new();
    let root = root_by(&time);
    let far = Deadline::at(time.now() + 9 * SECOND);
    let refusal = |operations, deadline| root.drain_lease(operations, deadline).unwrap_err();
    assert_eq!(refusal(0, far), LeaseError::NoOperations);
    for expired in [time.now(), time.now() - SECOND] {
        assert_eq!(refusal(1, expired.into()), LeaseError::Expired);
    }
    drop(root.drain_lease(1, time.now() + Duration::from_nanos(1)).unwrap());
    let child = root.child("child").unwrap();
    child.tighten(time.now());
    assert_eq!(child.drain_lease(1, far).unwrap_err(), LeaseError::Expired, "its scope's counts");
    drop(root.drain_lease(u64::MAX, Deadline::never()).unwrap());

    let guard = child.enter("work").unwrap();
    root.close();
    let closed = LeaseError::Closed { scope: "root".into() };
    assert_eq!((root.phase(), refusal(1, far)), (ScopePhase::Draining, closed.clone()));
    assert_eq!(refusal(1, time.now().into()), closed);
    assert_eq!(refusal(0, far), LeaseError::NoOperations);
    drop(guard);
    assert_eq!((root.phase(), refusal(1, far)), (ScopePhase::Closed, closed.clone()));
    assert_eq!(closed.to_string(), "scope \"root\" is draining or closed, and lends nothing");
    root.cancel();
    assert_eq!(refusal(1, far), closed);
}

/// ADM-16
#[test]
fn a_lease_survives_the_close_of_its_scope_and_of_those_above() {
    let (budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let child = root.child("child").unwrap();
    let lane = lane.scoped(&child);
    let lease = lease(&child, 3);
    child.close();
    assert!(is_closed_scope(&refused(lane.acquire())));
    drop(granted(lane.acquire().lease(&lease)));
    root.close();
    let permit = lane.try_acquire_leased(1, &lease).unwrap();
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    drop(permit);
    drop(waiter.permit());
    assert_eq!(lease.remaining(), 0);
    assert_eq!(root.phase(), ScopePhase::Closed, "it allows nothing more");
    assert_eq!((budget.stats().lanes[0].admitted, budget.stats().available), (3, 1));
}

/// ADM-16
#[test]
fn a_lease_may_be_used_while_its_scope_is_open() {
    let (_budget, lane, scope, _) = owned_lane(1);
    let lease = lease(&scope, 1);
    drop(granted(lane.acquire().lease(&lease)));
    assert_eq!(lease.remaining(), 0);
    drop(granted(lane.acquire()));
}

/// ADM-16, ADM-9
#[test]
fn what_comes_under_a_lease_that_is_exhausted_is_refused_as_such_and_counted() {
    let (budget, lane, scope, _) = owned_lane(4);
    let lease = lease(&scope, 2);
    scope.close();
    let [_one, _two] = [(); 2].map(|()| granted(lane.acquire().lease(&lease)));
    let error = refused(lane.acquire().lease(&lease));
    let expected = AcquireError::LeaseExhausted { lane: "only".into() };
    assert_eq!(error, expected);
    let text = "the drain lease allows no more operations, and lane `only` was asked for one";
    assert_eq!(error.to_string(), text);
    let attempt = lane.try_acquire_leased(1, &lease).unwrap_err();
    assert_eq!(attempt, TryAcquireError::LeaseExhausted { lane: "only".into() });
    let counted = budget.stats().lanes[0].refused;
    assert_eq!((counted.lease_exhausted, counted.total()), (2, 2));
}

/// ADM-16, ADM-9
#[test]
fn what_comes_under_a_lease_that_has_expired_is_refused_as_such_and_counted() {
    let (budget, lane, scope, time) = owned_lane(4);
    let lease = scope.drain_lease(2, time.now() + SECOND).unwrap();
    scope.close();
    let early = lane.acquire().lease(&lease);
    time.advance(SECOND);
    assert_eq!(refused(early), AcquireError::LeaseExpired { lane: "only".into() });
    let error = refused(lane.acquire().lease(&lease));
    assert_eq!(error.to_string(), "the drain lease had expired when lane `only` was asked");
    let attempt = lane.try_acquire_leased(1, &lease).unwrap_err();
    assert_eq!(attempt, TryAcquireError::LeaseExpired { lane: "only".into() });
    let counted = budget.stats().lanes[0].refused;
    assert_eq!((counted.lease_expired, counted.total()), (3, 3));
    assert_eq!(lease.remaining(), 0);
    assert_eq!(scope.phase(), ScopePhase::Closed);
}

/// ADM-16
#[test]
fn an_operation_takes_from_the_allowance_and_gives_it_back_if_it_never_starts() {
    let (budget, [lane], time) = budget(1, [LaneConfig::new("l").queue_timeout(SECOND)]);
    let scope = root_by(&time);
    let lane = lane.scoped(&scope);
    let lease = lease(&scope, 3);
    let fresh = lane.acquire().lease(&lease);
    assert_eq!(lease.remaining(), 3, "not before its first poll");
    drop(fresh);
    let permit = granted(lane.acquire().lease(&lease));
    assert_eq!(lease.remaining(), 2);
    // dropped while it waits
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    assert_eq!(lease.remaining(), 1);
    drop(waiter);
    assert_eq!(lease.remaining(), 2);
    // refused while it waits
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    time.advance(SECOND);
    assert_eq!(lease.remaining(), 1, "until it has looked");
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
    assert_eq!(lease.remaining(), 2);
    // refused at once
    refused(lane.acquire_many(2).lease(&lease));
    refused(lane.acquire_many(0).lease(&lease));
    assert!(lane.try_acquire_leased(1, &lease).is_err());
    refused(lane.acquire_until(time.now()).lease(&lease));
    assert_eq!(lease.remaining(), 2);
    // granted, and dropped before it looked
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    drop(permit);
    assert_eq!(lease.remaining(), 1);
    drop(waiter);
    assert_eq!((lease.remaining(), budget.stats().available), (2, 1));
    // one that ended keeps what it took
    drop(lane.try_acquire_leased(1, &lease).unwrap());
    assert_eq!(lease.remaining(), 1);
}

/// ADM-16
#[test]
fn an_allowance_that_was_given_back_can_be_used_while_the_scope_drains() {
    let (_budget, lane, scope, _) = owned_lane(1);
    let lease = lease(&scope, 1);
    scope.close();
    let permit = granted(lane.acquire().lease(&lease));
    assert_eq!(lease.remaining(), 0);
    drop(permit);
    assert_eq!(scope.phase(), ScopePhase::Closed, "the only one was used");

    let (_budget, lane, scope, _) = owned_lane(1);
    let lease = self::lease(&scope, 1);
    scope.close();
    let other = lane.try_acquire_leased(2, &lease);
    assert!(matches!(other, Err(TryAcquireError::TooLarge { .. })));
    assert_eq!((lease.remaining(), scope.phase()), (1, ScopePhase::Draining));
    drop(granted(lane.acquire().lease(&lease)));
    assert_eq!(scope.phase(), ScopePhase::Closed);
}

/// ADM-16: what is moved is the lease itself.
#[test]
fn a_lease_that_moves_takes_its_allowance_along() {
    let (_budget, lane, scope, _) = owned_lane(2);
    let lease = lease(&scope, 2);
    let _first = granted(lane.acquire().lease(&lease));
    let moved = std::thread::spawn(move || lease).join().unwrap();
    assert_eq!(moved.remaining(), 1);
    let _second = granted(lane.acquire().lease(&moved));
    assert_eq!(moved.remaining(), 0);
}

// ---- deadlines ----

/// ADM-16
#[test]
fn a_lease_never_extends_its_own_or_its_scopes_deadline() {
    let time = ManualTime::new();
    let scope = root_by(&time);
    let [one, two, three, four] = [1, 2, 3, 4].map(|n| Deadline::at(time.now() + n * SECOND));
    let endless = lease(&scope, 1);
    let own = scope.drain_lease(1, three).unwrap();
    assert_eq!((endless.deadline(), own.deadline()), (Deadline::never(), three));
    scope.tighten(four);
    assert_eq!((endless.deadline(), own.deadline()), (four, three));
    scope.tighten(two);
    assert_eq!((endless.deadline(), own.deadline()), (two, two));
    let late = scope.drain_lease(1, three).unwrap();
    assert_eq!((late.deadline(), scope.deadline()), (two, two));
    scope.close();
    let all = [&endless, &own, &late];
    time.advance(2 * SECOND - Duration::from_nanos(1));
    assert_eq!(all.map(DrainLease::remaining), [1; 3]);
    assert_eq!(scope.phase(), ScopePhase::Draining);
    let mut drained = Polled::new(scope.drained());
    assert!(drained.poll().is_pending());
    time.advance(Duration::from_nanos(1));
    assert_eq!(drained.wakes(), 1, "woken at the deadline");
    assert_eq!(all.map(DrainLease::remaining), [0; 3]);
    assert_eq!(scope.phase(), ScopePhase::Closed);
    assert!(one.has_passed(time.now()));
}

/// ADM-16, ADM-8
#[test]
fn a_wait_under_a_lease_ends_with_the_lease() {
    let (_budget, lane, scope, time) = owned_lane(1);
    let start = time.now();
    let lease = scope.drain_lease(4, start + 2 * SECOND).unwrap();
    let permit = granted(lane.acquire().lease(&lease));
    scope.close();
    let patient = Waiter::queue(lane.acquire_until(start + 9 * SECOND).lease(&lease));
    let hasty = Waiter::queue(lane.acquire().lease(&lease).until(start + SECOND));
    time.advance(SECOND);
    assert_eq!((hasty.wakes(), patient.wakes()), (1, 0));
    time.advance(SECOND);
    assert_eq!(patient.wakes(), 1);
    assert!(matches!(patient.refusal(), AcquireError::Deadline { .. }));
    assert!(matches!(hasty.refusal(), AcquireError::Deadline { .. }));
    // what has begun goes on
    assert_eq!(scope.phase(), ScopePhase::Draining);
    drop(permit);
    assert_eq!(scope.phase(), ScopePhase::Closed);
}

/// ADM-16, ADM-14
#[test]
fn tightening_a_scope_ends_its_leases_and_the_waits_under_them_earlier() {
    let (_budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let child = root.child("child").unwrap();
    let lane = lane.scoped(&child);
    let _held = lane.try_acquire().unwrap();
    let lease = child.drain_lease(2, time.now() + 9 * SECOND).unwrap();
    child.close();
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    root.tighten(time.now() + SECOND);
    time.advance(SECOND);
    assert_eq!(waiter.wakes(), 1);
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
    assert_eq!(
        refused(lane.acquire().lease(&lease)),
        AcquireError::LeaseExpired { lane: "only".into() }
    );
    assert_eq!(lease.remaining(), 0);
}

/// ADM-16: the timer has not called.
#[test]
fn a_lease_whose_time_is_up_counts_as_ended_before_the_timer_calls() {
    let clock = HandClock::new();
    let builder = Budget::builder().capacity(1).time(Arc::new(clock.clone()));
    let lane = builder.lane(LaneConfig::new("l")).build().unwrap().lane("l").unwrap();
    let scope = Scope::root_by("root", Arc::new(clock.clone()));
    let lane = lane.scoped(&scope);
    let lease = scope.drain_lease(1, clock.at(3)).unwrap();
    assert_eq!(clock.asked_for(), [3], "the timer was made ready, and asked");
    scope.close();
    clock.show(3);
    assert_eq!(lease.remaining(), 0);
    assert_eq!(
        refused(lane.acquire().lease(&lease)),
        AcquireError::LeaseExpired { lane: "l".into() }
    );
    assert!(scope.report().complete);
    assert_eq!(scope.phase(), ScopePhase::Closed);
    clock.call();
    assert!(clock.asked_for().is_empty());
}

/// ADM-13, ADM-16
#[test]
fn without_a_timer_a_lease_ends_with_the_first_look_after_its_time() {
    let clock = HandClock::new();
    #[derive(Debug)]
    struct Untimed(HandClock);
    impl TimeSource for Untimed {
        fn now(&self) -> std::time::Instant {
            self.0.now()
        }
        fn prepare(&self) -> Result<(), tollgate_admission::NoTimer> {
            ClockOnly.prepare()
        }
        fn call_at(
            &self,
            _: std::time::Instant,
            _: std::sync::Weak<dyn tollgate_admission::time::OnTime>,
        ) {
        }
    }
    let scope = Scope::root_by("root", Arc::new(Untimed(clock.clone())));
    let _lease = scope.drain_lease(1, clock.at(3)).unwrap();
    let mut shutdown = Polled::new(scope.shutdown(clock.at(5)));
    assert!(shutdown.poll().is_pending());
    clock.show(3);
    assert!(matches!(shutdown.poll(), Poll::Ready(report) if report.complete));
}

/// ADM-16: the last moment of both is one.
#[test]
fn a_lease_that_ends_with_the_shutdown_does_not_keep_it_from_being_complete() {
    let time = ManualTime::new();
    let scope = root_by(&time);
    // asked for in either order
    for early in [true, false] {
        let child = scope.child("child").unwrap();
        let lease = early.then(|| child.drain_lease(1, time.now() + SECOND).unwrap());
        let mut shutdown = child.shutdown(time.now() + SECOND);
        let lease = lease.unwrap_or_else(|| self::lease(&child, 1));
        let mut shutdown = Polled::new(&mut shutdown);
        assert!(shutdown.poll().is_pending());
        time.advance(SECOND);
        let Poll::Ready(report) = shutdown.poll() else { panic!("the deadline has passed") };
        assert!(report.complete, "{report}");
        assert_eq!(lease.remaining(), 0);
    }
}

// ---- queues ----

/// ADM-16
#[test]
fn lane_limits_and_queue_timeouts_apply_to_what_comes_under_a_lease() {
    let lanes = [
        LaneConfig::new("l").limit(2).queue_timeout(SECOND),
        LaneConfig::new("none").queue_timeout(Duration::ZERO),
        LaneConfig::new("kept").reserved(1).kept(1),
    ];
    let (budget, [lane, none, _kept], time) = budget(4, lanes);
    let scope = root_by(&time);
    let [lane, none] = [lane, none].map(|lane| lane.scoped(&scope));
    let lease = lease(&scope, 9);
    scope.close();
    let error = refused(lane.acquire_many(3).lease(&lease));
    assert!(matches!(error, AcquireError::TooLarge { weight: 3, limit: 2, .. }));
    let permit = granted(lane.acquire_many(2).lease(&lease));
    assert!(matches!(lane.try_acquire_leased(1, &lease), Err(TryAcquireError::Busy { .. })));
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    time.advance(SECOND);
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
    let other = granted(none.acquire().lease(&lease));
    // what is kept for another lane is not for it either
    assert!(matches!(refused(none.acquire().lease(&lease)), AcquireError::Deadline { .. }));
    assert_eq!(budget.stats().available, 1);
    drop((permit, other));
    budget.close();
    let error = refused(lane.acquire().lease(&lease));
    assert!(matches!(error, AcquireError::Closed { what: Closed::Budget, .. }));
}

/// ADM-16
#[test]
fn what_comes_under_a_lease_waits_though_the_queue_is_full_in_order_of_arrival() {
    for max_waiting in [0, 1, 2] {
        let (budget, [lane], time) = budget(1, [LaneConfig::new("l").max_waiting(max_waiting)]);
        let scope = root_by(&time);
        let lease = lease(&scope, 2);
        let permit = lane.try_acquire().unwrap();
        let before: Vec<_> = (0..max_waiting).map(|_| Waiter::queue(lane.acquire())).collect();
        assert!(matches!(refused(lane.acquire()), AcquireError::QueueFull { .. }));
        let leased = [(); 2].map(|()| Waiter::queue(lane.scoped(&scope).acquire().lease(&lease)));
        // it takes nobody's place: the queue has as much room for the others as before
        assert!(matches!(refused(lane.acquire()), AcquireError::QueueFull { .. }));
        let stats = &budget.stats().lanes[0];
        assert_eq!((stats.waiting, stats.refused.queue_full), (max_waiting + 2, 2));
        drop(permit);
        for waiter in before {
            assert_eq!((waiter.wakes(), leased[0].wakes()), (1, 0), "it passes nobody");
            let permit = waiter.permit();
            let after = (max_waiting > 0).then(|| Waiter::queue(lane.acquire()));
            drop((after, permit));
        }
        let [one, two] = leased;
        assert_eq!((one.wakes(), two.wakes()), (1, 0));
        if max_waiting > 0 {
            // behind both of them
            let last = Waiter::queue(lane.acquire());
            drop(one.permit());
            assert_eq!((two.wakes(), last.wakes()), (1, 0));
            drop(two.permit());
            drop(last.permit());
        }
    }
}

/// ADM-16, ADM-3: a newcomer does not pass it either.
#[test]
fn nobody_passes_what_waits_under_a_lease() {
    let (_budget, lane, scope, _) = owned_lane(2);
    let lease = lease(&scope, 1);
    let permit = lane.try_acquire().unwrap();
    let waiter = Waiter::queue(lane.acquire_many(2).lease(&lease));
    assert!(matches!(lane.try_acquire(), Err(TryAcquireError::Busy { .. })));
    let behind = Waiter::queue(lane.acquire());
    drop(permit);
    assert_eq!((waiter.wakes(), behind.wakes()), (1, 0));
    drop(waiter.permit());
    drop(behind.permit());
}

// ---- what is open, and what ends it ----

/// ADM-15, ADM-16
#[test]
fn a_usable_lease_keeps_its_scope_from_being_closed_and_so_does_an_operation() {
    let (_budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let child = root.child("child").unwrap();
    let lane = lane.scoped(&child);
    let lease = child.drain_lease(1, time.now() + 9 * SECOND).unwrap();
    let mut shutdown = Polled::new(root.shutdown(time.now() + SECOND));
    assert!(shutdown.poll().is_pending());
    let report = root.report();
    assert_eq!((report.complete, &*report.nodes[0].path), (false, "root/child"));
    let left = &report.nodes[0].leases[0];
    // the shutdown's deadline is the scope's
    assert_eq!((left.remaining, left.expires_in), (1, Some(SECOND)));
    assert!(left.operations.is_empty());
    let permit = granted(lane.acquire().lease(&lease));
    time.advance(SECOND);
    let Poll::Ready(report) = shutdown.poll() else { panic!("the deadline has passed") };
    assert!(!report.complete);
    let node = &report.nodes[0];
    assert_eq!(node.leases[0].remaining, 0);
    assert_eq!(node.leases[0].operations[0].name.as_str(), "only", "named by its lane");
    assert_eq!(node.leases[0].operations[0].age, SECOND);
    assert_eq!(node.members[0].permits, 1);
    drop(lease);
    assert_eq!(root.phase(), ScopePhase::Draining, "the operation goes on");
    let mut drained = Polled::new(root.drained());
    assert!(drained.poll().is_pending());
    drop(permit);
    assert_eq!(drained.wakes(), 1);
    assert!(root.report().complete);
}

/// ADM-16
#[test]
fn dropping_a_lease_ends_it_and_what_has_begun_goes_on() {
    let (budget, lane, scope, _) = owned_lane(1);
    let lease = lease(&scope, 5);
    let never_polled = lane.acquire().lease(&lease);
    let permit = granted(lane.acquire().lease(&lease));
    let waiter = Waiter::queue(lane.acquire().lease(&lease));
    scope.close();
    drop(lease);
    assert!(is_closed_scope(&refused(never_polled)));
    assert_eq!((waiter.wakes(), scope.phase()), (0, ScopePhase::Draining));
    drop(permit);
    let permit = waiter.permit();
    assert_eq!(scope.phase(), ScopePhase::Draining);
    drop(permit);
    assert_eq!(scope.phase(), ScopePhase::Closed);
    assert_eq!(budget.stats().lanes[0].refused.closed, 1);
}

/// ADM-16
#[test]
fn dropping_an_unused_lease_lets_its_scope_close() {
    let time = ManualTime::new();
    let scope = root_by(&time);
    let [one, two] = [lease(&scope, 1), lease(&scope, u64::MAX)];
    scope.close();
    let mut drained = Polled::new(scope.drained());
    assert!(drained.poll().is_pending());
    drop(one);
    assert_eq!(drained.wakes(), 0);
    drop(two);
    assert_eq!(drained.wakes(), 1);
}

/// ADM-14, ADM-16
#[test]
fn cancelling_a_scope_revokes_the_leases_in_its_subtree() {
    let (budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let [ended, sibling] = ["ended", "sibling"].map(|name| root.child(name).unwrap());
    let below = ended.child("below").unwrap();
    let scopes = [&root, &ended, &below, &sibling];
    let leases = scopes.map(|scope| lease(scope, 2));
    let lanes = scopes.map(|scope| lane.scoped(scope));
    let permit = granted(lanes[2].acquire().lease(&leases[2]));
    // closed first: under their leases they may wait all the same
    root.close();
    let waiters = [0, 1, 2, 3].map(|at| Waiter::queue(lanes[at].acquire().lease(&leases[at])));
    ended.cancel();
    assert_eq!(waiters.each_ref().map(Waiter::wakes), [0, 1, 1, 0]);
    assert_eq!(leases.each_ref().map(DrainLease::remaining), [1, 0, 0, 1]);
    for at in [1, 2] {
        assert!(is_closed_scope(&refused(lanes[at].acquire().lease(&leases[at]))));
        assert!(lanes[at].try_acquire_leased(1, &leases[at]).is_err());
    }
    let [of_root, of_ended, of_below, of_sibling] = waiters;
    for waiter in [of_ended, of_below] {
        assert!(is_closed_scope(&waiter.refusal()));
    }
    assert_eq!((ended.phase(), root.phase()), (ScopePhase::Draining, ScopePhase::Draining));
    drop(permit);
    assert_eq!(ended.phase(), ScopePhase::Closed);
    drop(of_root.permit());
    drop(of_sibling.permit());
    assert_eq!(budget.stats().lanes[0].refused.closed, 6);
    drop(leases);
    assert_eq!(root.phase(), ScopePhase::Closed);
}

/// ADM-16
#[test]
fn what_is_refused_under_a_revoked_lease_counts_for_its_scope_as_for_its_lane() {
    let (budget, lane, scope, _time) = owned_lane(1);
    let lease = lease(&scope, 2);
    scope.cancel();
    assert!(is_closed_scope(&refused(lane.acquire().lease(&lease))));
    assert!(lane.try_acquire_leased(1, &lease).is_err());
    assert_eq!((budget.stats().lanes[0].refused.closed, scope.report().refused), (2, 2));
}

// ---- whose operation it is ----

/// ADM-14, ADM-16: through a handle for no scope, and through one that was made when the scope drained already.
#[test]
fn an_operation_belongs_to_the_scope_of_its_lease_whatever_the_handle_is_for() {
    for handle in ["plain", "of another", "late"] {
        let (_budget, lane, time) = one_lane(1);
        let root = root_by(&time);
        let [scope, other] = ["scope", "other"].map(|name| root.child(name).unwrap());
        let lease = lease(&scope, 3);
        scope.close();
        let handle = match handle {
            "plain" => lane.clone(),
            "of another" => lane.scoped(&other),
            _ => lane.scoped(&scope),
        };
        let permit = handle.try_acquire_leased(1, &lease).unwrap();
        let waiters = [(); 2].map(|()| Waiter::queue(handle.acquire().lease(&lease)));
        drop(handle);
        other.close();
        assert_eq!(other.phase(), ScopePhase::Closed, "nothing of it is there");
        let report = scope.report();
        let members = report.nodes[0].members.iter();
        let sums = members.fold((0, 0), |sum, it| (sum.0 + it.waiting, sum.1 + it.permits));
        assert_eq!(sums, (2, 1));
        let [granted, refused] = waiters;
        drop(permit);
        let permit = granted.permit();
        scope.cancel();
        assert!(is_closed_scope(&refused.refusal()));
        assert_eq!(scope.phase(), ScopePhase::Draining);
        drop(permit);
        assert_eq!(scope.phase(), ScopePhase::Closed);
    }
}

/// ADM-15, ADM-16: a lease of an open scope does not open another.
#[test]
fn a_lease_of_one_scope_lets_nothing_into_another() {
    let (_budget, lane, time) = one_lane(1);
    let root = root_by(&time);
    let [scope, other] = ["scope", "other"].map(|name| root.child(name).unwrap());
    let handle = lane.scoped(&scope);
    let lease = lease(&other, 1);
    scope.close();
    assert_eq!(scope.phase(), ScopePhase::Closed);
    let _permit = granted(handle.acquire().lease(&lease));
    assert!(scope.report().complete);
    other.close();
    assert!(!other.report().complete);
}

/// ADM-14, ADM-16
#[test]
fn a_tightened_deadline_reaches_what_waits_through_a_handle_that_was_made_late() {
    let (_budget, lane, time) = one_lane(1);
    let scope = root_by(&time);
    let _permit = lane.try_acquire().unwrap();
    let lease = lease(&scope, 2);
    scope.close();
    let late = lane.scoped(&scope);
    let waiters = [&late, &lane].map(|lane| Waiter::queue(lane.acquire().lease(&lease)));
    scope.tighten(time.now() + SECOND);
    time.advance(SECOND);
    for waiter in waiters {
        assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
    }
    assert_eq!(scope.phase(), ScopePhase::Closed);
}

/// ADM-16: set on an acquire that waits already, it has no effect.
#[test]
fn a_lease_that_is_given_after_the_first_poll_changes_nothing() {
    let (_budget, lane, scope, _) = owned_lane(1);
    let other = scope.child("other").unwrap();
    let lease = lease(&other, 1);
    let permit = lane.try_acquire().unwrap();
    let Waiter { future, .. } = Waiter::queue(lane.acquire());
    let mut waiter = Polled::new(future.lease(&lease));
    assert!(waiter.poll().is_pending());
    assert_eq!(lease.remaining(), 1);
    other.close();
    drop(permit);
    let permit = waiter.permit();
    drop((lease, lane));
    scope.close();
    assert_eq!((other.phase(), scope.phase()), (ScopePhase::Closed, ScopePhase::Draining));
    drop(permit);
    assert_eq!(scope.phase(), ScopePhase::Closed);
}

/// ADM-16: whatever goes first.
#[test]
fn nothing_is_left_in_whatever_order_leases_and_operations_are_dropped() {
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1], [0, 2, 1, 3]];
    for order in orders {
        let (budget, lane, time) = one_lane(1);
        let root = root_by(&time);
        let name = Arc::<str>::from("child");
        let child = root.child(Arc::clone(&name)).unwrap();
        let lane = lane.scoped(&child);
        let lease = lease(&child, 9);
        let fresh = lane.acquire().lease(&lease);
        let permit = granted(lane.acquire().lease(&lease));
        let waiter = Waiter::queue(lane.acquire().lease(&lease));
        drop((child, lane));
        let mut parts: [Option<Box<dyn std::any::Any>>; 4] = [
            Some(Box::new(lease)),
            Some(Box::new(fresh)),
            Some(Box::new(permit)),
            Some(Box::new(waiter)),
        ];
        root.close();
        for part in order {
            // an acquire that was not polled has begun nothing
            let left = [0, 2, 3].iter().any(|&part: &usize| parts[part].is_some());
            assert_eq!(root.phase() == ScopePhase::Draining, left, "{order:?}");
            parts[part] = None;
        }
        drop(parts);
        assert_eq!((root.phase(), Arc::strong_count(&name)), (ScopePhase::Closed, 1), "{order:?}");
        assert_eq!(budget.stats().available, 1);
    }
}

/// ADM-5, ADM-16: no code of the user runs under a lock.
#[test]
fn a_waker_may_use_the_lease_from_within() {
    without_deadlock(|| {
        let (_budget, lane, scope, time) = owned_lane(1);
        let lease = Arc::new(scope.drain_lease(5, time.now() + SECOND).unwrap());
        struct Uses(Arc<DrainLease>, Lane, Scope);
        impl std::task::Wake for Uses {
            fn wake(self: Arc<Self>) {
                let Uses(lease, lane, scope) = &*self;
                let _ = (lease.remaining(), lease.deadline(), format!("{lease:?}"));
                drop(lane.try_acquire_leased(1, lease));
                let _ = Polled::new(lane.acquire().lease(lease)).poll();
                drop(scope.report());
            }
        }
        let waker = Arc::new(Uses(Arc::clone(&lease), lane.clone(), scope.clone())).into();
        let permit = lane.try_acquire().unwrap();
        let mut acquire = lane.acquire().lease(&lease);
        assert!(support::poll_with(&mut acquire, &waker).is_pending());
        let mut drained = scope.drained();
        assert!(support::poll_with(&mut drained, &waker).is_pending());
        scope.close();
        time.advance(SECOND);
        drop(permit);
        assert!(support::poll_with(&mut acquire, &waker).is_ready());
        assert!(support::poll_with(&mut drained, &waker).is_ready());
    });
}
