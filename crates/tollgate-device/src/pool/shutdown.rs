//! The end of a pool: its phases, one by one and composed, and the report about it.

use super::core::{Core, PoolId};
use super::supervisor::Supervisor;
use super::worker::{self, Role};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tollgate_admission::engine::{Engine, Tick};
use tollgate_admission::{Closed, Deadline, JobInfo, Sleep};

/// What there is to wait for at the end of a pool, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Phase {
    /// The pool is closed, and every job and attempt has ended.
    Drain,
    /// The device's runtime is gone, with all its threads.
    Runtime,
    /// The thread that owned it has ended, and was joined.
    Supervisor,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Drain => "drain",
            Phase::Runtime => "end of the runtime",
            Phase::Supervisor => "end of the supervisor",
        })
    }
}

/// How the runtime went.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    Cleanly,
    Panicked(Arc<str>),
}

/// Why a phase of the end is not over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum PhaseError {
    /// The deadline passed first. It can be waited for again.
    #[error(
        "the {phase} was not over by the deadline: {queued} jobs queued, {active} active, {ending} ending, \
         {attempts} attempts"
    )]
    Deadline {
        /// What was waited for.
        phase: Phase,
        /// Jobs that had not started.
        queued: u64,
        /// Jobs that ran.
        active: u64,
        /// Jobs whose callback ran.
        ending: u64,
        /// Attempts that were not over.
        attempts: u64,
    },
    /// The runtime is gone, and panicked when it went. It stays so.
    #[error("the device's runtime panicked when it ended: {message}")]
    RuntimePanicked {
        /// With what.
        message: Arc<str>,
    },
    /// The thread that owned the runtime has ended by a panic. It stays so.
    #[error("the thread that owned the device's runtime panicked: {message}")]
    SupervisorPanicked {
        /// With what.
        message: Arc<str>,
    },
    /// This is the thread that is waited for.
    #[error("the {phase} can't be waited for on the thread that brings it about")]
    OwnThread {
        /// What was to be waited for.
        phase: Phase,
    },
}

impl PhaseError {
    /// Whether it may yet turn out well: only the time was up.
    #[must_use]
    pub fn is_deadline(&self) -> bool {
        matches!(self, PhaseError::Deadline { .. })
    }
}

/// The future of [`DevicePool::wait`](super::DevicePool::wait): a phase of the end.
///
/// # Errors
///
/// [`PhaseError`].
///
/// # Cancel safety
///
/// Nothing is lost by dropping it: it can be asked for again, any number of times.
#[must_use = "futures do nothing unless awaited"]
pub struct PhaseWait {
    core: Arc<Core>,
    supervisor: Arc<Supervisor>,
    phase: Phase,
    sleep: Sleep,
    place: Option<usize>,
}

impl PhaseWait {
    pub(crate) fn new(
        core: Arc<Core>,
        supervisor: Arc<Supervisor>,
        phase: Phase,
        deadline: Deadline,
    ) -> Self {
        let sleep = Sleep::until(Arc::clone(&core.time), deadline);
        PhaseWait { core, supervisor, phase, sleep, place: None }
    }

    /// Blocks the calling thread. Not for async code, where it is to be awaited.
    ///
    /// # Errors
    ///
    /// As for the future.
    pub fn block(self) -> Result<(), PhaseError> {
        futures_lite::future::block_on(self)
    }

    fn over(&self) -> Result<(), PhaseError> {
        let runtime = || match self.core.look(|inner| inner.ended().cloned()) {
            Some(Ended::Panicked(message)) => Err(PhaseError::RuntimePanicked { message }),
            _ => Ok(()),
        };
        match self.phase {
            Phase::Drain => Ok(()),
            Phase::Runtime => runtime(),
            Phase::Supervisor => {
                let joined = self.supervisor.join();
                // what went wrong first went wrong for this one too
                runtime().and(joined)
            }
        }
    }
}

impl Future for PhaseWait {
    type Output = Result<(), PhaseError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let phase = this.phase;
        if this.core.poll_phase(phase, &mut this.place, cx.waker().clone()) {
            return Poll::Ready(this.over());
        }
        if worker::role(this.core.id.get()) == Some(Role::Supervisor) {
            // it is busy with the end of the runtime, which drops what waits here
            return Poll::Ready(Err(PhaseError::OwnThread { phase }));
        }
        std::task::ready!(Pin::new(&mut this.sleep).poll(cx));
        let counts = this.core.book(|book| *book.counts());
        Poll::Ready(Err(PhaseError::Deadline {
            phase,
            queued: counts.queued.now,
            active: counts.active.now,
            ending: counts.ending,
            attempts: counts.attempts.now,
        }))
    }
}

impl Drop for PhaseWait {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.core.forget_waiter(place);
        }
    }
}

impl fmt::Debug for PhaseWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhaseWait").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// How long the phases of an end took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DevicePhaseTimes {
    /// From the close until nothing was left, or it was no longer waited for.
    pub draining: Duration,
    /// From there until the supervisor was joined, or the deadline had passed.
    pub ending: Duration,
}

/// The future of [`DevicePool::shutdown`](super::DevicePool::shutdown).
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "a shutdown does nothing until it is awaited"]
pub struct DeviceShutdown {
    core: Arc<Core>,
    supervisor: Arc<Supervisor>,
    deadline: Deadline,
    exit_at: Option<Deadline>,
    at: At,
}

enum At {
    Fresh,
    Draining { started: Tick, wait: PhaseWait },
    Ending { started: Tick, drained: Tick, missed: Option<PhaseError>, wait: PhaseWait },
    Done,
}

impl DeviceShutdown {
    pub(crate) fn new(core: Arc<Core>, supervisor: Arc<Supervisor>, deadline: Deadline) -> Self {
        DeviceShutdown { core, supervisor, deadline, exit_at: None, at: At::Fresh }
    }

    /// When async jobs that have not ended are dropped at their next await, those that wait at once; otherwise at the
    /// deadline.
    pub fn exit_at(mut self, mark: impl Into<Deadline>) -> Self {
        self.exit_at = Some(mark.into());
        self
    }

    fn wait(&self, phase: Phase, deadline: Deadline) -> PhaseWait {
        let (core, supervisor) = (Arc::clone(&self.core), Arc::clone(&self.supervisor));
        PhaseWait::new(core, supervisor, phase, deadline)
    }

    /// Blocks the calling thread. Not for async code, where it is to be awaited.
    #[must_use]
    pub fn block(self) -> DeviceReport {
        futures_lite::future::block_on(self)
    }
}

impl Future for DeviceShutdown {
    type Output = DeviceReport;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DeviceReport> {
        loop {
            let now = self.core.now();
            match &mut self.at {
                At::Fresh => {
                    let started = now;
                    self.core.close(Closed::Budget);
                    let mark = self.exit_at.map_or(self.deadline, |it| it.earliest(self.deadline));
                    let wait = self.wait(Phase::Drain, mark);
                    self.at = At::Draining { started, wait };
                }
                At::Draining { started, wait } => {
                    let drained = std::task::ready!(Pin::new(wait).poll(cx));
                    let started = *started;
                    self.core.request_exit();
                    let wait = self.wait(Phase::Supervisor, self.deadline);
                    self.at = At::Ending { started, drained: now, missed: drained.err(), wait };
                }
                At::Ending { started, drained, missed, wait } => {
                    let ended = std::task::ready!(Pin::new(wait).poll(cx));
                    let took = DevicePhaseTimes {
                        draining: drained.since(*started),
                        ending: now.since(*drained),
                    };
                    let missed = missed.take();
                    self.at = At::Done;
                    // what went wrong for good counts for more than what was late, and what is over by now was not late
                    let failure = match (ended, missed) {
                        (Err(error), missed) if error.is_deadline() => {
                            Some(missed.unwrap_or(error))
                        }
                        (Err(error), _) => Some(error),
                        // an attempt outlasts the threads
                        (Ok(()), missed) => {
                            missed.filter(|_| !self.core.look(|inner| inner.is_drained()))
                        }
                    };
                    return Poll::Ready(DeviceReport::take(&self.core, took, failure));
                }
                At::Done => panic!("a shutdown was polled after it had completed"),
            }
        }
    }
}

impl fmt::Debug for DeviceShutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceShutdown").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// What had stopped and what had not, when a [shutdown](super::DevicePool::shutdown) ended.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceReport {
    /// The pool.
    pub pool: PoolId,
    /// Its device's ordinal.
    pub device: u32,
    /// Nothing is left: no job, no attempt, no thread. It stays so.
    pub complete: bool,
    /// What went wrong, if something did: for good, or only for being late. `Some` whenever it is not complete.
    pub failure: Option<PhaseError>,
    /// Jobs that have not ended, and those whose callback runs.
    pub jobs: Vec<JobInfo>,
    /// Jobs whose callback runs.
    pub ending: u64,
    /// Attempts that are not over.
    pub attempts: u64,
    /// Whether the runtime is gone, with its threads.
    pub runtime_gone: bool,
    /// How long this shutdown took.
    pub took: DevicePhaseTimes,
}

impl DeviceReport {
    pub(crate) fn take(core: &Core, took: DevicePhaseTimes, failure: Option<PhaseError>) -> Self {
        let jobs = core.infos();
        core.look(|inner| {
            let counts = inner.book.counts();
            DeviceReport {
                pool: core.id,
                device: core.device.ordinal,
                complete: failure.is_none() && inner.is_drained() && inner.has_ended(),
                failure,
                jobs,
                ending: counts.ending,
                attempts: counts.attempts.now,
                runtime_gone: inner.has_ended(),
                took,
            }
        })
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceReport { pool, device, complete, failure, jobs, took, .. } = self;
        let DevicePhaseTimes { draining, ending } = took;
        let state = if *complete { "has ended" } else { "has not ended" };
        write!(f, "pool {pool} of device {device} {state} after {:?}", *draining + *ending)?;
        if let Some(failure) = failure {
            write!(f, "\n  {failure}")?;
        }
        if !complete {
            let runtime = if self.runtime_gone { "is gone" } else { "is there" };
            write!(
                f,
                "\n  {} attempts, {} jobs ending, the runtime {runtime}",
                self.attempts, self.ending
            )?;
        }
        jobs.iter().try_for_each(|job| write!(f, "\n  {job}"))
    }
}
