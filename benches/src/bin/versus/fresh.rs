//! One caller, in fresh processes.
//!
//! Whether a lone caller and its worker share a core is settled early in a process's life and then
//! stays, so rounds within one process say little: the median over several processes does.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tollgate_benches::stats::median;

use crate::Args;
use crate::field::{SPAWN_BLOCKING, TOLLGATE};
use crate::measure::{Order, round, warm_up};
use crate::workloads::ONE_CALLER;

const ROUNDS: usize = 7;
const SAMPLE: Duration = Duration::from_millis(60);

/// What the fresh processes found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fresh {
    /// The peer's time over tollgate's, of each process, in the order they ran.
    pub(crate) ratios: Vec<f64>,
    /// Median microseconds per job over the processes, by entrant.
    pub(crate) medians_us: BTreeMap<String, f64>,
}

impl Fresh {
    /// The figure that counts.
    pub(crate) fn ratio(&self) -> f64 {
        median(self.ratios.iter().copied())
    }
}

/// Starts `processes` of this program, one after the other.
pub(crate) fn parent(args: &Args, processes: u32) -> anyhow::Result<Fresh> {
    let mut ratios = Vec::new();
    let mut us: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for number in 0..processes {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--fresh-child", &number.to_string()]);
        command.args(["--max-blocking-threads", &args.max_blocking_threads.to_string()]);
        if args.subscriber {
            command.arg("--subscriber");
        }
        if args.own_runtimes {
            command.arg("--own-runtimes");
        }
        let child = command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("fresh process {number} did not start"))?;
        ensure!(child.status.success(), "fresh process {number} failed: {}", child.status);
        let found: BTreeMap<String, f64> = serde_json::from_slice(&child.stdout)
            .with_context(|| format!("fresh process {number} printed something else"))?;
        let of = |name: &str| found.get(name).copied().with_context(|| format!("no {name}"));
        let ratio = of(SPAWN_BLOCKING)? / of(TOLLGATE)?;
        eprintln!("fresh process {}/{processes}: {ratio:.3}", number + 1);
        ratios.push(ratio);
        for (name, figure) in found {
            us.entry(name).or_default().push(figure);
        }
    }
    let medians_us = us.into_iter().map(|(name, all)| (name, median(all))).collect();
    Ok(Fresh { ratios, medians_us })
}

/// Measures the pair and prints one line of JSON.
pub(crate) fn child(args: &Args, number: u32) -> anyhow::Result<()> {
    let pair = args.ground()?.pair()?;
    let mut order = Order::new(u64::from(number));
    let shapes = warm_up(&pair, &ONE_CALLER, SAMPLE, &mut order)?;
    let rounds = (0..ROUNDS)
        .map(|_| round(&pair, &shapes, &mut order))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let medians: BTreeMap<&str, f64> = pair
        .iter()
        .enumerate()
        .map(|(index, starter)| (starter.name, median(rounds.iter().map(|round| round[index]))))
        .collect();
    println!("{}", serde_json::to_string(&medians)?);
    Ok(())
}
