//! What allocates, counted over all threads.

mod support;

use counting::Counting;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use support::{Counter, Waiter, budget, budget_with, granted, one_lane, poll_with};
use tollgate_admission::engine::{GroupOwner, LaneId, Request, State, Tick};
use tollgate_admission::{Acquire, Budget, Deadline, LaneConfig};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An allocator that counts.
mod counting {
    #![expect(unsafe_code, reason = "a global allocator is unsafe to implement")]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

    pub(crate) struct Counting;

    /// Blocks that were asked for by any thread, enlarged ones included.
    pub(crate) fn allocations() -> usize {
        ALLOCATIONS.load(Ordering::SeqCst)
    }

    // SAFETY: every call goes to the system's allocator as it came.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the caller keeps the contract of this very method.
            unsafe { System.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the caller keeps the contract of this very method.
            unsafe { System.alloc_zeroed(layout) }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the caller keeps the contract of this very method.
            unsafe { System.realloc(block, layout, size) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract of this very method.
            unsafe { System.dealloc(block, layout) }
        }
    }
}

/// Held by each test while it runs, so that the allocations of one are not counted by another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocations of one call of `f`, after a first one that fills what is kept.
///
/// The least of several calls: the test harness has a thread that allocates now and then.
fn allocations(mut f: impl FnMut()) -> usize {
    f();
    let counted = (0..20).map(|_| {
        let before = counting::allocations();
        f();
        counting::allocations() - before
    });
    counted.min().expect("it was called")
}

/// ADM-7
#[test]
fn an_uncontended_acquire_and_drop_allocates_nothing() {
    let _alone = alone();
    let lanes = [LaneConfig::new("l"), LaneConfig::new("probes").reserved(1).kept(1)];
    let (_budget, [lane, probes], _) = budget(4, lanes);
    let far = Deadline::after(Duration::from_secs(3_600));
    let counted = allocations(|| {
        for _ in 0..100 {
            drop(lane.try_acquire().unwrap());
            drop(lane.try_acquire_many(3).unwrap());
            drop(probes.try_acquire().unwrap());
            let acquires: [Acquire; 3] =
                [lane.acquire(), lane.acquire_many(2), lane.acquire_until(far)];
            for mut acquire in acquires {
                assert!(poll_with(&mut acquire, Waker::noop()).is_ready());
            }
        }
    });
    assert_eq!(counted, 0);
}

/// ADM-7
#[test]
fn an_uncontended_acquire_and_drop_on_the_default_clock_allocates_nothing() {
    let _alone = alone();
    let lane = LaneConfig::new("l").queue_timeout(Duration::from_secs(60));
    let budget = Budget::builder().capacity(1).lane(lane).build().unwrap();
    let lane = budget.lane("l").unwrap();
    let counted = allocations(|| {
        for _ in 0..100 {
            let mut acquire = lane.acquire_until(Deadline::after(Duration::from_secs(1)));
            assert!(poll_with(&mut acquire, Waker::noop()).is_ready());
        }
    });
    assert_eq!(counted, 0);
}

/// ADM-5, ADM-7
#[test]
fn waiting_and_handing_on_allocate_nothing_once_the_queue_has_been_that_long() {
    let _alone = alone();
    let (_budget, lane, _) = one_lane(1);
    let waker = Waker::from(Arc::new(Counter::default()));
    let counted = allocations(|| {
        let mut permit = lane.try_acquire().unwrap();
        let mut waiting = [(); 3].map(|()| lane.acquire());
        for acquire in &mut waiting {
            assert!(poll_with(acquire, &waker).is_pending());
        }
        for mut acquire in waiting {
            drop(permit);
            let std::task::Poll::Ready(next) = poll_with(&mut acquire, &waker) else {
                panic!("it was handed on")
            };
            permit = next.unwrap();
        }
    });
    assert_eq!(counted, 0);
}

/// ADM-7, A16
#[test]
fn cancelling_newest_first_allocates_nothing_and_wakes_nobody_however_many_wait() {
    let _alone = alone();
    for waiting in [64, 64_000] {
        let lane = LaneConfig::new("l").unbounded_waiting();
        let (budget, [lane], _) = budget(1, [lane]);
        let _permit = lane.try_acquire().unwrap();
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut waiters: Vec<Acquire> = Vec::new();
        let mut rounds = 0;
        let counted = allocations(|| {
            waiters.extend((0..waiting).map(|_| lane.acquire()));
            for acquire in &mut waiters {
                assert!(poll_with(acquire, &waker).is_pending());
            }
            while let Some(newest) = waiters.pop() {
                drop(newest);
            }
            rounds += 1;
        });
        assert_eq!((counted, counter.wakes()), (0, 0));
        assert!(rounds > 1 && budget.stats().lanes[0].waiting == 0);
    }
}

/// ADM-12
#[test]
fn taking_stats_allocates_the_same_however_many_wait() {
    let _alone = alone();
    let mut counted = Vec::new();
    for waiting in [1, 10_000] {
        let builder = Budget::builder().capacity(1);
        let lanes = [LaneConfig::new("l").unbounded_waiting(), LaneConfig::new("other")];
        let (budget, [lane, _other], _) = budget_with(builder, lanes);
        let _permit = granted(lane.acquire());
        let _waiters: Vec<_> = (0..waiting).map(|_| Waiter::queue(lane.acquire())).collect();
        counted.push(allocations(|| assert_eq!(budget.stats().lanes[0].waiting, waiting)));
    }
    assert_eq!(counted, [1, 1], "the list of lanes");
}

/// ADM-14: former deadlines are swept, or each call would leave one behind for every waiter.
#[test]
fn tightening_a_deadline_again_and_again_allocates_nothing() {
    struct Nobody;
    impl GroupOwner for Nobody {
        fn idle(&self) {}
        fn gone(&self, _: u64) {}
    }
    let _alone = alone();
    let round = || {
        let lane = LaneConfig::new("l").unbounded_waiting();
        let mut state = State::new(1, vec![lane], 0).unwrap();
        let group = state.open_group(Arc::new(Nobody), Tick::NEVER);
        let request = Request { group: Some(group), ..Request::new(LaneId(0), 1) };
        for waiter in 0..100 {
            let _ = state.enter(&request, waiter, || Tick(1));
        }
        let mut tighten = |times: u64, latest: u64| {
            (0..times).for_each(|n| state.tighten_group(group, Tick(latest - n), |_| {}));
        };
        tighten(100, u64::MAX - 1);
        let before = counting::allocations();
        tighten(2_000, u64::MAX - 1_000);
        counting::allocations() - before
    };
    // the least of several: the test harness has a thread that allocates now and then
    assert_eq!((0..5).map(|_| round()).min(), Some(0));
}
