//! An idle pool: its threads are there, and sleep.

use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_benches::closed_loop::{Loop, Sampler as _};
use tollgate_benches::entrants::{QUEUE_TIMEOUT, Tollgate, Work};

use crate::figures::Figures;
use crate::threads::{Thread, others};

/// How long threads may take to fall asleep after the last job. Longer than the queue timeout: the timer was asked to look
/// when the last job's wait would have been over, finds nothing to do then, and sleeps for good.
const SETTLE: Duration = QUEUE_TIMEOUT.saturating_add(Duration::from_secs(1));

pub(crate) fn measure(
    runtime: &Runtime,
    span: Duration,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let pool = Tollgate::new(runtime.handle().clone())?;
    pool.sample(runtime, Loop { callers: 64, jobs_each: 500, work: Work::NOTHING })?;
    std::thread::sleep(SETTLE);
    let Some(before) = others()? else {
        eprintln!("context switches cannot be counted on this system");
        return Ok(());
    };
    std::thread::sleep(span);
    let after = others()?.unwrap_or_default();

    let mut switches = 0;
    for (number, Thread { name, switches: now }) in &after {
        let new = now - before.get(number).map_or(0, |thread| thread.switches);
        if new > 0 {
            eprintln!("idle: thread `{name}` switched {new} times");
        }
        switches += new;
    }
    for (number, Thread { name, .. }) in &before {
        if !after.contains_key(number) {
            eprintln!("idle: thread `{name}` ended");
            switches += 1;
        }
    }
    figures.insert("idle_seconds", span.as_secs_f64());
    figures.insert("idle_threads", after.len() as f64);
    figures.insert("idle_context_switches", switches as f64);
    Ok(())
}
