//! A thread for one job that runs for as long as its service does.

use crate::cell::drop_quietly;
use crate::context::JobContext;
use crate::error::DedicatedError;
use crate::policy::LanePolicy;
use crate::pool::{BlockingPool, BlockingPoolBuilder};
use crate::ticket::Ticket;
use tollgate_admission::{JobKind, Scope, ThreadTimer};

/// A thread of its own for one long-running job, outside any budget: a compactor, a consumer loop.
///
/// It is tracked like a pool's job: by its [`Ticket`], and in the report of its scope, under its name and the kind
/// [`LONG_RUNNING`](JobKind::LONG_RUNNING). Cancelling the scope asks it to stop, which it sees in its
/// [context](JobContext). Closing the scope does not.
///
/// ```
/// use std::time::Duration;
/// use tollgate_blocking::{Dedicated, Deadline, Scope};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Runtime::new()?;
/// # rt.block_on(async {
/// let store = Scope::root("store");
/// let (started, has_started) = std::sync::mpsc::channel();
/// let compactor = Dedicated::new(tokio::runtime::Handle::current(), "compactor")
///     .scope(&store)
///     .spawn_with(move |job| {
///         let _ = started.send(());
///         while !job.is_cancelled() {
///             std::thread::sleep(Duration::from_millis(1));
///         }
///         "stopped"
///     })?;
/// has_started.recv()?;
///
/// let report = store.shutdown(Deadline::after(Duration::from_secs(5))).await;
/// assert!(report.complete, "{report}");
/// assert_eq!(compactor.await?, "stopped");
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Debug)]
#[must_use = "no thread is started before a closure is given"]
pub struct Dedicated {
    name: String,
    pool: BlockingPoolBuilder,
}

impl Dedicated {
    /// A thread of this name, on which the runtime behind `owner` is the current one.
    #[cfg(not(tollgate_loom))]
    pub fn new(owner: tokio::runtime::Handle, name: impl Into<String>) -> Self {
        Self::of(BlockingPool::builder(owner), name.into())
    }

    /// A thread without an owner, which loom can't follow.
    #[cfg(tollgate_loom)]
    pub fn new(name: impl Into<String>) -> Self {
        Self::of(BlockingPool::builder(), name.into())
    }

    fn of(pool: BlockingPoolBuilder, name: String) -> Self {
        let pool = pool.capacity(1).thread_name(name.as_str()).time(ThreadTimer::shared());
        Dedicated {
            pool: pool.dedicated().lane(LanePolicy::new(name.as_str()).max_waiting(0)),
            name,
        }
    }

    /// The scope that it belongs to.
    pub fn scope(mut self, scope: &Scope) -> Self {
        self.pool = self.pool.scope(scope);
        self
    }

    /// The stack size in bytes. By default the system's.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.pool = self.pool.stack_size(bytes);
        self
    }

    /// Whether the closure runs within the `tracing` span of whoever calls [`spawn`](Self::spawn). By default it does.
    pub fn propagate_spans(mut self, on: bool) -> Self {
        self.pool = self.pool.propagate_spans(on);
        self
    }

    /// Starts the thread. Dropping the ticket lets it run on. Should the system refuse the thread, or the scope close before
    /// the closure has started, the ticket says so.
    ///
    /// # Errors
    ///
    /// [`DedicatedError`], at once.
    pub fn spawn<F, R>(self, f: F) -> Result<Ticket<R>, DedicatedError>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.spawn_with(move |_| f())
    }

    /// Like [`spawn`](Self::spawn), for a closure that looks at its [context](JobContext).
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with<F, R>(self, f: F) -> Result<Ticket<R>, DedicatedError>
    where
        F: FnOnce(&JobContext<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let pool = match self.pool.build() {
            Ok(pool) => pool,
            Err(error) => {
                // as for a job that is refused: a destructor's panic is not to take the error's place
                drop_quietly(f);
                return Err(error.into());
            }
        };
        let executor = pool.executor(&self.name).expect("it was built with this lane");
        let job = executor.job(self.name).kind(JobKind::LONG_RUNNING);
        let ticket = job.submit_with(move |context| {
            // the last handle: the pool ends with the closure
            let _pool = pool;
            f(context)
        })?;
        Ok(ticket)
    }
}
