//! The threads that do what streams are given.

use crate::bytes::Place;
use crate::code::Code;
use crate::kernel::Launch;
use crate::memory::Rows;
use crate::raw::HostCall;
use crate::state::{State, driver};
use crate::thread;
use std::collections::VecDeque;
use std::sync::PoisonError;

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) context: u64,
    /// The plan wants the context to fail with this code here.
    pub(crate) doomed: Option<Code>,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Copy {
        to: Place,
        to_rows: Rows,
        from: Place,
        from_rows: Rows,
    },
    Fill {
        to: Place,
        rows: Rows,
        pattern: Vec<u8>,
    },
    Launch(Launch),
    Host(HostCall),
    /// The block at this address is gone from here on.
    Free(u64),
    Nothing,
}

/// A host function of a context that has failed, and what it is told.
pub(crate) type Orphan = (HostCall, Code);

/// The threads.
#[derive(Debug)]
pub(crate) struct Crew {
    threads: usize,
    idle: usize,
    pub(crate) orphans: VecDeque<Orphan>,
}

impl Crew {
    pub(crate) const fn new() -> Self {
        Crew { threads: 0, idle: 0, orphans: VecDeque::new() }
    }
}

impl Task {
    /// What is still to be called when its context has failed.
    pub(crate) fn orphan(self, code: Code, despite: bool) -> Option<Orphan> {
        match self.work {
            // the older kind is always told how its stream fares
            Work::Host(call @ HostCall::OfStream(..)) => Some((call, code)),
            Work::Host(call) if despite => Some((call, Code::SUCCESS)),
            _ => None,
        }
    }
}

impl State {
    /// As many threads as there is work for.
    pub(crate) fn call_engines(&mut self) {
        let most = self.setup().engines;
        let devices = self.devices.iter().enumerate();
        let ready =
            devices.map(|(at, it)| self.timeline.ready(at).min(most - it.running.min(most)));
        let ready = ready.sum::<usize>() + self.crew.orphans.len();
        for _ in 0..ready.min(self.crew.idle) {
            driver().work.notify_one();
        }
        for _ in self.crew.idle..ready {
            let name = format!("cuda-engine-{}", self.crew.threads);
            // where the system has no more threads, those there are do it one by one
            let started = std::thread::Builder::new().name(name).spawn(run_engine);
            self.crew.threads += usize::from(started.is_ok());
            self.crew.idle += usize::from(started.is_ok());
        }
    }

    fn take_task(&mut self) -> Option<(usize, u64, Task)> {
        let most = self.setup().engines;
        for device in 0..self.devices.len() {
            if self.devices.get(device).is_some_and(|it| it.running < most)
                && let Some((stream, task)) = self.timeline.take(device)
            {
                return Some((device, stream, task));
            }
        }
        None
    }

    fn add_running(&mut self, device: usize, context: u64, change: isize) {
        if let Some(it) = self.devices.get_mut(device) {
            it.running = it.running.saturating_add_signed(change);
        }
        if let Some(it) = self.contexts.get_mut(&context) {
            it.running = it.running.saturating_add_signed(change);
        }
    }
}

fn run_engine() {
    let mut state = driver().peek();
    // until now, it was one that can be counted on
    state.crew.idle -= 1;
    loop {
        if let Some((call, code)) = state.crew.orphans.pop_front() {
            drop(state);
            thread::in_host_function(|| call.call(code));
            state = driver().peek();
        } else if let Some((device, stream, task)) = state.take_task() {
            let session = state.session;
            state.add_running(device, task.context, 1);
            drop(state);
            let context = task.context;
            let outcome = task.run();
            state = driver().peek();
            if state.session != session {
                continue;
            }
            state.add_running(device, context, -1);
            state.timeline.finish(stream);
            if let Err(code) = outcome {
                state.break_context(context, code);
            }
            state.note_marks();
            state.call_engines();
            driver().tell();
        } else {
            state.crew.idle += 1;
            state = driver().work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.crew.idle -= 1;
        }
    }
}

impl Task {
    /// Outside of the lock.
    fn run(self) -> Result<(), Code> {
        if let Some(code) = self.doomed {
            return Err(code);
        }
        match self.work {
            Work::Copy { to, to_rows, from, from_rows } => copy(&to, to_rows, &from, from_rows),
            Work::Fill { to, rows, pattern } => {
                let row = pattern.repeat(rows.bytes / pattern.len());
                (0..rows.rows).try_for_each(|at| to.write(at * rows.pitch, &row))
            }
            Work::Launch(launch) => launch.run(),
            Work::Host(call) => {
                thread::in_host_function(|| call.call(Code::SUCCESS));
                Ok(())
            }
            Work::Free(address) => {
                driver().peek().forget_block(address);
                Ok(())
            }
            Work::Nothing => Ok(()),
        }
    }
}

fn copy(to: &Place, to_rows: Rows, from: &Place, from_rows: Rows) -> Result<(), Code> {
    (0..to_rows.rows).try_for_each(|at| {
        let row = from.read(at * from_rows.pitch, from_rows.bytes)?;
        to.write(at * to_rows.pitch, &row)
    })
}
