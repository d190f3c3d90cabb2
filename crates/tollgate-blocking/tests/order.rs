//! In which order things end: captures, permit, diagnostics, result; and destructors that panic on the way.

mod support;

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use support::*;
use tollgate_blocking::{BlockingPool, Executor, LanePolicy, Run, RunError};

const SECOND: Duration = Duration::from_secs(1);

/// A pool with capacity 1, and what is seen of it at each step of a job's end.
struct Scene {
    owned: Owned,
    nursery: Option<Nursery>,
    pool: BlockingPool,
    io: Executor,
    log: Log,
}

impl Scene {
    fn new() -> Self {
        Self::with(None, 0)
    }

    /// Jobs are admitted, and start when the threads are let go.
    fn held_back() -> Self {
        Self::with(Some(Nursery::default()), 8)
    }

    fn with(nursery: Option<Nursery>, max_waiting: usize) -> Self {
        let owned = Owned::new();
        let mut builder = owned.builder(1).lane(LanePolicy::new("io").max_waiting(max_waiting));
        if let Some(nursery) = &nursery {
            builder = builder.spawn_handler(nursery.handler());
        }
        let pool = builder.build().unwrap();
        let io = pool.executor("io").unwrap();
        Scene { owned, nursery, pool, io, log: Log::default() }
    }

    /// Writes down what is out when it is dropped.
    fn mark(&self, what: &'static str) -> OnDrop<impl FnMut() + Send + Sync + 'static> {
        let (look, log) = (self.look(), self.log.clone());
        OnDrop(move || log.add(format!("{what}: {}", look())))
    }

    fn look(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let pool = self.pool.clone();
        move || {
            let snapshot = pool.snapshot();
            format!("{} out, {} jobs", snapshot.budget.running(), snapshot.jobs.len())
        }
    }

    /// Writes down what is out when somebody is told.
    fn waker(&self) -> Waker {
        let (look, log) = (self.look(), self.log.clone());
        waker(move || log.add(format!("told: {}", look())))
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        std::pin::Pin::new(future).poll(&mut Context::from_waker(&self.waker()))
    }

    fn let_threads_go(&self) {
        self.nursery.as_ref().unwrap().let_go();
    }

    /// What happens when the result is asked for.
    fn ask<R>(&self, run: &mut Run<R>) -> Result<R, RunError> {
        let Poll::Ready(result) = poll(run) else { panic!("it was told, and there is no result") };
        self.log.add(format!("answered: {}", (self.look())()));
        result
    }

    fn wait_told(&self) -> Vec<String> {
        eventually("somebody is told", || self.log.get().iter().any(|e| e.starts_with("told")));
        self.log.get()
    }
}

const GONE_THEN_TOLD: [&str; 2] = ["captures: 1 out, 1 jobs", "told: 0 out, 0 jobs"];

/// BLK-10
#[test]
fn when_a_closure_returns_its_captures_go_then_its_permit_then_its_diagnostics_then_the_result_comes()
 {
    let scene = Scene::new();
    let mark = scene.mark("captures");
    let mut run = scene.io.run(move || {
        let _mark = &mark;
        7
    });
    assert!(scene.poll(&mut run).is_pending());
    assert_eq!(scene.wait_told(), GONE_THEN_TOLD);
    assert_eq!(block_on(run).unwrap(), 7);
}

/// BLK-10
#[test]
fn when_a_closure_panics_its_captures_go_then_its_permit_then_its_diagnostics_then_the_panic_comes()
{
    let scene = Scene::new();
    let mark = scene.mark("captures");
    let mut run = scene.io.run(move || {
        let _mark = &mark;
        panic!("on purpose");
    });
    assert!(scene.poll(&mut run).is_pending());
    assert_eq!(scene.wait_told(), GONE_THEN_TOLD);
    assert!(matches!(block_on(run), Err(RunError::Panicked(_))));
}

/// BLK-10
#[test]
fn when_a_queued_job_is_refused_it_is_told_and_its_captures_go_before_it_has_the_error() {
    let scene = Scene::with(None, 1);
    let gate = Gate::new();
    let mut running = scene.io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let mark = scene.mark("captures");
    let mut run = scene.io.job("late").deadline(scene.owned.after(SECOND)).run(move || drop(mark));
    assert!(scene.poll(&mut run).is_pending());
    scene.owned.time.advance(SECOND);
    // the one that is out and runs is not its own
    assert_eq!(scene.log.get(), ["told: 1 out, 1 jobs"]);
    assert!(matches!(scene.ask(&mut run), Err(RunError::Refused(_))));
    assert_eq!(scene.log.get()[1..], ["captures: 1 out, 1 jobs", "answered: 1 out, 1 jobs"]);
}

/// BLK-10
#[test]
fn when_nobody_asks_a_refused_job_for_its_error_a_worker_drops_its_captures_between_two_jobs() {
    let scene = Scene::with(None, 2);
    let gate = Gate::new();
    let running = scene.io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let (captured, never_polled) = (Arc::new(()), Arc::new(()));
    let (kept, also) = (Arc::clone(&captured), Arc::clone(&never_polled));
    let late = || scene.io.job("late").deadline(scene.owned.after(SECOND));
    drop(late().submit(move || drop(kept)).unwrap());
    let mut run = late().run(move || drop(also));
    start(&mut run);
    scene.owned.time.advance(SECOND);
    let held = || (Arc::strong_count(&captured), Arc::strong_count(&never_polled));
    assert_eq!(held(), (2, 2), "the only worker is busy");
    gate.open();
    running.join().unwrap();
    eventually("the captures go", || held() == (1, 1));
    assert!(matches!(scene.ask(&mut run), Err(RunError::Refused(_))));
    shut_down(&scene.pool);
}

/// BLK-10
#[test]
fn when_an_admitted_job_expires_it_is_told_and_its_captures_go_then_its_permit() {
    let scene = Scene::held_back();
    let mark = scene.mark("captures");
    let mut run = scene.io.job("late").deadline(scene.owned.after(SECOND)).run(move || drop(mark));
    assert!(scene.poll(&mut run).is_pending());
    // no thread has come, and none is needed to tell
    scene.owned.time.advance(SECOND);
    assert_eq!(scene.log.get(), ["told: 1 out, 0 jobs"]);
    assert!(matches!(scene.ask(&mut run), Err(RunError::Refused(_))));
    assert_eq!(scene.log.get()[1..], ["captures: 1 out, 0 jobs", "answered: 0 out, 0 jobs"]);
    scene.let_threads_go();
}

/// BLK-10
#[test]
fn when_the_pool_closes_the_captures_of_an_admitted_job_go_then_its_permit() {
    let scene = Scene::held_back();
    let mark = scene.mark("captures");
    let mut run = scene.io.run(move || drop(mark));
    assert!(scene.poll(&mut run).is_pending());
    scene.pool.close();
    // out of the pool's hands before the captures go, so that nobody starts it
    assert_eq!(scene.log.get(), ["told: 1 out, 0 jobs"]);
    assert!(matches!(scene.ask(&mut run), Err(RunError::Refused(_))));
    assert_eq!(scene.log.get()[1..], ["captures: 1 out, 0 jobs", "answered: 0 out, 0 jobs"]);
    scene.let_threads_go();
}

/// BLK-10, BLK-15
#[test]
fn whoever_closes_a_pool_or_a_scope_drops_nobodys_captures() {
    let scene = Scene::with(None, 8);
    let scope = tollgate_blocking::Scope::root("service");
    let (gate, door) = (Gate::new(), Gate::new());
    let running = scene.io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let endless = || {
        let keep = door.closure();
        OnDrop(move || keep.clone()())
    };
    let (ours, others) = (endless(), endless());
    drop(scene.io.scoped(&scope).submit(move || drop(ours)).unwrap());
    drop(scene.io.submit(move || drop(others)).unwrap());
    let pool = scene.pool.clone();
    must_end("a close", move || {
        scope.close();
        pool.close();
        drop(pool);
    });
    gate.open();
    running.join().unwrap();
    // the workers that drop them end after that
    door.wait_started();
    door.open();
    shut_down(&scene.pool);
}

/// BLK-10
#[test]
fn when_no_thread_can_be_had_the_captures_go_then_the_permit() {
    let owned = Owned::new();
    let builder = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = builder.spawn_handler(|_| Err(std::io::Error::other("no more"))).build().unwrap();
    let io = pool.executor("io").unwrap();
    let scene = Scene { owned, nursery: None, pool, io, log: Log::default() };
    let mark = scene.mark("captures");
    let mut run = scene.io.run(move || drop(mark));
    assert!(scene.poll(&mut run).is_pending(), "it is told as one that was accepted");
    assert_eq!(scene.log.get(), ["told: 1 out, 0 jobs", "captures: 1 out, 0 jobs"]);
    assert!(matches!(scene.ask(&mut run), Err(RunError::NoThread { .. })));
    assert_eq!(scene.log.get()[2..], ["answered: 0 out, 0 jobs"]);
}

/// BLK-10
#[test]
fn when_a_ticket_is_cancelled_before_the_start_the_captures_go_then_the_permit_then_it_is_told() {
    let scene = Scene::held_back();
    let mark = scene.mark("captures");
    let mut ticket = scene.io.submit(move || drop(mark)).unwrap();
    assert!(scene.poll(&mut ticket).is_pending());
    assert!(ticket.cancel());
    assert_eq!(scene.log.get(), ["captures: 1 out, 0 jobs", "told: 0 out, 0 jobs"]);
    assert!(matches!(block_on(ticket), Err(RunError::Cancelled { .. })));
}

/// BLK-10
#[test]
fn when_a_ticket_is_cancelled_in_a_workers_hands_it_is_told_once_the_permit_is_back() {
    let scene = Scene::with(None, 1);
    let (gate, door) = (Gate::new(), Gate::new());
    let first = keeping_its_worker(&scene.io, gate.closure(), &door);
    gate.wait_started();
    let mark = scene.mark("captures");
    let mut second = scene.io.submit(move || drop(mark)).unwrap();
    assert!(scene.poll(&mut second).is_pending());
    gate.open();
    door.wait_started();
    // the worker has the second in its hands, and has not started it
    assert!(second.cancel(), "its closure has not started");
    assert!(second.cancel(), "nor will it ever");
    assert!(!second.is_done() && scene.log.get().is_empty(), "the worker has it");
    door.open();
    assert_eq!(scene.wait_told(), GONE_THEN_TOLD);
    assert!(matches!(second.join(), Err(RunError::Cancelled { .. })));
    block_on(first).unwrap();
    assert_eq!((counts(&scene.pool, "io").cancelled, counts(&scene.pool, "io").started), (1, 1));
}

/// BLK-10
#[test]
fn when_a_run_is_dropped_before_the_start_its_captures_go_then_its_permit() {
    let scene = Scene::held_back();
    let mark = scene.mark("captures");
    let mut run = scene.io.run(move || drop(mark));
    start(&mut run);
    drop(run);
    assert_eq!(scene.log.get(), ["captures: 1 out, 0 jobs"]);
    assert_eq!((scene.look())(), "0 out, 0 jobs");
}

/// BLK-10
#[test]
fn when_a_submission_is_refused_its_captures_are_gone_when_it_returns() {
    let scene = Scene::new();
    scene.pool.close();
    let mark = scene.mark("captures");
    assert!(scene.io.submit(move || drop(mark)).is_err());
    assert_eq!(scene.log.get(), ["captures: 0 out, 0 jobs"]);
    let mark = scene.mark("more");
    let mut run = scene.io.run(move || drop(mark));
    assert!(scene.poll(&mut run).is_ready(), "refused at once");
    assert_eq!(scene.log.get()[1..], ["more: 0 out, 0 jobs"], "with the run still there");
}

/// BLK-10
#[test]
fn when_work_under_a_permit_is_refused_its_captures_go_then_the_permit() {
    let scene = Scene::new();
    let (look, log) = (scene.look(), scene.log.clone());
    for spawn in [true, false] {
        let permit = scene.io.job("late").deadline(scene.owned.after(SECOND)).try_acquire();
        let permit = permit.unwrap();
        scene.owned.time.advance(SECOND);
        let mark = scene.mark("captures");
        if spawn {
            assert!(permit.spawn(move || drop(mark)).is_err());
        } else {
            assert!(block_on(permit.run(move || drop(mark))).is_err());
        }
        log.add(format!("refused: {}", look()));
    }
    let once = ["captures: 1 out, 0 jobs", "refused: 0 out, 0 jobs"];
    assert_eq!(log.get(), [once, once].concat());
}

/// BLK-10
#[test]
fn a_permit_that_never_came_to_use_returns_after_the_captures() {
    let scene = Scene::new();
    let permit = scene.io.try_acquire().unwrap();
    let mark = scene.mark("captures");
    drop(permit.run(move || drop(mark)));
    assert_eq!(scene.log.get(), ["captures: 1 out, 0 jobs"]);
    assert_eq!((scene.look())(), "0 out, 0 jobs");
}

/// BLK-10
#[test]
fn a_result_that_nobody_claims_is_gone_before_the_permit_returns() {
    let scene = Scene::new();
    for dropped in ["run", "ticket", "timed out"] {
        let gate = Gate::new();
        let (closure, result) = (gate.closure(), scene.mark("result"));
        let work = move || {
            closure();
            result
        };
        if dropped == "ticket" {
            drop(scene.io.submit(work).unwrap());
            gate.wait_started();
        } else {
            let mut run = scene.io.job("x").deadline(scene.owned.after(SECOND)).run(work);
            start(&mut run);
            gate.wait_started();
            if dropped == "timed out" {
                scene.owned.time.advance(SECOND);
                assert!(matches!(block_on(&mut run), Err(RunError::TimedOut { .. })));
            }
        }
        gate.open();
        eventually("the permit returns", || available(&scene.pool) == 1);
    }
    assert_eq!(scene.log.get(), ["result: 1 out, 1 jobs"; 3]);
}

/// BLK-10
#[test]
fn a_caller_that_has_its_result_can_use_the_slot() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    must_end("using the slot again and again", {
        let io = io.clone();
        move || {
            for round in 0..4_000_u32 {
                assert_eq!(block_on(io.run(move || round)).unwrap(), round);
                assert!(block_on(io.run(|| -> () { panic!("on purpose") })).is_err());
                assert_eq!(io.submit(move || round).unwrap().join().unwrap(), round);
                let permit = io.try_acquire().unwrap();
                assert_eq!(block_on(permit.run(move || round)).unwrap(), round);
            }
        }
    });
    assert_eq!(refused(&pool, "io").total(), 0);
    assert_eq!(pool.stats().threads.peak, 1);
}

/// BLK-10
#[test]
fn a_task_that_is_woken_on_the_worker_itself_finds_the_slot_free() {
    /// Submits from within the wake: on the worker's own thread, before the worker goes on.
    struct Again(Executor, OnceLock<Result<u8, String>>);
    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            let result = self.0.submit(|| 9).map(|ticket| ticket.join().unwrap());
            self.1.set(result.map_err(|error| error.to_string())).unwrap();
        }
    }
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let again = Arc::new(Again(io.clone(), OnceLock::new()));
    let waker = Arc::clone(&again).into();
    let mut run = io.run(|| ());
    assert!(std::pin::pin!(&mut run).poll(&mut Context::from_waker(&waker)).is_pending());
    eventually("the nested one is answered", || again.1.get().is_some());
    assert_eq!(again.1.get().unwrap(), &Ok(9));
    let stats = pool.stats();
    assert_eq!(stats.budget.lanes[0].admitted, 2, "it ran under a permit of its own");
    assert_eq!(stats.budget.lanes[0].peak, 1);
}

/// A waker of which no copy can be made. Only one that is written by hand can be like that.
mod uncopied {
    #![expect(unsafe_code, reason = "a waker whose clone panics can't be made of an `Arc`")]
    use std::task::{RawWaker, RawWakerVTable, Waker};

    static TABLE: RawWakerVTable = RawWakerVTable::new(|_| panic!("on purpose"), drop, drop, drop);

    pub(super) fn waker() -> Waker {
        // SAFETY: no function of the table does anything with the pointer.
        unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) }
    }
}

/// BLK-10, section 5
#[test]
fn a_waker_whose_clone_panics_costs_no_permit() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let waker = uncopied::waker();
    let mut run = io.try_acquire().unwrap().run(|| ());
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::pin::pin!(&mut run).poll(&mut Context::from_waker(&waker)).is_ready()
    }));
    assert!(polled.is_err(), "the caller's own panic is the caller's");
    assert_eq!(available(&pool), 0, "the permit is the run's");
    drop(run);
    is_unharmed(&pool, &io);
}

/// What must hold after a destructor has panicked somewhere in the pool.
fn is_unharmed(pool: &BlockingPool, io: &Executor) {
    eventually("all permits return", || available(pool) == 1);
    for round in 0..3 {
        assert_eq!(block_on(io.run(move || round)).unwrap(), round);
    }
    // one more may have come while a worker dropped what remained of a job
    assert!(pool.stats().threads.peak <= 2, "no worker was lost and replaced");
    shut_down(pool);
}

/// BLK-10, section 5
#[test]
fn captures_that_panic_when_dropped_are_reported_as_a_panic_of_the_job() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let bomb = Bomb;
    let result = block_on(io.run(move || {
        let _bomb = &bomb;
        7
    }));
    let Err(RunError::Panicked(panic)) = result else { panic!("{result:?}") };
    std::mem::forget(panic.into_payload());
    assert_eq!(counts(&pool, "io").panicked, 1);
    is_unharmed(&pool, &io);
}

/// BLK-10, section 5
#[test]
fn captures_that_panic_when_dropped_unstarted_harm_nobody() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let mut running = io.run(gate.closure());
    start(&mut running);
    gate.wait_started();
    let bomb = Bomb;
    let mut dropped = io.run(move || drop(bomb));
    start(&mut dropped);
    drop(dropped);
    let bomb = Bomb;
    let cancelled = io.submit(move || drop(bomb)).unwrap();
    assert!(cancelled.cancel());
    let bomb = Bomb;
    let mut expired = io.job("x").deadline(owned.after(SECOND)).run(move || drop(bomb));
    start(&mut expired);
    owned.time.advance(SECOND);
    assert!(matches!(block_on(expired), Err(RunError::Refused(_))));
    let bomb = Bomb;
    assert!(io.job("heavy").weight(9).submit(move || drop(bomb)).is_err());
    gate.open();
    block_on(running).unwrap();
    is_unharmed(&pool, &io);
}

/// BLK-10, section 5
#[test]
fn captures_that_panic_when_an_admitted_job_is_refused_harm_nobody() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let builder = owned.builder(1).lane(LanePolicy::new("io"));
    let pool = builder.spawn_handler(nursery.handler()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let bomb = Bomb;
    let mut expired = io.job("x").deadline(owned.after(SECOND)).run(move || drop(bomb));
    start(&mut expired);
    owned.time.advance(SECOND);
    nursery.let_go();
    assert!(matches!(block_on(expired), Err(RunError::Refused(_))));
    is_unharmed(&pool, &io);
}

/// BLK-10, section 5
#[test]
fn a_result_that_panics_when_nobody_claims_it_harms_nobody() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    drop(io.submit(move || {
        closure();
        Bomb
    }));
    gate.wait_started();
    gate.open();
    is_unharmed(&pool, &io);
    // large ones are boxed
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    let mut run = io.run(move || {
        closure();
        (Bomb, [0_u8; 1024])
    });
    start(&mut run);
    gate.wait_started();
    drop(run);
    gate.open();
    is_unharmed(&pool, &io);
}

/// BLK-10, section 5
#[test]
fn a_result_that_panics_when_its_run_is_dropped_harms_nobody() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let mut run = io.run(|| Bomb);
    start(&mut run);
    eventually("it ends", || available(&pool) == 1);
    drop(run);
    let ticket = io.submit(|| Bomb).unwrap();
    eventually("it ends", || ticket.is_done());
    drop(ticket);
    is_unharmed(&pool, &io);
}

/// BLK-10, section 5
#[test]
fn a_payload_that_panics_when_dropped_harms_nobody() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    drop(io.submit(move || {
        closure();
        std::panic::panic_any(Fuse)
    }));
    gate.wait_started();
    gate.open();
    is_unharmed(&pool, &io);
}

/// BLK-10, section 5
#[test]
fn a_waker_that_panics_harms_nobody() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any(Fuse);
        }
    }
    let owned = Owned::new();
    let (pool, io) = owned.with_lane(1, LanePolicy::new("io").task_timeout(SECOND));
    let waker = Arc::new(Bad).into();
    let bad = &mut Context::from_waker(&waker);
    let mut run = io.run(|| 7);
    assert!(std::pin::pin!(&mut run).poll(bad).is_pending());
    eventually("it ends", || available(&pool) == 1);
    assert_eq!(block_on(run).unwrap(), 7, "the result is there all the same");
    // woken by the timer, and through a token on the way
    let gate = Gate::new();
    let closure = gate.closure();
    let waker_too = waker.clone();
    let mut run = io.job("x").run_with(move |job| {
        let cancelled = job.token().cancelled_owned();
        let mut cancelled = Box::pin(cancelled);
        assert!(cancelled.as_mut().poll(&mut Context::from_waker(&waker_too)).is_pending());
        closure();
    });
    assert!(std::pin::pin!(&mut run).poll(bad).is_pending());
    gate.wait_started();
    owned.time.advance(SECOND);
    assert!(matches!(block_on(run), Err(RunError::TimedOut { .. })));
    gate.open();
    is_unharmed(&pool, &io);
}
