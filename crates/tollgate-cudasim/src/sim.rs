//! The tester's side: a simulation with a setup, and what happened in it.

use crate::code::Code;
use crate::misuse::Misuse;
use crate::setup::Setup;
use crate::state::{Life, State, driver};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE: Mutex<()> = Mutex::new(());

/// The environment variable with the setup of a process that starts no simulation of its own.
pub const VARIABLE: &str = "TOLLGATE_CUDASIM";

/// A driver that nobody has used, for as long as this lives. There is one at a time in a process: who starts another one
/// waits.
///
/// # Panics
/// When it is dropped and a misuse was found that nobody has [asked for](Simulation::misuses).
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Simulation {
    _one: MutexGuard<'static, ()>,
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Contexts that live.
    pub contexts: usize,
    /// Streams with a handle.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Modules.
    pub modules: usize,
    /// Blocks of memory that were not freed, of any kind.
    pub blocks: usize,
    /// Bytes in use of all devices, what pools keep included.
    pub device_bytes: u64,
    /// Pieces of work that run.
    pub running: usize,
    /// How often each function was called, without the versions of their names.
    pub calls: BTreeMap<&'static str, u64>,
}

impl Simulation {
    /// Starts with a driver that is not initialised.
    pub fn start(setup: Setup) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        begin(setup);
        Simulation { _one: one }
    }

    /// The misuses that were found since they were asked for last.
    pub fn misuses(&self) -> Vec<Misuse> {
        std::mem::take(&mut driver().peek().misuses)
    }

    /// Also what this setup says will go wrong; its machine is not looked at. Calls are counted since the simulation started.
    pub fn also(&self, setup: Setup) {
        driver().peek().setup().plan.add(setup.plan);
    }

    /// The next call of the function fails with the code and has no effect.
    pub fn fail_next(&self, call: &str, code: Code) {
        self.also(Setup::new().fail(call, self.calls(call) + 1, code));
    }

    /// The function's calls until now.
    pub fn calls(&self, call: &str) -> u64 {
        driver().peek().counts.of(call)
    }

    /// The stream with this handle begins nothing more, or goes on.
    pub fn stall(&self, stream: usize, stalled: bool) {
        stall(stream, stalled);
    }

    /// Every stream goes on, and none that is created later stalls.
    pub fn release_streams(&self) {
        let mut state = driver().peek();
        state.setup().plan.stalled.clear();
        for stream in state.streams.keys().copied().collect::<Vec<_>>() {
            state.timeline.stall(stream, false);
        }
        state.note_marks();
        state.call_engines();
        drop(state);
        driver().tell();
    }

    /// The primary context of the device fails with the code.
    pub fn break_primary(&self, ordinal: usize, code: Code) {
        break_primary(ordinal, code);
    }

    /// The device is gone.
    pub fn lose_device(&self, ordinal: usize, code: Code) {
        driver().peek().lose(ordinal, code);
    }

    /// What there is now.
    pub fn stats(&self) -> Stats {
        let state = driver().peek();
        Stats {
            contexts: state.contexts.values().filter(|it| it.alive).count(),
            streams: state.streams.len(),
            events: state.events.len(),
            modules: state.modules.len(),
            blocks: state.blocks.values().filter(|it| !it.freed).count(),
            device_bytes: state.devices.iter().map(|it| it.used).sum(),
            running: state.devices.iter().map(|it| it.running).sum(),
            calls: state.counts.0.clone(),
        }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let misuses = begin(Setup::new());
        if !misuses.is_empty() && !std::thread::panicking() {
            let texts: Vec<String> = misuses.iter().map(ToString::to_string).collect();
            panic!("the driver was misused:\n{}", texts.join("\n"));
        }
    }
}

/// Starts over. Says which misuses were left.
fn begin(setup: Setup) -> Vec<Misuse> {
    let mut state = driver().peek();
    let mut old = state.start_over(setup);
    drop(state);
    // whoever waits for what is gone is told so
    driver().tell();
    std::mem::take(&mut old.misuses)
}

pub(crate) fn stall(stream: usize, stalled: bool) {
    let mut state = driver().peek();
    state.timeline.stall(stream as u64, stalled);
    state.note_marks();
    state.call_engines();
    drop(state);
    driver().tell();
}

pub(crate) fn break_primary(ordinal: usize, code: Code) {
    let mut state = driver().peek();
    if let Some(context) = state.devices.get(ordinal).map(|it| it.primary) {
        state.break_context(context, code);
    }
}

/// The setup of a process that has started no simulation.
///
/// # Panics
/// When the variable cannot be read: a test that runs without the faults that it asks for shows nothing.
pub(crate) fn setup_of_environment() -> Setup {
    let Some(text) = std::env::var_os(VARIABLE) else { return Setup::new() };
    let setup = text.to_str().map(Setup::parse);
    setup.unwrap_or_else(|| panic!("{VARIABLE} is no text")).unwrap_or_else(|error| {
        panic!("{VARIABLE}: {error}");
    })
}

/// A setup as a text, while the process runs: the machine while nobody has initialised the driver, else the faults.
pub(crate) fn set_by_text(text: &str) -> Result<(), Code> {
    let setup = Setup::parse(text).map_err(|error| {
        eprintln!("{error}");
        Code::INVALID_VALUE
    })?;
    let mut state = driver().peek();
    match state.life {
        Life::Fresh => state.setup = Some(setup),
        _ => state.setup().plan.add(setup.plan),
    }
    Ok(())
}

impl State {
    /// The driver's part of the exit of the process: what has not begun is never done, and every call from now on fails.
    pub(crate) fn end_for_good(&mut self) {
        self.life = Life::Down;
        let contexts: Vec<u64> = self.contexts.keys().copied().collect();
        for context in contexts {
            for stream in self.streams_of(context) {
                drop(self.timeline.abort(stream));
            }
        }
        self.crew.orphans.clear();
    }
}

/// Called by the system.
pub(crate) extern "C" fn deinitialize() {
    driver().peek().end_for_good();
    driver().tell();
}
