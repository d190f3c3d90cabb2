//! The driver's one lock, what is under it, and how a call begins.

use crate::code::Code;
use crate::context::Context;
use crate::device::Device;
use crate::engine::{Crew, Task};
use crate::event::Event;
use crate::faults::{Counts, Failure, plain_name};
use crate::memory::Block;
use crate::misuse::{Misuse, MisuseKind};
use crate::module::{Function, Module};
use crate::pool::Pool;
use crate::setup::Setup;
use crate::stream::Stream;
use crate::thread;
use crate::timeline::{Point, Timeline};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The one driver of the process.
pub(crate) struct Driver {
    state: Mutex<State>,
    /// There is work.
    pub(crate) work: Condvar,
    /// Something has passed, failed or ended.
    passed: Condvar,
}

static DRIVER: Driver =
    Driver { state: Mutex::new(State::new()), work: Condvar::new(), passed: Condvar::new() };

pub(crate) fn driver() -> &'static Driver {
    &DRIVER
}

impl Driver {
    /// The lock, without a call.
    pub(crate) fn peek(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits for something to pass.
    pub(crate) fn tell(&self) {
        self.passed.notify_all();
    }

    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.passed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Nobody has initialised the driver.
    Fresh,
    Up,
    /// The process is on its way out.
    Down,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) life: Life,
    /// Of the simulation; the next one starts with everything new.
    pub(crate) session: u64,
    /// `None` until a simulation starts or the driver is initialised: then it comes from the environment.
    pub(crate) setup: Option<Setup>,
    pub(crate) devices: Vec<Device>,
    /// Those that are gone stay, so that their handles can be told from wrong ones.
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    /// The events whose latest records have these marks.
    pub(crate) marks: BTreeMap<u64, u64>,
    /// By address.
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) modules: BTreeMap<u64, Module>,
    pub(crate) functions: BTreeMap<u64, Function>,
    pub(crate) timeline: Timeline<Task>,
    pub(crate) counts: Counts,
    /// Since the session began.
    pub(crate) streams_created: u64,
    pub(crate) host_functions: u64,
    pub(crate) misuses: Vec<Misuse>,
    pub(crate) crew: Crew,
    /// Of the last handle. Handles are never used again, also not by the next session.
    numbers: u64,
}

impl State {
    const fn new() -> Self {
        State {
            life: Life::Fresh,
            session: 0,
            setup: None,
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            marks: BTreeMap::new(),
            blocks: BTreeMap::new(),
            pools: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            timeline: Timeline::new(),
            counts: Counts(BTreeMap::new()),
            streams_created: 0,
            host_functions: 0,
            misuses: Vec::new(),
            crew: Crew::new(),
            numbers: 0,
        }
    }

    /// Everything new, but for the threads and the numbers. What was there is handed out.
    pub(crate) fn start_over(&mut self, setup: Setup) -> State {
        let fresh = State {
            session: self.session + 1,
            setup: Some(setup),
            crew: std::mem::replace(&mut self.crew, Crew::new()),
            numbers: self.numbers,
            ..State::new()
        };
        std::mem::replace(self, fresh)
    }

    /// Of something new. Not null, and none of the handles that mean something to the driver.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 16;
        0x1000 + self.numbers
    }

    /// The setup; before there is one, the usual one.
    pub(crate) fn setup(&mut self) -> &mut Setup {
        self.setup.get_or_insert_default()
    }

    pub(crate) fn device(&self, device: i32) -> Result<usize, Code> {
        let index = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
        let device = self.devices.get(index).ok_or(Code::INVALID_DEVICE)?;
        device.lost.map_or(Ok(index), Err)
    }

    /// Notes a misuse and says what its call is told.
    pub(crate) fn misuse(
        &mut self,
        call: &'static str,
        kind: MisuseKind,
        code: Code,
        detail: String,
    ) -> Code {
        let misuse = Misuse { kind, call, code, detail };
        eprintln!("simulated CUDA driver: misuse: {misuse}");
        if self.setup().abort_on_misuse {
            std::process::abort();
        }
        self.misuses.push(misuse);
        code
    }
}

/// A call that may go on. It has the lock.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// `None` only while it waits.
    state: Option<MutexGuard<'static, State>>,
    /// The plan wants the context to fail with this code when it comes to the call's work.
    pub(crate) doomed: Option<Code>,
}

impl Deref for Call {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("a call that waits is not used")
    }
}

impl DerefMut for Call {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("a call that waits is not used")
    }
}

/// A call of the driver, from its begin to its answer.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&mut Call) -> Result<(), Code>) -> Code {
    let done = Call::begin(name).and_then(|mut it| {
        body(&mut it)?;
        it.end()
    });
    done.err().unwrap_or(Code::SUCCESS)
}

impl Call {
    fn begin(name: &'static str) -> Result<Call, Code> {
        let mut state = DRIVER.peek();
        if thread::is_in_host_function() {
            let detail = "a host function may not call the driver".to_owned();
            let code = Code::NOT_PERMITTED;
            return Err(state.misuse(name, MisuseKind::InHostFunction, code, detail));
        }
        match state.life {
            Life::Fresh if name != "cuInit" => return Err(Code::NOT_INITIALIZED),
            Life::Down => return Err(Code::DEINITIALIZED),
            Life::Fresh | Life::Up => {}
        }
        if state.setup.is_none() {
            state.setup = Some(crate::sim::setup_of_environment());
        }
        let plain = plain_name(name);
        let count = state.counts.next(plain);
        let failure = state.setup().plan.verdict(plain, count);
        let mut call = Call { name, state: Some(state), doomed: None };
        match failure {
            None => Ok(call),
            Some(Failure::StickyLater(code)) => {
                call.doomed = Some(code);
                Ok(call)
            }
            Some(Failure::Plain(code)) => Err(code),
            Some(Failure::Sticky(code)) => {
                call.break_current(code);
                Err(code)
            }
            Some(Failure::Lost(code)) => {
                let context = thread::current().and_then(|it| call.contexts.get(&it));
                let device = context.map_or(0, |it| it.device);
                call.lose(device, code);
                Err(code)
            }
        }
    }

    /// What was doomed and had no work fails now.
    fn end(mut self) -> Result<(), Code> {
        match self.doomed.take() {
            None => Ok(()),
            Some(code) => {
                self.break_current(code);
                Err(code)
            }
        }
    }

    fn break_current(&mut self, code: Code) {
        if let Some(context) = thread::current() {
            self.break_context(context, code);
        }
    }

    /// Notes a misuse in this call.
    pub(crate) fn found(&mut self, kind: MisuseKind, code: Code, detail: String) -> Code {
        let name = self.name;
        self.misuse(name, kind, code, detail)
    }

    /// Waits until something has passed, failed or ended.
    pub(crate) fn wait(&mut self) -> Result<(), Code> {
        let session = self.session;
        self.state = self.state.take().map(|state| DRIVER.wait(state));
        if self.session != session || self.life == Life::Down {
            return Err(Code::DEINITIALIZED);
        }
        Ok(())
    }

    /// Waits until the point has passed, and has seen it then.
    pub(crate) fn wait_for(&mut self, context: u64, point: &Point) -> Result<(), Code> {
        loop {
            self.check_context(context)?;
            if self.timeline.has_passed(point) {
                self.see(point);
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// The host has seen that the point has passed.
    pub(crate) fn see(&mut self, point: &Point) {
        self.timeline.see(point);
        self.trim_pools();
    }
}
