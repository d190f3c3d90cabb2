//! Work that a job submits to its own pool.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;
use support::*;
use tollgate_blocking::admission::TimeSource;
use tollgate_blocking::{
    AcquireError, Closed, Executor, JobState, LanePolicy, Run, RunError, SubmitError, Ticket,
    TryAcquireError,
};

const SECOND: Duration = Duration::from_secs(1);

/// The two ways in, as a job would use them: wait for a run, or submit and join.
fn both_ways<R: Send + 'static>(
    executor: &Executor,
    weight: u64,
    f: impl FnOnce() -> R + Clone + Send + 'static,
) -> [Result<R, RunError>; 2] {
    let job = || executor.job("inner").weight(weight);
    let run = block_on(job().run(f.clone()));
    let submitted = match job().submit(f) {
        Ok(ticket) => {
            assert!(ticket.is_done(), "it has run when the submission returns");
            ticket.join()
        }
        Err(error) => Err(error.into()),
    };
    [run, submitted]
}

fn here() -> ThreadId {
    std::thread::current().id()
}

/// Runs `f` as a job of `executor`'s lane, and fails rather than hangs when it does not end.
fn as_job<R: Send + 'static>(executor: &Executor, f: impl FnOnce() -> R + Send + 'static) -> R {
    let ticket = executor.job("outer").submit(f).unwrap();
    must_end("a job that submits to its own pool", || match ticket.join() {
        Ok(result) => result,
        Err(RunError::Panicked(panic)) => panic.resume(),
        Err(error) => panic!("{error}"),
    })
}

/// BLK-11, A11
#[test]
fn work_for_the_same_lane_runs_on_the_same_thread_under_the_same_permit() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let (inner_io, inner_pool) = (io.clone(), pool.clone());
    let (outer, inner) = as_job(&io, move || {
        let look = move || (here(), inner_pool.stats().budget.lanes[0].running);
        (here(), both_ways(&inner_io, 1, look).map(Result::unwrap))
    });
    assert_eq!(inner, [(outer, 1); 2]);
    let stats = pool.stats();
    let counts = stats.lanes[0].counts;
    assert_eq!((counts.inline, counts.started, counts.finished), (2, 3, 3));
    assert_eq!(stats.budget.lanes[0].admitted, 1, "one permit for all");
    assert_eq!((stats.budget.available, stats.threads.peak), (1, 1));
}

/// BLK-11, A11
#[test]
fn waiting_for_the_own_full_lane_in_every_way_there_is_never_hangs() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let runtime = owned.runtime.handle().clone();
    let inner = io.clone();
    let ran = as_job(&io, move || {
        let mut ran = 0;
        ran += block_on(inner.run(|| 1)).unwrap();
        ran += runtime.block_on(inner.run(|| 1)).unwrap();
        ran += runtime.block_on(async { inner.run(|| 1).await }).unwrap();
        ran += inner.submit(|| 1).unwrap().join().unwrap();
        ran += block_on(inner.submit(|| 1).unwrap()).unwrap();
        let mut ticket = inner.submit(|| 1).unwrap();
        ran += block_on(ticket.wait_until(std::time::Instant::now())).unwrap().unwrap();
        ran
    });
    assert_eq!(ran, 6);
    assert_eq!(counts(&pool, "io").inline, 6);
}

/// BLK-11
#[test]
fn jobs_nest_as_deep_as_the_stack_allows() {
    fn nest(io: &Executor, depth: u32) -> u32 {
        if depth == 0 {
            return 0;
        }
        let inner = io.clone();
        block_on(io.run(move || nest(&inner, depth - 1))).unwrap() + 1
    }
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let inner = io.clone();
    assert_eq!(as_job(&io, move || nest(&inner, 50)), 50);
    assert_eq!(counts(&pool, "io").inline, 50);
    assert_eq!(available(&pool), 1);
}

/// BLK-11
#[test]
fn work_for_another_lane_takes_a_permit_of_that_lane_and_runs_on_the_same_thread() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(2);
    let (inner_b, inner_pool) = (b.clone(), pool.clone());
    let (outer, inner) = as_job(&a, move || {
        let look = move || {
            let lanes = inner_pool.stats().budget.lanes;
            (here(), lanes[0].running, lanes[1].running)
        };
        (here(), both_ways(&inner_b, 1, look).map(Result::unwrap))
    });
    assert_eq!(inner, [(outer, 1, 1); 2]);
    let stats = pool.stats();
    assert_eq!((stats.budget.lanes[1].admitted, stats.lanes[1].counts.inline), (2, 2));
    assert_eq!((stats.budget.available, stats.threads.peak), (2, 1));
    let _ = b;
}

/// BLK-11
#[test]
fn work_for_another_lane_without_a_free_permit_is_refused_by_name_and_does_not_wait() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(1);
    let captured = Arc::new(());
    let kept = Arc::clone(&captured);
    let refusals = as_job(&a, move || both_ways(&b, 1, move || drop(kept.clone())));
    for error in refusals.map(Result::unwrap_err) {
        let RunError::Busy { lane } = &error else { panic!("{error:?}") };
        assert_eq!(&**lane, "b");
        assert!(error.never_ran());
    }
    assert_eq!(Arc::strong_count(&captured), 1, "the captures are gone");
    assert_eq!(refused(&pool, "b").busy, 2);
    let counts = counts(&pool, "b");
    assert_eq!((counts.started, counts.inline), (0, 0));
}

/// BLK-11
#[test]
fn work_for_another_lane_does_not_pass_those_who_wait_there() {
    let owned = Owned::new();
    let (a, b) = (LanePolicy::new("a"), LanePolicy::new("b").limit(1));
    let pool = owned.builder(3).lane(a).lane(b).build().unwrap();
    let (a, b) = (pool.executor("a").unwrap(), pool.executor("b").unwrap());
    let gate = Gate::new();
    let mut running = b.run(gate.closure());
    start(&mut running);
    let mut waiting = b.run(|| ());
    start(&mut waiting);
    let error = as_job(&a, move || block_on(b.run(|| ())).unwrap_err());
    assert!(matches!(error, RunError::Busy { .. }), "{error:?}");
    assert_eq!(pool.stats().budget.lanes[1].waiting, 1);
}

/// BLK-11
#[test]
fn a_lane_that_an_outer_job_is_in_is_entered_again_under_its_permit() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(2);
    let (inner_a, inner_pool) = (a.clone(), pool.clone());
    let inner = as_job(&a, move || {
        let innermost = move || {
            let look = move || {
                let lanes = inner_pool.stats().budget.lanes;
                (lanes[0].running, lanes[1].running)
            };
            both_ways(&inner_a, 1, look).map(Result::unwrap)
        };
        block_on(b.run(innermost)).unwrap()
    });
    assert_eq!(inner, [(1, 1); 2]);
    assert_eq!(counts(&pool, "a").inline, 2);
    assert_eq!(counts(&pool, "b").inline, 1);
    assert_eq!(available(&pool), 2);
}

/// BLK-11
#[test]
fn heavier_work_takes_what_it_weighs_more_and_gives_it_back() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(4, 0);
    let (inner, inner_pool) = (io.clone(), pool.clone());
    let seen = as_job(&io, move || {
        let look_pool = inner_pool.clone();
        let deeper = inner.clone();
        let look = move || {
            // what an outer job took is there for inner ones
            let within = deeper.job("w").weight(3).submit(|| ()).is_ok();
            (look_pool.stats().budget.lanes[0].running, within)
        };
        let heavier = both_ways(&inner, 3, look.clone()).map(Result::unwrap);
        let after = inner_pool.stats().budget.lanes[0].running;
        (heavier, after)
    });
    assert_eq!(seen, ([(3, true); 2], 1));
    assert_eq!(available(&pool), 4);
}

/// BLK-11
#[test]
fn heavier_work_is_refused_when_what_it_weighs_more_is_not_free() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(3, 8);
    let other = io.try_acquire().unwrap();
    let inner = io.clone();
    let errors = as_job(&io, move || both_ways(&inner, 3, || ()).map(Result::unwrap_err));
    for error in errors {
        assert!(matches!(error, RunError::Busy { .. }), "{error:?}");
    }
    drop(other);
    assert_eq!(available(&pool), 3);
}

/// BLK-11
#[test]
fn lighter_work_needs_nothing_more() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(3, 0);
    let inner = io.clone();
    let job = io.job("outer").weight(3);
    let ticket = job.submit(move || both_ways(&inner, 2, || 5).map(Result::unwrap)).unwrap();
    assert_eq!(must_end("lighter work", || ticket.join()).unwrap(), [5, 5]);
    assert_eq!(pool.stats().budget.lanes[0].admitted, 1);
    assert_eq!(available(&pool), 3);
}

/// BLK-11, section 5
#[test]
fn impossible_weights_are_refused_inside_a_job_as_outside() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, 0);
    let inner = io.clone();
    let [zero, large] = as_job(&io, move || {
        [0, u64::MAX].map(|weight| both_ways(&inner, weight, || ()).map(Result::unwrap_err))
    });
    for error in zero {
        assert!(matches!(error, RunError::Refused(AcquireError::ZeroWeight { .. })), "{error:?}");
    }
    for error in large {
        let RunError::Refused(AcquireError::TooLarge { weight, limit, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((weight, limit), (u64::MAX, 2));
    }
    assert_eq!((refused(&pool, "io").zero_weight, refused(&pool, "io").too_large), (2, 2));
}

/// BLK-11
#[test]
fn a_closed_pool_refuses_work_from_its_own_jobs() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(2);
    let (inner_a, inner_pool) = (a.clone(), pool.clone());
    let [same, other] = as_job(&a, move || {
        inner_pool.close();
        [&inner_a, &b].map(|lane| both_ways(lane, 1, || ()).map(Result::unwrap_err))
    });
    for error in same.into_iter().chain(other) {
        let RunError::Refused(AcquireError::Closed { what: Closed::Budget, .. }) = error else {
            panic!("{error:?}")
        };
    }
    assert_eq!((refused(&pool, "a").closed, refused(&pool, "b").closed), (2, 2));
    assert_eq!(counts(&pool, "a").inline, 0);
}

/// BLK-11
#[test]
fn the_deadline_is_checked_before_inner_work_starts() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(2);
    let (inner_a, past) = (a.clone(), owned.after(Duration::ZERO));
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    as_job(&a, move || {
        for lane in [&inner_a, &b] {
            let count = Arc::clone(&count);
            let error = lane
                .job("late")
                .deadline(past)
                .submit(move || count.fetch_add(1, Ordering::SeqCst))
                .unwrap_err();
            let SubmitError::Refused(AcquireError::Deadline { .. }) = error else {
                panic!("{error:?}")
            };
        }
    });
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_eq!((refused(&pool, "a").deadline, refused(&pool, "b").deadline), (1, 1));
    assert_eq!(available(&pool), 2);
}

/// BLK-11, BLK-6
#[test]
fn inner_work_whose_time_is_up_is_told_so_in_mid_run() {
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(10 * SECOND));
    let gate = Gate::new();
    let (inner, closure, soon) = (io.clone(), gate.closure(), owned.after(SECOND));
    let ticket = io
        .job("outer")
        .submit(move || {
            block_on(inner.job("inner").deadline(soon).run_with(move |job| {
                closure();
                job.checkpoint().unwrap_err()
            }))
        })
        .unwrap();
    gate.wait_started();
    assert_eq!(states(&pool), [JobState::Running, JobState::Running]);
    owned.time.advance(SECOND);
    assert_eq!(states(&pool), [JobState::Running, JobState::TimedOut]);
    gate.open();
    assert!(matches!(ticket.join().unwrap(), Err(RunError::TimedOut { .. })));
    assert_eq!((counts(&pool, "io").timed_out, counts(&pool, "io").finished), (1, 2));
}

/// BLK-11, BLK-10
#[test]
fn a_panic_of_inner_work_reaches_the_outer_job_as_a_result() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(2);
    let inner_a = a.clone();
    as_job(&a, move || {
        for lane in [&inner_a, &b] {
            for result in both_ways(lane, 2, || -> () { panic!("inner") }) {
                let Err(RunError::Panicked(panic)) = result else { panic!("{result:?}") };
                assert_eq!(panic.message(), Some("inner"));
            }
            // with a weight of 2, lane a takes 1 more; b can't have 2
            if lane.lane() == "a" {
                break;
            }
        }
    });
    assert_eq!(counts(&pool, "a").panicked, 2);
    assert_eq!(counts(&pool, "a").finished, 1);
    assert_eq!(available(&pool), 2);
}

/// BLK-11
#[test]
fn another_pool_is_another_pool() {
    let owned = Owned::new();
    let (first, io) = owned.pool(1, 0);
    let (second, other) = owned.pool(1, 0);
    let (outer, inner) = as_job(&io, move || (here(), block_on(other.run(here)).unwrap()));
    assert_ne!(outer, inner);
    assert_eq!((counts(&first, "io").inline, counts(&second, "io").inline), (0, 0));
    assert_eq!(counts(&second, "io").finished, 1);
}

/// BLK-11
#[test]
fn a_permit_that_a_job_took_runs_its_work_beside_the_job() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, 0);
    let inner = io.clone();
    let (outer, spawned) = as_job(&io, move || {
        let (started, starts) = std::sync::mpsc::channel();
        let permit = block_on(inner.acquire()).unwrap();
        let spawned = permit.spawn(move || {
            started.send(()).unwrap();
            here()
        });
        // waits for it otherwise than by its ticket
        starts.recv_timeout(PATIENCE).unwrap();
        (here(), spawned.unwrap().join().unwrap())
    });
    assert_ne!(outer, spawned);
    assert_eq!(counts(&pool, "io").inline, 0);
    assert_eq!(pool.stats().threads.peak, 2);
}

/// BLK-11: the thread has the work before whoever submitted it can look again.
#[test]
fn a_job_is_woken_by_its_work_under_a_second_permit_that_another_thread_took_at_once() {
    let owned = Owned::new();
    let (started, starts) = std::sync::mpsc::channel();
    let (first, starts) = (std::sync::Once::new(), std::sync::Mutex::new(starts));
    let builder = owned.builder(2).lane(LanePolicy::new("io")).spawn_handler(move |thread| {
        let mut is_first = false;
        // before it runs: its job has a second one asked for at once
        first.call_once(|| is_first = true);
        std::thread::spawn(move || thread.run());
        if !is_first {
            starts.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
        Ok(())
    });
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let inner = io.clone();
    let (outer, ran) = as_job(&io, move || {
        let permit = inner.try_acquire().unwrap();
        let work = permit.run(move || {
            started.send(()).unwrap();
            here()
        });
        (here(), block_on(work).unwrap())
    });
    assert_ne!(outer, ran);
    assert_eq!(counts(&pool, "io").inline, 0);
}

/// BLK-11, A9
#[test]
fn a_job_that_waits_for_work_under_a_second_permit_runs_it_if_no_thread_has_come_for_it() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let first = std::sync::Once::new();
    let keep = nursery.handler();
    let builder = owned.builder(4).lane(LanePolicy::new("io")).spawn_handler(move |thread| {
        // one comes; the others are promised, and kept back
        let mut thread = Some(thread);
        first.call_once(|| {
            let thread = thread.take().unwrap();
            std::thread::spawn(move || thread.run());
        });
        thread.map_or(Ok(()), &keep)
    });
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let inner = io.clone();
    let outer = io.submit(move || {
        let permit = || inner.try_acquire().unwrap();
        let joined = permit().spawn(here).unwrap().join().unwrap();
        let awaited = block_on(permit().spawn(here).unwrap()).unwrap();
        let run = block_on(permit().run(here)).unwrap();
        [here(), joined, awaited, run]
    });
    let ids = must_end("a job that waits", move || outer.unwrap().join()).unwrap();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!((counts(&pool, "io").inline, available(&pool)), (3, 4));
    nursery.let_go();
    shut_down(&pool);
}

/// BLK-11, A9
#[test]
fn a_job_that_waits_for_work_from_outside_runs_it_if_no_thread_has_come_for_it() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let (gate, keep) = (Gate::new(), nursery.handler());
    let first = std::sync::Once::new();
    let builder = owned.builder(3).lane(LanePolicy::new("io")).spawn_handler(move |thread| {
        let mut thread = Some(thread);
        first.call_once(|| {
            let thread = thread.take().unwrap();
            std::thread::spawn(move || thread.run());
        });
        thread.map_or(Ok(()), &keep)
    });
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let (hand_in, handed_in) = std::sync::mpsc::channel();
    let wait = gate.closure();
    let outer = io.submit(move || {
        wait();
        let (run, ticket): (Run<ThreadId>, Ticket<ThreadId>) = handed_in.recv().unwrap();
        [here(), block_on(run).unwrap(), block_on(ticket).unwrap()]
    });
    gate.wait_started();
    let mut run = io.run(here);
    start(&mut run);
    hand_in.send((run, io.submit(here).unwrap())).unwrap();
    gate.open();
    let ids = must_end("a job that waits", move || outer.unwrap().join()).unwrap();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    nursery.let_go();
    shut_down(&pool);
}

/// BLK-7, BLK-11
#[test]
fn a_job_that_waits_for_work_under_a_second_permit_does_not_run_it_past_its_deadline() {
    let owned = Owned::new();
    let (nursery, clock) = (Nursery::default(), JumpyClock::new());
    let first = std::sync::Once::new();
    let keep = nursery.handler();
    let builder = owned.builder(2).lane(LanePolicy::new("io")).time(Arc::new(clock.clone()));
    let builder = builder.spawn_handler(move |thread| {
        // as above: one comes
        let mut thread = Some(thread);
        first.call_once(|| {
            let thread = thread.take().unwrap();
            std::thread::spawn(move || thread.run());
        });
        thread.map_or(Ok(()), &keep)
    });
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let inner = io.clone();
    let outer = io.submit(move || {
        let permit = inner.job("late").deadline(clock.now() + SECOND).try_acquire().unwrap();
        let late = permit.spawn(|| ()).unwrap();
        // and no timer says so
        clock.jump(SECOND);
        late.join()
    });
    let late = must_end("a job that waits", move || outer.unwrap().join()).unwrap();
    assert!(matches!(late, Err(RunError::Refused(AcquireError::Deadline { .. }))), "{late:?}");
    let counts = counts(&pool, "io");
    assert_eq!((counts.started, counts.inline, refused(&pool, "io").deadline), (1, 0, 1));
    assert_eq!(available(&pool), 2);
    nursery.let_go();
    shut_down(&pool);
}

/// BLK-11
#[test]
fn a_job_does_not_wait_for_a_permit_of_its_own_pool() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(1);
    let inner_a = a.clone();
    as_job(&a, move || {
        for lane in [&inner_a, &b] {
            let error = block_on(lane.acquire()).unwrap_err();
            let AcquireError::Busy { .. } = error else { panic!("{error:?}") };
            let error = lane.try_acquire().unwrap_err();
            assert!(matches!(error, TryAcquireError::Busy { .. }), "{error:?}");
        }
        let error = block_on(inner_a.job("huge").weight(7).acquire()).unwrap_err();
        assert!(matches!(error, AcquireError::TooLarge { weight: 7, limit: 1, .. }), "{error:?}");
    });
    assert_eq!((refused(&pool, "a").busy, refused(&pool, "b").busy), (2, 2));
}

/// BLK-11
#[test]
fn a_hook_may_submit_to_the_pool_whose_thread_it_runs_on() {
    let owned = Owned::new();
    let nested = Arc::new(std::sync::OnceLock::<Executor>::new());
    let seen = Arc::new(AtomicUsize::new(0));
    let (hook_nested, hook_seen) = (Arc::clone(&nested), Arc::clone(&seen));
    let pool = owned
        .builder(2)
        .lane(LanePolicy::new("io"))
        .on_thread_start(move || {
            let io = hook_nested.get().unwrap();
            hook_seen.fetch_add(block_on(io.run(|| 1)).unwrap(), Ordering::SeqCst);
        })
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    assert!(nested.set(io.clone()).is_ok());
    assert_eq!(as_job(&io, || 7), 7);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    assert_eq!(counts(&pool, "io").inline, 1);
    eventually("all permits return", || available(&pool) == 2);
}

/// BLK-11
#[test]
fn threads_of_one_pool_may_be_jobs_of_another() {
    let owned = Owned::new();
    let (host, host_io) = owned.pool(1, 0);
    let pool = owned
        .builder(2)
        .lane(LanePolicy::new("a").limit(1))
        .lane(LanePolicy::new("b"))
        .spawn_handler(move |thread| {
            let started = host_io.submit(move || thread.run());
            started.map(drop).map_err(std::io::Error::other)
        })
        .build()
        .unwrap();
    let (a, b) = (pool.executor("a").unwrap(), pool.executor("b").unwrap());
    // the one permit of lane a is out, whatever the thread holds of another pool's first lane
    let held = a.try_acquire().unwrap();
    let error = as_job(&b, move || block_on(a.run(|| ())).unwrap_err());
    assert!(matches!(error, RunError::Busy { .. }), "{error:?}");
    drop(held);
    shut_down(&pool);
    eventually("the thread is the other pool's again", || available(&host) == 1);
}
