//! Whoever polls, and whatever its wakers do.

mod support;

use hooked::{Event, hooked_waker};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use support::{Counter, Polled, Waiter, block_on, budget, one_lane, poll_with, without_deadlock};
use tollgate_admission::{
    Acquire, AcquireError, Budget, Deadline, Lane, LaneConfig, Permit, TimeSource,
};

/// Tells once the future has been polled and has to wait.
async fn telling<F: Future>(future: F, waits: mpsc::Sender<()>) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let poll = future.as_mut().poll(cx);
        if poll.is_pending() {
            waits.send(()).unwrap();
        }
        poll
    })
    .await
}

fn tokio_without_timer() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// ADM-13
#[test]
fn a_plain_block_on_is_executor_enough() {
    let (_budget, lane, time) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let (waits, waiting) = mpsc::channel();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| block_on(telling(lane.acquire(), waits)));
        waiting.recv().unwrap();
        drop(permit);
        drop(patient.join().unwrap().expect("it was handed on"));
    });
    let _permit = lane.try_acquire().unwrap();
    let (waits, waiting) = mpsc::channel();
    let until = time.now() + Duration::from_secs(1);
    std::thread::scope(|scope| {
        let hasty = scope.spawn(|| block_on(telling(lane.acquire_until(until), waits)));
        waiting.recv().unwrap();
        time.advance(Duration::from_secs(1));
        let error = hasty.join().unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Deadline { .. }));
    });
}

/// ADM-13, section 5: a runtime without timers.
#[test]
fn a_tokio_runtime_without_a_timer_waits_under_a_deadline() {
    let budget = Budget::builder().capacity(1).lane(LaneConfig::new("l")).build().unwrap();
    let lane = budget.lane("l").unwrap();
    let permit = lane.try_acquire().unwrap();
    tokio_without_timer().block_on(async {
        let soon = Deadline::after(Duration::from_millis(10));
        let error = lane.acquire_until(soon).await.unwrap_err();
        assert!(matches!(error, AcquireError::Deadline { .. }));
        let waiting = tokio::task::spawn(lane.acquire_until(Deadline::after(Duration::MAX)));
        tokio::task::yield_now().await;
        drop(permit);
        drop(waiting.await.unwrap().expect("it was handed on"));
    });
}

/// ADM-13, ADM-7
#[test]
fn the_waker_of_the_latest_poll_is_the_one_that_is_woken() {
    let (_budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let mut acquire = lane.acquire();
    let wakers = [(); 3].map(|()| Arc::new(Counter::default()));
    for waker in &wakers {
        assert!(poll_with(&mut acquire, &Waker::from(Arc::clone(waker))).is_pending());
    }
    drop(permit);
    assert_eq!(wakers.each_ref().map(|waker| waker.wakes()), [0, 0, 1]);
    // it is granted, whoever polls next
    assert!(poll_with(&mut acquire, &Waker::from(Arc::clone(&wakers[0]))).is_ready());
}

/// ADM-13
#[test]
fn an_acquire_may_move_from_one_executor_to_another_while_it_waits() {
    let (_budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let mut acquire = lane.acquire();
    // one poll by the plain executor, which gives up then
    block_on(poll_fn(|cx| {
        assert!(std::pin::Pin::new(&mut acquire).poll(cx).is_pending());
        Poll::Ready(())
    }));
    let (waits, waiting) = mpsc::channel();
    let moved = std::thread::spawn(|| {
        tokio_without_timer().block_on(async { tokio::task::spawn(telling(acquire, waits)).await })
    });
    waiting.recv().unwrap();
    drop(permit);
    drop(moved.join().unwrap().unwrap().expect("the second executor is woken"));
}

/// ADM-13
#[test]
fn what_a_budget_hands_out_can_be_sent_and_shared() {
    fn is<T: Send + Sync + Unpin + 'static>() {}
    is::<Budget>();
    is::<Lane>();
    is::<Permit>();
    is::<Acquire>();
    is::<AcquireError>();
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_error::<tollgate_admission::BuildError>();
    is_error::<tollgate_admission::TryAcquireError>();
    is_error::<tollgate_admission::NoTimer>();
}

// ---- wakers that do what they should not ----

/// Panics when it is woken, with something that panics when it is dropped.
struct Grenade;

impl Wake for Grenade {
    fn wake(self: Arc<Self>) {
        struct Shrapnel;
        impl Drop for Shrapnel {
            fn drop(&mut self) {
                panic!("a payload that panics when it is dropped");
            }
        }
        std::panic::panic_any(Shrapnel);
    }
}

fn queue_grenade(mut acquire: Acquire) -> Acquire {
    assert!(poll_with(&mut acquire, &Waker::from(Arc::new(Grenade))).is_pending());
    acquire
}

/// ADM-5, ADM-7, section 5: a destructor that panics.
#[test]
fn a_waker_that_panics_harms_neither_the_releaser_nor_the_other_waiters() {
    let (budget, lane, _) = one_lane(3);
    let heavy = lane.try_acquire_many(3).unwrap();
    let first = queue_grenade(lane.acquire());
    let second = Waiter::queue(lane.acquire());
    let third = queue_grenade(lane.acquire());
    let fourth = Waiter::queue(lane.acquire());
    drop(heavy);
    assert_eq!(second.wakes(), 1);
    drop(first);
    assert_eq!(fourth.wakes(), 1);
    drop((third, second, fourth));
    assert_eq!(budget.stats().available, 3);
}

/// ADM-10, section 5: a destructor that panics.
#[test]
fn a_waker_that_panics_keeps_nobody_from_being_told_of_a_close() {
    let (budget, lane, _) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let waiters: Vec<_> =
        (0..200).map(|_| (queue_grenade(lane.acquire()), Waiter::queue(lane.acquire()))).collect();
    budget.close();
    assert!(waiters.iter().all(|(_, waiter)| waiter.wakes() == 1));
}

/// ADM-8, section 5: a destructor that panics.
#[test]
fn a_waker_that_panics_keeps_nobody_from_being_woken_at_its_deadline() {
    let (_budget, lane, time) = one_lane(1);
    let _permit = lane.try_acquire().unwrap();
    let until = time.now() + Duration::from_secs(1);
    let _grenade = queue_grenade(lane.acquire_until(until));
    let waiter = Waiter::queue(lane.acquire_until(until));
    let _other = queue_grenade(lane.acquire_until(until + Duration::from_secs(1)));
    time.advance(Duration::from_secs(2));
    assert_eq!(waiter.wakes(), 1);
    assert!(matches!(waiter.refusal(), AcquireError::Deadline { .. }));
}

/// A waker whose every move calls back.
mod hooked {
    #![expect(
        unsafe_code,
        reason = "a waker's clone and drop can be watched through a vtable alone"
    )]

    use std::sync::Arc;
    use std::task::{RawWaker, RawWakerVTable, Waker};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Event {
        Clone,
        Wake,
        Drop,
    }

    type Hook = Box<dyn Fn(Event) + Send + Sync>;

    pub(crate) fn hooked_waker(hook: impl Fn(Event) + Send + Sync + 'static) -> Waker {
        let hook: Arc<Hook> = Arc::new(Box::new(hook));
        // SAFETY: the pointer is from `Arc::into_raw` of the type that the vtable's functions take.
        unsafe { Waker::new(Arc::into_raw(hook).cast(), &VTABLE) }
    }

    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

    fn clone(data: *const ()) -> RawWaker {
        // SAFETY: `data` came from `Arc::into_raw`, and the waker that holds it is alive during the call.
        let hook = unsafe { &*data.cast::<Hook>() };
        hook(Event::Clone);
        // SAFETY: as above; the count that is added here belongs to the clone.
        unsafe { Arc::increment_strong_count(data.cast::<Hook>()) };
        RawWaker::new(data, &VTABLE)
    }

    fn wake(data: *const ()) {
        // SAFETY: `data` came from `Arc::into_raw`, and the waker that held it is consumed by this call.
        let hook = unsafe { Arc::from_raw(data.cast::<Hook>()) };
        hook(Event::Wake);
    }

    fn wake_by_ref(data: *const ()) {
        // SAFETY: `data` came from `Arc::into_raw`, and the waker that holds it is alive during the call.
        let hook = unsafe { &*data.cast::<Hook>() };
        hook(Event::Wake);
    }

    fn drop_waker(data: *const ()) {
        // SAFETY: `data` came from `Arc::into_raw`, and the waker that held it is consumed by this call.
        let hook = unsafe { Arc::from_raw(data.cast::<Hook>()) };
        hook(Event::Drop);
    }
}

/// Uses everything of the budget that a waker could use.
fn use_budget(budget: &Budget, lane: &Lane) {
    let _ = budget.stats();
    let _ = budget.is_closed();
    drop(lane.try_acquire());
    let mut acquire = Polled::new(lane.acquire());
    drop(acquire.poll());
    let mut drained = Polled::new(budget.drained());
    let _ = drained.poll();
}

/// ADM-5, A6
#[test]
fn a_waker_may_use_the_budget_in_its_clone_its_wake_and_its_drop() {
    let events = without_deadlock(|| {
        let (budget, lane, time) = one_lane(2);
        let events = Arc::new(Mutex::new(Vec::new()));
        let waker = || {
            let (budget, lane, events) = (budget.clone(), lane.clone(), Arc::clone(&events));
            hooked_waker(move |event| {
                events.lock().unwrap().push(event);
                use_budget(&budget, &lane);
            })
        };
        let queue = |mut acquire: Acquire| {
            assert!(poll_with(&mut acquire, &waker()).is_pending());
            acquire
        };
        let permit = lane.try_acquire_many(2).unwrap();
        let mut granted = queue(lane.acquire());
        // another waker takes the place of the first
        assert!(poll_with(&mut granted, &waker()).is_pending());
        drop(queue(lane.acquire()));
        let late = queue(lane.acquire_until(time.now() + Duration::from_secs(1)));
        time.advance(Duration::from_secs(1));
        drop(late);
        drop(permit);
        let mut drained = budget.drained();
        assert!(poll_with(&mut drained, &waker()).is_pending());
        assert!(poll_with(&mut drained, &waker()).is_pending());
        drop(budget.drained());
        let all = lane.try_acquire().unwrap();
        let refused = queue(lane.acquire());
        lane.close();
        budget.close();
        drop((all, granted, refused));
        drop(drained);
        budget.resize().capacity(3).apply().unwrap();
        assert_eq!(budget.stats().available, 3);
        Arc::into_inner(events).map_or(Vec::new(), |events| events.into_inner().unwrap())
    });
    for event in [Event::Clone, Event::Wake, Event::Drop] {
        assert!(events.contains(&event), "no {event:?} was seen in {events:?}");
    }
}

/// ADM-5, ADM-7, A6
#[test]
fn a_wake_may_cancel_a_waiter_while_another_thread_releases() {
    without_deadlock(|| {
        let (budget, lane, _) = one_lane(2);
        let rounds = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let permit = lane.try_acquire();
                        // the victim is cancelled by the wake of the one before it
                        let victim = Arc::new(Mutex::new(None));
                        let in_wake = Arc::clone(&victim);
                        let lane_in_wake = lane.clone();
                        let waker = hooked_waker(move |event| {
                            if event == Event::Wake {
                                drop(in_wake.lock().unwrap().take());
                                drop(lane_in_wake.try_acquire());
                            }
                        });
                        let mut first = lane.acquire();
                        drop(poll_with(&mut first, &waker));
                        let mut second = lane.acquire();
                        if poll_with(&mut second, Waker::noop()).is_pending() {
                            *victim.lock().unwrap() = Some(second);
                        }
                        drop(permit);
                        drop(first);
                        drop(victim.lock().unwrap().take());
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 1_000);
        let stats = budget.stats();
        assert_eq!((stats.available, stats.lanes[0].waiting), (2, 0));
    });
}

/// ADM-7
#[test]
fn a_waker_that_panics_when_it_is_cloned_leaves_the_budget_as_it_was() {
    let (budget, lane, _) = one_lane(1);
    let permit = lane.try_acquire().unwrap();
    let waker = hooked_waker(|event| assert_ne!(event, Event::Clone, "no clones"));
    let mut acquire = lane.acquire();
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        poll_with(&mut acquire, &waker).is_pending()
    }));
    assert!(polled.is_err());
    assert_eq!(budget.stats().lanes[0].waiting, 0);
    // it can still be used
    assert!(poll_with(&mut acquire, Waker::noop()).is_pending());
    drop(permit);
    assert!(poll_with(&mut acquire, Waker::noop()).is_ready());
    assert_eq!(budget.stats().available, 1);
}

/// ADM-13
#[test]
fn an_acquire_can_be_polled_by_anything_that_has_a_context() {
    let (_budget, [lane], _) = budget(1, [LaneConfig::new("l")]);
    let mut acquire = pin!(lane.acquire());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(acquire.as_mut().poll(&mut cx).is_ready());
}
