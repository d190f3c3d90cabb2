//! A device's pool: what may run on it, and how it ends.

mod attempt;
mod book;
mod core;
mod error;
mod events;
mod exit;
mod job;
mod kind;
mod profile;
mod run;
mod runtime;
mod shared;
mod shutdown;
mod snapshot;
mod submit;
mod supervisor;
mod tracker;
mod worker;

#[cfg(test)]
mod by_hand;
#[cfg(all(test, tollgate_loom))]
mod models;
#[cfg(all(test, not(tollgate_loom)))]
mod props;

pub use attempt::{Admission, Attempt, AttemptHandle};
pub use core::PoolId;
pub use error::{AdmitError, BuildError, JobError, NotClosed, Reason, Refused, SharedError};
pub use events::{DeviceEvent, EventKind, EventStream, NextEvent, Outcome, Recorder, Recording};
pub use job::DeviceContext;
pub use kind::{Class, DeviceKind, Seats};
pub use profile::{Capacities, DeviceProfile, MAX_WORKERS};
pub use run::{BlockingTask, DeviceRun, DeviceTask};
pub use shared::DeviceSelector;
pub use shutdown::{DevicePhaseTimes, DeviceReport, DeviceShutdown, Phase, PhaseError, PhaseWait};
pub use snapshot::{ClassSnapshot, DeviceSnapshot};
pub use submit::{DeviceJob, MayDetach, MayRun};
pub use tracker::{Tracker, TrackerSnapshot};

use crate::backend::{Backend, Bell, DeviceInfo};
use crate::exit::{ExitPolicy, register};
use crate::sync::Builder;
use core::{Core, Parts};
use exit::PoolAtExit;
use runtime::{Binder, Plan};
use std::fmt;
use std::sync::Arc;
use submit::Link;
use supervisor::{Started, Supervisor};
use tollgate_admission::{Closed, Deadline, JobInfo, JobName, Scope, ThreadTimer, TimeSource};

/// How many events a pool holds for its observers unless it is told otherwise.
pub const DEFAULT_EVENTS: usize = 4096;

/// The pool of one device: it decides which work may start on it, runs that on threads to which the device is bound, and can
/// prove at its end what has ended and what has not.
///
/// Clones share it. While one lives, or a [`DeviceHandle`], the pool stays open. When the last is dropped, on any thread, the
/// pool accepts nothing more, finishes what it had accepted, and ends; nobody waits for that but the [process
/// exit](DevicePoolBuilder::exit).
///
/// It may be built, used and dropped on any thread, and inside any runtime or none. Accepting, starting and ending a job take
/// its lock once each, for a time that does not grow with the number of jobs.
///
/// ```
/// use std::time::Duration;
/// use tollgate_device::admission::Deadline;
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::{DeviceKind, DevicePool, DeviceProfile};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Runtime::new()?;
/// # rt.block_on(async {
/// let device = HostDevice::builder().name("gpu0").build()?;
/// let pool = DevicePool::builder(device, DeviceProfile::new(4, 3).auxiliary(2)).build()?;
///
/// let attempt = pool.admission().deadline(Deadline::after(Duration::from_secs(1))).await?;
/// attempt.job("plan").kind(DeviceKind::SETUP).run(async { /* load modules */ }).await?;
/// let rows = attempt.job("query").run(async { 42 }).await?;
/// assert_eq!(rows, 42);
/// attempt.release("free", async { /* synchronise and free */ })?.await?;
///
/// let report = pool.shutdown(Deadline::after(Duration::from_secs(5))).await;
/// assert!(report.complete, "{report}");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
pub struct DevicePool<B> {
    owner: Arc<Owner<B>>,
    link: Link,
}

/// What the handles share. The last one closes the pool.
pub(crate) struct Owner<B> {
    pub(crate) backend: B,
    pub(crate) core: Arc<Core>,
    pub(crate) supervisor: Arc<Supervisor>,
}

impl<B> Drop for Owner<B> {
    fn drop(&mut self) {
        self.core.close_for_good(Closed::Budget);
    }
}

impl<B> Clone for DevicePool<B> {
    fn clone(&self) -> Self {
        DevicePool { owner: Arc::clone(&self.owner), link: self.link.clone() }
    }
}

/// What a [`DevicePool`] is to be like.
///
/// ```
/// use std::time::Duration;
/// use tollgate_device::admission::Scope;
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::{DevicePool, DeviceProfile, ExitPolicy, Tracker};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (service, tracker) = (Scope::root("service"), Tracker::new());
/// let device = HostDevice::builder().name("H200").ordinal(3).build()?;
/// let pool = DevicePool::builder(device, DeviceProfile::new(8, 4).auxiliary(2).max_waiting(64))
///     .scope(&service)
///     .tracker(&tracker)
///     .exit(ExitPolicy::within(Duration::from_secs(30)))
///     .build()?;
/// assert_eq!(pool.capacities().auxiliary, 16);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct DevicePoolBuilder<B> {
    backend: B,
    profile: DeviceProfile,
    thread_name: Option<String>,
    events: usize,
    tracker: Tracker,
    time: Option<Arc<dyn TimeSource>>,
    scope: Option<Scope>,
    exit: ExitPolicy,
}

impl<B: Backend> DevicePoolBuilder<B> {
    /// What its threads are called: the name, then what they do, and a number. Unless given, the device's name and ordinal.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = Some(name.into());
        self
    }

    /// How many events it holds for its observers, 1 or more, [`DEFAULT_EVENTS`] unless given. They take no memory while
    /// nobody observes.
    pub fn events(mut self, events: usize) -> Self {
        self.events = events;
        self
    }

    /// What counts its jobs together with those of other pools.
    pub fn tracker(mut self, tracker: &Tracker) -> Self {
        self.tracker = tracker.clone();
        self
    }

    /// Where the time comes from. By default a [`ThreadTimer`] that all budgets of the process share.
    pub fn time(mut self, time: Arc<dyn TimeSource>) -> Self {
        self.time = Some(time);
        self
    }

    /// Makes the pool a part of `scope`, with its threads: when the scope closes, the pool accepts nothing more, finishes what
    /// it had accepted, and ends; the scope is not closed before, and its reports show the pool's jobs. When the scope asks
    /// for it, [tokens](DeviceContext::token) of jobs are cancelled.
    pub fn scope(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.clone());
        self
    }

    /// What is done about it when the process exits.
    pub fn exit(mut self, policy: ExitPolicy) -> Self {
        self.exit = policy;
        self
    }

    /// Builds the pool and starts its threads: one that owns the device's runtime, and the workers. Those for blocking jobs
    /// start when they are needed.
    ///
    /// Blocks until the device's runtime is there.
    ///
    /// # Errors
    ///
    /// [`BuildError`]; nothing is left then.
    pub fn build(self) -> Result<DevicePool<B>, BuildError> {
        let DevicePoolBuilder { backend, profile, thread_name, events, tracker, time, scope, exit } =
            self;
        let device = backend.info().clone();
        let capacities = profile.resolve(&device)?;
        if events == 0 {
            return Err(BuildError::ZeroEvents);
        }
        if let Some(scope) = &scope {
            // refused, not built and closed at once
            drop(scope.enter("a device pool that is being built")?);
        }
        let time = time.unwrap_or_else(|| ThreadTimer::shared());
        let name = thread_name.unwrap_or_else(|| format!("{}:{}", device.name, device.ordinal));
        // the one character that no thread's name can have
        let name = name.replace('\0', "\u{fffd}");
        let id = PoolId::next();
        let plan = Plan {
            pool: id.get(),
            name: name.clone(),
            backend: backend.clone(),
            capacities,
            time: Arc::clone(&time),
        };
        let thread = Builder::new().name(format!("{name}-supervisor"));
        let started = supervisor::start(id.get(), thread, || runtime::build(plan))?;
        let Started { spawn, threads, core: cores, supervisor } = started;
        let bind = Box::new(Binder(backend.clone()));
        let bell = Bell::new();
        let parts = Parts { id, device, capacities, time, spawn, bind, tracker, events, bell };
        // on an error the thread finds that no core comes, and ends
        let core = Core::new(parts)?;
        core.set_threads(threads);
        // the thread is there: it waits for this
        let _ = cores.send(Arc::clone(&core));
        if let Some(scope) = &scope {
            core.attach(scope);
        }
        register::<B>(Arc::new(PoolAtExit {
            core: Arc::downgrade(&core),
            supervisor: Arc::clone(&supervisor),
            policy: exit,
        }));
        let link = Link { core: Arc::clone(&core), bound: None };
        let owner = Owner { backend, core, supervisor };
        Ok(DevicePool { owner: Arc::new(owner), link })
    }
}

impl<B: Backend> DevicePool<B> {
    /// Starts a description of a pool for a device.
    pub fn builder(backend: B, profile: DeviceProfile) -> DevicePoolBuilder<B> {
        DevicePoolBuilder {
            backend,
            profile,
            thread_name: None,
            events: DEFAULT_EVENTS,
            tracker: Tracker::new(),
            time: None,
            scope: None,
            exit: ExitPolicy::default(),
        }
    }

    /// The device.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.owner.backend
    }
}

impl<B> DevicePool<B> {
    fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    /// The pool's number.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.core().id
    }

    /// What the device is.
    #[must_use]
    pub fn device(&self) -> &DeviceInfo {
        &self.core().device
    }

    /// What the profile came to.
    #[must_use]
    pub fn capacities(&self) -> Capacities {
        self.core().capacities
    }

    /// A way to run jobs that can't detach any, nor close the pool.
    #[must_use]
    pub fn handle(&self) -> DeviceHandle<B> {
        DeviceHandle { owner: Arc::clone(&self.owner), link: self.link.clone() }
    }

    /// Starts a description of a job that belongs to no attempt, and has a permit of its own.
    pub fn job(&self, name: impl Into<JobName>) -> DeviceJob<'_, MayDetach> {
        DeviceJob::new(&self.link, None, name.into())
    }

    /// Starts the admission of an attempt.
    pub fn admission(&self) -> Admission {
        Admission::new(self.link.clone())
    }

    /// Follows what becomes of jobs from now on. While somebody does, the pool holds its latest
    /// [events](DevicePoolBuilder::events).
    #[must_use]
    pub fn events(&self) -> EventStream {
        EventStream::new(self.core())
    }

    /// Keeps what becomes of jobs from now on.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        Recorder::new(self.core())
    }

    /// All figures. O(1): it costs the same however many jobs there are.
    #[must_use]
    pub fn snapshot(&self) -> DeviceSnapshot {
        DeviceSnapshot::take(self.core())
    }

    /// The jobs that have not ended, and those whose callback runs. O(jobs).
    #[must_use]
    pub fn jobs(&self) -> Vec<JobInfo> {
        self.core().infos()
    }

    /// What counts its jobs, and maybe those of other pools.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        &self.core().tracker
    }

    /// Accepts nothing more: no job and no attempt, but the cleanup of attempts that were admitted. When this returns, who
    /// waited to be admitted has been told, and what was accepted is counted. It goes on. Closing again does nothing.
    pub fn close(&self) {
        self.core().close(Closed::Budget);
    }

    /// Whether nothing more is accepted.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core().look(|inner| inner.is_closed())
    }

    /// Has the device's runtime end, whether or not the pool has drained: async jobs are dropped, those that wait at once and
    /// those that run at their next await; what runs synchronously is waited for. Asking again does nothing.
    ///
    /// # Errors
    ///
    /// [`NotClosed`]: jobs that were to be accepted would be lost.
    pub fn request_exit(&self) -> Result<(), NotClosed> {
        match self.core().request_exit() {
            true => Ok(()),
            false => Err(NotClosed { device: self.core().device.ordinal }),
        }
    }

    /// Waits until a phase of the end is over, or `deadline` has passed. It brings nothing about by itself: a pool that is not
    /// closed does not drain, and a runtime that nobody wants to end does not.
    pub fn wait(&self, phase: Phase, deadline: impl Into<Deadline>) -> PhaseWait {
        let Owner { core, supervisor, .. } = &*self.owner;
        PhaseWait::new(Arc::clone(core), Arc::clone(supervisor), phase, deadline.into())
    }

    /// The whole end: closes the pool, waits until it has drained, has the runtime end and joins its threads; and reports.
    ///
    /// What has not drained by `deadline`, or by an [earlier mark](DeviceShutdown::exit_at), is dropped. It can be asked for
    /// again, and tells the present truth then.
    ///
    /// # Cancel safety
    ///
    /// Dropping it before the first poll changes nothing; after that the pool is closed.
    pub fn shutdown(&self, deadline: impl Into<Deadline>) -> DeviceShutdown {
        let Owner { core, supervisor, .. } = &*self.owner;
        DeviceShutdown::new(Arc::clone(core), Arc::clone(supervisor), deadline.into())
    }
}

impl<B> fmt::Debug for DevicePool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePool")
            .field("id", &self.id())
            .field("device", &self.device().ordinal)
            .finish_non_exhaustive()
    }
}

/// The capability to run jobs on a device: it can't close the pool, nor start what nobody awaits.
///
/// It keeps the pool open, as a [`DevicePool`] does. Clones are the same.
pub struct DeviceHandle<B> {
    owner: Arc<Owner<B>>,
    link: Link,
}

impl<B> Clone for DeviceHandle<B> {
    fn clone(&self) -> Self {
        DeviceHandle { owner: Arc::clone(&self.owner), link: self.link.clone() }
    }
}

impl<B> DeviceHandle<B> {
    /// This handle for work of `scope`, in place of the scope that it was for: refused once the scope is closed. What was
    /// accepted before ends in its own time, and the scope has something left until then.
    ///
    /// Keep the handle: making one registers it with the scope, a job that comes through it then costs nothing more.
    #[must_use]
    pub fn scoped(&self, scope: &Scope) -> DeviceHandle<B> {
        DeviceHandle { owner: Arc::clone(&self.owner), link: self.link.scoped(scope) }
    }

    /// The device.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.owner.backend
    }

    /// What the device is.
    #[must_use]
    pub fn device(&self) -> &DeviceInfo {
        &self.owner.core.device
    }

    /// Starts a description of a job that belongs to no attempt.
    pub fn job(&self, name: impl Into<JobName>) -> DeviceJob<'_, MayRun> {
        DeviceJob::new(&self.link, None, name.into())
    }

    /// Starts the admission of an attempt.
    pub fn admission(&self) -> Admission {
        Admission::new(self.link.clone())
    }
}

impl<B> fmt::Debug for DeviceHandle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceHandle").field("pool", &self.owner.core.id).finish_non_exhaustive()
    }
}

impl<B: fmt::Debug> fmt::Debug for DevicePoolBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePoolBuilder")
            .field("backend", &self.backend)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}
