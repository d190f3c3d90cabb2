//! Plays the rounds of the chaos test for millions of jobs, and requires that nothing is left of any of them in memory.
//!
//! # What is compared
//!
//! A round builds its runtimes, pools, scopes and threads, and ends all of them: what it leaves behind has no owner, and
//! is a leak. So the bytes that are live after a round must be *exactly* those that were live before it; there is no
//! allowance. What legitimately stays belongs to the process and not to a round, and is there before the first
//! comparison:
//!
//! * what this thread, the standard library and tokio set up once comes with the rounds of the warm-up, and what the
//!   printing of progress needs changes between rounds only, where nobody looks;
//! * the timer that the process shares (`ThreadTimer::shared`, by which dedicated threads keep their time) has a heap of
//!   calls that grows and does not shrink: it is grown beforehand. It keeps calls to those who are gone until they are
//!   many; before the comparison it is made to forget them.
//!
//! Histograms, tables and the free places in slabs belong to a pool or to a tree of scopes, and go with it. So growth
//! *within* the life of one pool would go unnoticed here; [`lasting`] looks for that.

#[path = "../../../../crates/tollgate-blocking/tests/chaos/engine/mod.rs"]
mod engine;
mod lasting;
mod memory;

use std::alloc::System;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::bail;
use clap::Parser;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use crate::engine::{Figures, Plan, round, watch_for_panics};
use crate::memory::Live;

/// Counts what every thread allocates.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Closures of one round: enough for queues to fill, few enough that a leak is soon seen.
const EACH: u64 = 20_000;

/// Rounds that are not compared.
const WARM_UP: u64 = 3;

/// Play the chaos test's rounds for long, and fail when anything is lost, doubled, miscounted or left in memory.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Args {
    /// How many jobs are made.
    #[arg(long, value_name = "N", default_value_t = 10_000_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,

    /// What decides them [default: the time].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = args.seed.unwrap_or_else(|| since_epoch.map_or(1, |it| it.as_millis() as u64));
    println!("seed {seed}, {} jobs", HumanCount(args.jobs));
    watch_for_panics();
    match soak(args.jobs, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn soak(jobs: u64, seed: u64) -> anyhow::Result<()> {
    let bar = ProgressBar::new(jobs);
    let style = "{bar:32} {human_pos} of {human_len} jobs  {per_sec}  {eta} left  {msg}";
    bar.set_style(ProgressStyle::with_template(style)?);
    memory::clear_shared_timer();
    let mut all = Figures::default();
    let start = Instant::now();
    let mut number = 0;
    while all.jobs < jobs || number <= WARM_UP {
        // each is repeated by its own seed
        let seed = seed.wrapping_add(number);
        let again = || format!("to repeat it: cargo xtask soak --jobs {EACH} --seed {seed}");
        let before = Live::now();
        let figures = match round(&Plan { seed, jobs: EACH }) {
            Ok(figures) => figures,
            Err(failure) => bail!("in round {number}:\n{failure}{}", again()),
        };
        let warming = number < WARM_UP;
        let after = Live::wait_for(before, warming);
        if !warming && after != before {
            bail!("round {number} left something: {before} before, {after} after\n{}", again());
        }
        all += figures;
        number += 1;
        bar.set_position(all.jobs.min(jobs));
        bar.set_message(
            memory::resident().map_or_else(String::new, |now| HumanBytes(now).to_string()),
        );
    }
    let took = start.elapsed();
    bar.finish_and_clear();
    let Figures { jobs, ran, panicked, refused } = all;
    println!("{} jobs in {number} rounds: {} ran", HumanCount(jobs), HumanCount(ran));
    println!("{} panicked, {} refused", HumanCount(panicked), HumanCount(refused));
    println!(
        "{:.0} jobs per second, over {:.1} s",
        jobs as f64 / took.as_secs_f64(),
        took.as_secs_f64()
    );
    match memory::peak_resident() {
        Some(peak) => println!("peak memory: {} resident", HumanBytes(peak)),
        None => println!("peak memory: this system does not tell"),
    }
    println!("live at quiescence: {}, as after the warm-up", Live::now());
    lasting::play(seed, jobs / 10)
}
