//! Running other programs: every command is printed first, so that a failure can be repeated by hand.

use std::{
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// How often a child with a time limit is looked at.
const POLL: Duration = Duration::from_millis(10);

/// The command as a shell would take it.
pub(crate) fn shown(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| {
            let value = quoted(&value?.to_string_lossy());
            Some(format!("{}={value}", name.to_string_lossy()))
        })
        .collect();
    // Cargo hands its own full path to what it runs; a person types the name.
    let program = Path::new(command.get_program());
    let program = if program.file_stem().is_some_and(|stem| stem == "cargo") {
        Path::new("cargo")
    } else {
        program
    };
    words.push(quoted(&program.to_string_lossy()));
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs the command to its end on this terminal.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = shown(command);
    println!("$ {shown}");
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed: {status}");
    }
    Ok(())
}

/// Runs the command quietly and returns what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let shown = shown(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` failed: {}\n{}", output.status, why.trim_end());
    }
    Ok(output.stdout)
}

/// Waits for the child for at most `limit`, then kills it: `None` says that it had to be killed.
pub(crate) fn wait_within(
    child: &mut Child,
    limit: Duration,
) -> std::io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Fails with the way to install it where a program is missing.
pub(crate) fn require(probe: &mut Command, install: &str) -> anyhow::Result<()> {
    probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if probe.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    bail!("`{}` does not work here; install it with `{install}`", shown(probe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_would_take_it() {
        let mut command = Command::new("/some/where/bin/cargo");
        command.env("RUSTFLAGS", "--cfg tollgate_loom").args(["test", "--test", "loom*", ""]);
        assert_eq!(shown(&command), "RUSTFLAGS='--cfg tollgate_loom' cargo test --test 'loom*' ''");
    }

    #[test]
    fn a_child_that_outlives_its_limit_is_killed() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert_eq!(wait_within(&mut child, Duration::ZERO).unwrap(), None);
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_missing_program_is_reported_with_the_way_to_install_it() {
        let error = require(&mut Command::new("no-such-program"), "cargo install it").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`no-such-program` does not work here; install it with `cargo install it`"
        );
    }
}
