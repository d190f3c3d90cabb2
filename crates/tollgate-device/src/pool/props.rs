//! A whole pool under random sequences of whatever can be done to it, on one thread: what a worker, a watcher, a supervisor
//! or a stranger would do is done when the sequence says so. After each step what observers were told is replayed, and must
//! come to the figures that the pool gives.

use super::book::Counts;
use super::by_hand::{self, assert_at_rest, assert_whole, link};
use super::core::{Core, Next, Spawn, Task};
use super::events::{DeviceEvent, EventStream};
use super::job::Callback;
use super::shutdown::Ended;
use super::submit::{Link, MayDetach};
use super::supervisor::Supervisor;
use super::worker::{Role, become_one};
use super::*;
use crate::backend::{Cause, DriverError, Operation};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, FileFailurePersistence};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate_admission::JobId;
use tollgate_admission::engine::contain;

const ATTEMPTS: u32 = 3;
const SHARE: u32 = 2;
const WORKERS: u32 = 3;
const KEPT: u32 = 1;

/// What a job's body does when it runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    Finish,
    Panic,
    /// Awaits another job, which runs within it.
    Nest(DeviceKind),
    /// Hands another job over, and awaits it.
    Detach(DeviceKind),
}

/// How a job is submitted, and watched.
#[derive(Clone, Copy, Debug)]
enum Way {
    Run,
    Spawn,
    Blocking,
}

/// A job, but for its kind.
#[derive(Clone, Copy, Debug)]
struct Manner {
    way: Way,
    callback: bool,
    /// Its captures panic when they are dropped.
    rough: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Submit(DeviceKind, Manner),
    Under(u8, DeviceKind, Manner),
    TryAdmit,
    Admit,
    PollAdmission(u8),
    DropAdmission(u8),
    Release(u8, Manner),
    DropAttempt(u8),
    Tell(u8, Step),
    /// A worker has a task's next turn.
    Poll(u8),
    /// A thread for blocking jobs begins with one.
    Call(u8),
    /// The runtime, or the threads for blocking jobs, lose one.
    LoseTask(u8),
    LoseCall(u8),
    Watch(u8),
    Cancel(u8),
    Leave(u8),
    Supervise,
    Wait,
    Unbind(bool),
    Close,
    Exit,
}

/// The tasks that have a worker, or will get one; `None` once the runtime has gone.
#[derive(Clone)]
struct Tasks(Arc<Mutex<Option<Vec<Task>>>>);

impl Tasks {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<Task>) -> R) -> Option<R> {
        self.0.lock().unwrap().as_mut().map(f)
    }

    /// Whichever `index` means, if there is any.
    fn take(&self, index: u8) -> Option<Task> {
        self.with(|tasks| of(tasks, index).map(|at| tasks.swap_remove(at))).flatten()
    }
}

impl Spawn for Tasks {
    fn spawn(&self, task: Task) {
        let mut task = Some(task);
        self.with(|tasks| tasks.extend(task.take()));
        // what comes to a runtime that has gone is dropped, and what panics then is contained
        contain(|| drop(task));
    }
}

/// What jobs share with whoever checks them.
#[derive(Clone)]
struct Shared {
    link: Link,
    /// What each body does next.
    steps: Arc<Mutex<Vec<Step>>>,
    /// How often each callback was called.
    calls: Arc<Mutex<Vec<Called>>>,
}

/// A callback, of a job that was accepted or refused.
#[derive(Debug, Default)]
struct Called {
    /// Known once it was accepted.
    job: Option<JobId>,
    refused: bool,
    times: usize,
    /// It was called while its job was counted as one that ends.
    counted: bool,
}

impl Shared {
    fn next_step(&self, body: usize) -> Step {
        std::mem::replace(&mut self.steps.lock().unwrap()[body], Step::Wait)
    }

    fn body(&self, rough: bool) -> Body {
        let mut steps = self.steps.lock().unwrap();
        steps.push(Step::Wait);
        Body { shared: self.clone(), number: steps.len() - 1, children: Vec::new(), rough }
    }

    fn callback(&self) -> (usize, Callback) {
        let mut calls = self.calls.lock().unwrap();
        calls.push(Called::default());
        let number = calls.len() - 1;
        let shared = self.clone();
        let call = move || {
            let ending = shared.link.core.book(|book| book.counts().ending);
            let mut calls = shared.calls.lock().unwrap();
            calls[number].times += 1;
            calls[number].counted = ending > 0;
        };
        (number, Box::new(call))
    }

    fn job(&self, kind: DeviceKind, nested: bool) -> DeviceJob<'_, MayDetach> {
        let name = if nested { "nested" } else { "direct" };
        DeviceJob::new(&self.link, None, name.into()).kind(kind)
    }
}

enum Child {
    Run(DeviceRun<u8>),
    Task(DeviceTask<u8>),
}

impl Child {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Child::Run(run) => Pin::new(run).poll(cx).map(drop),
            Child::Task(task) => Pin::new(task).poll(cx).map(drop),
        }
    }
}

struct Body {
    shared: Shared,
    number: usize,
    children: Vec<Child>,
    rough: bool,
}

impl Future for Body {
    type Output = u8;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u8> {
        let this = &mut *self;
        this.children.retain_mut(|child| child.poll(cx).is_pending());
        let (nested, detached) = match this.shared.next_step(this.number) {
            Step::Wait => return Poll::Pending,
            Step::Finish => return Poll::Ready(0),
            // without the message on the error stream
            Step::Panic => resume_unwind(Box::new("as it was told to")),
            Step::Nest(kind) => (kind, false),
            Step::Detach(kind) => (kind, true),
        };
        let job = this.shared.job(nested, true);
        let body = this.shared.body(false);
        if detached {
            this.children.extend(job.spawn(body).ok().map(Child::Task));
        } else {
            let mut run = Child::Run(job.run(body));
            if run.poll(cx).is_pending() {
                this.children.push(run);
            }
        }
        Poll::Pending
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.rough && !std::thread::panicking() {
            resume_unwind(Box::new("dropped roughly"));
        }
    }
}

/// What a blocking job does: whatever it is told to do next, and then it ends.
fn block(mut body: Body) -> u8 {
    match Pin::new(&mut body).poll(&mut noop()) {
        Poll::Ready(result) => result,
        Poll::Pending => 0,
    }
}

fn noop() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Does `f` as a thread of the pool's.
fn on<R>(role: Role, pool: &Core, f: impl FnOnce() -> R) -> R {
    become_one(pool.id.get(), role);
    let result = f();
    // of no pool
    become_one(0, role);
    result
}

enum Watcher {
    Run(DeviceRun<u8>),
    Task(DeviceTask<u8>),
    Blocking(BlockingTask<u8>),
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// An attempt as the replay sees it.
struct Under {
    attempt: Option<Attempt>,
    /// Whoever has the attempt's handle runs its jobs.
    handle: AttemptHandle,
    released: bool,
    /// The jobs that keep it.
    jobs: Vec<JobId>,
}

struct World {
    core: Arc<Core>,
    shared: Shared,
    tasks: Tasks,
    calls: Vec<Box<dyn FnOnce()>>,
    watchers: Vec<Watcher>,
    admissions: Vec<Pin<Box<Admission>>>,
    attempts: Vec<Under>,
    waits: Vec<(PhaseWait, Arc<Woken>)>,
    supervisor: Arc<Supervisor>,
    unbound: Arc<AtomicBool>,
    events: EventStream,
    lives: BTreeMap<JobId, Vec<DeviceEvent>>,
    replayed: Counts,
    exit: bool,
    gone: bool,
}

fn of<T>(list: &[T], index: u8) -> Option<usize> {
    (!list.is_empty()).then(|| usize::from(index) % list.len())
}

impl World {
    fn new() -> Self {
        let tasks = Tasks(Arc::new(Mutex::new(Some(Vec::new()))));
        let unbound = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&unbound);
        let binds = move || match fails.load(Ordering::SeqCst) {
            true => Err(DriverError::new(0, Operation::Bind, Cause::Lost)),
            false => Ok(()),
        };
        let profile =
            DeviceProfile::new(ATTEMPTS, WORKERS).auxiliary(SHARE).lifecycle_workers(KEPT);
        let core = by_hand::core(profile, tasks.clone(), Box::new(binds), 10_000);
        let events = EventStream::new(&core);
        let shared = Shared { link: link(&core), steps: Arc::default(), calls: Arc::default() };
        let supervisor = Arc::new(Supervisor::new(core.id.get(), std::thread::spawn(|| {})));
        World {
            core,
            shared,
            tasks,
            calls: Vec::new(),
            watchers: Vec::new(),
            admissions: Vec::new(),
            attempts: Vec::new(),
            waits: Vec::new(),
            supervisor,
            unbound,
            events,
            lives: BTreeMap::new(),
            replayed: Counts::default(),
            exit: false,
            gone: false,
        }
    }

    fn submit<P>(&mut self, job: DeviceJob<'_, P>, manner: Manner) -> Option<JobId> {
        let Manner { way, callback, rough } = manner;
        let body = self.shared.body(rough);
        let number = callback.then(|| self.shared.callback());
        let (number, job) = match number {
            Some((number, call)) => (Some(number), job.on_complete(call)),
            None => (None, job),
        };
        let accepted = match way {
            Way::Blocking => match job.accept_blocking(move |_| block(body)) {
                Ok((job, call)) => {
                    let task = BlockingTask::new(job);
                    let id = task.id();
                    self.calls.push(Box::new(call));
                    self.watchers.push(Watcher::Blocking(task));
                    Some(id)
                }
                Err(_) => None,
            },
            // only what comes from a pool can be detached: see `spawn`
            Way::Run | Way::Spawn => {
                let mut run = job.run(body);
                let before = self.shared.link.core.book(|book| book.counts().queued.now);
                let polled = Pin::new(&mut run).poll(&mut noop());
                let after = self.shared.link.core.book(|book| book.counts().queued.now);
                assert!(matches!(polled, Poll::Pending | Poll::Ready(Err(_))));
                let accepted = polled.is_pending();
                assert_eq!(after, before + u64::from(accepted), "it is queued, nothing else");
                if accepted {
                    self.watchers.push(Watcher::Run(run));
                    self.read_events();
                    self.lives.last_key_value().map(|(id, _)| *id)
                } else {
                    None
                }
            }
        };
        self.note(number, accepted);
        accepted
    }

    fn spawn(&mut self, kind: DeviceKind, manner: Manner) {
        let shared = self.shared.clone();
        let body = shared.body(manner.rough);
        let mut job = shared.job(kind, false);
        let number = manner.callback.then(|| shared.callback());
        let number = number.map(|(number, call)| {
            job = std::mem::replace(&mut job, shared.job(kind, false)).on_complete(call);
            number
        });
        let task = job.spawn(body).ok();
        self.note(number, task.as_ref().map(DeviceTask::id));
        self.watchers.extend(task.map(Watcher::Task));
    }

    fn note(&self, callback: Option<usize>, accepted: Option<JobId>) {
        if let Some(number) = callback {
            let called = &mut self.shared.calls.lock().unwrap()[number];
            called.job = accepted;
            called.refused = accepted.is_none();
        }
    }

    fn admitted(&mut self, attempt: Attempt) {
        let handle = attempt.handle();
        let under = Under { attempt: Some(attempt), handle, released: false, jobs: Vec::new() };
        self.attempts.push(under);
    }

    fn poll_admission(&mut self, at: usize) {
        if let Poll::Ready(result) = self.admissions[at].as_mut().poll(&mut noop()) {
            drop(self.admissions.swap_remove(at));
            if let Ok(attempt) = result {
                self.admitted(attempt);
            }
        }
    }

    fn poll(&mut self, mut task: Task) {
        let polled = on(Role::Worker, &self.core, || task.as_mut().poll(&mut noop()));
        match polled {
            Poll::Pending => self.tasks.spawn(task),
            // it has begun, whenever its worker comes to it
            Poll::Ready(Some(Next(next))) => self.tasks.spawn(next),
            Poll::Ready(None) => {}
        }
    }

    fn watch(&mut self, at: usize) {
        let cx = &mut noop();
        let done = match &mut self.watchers[at] {
            Watcher::Run(run) => Pin::new(run).poll(cx).is_ready(),
            Watcher::Task(task) => {
                let known = task.is_done();
                let done = Pin::new(task).poll(cx).is_ready();
                assert_eq!(done, known);
                done
            }
            Watcher::Blocking(task) => Pin::new(task).poll(cx).is_ready(),
        };
        if done {
            drop(self.watchers.swap_remove(at));
        }
    }

    fn supervise(&mut self) {
        let (errands, exit) = self.core.take_errands();
        for task in errands {
            self.core.spawn(task);
        }
        if exit && !self.gone {
            self.core.abandon();
            // what had a turn to come sees that it is to end, and the rest goes with the runtime
            let calls = std::mem::take(&mut self.calls);
            for call in calls {
                on(Role::Blocking, &self.core, call);
            }
            let tasks = self.tasks.0.lock().unwrap().take();
            for task in tasks.into_iter().flatten() {
                contain(|| drop(task));
            }
            self.core.ended(Ended::Cleanly);
            self.gone = true;
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Submit(kind, manner @ Manner { way: Way::Spawn, .. }) => self.spawn(kind, manner),
            Op::Submit(kind, manner) => {
                let shared = self.shared.clone();
                self.submit(shared.job(kind, false), manner);
            }
            Op::Under(index, kind, manner) => {
                let Some(at) = of(&self.attempts, index) else { return };
                let handle = self.attempts[at].handle.clone();
                let accepted = self.submit(handle.job("under").kind(kind), manner);
                self.attempts[at].jobs.extend(accepted);
            }
            Op::TryAdmit => {
                if let Ok(attempt) = Admission::new(self.shared.link.clone()).try_admit() {
                    self.admitted(attempt);
                }
            }
            Op::Admit => {
                self.admissions.push(Box::pin(Admission::new(self.shared.link.clone())));
                self.poll_admission(self.admissions.len() - 1);
            }
            Op::PollAdmission(index) => {
                if let Some(at) = of(&self.admissions, index) {
                    self.poll_admission(at);
                }
            }
            Op::DropAdmission(index) => {
                if let Some(at) = of(&self.admissions, index) {
                    drop(self.admissions.swap_remove(at));
                }
            }
            Op::Release(index, manner) => {
                let Some(at) = of(&self.attempts, index) else { return };
                let Some(attempt) = self.attempts[at].attempt.take() else { return };
                let body = self.shared.body(manner.rough);
                let (number, released) = if manner.callback {
                    let (number, call) = self.shared.callback();
                    (Some(number), attempt.release_then("release", body, call))
                } else {
                    (None, attempt.release("release", body))
                };
                let task = released.ok();
                self.attempts[at].released = task.is_some();
                self.note(number, task.as_ref().map(DeviceTask::id));
                self.watchers.extend(task.map(Watcher::Task));
            }
            Op::DropAttempt(index) => {
                if let Some(at) = of(&self.attempts, index) {
                    drop(self.attempts[at].attempt.take());
                }
            }
            Op::Tell(index, step) => {
                let mut steps = self.shared.steps.lock().unwrap();
                if let Some(at) = of(&steps, index) {
                    steps[at] = step;
                }
            }
            Op::Poll(index) => {
                if let Some(task) = self.tasks.take(index) {
                    self.poll(task);
                }
            }
            Op::Call(index) => {
                if let Some(at) = of(&self.calls, index) {
                    let call = self.calls.swap_remove(at);
                    on(Role::Blocking, &self.core, call);
                }
            }
            Op::LoseTask(index) => {
                if let Some(task) = self.tasks.take(index) {
                    // the runtime contains what panics then
                    contain(|| drop(task));
                }
            }
            Op::LoseCall(index) => {
                if let Some(at) = of(&self.calls, index) {
                    let call = self.calls.swap_remove(at);
                    contain(|| drop(call));
                }
            }
            Op::Watch(index) => {
                if let Some(at) = of(&self.watchers, index) {
                    self.watch(at);
                }
            }
            Op::Cancel(index) => match of(&self.watchers, index).map(|at| &self.watchers[at]) {
                Some(Watcher::Task(task)) => drop(task.cancel()),
                Some(Watcher::Blocking(task)) => drop(task.cancel()),
                Some(Watcher::Run(_)) | None => {}
            },
            Op::Leave(index) => {
                if let Some(at) = of(&self.watchers, index) {
                    drop(self.watchers.swap_remove(at));
                }
            }
            Op::Supervise => self.supervise(),
            Op::Wait => {
                let (core, supervisor) = (Arc::clone(&self.core), Arc::clone(&self.supervisor));
                let wait = PhaseWait::new(core, supervisor, Phase::Drain, Deadline::never());
                self.waits.push((wait, Arc::new(Woken(AtomicBool::new(true)))));
            }
            Op::Unbind(unbound) => self.unbound.store(unbound, Ordering::SeqCst),
            Op::Close => self.core.close(Closed::Budget),
            Op::Exit => {
                let closed = self.core.look(|inner| inner.is_closed());
                assert_eq!(self.core.request_exit(), closed, "the runtime ends after the close");
                self.exit |= closed;
            }
        }
    }

    /// Counts what was told since the last time.
    fn read_events(&mut self) {
        while let Some(event) = self.events.try_recv() {
            let counts = &mut self.replayed;
            let life = self.lives.entry(event.job).or_default();
            let executes = event.kind == DeviceKind::EXECUTION;
            let started = life.iter().any(|it| matches!(it.what, EventKind::Started { .. }));
            let up = |it: &mut super::book::Peaked| {
                it.now += 1;
                it.peak = it.peak.max(it.now);
            };
            match event.what {
                EventKind::Enqueued => up(&mut counts.queued),
                EventKind::Started { .. } => {
                    counts.queued.now -= 1;
                    up(&mut counts.active);
                    if executes {
                        up(&mut counts.executing);
                    }
                }
                EventKind::CancellationRequested => {}
                EventKind::Ended(_) if started => {
                    counts.active.now -= 1;
                    counts.executing.now -= u64::from(executes);
                }
                EventKind::Ended(_) => counts.queued.now -= 1,
            }
            life.push(event);
        }
        assert_eq!(self.events.missed(), 0);
    }

    fn is_alive(&self, id: JobId) -> bool {
        let last = self.lives.get(&id).and_then(|life| life.last());
        !last.is_none_or(|it| matches!(it.what, EventKind::Ended(_)))
    }

    /// Compares the pool with what it told.
    fn check(&mut self) {
        self.read_events();
        let snapshot = DeviceSnapshot::take(&self.core);
        let Counts { queued, active, executing, .. } = self.replayed;
        let told = [queued, active, executing].map(|it| (it.now, it.peak));
        let given = [
            (snapshot.queued, snapshot.peak_queued),
            (snapshot.active, snapshot.peak_active),
            (snapshot.executing, snapshot.peak_executing),
        ];
        assert_eq!(told, given, "queued, active and executing, each with its peak");
        assert_eq!(snapshot.ending, 0, "nobody calls anything now");

        // permits: of jobs that pay with their own, and of attempts
        let alive = |class: Class| {
            let of_class = self.lives.iter().filter(move |(_, life)| life[0].class == class);
            of_class.filter(|(id, _)| self.is_alive(**id))
        };
        let lent: Vec<JobId> = self.attempts.iter().flat_map(|it| it.jobs.clone()).collect();
        let root = alive(Class::Root).filter(|(id, _)| !lent.contains(id)).count();
        let open =
            |it: &&Under| it.attempt.is_some() || it.jobs.iter().any(|&id| self.is_alive(id));
        let attempts = self.attempts.iter().filter(open).count();
        let unreleased = self.attempts.iter().filter(open).filter(|it| !it.released).count();
        assert_eq!(snapshot.attempts, attempts as u64);
        let expected = [
            root + attempts,
            alive(Class::Auxiliary).count(),
            unreleased + alive(Class::Release).count(),
        ];
        for (class, expected) in snapshot.classes.iter().zip(expected) {
            let out = class.capacity - class.free;
            // an admission in the making may have one of each
            let most = expected + self.admissions.len();
            assert!(
                (expected as u64..=most as u64).contains(&out),
                "{} permits of class {} are out: {out}",
                expected,
                class.class
            );
        }
        for under in &self.attempts {
            let of_class = |class| {
                let has = |id: &&JobId| self.is_alive(**id) && self.lives[*id][0].class == class;
                under.jobs.iter().filter(has).count()
            };
            assert!(of_class(Class::Root) <= 1, "a root permit is lent once");
            assert!(of_class(Class::Auxiliary) <= SHARE as usize, "nobody has more than a share");
        }

        // seats and workers
        let mut workers: Vec<u32> = Vec::new();
        for (id, life) in &self.lives {
            // one that runs within another has that one's
            if !self.is_alive(*id) || life[0].name.as_str() == "nested" {
                continue;
            }
            for event in life {
                if let EventKind::Started { worker: Some(worker) } = event.what {
                    workers.push(worker);
                }
            }
        }
        workers.sort_unstable();
        let twice = workers.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(!twice && workers.iter().all(|it| *it < WORKERS), "{workers:?}");
        let (out, waiting, _) = self.core.look(|inner| inner.seats_in_use());
        assert!(out <= u64::from(WORKERS));
        if waiting > 0 && !self.exit {
            assert!(out >= u64::from(WORKERS - KEPT), "jobs wait while {out} seats are taken");
        }

        // waits
        let drained = self.core.look(|inner| inner.is_drained());
        self.waits.retain_mut(|(wait, woken)| {
            if !woken.0.swap(false, Ordering::SeqCst) {
                assert!(!drained, "whoever waits for the drain is told");
                return true;
            }
            let waker = Waker::from(Arc::clone(woken));
            let over = Pin::new(wait).poll(&mut Context::from_waker(&waker)).is_ready();
            assert_eq!(over, drained);
            !over
        });
    }

    /// Has all come to its end: by itself, or by the end of the runtime.
    fn finish(mut self, by_exit: bool) {
        self.admissions.clear();
        for under in &mut self.attempts {
            drop(under.attempt.take());
        }
        self.check();
        self.core.close(Closed::Budget);
        if by_exit {
            self.apply(Op::Exit);
        }
        for _ in 0..1000 {
            if self.core.look(|inner| inner.is_drained()) {
                break;
            }
            self.supervise();
            self.shared.steps.lock().unwrap().fill(Step::Finish);
            let tasks = self.tasks.with(std::mem::take).unwrap_or_default();
            tasks.into_iter().for_each(|task| self.poll(task));
            for call in std::mem::take(&mut self.calls) {
                on(Role::Blocking, &self.core, call);
            }
            self.check();
        }
        assert!(
            self.core.look(|inner| inner.is_drained()),
            "something never ends: {:?}",
            self.lives
        );
        while let Some(at) = self.watchers.len().checked_sub(1) {
            self.watch(at);
            assert_eq!(self.watchers.len(), at, "whoever waits for a job is told of its end");
        }
        self.check();
        assert!(self.waits.is_empty());
        for life in self.lives.values() {
            let history: Vec<EventKind> = life.iter().map(|event| event.what).collect();
            assert_whole(&history);
        }
        for called in &*self.shared.calls.lock().unwrap() {
            assert_eq!(called.times, usize::from(!called.refused), "{called:?}");
            assert!(called.refused || called.counted, "{called:?}");
        }
        assert_at_rest(&self.core);
    }
}

fn kinds() -> impl Strategy<Value = DeviceKind> {
    use DeviceKind as Kind;
    // most of what there is executes
    select(vec![Kind::EXECUTION, Kind::EXECUTION, Kind::AUXILIARY, Kind::SETUP, Kind::CLEANUP])
}

fn manners() -> impl Strategy<Value = Manner> {
    let ways = select(vec![Way::Run, Way::Spawn, Way::Blocking]);
    (ways, any::<bool>(), any::<bool>()).prop_map(|(way, callback, rough)| Manner {
        way,
        callback,
        rough,
    })
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Wait),
        4 => Just(Step::Finish),
        2 => Just(Step::Panic),
        2 => kinds().prop_map(Step::Nest),
        2 => kinds().prop_map(Step::Detach),
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    let at = any::<u8>;
    prop_oneof![
        6 => (kinds(), manners()).prop_map(|(kind, manner)| Op::Submit(kind, manner)),
        6 => (at(), kinds(), manners()).prop_map(|(at, kind, manner)| Op::Under(at, kind, manner)),
        2 => Just(Op::TryAdmit),
        2 => Just(Op::Admit),
        2 => at().prop_map(Op::PollAdmission),
        1 => at().prop_map(Op::DropAdmission),
        2 => (at(), manners()).prop_map(|(at, manner)| Op::Release(at, manner)),
        1 => at().prop_map(Op::DropAttempt),
        8 => (at(), steps()).prop_map(|(at, step)| Op::Tell(at, step)),
        12 => at().prop_map(Op::Poll),
        3 => at().prop_map(Op::Call),
        1 => at().prop_map(Op::LoseTask),
        1 => at().prop_map(Op::LoseCall),
        3 => at().prop_map(Op::Watch),
        2 => at().prop_map(Op::Cancel),
        2 => at().prop_map(Op::Leave),
        3 => Just(Op::Supervise),
        1 => Just(Op::Wait),
        1 => any::<bool>().prop_map(Op::Unbind),
        // as a rule not before much has happened
        1 => prop_oneof![4 => Just(Op::Wait), 1 => Just(Op::Close)],
        1 => Just(Op::Exit),
    ]
}

proptest! {
    #![proptest_config(Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/proptest-regressions/pool_props.txt"
        )))),
        ..Config::default()
    })]

    /// DEV-3, DEV-4, DEV-15, DEV-16, DEV-17: whatever is done to a pool in whatever order, each accepted job has one
    /// terminal event, in order, and calls back once; the figures are what the events come to at each instant, with exact
    /// peaks; and at the end all permits, seats and workers are back.
    #[test]
    fn each_accepted_job_ends_once_and_all_that_it_had_comes_back(
        ops in prop::collection::vec(ops(), 1..150),
        by_exit: bool,
    ) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
            world.check();
        }
        world.finish(by_exit);
    }
}
