//! The way in: a job in the making, from a pool, a handle or an attempt.

use super::book::{AttemptPlace, Facts};
use super::core::{Core, Order};
use super::error::JobError;
use super::job::{Callback, DeviceContext, Guard, Job, closure, task};
use super::kind::{Class, DeviceKind};
use super::run::{BlockingTask, DeviceRun, DeviceTask, Fresh};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use tollgate_admission::engine::{Bound, contain};
use tollgate_admission::{JobName, Scope};

/// Keeps the group of a scope until a job is in there.
pub(crate) type Keep = Option<Arc<Bound<Core>>>;

/// A way to a pool: the pool, and the scope whose work comes this way.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) core: Arc<Core>,
    pub(crate) bound: Keep,
}

impl Link {
    pub(crate) fn scoped(&self, scope: &Scope) -> Self {
        let name = self.core.device.name.as_str().into();
        let bound = Arc::new(Bound::new(&self.core, scope, name));
        Link { core: Arc::clone(&self.core), bound: Some(bound) }
    }
}

/// What a [`DeviceJob`] that comes from a pool may do: all there is.
#[derive(Debug)]
pub enum MayDetach {}

/// What a [`DeviceJob`] that comes from a handle or an attempt may do: not outlive who awaits it, unless it blocks.
#[derive(Debug)]
pub enum MayRun {}

/// A job in the making: options first, then one call that says what to do.
///
/// An **async** job ([`run`](Self::run), [`spawn`](Self::spawn)) has a worker of the device from its start to its end, also
/// while it waits for something, so what it calls of the driver may block. It sees the device's runtime as the current one.
///
/// A **blocking** job ([`submit_blocking`](Self::submit_blocking)) has a thread of its own and takes no worker from others.
///
/// Both count against their class from when they are accepted until they have ended. On whichever thread it runs, the
/// device is bound. Accepted on a thread of the same pool, an async job runs within whoever awaits it.
///
/// ```
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::{DeviceKind, DevicePool, DeviceProfile, Reason};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Runtime::new()?;
/// # rt.block_on(async {
/// let device = HostDevice::builder().build()?;
/// let pool = DevicePool::builder(device, DeviceProfile::new(4, 3)).build()?;
///
/// // dropping this future cancels the job
/// assert_eq!(pool.job("run").run(async { 1 }).await?, 1);
///
/// // goes on whether or not somebody watches, and says when it is over
/// let setup = pool.job("warm up").kind(DeviceKind::SETUP).on_complete(|| println!("warm"));
/// let task = setup.spawn_with(|job| async move { job.worker() })?;
/// assert!(task.await?.is_some_and(|worker| worker < 3));
///
/// // on a thread of its own
/// let task = pool.job("hash").submit_blocking(|| 2)?;
/// assert_eq!(task.await?, 2);
///
/// let error = pool.job("fails").run(async { panic!("no") }).await.unwrap_err();
/// assert!(matches!(error.reason(), Reason::Panicked(panic) if panic.message() == Some("no")));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
#[must_use = "a job does nothing until it is run or submitted"]
pub struct DeviceJob<'a, P = MayRun> {
    link: &'a Link,
    own: Option<Link>,
    attempt: Option<AttemptPlace>,
    name: JobName,
    kind: DeviceKind,
    class: Option<Class>,
    callback: Option<Callback>,
    may: PhantomData<P>,
}

impl<'a, P> DeviceJob<'a, P> {
    pub(crate) fn new(link: &'a Link, attempt: Option<AttemptPlace>, name: JobName) -> Self {
        DeviceJob {
            link,
            own: None,
            attempt,
            name,
            kind: DeviceKind::EXECUTION,
            class: None,
            callback: None,
            may: PhantomData,
        }
    }

    /// What it is for; [`DeviceKind::EXECUTION`] unless given.
    pub fn kind(mut self, kind: DeviceKind) -> Self {
        self.kind = kind;
        self
    }

    /// What it is charged to, in place of its kind's class: a later setup of an attempt counts as auxiliary, if it takes one
    /// of the attempt's slots.
    pub fn charge(mut self, class: Class) -> Self {
        self.class = Some(class);
        self
    }

    /// The scope that it belongs to, in place of the handle's. A scope that is not open refuses it. One that closes later
    /// does not: what was accepted ends in its own time, and the scope has something left until then.
    ///
    /// Where many jobs belong to one scope, [`DeviceHandle::scoped`](super::DeviceHandle::scoped) costs less.
    pub fn scope(mut self, scope: &Scope) -> Self {
        self.own = Some(self.link.scoped(scope));
        self
    }

    /// Is called once, on some thread, when the outcome can be had: also of a job that panicked, was cancelled, or was
    /// dropped with the runtime; not if the job is refused. The job's permits are back by then. The pool has not drained
    /// before it has returned. A panic in it is contained.
    pub fn on_complete(mut self, callback: impl FnOnce() + Send + 'static) -> Self {
        self.callback = Some(Box::new(callback));
        self
    }

    fn prepare<T: Send + 'static>(&mut self) -> (Arc<Job<T>>, Order, Keep) {
        let Link { core, bound } = self.own.as_ref().unwrap_or(self.link);
        let class = self.class.unwrap_or(self.kind.class());
        let facts = Facts {
            name: self.name.clone(),
            kind: self.kind,
            class,
            group: bound.as_ref().map(|bound| bound.group()),
        };
        let job = Job::new(core, self.kind, class, self.callback.take());
        (job, Order { facts, attempt: self.attempt }, bound.clone())
    }

    fn fresh<M, F>(mut self, make: M) -> Fresh<F::Output>
    where
        M: FnOnce(&Guard<F::Output>) -> F + Send + 'static,
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (job, order, bound) = self.prepare();
        let task = task(&job, make);
        Fresh { job, task, order, bound }
    }

    /// Runs a future on a worker of the device, and yields its output. Nothing happens before the first poll: see [`DeviceRun`]
    /// for errors and cancel safety.
    pub fn run<F>(self, future: F) -> DeviceRun<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        DeviceRun::new(self.fresh(move |_| future))
    }

    /// Like [`run`](Self::run), for a future that is made on the worker and knows the job's id and the worker's number.
    pub fn run_with<M, F>(self, make: M) -> DeviceRun<F::Output>
    where
        M: FnOnce(DeviceContext) -> F + Send + 'static,
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        DeviceRun::new(self.fresh(move |guard| make(guard.context())))
    }

    /// Runs a closure on a thread for blocking jobs. The answer is immediate: it is accepted and starts now, or is refused.
    ///
    /// Submitted from inside a blocking job of the same pool, it has run when this returns.
    ///
    /// # Errors
    ///
    /// [`JobError`] with the [reason](super::Reason::Refused); `f` has been dropped then.
    pub fn submit_blocking<F, T>(self, f: F) -> Result<BlockingTask<T>, JobError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.submit_closure(move |_| f())
    }

    /// Like [`submit_blocking`](Self::submit_blocking), for a closure that looks at its [context](DeviceContext).
    ///
    /// # Errors
    ///
    /// As [`submit_blocking`](Self::submit_blocking).
    pub fn submit_blocking_with<F, T>(self, f: F) -> Result<BlockingTask<T>, JobError>
    where
        F: FnOnce(DeviceContext) -> T + Send + 'static,
        T: Send + 'static,
    {
        self.submit_closure(move |guard| f(guard.context()))
    }

    fn submit_closure<F, T>(self, f: F) -> Result<BlockingTask<T>, JobError>
    where
        F: FnOnce(&Guard<T>) -> T + Send + 'static,
        T: Send + 'static,
    {
        let (name, kind) = (self.name.clone(), self.kind);
        let (job, run) = self.accept_blocking(f)?;
        if let Some(threads) = job.core.blocking() {
            // watched by way of the job itself, which also learns if the threads are gone: `run` is dropped then
            let _ = threads.job(name).kind(kind.job_kind()).submit(run);
        }
        Ok(BlockingTask::new(job))
    }
}

impl<P> DeviceJob<'_, P> {
    /// A blocking job that is accepted, and what is to be called on a thread for blocking jobs, or dropped.
    pub(super) fn accept_blocking<F, T>(
        mut self,
        f: F,
    ) -> Result<(Arc<Job<T>>, impl FnOnce() + Send + 'static + use<P, F, T>), JobError>
    where
        F: FnOnce(&Guard<T>) -> T + Send + 'static,
        T: Send + 'static,
    {
        let (job, order, bound) = self.prepare();
        if let Err(refused) = job.core.submit_blocking(order, job.erased()) {
            contain(|| drop(f));
            return Err(job.refused(refused));
        }
        drop(bound);
        let run = closure(&job, f);
        Ok((job, run))
    }
}

impl DeviceJob<'_, MayDetach> {
    /// Hands a future to the device, now. It goes on whether or not somebody watches.
    ///
    /// # Errors
    ///
    /// [`JobError`] with the [reason](super::Reason::Refused), at once; `future` has been dropped then.
    pub fn spawn<F>(self, future: F) -> Result<DeviceTask<F::Output>, JobError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.fresh(move |_| future).submit(true).map(DeviceTask::new)
    }

    /// Like [`spawn`](Self::spawn), for a future that is made on the worker and knows the job's id and the worker's number.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with<M, F>(self, make: M) -> Result<DeviceTask<F::Output>, JobError>
    where
        M: FnOnce(DeviceContext) -> F + Send + 'static,
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.fresh(move |guard| make(guard.context())).submit(true).map(DeviceTask::new)
    }
}

impl<P> fmt::Debug for DeviceJob<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceJob")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::super::by_hand::{assert_at_rest, core, link};
    use super::super::core::{Spawn, Task};
    use super::super::error::Reason;
    use super::super::profile::DeviceProfile;
    use super::*;

    struct Nowhere;

    impl Spawn for Nowhere {
        fn spawn(&self, task: Task) {
            drop(task);
        }
    }

    /// DEV-7
    #[test]
    fn a_blocking_job_that_is_discarded_before_its_thread_comes_never_runs_and_joins() {
        let core = core(DeviceProfile::new(2, 2), Nowhere, Box::new(|| Ok(())), 1);
        let link = link(&core);
        for cancelled in [true, false] {
            let job = DeviceJob::<MayRun>::new(&link, None, "discarded".into());
            let (job, call) = job.accept_blocking(|_| panic!("it ran")).unwrap();
            let task = BlockingTask::<()>::new(job);
            if cancelled {
                assert!(task.cancel());
                call();
            } else {
                // its thread is gone
                drop(call);
            }
            let reason = task.join().unwrap_err().into_reason();
            let expected = match cancelled {
                true => matches!(reason, Reason::Cancelled),
                false => matches!(reason, Reason::Lost),
            };
            assert!(expected, "cancelled: {cancelled}: {reason}");
            assert_at_rest(&core);
        }
    }
}
