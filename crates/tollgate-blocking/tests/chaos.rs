//! Everything at once, in an order that a seed decides: whatever is done to jobs, each runs once or is dropped once,
//! every result arrives, and at the end nothing is left.
//!
//! `TOLLGATE_CHAOS_SEED` repeats a run, as far as threads let it; `TOLLGATE_CHAOS_OPS` makes it longer.

mod support;

use std::any::Any;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use support::*;
use tollgate_blocking::{
    AcquireError, BlockingPool, Deadline, Executor, JobBuilder, LanePolicy, RunError,
};

/// A stream of numbers that a seed decides (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How often things happened to closures, captures and results.
#[derive(Default)]
struct Tally {
    /// Captures that came to be, and went.
    made: AtomicU64,
    dropped: AtomicU64,
    ran: AtomicU64,
    panicked: AtomicU64,
    /// Results that came to be, and went.
    results: AtomicU64,
    results_dropped: AtomicU64,
}

impl Tally {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::SeqCst);
    }

    fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }
}

/// Captured by a closure: counts its drop, and checks that the closure runs once.
struct Captures {
    tally: Arc<Tally>,
    ran: Cell<bool>,
}

impl Captures {
    fn new(tally: &Arc<Tally>) -> Self {
        Tally::add(&tally.made);
        Captures { tally: Arc::clone(tally), ran: Cell::new(false) }
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        Tally::add(&self.tally.dropped);
    }
}

/// What a closure returns: counts its drop.
struct Outcome(Arc<Tally>);

impl Drop for Outcome {
    fn drop(&mut self) {
        Tally::add(&self.0.results_dropped);
    }
}

type Work = Box<dyn FnOnce(&tollgate_blocking::JobContext<'_>) -> Outcome + Send>;

struct Chaos {
    lanes: Vec<Executor>,
    tally: Arc<Tally>,
    /// Things to be dropped or finished by another thread.
    bin: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Chaos {
    fn job<'a>(&'a self, dice: &mut Dice) -> JobBuilder<'a> {
        let lane = &self.lanes[dice.below(self.lanes.len() as u64) as usize];
        let mut job = lane.job("chaos");
        if dice.one_in(4) {
            job = job.weight(1 + dice.below(3));
        }
        if dice.one_in(3) {
            job = job.deadline(Deadline::after(Duration::from_micros(dice.below(300))));
        }
        if dice.one_in(500) {
            job = job.weight([0, u64::MAX][dice.below(2) as usize]);
        }
        job
    }

    /// A closure that does some of what closures do.
    fn work(self: &Arc<Self>, dice: &mut Dice, depth: u32) -> Work {
        let captures = Captures::new(&self.tally);
        let (what, seed, chaos) = (dice.below(12), dice.next(), Arc::clone(self));
        Box::new(move |job| {
            // moved in as one, so that it goes at the end
            let captures = captures;
            assert!(!captures.ran.replace(true), "a closure ran twice");
            let tally = &captures.tally;
            Tally::add(&tally.ran);
            let mut dice = Dice(seed);
            match what {
                0 => {
                    Tally::add(&tally.panicked);
                    std::panic::panic_any(seed);
                }
                1 | 2 => {
                    while job.checkpoint().is_ok() && dice.below(50) != 0 {
                        std::thread::yield_now();
                    }
                }
                3 | 4 if depth < 3 => {
                    let inner = chaos.work(&mut dice, depth + 1);
                    let submit = dice.one_in(2);
                    let builder = chaos.job(&mut dice);
                    if submit {
                        if let Ok(ticket) = builder.submit_with(inner) {
                            assert!(ticket.is_done(), "inner work has run");
                            settled(ticket.join().map(drop));
                        }
                    } else {
                        settled(block_on(builder.run_with(inner)).map(drop));
                    }
                }
                5 => {
                    if let Ok(permit) = chaos.job(&mut dice).try_acquire()
                        && let Ok(ticket) = permit.spawn_with(chaos.work(&mut dice, 9))
                    {
                        chaos.throw(ticket);
                    }
                }
                _ => {}
            }
            Tally::add(&tally.results);
            Outcome(Arc::clone(tally))
        })
    }

    /// Leaves something for any thread to drop.
    fn throw(&self, thing: impl Any + Send) {
        self.bin.lock().unwrap().push(Box::new(move || drop(thing)));
    }

    /// Takes one thing that was thrown away, and does with it what its thrower wanted.
    fn empty_bin(&self, dice: &mut Dice) {
        let thing = {
            let mut bin = self.bin.lock().unwrap();
            let len = bin.len() as u64;
            (len > 0).then(|| bin.swap_remove(dice.below(len) as usize))
        };
        match thing {
            Some(thing) => thing(),
            None => std::thread::yield_now(),
        }
    }

    fn step(self: &Arc<Self>, dice: &mut Dice) {
        let what = dice.below(14);
        let work = self.work(dice, 0);
        match what {
            0..=2 => settled(block_on(self.job(dice).run_with(work)).map(drop)),
            3..=5 => {
                let mut run = self.job(dice).run_with(work);
                for _ in 0..dice.below(4) {
                    if poll(&mut run).is_ready() {
                        return;
                    }
                    std::thread::yield_now();
                }
                if dice.one_in(2) { drop(run) } else { self.throw(run) }
            }
            6..=8 => {
                let mut ticket = match self.job(dice).submit_with(work) {
                    Ok(ticket) => ticket,
                    Err(error) => return settled(Err(error.into())),
                };
                match dice.below(5) {
                    0 => drop(ticket),
                    1 => {
                        let never = ticket.cancel();
                        let result = ticket.join();
                        assert!(!never || result.as_ref().is_err_and(RunError::never_ran));
                        settled(result.map(drop));
                    }
                    2 => {
                        let soon = Deadline::after(Duration::from_micros(dice.below(100)));
                        match block_on(ticket.wait_until(soon)) {
                            Some(result) => settled(result.map(drop)),
                            None => settled(ticket.join().map(drop)),
                        }
                    }
                    3 => self.bin.lock().unwrap().push(Box::new(move || {
                        ticket.cancel();
                        settled(ticket.join().map(drop));
                    })),
                    _ => settled(ticket.join().map(drop)),
                }
            }
            9 | 10 => {
                let mut acquire = self.job(dice).acquire();
                let permit = if dice.one_in(2) {
                    match poll(&mut acquire) {
                        std::task::Poll::Ready(result) => result,
                        std::task::Poll::Pending => return self.throw(acquire),
                    }
                } else {
                    block_on(acquire)
                };
                match (permit, dice.below(4)) {
                    (Ok(permit), 0) => self.throw(permit),
                    (Ok(permit), 1) => settled(block_on(permit.run_with(work)).map(drop)),
                    (Ok(permit), 2) => match permit.spawn_with(work) {
                        Ok(ticket) => settled(ticket.join().map(drop)),
                        Err(error) => settled(Err(error.into())),
                    },
                    (Ok(permit), _) => self.throw(permit.run_with(work)),
                    (Err(error), _) => settled(Err(RunError::Refused(error))),
                }
            }
            _ => self.empty_bin(dice),
        }
    }
}

/// A job may end in any way that is in the books.
fn settled(result: Result<(), RunError>) {
    match result {
        Ok(()) => {}
        Err(RunError::Panicked(panic)) => {
            let payload = panic.into_payload();
            assert!(payload.is::<u64>(), "{:?}", payload.downcast_ref::<&str>());
        }
        Err(RunError::Refused(
            AcquireError::QueueFull { .. }
            | AcquireError::Deadline { .. }
            | AcquireError::Closed { .. }
            | AcquireError::TooLarge { .. }
            | AcquireError::ZeroWeight { .. },
        )) => {}
        Err(RunError::Busy { .. } | RunError::Cancelled { .. } | RunError::TimedOut { .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?} and no number")))
}

fn build(owner: &tokio::runtime::Runtime) -> BlockingPool {
    BlockingPool::builder(owner.handle().clone())
        .capacity(4)
        .lane(LanePolicy::new("open").max_waiting(64))
        .lane(
            LanePolicy::new("timed")
                .limit(3)
                .max_waiting(16)
                .queue_timeout(Duration::from_micros(500))
                .task_timeout(Duration::from_micros(200)),
        )
        .lane(LanePolicy::new("kept").reserved(1).kept(1).max_waiting(0))
        .keep_alive(Duration::from_millis(1))
        .build()
        .unwrap()
}

/// BLK-6, BLK-7, BLK-9, BLK-10, BLK-11, BLK-15, ADM-2
#[test]
fn whatever_is_done_to_jobs_each_runs_once_or_is_dropped_once_and_nothing_is_left() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number_from("TOLLGATE_CHAOS_SEED").unwrap_or(now.as_nanos() as u64);
    let each = number_from("TOLLGATE_CHAOS_OPS").unwrap_or(8_000);
    println!("TOLLGATE_CHAOS_SEED={seed}");
    let owner = runtime();
    let pool = build(&owner);
    let lanes = ["open", "timed", "kept"].map(|lane| pool.executor(lane).unwrap());
    let tally = Arc::new(Tally::default());
    let chaos =
        Arc::new(Chaos { lanes: lanes.to_vec(), tally: Arc::clone(&tally), bin: Mutex::default() });
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let chaos = Arc::clone(&chaos);
            let closing = (thread == 0).then(|| pool.clone());
            std::thread::spawn(move || {
                let mut dice = Dice(seed ^ (thread << 56));
                for at in 0..each {
                    // the last tenth meets a pool that is closed
                    if let Some(pool) = &closing
                        && at == each * 9 / 10
                    {
                        pool.close();
                    }
                    chaos.step(&mut dice);
                }
            })
        })
        .collect();
    // permits are thrown away too, and those who wait for them do nothing else
    let stop = Arc::new(AtomicBool::new(false));
    let janitor = std::thread::spawn({
        let (chaos, stop) = (Arc::clone(&chaos), Arc::clone(&stop));
        move || {
            let mut dice = Dice(!seed);
            while !stop.load(Ordering::SeqCst) {
                chaos.empty_bin(&mut dice);
            }
        }
    });
    must_end("the chaos", move || {
        threads.into_iter().for_each(|thread| {
            thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload));
        });
    });
    stop.store(true, Ordering::SeqCst);
    must_end("the janitor", || janitor.join().unwrap());
    let bin = std::mem::take(&mut *chaos.bin.lock().unwrap());
    must_end("what was thrown away", move || bin.into_iter().for_each(|thing| thing()));
    // jobs that were let go may have thrown something since
    eventually("all jobs end", || pool.snapshot().jobs.is_empty());
    let bin = std::mem::take(&mut *chaos.bin.lock().unwrap());
    must_end("what was thrown away last", move || bin.into_iter().for_each(|thing| thing()));
    shut_down(&pool);

    let stats = pool.stats();
    assert_eq!((stats.budget.available, stats.threads.alive, stats.threads.idle), (4, 0, 0));
    let mut started = 0;
    for (lane, jobs) in stats.budget.lanes.iter().zip(&stats.lanes) {
        assert_eq!((lane.running, lane.waiting), (0, 0), "lane {}", lane.name);
        let counts = jobs.counts;
        assert_eq!(counts.started, counts.finished + counts.panicked, "lane {}", lane.name);
        assert_eq!(jobs.waits.count(), counts.started, "lane {}", lane.name);
        assert_eq!(counts.no_thread, 0);
        started += counts.started;
    }
    let panicked: u64 = stats.lanes.iter().map(|lane| lane.counts.panicked).sum();
    assert_eq!(Tally::get(&tally.ran), started);
    assert_eq!(Tally::get(&tally.panicked), panicked);
    assert_eq!(Tally::get(&tally.made), Tally::get(&tally.dropped), "captures were lost");
    assert_eq!(Tally::get(&tally.results), Tally::get(&tally.results_dropped), "results were lost");
    assert_eq!(Tally::get(&tally.results) + panicked, started);
    assert!(started > each / 4, "only {started} of {} closures ran", Tally::get(&tally.made));
}
