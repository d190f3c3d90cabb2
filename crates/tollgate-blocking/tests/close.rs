//! The end of a pool.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::Context;
use std::time::Duration;
use support::*;
use tollgate_blocking::{
    AcquireError, BlockingPool, Closed, Deadline, JobState, LanePolicy, RunError, SubmitError,
};

const SECOND: Duration = Duration::from_secs(1);

fn is_closed<T: std::fmt::Debug>(result: Result<T, RunError>) {
    let error = result.expect_err("the pool is closed");
    let RunError::Refused(AcquireError::Closed { what: Closed::Budget, .. }) = error else {
        panic!("{error:?}")
    };
}

/// BLK-15, ADM-10
#[test]
fn when_close_returns_everybody_who_waited_has_been_told_and_nothing_more_is_admitted() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 200);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let (bell, waker) = Bell::new();
    let mut cx = Context::from_waker(&waker);
    let mut runs: Vec<_> = (0..100).map(|_| Box::pin(io.run(|| ()))).collect();
    let mut acquire = Box::pin(io.acquire());
    runs.iter_mut().for_each(|run| assert!(run.as_mut().poll(&mut cx).is_pending()));
    assert!(acquire.as_mut().poll(&mut cx).is_pending());
    pool.close();
    assert_eq!(bell.rung(), 101);
    runs.into_iter().for_each(|run| is_closed(block_on(run)));
    assert!(matches!(block_on(acquire), Err(AcquireError::Closed { .. })));
    is_closed(block_on(io.run(|| ())));
    assert!(matches!(io.submit(|| ()), Err(SubmitError::Refused(AcquireError::Closed { .. }))));
    assert_eq!(states(&pool), [JobState::Running], "what runs goes on");
    pool.close();
    assert_eq!(
        refused(&pool, "io").closed,
        103,
        "each is counted once, closing again counts nothing"
    );
    gate.open();
    running.join().unwrap();
    shut_down(&pool);
}

/// BLK-15, A8
#[test]
fn a_pool_that_is_closed_and_resized_stays_closed() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    pool.close();
    pool.resize().capacity(9).lane("io", |lane| lane.limit(5)).apply().unwrap();
    assert!(pool.is_closed());
    is_closed(block_on(io.run(|| ())));
}

/// BLK-15
#[test]
fn a_shutdown_waits_for_what_runs_and_says_that_all_has_stopped() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let queued = io.submit(|| ()).unwrap();
    let mut shutdown = pool.shutdown(Deadline::never());
    assert!(!pool.is_closed(), "it does nothing before it is polled");
    let (bell, waker) = Bell::new();
    let mut cx = Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut shutdown).poll(&mut cx).is_pending());
    is_closed(queued.join());
    owned.time.advance(3 * SECOND);
    gate.open();
    running.join().unwrap();
    eventually("the shutdown is woken", || bell.rung() > 0);
    let report = block_on(shutdown);
    assert!(report.complete);
    assert_eq!((report.jobs.len(), report.permits, report.threads, report.refused), (0, 0, 0, 1));
    assert_eq!(report.took, 3 * SECOND);
    assert_eq!(report.to_string(), "everything has stopped, after 3s; 1 refused as closed");
    assert_eq!(pool.stats().threads.alive, 0);
}

/// BLK-15
#[test]
fn a_shutdown_that_meets_its_deadline_names_what_is_left_and_can_be_asked_again() {
    let owned = Owned::new();
    let lane = LanePolicy::new("io").task_timeout(60 * SECOND);
    let pool = owned.builder(4).lane(lane).build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let plain = io.job("plain").submit(gate.closure()).unwrap();
    gate.wait_started();
    let mut left = io.job("left").run(gate.closure());
    start(&mut left);
    gate.wait_started();
    drop(left);
    let late = io.job("late").deadline(owned.after(SECOND)).submit(gate.closure()).unwrap();
    gate.wait_started();
    let permit = io.try_acquire().unwrap();
    let mut shutdown = pool.shutdown(owned.after(5 * SECOND));
    start(&mut shutdown);
    owned.time.advance(5 * SECOND - Duration::from_nanos(1));
    start(&mut shutdown);
    owned.time.advance(Duration::from_nanos(1));
    let report = block_on(shutdown);
    assert!(!report.complete);
    assert_eq!((report.permits, report.threads), (4, 3));
    let mut jobs: Vec<_> = report.jobs.iter().map(|job| (job.name.as_str(), job.state)).collect();
    jobs.sort_by_key(|&(name, _)| name);
    let expected =
        [("late", JobState::TimedOut), ("left", JobState::Abandoned), ("plain", JobState::Running)];
    assert_eq!(jobs, expected);
    assert!(report.jobs.iter().all(|job| job.ran == Some(5 * SECOND)), "{report}");
    let text = report.to_string();
    for part in
        ["not everything has stopped after 5s", "3 jobs, 4 permits and 3 threads", "#1 \"plain\""]
    {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    gate.open();
    plain.join().unwrap();
    assert!(late.join().is_err());
    eventually("the jobs end", || pool.snapshot().jobs.is_empty());
    let report = block_on(pool.shutdown(owned.after(Duration::ZERO)));
    assert!(!report.complete, "a permit is out");
    assert_eq!((report.jobs.len(), report.permits), (0, 1));
    drop(permit);
    shut_down(&pool);
}

/// BLK-15
#[test]
fn several_may_shut_a_pool_down_and_each_is_told() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let mut given_up = pool.shutdown(Deadline::never());
    start(&mut given_up);
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut shutdown = pool.shutdown(Deadline::never());
            start(&mut shutdown);
            std::thread::spawn(move || block_on(shutdown))
        })
        .collect();
    drop(given_up);
    gate.open();
    running.join().unwrap();
    for thread in waiting {
        assert!(must_end("a shutdown", || thread.join().unwrap()).complete);
    }
}

/// BLK-15
#[test]
fn a_shutdown_that_is_dropped_leaves_the_pool_closed_only_if_it_was_polled() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    drop(pool.shutdown(Deadline::never()));
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
    let held = io.try_acquire().unwrap();
    let mut shutdown = pool.shutdown(Deadline::never());
    start(&mut shutdown);
    drop(shutdown);
    is_closed(block_on(io.run(|| ())));
    drop(held);
    shut_down(&pool);
}

/// BLK-15
#[test]
fn a_pool_that_never_worked_is_shut_down_at_once() {
    let owned = Owned::new();
    let (pool, _io) = owned.pool(1, 0);
    assert!(
        matches!(poll(&mut pool.shutdown(Deadline::never())), std::task::Poll::Ready(r) if r.complete)
    );
}

/// BLK-15
#[test]
fn idle_threads_end_with_their_pool() {
    let owned = Owned::new();
    let (stopped, stops) = channel();
    let pool = owned
        .builder(3)
        .lane(LanePolicy::new("io"))
        .keep_alive(Duration::MAX)
        .on_thread_stop(move || stopped.send(()).unwrap())
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let tickets: Vec<_> = (0..3).map(|_| io.submit(gate.closure()).unwrap()).collect();
    (0..3).for_each(|_| gate.wait_started());
    gate.open();
    tickets.into_iter().for_each(|ticket| ticket.join().unwrap());
    drop((pool, io));
    (0..3).for_each(|_| stops.recv_timeout(PATIENCE).expect("a thread outlives its pool"));
}

/// BLK-15
#[test]
fn a_shutdown_waits_for_threads_that_end_and_for_their_hooks() {
    let owned = Owned::new();
    let gate = Gate::new();
    let closure = gate.closure();
    let builder = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = builder.on_thread_stop(move || closure.clone()()).build().unwrap();
    let io = pool.executor("io").unwrap();
    block_on(io.run(|| ())).unwrap();
    let mut shutdown = pool.shutdown(owned.after(SECOND));
    start(&mut shutdown);
    gate.wait_started();
    owned.time.advance(SECOND);
    let report = block_on(shutdown);
    assert!(!report.complete, "a thread is at its last words");
    assert_eq!((report.jobs.len(), report.permits, report.threads), (0, 0, 1));
    gate.open();
    shut_down(&pool);
}

/// BLK-15, A18
#[test]
fn what_is_submitted_while_a_shutdown_runs_runs_or_is_refused_as_closed() {
    for _ in 0..50 {
        let owned = Owned::new();
        let (pool, io) = owned.pool(2, usize::MAX);
        let (ran, threads) = (Arc::new(AtomicUsize::new(0)), 3);
        let barrier = Arc::new(Barrier::new(threads + 1));
        let submitters: Vec<_> = (0..threads)
            .map(|_| {
                let (io, ran, barrier) = (io.clone(), Arc::clone(&ran), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    barrier.wait();
                    for done in 0.. {
                        let ran = Arc::clone(&ran);
                        let work = move || ran.fetch_add(1, Ordering::SeqCst);
                        let result = if done % 2 == 0 {
                            block_on(io.run(work))
                        } else {
                            match io.submit(work) {
                                Ok(ticket) => ticket.join(),
                                Err(error) => Err(error.into()),
                            }
                        };
                        if result.is_err() {
                            is_closed(result);
                            return done;
                        }
                    }
                    unreachable!()
                })
            })
            .collect();
        barrier.wait();
        shut_down(&pool);
        let after = ran.load(Ordering::SeqCst);
        let done: usize = submitters
            .into_iter()
            .map(|thread| must_end("a submission during shutdown", || thread.join().unwrap()))
            .sum();
        assert_eq!((done, ran.load(Ordering::SeqCst)), (after, after), "one ran after the report");
    }
}

/// A21, BLK-15
#[test]
fn the_last_handle_may_be_dropped_inside_an_async_worker() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let closure = gate.closure();
    let running = io.submit(move || {
        closure();
        7
    });
    gate.wait_started();
    let queued = io.submit(|| ()).unwrap();
    let task = owned.runtime.spawn(async move { drop((pool, io)) });
    owned.runtime.block_on(task).unwrap();
    is_closed(queued.join());
    gate.open();
    assert_eq!(running.unwrap().join().unwrap(), 7, "what runs goes on");
}

/// A21, BLK-15
#[test]
fn the_last_handle_may_be_dropped_inside_a_job_of_the_same_pool() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let closure = gate.closure();
    let running = io.submit(move || {
        closure();
        drop(pool);
        7
    });
    gate.wait_started();
    let queued = io.submit(|| ()).unwrap();
    drop(io);
    gate.open();
    assert_eq!(must_end("a job that drops its pool", || running.unwrap().join()).unwrap(), 7);
    is_closed(queued.join());
}

/// A21, BLK-15
#[test]
fn the_last_handle_may_be_captured_by_the_last_job() {
    let owned = Owned::new();
    let (stopped, stops) = channel();
    let pool = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = pool.on_thread_stop(move || stopped.send(()).unwrap()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let first = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let inner = io.clone();
    let last = io.submit(move || inner.lane().to_owned()).unwrap();
    drop((pool, io));
    gate.open();
    first.join().unwrap();
    assert_eq!(last.join().unwrap(), "io", "a handle was left, so the pool was open");
    stops.recv_timeout(PATIENCE).expect("the thread ends when the last handle is gone");
}

/// A21, BLK-15
#[test]
fn the_last_handle_may_be_dropped_by_the_timer() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let captured = (pool, io.clone());
    let soon = owned.after(SECOND);
    let late = io.job("late").deadline(soon).submit(move || drop(captured)).unwrap();
    let queued = io.submit(|| ()).unwrap();
    drop(io);
    // refuses the late one, whose captures hold the last handle
    owned.time.advance(SECOND);
    assert!(matches!(late.join(), Err(RunError::Refused(AcquireError::Deadline { .. }))));
    is_closed(queued.join());
    gate.open();
    running.join().unwrap();
    // with the pool's own timer, the timer's thread drops its timer
    let runtime = support::runtime();
    let lane = LanePolicy::new("io").queue_timeout(Duration::from_millis(5));
    let pool = BlockingPool::builder(runtime.handle().clone()).capacity(1).lane(lane);
    let pool = pool.build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    drop(io.submit(gate.closure()).unwrap());
    gate.wait_started();
    let captured = (pool, io.clone());
    let late = io.submit(move || drop(captured)).unwrap();
    drop(io);
    let result = must_end("a pool that is dropped by its timer", || late.join());
    assert!(matches!(result, Err(RunError::Refused(AcquireError::Deadline { .. }))));
}

/// BLK-15
#[test]
fn runs_tickets_and_permits_outlive_their_pool() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let (fresh, permit) = (io.run(|| ()), io.try_acquire().unwrap());
    let (mut queued, ticket) = (io.run(|| ()), io.submit(|| ()).unwrap());
    start(&mut queued);
    drop((pool, io));
    is_closed(block_on(fresh));
    is_closed(block_on(queued));
    is_closed(ticket.join());
    assert_eq!(block_on(permit.run(|| 7)).unwrap(), 7, "a permit that is out stays valid");
}

/// BLK-15
#[test]
fn a_long_queue_is_refused_without_holding_anybody_up() {
    const MANY: usize = 20_000;
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, MANY);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let tickets: Vec<_> = (0..MANY).map(|_| io.submit(|| ()).unwrap()).collect();
    pool.close();
    assert!(tickets.iter().all(tollgate_blocking::Ticket::is_done));
    assert_eq!(refused(&pool, "io").closed, MANY as u64);
    tickets.into_iter().for_each(|ticket| is_closed(ticket.join()));
    gate.open();
    running.join().unwrap();
}

/// BLK-15, ADM-5, A6
#[test]
fn captures_and_wakers_that_use_the_pool_while_it_closes_find_no_lock_held() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let looked = Arc::new(AtomicBool::new(false));
    let (look, pool_too, io_too) = (Arc::clone(&looked), pool.clone(), io.clone());
    let mark = OnDrop(move || {
        assert!(io_too.submit(|| ()).is_err());
        pool_too.close();
        look.store(!pool_too.snapshot().jobs.is_empty(), Ordering::SeqCst);
    });
    let queued = io.submit(move || drop(mark)).unwrap();
    let closing = pool.clone();
    must_end("a close whose refusals use the pool", move || closing.close());
    // whoever takes the error drops the captures
    is_closed(must_end("captures that use the pool", move || queued.join()));
    assert!(looked.load(Ordering::SeqCst));
    gate.open();
    running.join().unwrap();
}
