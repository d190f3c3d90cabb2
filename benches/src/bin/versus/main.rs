//! Compares tollgate, with all its features on, with its peers: closed loops in one process, in
//! interleaved rounds.
//!
//! A ratio is the peer's time per job over tollgate's, so above 1 tollgate is the faster one.

mod bars;
mod field;
mod fresh;
mod measure;
mod report;
mod workloads;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use tollgate_benches::bars as judge;
use tollgate_benches::entrants::Blocking;
use tollgate_benches::machine::Machine;
use tollgate_benches::report::{default_path, write_json};

use crate::field::{Ground, RUNTIME_WORKERS};
use crate::measure::Plan;
use crate::report::Report;
use crate::workloads::{ONE_CALLER, SIDES, WORKLOADS, Workload};

/// What each workload may take of a quick run. One that took less leaves the rest to the next.
const QUICK_SHARE: Duration = Duration::from_secs(8);

/// Compare tollgate with its peers, in one process and in interleaved rounds.
#[derive(Debug, Parser)]
#[command(name = "versus")]
struct Args {
    /// Shorter samples and no fresh processes: ends within 60 seconds.
    #[arg(long)]
    quick: bool,

    /// Rounds that must count, of each workload; at least 5 [default: 9, with --quick 5].
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=1_000))]
    rounds: Option<u32>,

    /// Measure this workload only; may be repeated.
    #[arg(long, value_name = "WORKLOAD", value_parser = WORKLOADS.map(|w| w.name))]
    only: Vec<String>,

    /// Where the report goes [default: target/versus.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Fresh processes that compare one caller with `spawn_blocking` [default: 9, but none with
    /// --quick or without the workload `noop_1`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    fresh: Option<u32>,

    /// Threads the runtime may use for `spawn_blocking`.
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max_blocking_threads: u32,

    /// Give every entrant a runtime of its own, so that none meets the blocking threads that another
    /// has started.
    #[arg(long)]
    own_runtimes: bool,

    /// Hold the figures to the bars, and exit with 1 when one is missed.
    #[arg(long)]
    check: bool,

    /// Install a tracing subscriber that prints nothing, so that callers have a live span.
    #[arg(long)]
    subscriber: bool,

    /// Be one of the fresh processes, the one with this number.
    #[arg(long, hide = true, value_name = "NUMBER")]
    fresh_child: Option<u32>,
}

impl Args {
    fn plan(&self) -> Plan {
        let (rounds, sample, repeats) = if self.quick { (5, 100, 2) } else { (9, 200, 3) };
        Plan {
            rounds: self.rounds.map_or(rounds, |rounds| rounds as usize),
            sample: Duration::from_millis(sample),
            repeats,
            until: None,
        }
    }

    fn ground(&self) -> anyhow::Result<Ground> {
        Ground::new(self.max_blocking_threads as usize, self.own_runtimes)
    }

    fn workloads(&self) -> impl Iterator<Item = &'static Workload> {
        let all = self.only.is_empty();
        WORKLOADS.iter().filter(move |w| all || self.only.iter().any(|only| only == w.name))
    }

    fn fresh(&self) -> u32 {
        let one_caller = self.workloads().any(|workload| workload.name == ONE_CALLER.name);
        self.fresh.unwrap_or(if one_caller && !self.quick { 9 } else { 0 })
    }
}

fn main() -> anyhow::Result<std::process::ExitCode> {
    let args = Args::parse();
    cap_blocking()?;
    if args.subscriber {
        tracing::subscriber::set_global_default(tracing_subscriber::registry())?;
    }
    let passed = match args.fresh_child {
        Some(number) => fresh::child(&args, number).map(|()| true),
        None => compare(&args),
    }?;
    Ok(if passed { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE })
}

/// Measures and reports; false when a check failed.
fn compare(args: &Args) -> anyhow::Result<bool> {
    let machine = Machine::here();
    println!("{machine}");
    let runtimes = if args.own_runtimes { "runtimes of their own" } else { "one runtime" };
    println!("callers on {runtimes}, multi-thread, {RUNTIME_WORKERS} workers");
    let ground = args.ground()?;
    let mut plan = args.plan();
    let start = Instant::now();
    let mut report = Report::new(machine, args);
    let mut done = 0;
    for side in SIDES {
        let workloads: Vec<_> = args.workloads().filter(|it| it.side == side).collect();
        if workloads.is_empty() {
            continue;
        }
        let mut field = ground.field(side)?;
        for starter in &field {
            println!("  {}: {}", starter.name, starter.settings());
        }
        report.enter(&field);
        for workload in workloads {
            done += 1;
            plan.until = args.quick.then(|| start + QUICK_SHARE * done);
            let outcome = measure::workload(&mut field, workload, &plan)?;
            eprintln!("{}: {}", workload.name, outcome.summary());
            report.add(workload, outcome);
        }
    }
    let processes = args.fresh();
    if processes > 0 {
        report.fresh = Some(fresh::parent(args, processes)?);
    }

    println!("{}", report.table());
    let path = args.json.clone().unwrap_or_else(|| default_path("versus.json"));
    write_json(&path, &report.json())?;
    println!("written to {}", path.display());
    Ok(judge::print(&bars::judge(&report)) || !args.check)
}

/// Gives the `blocking` crate, which can be set up by its environment alone, as many threads as the
/// others have, by starting this program again. What the user has set stays.
fn cap_blocking() -> anyhow::Result<()> {
    #[cfg(unix)]
    if std::env::var_os(Blocking::MAX_THREADS).is_none() {
        use std::os::unix::process::CommandExt as _;
        let workers = tollgate_benches::entrants::WORKERS.to_string();
        let error = std::process::Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(Blocking::MAX_THREADS, workers)
            .exec();
        return Err(error.into());
    }
    Ok(())
}
