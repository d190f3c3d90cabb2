//! Every check, in order.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;

use crate::{Cli, faults, workspace::Workspace};

/// Each step is a command of its own, so what failed can be repeated alone.
///
/// Cheap checks come first. The full run of the faults rebuilds the crates once per patch, so here
/// only their patches are checked.
const STEPS: [&str; 8] =
    ["fmt", "clippy", "test", "examples", "loom", "prop", "doc", "faults --check"];

pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut table = faults::table(["step", "result", "seconds"]);
    let mut failed = None;
    let started = Instant::now();
    for step in STEPS {
        if failed.is_some() {
            table.add_row([step, "not run", ""]);
            continue;
        }
        println!("\n==> cargo xtask {step}");
        let step_started = Instant::now();
        let result = run_step(workspace, step);
        let word = if result.is_ok() { "ok" } else { "failed" };
        table.add_row([step, word, &seconds(step_started.elapsed())]);
        failed = result.err().map(|error| (step, error));
    }
    println!("\n{table}\nall steps: {} s", seconds(started.elapsed()));
    if let Some((step, error)) = failed {
        bail!("{error:#}\nto repeat this step alone: cargo xtask {step}");
    }
    Ok(())
}

fn run_step(workspace: &Workspace, step: &str) -> anyhow::Result<()> {
    parse(step)?.task.context("a step names a command")?.run(workspace)
}

fn parse(step: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(["xtask"].into_iter().chain(step.split(' ')))
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_a_command_that_can_be_typed() {
        for step in STEPS {
            assert!(parse(step).is_ok_and(|cli| cli.task.is_some()), "{step}");
        }
    }
}
