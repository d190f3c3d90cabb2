//! The thread that owns a device's runtime: it builds it, spawns what others may not, and drops it.

use super::core::{Core, Spawn};
use super::error::BuildError;
use super::shutdown::{Ended, PhaseError};
use super::worker::{self, Role};
use crate::sync::{Builder, JoinHandle, Mutex};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
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
    /// Whose supervisor it is.
    pool: u64,
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
    thread: Builder,
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
    let thread = thread.spawn(main).map_err(BuildError::Runtime)?;
    let supervisor = Arc::new(Supervisor::new(pool, thread));
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
    pub(crate) fn new(pool: u64, thread: JoinHandle<()>) -> Self {
        Supervisor { pool, join: Mutex::new(Join::Running(thread)) }
    }

    /// Joins the thread, which is about to end: its runtime is gone. What it says is the same each time.
    pub(crate) fn join(&self) -> Result<(), PhaseError> {
        // before the lock, under which another thread may be waiting for this one. Not by the thread's id, which can't be
        // asked for while the process exits
        if worker::role(self.pool) == Some(Role::Supervisor) {
            let phase = super::shutdown::Phase::Supervisor;
            return Err(PhaseError::OwnThread { phase });
        }
        let mut join = self.join.lock();
        if let Join::Running(_) = &*join {
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

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::super::core::{Bind, Parts, PoolId, Task};
    use super::super::profile::DeviceProfile;
    use super::super::shutdown::{DeviceShutdown, Phase, PhaseWait};
    use super::super::tracker::Tracker;
    use super::*;
    use crate::backend::{Backend, Bell, DriverError};
    use crate::host::HostDevice;
    use std::time::Duration;
    use tollgate_admission::{Closed, Deadline, ManualTime, ThreadTimer, TimeSource};

    struct Nowhere;

    impl Spawn for Nowhere {
        fn spawn(&self, task: Task) {
            drop(task);
        }
    }

    impl Bind for Nowhere {
        fn bind(&self) -> Result<(), DriverError> {
            Ok(())
        }
    }

    fn core(time: Arc<dyn TimeSource>) -> Arc<Core> {
        let device = HostDevice::builder().build().unwrap().info().clone();
        let capacities = DeviceProfile::new(1, 2).resolve(&device).unwrap();
        Core::new(Parts {
            id: PoolId::next(),
            device,
            capacities,
            time,
            spawn: Box::new(Nowhere),
            bind: Box::new(Nowhere),
            tracker: Tracker::new(),
            events: 1,
            bell: Bell::new(),
        })
        .unwrap()
    }

    fn supervisor(main: impl FnOnce() + Send + 'static) -> Arc<Supervisor> {
        // of no pool: a test may join it from anywhere
        Arc::new(Supervisor::new(0, std::thread::spawn(main)))
    }

    fn wait(core: &Arc<Core>, of: &Arc<Supervisor>, phase: Phase) -> Result<(), PhaseError> {
        let patience = Deadline::after(Duration::from_secs(20));
        PhaseWait::new(Arc::clone(core), Arc::clone(of), phase, patience).block()
    }

    /// DEV-17
    #[test]
    fn a_runtime_that_panics_as_it_ends_is_a_failure_that_stays_and_hides_behind_no_deadline() {
        let time = ManualTime::new();
        let core = core(Arc::new(time.clone()));
        let (go, gone) = mpsc::channel::<()>();
        let supervisor = supervisor({
            let core = Arc::clone(&core);
            move || {
                supervise(&core, move || {
                    let _ = gone.recv();
                    panic!("teardown");
                });
            }
        });
        let deadline = Deadline::at(time.now() + Duration::from_secs(1));
        let mut shutdown =
            DeviceShutdown::new(Arc::clone(&core), Arc::clone(&supervisor), deadline);
        let polled = futures_lite::future::poll_once(&mut shutdown);
        assert!(futures_lite::future::block_on(polled).is_none());
        time.advance(Duration::from_secs(1));
        let late = shutdown.block();
        assert!(late.failure.as_ref().is_some_and(PhaseError::is_deadline), "{late}");
        drop(go);
        for _ in 0..2 {
            let error = wait(&core, &supervisor, Phase::Runtime).unwrap_err();
            let PhaseError::RuntimePanicked { message } = error else { panic!("{error}") };
            assert_eq!(&*message, "teardown");
            wait(&core, &supervisor, Phase::Drain).unwrap();
            let again = DeviceShutdown::new(
                Arc::clone(&core),
                Arc::clone(&supervisor),
                Deadline::at(time.now()),
            );
            let report = again.block();
            assert!(!report.complete && report.runtime_gone, "{report}");
            let failure = report.failure.expect("it failed for good");
            assert!(matches!(failure, PhaseError::RuntimePanicked { .. }), "{failure}");
        }
    }

    /// DEV-1
    #[test]
    fn a_thread_that_is_refused_is_an_error_and_nothing_is_built() {
        let (tell, told) = mpsc::channel::<()>();
        // more than there can be
        let thread = Builder::new().stack_size(1 << 60);
        let refused = start(0, thread, move || {
            let _ = tell.send(());
            unreachable!("there is no thread");
        });
        let Err(BuildError::Runtime(error)) = refused else { panic!("a thread was had") };
        let text = BuildError::Runtime(error).to_string();
        assert_eq!(text, "the device's runtime could not be built");
        assert!(told.recv().is_err());
    }

    /// DEV-17
    #[test]
    fn a_supervisor_that_panics_is_a_failure_each_time_it_is_joined() {
        let core = core(ThreadTimer::shared());
        let supervisor = supervisor({
            let core = Arc::clone(&core);
            move || {
                supervise(&core, || ());
                panic!("at the very end");
            }
        });
        assert!(!core.request_exit(), "it is not closed");
        core.close(Closed::Budget);
        assert!(core.request_exit());
        wait(&core, &supervisor, Phase::Runtime).unwrap();
        for _ in 0..3 {
            let error = wait(&core, &supervisor, Phase::Supervisor).unwrap_err();
            let PhaseError::SupervisorPanicked { message } = error else { panic!("{error}") };
            assert_eq!(&*message, "at the very end");
        }
    }
}
