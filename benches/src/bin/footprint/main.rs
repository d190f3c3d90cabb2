//! Measures what tollgate costs where nothing is raced: bytes, allocations, context switches,
//! processor time; with a peer's figure beside it where that says something.

mod acquire;
mod device;
mod figures;
mod idle;
mod lanes;
mod load;
mod queue;
mod scopes;
mod threads;

use std::alloc::System;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::runtime::Runtime;
use tollgate_benches::bars;
use tollgate_benches::machine::Machine;
use tollgate_benches::report::{default_path, write_json};

use crate::figures::{Figures, judge};

/// Counts what every thread allocates.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Measure what tollgate costs in bytes, allocations, context switches and processor time.
#[derive(Debug, Parser)]
#[command(name = "footprint")]
struct Args {
    /// How long the idle pool is watched.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=3_600))]
    idle_seconds: u64,

    /// Measure this part only; may be repeated.
    #[arg(long, value_name = "PART", value_parser = PARTS)]
    only: Vec<String>,

    /// Where the report goes [default: target/footprint.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Exit with 1 when a bar is missed.
    #[arg(long)]
    check: bool,
}

/// What is measured, in this order: first an idle pool, while no other has threads.
const PARTS: [&str; 7] = ["idle", "acquire", "queue", "lanes", "load", "scopes", "device"];

fn main() -> anyhow::Result<std::process::ExitCode> {
    let args = Args::parse();
    let machine = Machine::here();
    println!("{machine}");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = measure(&args, &runtime);
    // Threads that still run must not hold up the exit.
    runtime.shutdown_background();
    let figures = outcome?;

    for (name, figure) in &figures {
        println!("{name:>48} {:>12}", bars::plain(*figure));
    }
    let judged = judge(&figures);
    let path = args.json.unwrap_or_else(|| default_path("footprint.json"));
    write_json(&path, &serde_json::json!({ "figures": figures, "machine": machine }))?;
    println!("written to {}", path.display());
    let passed = bars::print(&judged) || !args.check;
    Ok(if passed { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE })
}

fn measure(args: &Args, runtime: &Runtime) -> anyhow::Result<Figures> {
    let mut figures = Figures::new();
    let wanted = |part: &&str| args.only.is_empty() || args.only.iter().any(|only| only == part);
    for part in PARTS.iter().filter(|part| wanted(part)) {
        let figures = &mut figures;
        match *part {
            "idle" => idle::measure(runtime, Duration::from_secs(args.idle_seconds), figures)?,
            "acquire" => {
                acquire::measure(figures)?;
                acquire::measure_runs(runtime, figures)?;
            }
            "queue" => queue::measure(runtime, figures)?,
            "lanes" => lanes::measure(runtime, figures)?,
            "load" => load::measure(runtime, figures)?,
            "scopes" => scopes::measure(runtime, figures)?,
            _ => device::measure(runtime, figures)?,
        }
    }
    Ok(figures)
}
