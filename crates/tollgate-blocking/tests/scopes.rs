//! Jobs and pools that belong to scopes, and end with them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::*;
use tollgate_blocking::admission::{
    AcquireError, Closed, MemberReport, Scope, ScopePhase, ScopeReport,
};
use tollgate_blocking::{
    BlockingPool, BuildError, Cancelled, Deadline, Dedicated, DedicatedError, Executor, JobKind,
    JobState, LanePolicy, RunError, SubmitError, Ticket,
};

const SECOND: Duration = Duration::from_secs(1);

/// A pool, a scope whose clock is the pool's, and an executor for work of the scope.
struct Scene {
    owned: Owned,
    pool: BlockingPool,
    io: Executor,
    scope: Scope,
    ours: Executor,
}

impl Scene {
    fn new(capacity: u64) -> Self {
        let owned = Owned::new();
        let (pool, io) = owned.pool(capacity, 100);
        let scope = Scope::root_by("service", Arc::new(owned.time.clone()));
        let ours = io.scoped(&scope);
        Scene { owned, pool, io, scope, ours }
    }

    fn report(&self) -> ScopeReport {
        self.scope.report()
    }

    /// What the pool has of the scope's work.
    fn ours(&self) -> MemberReport {
        self.report().nodes[0].members[0].clone()
    }
}

fn closed<T: std::fmt::Debug>(result: Result<T, RunError>) {
    let error = result.expect_err("its scope was closed");
    let what = Closed::Scope;
    assert!(
        matches!(&error, RunError::Refused(AcquireError::Closed { what: w, .. }) if *w == what),
        "{error:?}"
    );
}

fn refused_as_closed<T: std::fmt::Debug>(result: Result<T, SubmitError>) {
    closed(result.map_err(RunError::from));
}

/// ADM-14, BLK-10
#[test]
fn who_has_a_result_finds_the_scope_without_the_job() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let job = scene.ours.job("flush").submit(gate.closure()).unwrap();
    gate.wait_started();
    scene.scope.close();
    assert_eq!(scene.scope.phase(), ScopePhase::Draining);
    assert!(!scene.report().complete);
    gate.open();
    job.join().unwrap();
    assert_eq!(scene.scope.phase(), ScopePhase::Closed);
    let report = scene.report();
    assert!(report.complete && report.nodes.is_empty(), "{report}");
    must_end("a scope that drained", move || block_on(scene.scope.drained()));
}

/// ADM-15, BLK-3
#[test]
fn closing_a_scope_refuses_its_queued_jobs_at_once_and_nobody_elses() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let running = scene.ours.submit(gate.closure()).unwrap();
    gate.wait_started();
    let captured = Arc::new(());
    let kept = Arc::clone(&captured);
    let queued = scene.ours.submit(move || drop(kept)).unwrap();
    let mut acquire = scene.ours.acquire();
    start(&mut acquire);
    let other = scene.io.submit(|| 7).unwrap();
    scene.scope.close();
    assert!(queued.is_done(), "it has been told");
    closed(queued.join());
    assert_eq!(Arc::strong_count(&captured), 1, "its captures are gone");
    let error = block_on(acquire).unwrap_err();
    assert!(matches!(error, AcquireError::Closed { what: Closed::Scope, .. }), "{error:?}");
    assert_eq!(refused(&scene.pool, "io").closed, 2);
    assert_eq!(scene.report().refused, 2);
    refused_as_closed(scene.ours.submit(|| ()));
    closed(block_on(scene.ours.run(|| ())));
    assert!(scene.ours.try_acquire().is_err());
    assert_eq!(refused(&scene.pool, "io").closed, 5);
    assert_eq!(scene.report().refused, 5);
    gate.open();
    running.join().unwrap();
    assert_eq!(other.join().unwrap(), 7);
    assert!(!scene.pool.is_closed());
    assert!(scene.report().complete);
}

/// ADM-15, BLK-7
#[test]
fn closing_a_scope_refuses_admitted_jobs_that_have_not_started() {
    let owned = Owned::new();
    let nursery = Nursery::default();
    let builder = owned.builder(2).lane(LanePolicy::new("io")).spawn_handler(nursery.handler());
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let scope = Scope::root("service");
    let ours = io.scoped(&scope).submit(|| ()).unwrap();
    let other = io.submit(|| 7).unwrap();
    scope.close();
    closed(ours.join());
    assert_eq!((scope.report().complete, scope.report().refused), (true, 1));
    nursery.let_go();
    assert_eq!(other.join().unwrap(), 7);
    eventually("the permits return", || available(&pool) == 2);
}

/// ADM-14
#[test]
fn cancelling_a_scope_asks_its_running_jobs_to_stop_and_nobody_elses() {
    let scene = Scene::new(3);
    let child = scene.scope.child("connection").unwrap();
    let until_cancelled = |executor: &Executor| {
        let (started, wait) = std::sync::mpsc::channel();
        let ticket = executor.job("loop").submit_with(move |job| {
            started.send(job.token()).unwrap();
            while job.checkpoint() == Ok(()) {
                std::thread::yield_now();
            }
            job.checkpoint()
        });
        (ticket.unwrap(), wait.recv_timeout(PATIENCE).unwrap())
    };
    let (ours, token) = until_cancelled(&scene.io.scoped(&child));
    let (other, others_token) = until_cancelled(&scene.io);
    scene.scope.cancel();
    assert!(token.is_cancelled() && child.token().is_cancelled());
    assert_eq!(ours.join().unwrap(), Err(Cancelled::Requested));
    assert_eq!(scene.report().cancelled, 1);
    assert!(!others_token.is_cancelled());
    assert!(!other.cancel(), "it runs");
    other.join().unwrap().unwrap_err();
}

/// BLK-3, ADM-14
#[test]
fn tightening_a_scope_reaches_jobs_that_wait_and_jobs_that_run() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let closure = gate.closure();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let see = Arc::clone(&seen);
    let running = scene.ours.job("running").submit_with(move |job| {
        see.lock().unwrap().push(job.deadline());
        closure();
        see.lock().unwrap().push(job.deadline());
        job.checkpoint()
    });
    let mut running = running.unwrap();
    gate.wait_started();
    let queued = scene.ours.job("queued").submit(|| ()).unwrap();
    let other = scene.io.submit(|| 7).unwrap();
    let deadline = scene.owned.after(2 * SECOND);
    scene.scope.tighten(deadline);
    scene.scope.tighten(scene.owned.after(5 * SECOND));
    assert_eq!(scene.scope.deadline(), deadline, "it only gets earlier");
    scene.owned.time.advance(2 * SECOND);
    let late = queued.join().unwrap_err();
    assert!(matches!(late, RunError::Refused(AcquireError::Deadline { .. })), "{late:?}");
    let error = block_on(&mut running).unwrap_err();
    assert!(matches!(error, RunError::TimedOut { .. }), "{error:?}");
    assert_eq!(scene.ours().jobs[0].state, JobState::TimedOut);
    let late = scene.ours.submit(|| ()).unwrap_err();
    assert!(matches!(late, SubmitError::Refused(AcquireError::Deadline { .. })), "{late:?}");
    gate.open();
    assert_eq!(other.join().unwrap(), 7, "it has no part in the scope");
    let never = tollgate_blocking::Deadline::never();
    assert_eq!(*seen.lock().unwrap(), [never, deadline], "the job saw it change");
}

/// ADM-15, BLK-13, A14, A15
#[test]
fn a_report_says_of_each_job_what_is_true_of_it() {
    let scene = Scene::new(3);
    let child = scene.scope.child("connection \n 7").unwrap();
    let gate = Gate::new();
    let ours = scene.io.scoped(&child);
    let running = ours.job("running").kind(JobKind::CPU_BOUND).submit(gate.closure()).unwrap();
    let mut left = ours.job("left").run(gate.closure());
    start(&mut left);
    let mut late = ours.job("late").deadline(scene.owned.after(SECOND)).run(gate.closure());
    start(&mut late);
    (0..3).for_each(|_| gate.wait_started());
    let queued = scene.ours.job("queued").submit(|| ()).unwrap();
    scene.owned.time.advance(SECOND);
    drop(left);
    block_on(late).unwrap_err();
    let report = scene.report();
    assert!(!report.complete);
    let paths: Vec<_> = report.nodes.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(paths, ["service", "service/connection \n 7"]);
    let [root] = &report.nodes[0].members[..] else { panic!("{report}") };
    let [member] = &report.nodes[1].members[..] else { panic!("{report}") };
    assert_eq!((root.waiting, root.permits, root.states.queued), (1, 0, 1));
    assert_eq!((member.waiting, member.permits, &*member.name), (0, 3, "io"));
    let states = (member.states.running, member.states.abandoned, member.states.timed_out);
    assert_eq!(states, (1, 1, 1));
    let job = member.jobs.iter().find(|job| job.id == running.id()).unwrap();
    assert_eq!((job.name.as_str(), job.kind), ("running", JobKind::CPU_BOUND));
    assert_eq!((job.state, job.ran), (JobState::Running, Some(SECOND)));
    assert_eq!(root.jobs[0].id, queued.id());
    let text = report.to_string();
    for part in [
        "scope \"service\" is not closed",
        "\"service/connection \\n 7\" (open)",
        "1 running, 1 abandoned, 1 timed out",
        "\"late\" (short_io, lane \"io\") timed out, still running, for 1s",
    ] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    gate.open();
}

/// ADM-15, A18, A20
#[test]
fn a_shutdown_refuses_what_waits_asks_what_runs_to_stop_and_is_complete_when_all_has_ended() {
    let scene = Scene::new(1);
    let (started, wait) = std::sync::mpsc::channel();
    let running = scene.ours.job("loop").submit_with(move |job| {
        started.send(()).unwrap();
        while !job.is_cancelled() {
            std::thread::yield_now();
        }
    });
    let running = running.unwrap();
    wait.recv_timeout(PATIENCE).unwrap();
    let queued = scene.ours.submit(|| ()).unwrap();
    let scope = scene.scope.clone();
    let deadline = scene.owned.after(60 * SECOND);
    let report = must_end("a shutdown", move || block_on(scope.shutdown(deadline)));
    assert!(report.complete, "{report}");
    assert_eq!((report.refused, report.cancelled), (1, 1));
    closed(queued.join());
    running.join().unwrap();
    refused_as_closed(scene.ours.submit(|| ()));
    assert!(scene.scope.child("late").is_err());
    assert!(scene.report().complete, "and it stays so");
}

/// ADM-15, BLK-3
#[test]
fn a_scope_ends_though_every_thread_has_a_closure_of_others_and_nobody_looks_at_the_tickets() {
    for overdue in [false, true] {
        let scene = Scene::new(1);
        let gate = Gate::new();
        let running = scene.io.submit(gate.closure()).unwrap();
        gate.wait_started();
        let captured = Arc::new(());
        let submit = |_| {
            let kept = Arc::clone(&captured);
            let job = scene.ours.job("queued").deadline(scene.owned.after(SECOND));
            job.submit(move || drop(kept)).unwrap()
        };
        let tickets: Vec<_> = (0..50).map(submit).collect();
        if overdue {
            scene.owned.time.advance(SECOND);
            assert!(tickets.iter().all(Ticket::is_done), "each was told");
            assert_eq!(Arc::strong_count(&captured), 51, "no thread has come to any");
        }
        scene.scope.close();
        let drained = scene.scope.clone();
        must_end("a scope with nothing that runs", move || block_on(drained.drained()));
        assert_eq!(Arc::strong_count(&captured), 1, "their captures are gone");
        // the thread that came for them is not needed any more
        eventually("it has left", || scene.pool.snapshot().threads.alive == 1);
        gate.open();
        running.join().unwrap();
    }
}

/// ADM-15
#[test]
fn a_shutdown_that_misses_its_deadline_names_the_job_and_can_be_asked_again() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let stuck = scene.ours.job("stuck").submit(gate.closure()).unwrap();
    gate.wait_started();
    let mut shutdown = scene.scope.shutdown(scene.owned.after(SECOND));
    start(&mut shutdown);
    scene.owned.time.advance(SECOND);
    let report = block_on(shutdown);
    assert!(!report.complete);
    let job = &report.nodes[0].members[0].jobs[0];
    assert_eq!((job.name.as_str(), job.state), ("stuck", JobState::TimedOut));
    assert_eq!(report.took.total(), SECOND);
    let mut again = scene.scope.shutdown(scene.owned.after(10 * SECOND));
    start(&mut again);
    gate.open();
    let report = must_end("a second shutdown", move || block_on(again));
    assert!(report.complete, "{report}");
    stuck.join().unwrap_err();
}

/// ADM-15
#[test]
fn jobs_are_asked_to_stop_at_the_grace_mark_and_not_before() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let closure = gate.closure();
    let job = scene.ours.job("slow").submit_with(move |job| {
        closure();
        job.is_cancelled()
    });
    let job = job.unwrap();
    gate.wait_started();
    let shutdown = scene.scope.shutdown(scene.owned.after(9 * SECOND));
    let mut shutdown = shutdown.cancel_at(scene.owned.after(2 * SECOND));
    start(&mut shutdown);
    scene.owned.time.advance(2 * SECOND - Duration::from_nanos(1));
    start(&mut shutdown);
    assert_eq!(scene.report().cancelled, 0);
    scene.owned.time.advance(Duration::from_nanos(1));
    start(&mut shutdown);
    assert_eq!(scene.report().cancelled, 1);
    gate.open();
    let report = must_end("a shutdown", move || block_on(shutdown));
    assert!(report.complete, "{report}");
    assert_eq!((report.took.grace, report.cancelled), (2 * SECOND, 1));
    assert!(job.join().unwrap(), "it saw that it was asked");
}

/// ADM-16
#[test]
fn work_under_a_lease_is_admitted_while_the_scope_drains_and_is_not_asked_to_stop() {
    let scene = Scene::new(1);
    let lease = scene.scope.drain_lease(1, scene.owned.after(60 * SECOND)).unwrap();
    let mut shutdown = scene.scope.shutdown(scene.owned.after(90 * SECOND));
    start(&mut shutdown);
    refused_as_closed(scene.ours.submit(|| ()));
    let gate = Gate::new();
    let closure = gate.closure();
    let flush = scene.ours.job("flush").lease(&lease).submit_with(move |job| {
        closure();
        (job.is_cancelled(), job.deadline())
    });
    let flush = flush.unwrap();
    gate.wait_started();
    assert_eq!(lease.remaining(), 0);
    start(&mut shutdown);
    let second = scene.ours.job("second").lease(&lease).submit(|| ()).unwrap_err();
    let exhausted = matches!(second, SubmitError::Refused(AcquireError::LeaseExhausted { .. }));
    assert!(exhausted, "{second:?}");
    assert_eq!(refused(&scene.pool, "io").lease_exhausted, 1);
    let report = scene.report();
    assert_eq!(report.nodes[0].leases[0].operations[0].name.as_str(), "flush");
    assert_eq!(report.nodes[0].members[0].jobs[0].name.as_str(), "flush");
    gate.open();
    assert_eq!(flush.join().unwrap(), (false, lease.deadline()));
    drop(lease);
    let report = must_end("a shutdown", move || block_on(shutdown));
    assert!(report.complete, "{report}");
    assert_eq!(report.cancelled, 0);
}

/// ADM-16
#[test]
fn an_operation_that_never_starts_gives_its_allowance_back() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let running = scene.io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let lease = scene.scope.drain_lease(2, scene.owned.after(60 * SECOND)).unwrap();
    let job = || scene.ours.job("flush").lease(&lease);
    // dropped while it waits
    let mut run = job().run(|| ());
    assert_eq!(lease.remaining(), 2, "nothing before the first poll");
    start(&mut run);
    assert_eq!(lease.remaining(), 1);
    drop(run);
    assert_eq!(lease.remaining(), 2);
    // cancelled
    let ticket = job().submit(|| ()).unwrap();
    assert!(ticket.cancel());
    assert_eq!(lease.remaining(), 2);
    // refused at once, and by its deadline
    assert!(job().weight(9).submit(|| ()).is_err());
    assert_eq!(lease.remaining(), 2);
    let late = job().deadline(scene.owned.after(SECOND)).submit(|| ()).unwrap();
    scene.owned.time.advance(SECOND);
    late.join().unwrap_err();
    assert_eq!(lease.remaining(), 2);
    // an acquire
    let mut acquire = job().acquire();
    start(&mut acquire);
    drop(acquire);
    assert!(job().try_acquire().is_err());
    assert_eq!(lease.remaining(), 2);
    gate.open();
    running.join().unwrap();
    let permit = block_on(job().acquire()).unwrap();
    assert_eq!(lease.remaining(), 1);
    scene.scope.close();
    assert!(!scene.report().complete);
    block_on(permit.run(|| ())).unwrap();
    assert_eq!(lease.remaining(), 1, "it was used");
    drop(lease);
    assert!(scene.report().complete);
}

/// ADM-16
#[test]
fn a_leased_job_waits_for_its_turn_in_a_full_queue_and_displaces_nobody() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 1);
    let scope = Scope::root_by("service", Arc::new(owned.time.clone()));
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let log = Log::default();
    let note = |what: &'static str| {
        let log = log.clone();
        move || log.add(what)
    };
    let first = io.submit(note("first")).unwrap();
    let lease = scope.drain_lease(2, owned.after(SECOND)).unwrap();
    let flush = io.job("flush").lease(&lease).submit(note("flush")).unwrap();
    let full = io.submit(|| ()).unwrap_err();
    assert!(matches!(full, SubmitError::Refused(AcquireError::QueueFull { max_waiting: 1, .. })));
    first.cancel();
    let second = io.submit(note("second")).unwrap();
    gate.open();
    running.join().unwrap();
    flush.join().unwrap();
    second.join().unwrap();
    assert_eq!(log.get(), ["flush", "second"]);
}

/// ADM-16, BLK-6
#[test]
fn a_leased_job_that_runs_past_its_lease_is_told_so_and_keeps_the_scope_until_it_ends() {
    let scene = Scene::new(1);
    let lease = scene.scope.drain_lease(5, scene.owned.after(SECOND)).unwrap();
    let gate = Gate::new();
    let flush = scene.ours.job("flush").lease(&lease).submit(gate.closure()).unwrap();
    gate.wait_started();
    scene.scope.close();
    scene.owned.time.advance(SECOND);
    assert!(matches!(flush.join(), Err(RunError::TimedOut { .. })));
    assert_eq!(lease.remaining(), 0, "its time is up");
    let late = scene.ours.job("late").lease(&lease).submit(|| ()).unwrap_err();
    let expired = matches!(late, SubmitError::Refused(AcquireError::LeaseExpired { .. }));
    assert!(expired, "{late:?}");
    assert_eq!(scene.scope.phase(), ScopePhase::Draining);
    gate.open();
    must_end("the scope drains", move || block_on(scene.scope.drained()));
}

/// BLK-12
#[test]
fn a_pool_that_is_attached_is_counted_by_its_owner_also_when_all_handles_are_gone() {
    let owned = Owned::new();
    let scope = Scope::root_by("service", Arc::new(owned.time.clone()));
    let gate = Gate::new();
    let builder = owned.builder(1).lane(LanePolicy::new("io").max_waiting(9)).scope(&scope);
    let pool = builder.thread_name("isolated").build().unwrap();
    let io = pool.executor("io").unwrap();
    drop(io.job("long").submit(gate.closure()).unwrap());
    gate.wait_started();
    drop((pool, io));
    let mut shutdown = scope.shutdown(owned.after(SECOND));
    start(&mut shutdown);
    owned.time.advance(SECOND);
    let report = block_on(shutdown);
    assert!(!report.complete);
    let member = &report.nodes[0].members[0];
    assert_eq!((&*member.name, member.permits, member.threads), ("isolated", 1, 1));
    assert_eq!(member.jobs[0].name.as_str(), "long");
    gate.open();
    must_end("the pool ends", move || block_on(scope.drained()));
}

/// BLK-12
#[test]
fn closing_an_attached_pool_affects_only_that_one_and_its_shutdown_can_be_asked_again() {
    let owned = Owned::new();
    let scope = Scope::root_by("service", Arc::new(owned.time.clone()));
    let build = || owned.builder(1).lane(LanePolicy::new("io")).scope(&scope).build().unwrap();
    let (pool, other) = (build(), build());
    let gate = Gate::new();
    let io = pool.executor("io").unwrap();
    let job = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let mut shutdown = pool.shutdown(owned.after(SECOND));
    start(&mut shutdown);
    owned.time.advance(SECOND);
    let report = block_on(shutdown);
    assert!(!report.complete && report.jobs.len() == 1, "{report}");
    assert!(scope.is_open() && !other.is_closed());
    block_on(other.executor("io").unwrap().run(|| ())).unwrap();
    gate.open();
    job.join().unwrap();
    shut_down(&pool);
    let (scope2, deadline) = (scope.clone(), owned.after(SECOND));
    let report = must_end("the scope", move || block_on(scope2.shutdown(deadline)));
    assert!(report.complete, "{report}");
    assert!(other.is_closed());
}

/// BLK-12, ADM-15
#[test]
fn closing_a_scope_closes_the_pools_attached_to_it_and_waits_for_their_threads() {
    let owned = Owned::new();
    let scope = Scope::root_by("service", Arc::new(owned.time.clone()));
    let (hold, release) = (Gate::new(), Gate::new());
    let stopping = hold.closure();
    let builder = owned.builder(1).lane(LanePolicy::new("io").max_waiting(9)).scope(&scope);
    let pool = builder.on_thread_stop(move || stopping.clone()()).build().unwrap();
    let io = pool.executor("io").unwrap();
    let running = io.submit(release.closure()).unwrap();
    release.wait_started();
    let queued = io.submit(|| ()).unwrap();
    scope.close();
    closed(queued.join());
    refused_as_closed(io.submit(|| ()));
    assert!(pool.is_closed());
    release.open();
    running.join().unwrap();
    hold.wait_started();
    let report = scope.report();
    assert!(!report.complete, "its thread has not ended");
    // and, unless it has left, the one that came for what the close refused
    assert!((1..=2).contains(&report.nodes[0].members[0].threads));
    hold.open();
    must_end("its threads end", move || block_on(scope.drained()));
    let late = owned.builder(1).lane(LanePolicy::new("io")).scope(&Scope::root("x"));
    late.build().unwrap();
}

/// BLK-12, ADM-16
#[test]
fn a_draining_attached_pool_runs_what_comes_under_a_lease_and_is_complete_after_its_threads() {
    let owned = Owned::new();
    let scope = Scope::root_by("store", Arc::new(owned.time.clone()));
    let builder = owned.builder(1).lane(LanePolicy::new("io").max_waiting(0)).scope(&scope);
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let lease = scope.drain_lease(2, owned.after(60 * SECOND)).unwrap();
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    scope.close();
    let flush = io.job("flush").lease(&lease).submit(|| "flushed").unwrap();
    gate.open();
    running.join().unwrap();
    assert_eq!(flush.join().unwrap(), "flushed");
    // its threads have ended or are about to; the lease brings another
    eventually("the threads end", || pool.stats().threads.alive == 0);
    assert_eq!(scope.phase(), ScopePhase::Draining);
    let flush = io.job("flush").lease(&lease).submit(|| "again").unwrap();
    assert_eq!(flush.join().unwrap(), "again");
    drop(lease);
    must_end("the scope", {
        let scope = scope.clone();
        move || block_on(scope.drained())
    });
    assert_eq!(pool.stats().threads.alive, 0);
    refused_as_closed(io.submit(|| ()));
}

/// ADM-14
#[test]
fn cancelling_a_scope_closes_an_attached_pool_to_leases_too() {
    let owned = Owned::new();
    let scope = Scope::root_by("store", Arc::new(owned.time.clone()));
    let pool = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope).build().unwrap();
    let io = pool.executor("io").unwrap();
    let lease = scope.drain_lease(2, owned.after(60 * SECOND)).unwrap();
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let queued = io.job("flush").lease(&lease).submit(|| ()).unwrap();
    scope.cancel();
    closed(queued.join());
    refused_as_closed(io.job("flush").lease(&lease).submit(|| ()));
    gate.open();
    running.join().unwrap();
    must_end("the scope", move || block_on(scope.drained()));
}

/// BLK-12, ADM-14
#[test]
fn no_pool_is_built_in_a_scope_that_is_not_open() {
    let owned = Owned::new();
    let scope = Scope::root("service");
    scope.close();
    let error = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope).build().unwrap_err();
    assert!(matches!(&error, BuildError::Scope(closed) if &*closed.scope == "service"));
    assert_eq!(error.to_string(), "scope \"service\" is draining or closed");
    let handle = owned.runtime.handle().clone();
    let error = Dedicated::new(handle, "loop").scope(&scope).spawn(|| ()).unwrap_err();
    assert!(matches!(error, DedicatedError::Build(BuildError::Scope(_))), "{error:?}");
}

/// BLK-4
#[test]
fn a_long_running_job_is_refused_by_a_pool_and_runs_on_a_thread_of_its_own() {
    let scene = Scene::new(1);
    let job = || scene.io.job("consume").kind(JobKind::LONG_RUNNING);
    let error = job().submit(|| ()).unwrap_err();
    let error = RunError::from(error).to_string();
    assert_eq!(error, "long-running work was given to lane `io`: it needs a dedicated thread");
    assert_eq!(block_on(job().run(|| ())).unwrap_err().to_string(), error);
    assert_eq!(block_on(job().acquire()).unwrap_err().to_string(), error);
    assert_eq!(job().try_acquire().unwrap_err().to_string(), error);
    assert_eq!((refused(&scene.pool, "io").long_running, available(&scene.pool)), (4, 1));
    let handle = scene.owned.runtime.handle().clone();
    let owner = handle.id();
    let gate = Gate::new();
    let closure = gate.closure();
    let consumer = Dedicated::new(handle, "consume").scope(&scene.scope).spawn_with(move |job| {
        closure();
        let name = std::thread::current().name().unwrap().to_owned();
        let here = tokio::runtime::Handle::current().id() == owner;
        (name, here, job.kind(), job.is_cancelled())
    });
    let consumer = consumer.unwrap();
    gate.wait_started();
    // beside the budget, which has nothing to do with it
    assert_eq!(available(&scene.pool), 1);
    let report = scene.report();
    let job = &report.nodes[0].members[0].jobs[0];
    assert_eq!((job.name.as_str(), job.kind), ("consume", JobKind::LONG_RUNNING));
    scene.scope.cancel();
    gate.open();
    let kind = JobKind::LONG_RUNNING;
    assert_eq!(consumer.join().unwrap(), ("consume".to_owned(), true, kind, true));
    must_end("its thread ends", move || block_on(scene.scope.drained()));
}

/// BLK-4
#[test]
fn a_dedicated_thread_goes_on_when_its_ticket_is_dropped_and_ends_with_its_closure() {
    let owned = Owned::new();
    let scope = Scope::root("service");
    let gate = Gate::new();
    let ended = Arc::new(AtomicBool::new(false));
    let (closure, end) = (gate.closure(), Arc::clone(&ended));
    let dedicated = Dedicated::new(owned.runtime.handle().clone(), "loop").scope(&scope);
    drop(dedicated.spawn(move || {
        closure();
        end.store(true, Ordering::SeqCst);
    }));
    gate.wait_started();
    scope.close();
    assert_eq!(scope.phase(), ScopePhase::Draining);
    gate.open();
    must_end("its thread ends", move || block_on(scope.drained()));
    assert!(ended.load(Ordering::SeqCst));
}

/// BLK-11
#[test]
fn work_that_a_job_submits_for_another_scope_belongs_to_that_one() {
    let scene = Scene::new(1);
    let inner_scope = Scope::root("inner");
    let inner = scene.io.scoped(&inner_scope);
    let (seen, scope) = (inner_scope.clone(), inner_scope.clone());
    let outer = scene.ours.submit(move || {
        let job = inner.submit(move || seen.report().nodes[0].members[0].jobs.len()).unwrap();
        let inside = job.join().unwrap();
        scope.close();
        assert!(scope.report().complete, "it has left");
        inner.submit(|| ()).unwrap_err();
        inside
    });
    assert_eq!(outer.unwrap().join().unwrap(), 1);
    assert!(scene.scope.is_open() && !inner_scope.is_open());
}

/// BLK-4
#[test]
fn a_job_may_belong_to_a_scope_that_its_executor_does_not() {
    let scene = Scene::new(1);
    let child = scene.scope.child("request").unwrap();
    let gate = Gate::new();
    let job = scene.io.job("x").scope(&child).submit(gate.closure()).unwrap();
    gate.wait_started();
    // nobody has a way into the scope any more, and the job is still in it
    let mut drained = scene.scope.drained();
    scene.scope.close();
    start(&mut drained);
    assert_eq!(scene.report().nodes[0].path, "service/request");
    gate.open();
    job.join().unwrap();
    must_end("the scope drains", move || block_on(drained));
    refused_as_closed(scene.io.job("y").scope(&child).submit(|| ()));
    closed(block_on(scene.io.job("z").scope(&child).run(|| ())));
}

/// BLK-10, BLK-6
#[test]
fn a_job_that_is_refused_or_given_up_leaves_its_scope_when_its_captures_are_gone() {
    let scene = Scene::new(1);
    let gate = Gate::new();
    let running = scene.io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let log = Log::default();
    let mark = || {
        let (scope, log) = (scene.scope.clone(), log.clone());
        OnDrop(move || log.add(scope.phase().to_string()))
    };
    let (given_up, late) = (mark(), mark());
    // a thread comes for it when the scope closes, and is kept by it
    let kept = Gate::new();
    let keep = kept.closure();
    let late = (late, OnDrop(move || keep.clone()()));
    let mut first = scene.ours.run(move || drop(given_up));
    start(&mut first);
    let job = scene.ours.job("late").deadline(scene.owned.after(SECOND));
    let mut second = job.run(move || drop(late));
    start(&mut second);
    // the phase says whether it has left; what waits is not refused by a mere look
    let lease = scene.scope.drain_lease(1, scene.owned.after(9 * SECOND)).unwrap();
    scene.owned.time.advance(SECOND);
    drop(first);
    scene.scope.close();
    drop(lease);
    kept.wait_started();
    let report = scene.report();
    assert!(!report.complete && report.nodes[0].members[0].ending == 1, "{report}");
    kept.open();
    block_on(second).unwrap_err();
    let scope = scene.scope.clone();
    must_end("the scope", move || block_on(scope.drained()));
    assert_eq!(log.get(), ["open", "draining"], "not before the captures of both were gone");
    gate.open();
    running.join().unwrap();
}

/// ADM-14
#[test]
fn executors_that_come_and_go_leave_nothing_in_their_scope() {
    let scene = Scene::new(1);
    let children: Vec<_> = (0..100).map(|n| scene.scope.child(format!("{n}")).unwrap()).collect();
    for child in &children {
        let bound = scene.io.scoped(child);
        block_on(bound.clone().run(|| ())).unwrap();
        drop(bound.submit(|| ()).unwrap());
        let _unused = scene.io.job("unused").scope(child);
    }
    eventually("all jobs end", || scene.pool.snapshot().jobs.is_empty());
    drop(children);
    scene.scope.close();
    assert!(scene.report().complete);
}

/// BLK-15, A21
#[test]
fn a_pool_whose_last_handle_goes_and_a_scope_that_ends_do_not_get_in_each_others_way() {
    let owned = Owned::new();
    let scope = Scope::root("service");
    for n in 0..200 {
        let builder = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope);
        let pool = builder.build().unwrap();
        let io = pool.executor("io").unwrap();
        let mut run = io.run(move || n);
        start(&mut run);
        drop((pool, io));
        if n % 2 == 0 {
            drop(run);
        }
    }
    let report = must_end("the scope", {
        let scope = scope.clone();
        move || block_on(scope.shutdown(tollgate_blocking::Deadline::never()))
    });
    assert!(report.complete, "{report}");
}

/// ADM-16
#[test]
fn a_lease_of_one_scope_lets_nothing_into_another() {
    let owned = Owned::new();
    let scope = Scope::root_by("store", Arc::new(owned.time.clone()));
    let other = Scope::root_by("other", Arc::new(owned.time.clone()));
    let pool = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope).build().unwrap();
    let io = pool.executor("io").unwrap();
    let ours = scope.child("log").unwrap().drain_lease(9, owned.after(60 * SECOND)).unwrap();
    let foreign = other.drain_lease(9, owned.after(60 * SECOND)).unwrap();
    let (nursery, shared) = (Nursery::default(), Owned::new());
    let builder = shared.builder(1).lane(LanePolicy::new("io")).spawn_handler(nursery.handler());
    let shared_pool = builder.build().unwrap();
    // a job under a lease belongs to the lease's scope, whatever its executor is for
    let misled = shared_pool.executor("io").unwrap().scoped(&scope);
    let job = misled.job("x").lease(&foreign).submit(|| ()).unwrap();
    assert_eq!(other.report().nodes[0].members[0].jobs.len(), 1);
    assert!(scope.report().nodes.iter().all(|node| node.members.is_empty()));
    scope.close();
    assert!(!job.is_done(), "its scope is open");
    other.cancel();
    closed(job.join());
    // a pool that drains takes what comes from below its scope
    refused_as_closed(io.job("foreign").lease(&foreign).submit(|| ()));
    assert!(io.job("foreign").lease(&foreign).try_acquire().is_err());
    assert!(block_on(io.job("foreign").lease(&foreign).acquire()).is_err());
    assert_eq!(io.job("ours").lease(&ours).submit(|| 7).unwrap().join().unwrap(), 7);
    assert_eq!((foreign.remaining(), ours.remaining()), (0, 8));
    drop(ours);
    must_end("the scope", move || block_on(scope.drained()));
}

/// ADM-16, ADM-15
#[test]
fn work_under_a_lease_belongs_to_the_leases_scope_in_whatever_order_it_is_said() {
    let scene = Scene::new(2);
    let other = Scope::root("other");
    let lease = scene.scope.drain_lease(5, tollgate_blocking::Deadline::never()).unwrap();
    other.close();
    let gate = Gate::new();
    let job = scene.io.job("x").lease(&lease).scope(&other).submit(gate.closure()).unwrap();
    gate.wait_started();
    assert!(other.report().nodes.is_empty());
    assert_eq!(scene.ours().jobs[0].id, job.id());
    gate.open();
    job.join().unwrap();
}

/// ADM-14, BLK-10
#[test]
fn the_scope_of_an_attached_pool_waits_for_the_captures_of_a_job_that_was_given_up() {
    let owned = Owned::new();
    let scope = Scope::root("service");
    let builder = owned.builder(1).lane(LanePolicy::new("io").max_waiting(9)).scope(&scope);
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let (gate, door) = (Gate::new(), Gate::new());
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let keep = door.closure();
    let mark = OnDrop(move || keep.clone()());
    let queued = io.submit(move || drop(mark)).unwrap();
    let canceller = std::thread::spawn(move || assert!(queued.cancel()));
    door.wait_started();
    gate.open();
    running.join().unwrap();
    scope.close();
    eventually("the threads end", || pool.stats().threads.alive == 0);
    let report = scope.report();
    assert!(!report.complete, "captures are still being dropped");
    assert_eq!(report.nodes[0].members[0].ending, 1);
    door.open();
    canceller.join().unwrap();
    must_end("the scope", move || block_on(scope.drained()));
}

/// ADM-15
#[test]
fn a_job_that_starts_after_its_scope_was_cancelled_is_asked_to_stop_too() {
    let scene = Scene::new(2);
    let permit = scene.ours.try_acquire().unwrap();
    let lease = scene.scope.drain_lease(5, tollgate_blocking::Deadline::never()).unwrap();
    let gate = Gate::new();
    let closure = gate.closure();
    let leased = scene.ours.job("leased").lease(&lease).submit_with(move |job| {
        closure();
        job.is_cancelled()
    });
    gate.wait_started();
    scene.scope.cancel();
    let late = permit.spawn_with(|job| (job.is_cancelled(), job.checkpoint())).unwrap();
    assert_eq!(late.join().unwrap(), (true, Err(Cancelled::Requested)));
    gate.open();
    assert!(leased.unwrap().join().unwrap(), "what is under a lease is asked too");
}

/// ADM-15, ADM-16
#[test]
fn work_under_a_lease_that_starts_after_a_cancel_is_asked_to_stop_and_after_a_shutdown_is_not() {
    let deadline = Deadline::never();
    let asked = |end: fn(&Scope)| {
        let scene = Scene::new(1);
        let lease = scene.scope.drain_lease(1, deadline).unwrap();
        let permit = scene.ours.job("flush").lease(&lease).try_acquire().unwrap();
        end(&scene.scope);
        permit.spawn_with(|job| job.checkpoint().is_err()).unwrap().join().unwrap()
    };
    assert!(asked(Scope::cancel), "it has its permit, and was told");
    let shut_down = |scope: &Scope| start(&mut scope.shutdown(Deadline::never()));
    assert!(!asked(shut_down), "it has until its lease's deadline");
    let both = |scope: &Scope| {
        scope.cancel();
        start(&mut scope.shutdown(Deadline::never()));
    };
    assert!(asked(both), "a shutdown takes nothing back");
}

/// ADM-15
#[test]
fn what_was_refused_in_a_pool_of_a_scope_is_reported_also_when_the_pool_is_gone() {
    let owned = Owned::new();
    let scope = Scope::root("service");
    // as long as there is the pool, there is its hook
    let mark = Arc::new(());
    let hook = Arc::clone(&mark);
    let builder = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope);
    let pool = builder.on_thread_stop(move || _ = &hook).build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let queued = io.submit(|| ()).unwrap();
    scope.close();
    closed(queued.join());
    gate.open();
    running.join().unwrap();
    must_end("the scope", {
        let scope = scope.clone();
        move || block_on(scope.drained())
    });
    assert_eq!(scope.report().refused, 1);
    drop((pool, io));
    eventually("the pool is gone", || Arc::strong_count(&mark) == 1);
    assert_eq!(scope.report().refused, 1);
}

/// ADM-9, ADM-14
#[test]
fn what_a_cancelled_scope_refuses_in_its_pool_is_refused_and_counted_as_its_own() {
    let owned = Owned::new();
    let scope = Scope::root("service");
    let pool = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope).build().unwrap();
    let io = pool.executor("io").unwrap();
    scope.cancel();
    refused_as_closed(io.submit(|| ()));
    closed(block_on(io.run(|| ())));
    assert_eq!(scope.report().refused, 2);
}
