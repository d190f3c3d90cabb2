//! The device's one lock, and the engine threads.
//!
//! Whoever changes something locks, changes the [timeline](super::timeline) and the tables of memory, unlocks, and only
//! then drops or calls what is the user's.

use super::binding::{self, Binding};
use super::faults::{Failure, FaultPlan};
use super::order::{Touch, Uses};
use super::stats::{HostHealth, HostStats, MemoryUse};
use super::timeline::{Point, Timeline};
use crate::backend::{Cause, DeviceInfo, DriverError, ErrorClass, Fault, Operation, Signal};
use crate::sync::plain::{Condvar, Mutex};
use std::any::Any;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a stream is given to do.
pub(super) struct Work {
    pub(super) operation: Operation,
    /// The plan wants the device to fail here.
    pub(super) doomed: bool,
    pub(super) job: Job,
}

pub(super) enum Job {
    /// Errors are faults, and so are panics, in which the name is mentioned.
    Run(Cow<'static, str>, Box<dyn FnOnce() -> Result<(), String> + Send>),
    /// `None` for one that is never raised.
    Notify(Option<Signal>),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.operation).finish()
    }
}

/// What all handles of a device share. It stays for as long as any of them; the threads do not: see [`Owner`].
pub(super) struct Core {
    /// In this process; ordinals may be given twice.
    pub(super) id: u64,
    pub(super) info: DeviceInfo,
    check_order: bool,
    state: Mutex<State>,
    /// There is work, or the end.
    work: Condvar,
    /// A stream has passed something, the device has failed, or an engine has ended.
    passed: Condvar,
    /// To be joined by whoever waits for the end.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(super) struct State {
    /// Somebody has the device.
    open: bool,
    engines: usize,
    idle: usize,
    wakes: u64,
    running: usize,
    waiting: usize,
    pub(super) generation: u64,
    health: Health,
    pub(super) timeline: Timeline<Work>,
    pub(super) device: MemoryUse,
    pub(super) pinned: MemoryUse,
    /// Memory that is in use, by number.
    blocks: BTreeMap<u64, Listed>,
    /// Of the last block. Numbers are never used again.
    numbers: u64,
    plan: FaultPlan,
    stalled: BTreeSet<u64>,
    calls: BTreeMap<Operation, u64>,
}

enum Health {
    Well,
    Faulted(Arc<Fault>),
    Lost,
}

/// Memory that is in use.
struct Listed {
    bytes: u64,
    pinned: bool,
    /// A free was submitted.
    freed: bool,
    uses: Uses,
}

/// A call that may go on.
pub(super) struct Entered<'a> {
    pub(super) state: MutexGuard<'a, State>,
    pub(super) doomed: bool,
    /// Which call of its operation it is.
    call: u64,
}

/// The one that is gone when nobody has the device any more.
pub(super) struct Owner {
    pub(super) core: Arc<Core>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // not joined: this may be one of the threads
        self.core.state.lock().open = false;
        self.core.work.notify_all();
    }
}

/// Drops what is the user's where a panic must not spread.
fn drop_quietly<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // dropping this one could panic again
        std::mem::forget(payload);
    }
}

fn drop_each(works: Vec<Work>) {
    works.into_iter().for_each(drop_quietly);
}

/// Runs what is the user's. Its captures are gone when this returns.
fn run_contained(name: &str, run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let message = message(&*payload);
        drop_quietly(payload);
        Err(format!("{name:?} panicked: {message}"))
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

impl Core {
    pub(super) fn new(
        id: u64,
        info: DeviceInfo,
        limits: (u64, u64),
        check_order: bool,
        mut plan: FaultPlan,
    ) -> Self {
        let limit = |limit| MemoryUse { limit, ..MemoryUse::default() };
        let state = State {
            open: true,
            engines: 0,
            idle: 0,
            wakes: 0,
            running: 0,
            waiting: 0,
            generation: 0,
            health: Health::Well,
            timeline: Timeline::from_number(1),
            device: limit(limits.0),
            pinned: limit(limits.1),
            blocks: BTreeMap::new(),
            numbers: 0,
            stalled: std::mem::take(&mut plan.stalled).into_iter().collect(),
            plan,
            calls: BTreeMap::new(),
        };
        Core {
            id,
            info,
            check_order,
            state: Mutex::new(state),
            work: Condvar::new(),
            passed: Condvar::new(),
            threads: Mutex::default(),
        }
    }

    pub(super) fn start_engine(self: &Arc<Self>, number: usize) -> std::io::Result<()> {
        // the standard library panics at a thread's name with a NUL
        let name = format!("{}-engine-{number}", self.info.name).replace('\0', "\u{fffd}");
        self.state.lock().engines += 1;
        let core = Arc::clone(self);
        match std::thread::Builder::new().name(name).spawn(move || core.run_engine()) {
            Ok(thread) => {
                self.threads.lock().push(thread);
                Ok(())
            }
            Err(error) => {
                self.state.lock().engines -= 1;
                Err(error)
            }
        }
    }

    pub(super) fn error(&self, operation: Operation, cause: Cause) -> DriverError {
        DriverError::new(self.info.ordinal, operation, cause)
    }

    /// The lock, without a call of the driver.
    pub(super) fn peek(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Begins a call: is the thread bound, the device well, and what does the plan say?
    pub(super) fn enter(&self, operation: Operation) -> Result<Entered<'_>, DriverError> {
        let binding = self.binding().map_err(|cause| self.error(operation, cause))?;
        let state = self.state.lock();
        if binding.generation != state.generation {
            return Err(self.error(operation, Cause::BeforeReset));
        }
        self.admit(state, operation)
    }

    fn binding(&self) -> Result<Binding, Cause> {
        if binding::is_driver() {
            return Err(Cause::DriverThread);
        }
        match binding::bound() {
            Some(binding) if binding.device == self.id => Ok(binding),
            other => Err(Cause::NotBound { bound: other.map(|binding| binding.ordinal) }),
        }
    }

    /// The part of [`enter`](Self::enter) that the calls of unbound threads have too.
    pub(super) fn admit<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        operation: Operation,
    ) -> Result<Entered<'a>, DriverError> {
        // a reset is what a failed device is for
        if operation != Operation::Reset {
            state.health().map_err(|cause| self.error(operation, cause))?;
        }
        let call = state.calls.entry(operation).or_default();
        *call += 1;
        let call = *call;
        let cause = match state.plan.verdict(operation, call) {
            None => return Ok(Entered { state, doomed: false, call }),
            Some(Failure::StickyLater) if gives_work(operation) => {
                return Ok(Entered { state, doomed: true, call });
            }
            Some(Failure::Request) => Cause::Injected { class: ErrorClass::Request },
            Some(Failure::OutOfMemory) => Cause::Injected { class: ErrorClass::OutOfMemory },
            Some(Failure::Sticky | Failure::StickyLater) => {
                let message = INJECTED.to_owned();
                self.fail(state, Fault { operation: Some(operation), stream: None, message })
            }
            Some(Failure::Lost) => {
                self.lose(state);
                Cause::Lost
            }
        };
        Err(self.error(operation, cause))
    }

    /// The device fails. Says what calls get from now on: of two faults, the first.
    pub(super) fn fail(&self, mut state: MutexGuard<'_, State>, fault: Fault) -> Cause {
        if matches!(state.health, Health::Well) {
            state.health = Health::Faulted(Arc::new(fault));
        }
        let cause = state.health().err().unwrap_or(Cause::Lost);
        self.stop_all(state);
        cause
    }

    pub(super) fn lose(&self, mut state: MutexGuard<'_, State>) {
        state.health = Health::Lost;
        self.stop_all(state);
    }

    /// The process exits: the device is gone, and its threads end once what they do is done.
    pub(super) fn stop_for_good(&self) {
        self.lose(self.peek());
        self.state.lock().open = false;
        self.work.notify_all();
    }

    /// Nothing that has not begun will be done.
    fn stop_all(&self, mut state: MutexGuard<'_, State>) {
        let left = state.timeline.clear();
        let despite = state.plan.despite;
        self.passed.notify_all();
        drop(state);
        if despite {
            for work in &left {
                if let Job::Notify(Some(signal)) = &work.job {
                    signal.raise();
                }
            }
        }
        drop_each(left);
    }

    pub(super) fn reset(&self) -> Result<(), DriverError> {
        let operation = Operation::Reset;
        if binding::is_driver() {
            return Err(self.error(operation, Cause::DriverThread));
        }
        let mut state = self.admit(self.state.lock(), operation)?.state;
        if matches!(state.health, Health::Lost) {
            return Err(self.error(operation, Cause::Lost));
        }
        state.health = Health::Well;
        state.generation += 1;
        let fresh = Timeline::from_number(state.timeline.next_number());
        let mut old = std::mem::replace(&mut state.timeline, fresh);
        let blocks = std::mem::take(&mut state.blocks);
        state.device = MemoryUse { in_use: 0, allocations: 0, ..state.device };
        state.pinned = MemoryUse { in_use: 0, allocations: 0, ..state.pinned };
        // whoever waits for what is gone is told so
        self.passed.notify_all();
        drop(state);
        drop(blocks);
        drop_each(old.clear());
        Ok(())
    }

    pub(super) fn bind(&self) -> Result<(), DriverError> {
        let operation = Operation::Bind;
        if binding::is_driver() {
            return Err(self.error(operation, Cause::DriverThread));
        }
        let generation = self.admit(self.state.lock(), operation)?.state.generation;
        binding::bind(Some(self.binding_of(generation)));
        Ok(())
    }

    pub(super) fn binding_of(&self, generation: u64) -> Binding {
        Binding { device: self.id, ordinal: self.info.ordinal, generation }
    }

    /// Gives a stream work that uses these blocks. Returns when it is queued.
    ///
    /// The job may own what is the user's. It is taken once nothing can fail; until then it is the caller's, who drops it
    /// after the unlock.
    pub(super) fn submit(
        &self,
        mut entered: Entered<'_>,
        operation: Operation,
        stream: u64,
        uses: &[(u64, Touch)],
        job: &mut Option<Job>,
    ) -> Result<(), DriverError> {
        let state = &mut *entered.state;
        let fault = |cause| self.error(operation, cause);
        for &(number, touch) in uses {
            let listed = state.blocks.get(&number).filter(|listed| !listed.freed);
            let listed = listed.ok_or_else(|| fault(Cause::Freed { memory: number }))?;
            let timeline = &mut state.timeline;
            let before = |other, position| timeline.is_before(stream, other, position);
            if self.check_order
                && let Some(stream) = listed.uses.conflict(touch, before)
            {
                return Err(fault(Cause::Unordered { memory: number, stream }));
            }
        }
        let Some(mut job) = job.take() else { return Ok(()) };
        if let Job::Notify(signal) = &mut job
            && state.plan.is_silent(entered.call)
        {
            // the caller has lent it, so this is not its last owner
            *signal = None;
        }
        let work = Work { operation, doomed: entered.doomed, job };
        let position = state.timeline.submit(stream, work);
        for &(number, touch) in uses {
            if let Some(listed) = state.blocks.get_mut(&number) {
                let seen = |stream, position| state.timeline.is_seen(stream, position);
                listed.uses.add(stream, position, touch, seen);
                listed.freed |= operation == Operation::Free;
            }
        }
        self.call_engines(state);
        Ok(())
    }

    /// The block is not in use any more. Those of before a reset are not listed, and counted already.
    pub(super) fn release(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(listed) = state.blocks.remove(&number) {
            let memory = if listed.pinned { &mut state.pinned } else { &mut state.device };
            memory.in_use -= listed.bytes;
            memory.allocations -= 1;
        }
    }

    /// Blocks the calling thread until the point has passed or the device has failed.
    pub(super) fn wait_for(
        &self,
        mut state: MutexGuard<'_, State>,
        operation: Operation,
        point: &Point,
    ) -> Result<(), DriverError> {
        let generation = state.generation;
        loop {
            if state.generation != generation {
                return Err(self.error(operation, Cause::BeforeReset));
            }
            state.health().map_err(|cause| self.error(operation, cause))?;
            if state.timeline.has_passed(point) {
                state.timeline.see(point);
                return Ok(());
            }
            state.waiting += 1;
            state = self.passed.wait(state);
            state.waiting -= 1;
        }
    }

    /// As many engines as there is work for.
    pub(super) fn call_engines(&self, state: &State) {
        for _ in 0..state.timeline.ready().min(state.idle) {
            self.work.notify_one();
        }
    }

    pub(super) fn set_stalled(&self, stream: u64, stalled: bool) {
        let mut state = self.state.lock();
        if stalled {
            state.stalled.insert(stream);
        } else {
            state.stalled.remove(&stream);
        }
        state.timeline.stall(stream, stalled);
        self.told(&state);
        self.call_engines(&state);
    }

    pub(super) fn close_stream(&self, generation: u64, stream: u64) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.timeline.close(stream);
        }
    }

    /// Something may have passed.
    fn told(&self, state: &State) {
        if state.waiting > 0 {
            self.passed.notify_all();
        }
    }

    pub(super) fn fail_next(&self, operation: Operation, failure: Failure) {
        let mut state = self.state.lock();
        let next = state.calls.get(&operation).copied().unwrap_or(0) + 1;
        state.plan.fail_first(operation, next, failure);
    }

    fn run_engine(&self) {
        binding::become_driver();
        let mut state = self.state.lock();
        loop {
            if let Some((stream, work)) = state.timeline.take() {
                state = self.run_work(state, stream, work);
            } else if !state.open && state.running == 0 {
                break;
            } else {
                state.idle += 1;
                state = self.work.wait(state);
                state.idle -= 1;
                state.wakes += 1;
            }
        }
        state.engines -= 1;
        let last = state.engines == 0;
        // what is stalled for good, and what waits for it
        let left = if last { state.timeline.clear() } else { Vec::new() };
        drop(state);
        drop_each(left);
        // the others may be waiting for what this one was doing
        self.work.notify_all();
        self.passed.notify_all();
    }

    /// Does a piece of work, outside of the lock.
    fn run_work<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        stream: u64,
        work: Work,
    ) -> MutexGuard<'a, State> {
        let Work { operation, doomed, job } = work;
        let generation = state.generation;
        state.running += 1;
        drop(state);
        // what the work captured is gone when it has passed: whoever sees it pass can have the memory
        let (outcome, signal) = match job {
            job if doomed => {
                drop_quietly(job);
                (Err(INJECTED.to_owned()), None)
            }
            Job::Notify(signal) => (Ok(()), signal),
            Job::Run(name, run) => (run_contained(&name, run), None),
        };
        let mut state = self.state.lock();
        state.running -= 1;
        if state.generation == generation {
            match outcome {
                Ok(()) => state.timeline.finish(stream),
                Err(message) => {
                    state.timeline.give_up(stream);
                    let fault = Fault { operation: Some(operation), stream: Some(stream), message };
                    self.fail(state, fault);
                    state = self.state.lock();
                }
            }
        }
        self.told(&state);
        self.call_engines(&state);
        if state.running == 0 && !state.open {
            // this may have been what the others waited for
            self.work.notify_all();
        }
        // after the stream has passed it: whoever is rung finds what it asks for
        if let Some(signal) = signal {
            drop(state);
            signal.raise();
            state = self.state.lock();
        }
        state
    }

    pub(super) fn stats(&self) -> HostStats {
        let state = self.state.lock();
        HostStats {
            health: match &state.health {
                Health::Well => HostHealth::Well,
                Health::Faulted(fault) => HostHealth::Faulted(Fault::clone(fault)),
                Health::Lost => HostHealth::Lost,
            },
            resets: state.generation,
            memory: state.device,
            pinned: state.pinned,
            streams: state.timeline.streams(),
            queued: state.timeline.queued(),
            running: state.running,
            engines: state.engines,
            idle: state.idle,
            wakes: state.wakes,
            waiting: state.waiting,
            calls: state.calls.clone(),
        }
    }

    /// Waits until no engine thread is left, or the time is up. `false` on one of them.
    pub(super) fn wait_ended(&self, within: Duration) -> bool {
        if binding::is_driver() {
            return false;
        }
        // a time that no clock will show is never up
        let until = Instant::now().checked_add(within);
        let mut state = self.state.lock();
        while state.engines > 0 {
            state = match until {
                None => self.passed.wait(state),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.passed.wait_for(state, left).0
                }
            };
        }
        drop(state);
        // under the lock, so that all who ask wait for the join
        for thread in self.threads.lock().drain(..) {
            // it contains the panics of users
            let _ = thread.join();
        }
        true
    }
}

const INJECTED: &str = "injected by the fault plan";

/// Whether the operation gives a stream something that is done later.
fn gives_work(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Notify
            | Operation::Free
            | Operation::CopyToDevice
            | Operation::CopyToHost
            | Operation::CopyOnDevice
            | Operation::Fill
            | Operation::Launch
    )
}

impl State {
    fn health(&self) -> Result<(), Cause> {
        match &self.health {
            Health::Well => Ok(()),
            Health::Faulted(fault) => Err(Cause::Sticky(Arc::clone(fault))),
            Health::Lost => Err(Cause::Lost),
        }
    }

    /// Takes bytes for a new block, and says its number. Memory of the device begins to exist at a point of a stream;
    /// pinned memory has none, and exists at once.
    pub(super) fn list(&mut self, bytes: usize, stream: Option<u64>) -> Result<u64, Cause> {
        let pinned = stream.is_none();
        let memory = if pinned { &mut self.pinned } else { &mut self.device };
        let asked = bytes as u64;
        if asked == 0 {
            return Err(Cause::ZeroBytes);
        }
        // what could never fit is refused by the same comparison
        let sum = memory.in_use.checked_add(asked).filter(|sum| *sum <= memory.limit);
        let Some(in_use) = sum else {
            let MemoryUse { limit, in_use, .. } = *memory;
            return Err(Cause::OutOfMemory { asked, in_use, limit });
        };
        memory.in_use = in_use;
        memory.peak = memory.peak.max(in_use);
        memory.allocations += 1;
        self.numbers += 1;
        let mut uses = Uses::default();
        if let Some(stream) = stream {
            let position = self.timeline.mark(stream);
            let whole = Touch { start: 0, end: bytes, write: true };
            uses.add(stream, position, whole, |_, _| false);
        }
        let listed = Listed { bytes: asked, pinned, freed: false, uses };
        self.blocks.insert(self.numbers, listed);
        Ok(self.numbers)
    }

    pub(super) fn open_stream(&mut self, priority: i32) -> u64 {
        let stalled = self.stalled.contains(&self.timeline.next_number());
        self.timeline.open(priority, stalled)
    }
}
