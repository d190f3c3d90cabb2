//! The budget's and the scope's own source under loom: every interleaving of two or three threads, up to a bound on preemptions.
#![cfg(tollgate_loom)]

use loom::future::block_on;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tollgate_admission::time::OnTime;
use tollgate_admission::{
    Acquire, AcquireError, Budget, Closed, Deadline, Lane, LaneConfig, ManualTime, NoTimer, Scope,
    TimeSource, TryAcquireError,
};

/// Three preemptions: every race that was put in to try the models (a look and a registration in two holds of the lock, a
/// place in the queue without a second look, a waker that is not replaced) shows at one or two, and all models together
/// take a second or two. Four take 5 s, five 16 s, seven two minutes, with nothing more to find.
const PREEMPTIONS: usize = 3;

/// Explores `f`, whose result says how it went; each of `outcomes` must have been seen, and no other.
fn model(outcomes: &[&'static str], f: impl Fn() -> &'static str + Send + Sync + 'static) {
    // both make an unfinished exploration pass
    assert!(std::env::var_os("LOOM_MAX_DURATION").is_none());
    assert!(std::env::var_os("LOOM_MAX_PERMUTATIONS").is_none());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.max_branches = 10_000;
    // not loom's: it outlives the schedules
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let results = Arc::clone(&seen);
    builder.check(move || {
        let outcome = f();
        results.lock().unwrap().insert(outcome);
    });
    assert_eq!(*seen.lock().unwrap(), BTreeSet::from_iter(outcomes.iter().copied()));
}

/// Time that passes when a test says so; the calls that were asked for are then made by the test's thread.
#[derive(Debug)]
struct Scripted {
    start: Instant,
    passed: AtomicUsize,
    calls: loom::sync::Mutex<Vec<Weak<dyn OnTime>>>,
}

impl Scripted {
    fn new() -> Arc<Self> {
        let (passed, calls) = (AtomicUsize::new(0), loom::sync::Mutex::new(Vec::new()));
        Arc::new(Scripted { start: Instant::now(), passed, calls })
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn pass(&self, seconds: usize) {
        self.passed.fetch_add(seconds, Ordering::SeqCst);
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        for target in calls.iter().filter_map(Weak::upgrade) {
            target.on_time();
        }
    }
}

impl TimeSource for Scripted {
    fn now(&self) -> Instant {
        self.at(self.passed.load(Ordering::SeqCst) as u64)
    }

    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }

    fn call_at(&self, at: Instant, target: Weak<dyn OnTime>) {
        let mut calls = self.calls.lock().unwrap();
        if self.now() < at {
            calls.push(target);
            return;
        }
        drop(calls);
        // due already: no further call of `pass` would make it. A budget holds no lock here
        if let Some(target) = target.upgrade() {
            target.on_time();
        }
    }
}

fn one_lane(capacity: u64) -> (Budget, Lane, Arc<Scripted>) {
    let time = Scripted::new();
    let builder = Budget::builder().capacity(capacity).lane(LaneConfig::new("lane"));
    let budget = builder.time(Arc::clone(&time) as Arc<dyn TimeSource>).build().unwrap();
    let lane = budget.lane("lane").unwrap();
    (budget, lane, time)
}

/// Polled once, by an executor that nobody asks again.
fn queued(mut acquire: Acquire) -> Acquire {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut acquire).poll(&mut cx).is_pending(), "it has to wait");
    acquire
}

/// All is back, nobody waits, and everybody who came was either admitted or refused.
#[track_caller]
fn check_at_rest(budget: &Budget, admitted: u64, refused: u64) {
    let stats = budget.stats();
    assert_eq!((stats.available, stats.deficit), (stats.capacity, 0));
    let lane = &stats.lanes[0];
    assert_eq!((lane.running, lane.waiting), (0, 0));
    assert_eq!((lane.admitted, lane.refused.total()), (admitted, refused));
}

/// ADM-7, A3: a hand-off against a cancel. Whether the first was granted before it left or not, the second gets the
/// permit and is woken for it.
#[test]
fn a_permit_handed_to_a_waiter_that_is_leaving_reaches_the_next() {
    model(&["first was granted", "first was not granted"], || {
        let (budget, lane, _) = one_lane(1);
        let permit = lane.try_acquire().unwrap();
        let first = queued(lane.acquire());
        let second = queued(lane.acquire());
        let release = thread::spawn(move || drop(permit));
        let cancel = thread::spawn(move || drop(first));
        drop(block_on(second).expect("the permit reaches it"));
        release.join().unwrap();
        cancel.join().unwrap();
        let admitted = budget.stats().lanes[0].admitted;
        check_at_rest(&budget, admitted, 0);
        if admitted == 3 { "first was granted" } else { "first was not granted" }
    });
}

/// ADM-7, ADM-8: a hand-off against a deadline. The waiter is granted or refused, never both, and the one behind it is
/// granted in any case.
#[test]
fn a_hand_off_and_a_deadline_settle_a_waiter_once() {
    model(&["granted", "late"], || {
        let (budget, lane, time) = one_lane(1);
        let permit = lane.try_acquire().unwrap();
        let hasty = queued(lane.acquire_until(time.at(1)));
        let patient = queued(lane.acquire());
        let release = thread::spawn(move || drop(permit));
        let timer = thread::spawn(move || time.pass(1));
        let outcome = match block_on(hasty) {
            Ok(permit) => {
                drop(permit);
                "granted"
            }
            Err(AcquireError::Deadline { .. }) => "late",
            Err(other) => panic!("{other}"),
        };
        drop(block_on(patient).expect("the permit reaches it"));
        release.join().unwrap();
        timer.join().unwrap();
        let late = u64::from(outcome == "late");
        check_at_rest(&budget, 3 - late, late);
        outcome
    });
}

/// ADM-8: a deadline against the start of the wait. The timer's call is asked for outside the lock, so time may pass in
/// between.
#[test]
fn a_deadline_that_passes_while_the_wait_begins_is_not_missed() {
    model(&["late"], || {
        let (budget, lane, time) = one_lane(1);
        let permit = lane.try_acquire().unwrap();
        let acquire = lane.acquire_until(time.at(1));
        let waiter = thread::spawn(move || block_on(acquire));
        time.pass(1);
        let result = waiter.join().unwrap();
        assert!(matches!(result, Err(AcquireError::Deadline { .. })));
        drop(permit);
        check_at_rest(&budget, 1, 1);
        "late"
    });
}

/// ADM-10: a hand-off against a close. Whoever was granted keeps the permit, whoever was not is told, and nothing is
/// granted once the close has returned.
#[test]
fn a_hand_off_and_a_close_settle_a_waiter_once() {
    model(&["granted", "closed"], || {
        let (budget, lane, _) = one_lane(1);
        let permit = lane.try_acquire().unwrap();
        let waiter = queued(lane.acquire());
        let release = thread::spawn(move || drop(permit));
        let close = {
            let budget = budget.clone();
            thread::spawn(move || {
                budget.close();
                let admitted = budget.stats().lanes[0].admitted;
                let attempt = lane.try_acquire();
                assert!(matches!(attempt, Err(TryAcquireError::Closed { .. })));
                admitted
            })
        };
        let outcome = match block_on(waiter) {
            Ok(permit) => {
                drop(permit);
                "granted"
            }
            Err(AcquireError::Closed { .. }) => "closed",
            Err(other) => panic!("{other}"),
        };
        let admitted = close.join().unwrap();
        release.join().unwrap();
        block_on(budget.drained());
        // none after the close, and the one refused try_acquire
        check_at_rest(&budget, admitted, 1 + u64::from(outcome == "closed"));
        assert_eq!(admitted, if outcome == "granted" { 2 } else { 1 });
        outcome
    });
}

/// ADM-10: a close against an acquire that has only just begun, between its first look and its place in the queue.
#[test]
fn an_acquire_that_begins_while_the_budget_closes_is_told() {
    model(&["closed"], || {
        let (budget, lane, _) = one_lane(1);
        let permit = lane.try_acquire().unwrap();
        let acquire = lane.acquire();
        let waiter = thread::spawn(move || block_on(acquire));
        budget.close();
        let result = waiter.join().unwrap();
        assert!(matches!(result, Err(AcquireError::Closed { .. })));
        drop(permit);
        check_at_rest(&budget, 1, 1);
        "closed"
    });
}

/// ADM-11: a hand-off against a resize. The large waiter is granted or told too large; the one behind it is granted in
/// any case; no permit is lost with the smaller capacity.
#[test]
fn a_hand_off_and_a_shrink_settle_a_waiter_once() {
    model(&["granted", "too large"], || {
        let (budget, lane, _) = one_lane(2);
        let permit = lane.try_acquire().unwrap();
        let large = queued(lane.acquire_many(2));
        let behind = queued(lane.acquire());
        let release = thread::spawn(move || drop(permit));
        let resize = {
            let budget = budget.clone();
            thread::spawn(move || budget.resize().capacity(1).apply().unwrap())
        };
        let outcome = match block_on(large) {
            Ok(permit) => {
                drop(permit);
                "granted"
            }
            Err(AcquireError::TooLarge { weight: 2, limit: 1, .. }) => "too large",
            Err(other) => panic!("{other}"),
        };
        drop(block_on(behind).expect("it fits in any case"));
        release.join().unwrap();
        resize.join().unwrap();
        let refused = u64::from(outcome == "too large");
        check_at_rest(&budget, 3 - refused, refused);
        outcome
    });
}

/// ADM-10: the wait for all permits against the last one's return.
#[test]
fn drained_is_told_of_the_last_permit() {
    model(&["drained"], || {
        let (budget, lane, _) = one_lane(2);
        let one = lane.try_acquire().unwrap();
        let two = lane.try_acquire().unwrap();
        let release = thread::spawn(move || drop(one));
        let close_and_release = {
            let budget = budget.clone();
            thread::spawn(move || {
                budget.close();
                drop(two);
            })
        };
        block_on(budget.drained());
        assert_eq!(budget.stats().available, 2);
        release.join().unwrap();
        close_and_release.join().unwrap();
        check_at_rest(&budget, 2, 0);
        "drained"
    });
}

/// ADM-7, ADM-13: two waiters, one of which moves to another executor while the permit comes back.
#[test]
fn a_waiter_that_is_polled_by_another_waker_during_the_hand_off_is_woken() {
    model(&["both ran"], || {
        let (budget, lane, _) = one_lane(1);
        let running = Arc::new(AtomicUsize::new(0));
        let permit = lane.try_acquire().unwrap();
        let run = |acquire: Acquire, running: &AtomicUsize| {
            let permit = block_on(acquire).expect("it is its turn");
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two run at once");
            running.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
        };
        let first = queued(lane.acquire());
        let second = queued(lane.acquire());
        let moved = {
            let running = Arc::clone(&running);
            thread::spawn(move || run(first, &running))
        };
        let release = thread::spawn(move || drop(permit));
        run(second, &running);
        moved.join().unwrap();
        release.join().unwrap();
        check_at_rest(&budget, 3, 0);
        "both ran"
    });
}

/// ADM-3, A4: a newcomer against a hand-off.
#[test]
fn try_acquire_never_passes_a_waiter_during_the_hand_off() {
    model(&["refused", "ran after the waiter"], || {
        let (budget, lane, _) = one_lane(1);
        let done = Arc::new(AtomicUsize::new(0));
        let permit = lane.try_acquire().unwrap();
        let waiter = queued(lane.acquire());
        let release = thread::spawn(move || drop(permit));
        let newcomer = {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                let attempt = lane.try_acquire();
                attempt.is_ok_and(|_permit| {
                    assert_eq!(done.load(Ordering::SeqCst), 1, "it passed the waiter");
                    true
                })
            })
        };
        let permit = block_on(waiter).expect("it is its turn");
        done.store(1, Ordering::SeqCst);
        drop(permit);
        let ran = newcomer.join().unwrap();
        release.join().unwrap();
        check_at_rest(&budget, 2 + u64::from(ran), u64::from(!ran));
        if ran { "ran after the waiter" } else { "refused" }
    });
}

/// ADM-2: acquire, release and cancel from three threads, each of which starts from nothing.
#[test]
fn no_permit_is_lost_when_two_acquire_and_one_gives_up() {
    model(&["at rest"], || {
        let (budget, lane, _) = one_lane(1);
        let acquire = |lane: Lane| move || drop(block_on(lane.acquire()).unwrap());
        let one = thread::spawn(acquire(lane.clone()));
        let two = {
            let lane = lane.clone();
            thread::spawn(move || {
                let mut acquire = lane.acquire();
                let mut cx = Context::from_waker(Waker::noop());
                drop(Pin::new(&mut acquire).poll(&mut cx));
            })
        };
        acquire(lane)();
        one.join().unwrap();
        two.join().unwrap();
        let stats = budget.stats();
        assert_eq!((stats.available, stats.lanes[0].waiting), (1, 0));
        "at rest"
    });
}

// ---- scopes ----

/// A root on a clock that stands still.
fn root() -> Scope {
    Scope::root_by("root", Arc::new(ManualTime::new()))
}

/// Whether a scope was seen to be closed with nothing left.
#[derive(Clone)]
struct Seen(Arc<AtomicUsize>);

impl Seen {
    fn nothing() -> Self {
        Seen(Arc::new(AtomicUsize::new(0)))
    }

    /// Nothing is left, for good.
    #[track_caller]
    fn drained(&self, scope: &Scope) {
        self.0.store(1, Ordering::SeqCst);
        let report = scope.report();
        assert!(report.complete && report.nodes.is_empty(), "{report}");
        assert!(scope.enter("late").is_err());
    }

    /// For who is in the scope.
    #[track_caller]
    fn not_yet(&self) {
        assert_eq!(self.0.load(Ordering::SeqCst), 0, "it was complete, and somebody is in it");
    }
}

/// ADM-14: a close against an enter, and against the wait for the end.
#[test]
fn whoever_enters_while_the_scope_closes_is_refused_or_waited_for() {
    model(&["entered", "refused"], || {
        let (root, seen) = (root(), Seen::nothing());
        let enters = {
            let (root, seen) = (root.clone(), seen.clone());
            thread::spawn(move || {
                root.enter("work").is_ok_and(|guard| {
                    seen.not_yet();
                    drop(guard);
                    true
                })
            })
        };
        root.close();
        block_on(root.drained());
        seen.drained(&root);
        if enters.join().unwrap() { "entered" } else { "refused" }
    });
}

/// ADM-15: a shutdown against a child that is opened and entered meanwhile.
#[test]
fn no_report_is_complete_while_a_child_that_was_opened_meanwhile_has_something() {
    model(&["no child", "an empty child", "entered"], || {
        let (root, seen) = (root(), Seen::nothing());
        let opens = {
            let (root, seen) = (root.clone(), seen.clone());
            thread::spawn(move || {
                let Ok(child) = root.child("child") else { return "no child" };
                let Ok(guard) = child.enter("work") else { return "an empty child" };
                seen.not_yet();
                drop(guard);
                "entered"
            })
        };
        let report = block_on(root.shutdown(Deadline::never()));
        assert!(report.complete);
        seen.drained(&root);
        opens.join().unwrap()
    });
}

/// ADM-14: the last guard against the close, with the wait under way.
#[test]
fn drained_is_told_of_the_last_guard_and_of_the_close() {
    model(&["drained"], || {
        let root = root();
        let guard = root.child("child").unwrap().enter("work").unwrap();
        let leaves = thread::spawn(move || drop(guard));
        let closes = {
            let root = root.clone();
            thread::spawn(move || root.close())
        };
        block_on(root.drained());
        assert!(root.report().complete);
        leaves.join().unwrap();
        closes.join().unwrap();
        "drained"
    });
}

/// ADM-14: a child's last handle against the close of its parent.
#[test]
fn a_scope_may_be_dropped_while_its_parent_closes() {
    model(&["drained"], || {
        let root = root();
        let child = root.child("child").unwrap();
        let drops = thread::spawn(move || drop(child));
        root.close();
        block_on(root.drained());
        drops.join().unwrap();
        "drained"
    });
}

/// ADM-15, ADM-16: a shutdown against the use of a lease. It survives, and is waited for.
#[test]
fn an_operation_that_begins_while_the_scope_is_shut_down_is_waited_for() {
    model(&["used"], || {
        let (budget, lane, _) = one_lane(1);
        let (root, seen) = (root(), Seen::nothing());
        let lane = lane.scoped(&root);
        let lease = root.drain_lease(1, Deadline::never()).unwrap();
        let uses = {
            let seen = seen.clone();
            thread::spawn(move || {
                let permit = lane.try_acquire_leased(1, &lease).expect("it survives the close");
                seen.not_yet();
                drop((permit, lease));
            })
        };
        assert!(block_on(root.shutdown(Deadline::never())).complete);
        seen.drained(&root);
        uses.join().unwrap();
        check_at_rest(&budget, 1, 0);
        "used"
    });
}

/// ADM-15, ADM-16: a shutdown against a lease that is asked for.
#[test]
fn a_lease_that_is_asked_for_while_the_scope_is_shut_down_is_refused_or_waited_for() {
    model(&["lent", "refused"], || {
        let (root, seen) = (root(), Seen::nothing());
        let asks = {
            let (root, seen) = (root.clone(), seen.clone());
            thread::spawn(move || {
                root.drain_lease(1, Deadline::never()).is_ok_and(|lease| {
                    let operation = lease.by_ref().begin("flush".into());
                    drop(lease);
                    seen.not_yet();
                    operation.is_ok()
                })
            })
        };
        assert!(block_on(root.shutdown(Deadline::never())).complete);
        seen.drained(&root);
        if asks.join().unwrap() { "lent" } else { "refused" }
    });
}

/// ADM-14, ADM-16: a cancel against the use of a lease.
#[test]
fn an_operation_that_begins_while_the_scope_is_cancelled_is_refused_or_waited_for() {
    model(&["used", "refused"], || {
        let (budget, lane, _) = one_lane(1);
        let (root, seen) = (root(), Seen::nothing());
        let lane = lane.scoped(&root);
        let lease = root.drain_lease(1, Deadline::never()).unwrap();
        let uses = {
            let seen = seen.clone();
            thread::spawn(move || {
                lane.try_acquire_leased(1, &lease).is_ok_and(|permit| {
                    seen.not_yet();
                    drop(permit);
                    true
                })
            })
        };
        root.cancel();
        block_on(root.drained());
        seen.drained(&root);
        let used = uses.join().unwrap();
        check_at_rest(&budget, u64::from(used), u64::from(!used));
        if used { "used" } else { "refused" }
    });
}

/// ADM-14: a close against an acquire of the scope that has only just begun, with a permit free.
#[test]
fn an_acquire_that_begins_while_its_scope_closes_is_refused_or_waited_for() {
    model(&["granted", "closed"], || {
        let (budget, lane, _) = one_lane(1);
        let (root, seen) = (root(), Seen::nothing());
        let lane = lane.scoped(&root);
        let acquires = {
            let seen = seen.clone();
            thread::spawn(move || match block_on(lane.acquire()) {
                Ok(permit) => {
                    seen.not_yet();
                    drop(permit);
                    true
                }
                Err(AcquireError::Closed { what: Closed::Scope, .. }) => false,
                Err(other) => panic!("{other}"),
            })
        };
        root.close();
        block_on(root.drained());
        seen.drained(&root);
        let granted = acquires.join().unwrap();
        check_at_rest(&budget, u64::from(granted), u64::from(!granted));
        if granted { "granted" } else { "closed" }
    });
}

/// ADM-14: the same with no permit free, between its first look and its place in the queue.
#[test]
fn an_acquire_that_queues_while_its_scope_closes_is_told() {
    model(&["closed"], || {
        let (budget, lane, _) = one_lane(1);
        let root = root();
        let permit = lane.try_acquire().unwrap();
        let acquire = lane.scoped(&root).acquire();
        let waits = thread::spawn(move || block_on(acquire));
        root.close();
        let result = waits.join().unwrap();
        assert!(matches!(result, Err(AcquireError::Closed { what: Closed::Scope, .. })));
        block_on(root.drained());
        drop(permit);
        check_at_rest(&budget, 1, 1);
        "closed"
    });
}

/// ADM-14: a lane that is asked for on behalf of a scope while that closes.
#[test]
fn a_lane_that_is_registered_while_the_scope_closes_is_closed_or_waited_for() {
    model(&["granted", "closed"], || {
        let (_budget, lane, _) = one_lane(1);
        let (root, seen) = (root(), Seen::nothing());
        let registers = {
            let (root, seen) = (root.clone(), seen.clone());
            thread::spawn(move || {
                lane.scoped(&root).try_acquire().is_ok_and(|permit| {
                    seen.not_yet();
                    drop(permit);
                    true
                })
            })
        };
        root.close();
        block_on(root.drained());
        seen.drained(&root);
        if registers.join().unwrap() { "granted" } else { "closed" }
    });
}

/// ADM-14, ADM-7: a hand-off against a close. The scope's waiter is granted or told, and the one behind it, which is of
/// no scope, is granted in any case.
#[test]
fn a_hand_off_and_a_close_of_the_scope_settle_a_waiter_once() {
    model(&["granted", "closed"], || {
        let (budget, lane, _) = one_lane(1);
        let root = root();
        let permit = lane.try_acquire().unwrap();
        let waiter = queued(lane.scoped(&root).acquire());
        let behind = queued(lane.acquire());
        let release = thread::spawn(move || drop(permit));
        let close = {
            let root = root.clone();
            thread::spawn(move || root.close())
        };
        let outcome = match block_on(waiter) {
            Ok(permit) => {
                drop(permit);
                "granted"
            }
            Err(AcquireError::Closed { what: Closed::Scope, .. }) => "closed",
            Err(other) => panic!("{other}"),
        };
        drop(block_on(behind).expect("it is of no scope"));
        release.join().unwrap();
        close.join().unwrap();
        block_on(root.drained());
        let refused = u64::from(outcome == "closed");
        check_at_rest(&budget, 3 - refused, refused);
        outcome
    });
}

/// ADM-14, ADM-8: a scope's deadline that comes while a wait begins is not missed.
#[test]
fn a_deadline_that_a_scope_gets_while_the_wait_begins_is_not_missed() {
    model(&["late"], || {
        let (budget, lane, time) = one_lane(1);
        let root = Scope::root_by("root", Arc::clone(&time) as Arc<dyn TimeSource>);
        let permit = lane.try_acquire().unwrap();
        let acquire = lane.scoped(&root).acquire();
        let waiter = thread::spawn(move || block_on(acquire));
        root.tighten(time.at(1));
        time.pass(1);
        let result = waiter.join().unwrap();
        assert!(matches!(result, Err(AcquireError::Deadline { .. })));
        drop(permit);
        check_at_rest(&budget, 1, 1);
        "late"
    });
}

/// ADM-15, ADM-16: a lease that ends by its deadline against the shutdown that waits for it.
#[test]
fn a_shutdown_is_told_of_a_lease_that_expires() {
    model(&["complete"], || {
        let time = Scripted::new();
        let root = Scope::root_by("root", Arc::clone(&time) as Arc<dyn TimeSource>);
        let lease = root.drain_lease(1, time.at(1)).unwrap();
        let passes = {
            let time = Arc::clone(&time);
            thread::spawn(move || time.pass(1))
        };
        assert!(block_on(root.shutdown(Deadline::never())).complete);
        assert_eq!(lease.remaining(), 0);
        passes.join().unwrap();
        "complete"
    });
}

/// ADM-15: a shutdown without a timer's call in between: the deadline against the last guard.
#[test]
fn a_shutdown_tells_what_is_so_when_its_deadline_and_the_last_guard_meet() {
    model(&["complete", "not complete"], || {
        let time = Scripted::new();
        let root = Scope::root_by("root", Arc::clone(&time) as Arc<dyn TimeSource>);
        let guard = root.enter("work").unwrap();
        let leaves = thread::spawn(move || drop(guard));
        let passes = {
            let time = Arc::clone(&time);
            thread::spawn(move || time.pass(1))
        };
        let report = block_on(root.shutdown(time.at(1)));
        leaves.join().unwrap();
        passes.join().unwrap();
        assert!(block_on(root.shutdown(Deadline::never())).complete);
        if report.complete { "complete" } else { "not complete" }
    });
}

/// ADM-14: the last handle of a budget against the close of a scope that knows it.
#[test]
fn a_budget_may_be_dropped_while_a_scope_of_its_work_closes() {
    model(&["drained"], || {
        let (budget, lane, _) = one_lane(1);
        let root = root();
        let lane = lane.scoped(&root);
        let permit = lane.try_acquire().unwrap();
        drop(budget);
        let drops = thread::spawn(move || drop((lane, permit)));
        root.close();
        block_on(root.drained());
        assert!(root.report().complete);
        drops.join().unwrap();
        "drained"
    });
}

/// ADM-14, ADM-16: a close of the parent, a cancel of the child, and somebody who waits there under a lease.
#[test]
fn a_close_and_a_cancel_below_it_tell_a_waiter_once() {
    model(&["closed"], || {
        let (budget, lane, _) = one_lane(1);
        let root = root();
        let child = root.child("child").unwrap();
        let lease = child.drain_lease(1, Deadline::never()).unwrap();
        let permit = lane.try_acquire().unwrap();
        let waiter = queued(lane.scoped(&child).acquire().lease(&lease));
        let cancels = thread::spawn(move || child.cancel());
        let closes = {
            let root = root.clone();
            thread::spawn(move || root.close())
        };
        let result = block_on(waiter);
        assert!(matches!(result, Err(AcquireError::Closed { what: Closed::Scope, .. })));
        block_on(root.drained());
        cancels.join().unwrap();
        closes.join().unwrap();
        assert_eq!(lease.remaining(), 0);
        drop(permit);
        check_at_rest(&budget, 1, 1);
        "closed"
    });
}

/// ADM-16: a lease that is dropped against an acquire under it.
#[test]
fn an_operation_that_begins_while_its_lease_is_dropped_is_refused_or_waited_for() {
    model(&["used", "refused"], || {
        let (budget, lane, _) = one_lane(1);
        let (root, seen) = (root(), Seen::nothing());
        let lease = root.drain_lease(1, Deadline::never()).unwrap();
        let acquire = lane.scoped(&root).acquire().lease(&lease);
        root.close();
        let drops = thread::spawn(move || drop(lease));
        let uses = {
            let seen = seen.clone();
            thread::spawn(move || {
                block_on(acquire).is_ok_and(|permit| {
                    seen.not_yet();
                    drop(permit);
                    true
                })
            })
        };
        block_on(root.drained());
        seen.drained(&root);
        drops.join().unwrap();
        let used = uses.join().unwrap();
        check_at_rest(&budget, u64::from(used), u64::from(!used));
        if used { "used" } else { "refused" }
    });
}
