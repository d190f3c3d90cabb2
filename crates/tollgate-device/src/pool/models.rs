//! The pool's own source under loom: every interleaving of two or three threads, up to a bound on preemptions.
//!
//! A runtime can't run here. In its place each task is driven on a thread of its own, as a worker of the pool; and what a
//! supervisor does, a thread of the model's does.

use super::by_hand::{self, assert_at_rest, assert_whole, link};
use super::core::{Core, Spawn, Task, run_all};
use super::events::{EventStream, Outcome};
use super::supervisor::{Supervisor, supervise};
use super::worker::{Role, become_one};
use super::*;
use loom::future::block_on;
use loom::sync::{Mutex, MutexGuard};
use loom::thread::{self, JoinHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tollgate_admission::JobId;

/// Three preemptions: whatever was put in to try the models (a second look left out, a ring lost, a waiter not told, a seat
/// not handed on) shows at one or two, and each model takes two seconds at most.
const PREEMPTIONS: usize = 3;

/// Two where a supervisor has threads to join and others wait for it: three preemptions take up to a minute each.
const FEWER: usize = 2;

/// Explores `f`, whose result says how it went; each of `outcomes` must have been seen, and no other.
fn model(outcomes: &[&'static str], f: impl Fn() -> &'static str + Send + Sync + 'static) {
    model_to(PREEMPTIONS, outcomes, f);
}

fn model_to(
    preemptions: usize,
    outcomes: &[&'static str],
    f: impl Fn() -> &'static str + Send + Sync + 'static,
) {
    // both make an unfinished exploration pass
    assert!(std::env::var_os("LOOM_MAX_DURATION").is_none());
    assert!(std::env::var_os("LOOM_MAX_PERMUTATIONS").is_none());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 100_000;
    // not loom's: it outlives the schedules
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let results = Arc::clone(&seen);
    builder.check(move || {
        let outcome = f();
        results.lock().unwrap().insert(outcome);
    });
    assert_eq!(*seen.lock().unwrap(), BTreeSet::from_iter(outcomes.iter().copied()));
}

/// Drives each task on a thread of its own, until it is told that the runtime has gone.
#[derive(Clone)]
struct Threads(Arc<Mutex<Machine>>);

struct Machine {
    /// Whose workers they are.
    pool: u64,
    running: Vec<JoinHandle<()>>,
    gone: bool,
}

impl Threads {
    fn new() -> Self {
        Threads(Arc::new(Mutex::new(Machine { pool: 0, running: Vec::new(), gone: false })))
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }

    fn join(&self) {
        let running = std::mem::take(&mut self.lock().running);
        running.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// What the end of a runtime does: what comes later is dropped, what is there ends first.
    fn end(&self) {
        self.lock().gone = true;
        self.join();
    }
}

impl Spawn for Threads {
    fn spawn(&self, task: Task) {
        let mut machine = self.lock();
        if machine.gone {
            drop(machine);
            return drop(task);
        }
        let pool = machine.pool;
        machine.running.push(thread::spawn(move || {
            become_one(pool, Role::Worker);
            block_on(run_all(task, async || ()));
        }));
    }
}

/// As small as one can be: one seat for execution, one for setup and cleanup.
fn pool(attempts: u32) -> (Arc<Core>, Threads) {
    let threads = Threads::new();
    let binds = Box::new(|| Ok(()));
    let core = by_hand::core(DeviceProfile::new(attempts, 2), threads.clone(), binds, 100);
    threads.lock().pool = core.id.get();
    (core, threads)
}

fn job<'a>(link: &'a Link, name: &'static str) -> DeviceJob<'a, MayDetach> {
    DeviceJob::new(link, None, name.into())
}

/// What was said of each job since the last look.
fn histories(events: &mut EventStream) -> BTreeMap<JobId, Vec<EventKind>> {
    let mut histories = BTreeMap::<_, Vec<_>>::new();
    while let Some(event) = events.try_recv() {
        histories.entry(event.job).or_default().push(event.what);
    }
    assert_eq!(events.missed(), 0, "all are there");
    histories
}

/// Awaits once what is there at once, so that there is a next await.
struct Pause(bool);

impl Future for Pause {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn never() -> Deadline {
    Deadline::never()
}

fn no_supervisor(core: &Core) -> Arc<Supervisor> {
    Arc::new(Supervisor::new(core.id.get(), thread::spawn(|| {})))
}

fn drained(core: &Arc<Core>) -> PhaseWait {
    PhaseWait::new(Arc::clone(core), no_supervisor(core), Phase::Drain, never())
}

/// All jobs there were have lived a whole life each. Says how they ended.
#[track_caller]
fn outcomes(events: &mut EventStream) -> Vec<Outcome> {
    histories(events).values().map(|history| assert_whole(history)).collect()
}

/// DEV-17: close against submit. What is accepted when `close` returns is all that ever is, and ends.
#[test]
fn a_job_is_refused_by_a_close_or_counted_when_it_returns() {
    model(&["accepted", "refused"], || {
        let (core, threads) = pool(1);
        let mut events = EventStream::new(&core);
        let link = link(&core);
        let submitter = thread::spawn(move || match job(&link, "one").spawn(async {}) {
            Ok(task) => {
                block_on(task).unwrap();
                "accepted"
            }
            Err(error) => {
                assert!(matches!(error.refused(), Some(Refused::Closed { .. })), "{error}");
                "refused"
            }
        });
        core.close(Closed::Budget);
        let admitted = DeviceSnapshot::take(&core).class(Class::Root).unwrap().admitted;
        let outcome = submitter.join().unwrap();
        assert_eq!(admitted, u64::from(outcome == "accepted"), "{outcome} when it was closed");
        threads.join();
        assert_eq!(outcomes(&mut events).len() as u64, admitted);
        assert!(core.look(|inner| inner.is_drained()));
        assert_at_rest(&core);
        outcome
    });
}

/// DEV-17: the admission of an attempt against a close, while another attempt has the only permit: it is told.
#[test]
fn an_admission_that_waits_is_admitted_or_told_of_the_close() {
    model(&["admitted", "refused"], || {
        let (core, _threads) = pool(1);
        let first = Admission::new(link(&core)).try_admit().unwrap();
        let second = Admission::new(link(&core));
        let waiter = thread::spawn(move || match block_on(second) {
            Ok(_attempt) => "admitted",
            Err(error) => {
                assert!(matches!(error.cause(), tollgate_admission::AcquireError::Closed { .. }));
                "refused"
            }
        });
        let releaser = thread::spawn(move || drop(first));
        core.close(Closed::Budget);
        let outcome = waiter.join().unwrap();
        releaser.join().unwrap();
        assert!(core.look(|inner| inner.is_drained()));
        assert_at_rest(&core);
        outcome
    });
}

/// DEV-15: the terminal event against a cancellation, of a job that runs. There is one, and it comes last.
#[test]
fn a_running_job_that_is_cancelled_ends_once() {
    model(&["cancelled", "finished", "never began"], || {
        let (core, threads) = pool(1);
        let mut events = EventStream::new(&core);
        let link = link(&core);
        let task = job(&link, "one").spawn(Pause(false)).unwrap();
        let asked = task.cancel();
        assert!(!task.cancel(), "that is not the first time");
        let result = block_on(task);
        threads.join();
        let (_, history) = histories(&mut events).pop_first().unwrap();
        let outcome = assert_whole(&history);
        assert_eq!(history.contains(&EventKind::CancellationRequested), asked);
        assert_at_rest(&core);
        match (outcome, result) {
            (Outcome::Finished, Ok(())) => "finished",
            (Outcome::Cancelled, Err(error)) => {
                assert!(matches!(error.reason(), Reason::Cancelled), "{error}");
                let began = history.iter().any(|it| matches!(it, EventKind::Started { .. }));
                if began { "cancelled" } else { "never began" }
            }
            other => panic!("{other:?}"),
        }
    });
}

/// DEV-5, DEV-15: the same by dropping the await, and with a callback: it is called once, before a drain is over.
#[test]
fn a_job_whose_await_is_dropped_ends_once_and_calls_back_before_the_pool_has_drained() {
    model(&["cancelled", "finished"], || {
        let (core, threads) = pool(1);
        let mut events = EventStream::new(&core);
        let link = link(&core);
        let calls = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let called = Arc::clone(&calls);
        let run = job(&link, "one")
            .on_complete(move || {
                called.fetch_add(1, loom::sync::atomic::Ordering::SeqCst);
            })
            .run(Pause(false));
        let mut run = Box::pin(run);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let polled = run.as_mut().poll(&mut cx);
        drop(run);
        core.close(Closed::Budget);
        block_on(drained(&core)).unwrap();
        assert_eq!(calls.load(loom::sync::atomic::Ordering::SeqCst), 1);
        let ended = outcomes(&mut events);
        threads.join();
        assert_at_rest(&core);
        match (&ended[..], polled) {
            ([Outcome::Finished], _) => "finished",
            ([Outcome::Cancelled], Poll::Pending) => "cancelled",
            other => panic!("{other:?}"),
        }
    });
}

/// DEV-4, DEV-15: the hand-off of a seat against a cancel of the job that waits for it. Whether it runs or not, it ends
/// once, and the seat reaches the next one.
#[test]
fn a_seat_handed_to_a_job_that_is_cancelled_reaches_the_next() {
    model(&["cancelled", "finished"], || {
        let (core, threads) = pool(3);
        let mut events = EventStream::new(&core);
        let link = link(&core);
        let first = job(&link, "first").spawn(async {}).unwrap();
        let second = job(&link, "second").spawn(async {}).unwrap();
        second.cancel();
        let outcome = match block_on(second) {
            Ok(()) => "finished",
            Err(_) => "cancelled",
        };
        block_on(first).unwrap();
        threads.join();
        assert_eq!(outcomes(&mut events).len(), 2);
        assert_at_rest(&core);
        // the seat is to be had
        block_on(job(&link, "third").spawn(async {}).unwrap()).unwrap();
        threads.join();
        assert_at_rest(&core);
        outcome
    });
}

/// DEV-17: the last permit against whoever waits for the drain.
#[test]
fn whoever_waits_for_the_drain_is_told_when_the_last_attempt_is_over() {
    model(&["drained"], || {
        let (core, _threads) = pool(1);
        let attempt = Admission::new(link(&core)).try_admit().unwrap();
        core.close(Closed::Budget);
        let last = thread::spawn(move || drop(attempt));
        block_on(drained(&core)).unwrap();
        assert_at_rest(&core);
        last.join().unwrap();
        "drained"
    });
}

/// DEV-8, DEV-17: the same when the attempt's end is a cleanup, which begins when the pool is closed already.
#[test]
fn whoever_waits_for_the_drain_is_told_when_the_last_cleanup_has_ended() {
    model(&["drained"], || {
        let (core, threads) = pool(1);
        let mut events = EventStream::new(&core);
        let attempt = Admission::new(link(&core)).try_admit().unwrap();
        let closer = {
            let core = Arc::clone(&core);
            thread::spawn(move || core.close(Closed::Budget))
        };
        drop(attempt.release("free", async {}).unwrap());
        closer.join().unwrap();
        block_on(drained(&core)).unwrap();
        assert_eq!(outcomes(&mut events), [Outcome::Finished]);
        assert_at_rest(&core);
        threads.join();
        "drained"
    });
}

fn start_supervisor(core: &Arc<Core>, threads: &Threads) -> Arc<Supervisor> {
    let (owned, machine) = (Arc::clone(core), threads.clone());
    let thread = super::super::sync::Builder::new().spawn(move || {
        become_one(owned.id.get(), Role::Supervisor);
        supervise(&owned, || machine.end());
    });
    Arc::new(Supervisor::new(core.id.get(), thread.unwrap()))
}

/// DEV-17: the supervisor's exit against those who wait for it.
#[test]
fn all_who_wait_for_the_supervisor_are_told_of_its_end() {
    model_to(FEWER, &["ended"], || {
        let (core, threads) = pool(1);
        let supervisor = start_supervisor(&core, &threads);
        let wait =
            |phase| PhaseWait::new(Arc::clone(&core), Arc::clone(&supervisor), phase, never());
        let (runtime, joined) = (wait(Phase::Runtime), wait(Phase::Supervisor));
        let other = thread::spawn(move || block_on(runtime).unwrap());
        assert!(!core.request_exit(), "it is not closed");
        core.close(Closed::Budget);
        assert!(core.request_exit());
        block_on(joined).unwrap();
        other.join().unwrap();
        // it can be asked for again
        block_on(wait(Phase::Supervisor)).unwrap();
        assert!(core.look(|inner| inner.has_ended()));
        "ended"
    });
}

/// DEV-17: two who join the supervisor at once both learn that it has ended.
#[test]
fn two_who_join_the_supervisor_both_find_it_ended() {
    model_to(FEWER, &["ended"], || {
        let (core, threads) = pool(1);
        core.close_for_good(Closed::Budget);
        let supervisor = start_supervisor(&core, &threads);
        let wait = || {
            let (core, supervisor) = (Arc::clone(&core), Arc::clone(&supervisor));
            PhaseWait::new(core, supervisor, Phase::Supervisor, never())
        };
        let other = wait();
        let other = thread::spawn(move || block_on(other).unwrap());
        block_on(wait()).unwrap();
        other.join().unwrap();
        "ended"
    });
}

/// DEV-17: a pool without handles ends when its last job does, although nobody is there to say so.
#[test]
fn a_pool_that_lost_its_last_handle_ends_with_its_last_job() {
    model(&["ended"], || {
        let (core, threads) = pool(1);
        let mut events = EventStream::new(&core);
        let supervisor = start_supervisor(&core, &threads);
        drop(job(&link(&core), "one").spawn(async {}).unwrap());
        core.close_for_good(Closed::Budget);
        let joined = PhaseWait::new(Arc::clone(&core), supervisor, Phase::Supervisor, never());
        block_on(joined).unwrap();
        assert_eq!(outcomes(&mut events), [Outcome::Finished]);
        assert_at_rest(&core);
        "ended"
    });
}

/// DEV-17, DEV-15: the end of the runtime against a job that is being submitted, or runs: it ends once, and whoever waits
/// for it is told.
#[test]
fn a_job_that_meets_the_end_of_the_runtime_ends_once() {
    model_to(FEWER, &["finished", "lost", "refused"], || {
        let (core, threads) = pool(1);
        let mut events = EventStream::new(&core);
        let supervisor = start_supervisor(&core, &threads);
        let link = link(&core);
        let submitter = thread::spawn(move || match job(&link, "one").spawn(Pause(false)) {
            Err(error) => {
                assert!(matches!(error.refused(), Some(Refused::Closed { .. })), "{error}");
                "refused"
            }
            Ok(task) => match block_on(task) {
                Ok(()) => "finished",
                Err(error) => {
                    assert!(matches!(error.reason(), Reason::Lost), "{error}");
                    "lost"
                }
            },
        });
        core.close(Closed::Budget);
        core.request_exit();
        let joined = PhaseWait::new(Arc::clone(&core), supervisor, Phase::Supervisor, never());
        block_on(joined).unwrap();
        let outcome = submitter.join().unwrap();
        match (outcome, &outcomes(&mut events)[..]) {
            ("refused", []) | ("lost", [Outcome::Dropped]) | ("finished", [Outcome::Finished]) => {}
            (outcome, ended) => panic!("{outcome}: {ended:?}"),
        }
        assert_at_rest(&core);
        outcome
    });
}

/// DEV-4: a seat that is handed on by a worker in the middle of something is given out by the supervisor, which does not
/// sleep through it.
#[test]
fn a_job_that_gets_its_seat_from_a_busy_worker_is_spawned_by_the_supervisor() {
    model_to(FEWER, &["ran"], || {
        let (core, threads) = pool(2);
        let supervisor = start_supervisor(&core, &threads);
        let link = link(&core);
        // its worker has the callback to make when it hands on its seat
        let first = job(&link, "first").on_complete(|| {}).spawn(async {}).unwrap();
        drop(first);
        let second = job(&link, "second").spawn(async { 2 }).unwrap();
        assert_eq!(block_on(second).unwrap(), 2);
        core.close_for_good(Closed::Budget);
        let joined = PhaseWait::new(Arc::clone(&core), supervisor, Phase::Supervisor, never());
        block_on(joined).unwrap();
        assert_at_rest(&core);
        "ran"
    });
}
