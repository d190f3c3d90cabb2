//! Everything at once, in an order that a seed decides, and the accounts at the end.
//!
//! One [`round`] builds runtimes, pools and a tree of scopes, has a few threads do to them whatever can be done, ends all
//! of it, and then holds the books against each other: every closure ran once or was dropped once, every count is back
//! at zero, every refusal was counted once, and nothing is left. The test of this directory runs a few rounds; the soak
//! in the benches runs this very source for millions of jobs.
//!
//! A seed repeats what is asked for and in which order each thread asks; how threads meet is the machine's.

mod books;
mod dice;
mod driver;
mod janitor;
mod tokens;
mod verdict;
mod work;
mod world;

use dice::Dice;
use driver::Driver;
use janitor::Janitor;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use world::World;

/// How long something that is bound to happen may take. Nothing passes by waiting this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Threads that ask for things.
const DRIVERS: u64 = 4;

/// One round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Closures to make, about.
    pub(crate) jobs: u64,
}

/// What a round amounted to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Closures that were made.
    pub(crate) jobs: u64,
    /// Those that ran.
    pub(crate) ran: u64,
    /// Those that ran and panicked.
    pub(crate) panicked: u64,
    /// Jobs and acquires that were refused by a pool that was there until the end.
    pub(crate) refused: u64,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.jobs += other.jobs;
        self.ran += other.ran;
        self.panicked += other.panicked;
        self.refused += other.refused;
    }
}

/// What was wrong, one finding a line.
#[derive(Debug)]
pub(crate) struct Failure(Vec<String>);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|finding| writeln!(f, "- {finding}"))
    }
}

/// Counts panics that nobody planned from here on, for the whole process: those that are planned call no hook. What the
/// pools contain would go unnoticed otherwise.
pub(crate) fn watch_for_panics() {
    books::watch_for_panics();
}

/// Plays one round.
///
/// # Errors
///
/// Everything that was wrong. Threads that hang are left behind.
pub(crate) fn round(plan: &Plan) -> Result<Figures, Failure> {
    let mut dice = Dice::new(plan.seed);
    let janitor = Janitor::start();
    let world = Arc::new(World::build(&mut dice, &janitor));
    play(plan, &world, &mut dice).map_err(Failure)?;
    verdict::end(world, janitor).map_err(Failure)
}

/// Has the drivers do what they do, all of it.
fn play(plan: &Plan, world: &Arc<World>, dice: &mut Dice) -> Result<(), Vec<String>> {
    let (done, ended) = channel::<()>();
    for number in 0..DRIVERS {
        let mut driver = Driver::new(Arc::clone(world), dice.split(), number == 0);
        let (jobs, done) = (plan.jobs, done.clone());
        let name = format!("driver-{number}");
        let body = move || {
            let _done = done;
            driver.drive(jobs);
        };
        if let Err(error) = std::thread::Builder::new().name(name).spawn(body) {
            return Err(vec![format!("a driver could not be started: {error}")]);
        }
    }
    drop(done);
    match ended.recv_timeout(PATIENCE) {
        // every sender is gone, and with them the drivers
        Err(RecvTimeoutError::Disconnected) => Ok(()),
        _ => Err(verdict::hang("the drivers", world)),
    }
}

/// Waits for something that is bound to happen on another thread and can't be waited for in a better way.
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Runs `f` on a thread of its own; `None` when it does not end.
fn ends<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(f());
    });
    let value = ended.recv_timeout(PATIENCE).ok()?;
    let _ = thread.join();
    Some(value)
}
