//! How a pool's threads are made.

use crate::core::Core;
use crate::worker;
use std::fmt;
use std::io;
use std::sync::Arc;

type Hook = Arc<dyn Fn() + Send + Sync>;
type Handler = Arc<dyn Fn(WorkerThread) -> io::Result<()> + Send + Sync>;

/// What all threads of a pool have in common.
#[derive(Clone, Default)]
pub(crate) struct Threads {
    pub(crate) name: String,
    pub(crate) stack_size: Option<usize>,
    pub(crate) on_start: Option<Hook>,
    pub(crate) on_stop: Option<Hook>,
    pub(crate) handler: Option<Handler>,
}

impl Threads {
    pub(crate) fn start(&self, core: Arc<Core>, id: usize) -> io::Result<()> {
        let thread = WorkerThread {
            name: format!("{}-{id}", self.name),
            stack_size: self.stack_size,
            place: Some((core, id)),
        };
        match &self.handler {
            Some(handler) => {
                // a handler that panics has started no thread
                let call = std::panic::AssertUnwindSafe(|| handler(thread));
                std::panic::catch_unwind(call)
                    .unwrap_or_else(|_| Err(io::Error::other("the spawn handler panicked")))
            }
            None => spawn(thread),
        }
    }
}

#[cfg(not(tollgate_loom))]
fn spawn(thread: WorkerThread) -> io::Result<()> {
    let mut builder = std::thread::Builder::new().name(thread.name.clone());
    if let Some(bytes) = thread.stack_size {
        builder = builder.stack_size(bytes);
    }
    builder.spawn(move || thread.run()).map(drop)
}

#[cfg(tollgate_loom)]
fn spawn(thread: WorkerThread) -> io::Result<()> {
    loom::thread::spawn(move || thread.run());
    Ok(())
}

/// A thread that a pool needs, for a [spawn handler](crate::BlockingPoolBuilder::spawn_handler) to start.
///
/// The new thread calls [`run`](Self::run). When this is dropped without that, the pool takes it that the system refused
/// the thread.
pub struct WorkerThread {
    name: String,
    stack_size: Option<usize>,
    place: Option<(Arc<Core>, usize)>,
}

impl WorkerThread {
    /// The name that the thread should have.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stack size in bytes that the builder asked for.
    #[must_use]
    pub fn stack_size(&self) -> Option<usize> {
        self.stack_size
    }

    /// Runs the pool's jobs on the calling thread, until the pool has no more use for it.
    pub fn run(mut self) {
        if let Some((core, id)) = self.place.take() {
            worker::run(&core, id);
        }
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        if let Some((core, id)) = self.place.take() {
            core.thread_lost(id, io::Error::other("the thread was not started"));
        }
    }
}

impl fmt::Debug for WorkerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerThread")
            .field("name", &self.name)
            .field("stack_size", &self.stack_size)
            .finish_non_exhaustive()
    }
}
