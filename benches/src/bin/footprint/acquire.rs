//! What a permit, and a run, cost when nobody has to wait.

use std::hint::black_box;
use std::pin::pin;
use std::time::Instant;

use stats_alloc::{Region, Stats};
use tokio::runtime::Runtime;
use tollgate_admission::{Budget, LaneConfig};
use tollgate_benches::entrants::Tollgate;
use tollgate_benches::polling::ready;
use tollgate_benches::stats::median;

use crate::ALLOCATOR;
use crate::figures::Figures;

const SERIES: usize = 7;

pub(crate) fn measure(figures: &mut Figures) -> anyhow::Result<()> {
    const ACQUIRES: u32 = 500_000;

    let lane = |name| LaneConfig::new(name).reserved(1).limit(4);
    let budget =
        Budget::builder().capacity(4).lane(lane("io")).lane(lane("cpu")).lane(lane("control"));
    let lane = budget.build()?.lane("cpu")?;
    // The first one pays for what the lane keeps.
    drop(ready(pin!(lane.acquire()))?);
    let mut nanoseconds = Vec::new();
    let mut allocations = Vec::new();
    for _ in 0..SERIES {
        let region = Region::new(ALLOCATOR);
        let start = Instant::now();
        for _ in 0..ACQUIRES {
            drop(black_box(ready(pin!(lane.acquire()))?));
        }
        let elapsed = start.elapsed();
        allocations.push(acts(&region.change()) as f64 / f64::from(ACQUIRES));
        nanoseconds.push(elapsed.as_nanos() as f64 / f64::from(ACQUIRES));
    }
    figures.insert("acquire_and_drop_ns", median(nanoseconds));
    // Every thread's allocations are counted, and another one allocates now and then: a series in which none did
    // shows what an acquire does.
    let fewest = allocations.into_iter().fold(f64::INFINITY, f64::min);
    figures.insert("acquire_allocations_each", fewest);
    Ok(())
}

/// Runs with captures and results of 64 bytes, one after the other, counted over all threads.
///
/// The median over several series is the steady state; the worst series shows whether some table
/// still grew.
pub(crate) fn measure_runs(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    const RUNS: u32 = 2_000;

    let pool = Tollgate::new(runtime.handle().clone())?;
    let executor = pool.executor(0);
    let payload = black_box([3_u64; 8]);
    let (mut allocations, mut bytes) = (Vec::new(), Vec::new());
    for series in 0..=SERIES {
        let region = Region::new(ALLOCATOR);
        runtime.block_on(async {
            for _ in 0..RUNS {
                black_box(executor.run(move || payload).await?);
            }
            anyhow::Ok(())
        })?;
        let change = region.change();
        // The first series starts the threads.
        if series > 0 {
            allocations.push(acts(&change) as f64 / f64::from(RUNS));
            bytes.push(change.bytes_allocated as f64 / f64::from(RUNS));
        }
    }
    let worst = allocations.iter().copied().fold(0.0, f64::max);
    figures.insert("run_allocations_each", median(allocations));
    figures.insert("run_allocations_each_worst_series", worst);
    figures.insert("run_bytes_each", median(bytes));
    Ok(())
}

/// Calls for memory, of whatever sort.
fn acts(change: &Stats) -> usize {
    change.allocations + change.reallocations
}
