//! A closure in, its result out.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use support::*;
use tollgate_blocking::{
    AcquireError, BuildError, Closed, JobKind, JobState, LanePolicy, RunError,
};

/// BLK-4
#[test]
fn what_a_closure_returns_is_the_result() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, 4);
    assert_eq!(block_on(io.run(|| 40 + 2)).unwrap(), 42);
    assert_eq!(block_on(io.job("named").run_with(|job| job.name().len())).unwrap(), 5);
    assert_eq!(io.submit(|| "ticket").unwrap().join().unwrap(), "ticket");
    assert_eq!(io.job("named").submit_with(|job| job.id().get()).unwrap().join().unwrap(), 4);
    assert_eq!(counts(&pool, "io").finished, 4);
    shut_down(&pool);
}

/// BLK-4
#[test]
fn a_closure_may_fail_in_its_own_way() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let result = block_on(io.run(|| "x".parse::<u8>()));
    assert!(result.unwrap().is_err(), "the closure's error is the closure's result");
}

/// BLK-5
#[test]
fn nothing_happens_before_the_first_poll() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let run = io.run(move || count.fetch_add(1, Ordering::SeqCst));
    let acquire = io.acquire();
    let stats = pool.stats();
    let lane = stats.budget.lane("io").unwrap();
    assert_eq!((lane.admitted, lane.waiting, lane.running), (0, 0, 0));
    assert_eq!(lane.refused.total(), 0);
    assert_eq!((stats.threads.alive, stats.threads.peak), (0, 0), "no thread before any work");
    assert!(pool.snapshot().jobs.is_empty());
    drop((run, acquire));
    assert_eq!(ran.load(Ordering::SeqCst), 0, "what was never polled never runs");
    assert_eq!(Arc::strong_count(&ran), 1, "its captures are gone");
    shut_down(&pool);
}

/// BLK-5
#[test]
fn a_wait_counts_from_the_first_poll() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 1);
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let mut early = io.job("early").run(|| ());
    owned.time.advance(Duration::from_secs(5));
    start(&mut early);
    owned.time.advance(Duration::from_secs(2));
    let jobs = pool.snapshot().jobs;
    let job = jobs.iter().find(|job| job.name.as_str() == "early").unwrap();
    assert_eq!((job.state, job.waited), (JobState::Queued, Duration::from_secs(2)));
}

/// BLK-5
#[test]
fn futures_stay_small_whatever_they_capture() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let large = [7_u8; 64 * 1024];
    let run = io.run(move || large);
    assert!(size_of_val(&run) <= 64, "a run of {} bytes", size_of_val(&run));
    assert_eq!(size_of_val(&io.run(|| ())), size_of_val(&run), "it depends on what it captures");
    let ticket = io.submit(move || large).unwrap();
    assert!(size_of_val(&ticket) <= 64, "a ticket of {} bytes", size_of_val(&ticket));
    assert_eq!(ticket.join().unwrap()[0], 7);
}

/// BLK-5
#[test]
fn large_results_and_results_without_size_arrive_whole() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 1);
    let large = block_on(io.run(|| std::array::from_fn::<u64, 4096, _>(|at| at as u64))).unwrap();
    assert!(large.iter().enumerate().all(|(at, &value)| value == at as u64));
    block_on(io.run(|| ())).unwrap();
    let exact = block_on(io.run(|| [3_u8; 64])).unwrap();
    assert_eq!(exact, [3; 64]);
    let above = block_on(io.run(|| [4_u8; 65])).unwrap();
    assert_eq!(above, [4; 65]);
}

/// BLK-4
#[test]
fn a_job_shows_its_name_kind_lane_and_id() {
    const SCAN: JobKind = JobKind::new("scan");
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 1);
    let gate = Gate::new();
    let strange = String::from("a\n\0\u{1f980} \"b\"");
    let closure = gate.closure();
    let ticket = io
        .job(strange.clone())
        .kind(SCAN)
        .submit_with(move |job| {
            closure();
            (job.id(), job.name().to_owned(), job.kind(), job.lane().to_owned())
        })
        .unwrap();
    gate.wait_started();
    let [job] = &pool.snapshot().jobs[..] else { panic!("one job") };
    assert_eq!((job.name.as_str(), job.kind, &*job.lane), (&*strange, SCAN, "io"));
    assert_eq!(job.id, ticket.id());
    gate.open();
    assert_eq!(ticket.join().unwrap(), (job.id, strange, SCAN, "io".into()));
}

/// BLK-4
#[test]
fn ids_are_given_in_order_and_never_twice() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(2, 100);
    let tickets: Vec<_> = (0..50).map(|_| io.submit(|| ()).unwrap()).collect();
    let ids: Vec<_> = tickets.iter().map(|ticket| ticket.id().get()).collect();
    assert_eq!(ids, (1..=50).collect::<Vec<_>>());
}

/// BLK-4
#[test]
fn weights_count_against_the_capacity() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(5, 4);
    let gate = Gate::new();
    let mut heavy = io.job("heavy").weight(3).run(gate.closure());
    start(&mut heavy);
    gate.wait_started();
    assert_eq!(available(&pool), 2);
    let mut second = io.job("second").weight(3).run(|| ());
    start(&mut second);
    assert_eq!(states(&pool), [JobState::Running, JobState::Queued]);
    // one thread each, whatever it weighs
    assert_eq!(pool.stats().threads.alive, 1);
    gate.open();
    block_on(heavy).unwrap();
    block_on(second).unwrap();
    assert_eq!(available(&pool), 5);
}

/// Section 5
#[test]
fn impossible_weights_are_refused_at_once_and_name_the_limit() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(4, 4);
    for weight in [5, u64::MAX] {
        let error = block_on(io.job("huge").weight(weight).run(|| ())).unwrap_err();
        let RunError::Refused(AcquireError::TooLarge { weight: asked, limit, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((asked, limit), (weight, 4));
    }
    let error = block_on(io.job("none").weight(0).run(|| ())).unwrap_err();
    assert!(matches!(error, RunError::Refused(AcquireError::ZeroWeight { .. })), "{error:?}");
    assert_eq!((refused(&pool, "io").too_large, refused(&pool, "io").zero_weight), (2, 1));
    assert_eq!(available(&pool), 4);
    assert_eq!(pool.stats().threads.peak, 0);
}

/// Section 5
#[test]
fn a_capacity_of_the_largest_number_is_a_capacity() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(u64::MAX, usize::MAX);
    let gate = Gate::new();
    let mut whole = io.job("whole").weight(u64::MAX).run(gate.closure());
    start(&mut whole);
    gate.wait_started();
    let mut next = io.run(|| 1);
    start(&mut next);
    assert_eq!(available(&pool), 0);
    gate.open();
    block_on(whole).unwrap();
    assert_eq!(block_on(next).unwrap(), 1);
    assert_eq!(available(&pool), u64::MAX);
    assert_eq!(pool.stats().threads.peak, 1);
}

/// Section 5
#[test]
fn names_with_any_characters_will_do() {
    let owned = Owned::new();
    let names = ["", "\0", "a\nb", "\u{202e}\u{1f980}", "`\"'"];
    let builder = names.iter().fold(owned.builder(1), |b, &name| b.lane(LanePolicy::new(name)));
    let pool = builder.thread_name("\u{1f980} a thread whose name is longer than any system takes");
    let pool = pool.build().unwrap();
    for name in names {
        let executor = pool.executor(name).unwrap();
        assert_eq!(executor.lane(), name);
        assert_eq!(block_on(executor.run(|| 1)).unwrap(), 1);
    }
    let error = pool.executor("c").unwrap_err();
    assert_eq!(error.to_string(), "there is no lane `c`");
    let error = owned.builder(1).lane(LanePolicy::new("x")).thread_name("a\0b").build();
    assert!(matches!(error, Err(BuildError::ThreadName { name }) if name == "a\0b"));
}

/// BLK-1, ADM-1, A13
#[test]
fn a_pool_that_could_run_nothing_is_not_built() {
    let owned = Owned::new();
    let error = owned.builder(0).lane(LanePolicy::new("x")).build().unwrap_err();
    assert_eq!(error.to_string(), "the capacity is 0");
    let error = owned.builder(1).build().unwrap_err();
    assert_eq!(error.to_string(), "there are no lanes");
    let lane = LanePolicy::new("x").reserved(6).limit(4);
    let error = owned.builder(8).lane(lane).build().unwrap_err();
    assert_eq!(error.to_string(), "lane `x` reserves 6 permits but its limit is 4");
}

/// BLK-1, ADM-9, A19
#[test]
fn a_full_lane_is_refused_and_no_other() {
    let owned = Owned::new();
    let (a, b) =
        (LanePolicy::new("a").limit(1).max_waiting(1), LanePolicy::new("b").max_waiting(0));
    let pool = owned.builder(2).lane(a).lane(b).build().unwrap();
    let (a, b) = (pool.executor("a").unwrap(), pool.executor("b").unwrap());
    let gate = Gate::new();
    let (mut running, mut queued) = (a.run(gate.closure()), a.run(|| ()));
    start(&mut running);
    start(&mut queued);
    let error = block_on(a.run(|| ())).unwrap_err();
    let RunError::Refused(AcquireError::QueueFull { lane, max_waiting: 1 }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(&**lane, "a");
    assert!(error.never_ran());
    assert_eq!(block_on(b.run(|| 7)).unwrap(), 7, "another lane has room");
    assert_eq!((refused(&pool, "a").queue_full, refused(&pool, "b").total()), (1, 0));
}

/// BLK-1, ADM-3
#[test]
fn jobs_of_a_lane_start_in_the_order_in_which_they_came() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 100);
    let (gate, log) = (Gate::new(), Log::default());
    let first = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let rest: Vec<_> = (0..50)
        .map(|n| {
            let log = log.clone();
            io.submit(move || log.add(n.to_string())).unwrap()
        })
        .collect();
    gate.open();
    first.join().unwrap();
    rest.into_iter().for_each(|ticket| ticket.join().unwrap());
    assert_eq!(log.get(), (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// BLK-2, ADM-7
#[test]
fn a_run_that_moves_to_another_task_wakes_that_one() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 1);
    let gate = Gate::new();
    let mut run = Box::pin(io.run(gate.closure()));
    let ((old, old_waker), (new, new_waker)) = (Bell::new(), Bell::new());
    assert!(run.as_mut().poll(&mut Context::from_waker(&old_waker)).is_pending());
    assert!(run.as_mut().poll(&mut Context::from_waker(&new_waker)).is_pending());
    // one that is polled again by the same task keeps its waker
    assert!(run.as_mut().poll(&mut Context::from_waker(&new_waker)).is_pending());
    gate.open();
    eventually("the newer waker is called", || new.rung() == 1);
    assert_eq!(old.rung(), 0, "the task that gave it away is not woken");
    assert!(matches!(run.as_mut().poll(&mut Context::from_waker(&new_waker)), Poll::Ready(Ok(()))));
}

/// BLK-1, A10
#[test]
fn every_accepted_job_runs_while_submitters_race_workers_that_go_idle() {
    let owned = Owned::new();
    // idle threads also retire at once, and come anew
    let builder = owned.builder(3).lane(LanePolicy::new("io").unbounded_waiting());
    let pool = builder.keep_alive(Duration::ZERO).build().unwrap();
    let io = pool.executor("io").unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let (threads, each) = (4, 3_000);
    let submitters: Vec<_> = (0..threads)
        .map(|thread| {
            let (io, ran, time) = (io.clone(), Arc::clone(&ran), owned.time.clone());
            std::thread::spawn(move || {
                for n in 0..each {
                    let ran = Arc::clone(&ran);
                    let ticket = io.submit(move || ran.fetch_add(1, Ordering::Relaxed)).unwrap();
                    match n % 3 {
                        // with the workers busy, going idle, and gone
                        0 => drop(ticket),
                        _ => drop(ticket.join().unwrap()),
                    }
                    if n % 7 == thread {
                        time.advance(Duration::from_millis(1));
                    }
                }
            })
        })
        .collect();
    must_end("submitting while workers go idle", move || {
        submitters.into_iter().for_each(|thread| thread.join().unwrap());
    });
    shut_down_when_done(&pool, &ran, threads * each);
}

fn shut_down_when_done(pool: &tollgate_blocking::BlockingPool, ran: &AtomicUsize, jobs: usize) {
    eventually("every accepted job runs", || ran.load(Ordering::Relaxed) == jobs);
    shut_down(pool);
    assert_eq!(counts(pool, "io").finished, jobs as u64);
}

/// BLK-1, A5, ADM-2
#[test]
fn what_runs_at_once_never_exceeds_capacity_or_limit() {
    let owned = Owned::new();
    let a = LanePolicy::new("a").limit(2).unbounded_waiting();
    let b = LanePolicy::new("b").unbounded_waiting();
    let pool = owned.builder(3).lane(a).lane(b).build().unwrap();
    let lanes = [pool.executor("a").unwrap(), pool.executor("b").unwrap()];
    let running: Arc<[AtomicUsize; 3]> = Arc::default();
    let peaks: Arc<[AtomicUsize; 3]> = Arc::default();
    let submitters: Vec<_> = (0..4)
        .map(|thread: usize| {
            let (lanes, running, peaks) = (lanes.clone(), Arc::clone(&running), Arc::clone(&peaks));
            std::thread::spawn(move || {
                for n in 0..2_000 {
                    let (lane, running, peaks) = (n % 2, Arc::clone(&running), Arc::clone(&peaks));
                    let job = move || {
                        for at in [lane, 2] {
                            let now = running[at].fetch_add(1, Ordering::SeqCst) + 1;
                            peaks[at].fetch_max(now, Ordering::SeqCst);
                        }
                        std::thread::yield_now();
                        for at in [lane, 2] {
                            running[at].fetch_sub(1, Ordering::SeqCst);
                        }
                    };
                    let ticket = lanes[lane].submit(job).unwrap();
                    if n % 4 == thread {
                        ticket.join().unwrap();
                    }
                }
            })
        })
        .collect();
    submitters.into_iter().for_each(|thread| thread.join().unwrap());
    eventually("all jobs end", || pool.snapshot().jobs.is_empty());
    let [a, b, all] = &*peaks;
    let [a, b, all] = [a, b, all].map(|peak| peak.load(Ordering::SeqCst));
    assert!(a <= 2 && b <= 3 && all <= 3, "lane a ran {a}, lane b {b}, both {all} at once");
    let stats = pool.stats();
    assert!(stats.budget.lanes[0].peak <= 2 && stats.threads.peak <= 3);
    assert!(stats.budget.lanes[0].peak as usize >= a, "the recorded peak misses what was seen");
    assert_eq!(available(&pool), 3);
}

/// BLK-2, A23
#[test]
fn a_task_without_cooperative_budget_is_not_refused() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    owned.runtime.block_on(async {
        for _ in 0..100 {
            // uses up what the runtime lets a task do in one poll
            tokio::task::unconstrained(async {}).await;
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            assert_eq!(io.run(|| 1).await.unwrap(), 1);
        }
    });
    assert_eq!(refused(&pool, "io").total(), 0);
    assert_eq!(counts(&pool, "io").finished, 100);
}

/// BLK-1, ADM-9
#[test]
fn a_refusal_says_what_was_refused_and_why() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    pool.close();
    let error = block_on(io.run(|| ())).unwrap_err();
    let RunError::Refused(AcquireError::Closed { what: Closed::Budget, .. }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(error.to_string(), "lane `io` admits nothing more: its budget is closed");
    assert!(pool.is_closed());
}

/// BLK-1
#[test]
fn executors_are_handles_that_share_one_pool() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let mut running = io.clone().run(gate.closure());
    start(&mut running);
    let (same_pool, same_lane) = (pool.clone(), pool.executor("io").unwrap());
    assert!(same_lane.try_acquire().is_err(), "the one permit is out, whoever asks");
    assert_eq!(available(&same_pool), 0);
    assert_eq!(format!("{same_lane:?}"), "Executor { lane: \"io\", .. }");
}

/// BLK-5
#[test]
#[should_panic = "a job was polled after it had completed"]
fn a_run_that_has_completed_is_not_to_be_polled() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let mut run = io.run(|| ());
    block_on(&mut run).unwrap();
    let _ = poll(&mut run);
}
