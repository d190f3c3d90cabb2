//! The thread that owns a device's runtime: it builds it, spawns what others may not, and drops it.

use super::core::{Core, Spawn};
use super::error::BuildError;
use super::shutdown::{Ended, PhaseError};
use super::worker::{self, Role};
use crate::sync::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tollgate_blocking::Executor;

/// A runtime, as whoever built it hands it out.
pub(crate) struct Machine {
    pub(crate) spawn: Box<dyn Spawn>,
    /// The threads for blocking jobs.
    pub(crate) threads: Executor,
    /// Waits until everything that it ran has ended, and drops it. Called on the thread that built it.
    pub(crate) end: Box<dyn FnOnce()>,
}

/// The thread, to be joined once.
#[derive(Debug)]
pub(crate) struct Supervisor {
    join: Mutex<Join>,
}

#[derive(Debug)]
enum Join {
    Running(JoinHandle<()>),
    Joined(Result<(), Arc<str>>),
}

/// What of a machine is needed elsewhere than on its thread.
pub(crate) struct Started {
    pub(crate) spawn: Box<dyn Spawn>,
    pub(crate) threads: Executor,
    /// The core goes this way; dropping it ends the thread.
    pub(crate) core: mpsc::Sender<Arc<Core>>,
    pub(crate) supervisor: Arc<Supervisor>,
}

/// Starts a thread that builds a machine, and waits until it has. It then waits for the core.
pub(crate) fn start(
    pool: u64,
    name: String,
    build: impl FnOnce() -> Result<Machine, BuildError> + Send + 'static,
) -> Result<Started, BuildError> {
    let (built, wait) = mpsc::sync_channel(1);
    let (core, cores) = mpsc::channel();
    let main = move || {
        worker::become_one(pool, Role::Supervisor);
        let machine = catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|payload| {
            Err(BuildError::RuntimePanicked { message: message(&*payload) })
        });
        match machine {
            Err(error) => {
                let _ = built.send(Err(error));
            }
            Ok(Machine { spawn, threads, end }) => {
                let _ = built.send(Ok((spawn, threads)));
                run(&cores, end);
            }
        }
    };
    // the standard library panics at a thread's name with a NUL
    let name = name.replace('\0', "\u{fffd}");
    let thread = std::thread::Builder::new().name(name).spawn(main).map_err(BuildError::Runtime)?;
    let supervisor = Arc::new(Supervisor { join: Mutex::new(Join::Running(thread)) });
    match wait.recv() {
        Ok(Ok((spawn, threads))) => Ok(Started { spawn, threads, core, supervisor }),
        Ok(Err(error)) => {
            let _ = supervisor.join();
            Err(error)
        }
        // it says something before it ends, whatever happens
        Err(_) => Err(BuildError::RuntimePanicked { message: "nothing was said".into() }),
    }
}

fn run(cores: &mpsc::Receiver<Arc<Core>>, end: Box<dyn FnOnce()>) {
    match cores.recv() {
        Ok(core) => supervise(&core, end),
        // there is to be no pool
        Err(_) => end(),
    }
}

/// What the thread does once there is a core.
pub(crate) fn supervise(core: &Core, end: impl FnOnce()) {
    loop {
        let (errands, exit) = core.next_errands();
        errands.into_iter().for_each(|task| core.spawn(task));
        if exit {
            break;
        }
    }
    core.abandon();
    core.ended(match catch_unwind(AssertUnwindSafe(end)) {
        Ok(()) => Ended::Cleanly,
        Err(payload) => Ended::Panicked(message(&*payload)),
    });
}

impl Supervisor {
    /// Joins the thread, which is about to end: its runtime is gone. What it says is the same each time.
    pub(crate) fn join(&self) -> Result<(), PhaseError> {
        let mut join = self.join.lock();
        if let Join::Running(thread) = &*join {
            if thread.thread().id() == std::thread::current().id() {
                let phase = super::shutdown::Phase::Supervisor;
                return Err(PhaseError::OwnThread { phase });
            }
            let running = std::mem::replace(&mut *join, Join::Joined(Ok(())));
            if let Join::Running(thread) = running
                && let Err(payload) = thread.join()
            {
                *join = Join::Joined(Err(message(&*payload)));
            }
        }
        match &*join {
            Join::Joined(Err(message)) => {
                Err(PhaseError::SupervisorPanicked { message: Arc::clone(message) })
            }
            Join::Joined(Ok(())) | Join::Running(_) => Ok(()),
        }
    }
}

/// What a panic said, if it was text.
pub(crate) fn message(payload: &(dyn Any + Send)) -> Arc<str> {
    let text = payload.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("with a value that is not text").into()
}
