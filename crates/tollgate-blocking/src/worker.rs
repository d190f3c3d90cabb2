//! What a thread of a pool does.

use crate::cell::{Header, Job, quietly};
use crate::core::{After, Called, Core, Look, Slow};
use crate::sync;
use std::cell::{Cell, RefCell};
use std::mem;
use std::sync::Arc;
use tollgate_admission::engine::{Claim, LaneId};

/// How often a worker that ran out of work offers its time slice to others before it parks. A few yields let many
/// callers submit again without a wake-up; spinning instead would take the core that they need.
///
/// None under loom: they decide nothing, the look under the lock that follows does, and each multiplies the schedules.
const YIELDS: usize = if cfg!(tollgate_loom) { 0 } else { 16 };

/// Jobs in a row after which more are likely to come at once. A single caller's next job is not: it waits for the result.
const STREAK: usize = 2;

use local::{HELD, WORKER};

mod local {
    #![allow(clippy::missing_const_for_thread_local, reason = "loom takes no const initialiser")]
    use super::{Cell, Claim, RefCell, sync};

    sync::thread_local! {
        /// The pool, by address, and the worker that this thread is.
        pub(super) static WORKER: Cell<Option<(usize, usize)>> = Cell::new(None);
        /// The permits under which the closures on this thread run, innermost last.
        pub(super) static HELD: RefCell<Vec<Claim>> = RefCell::new(Vec::new());
    }
}

fn address(core: &Arc<Core>) -> usize {
    Arc::as_ptr(core).addr()
}

/// The worker of `core` that the calling thread is, if it is one.
#[inline]
pub(crate) fn current(core: &Arc<Core>) -> Option<usize> {
    // a destructor of thread-local data may submit work when the key is gone: it is no worker any more
    let here = WORKER.try_with(Cell::get).ok().flatten()?;
    (here.0 == address(core)).then_some(here.1)
}

/// The weight that a job on this thread holds in `lane`, 0 when none does.
pub(crate) fn held(lane: LaneId) -> u64 {
    HELD.with(|held| {
        let held = held.borrow();
        held.iter().filter(|held| held.lane == lane).map(|held| held.weight).max().unwrap_or(0)
    })
}

/// A closure is to run on this thread under a permit: until [`let_go`], work that it submits may use it.
#[inline]
pub(crate) fn hold(claim: &Claim) {
    HELD.with(|held| held.borrow_mut().push(*claim));
}

/// The innermost closure has ended, and its permit is about to go home: whoever is woken by its result, on this thread
/// perhaps, runs under it no more.
#[inline]
pub(crate) fn let_go() {
    HELD.with(|held| held.borrow_mut().pop());
}

/// Runs jobs until there is no more use for the thread.
pub(crate) fn run(core: &Arc<Core>, id: usize) {
    // leaving the runtime panics when a closure has left another one entered on this thread; the pool is told all the same
    quietly(|| attend(core, id));
    core.gone(id);
}

fn attend(core: &Arc<Core>, id: usize) {
    let _runtime = core.owner.enter();
    // the thread may be a job of another pool's, whose permits are not this one's
    let outer = WORKER.with(|worker| worker.replace(Some((address(core), id))));
    let outer_held = HELD.with(RefCell::take);
    // before the thread counts as one that looks for work: a hook may take its time
    call_hook(core.threads.on_start.as_deref());
    core.arrive(id, sync::current());
    work(core, id);
    call_hook(core.threads.on_stop.as_deref());
    HELD.with(|held| held.replace(outer_held));
    WORKER.with(|worker| worker.set(outer));
}

fn call_hook(hook: Option<&(dyn Fn() + Send + Sync)>) {
    if let Some(hook) = hook {
        // the thread's jobs are not to suffer
        quietly(hook);
    }
}

fn work(core: &Arc<Core>, id: usize) {
    let mut after = After::default();
    let (mut promised, mut reaped) = (true, false);
    loop {
        let look = core.look(id, promised, mem::take(&mut reaped));
        promised = true;
        match look {
            Look::Job(job, expired) => {
                let streak = run_jobs(core, id, job, expired, &mut after);
                promised = streak.promised;
                if streak.jobs >= STREAK {
                    linger(core);
                }
            }
            Look::Reap(job) => {
                core.reap(job);
                (promised, reaped) = (false, true);
            }
            Look::Leave => return,
            Look::Park => loop {
                sync::park();
                match core.called(id) {
                    Called::No => {}
                    Called::Look => break,
                    Called::Leave => return,
                }
            },
        }
    }
}

/// What a worker did without a pause.
struct Streak {
    jobs: usize,
    /// It counts as one that will look.
    promised: bool,
}

/// Runs `job` and whatever is ready at its end, and so on.
fn run_jobs(
    core: &Arc<Core>,
    id: usize,
    job: Arc<dyn Job>,
    expired: bool,
    after: &mut After,
) -> Streak {
    let mut streak = Streak { jobs: 0, promised: false };
    let mut next = Some((job, expired));
    while let Some((job, expired)) = next.take() {
        streak.jobs += 1;
        let (mut ended, mut warn) = (None, None);
        hold(&job.header().claim());
        job.run(core, expired, &mut |ending| {
            let_go();
            let turn = core.turn_over(id, &job, ending, after);
            (next, streak.promised, ended, warn) =
                (turn.next, turn.promised, turn.ended, turn.warn);
        });
        core.settle(after);
        drop(ended);
        if let Some(slow) = warn {
            self::warn(core, job.header(), slow);
        }
    }
    streak
}

/// Gives callers that just got their results a chance to submit again.
fn linger(core: &Core) {
    for _ in 0..YIELDS {
        if core.ready_hint() > 0 {
            return;
        }
        sync::yield_now();
    }
}

/// Emits the warning that the lane's policy asks for.
#[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nobody to warn"))]
pub(crate) fn warn(core: &Core, header: &Header, slow: Slow) {
    // a subscriber's panic is not to harm the worker
    #[cfg(feature = "tracing")]
    quietly(|| {
        tracing::warn!(
            job = %header.id(),
            name = header.name.as_str(),
            kind = header.kind.as_str(),
            lane = &**core.lane_name(header.lane()),
            ran_ms = u64::try_from(slow.ran.as_millis()).unwrap_or(u64::MAX),
            panicked = slow.panicked,
            "a job took longer than its lane expects"
        );
    });
}
