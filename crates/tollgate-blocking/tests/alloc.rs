//! What a job costs in memory, counted over all threads of the process.

mod support;

use counting::{Counts, counts};
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use support::{Gate, block_on, eventually, poll, runtime};
use tollgate_blocking::{BlockingPool, Deadline, Executor, LanePolicy};

mod counting {
    #![expect(unsafe_code, reason = "an allocator can't be written without")]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::ops::Sub;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// The system's allocator, with counts.
    struct Counting;

    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    static FREED: AtomicUsize = AtomicUsize::new(0);

    #[global_allocator]
    static COUNTING: Counting = Counting;

    // SAFETY: every call is passed on to the system's allocator as it came; the counters are atomics and allocate nothing.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            CALLS.fetch_add(1, Relaxed);
            BYTES.fetch_add(layout.size(), Relaxed);
            // SAFETY: the caller keeps the contract of `alloc`, which is the system's as well.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            FREED.fetch_add(layout.size(), Relaxed);
            // SAFETY: the block came from `System`, through `alloc` or `realloc` here, with this layout.
            unsafe { System.dealloc(block, layout) }
        }

        unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            CALLS.fetch_add(1, Relaxed);
            BYTES.fetch_add(size, Relaxed);
            FREED.fetch_add(layout.size(), Relaxed);
            // SAFETY: as for `dealloc`; the caller vouches for `size`.
            unsafe { System.realloc(block, layout, size) }
        }
    }

    /// What has been allocated since the process began.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Counts {
        pub(super) calls: usize,
        pub(super) bytes: usize,
        /// Bytes that are in use.
        pub(super) live: isize,
    }

    impl Sub for Counts {
        type Output = Counts;
        fn sub(self, before: Counts) -> Counts {
            Counts {
                calls: self.calls - before.calls,
                bytes: self.bytes - before.bytes,
                live: self.live - before.live,
            }
        }
    }

    pub(super) fn counts() -> Counts {
        let bytes = BYTES.load(Relaxed);
        let live = bytes.wrapping_sub(FREED.load(Relaxed)) as isize;
        Counts { calls: CALLS.load(Relaxed), bytes, live }
    }
}

/// One test measures at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything on: timeouts, warnings, histograms, span propagation, the system's clock.
fn pool(capacity: u64) -> (tokio::runtime::Runtime, BlockingPool, Executor) {
    let runtime = runtime();
    let lane = LanePolicy::new("io")
        .unbounded_waiting()
        .queue_timeout(Duration::from_secs(600))
        .task_timeout(Duration::from_secs(600))
        .warn_after(Duration::from_secs(600));
    let pool = BlockingPool::builder(runtime.handle().clone())
        .capacity(capacity)
        .lane(lane)
        .keep_alive(Duration::from_secs(600))
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    (runtime, pool, io)
}

/// The least that any of several windows of `rounds` calls allocated. The harness may start other tests meanwhile, and
/// a histogram may grow once, which adds to a window; what a call itself allocates is in all of them.
fn least(rounds: usize, mut call: impl FnMut()) -> Counts {
    (0..rounds).for_each(|_| call());
    let window = |_| {
        let before = counts();
        (0..rounds).for_each(|_| call());
        counts() - before
    };
    (0..9).map(window).min_by_key(|counts| counts.calls).unwrap()
}

const ROUNDS: usize = 500;

#[track_caller]
fn costs_one_allocation<const CAPTURED: usize, const RESULT: usize>(io: &Executor) {
    let spent = least(ROUNDS, || {
        let captured = black_box([1_u8; CAPTURED]);
        let run = io.run(move || {
            black_box(captured);
            black_box([2_u8; RESULT])
        });
        black_box(block_on(run).unwrap());
    });
    let case = format!("{CAPTURED} bytes captured, {RESULT} returned: {spent:?} in {ROUNDS} runs");
    assert_eq!(spent.calls, ROUNDS, "{case}");
    assert!(spent.bytes <= 256 * ROUNDS, "{case}");
}

/// BLK-5
#[test]
fn a_run_costs_one_allocation_of_at_most_256_bytes() {
    let _alone = alone();
    let (_runtime, _pool, io) = pool(4);
    costs_one_allocation::<0, 0>(&io);
    costs_one_allocation::<1, 1>(&io);
    costs_one_allocation::<8, 8>(&io);
    costs_one_allocation::<32, 0>(&io);
    costs_one_allocation::<0, 32>(&io);
    costs_one_allocation::<64, 0>(&io);
    costs_one_allocation::<0, 64>(&io);
    costs_one_allocation::<64, 64>(&io);
}

/// BLK-5
#[test]
fn a_run_on_tokio_by_many_callers_costs_one_allocation() {
    let _alone = alone();
    let (runtime, _pool, io) = pool(2);
    let callers = 8;
    let spent = least(20, || {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..callers)
                .map(|_| {
                    let io = io.clone();
                    tokio::spawn(async move {
                        for _ in 0..50 {
                            io.run(|| black_box(7)).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    let per_window = 20 * callers * 50;
    // the tasks themselves are allocated too, and the list of them
    let allowed = per_window + 20 * (2 * callers + 2);
    assert!((per_window..=allowed).contains(&spent.calls), "{spent:?}, allowed {allowed}");
}

/// BLK-5
#[test]
fn large_captures_are_in_the_same_allocation_and_large_results_in_one_of_their_own() {
    let _alone = alone();
    let (_runtime, _pool, io) = pool(1);
    let spent = least(ROUNDS, || {
        let captured = black_box([1_u8; 4096]);
        block_on(io.run(move || black_box(captured)[0])).unwrap();
    });
    assert_eq!(spent.calls, ROUNDS);
    for (spent, size) in [
        (least(ROUNDS, || drop(block_on(io.run(|| black_box([1_u8; 65]))))), 65),
        (least(ROUNDS, || drop(block_on(io.run(|| black_box([1_u8; 4096]))))), 4096),
    ] {
        assert_eq!(spent.calls, 2 * ROUNDS, "a result of {size} bytes: {spent:?}");
        assert!(spent.bytes <= (256 + size) * ROUNDS, "a result of {size} bytes: {spent:?}");
    }
}

/// BLK-5
#[test]
fn what_is_refused_or_never_polled_costs_no_more() {
    let _alone = alone();
    let (_runtime, pool, io) = pool(1);
    let spent = least(ROUNDS, || drop(io.run(|| ())));
    assert_eq!(spent.calls, ROUNDS);
    pool.close();
    let spent = least(ROUNDS, || assert!(block_on(io.run(|| ())).is_err()));
    assert_eq!(spent.calls, ROUNDS);
}

/// BLK-4
#[test]
fn a_permit_that_is_free_costs_no_allocation() {
    let _alone = alone();
    let (_runtime, _pool, io) = pool(1);
    let spent = least(ROUNDS, || drop(io.try_acquire().unwrap()));
    assert_eq!(spent.calls, 0, "{spent:?}");
    let spent = least(ROUNDS, || drop(block_on(io.acquire()).unwrap()));
    assert_eq!(spent.calls, 0, "{spent:?}");
}

/// BLK-5, A16
#[test]
fn queued_jobs_cost_at_most_512_bytes_each_and_give_them_back() {
    const MANY: usize = 64_000;
    let _alone = alone();
    let (_runtime, pool, io) = pool(1);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let start = counts();
    let mut left = Vec::new();
    for round in 0..3 {
        let mut runs = Vec::with_capacity(MANY);
        for n in 0..MANY {
            let captured = [n; 4];
            let mut run = io.run(move || black_box(captured)[0]);
            assert!(poll(&mut run).is_pending());
            runs.push(run);
        }
        let each = (counts() - start).live as usize / MANY;
        assert!(each <= 512, "round {round}: {each} bytes for each of {MANY} queued jobs");
        assert_eq!(pool.stats().budget.lanes[0].waiting, MANY);
        // newest first
        while runs.pop().is_some() {}
        drop(runs);
        assert_eq!(pool.stats().budget.lanes[0].waiting, 0);
        left.push((counts() - start).live as usize / MANY);
    }
    // places in the queue are kept for the next burst, jobs are not
    assert!(left[0] <= 160, "{} bytes of each job were never given back", left[0]);
    assert!(left[2] <= left[0] + 1, "each burst leaves more behind: {left:?}");
    gate.open();
    running.join().unwrap();
    eventually("the pool is idle", || pool.stats().threads.idle == 1);
}

/// BLK-9
#[test]
fn waits_that_ended_before_their_deadline_leave_nothing_with_the_timer() {
    let _alone = alone();
    let (_runtime, _pool, io) = pool(1);
    let gate = Gate::new();
    let mut ticket = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let far = Deadline::after(Duration::from_secs(3600));
    let before = counts();
    for _ in 0..20_000 {
        assert!(poll(&mut ticket.wait_until(far)).is_pending());
    }
    let left = (counts() - before).live;
    assert!(left < 50_000, "{left} bytes wait for an hour to pass");
    gate.open();
    ticket.join().unwrap();
}

/// BLK-5
#[test]
fn a_pool_that_comes_and_goes_leaves_nothing_behind() {
    let _alone = alone();
    let owner = runtime();
    let once = || {
        let pool = BlockingPool::builder(owner.handle().clone()).capacity(2);
        let pool = pool.lane(LanePolicy::new("io")).build().unwrap();
        let io = pool.executor("io").unwrap();
        let ticket = io.submit(|| vec![1_u8; 100_000]).unwrap();
        drop(ticket);
        block_on(io.run(|| ())).unwrap();
        support::shut_down(&pool);
    };
    once();
    let before = counts();
    (0..20).for_each(|_| once());
    // threads end a moment after their pool, and the runtime a task
    eventually("the memory is given back", || (counts() - before).live < 100_000);
}
