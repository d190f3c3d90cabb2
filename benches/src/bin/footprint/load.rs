//! A pool with little to do: what waiting for work costs.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::interval;
use tollgate_benches::entrants::{Client as _, Entrant, SpawnBlocking, Tollgate, Work};
use tollgate_benches::stats::median;

use crate::figures::Figures;
use crate::threads::processor_time;

const ROUNDS: usize = 9;
const JOBS: u32 = 400;
/// A job of 20 us every 2 ms: 1% of a core.
const WORK: Work = Work::busy(Duration::from_micros(20));
const EVERY: Duration = Duration::from_millis(2);

pub(crate) fn measure(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    let pool = Tollgate::new(runtime.handle().clone())?;
    let peer = SpawnBlocking { max_blocking_threads: 512 };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (Some(us), Some(them)) = (trickle(runtime, &pool)?, trickle(runtime, &peer)?) else {
            eprintln!("processor time cannot be measured on this system");
            return Ok(());
        };
        // The first round starts the threads.
        if round > 0 {
            ours.push(us);
            theirs.push(them);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    figures.insert("load_cpu_us_per_job", ours);
    figures.insert("load_spawn_blocking_cpu_us_per_job", theirs);
    figures.insert("load_cpu_over_spawn_blocking", ours / theirs);
    Ok(())
}

/// Microseconds of processor time per job, of the whole process.
fn trickle(runtime: &Runtime, entrant: &impl Entrant) -> anyhow::Result<Option<f64>> {
    let client = entrant.client(0);
    let before = processor_time();
    runtime.block_on(async {
        let calls = async move {
            let mut ticks = interval(EVERY);
            for _ in 0..JOBS {
                ticks.tick().await;
                client.call(WORK).await?;
            }
            anyhow::Ok(())
        };
        tokio::spawn(calls).await?
    })?;
    let used = processor_time().zip(before).map(|(after, before)| after - before);
    Ok(used.map(|used| 1e6 * used.as_secs_f64() / f64::from(JOBS)))
}
