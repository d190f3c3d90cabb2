//! The seam: an engine of another kind, in which jobs wait beside acquires.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;
use support::Polled;
use tollgate_admission::engine::{
    self, Attempt, Bound, Cause, Engine, Entered, GroupOwner, GroupStats, LaneId, Mutex, Outcome,
    Request, Resizable, Settled, State, Tick, Told, WakeList,
};
use tollgate_admission::{
    AcquireError, BuildError, Closed, Deadline, LaneConfig, ManualTime, NoTimer, Resize, Scope,
    TryAcquireError,
};

/// What waits.
enum Waiter {
    Acquire(Waker),
    Job(&'static str),
}

/// Runs a job by writing down its name; its permit comes back when it is asked to.
struct Shop {
    inner: Mutex<Inner>,
    now: AtomicU64,
}

struct Inner {
    state: State<Waiter>,
    /// Started, with what they hold.
    started: Vec<(&'static str, u64)>,
    refused: Vec<(&'static str, Cause)>,
}

const LANE: LaneId = LaneId(0);

impl Shop {
    fn new(capacity: u64, max_waiting: usize) -> Arc<Self> {
        let lane = LaneConfig::new("shop").max_waiting(max_waiting);
        let state = State::new(capacity, vec![lane], 0).unwrap();
        let inner = Inner { state, started: Vec::new(), refused: Vec::new() };
        Arc::new(Shop { inner: Mutex::new(inner), now: AtomicU64::new(1) })
    }

    fn enter(&self, job: &'static str, weight: u64) {
        let request = Request::new(LANE, weight);
        let now = || self.now();
        let entered = self.with(|state| state.enter(&request, Waiter::Job(job), now));
        match entered {
            Entered::Granted(_) => self.inner.lock().started.push((job, weight)),
            Entered::Refused(cause, _) => self.inner.lock().refused.push((job, cause)),
            Entered::Queued(_) => {}
        }
    }

    fn end(&self, job: &'static str) {
        let mut inner = self.inner.lock();
        let started = inner.started.iter().position(|&(name, _)| name == job);
        let (_, weight) = inner.started.remove(started.expect("it was started"));
        drop(inner);
        self.with(|state| state.release(&Request::new(LANE, weight).claim(), || self.now()));
    }

    fn started(&self) -> Vec<&'static str> {
        self.inner.lock().started.iter().map(|&(name, _)| name).collect()
    }
}

impl Engine for Shop {
    type Waiter = Waiter;

    fn wrap(waker: Waker) -> Waiter {
        Waiter::Acquire(waker)
    }

    fn waker(waiter: &mut Waiter) -> Option<&mut Waker> {
        match waiter {
            Waiter::Acquire(waker) => Some(waker),
            Waiter::Job(_) => None,
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut State<Waiter>) -> R) -> R {
        let mut wakes = WakeList::new();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let result = f(&mut inner.state);
        while let Some(mut settled) = inner.state.announce() {
            match settled.waiter() {
                // its slot stays, for the acquire to collect; a clone would be the user's code
                Some(Waiter::Acquire(waker)) => {
                    wakes.push(std::mem::replace(waker, Waker::noop().clone()));
                }
                Some(&mut Waiter::Job(job)) => {
                    let outcome = settled.outcome();
                    assert!(settled.since() >= Tick(1));
                    settled.take();
                    match outcome {
                        Outcome::Granted => inner.started.push((job, 1)),
                        Outcome::Refused(cause) => inner.refused.push((job, cause)),
                    }
                }
                None => unreachable!("nobody takes a waiter and leaves its place"),
            }
        }
        let told: Vec<_> = std::iter::from_fn(|| inner.state.next_told()).collect();
        drop(guard);
        wakes.wake_all();
        told.into_iter().for_each(Told::tell);
        result
    }

    fn now(&self) -> Tick {
        Tick(self.now.load(Ordering::SeqCst))
    }

    fn tick(&self, deadline: Deadline) -> Tick {
        deadline.instant().map_or(Tick::NEVER, |_| Tick::ZERO)
    }

    fn prepare_timer(&self) -> Result<(), NoTimer> {
        Err(NoTimer { source: None })
    }
}

fn request(weight: u64) -> Request {
    Request::new(LANE, weight)
}

/// ADM-3, ADM-5
#[test]
fn jobs_and_acquires_wait_in_one_queue_in_the_order_in_which_they_came() {
    let shop = Shop::new(1, 10);
    shop.enter("first", 1);
    shop.enter("second", 1);
    let mut acquire = Polled::new(engine::Acquire::new(Arc::clone(&shop), request(1)));
    assert!(acquire.poll().is_pending());
    shop.enter("third", 1);
    assert_eq!(shop.started(), ["first"]);
    shop.end("first");
    assert_eq!((shop.started(), acquire.wakes()), (vec!["second"], 0));
    shop.end("second");
    assert_eq!((shop.started(), acquire.wakes()), (vec![], 1));
    let Poll::Ready(Ok(permit)) = acquire.poll() else { panic!("it was granted") };
    drop(permit);
    assert_eq!(shop.started(), ["third"]);
}

/// ADM-7
#[test]
fn a_permit_that_is_disarmed_and_adopted_comes_back_once() {
    let shop = Shop::new(3, 0);
    let permit = engine::try_acquire(&shop, request(2)).unwrap();
    assert_eq!((permit.weight(), permit.claim().lane), (2, LANE));
    let (owner, claim, _) = permit.disarm();
    assert_eq!((claim.lane, claim.weight, owner.with(|state| state.out())), (LANE, 2, 2));
    let adopted = engine::Permit::adopt(owner, claim, None);
    assert!(Arc::ptr_eq(adopted.engine(), &shop));
    drop(adopted);
    assert_eq!(shop.with(|state| state.out()), 0);
}

/// ADM-9
#[test]
fn an_engine_can_refuse_for_reasons_of_its_own() {
    let shop = Shop::new(1, 10);
    shop.enter("running", 1);
    let busy = engine::try_acquire(&shop, request(1)).unwrap_err();
    assert_eq!(busy, TryAcquireError::Busy { lane: "shop".into() });
    let mut acquire = Polled::new(engine::Acquire::new(Arc::clone(&shop), request(1)));
    assert!(acquire.poll().is_pending());
    shop.enter("next", 1);
    shop.with(|state| state.close_lane(LANE, Closed::Runtime, || Tick(1)));
    let closed = Cause::Closed(Closed::Runtime);
    assert_eq!(shop.inner.lock().refused, [("next", closed)]);
    let Poll::Ready(Err(error)) = acquire.poll() else { panic!("it was refused") };
    assert_eq!(error, AcquireError::Closed { lane: "shop".into(), what: Closed::Runtime });
    let refused = shop.with(|state| state.stats(Tick(2)).lanes[0].refused);
    assert_eq!((refused.closed, refused.busy, refused.total()), (2, 1, 3));
}

/// ADM-11
#[test]
fn a_resize_is_written_once_for_every_engine() {
    let shop = Shop::new(1, 10);
    shop.enter("running", 1);
    shop.enter("next", 1);
    let target: &dyn Resizable = &*shop;
    Resize::new(target).capacity(2).apply().unwrap();
    assert_eq!(shop.started(), ["running", "next"]);
    assert_eq!(Resize::new(target).capacity(0).apply(), Err(BuildError::ZeroCapacity));
}

/// ADM-7, ADM-8
#[test]
fn what_an_acquire_asks_for_is_fixed_by_its_first_poll() {
    let shop = Shop::new(3, 10);
    let running = engine::try_acquire(&shop, request(2)).unwrap();
    let mut acquire = Polled::new(engine::Acquire::new(Arc::clone(&shop), request(1)));
    acquire.future.set_request(request(3));
    assert!(acquire.poll().is_pending());
    acquire.future.set_request(request(1));
    assert_eq!(acquire.future.request().weight, 3);
    drop(running);
    let Poll::Ready(Ok(permit)) = acquire.poll() else { panic!("it was granted") };
    assert_eq!(permit.weight(), 3);
    assert_eq!(shop.with(|state| state.out()), 3);
}

/// ADM-12
#[test]
fn those_who_wait_can_be_listed() {
    let shop = Shop::new(1, 10);
    for job in ["running", "first", "second"] {
        shop.enter(job, 1);
        shop.now.fetch_add(10, Ordering::SeqCst);
    }
    let mut listed = shop.with(|state| {
        let queued = state.queued_from(0, usize::MAX).1.map(|(lane, since, waiter)| match waiter {
            Waiter::Job(job) => (lane, since, *job),
            Waiter::Acquire(_) => unreachable!("no acquire was made"),
        });
        queued.collect::<Vec<_>>()
    });
    listed.sort_by_key(|&(_, since, _)| since);
    assert_eq!(listed, [(LANE, Tick(11), "first"), (LANE, Tick(21), "second")]);
}

/// ADM-7
#[test]
fn a_settled_waiter_that_is_not_taken_stays_until_it_is_collected() {
    let mut state = State::new(1, vec![LaneConfig::new("l")], 0).unwrap();
    let now = || Tick(1);
    assert!(matches!(state.enter(&request(1), 'a', now), Entered::Granted('a')));
    let Entered::Queued(key) = state.enter(&request(1), 'b', now) else { panic!("it must wait") };
    assert!(!state.has_settled());
    state.release(&Request::new(LANE, 1).claim(), now);
    assert!(state.has_settled());
    let told = state.announce().as_ref().map(Settled::key);
    assert_eq!(told, Some(key));
    assert!(!state.has_settled() && state.announce().is_none());
    assert_eq!(state.waiter_mut(key), Some(&mut 'b'));
    assert_eq!(state.collect(key), Some((Outcome::Granted, Some('b'))));
    assert_eq!((state.collect(key), state.waiter_mut(key)), (None, None));
    state.release(&Request::new(LANE, 1).claim(), now);
    assert_eq!(state.out(), 0);
}

/// ADM-8
#[test]
fn a_clock_that_shows_the_end_of_time_ends_timed_waits_and_no_others() {
    for lanes in [2, 12] {
        let untimed = LaneConfig::new("untimed");
        let timed = (1..lanes)
            .map(|n| LaneConfig::new(format!("l{n}")).queue_timeout(Duration::from_secs(1)));
        let mut state = State::new(1, std::iter::once(untimed).chain(timed).collect(), 0).unwrap();
        let now = || Tick(1);
        assert!(matches!(state.enter(&request(1), (), now), Entered::Granted(())));
        assert!(matches!(state.enter(&request(1), (), now), Entered::Queued(_)));
        let other = Request { lane: LaneId(1), ..request(1) };
        assert!(matches!(state.enter(&other, (), now), Entered::Queued(_)));
        state.advance(Tick::NEVER);
        assert_eq!((state.waiting(), state.next_deadline()), (1, Tick::NEVER));
        let told = state.next_settled().map(|(_, outcome)| outcome);
        assert_eq!(told, Some(Outcome::Refused(Cause::Deadline)));
    }
}

/// What the owner of a group was told.
#[derive(Debug, Default)]
struct Heard(std::sync::Mutex<Vec<String>>);

impl GroupOwner for Heard {
    fn idle(&self) {
        self.0.lock().unwrap().push("idle".into());
    }
    fn gone(&self, refused: u64) {
        self.0.lock().unwrap().push(format!("gone, {refused} refused"));
    }
}

/// ADM-14
#[test]
fn a_group_that_is_gone_admits_nothing_and_its_place_is_given_to_another() {
    let mut state = State::new(2, vec![LaneConfig::new("only")], 0).unwrap();
    let heard = Arc::<Heard>::default();
    let told = |state: &mut State<u32>| {
        while let Some(told) = state.next_told() {
            told.tell();
        }
        std::mem::take(&mut *heard.0.lock().unwrap())
    };
    let owner = || Arc::clone(&heard) as Arc<dyn GroupOwner>;
    let old = state.open_group(owner(), Tick::NEVER);
    let request = Request { group: Some(old), ..Request::new(LaneId(0), 1) };
    assert_eq!(state.try_acquire(&request, || Tick(1)), Attempt::Granted);
    state.close_group(old, false);
    state.let_go(old);
    assert!(told(&mut state).is_empty(), "its permit is out");
    let closed = Attempt::Refused(Cause::Closed(Closed::Scope));
    assert_eq!(state.try_acquire(&request, || Tick(1)), closed);
    state.release(&request.claim(), || Tick(1));
    assert_eq!(told(&mut state), ["gone, 1 refused"]);

    let new = state.open_group(owner(), Tick::NEVER);
    assert_ne!(old, new);
    assert_eq!(state.try_acquire(&request, || Tick(1)), closed);
    // calls on the old one do nothing to the new one
    state.tighten_group(old, Tick(1), |_| ());
    state.close_group(old, true);
    state.let_go(old);
    state.join(old);
    let request = Request { group: Some(new), ..request };
    assert_eq!(state.try_acquire(&request, || Tick(1)), Attempt::Granted);
    assert_eq!(state.group_stats(new), GroupStats { waiting: 0, out: 1, ending: 0, refused: 0 });
    assert_eq!(state.group_stats(old), GroupStats::default());
    state.release(&request.claim(), || Tick(1));
    assert!(told(&mut state).is_empty(), "it is open");
    state.close_group(new, false);
    assert_eq!(told(&mut state), ["idle"]);
    state.close_group(new, true);
    assert!(told(&mut state).is_empty(), "told once");
    state.let_go(new);
    assert_eq!(told(&mut state), ["gone, 0 refused"]);
}

/// ADM-14
#[test]
fn a_scope_owns_what_is_in_an_engine_of_any_kind() {
    let shop = Shop::new(1, 9);
    let scope = Scope::root_by("root", Arc::new(ManualTime::new()));
    let bound = Bound::new(&shop, &scope, "shop".into());
    let request = Request { group: Some(bound.group()), ..request(1) };
    let permit = engine::try_acquire(&shop, request).unwrap();
    let mut acquire = Polled::new(engine::Acquire::new(Arc::clone(&shop), request));
    assert!(acquire.poll().is_pending());
    let queued = shop.with(|state| state.enter(&request, Waiter::Job("queued"), || Tick(1)));
    assert!(matches!(queued, Entered::Queued(_)));
    let of_nobody = engine::Acquire::new(Arc::clone(&shop), self::request(1));
    let mut of_nobody = Polled::new(of_nobody);
    assert!(of_nobody.poll().is_pending());
    scope.close();
    assert_eq!((acquire.wakes(), of_nobody.wakes()), (1, 0));
    assert_eq!(shop.inner.lock().refused, [("queued", Cause::Closed(Closed::Scope))]);
    assert!(matches!(acquire.poll(), Poll::Ready(Err(AcquireError::Closed { .. }))));
    let report = scope.report();
    let member = &report.nodes[0].members[0];
    assert_eq!((&*member.name, member.permits, member.waiting), ("shop", 1, 0));
    assert_eq!((report.complete, report.refused), (false, 2));
    drop(bound);
    assert!(!scope.report().complete);
    drop(permit);
    assert!(scope.report().complete);
    assert!(matches!(of_nobody.poll(), Poll::Ready(Ok(_))));
}
