//! The commands of this workspace. `cargo xtask` lists them; `cargo xtask ci` runs every check.

mod artifact;
mod ci;
mod command;
mod examples;
mod faults;
mod loom;
mod suites;
mod workspace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::workspace::Workspace;

/// The commands of the tollgate workspace.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run every check, in order, and stop at the first that fails
    ///
    /// The checks are fmt, clippy, test (with doc tests), examples, loom, prop, doc, and whether
    /// the patches of the faults still apply.
    Ci,
    /// Check the formatting
    Fmt,
    /// Run clippy with warnings denied: all features, then the library crates without features
    Clippy,
    /// Run the unit, integration and doc tests
    Test(suites::TestOptions),
    /// Build every example and run each one briefly
    Examples,
    /// Run the loom models (`crates/*/tests/loom*.rs`), each test in a process of its own
    Loom(loom::Options),
    /// Run the property tests (`crates/*/tests/prop*.rs`), optimised and with debug assertions
    Prop(suites::PropOptions),
    /// Build the documentation with warnings denied
    Doc,
    /// Run the criterion benches
    Bench(suites::BenchOptions),
    /// Compare tollgate with its peers, and write target/versus.json
    Versus(suites::VersusOptions),
    /// Make millions of jobs and do to them whatever can be done; nothing may be lost or left
    ///
    /// Plays the rounds of the chaos test (`crates/tollgate-blocking/tests/chaos`), and requires that as much memory is
    /// in use after each round as before it.
    Soak(suites::SoakOptions),
    /// Break one invariant at a time and require the test that guards it to fail
    ///
    /// Every `faults/*.patch` names a test. It must pass on the tree as it is, and fail with the
    /// patch applied. The work happens in a copy, below target/faults.
    Faults(faults::Options),
}

impl Task {
    fn run(self, workspace: &Workspace) -> anyhow::Result<()> {
        match self {
            Self::Ci => ci::run(workspace),
            Self::Fmt => suites::fmt(workspace),
            Self::Clippy => suites::clippy(workspace),
            Self::Test(options) => suites::test(workspace, &options),
            Self::Examples => examples::run(workspace),
            Self::Loom(options) => loom::run(workspace, &options),
            Self::Prop(options) => suites::prop(workspace, &options),
            Self::Doc => suites::doc(workspace),
            Self::Bench(options) => suites::bench(workspace, &options),
            Self::Versus(options) => suites::versus(workspace, &options),
            Self::Soak(options) => suites::soak(workspace, &options),
            Self::Faults(options) => faults::run(workspace, &options),
        }
    }
}

fn main() -> ExitCode {
    let Some(task) = Cli::parse().task else {
        // Nothing useful is left to do when standard output is gone.
        let _ = Cli::command().print_help();
        return ExitCode::SUCCESS;
    };
    match Workspace::load().and_then(|workspace| task.run(&workspace)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
