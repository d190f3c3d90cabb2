//! Where threads come from, and where they go.

mod support;

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;
use tollgate_blocking::{
    BlockingPool, BlockingPoolBuilder, Executor, JobState, LanePolicy, RunError, WorkerThread,
};

const SECOND: Duration = Duration::from_secs(1);

fn build(builder: BlockingPoolBuilder) -> (BlockingPool, Executor) {
    let pool = builder.lane(LanePolicy::new("io").max_waiting(100)).build().unwrap();
    let io = pool.executor("io").unwrap();
    (pool, io)
}

/// A handler that does `refuse` to every thread but the first `allowed`, and how often it was called.
fn stingy(
    allowed: usize,
    refuse: impl Fn(WorkerThread) -> io::Result<()> + Send + Sync + 'static,
) -> (Arc<AtomicUsize>, impl Fn(WorkerThread) -> io::Result<()> + Send + Sync + 'static) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let handler = move |thread: WorkerThread| {
        if count.fetch_add(1, Ordering::SeqCst) < allowed {
            std::thread::Builder::new().spawn(move || thread.run()).map(drop)
        } else {
            refuse(thread)
        }
    };
    (calls, handler)
}

type Refusal = Box<dyn Fn(WorkerThread) -> io::Result<()> + Send + Sync>;

/// Every way in which a thread may fail to come.
fn refusals() -> Vec<(&'static str, Refusal)> {
    let keep = Mutex::new(Vec::new());
    vec![
        ("refused", Box::new(|_| Err(io::Error::other("no more threads")))),
        (
            "dropped",
            Box::new(|thread| {
                drop(thread);
                Ok(())
            }),
        ),
        ("panicked", Box::new(|_| panic!("the handler panics"))),
        ("panicked twice", Box::new(|_| std::panic::panic_any(Fuse))),
        (
            "dropped elsewhere",
            Box::new(|thread| {
                std::thread::spawn(move || drop(thread));
                Ok(())
            }),
        ),
        (
            "refused and kept",
            Box::new(move |thread| {
                keep.lock().unwrap().push(thread);
                Err(io::Error::other("no more threads"))
            }),
        ),
    ]
}

/// BLK-3, A9
#[test]
fn when_no_thread_can_be_had_every_job_fails_with_a_typed_error() {
    for (how, refuse) in refusals() {
        let owned = Owned::new();
        let (calls, handler) = stingy(0, refuse);
        let (pool, io) = build(owned.builder(2).spawn_handler(handler));
        for round in 1..=3 {
            let runs: Vec<_> = (0..4).map(|_| io.run(|| ())).collect();
            let captured = Arc::new(());
            let kept = Arc::clone(&captured);
            // a refusal that comes later may come after the submission
            let ticket = io.submit(move || drop(kept)).unwrap();
            let io = io.clone();
            let errors = must_end(how, move || {
                let mut errors: Vec<_> = runs.into_iter().map(block_on).collect();
                errors.push(ticket.join());
                drop(io);
                errors
            });
            for error in errors {
                let Err(RunError::NoThread { source }) = error else { panic!("{how}: {error:?}") };
                assert!(!source.to_string().is_empty());
            }
            assert_eq!(Arc::strong_count(&captured), 1, "{how}");
            let counts = counts(&pool, "io");
            assert_eq!((counts.no_thread, counts.started), (round * 5, 0), "{how}");
            let threads = pool.stats().threads;
            assert_eq!((available(&pool), threads.alive, threads.peak), (2, 0, 0), "{how}");
        }
        assert!(calls.load(Ordering::SeqCst) <= 15, "{how}: it was asked again and again");
        shut_down(&pool);
    }
}

/// BLK-3, A9
#[test]
fn when_no_more_threads_can_be_had_jobs_run_later_on_those_there_are() {
    for (how, refuse) in refusals() {
        let owned = Owned::new();
        let (calls, handler) = stingy(1, refuse);
        let (pool, io) = build(owned.builder(4).spawn_handler(handler));
        let gate = Gate::new();
        let first = io.submit(gate.closure()).unwrap();
        gate.wait_started();
        let rest: Vec<_> = {
            let io = io.clone();
            must_end(how, move || (0..6).map(|n| io.submit(move || n).unwrap()).collect())
        };
        // however the refusals come: none of the jobs is lost, none has started, and nobody asks for ever
        eventually("the refusals are in", || pool.stats().threads.alive == 1);
        assert_eq!(pool.snapshot().jobs.len(), 7, "{how}");
        let asked = calls.load(Ordering::SeqCst);
        assert!(asked <= 1 + 6, "{how}: a thread was asked for {asked} times");
        gate.open();
        first.join().unwrap();
        for (n, ticket) in rest.into_iter().enumerate() {
            assert_eq!(ticket.join().unwrap(), n as i32, "{how}");
        }
        assert_eq!(pool.stats().threads.peak, 1, "{how}");
        assert_eq!(counts(&pool, "io").no_thread, 0, "{how}");
        shut_down(&pool);
    }
}

/// BLK-3, A9
#[test]
fn a_pool_grows_again_when_threads_can_be_had_again() {
    let owned = Owned::new();
    let allowed = Arc::new(AtomicUsize::new(1));
    let left = Arc::clone(&allowed);
    let (pool, io) = build(owned.builder(3).spawn_handler(move |thread| {
        let granted = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        granted.map_err(|_| io::Error::other("not now"))?;
        std::thread::Builder::new().spawn(move || thread.run()).map(drop)
    }));
    let gate = Gate::new();
    let first = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let second = io.submit(gate.closure()).unwrap();
    assert_eq!(states(&pool), [JobState::Running, JobState::Queued]);
    allowed.store(5, Ordering::SeqCst);
    let third = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    gate.wait_started();
    assert_eq!(states(&pool), [JobState::Running; 3]);
    gate.open();
    [first, second, third].into_iter().for_each(|ticket| ticket.join().unwrap());
    assert_eq!(pool.stats().threads.peak, 3);
}

/// BLK-3, A9
#[test]
fn a_thread_that_was_refused_and_comes_nevertheless_is_sent_away() {
    let owned = Owned::new();
    let (keep, kept) = channel();
    let keep = Mutex::new(keep);
    let (pool, io) = build(owned.builder(1).spawn_handler(move |thread| {
        keep.lock().unwrap().send(thread).unwrap();
        Err(io::Error::other("no"))
    }));
    assert!(block_on(io.run(|| ())).is_err());
    let thread: WorkerThread = kept.recv().unwrap();
    must_end("a thread that is not wanted", move || thread.run());
    assert_eq!(pool.stats().threads.alive, 0);
    shut_down(&pool);
}

/// BLK-3, A9, section 5
#[test]
fn a_stack_that_no_system_has_is_an_error_and_not_a_panic() {
    for bytes in [1 << 47, usize::MAX / 2, usize::MAX] {
        let owned = Owned::new();
        let (pool, io) = build(owned.builder(1).stack_size(bytes));
        let result = must_end("a huge stack", move || block_on(io.run(|| ())));
        // a system may round it to something it has
        if let Err(error) = result {
            assert!(matches!(error, RunError::NoThread { .. }), "{error:?}");
        }
        assert_eq!(available(&pool), 1);
        shut_down(&pool);
    }
}

/// BLK-3
#[test]
fn threads_start_on_demand_and_are_used_again() {
    let owned = Owned::new();
    let (pool, io) = build(owned.builder(8));
    assert_eq!(pool.stats().threads.alive, 0);
    for _ in 0..100 {
        block_on(io.run(|| ())).unwrap();
    }
    assert_eq!((pool.stats().threads.alive, pool.stats().threads.peak), (1, 1));
    let gate = Gate::new();
    let tickets: Vec<_> = (0..3).map(|_| io.submit(gate.closure()).unwrap()).collect();
    (0..3).for_each(|_| gate.wait_started());
    assert_eq!((pool.stats().threads.alive, pool.stats().threads.idle), (3, 0));
    gate.open();
    tickets.into_iter().for_each(|ticket| ticket.join().unwrap());
    eventually("all are idle", || pool.stats().threads.idle == 3);
    assert_eq!(pool.stats().threads.peak, 3);
}

/// Grows `pool` to `n` threads and waits until all idle.
fn burst(pool: &BlockingPool, io: &Executor, n: usize) {
    let gate = Gate::new();
    let tickets: Vec<_> = (0..n).map(|_| io.submit(gate.closure()).unwrap()).collect();
    (0..n).for_each(|_| gate.wait_started());
    gate.open();
    tickets.into_iter().for_each(|ticket| ticket.join().unwrap());
    eventually("all are idle", || pool.stats().threads.idle == n);
}

/// BLK-3, A22
#[test]
fn after_a_burst_idle_threads_retire() {
    let owned = Owned::new();
    let (stopped, stops) = channel();
    let builder = owned.builder(16).keep_alive(10 * SECOND);
    let (pool, io) = build(builder.on_thread_stop(move || stopped.send(()).unwrap()));
    burst(&pool, &io, 16);
    owned.time.advance(10 * SECOND - Duration::from_nanos(1));
    assert_eq!((pool.stats().threads.alive, stops.try_recv().is_err()), (16, true));
    owned.time.advance(Duration::from_nanos(1));
    (0..16).for_each(|_| stops.recv_timeout(PATIENCE).unwrap());
    eventually("they are gone", || pool.stats().threads.alive == 0);
    assert_eq!((pool.stats().threads.idle, pool.stats().threads.peak), (0, 16));
    // and come again
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
    burst(&pool, &io, 5);
    assert_eq!(pool.stats().threads.alive, 5);
    shut_down(&pool);
    assert_eq!(stops.try_iter().count(), 5);
}

/// A22, BLK-3
#[test]
fn a_thread_that_is_used_stays_and_the_others_retire() {
    let owned = Owned::new();
    let (pool, io) = build(owned.builder(4).keep_alive(10 * SECOND));
    burst(&pool, &io, 4);
    for _ in 0..4 {
        owned.time.advance(3 * SECOND);
        block_on(io.run(|| ())).unwrap();
        eventually("it is idle again", || {
            let threads = pool.stats().threads;
            threads.idle == threads.alive
        });
    }
    eventually("the others are gone", || pool.stats().threads.alive == 1);
    owned.time.advance(10 * SECOND);
    eventually("it is gone too", || pool.stats().threads.alive == 0);
}

/// BLK-3, A22, A12
#[test]
fn threads_stay_for_ever_or_not_at_all_if_that_is_asked_for() {
    let owned = Owned::new();
    let (forever, io) = build(owned.builder(2).keep_alive(Duration::MAX));
    burst(&forever, &io, 2);
    owned.time.advance(Duration::from_secs(100 * 365 * 24 * 3600));
    assert_eq!(forever.stats().threads.idle, 2);
    let (never, io) = build(owned.builder(2).keep_alive(Duration::ZERO));
    block_on(io.run(|| ())).unwrap();
    eventually("it retires", || {
        owned.time.advance(Duration::ZERO);
        never.stats().threads.alive == 0
    });
}

/// BLK-3, ADM-11
#[test]
fn a_larger_capacity_starts_more_threads_at_once() {
    let owned = Owned::new();
    let (pool, io) = build(owned.builder(1));
    let gate = Gate::new();
    let tickets: Vec<_> = (0..4).map(|_| io.submit(gate.closure()).unwrap()).collect();
    gate.wait_started();
    assert_eq!(pool.stats().threads.alive, 1);
    pool.resize().capacity(3).apply().unwrap();
    gate.wait_started();
    gate.wait_started();
    use JobState::{Queued, Running};
    assert_eq!(states(&pool), [Running, Running, Running, Queued]);
    gate.open();
    tickets.into_iter().for_each(|ticket| ticket.join().unwrap());
}

/// BLK-3, ADM-11, A22
#[test]
fn a_smaller_capacity_sends_surplus_threads_away_as_they_idle() {
    let owned = Owned::new();
    let (pool, io) = build(owned.builder(6).keep_alive(Duration::MAX));
    burst(&pool, &io, 6);
    let gate = Gate::new();
    let tickets: Vec<_> = (0..3).map(|_| io.submit(gate.closure()).unwrap()).collect();
    (0..3).for_each(|_| gate.wait_started());
    pool.resize().capacity(2).apply().unwrap();
    eventually("those that idle leave at once", || pool.stats().threads.alive == 3);
    let budget = pool.stats().budget;
    assert_eq!((budget.deficit, budget.available), (1, 0), "what runs goes on");
    gate.open();
    tickets.into_iter().for_each(|ticket| ticket.join().unwrap());
    eventually("and one more when it has no work", || {
        let threads = pool.stats().threads;
        (threads.alive, threads.idle) == (2, 2)
    });
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
}

/// BLK-3
#[test]
fn threads_have_the_names_and_the_stacks_that_were_asked_for() {
    let owned = Owned::new();
    let name = || std::thread::current().name().map(str::to_owned);
    let (_pool, io) = build(owned.builder(1));
    assert_eq!(block_on(io.run(name)).unwrap().as_deref(), Some("tollgate-0"));
    let (_pool, io) = build(owned.builder(1).thread_name("disk").stack_size(64 << 20));
    assert_eq!(block_on(io.run(name)).unwrap().as_deref(), Some("disk-0"));
    // more than any default
    let deep =
        || std::hint::black_box([1_u8; 24 << 20]).iter().map(|&byte| u64::from(byte)).sum::<u64>();
    assert_eq!(block_on(io.run(deep)).unwrap(), 24 << 20);
    let (seen, see) = channel();
    let seen = Mutex::new(seen);
    let builder = owned.builder(2).thread_name("disk").stack_size(1 << 20);
    let (_pool, io) = build(builder.spawn_handler(move |thread| {
        let about = (thread.name().to_owned(), thread.stack_size(), format!("{thread:?}"));
        seen.lock().unwrap().send(about).unwrap();
        std::thread::Builder::new().spawn(move || thread.run()).map(drop)
    }));
    block_on(io.run(|| ())).unwrap();
    let (name, stack_size, debug) = see.recv().unwrap();
    assert_eq!((&*name, stack_size), ("disk-0", Some(1 << 20)));
    assert!(debug.contains("disk-0"), "{debug}");
}

/// BLK-3, BLK-11
#[test]
fn a_job_that_waits_for_work_under_a_second_permit_does_not_wait_for_a_thread_that_is_refused() {
    let owned = Owned::new();
    let asked = AtomicUsize::new(0);
    let builder = owned.builder(2).spawn_handler(move |thread| {
        if asked.fetch_add(1, Ordering::SeqCst) > 0 {
            return Err(std::io::Error::other("one is enough"));
        }
        std::thread::Builder::new().spawn(move || thread.run()).map(drop)
    });
    let (pool, io) = build(builder);
    let inner = io.clone();
    let outer = io.submit(move || {
        let permit = inner.try_acquire().unwrap();
        let here = std::thread::current().id();
        let by_ticket = permit.spawn(move || std::thread::current().id() == here).unwrap();
        let by_ticket = by_ticket.join().unwrap();
        let by_run = inner.try_acquire().unwrap().run(move || std::thread::current().id() == here);
        (by_ticket, futures_lite::future::block_on(by_run).unwrap())
    });
    let outer = outer.unwrap();
    let here = must_end("a job that waits for another", move || outer.join()).unwrap();
    assert_eq!(here, (true, true), "they ran on the thread that waited for them");
    assert_eq!((counts(&pool, "io").inline, available(&pool)), (2, 2));
    shut_down(&pool);
}

/// BLK-3
#[test]
fn hooks_run_on_the_thread_before_its_first_job_and_after_its_last() {
    thread_local!(static TOLD: Cell<u32> = const { Cell::new(0) });
    let owned = Owned::new();
    let owner = owned.runtime.handle().id();
    let (stopped, stops): (_, Receiver<(u32, bool)>) = channel();
    let builder = owned.builder(1).keep_alive(SECOND);
    let entered = move || tokio::runtime::Handle::current().id() == owner;
    let builder = builder
        .on_thread_start(move || TOLD.set(TOLD.get() + u32::from(entered())))
        .on_thread_stop(move || stopped.send((TOLD.get(), entered())).unwrap());
    let (pool, io) = build(builder);
    let count = || {
        TOLD.set(TOLD.get() + 10);
        TOLD.get()
    };
    assert_eq!(block_on(io.run(count)).unwrap(), 11, "the hook came first, in the runtime");
    assert_eq!(block_on(io.run(count)).unwrap(), 21, "and once");
    assert!(stops.try_recv().is_err());
    eventually("it idles", || pool.stats().threads.idle == 1);
    owned.time.advance(SECOND);
    assert_eq!(stops.recv_timeout(PATIENCE), Ok((21, true)));
}

/// Section 5
#[test]
fn hooks_that_panic_harm_nobody() {
    let owned = Owned::new();
    let builder = owned
        .builder(2)
        .on_thread_start(|| std::panic::panic_any(Fuse))
        .on_thread_stop(|| std::panic::panic_any(Fuse));
    let (pool, io) = build(builder);
    for n in 0..10 {
        assert_eq!(block_on(io.run(move || n)).unwrap(), n);
    }
    assert_eq!(pool.stats().threads.peak, 1);
    shut_down(&pool);
}

/// A10, BLK-3
#[test]
fn growing_shrinking_and_retiring_under_load_loses_no_job() {
    let owned = Owned::new();
    let lane = LanePolicy::new("io").unbounded_waiting();
    let pool = owned.builder(4).lane(lane).keep_alive(Duration::from_millis(1)).build().unwrap();
    let io = pool.executor("io").unwrap();
    let rounds = 3_000;
    let submitters: Vec<_> = (0..2)
        .map(|_| {
            let io = io.clone();
            std::thread::spawn(move || {
                for n in 0..rounds {
                    assert_eq!(io.submit(move || n).unwrap().join().unwrap(), n);
                }
            })
        })
        .collect();
    let (resizer, time) = (pool.clone(), owned.time.clone());
    must_end("growing and shrinking", move || {
        let mut capacity = 0;
        while submitters.iter().any(|thread| !thread.is_finished()) {
            capacity = capacity % 6 + 1;
            resizer.resize().capacity(capacity).apply().unwrap();
            time.advance(Duration::from_micros(500));
            std::thread::yield_now();
        }
        submitters.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(counts(&pool, "io").finished, 2 * rounds);
    assert!(pool.stats().threads.peak <= 6);
    shut_down(&pool);
}
