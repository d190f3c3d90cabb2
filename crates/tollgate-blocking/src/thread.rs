//! How a pool's threads are made.

use crate::cell::quietly;
use crate::core::Core;
use crate::sync::Mutex;
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
        let name = if core.dedicated { self.name.clone() } else { format!("{}-{id}", self.name) };
        let promise = Arc::new(Promise { core, id, state: Mutex::new(State::Offered) });
        let thread =
            WorkerThread { name, stack_size: self.stack_size, promise: Arc::clone(&promise) };
        // the standard library panics where it is asked for a stack that it can't describe
        let answer = quietly(|| match &self.handler {
            Some(handler) => handler(thread),
            None => spawn(thread),
        });
        promise.answered(
            answer.unwrap_or_else(|| Err(io::Error::other("the start of the thread panicked"))),
        )
    }
}

/// A thread that the pool counts on. Whatever becomes of it, the pool is told once when it does not come.
struct Promise {
    core: Arc<Core>,
    id: usize,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
enum State {
    /// Its start has not been answered.
    Offered,
    /// Its start was answered, and it has not come yet.
    Due,
    /// It has come.
    Kept,
    /// It will not come.
    Broken,
}

impl Promise {
    /// The start was answered: says whether the thread will come, or has.
    fn answered(&self, answer: io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        match (*state, answer) {
            (State::Kept, _) => Ok(()),
            (State::Broken, Ok(())) => Err(dropped()),
            (State::Offered | State::Due, Ok(())) => {
                *state = State::Due;
                Ok(())
            }
            (_, Err(error)) => {
                *state = State::Broken;
                Err(error)
            }
        }
    }
}

fn dropped() -> io::Error {
    io::Error::other("the thread was dropped before it ran")
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
    promise: Arc<Promise>,
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
    ///
    /// Returns at once when the spawn handler had answered with an error meanwhile.
    pub fn run(self) {
        let mut state = self.promise.state.lock();
        if matches!(*state, State::Offered | State::Due) {
            *state = State::Kept;
            drop(state);
            worker::run(&self.promise.core, self.promise.id);
        }
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        let mut state = self.promise.state.lock();
        let before = *state;
        if matches!(before, State::Offered | State::Due) {
            *state = State::Broken;
        }
        drop(state);
        match before {
            // whoever started it is about to ask; it may have run to its end by then
            State::Offered | State::Broken | State::Kept => {}
            State::Due => self.promise.core.thread_lost(self.promise.id, dropped()),
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
