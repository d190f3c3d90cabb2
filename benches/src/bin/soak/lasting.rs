//! A pool and a tree of scopes that last: what comes and goes in them must not make them grow.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::runtime::Runtime;
use tollgate_admission::{Deadline, Scope};
use tollgate_blocking::{BlockingPool, Executor, LanePolicy};

use crate::memory::Live;

/// How much more may be live at the end than after the warm-up.
///
/// Not zero, since what lasts has tables that grow to the most that they ever held: histograms to the longest time, a few
/// KiB for each of the two lanes, and slabs and queues to the most jobs at once, which is bounded by the batches below. A
/// leak shows all the same: one of a single pointer per job comes to 8 MB over the million jobs that ten million in all
/// play here.
const ALLOWANCE: usize = 128 * 1024;

/// Jobs that are under way at once, at most.
const BATCH: u64 = 64;

/// Batches after which the tables have their size.
const WARM_UP: u64 = 200;

struct Lasting {
    runtime: Runtime,
    pool: BlockingPool,
    lanes: [Executor; 2],
    root: Scope,
}

/// Plays so many jobs in one pool, in scopes that end with each batch.
pub(crate) fn play(seed: u64, jobs: u64) -> anyhow::Result<()> {
    let lasting = Lasting::new()?;
    let mut warm = Live::now();
    let batches = WARM_UP + jobs.div_ceil(BATCH);
    for batch in 0..batches {
        lasting.batch(seed.wrapping_add(batch)).context("with the pool that lasts")?;
        if batch < WARM_UP {
            warm = Live::now();
        }
    }
    let now = Live::now();
    let stats = lasting.pool.stats().budget;
    ensure!(stats.available == stats.capacity, "permits of the pool that lasts are out: {stats:?}");
    let more = now.bytes.saturating_sub(warm.bytes);
    ensure!(
        more <= ALLOWANCE,
        "a pool that lasts has grown by {more} bytes: {warm} after the warm-up, {now} now"
    );
    println!(
        "a pool that lasts, over {} jobs: {more} bytes more, and {ALLOWANCE} may be",
        batches * BATCH
    );
    Ok(())
}

impl Lasting {
    fn new() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
        let pool = BlockingPool::builder(runtime.handle().clone())
            .capacity(2)
            .keep_alive(Duration::MAX)
            .lane(LanePolicy::new("a").max_waiting(32).queue_timeout(Duration::from_millis(1)))
            .lane(LanePolicy::new("b").limit(1).unbounded_waiting())
            .build()?;
        let lanes = [pool.executor("a")?, pool.executor("b")?];
        Ok(Lasting { runtime, pool, lanes, root: Scope::root("lasting") })
    }

    fn batch(&self, seed: u64) -> anyhow::Result<()> {
        let scope = self.root.child("batch")?;
        let bound = self.lanes.each_ref().map(|lane| lane.scoped(&scope));
        let lease = scope.drain_lease(4, Deadline::after(Duration::from_millis(2)))?;
        let mut tickets = Vec::with_capacity(BATCH as usize);
        for number in 0..BATCH {
            let lane = (seed ^ number) as usize % 2;
            let job = match number % 4 {
                0 => self.lanes[lane].job("job").scope(&scope),
                1 => bound[lane].job("job").lease(&lease),
                2 => bound[lane].job("job").deadline(Deadline::after(Duration::from_micros(200))),
                _ => self.lanes[lane].job("job"),
            };
            // refused or not
            tickets.extend(job.submit(move || number));
            if number == BATCH / 2 && seed.is_multiple_of(4) {
                scope.cancel();
            }
        }
        drop((bound, lease));
        for ticket in tickets {
            // it may have been refused meanwhile
            let _ = ticket.join();
        }
        let report = self.runtime.block_on(scope.shutdown(Deadline::never()));
        ensure!(report.complete, "a scope has not ended: {report}");
        Ok(())
    }
}
