//! Builds every example as a reader would, and runs each one briefly.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::{
    artifact::{self, Artifact},
    command,
    workspace::Workspace,
};

/// An example that takes longer than this with its smoke arguments is stuck.
const LIMIT: Duration = Duration::from_secs(120);

/// How to run one example briefly.
struct Smoke {
    example: &'static str,
    /// `{out}` stands for an empty directory that the example may write into. Other paths are
    /// relative to the root of the workspace.
    args: &'static [&'static str],
    /// The files that the example must have left in `{out}`, none of them empty.
    writes: &'static [&'static str],
}

/// One row for every example of the workspace. A new example needs a row here.
const SMOKE: &[Smoke] = &[
    Smoke {
        example: "device_pool",
        args: &["--seconds", "1", "--json", "{out}/device_pool.json"],
        writes: &["device_pool.json"],
    },
    Smoke { example: "graceful_shutdown", args: &["{out}", "--seconds", "1"], writes: &["log"] },
    Smoke {
        example: "overload",
        args: &[
            "crates",
            "--seconds-per-step",
            "0.3",
            "--json",
            "{out}/overload.json",
            "--html",
            "{out}/overload.html",
        ],
        writes: &["overload.json", "overload.html"],
    },
];

pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut ran = 0;
    for package in &workspace.packages {
        for target in package.targets.iter().filter(|target| target.is("example")) {
            let name = &target.name;
            let smoke = SMOKE.iter().find(|smoke| smoke.example == name).with_context(|| {
                format!(
                    "the example `{name}` of `{}` has no row in SMOKE (xtask/src/examples.rs): \
                         add one with arguments that make it run for a second or two",
                    package.name
                )
            })?;
            let mut cargo = workspace.cargo();
            // Without `-p` and `--all-features`, as the README has it, so that this is what a
            // reader gets and nothing is built twice.
            cargo.args(["build", "--release", "--example", name]);
            for feature in &target.required_features {
                cargo.args(["--features", &format!("{}/{feature}", package.name)]);
            }
            println!("$ {}", command::shown(&cargo));
            let built = artifact::build(&mut cargo, Stdio::inherit())?;
            let program = built
                .iter()
                .find(|built| built.target == *name)
                .with_context(|| format!("cargo built no executable for the example `{name}`"))?;
            run_briefly(workspace, smoke, program)?;
            ran += 1;
        }
    }
    println!("examples that ran to their end: {ran}");
    Ok(())
}

fn run_briefly(workspace: &Workspace, smoke: &Smoke, program: &Artifact) -> anyhow::Result<()> {
    let out = workspace.target.join("smoke").join(smoke.example);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;

    let mut command = program.command();
    let out_text = out.to_string_lossy();
    command
        .args(smoke.args.iter().map(|arg| arg.replace("{out}", &out_text)))
        .current_dir(&workspace.root);
    let shown = command::shown(&command);
    println!("$ {shown}");
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start `{shown}`"))?;
    match command::wait_within(&mut child, LIMIT)? {
        None => bail!("`{shown}` was still running after {} s", LIMIT.as_secs()),
        Some(status) if !status.success() => bail!("`{shown}` failed: {status}"),
        Some(_) => {}
    }
    for file in smoke.writes {
        let size = fs::metadata(out.join(file)).map(|metadata| metadata.len());
        if !matches!(size, Ok(1..)) {
            bail!("`{shown}` should have written {}", out.join(file).display());
        }
    }
    println!("example {} ... ok ({:.1} s)", smoke.example, started.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_example_has_two_rows() {
        for (at, smoke) in SMOKE.iter().enumerate() {
            let again = SMOKE[at + 1..].iter().any(|other| other.example == smoke.example);
            assert!(!again, "{}", smoke.example);
        }
    }
}
