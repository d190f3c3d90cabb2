//! The checks and measurements that are a cargo command each.

use std::process::Command;

use anyhow::bail;

use crate::{
    command::{require, run},
    workspace::{Workspace, checked_release},
};

#[derive(Debug, clap::Args)]
pub(crate) struct TestOptions {
    /// Run the unit and integration tests with cargo-nextest
    #[arg(long)]
    nextest: bool,
    /// Passed on to the test command: a part of a test's name, for example
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PropOptions {
    /// How many cases each property is tried with
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    cases: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Passed on to `cargo bench`, for example `--bench acquire`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VersusOptions {
    /// End within a minute, with wider error bars
    #[arg(long)]
    quick: bool,
    /// Passed on to the comparison
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// How many jobs are made
    #[arg(long, value_name = "N", default_value_t = 10_000_000,
          value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// What decides them, to repeat a run [default: the time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

pub(crate) fn fmt(workspace: &Workspace) -> anyhow::Result<()> {
    require(workspace.cargo().args(["fmt", "--version"]), "rustup component add rustfmt")?;
    run(workspace.cargo().args(["fmt", "--all", "--check"]))
}

pub(crate) fn clippy(workspace: &Workspace) -> anyhow::Result<()> {
    require(workspace.cargo().args(["clippy", "--version"]), "rustup component add clippy")?;
    let deny = ["--", "-D", "warnings"];
    run(workspace
        .cargo()
        .args(["clippy", "--workspace", "--all-targets", "--all-features"])
        .args(deny))?;
    run(libraries(workspace, "clippy").arg("--no-default-features").args(deny))
}

pub(crate) fn test(workspace: &Workspace, options: &TestOptions) -> anyhow::Result<()> {
    // Without target flags: these leave out the doc tests, and the examples that tests start.
    let everything = ["--workspace", "--all-features"];
    if !options.nextest {
        return run(workspace.cargo().arg("test").args(everything).args(&options.args));
    }
    require(
        workspace.cargo().args(["nextest", "--version"]),
        "cargo install cargo-nextest --locked",
    )?;
    run(workspace.cargo().args(["nextest", "run"]).args(everything).args(&options.args))?;
    run(workspace.cargo().args(["test", "--doc"]).args(everything).args(&options.args))
}

pub(crate) fn prop(workspace: &Workspace, options: &PropOptions) -> anyhow::Result<()> {
    let outside = workspace.with_tests_named("prop");
    let inside = workspace.with_source_named("props.rs");
    if outside.is_empty() && inside.is_empty() {
        bail!(
            "there are no property tests: neither crates/*/tests/prop*.rs nor crates/*/src/**/props.rs"
        );
    }
    // the other tests of a library are none of these
    let suites = [(outside, ["--test", "prop*"], ""), (inside, ["--lib", "--"], "props::")];
    for (packages, selection, filter) in suites {
        if packages.is_empty() {
            continue;
        }
        let mut cargo = workspace.cargo();
        cargo.arg("test");
        checked_release(&mut cargo).arg("--all-features");
        for package in packages {
            cargo.args(["-p", &package.name]);
        }
        cargo.args(selection).args((!filter.is_empty()).then_some(filter));
        run(cargo.env("PROPTEST_CASES", options.cases.to_string()))?;
    }
    Ok(())
}

pub(crate) fn doc(workspace: &Workspace) -> anyhow::Result<()> {
    run(workspace
        .cargo()
        .args(["doc", "--workspace", "--all-features", "--no-deps"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}

pub(crate) fn bench(workspace: &Workspace, options: &BenchOptions) -> anyhow::Result<()> {
    run(workspace.cargo().args(["bench", "-p", "tollgate-benches"]).args(&options.args))
}

pub(crate) fn versus(workspace: &Workspace, options: &VersusOptions) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--release", "-p", "tollgate-benches", "--bin", "versus", "--"]);
    if options.quick {
        cargo.arg("--quick");
    }
    run(cargo.args(&options.args))
}

pub(crate) fn soak(workspace: &Workspace, options: &SoakOptions) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["run", "--release", "-p", "tollgate-benches", "--bin", "soak", "--"]);
    cargo.args(["--jobs", &options.jobs.to_string()]);
    if let Some(seed) = options.seed {
        cargo.args(["--seed", &seed.to_string()]);
    }
    run(&mut cargo)
}

fn libraries(workspace: &Workspace, subcommand: &str) -> Command {
    let mut cargo = workspace.cargo();
    cargo.arg(subcommand);
    for package in workspace.libraries() {
        cargo.args(["-p", &package.name]);
    }
    cargo
}
