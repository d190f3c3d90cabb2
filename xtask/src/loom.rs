//! The loom models, each in a process of its own.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::bail;

use crate::{
    artifact::{self, Artifact, Verdict},
    command,
    workspace::{Package, Workspace, checked_release},
};

/// Under any of these loom stops before it has seen every schedule, and the model passes.
const STOPS_EARLY: [&str; 2] = ["LOOM_MAX_DURATION", "LOOM_MAX_PERMUTATIONS"];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Explore up to this many preemptions instead of each model's own bound
    #[arg(long, value_name = "N")]
    preemptions: Option<u32>,
    /// Kill a model that takes longer than this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = artifact::seconds)]
    limit: Duration,
    /// Run only the models whose name contains this
    filter: Option<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    refuse_early_stops()?;
    let mut programs = build(workspace, &workspace.with_tests_named("loom"), &["--test", "loom*"])?;
    // the other tests of a library are none of loom's
    let inside = build(workspace, &workspace.with_source_named("models.rs"), &["--lib"])?;
    programs.extend(inside);
    if programs.is_empty() {
        bail!(
            "there are no loom models: neither crates/*/tests/loom*.rs nor crates/*/src/**/models.rs"
        );
    }

    let logs = workspace.target.join("loom").join("logs");
    let envs: Vec<_> =
        options.preemptions.map(|n| ("LOOM_MAX_PREEMPTIONS", n.to_string())).into_iter().collect();
    let (mut passed, mut failed) = (0, 0);
    let wanted = |name: &String| options.filter.as_ref().is_none_or(|part| name.contains(part));
    for program in programs {
        let mut names = program.tests()?;
        if program.is_library {
            names.retain(|name| name.split("::").any(|module| module == "models"));
        }
        if names.is_empty() {
            bail!("`{}` holds no tests under `--cfg tollgate_loom`", program.target);
        }
        for name in names.into_iter().filter(wanted) {
            let log = artifact::log_path(&logs, &name);
            let ran = program.run_test(&name, &envs, &log, options.limit)?;
            let seconds = ran.took.as_secs_f64();
            if ran.verdict == Verdict::Passed {
                passed += 1;
                println!("model {name} ... ok ({seconds:.1} s)");
            } else {
                failed += 1;
                println!("model {name} ... {} ({seconds:.1} s)", ran.verdict);
                print!("{}", artifact::tail(&log, 40));
                println!("    all of it: {}", log.display());
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} loom models failed");
    }
    if passed == 0 {
        bail!("no loom model has `{}` in its name", options.filter.as_deref().unwrap_or_default());
    }
    Ok(())
}

/// Builds the test programs of these packages that are selected so.
fn build(
    workspace: &Workspace,
    packages: &[&Package],
    selection: &[&str],
) -> anyhow::Result<Vec<Artifact>> {
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    let mut cargo = workspace.cargo();
    cargo.arg("test");
    enable(&mut cargo, &workspace.target.join("loom"));
    cargo.args(selection);
    for package in packages {
        cargo.args(["-p", &package.name]);
    }
    println!("$ {}", command::shown(&cargo));
    artifact::build_tests(&mut cargo, Stdio::inherit())
}

/// Makes a `cargo test` command build the models, in a target directory of their own.
pub(crate) fn enable(cargo: &mut Command, target: &Path) {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    checked_release(cargo)
        .env("RUSTFLAGS", format!("{flags} --cfg tollgate_loom").trim_start())
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_TARGET_DIR", target);
}

pub(crate) fn refuse_early_stops() -> anyhow::Result<()> {
    for name in STOPS_EARLY {
        if env::var_os(name).is_some() {
            bail!("{name} is set, which lets an unfinished loom model pass: unset it");
        }
    }
    Ok(())
}
