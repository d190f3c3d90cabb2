//! Runs `examples/device_pool` as a process: its exit codes, its JSON.
//!
//! `cargo test` builds the example beforehand; with `--test device_pool_cli` alone, an example that
//! was built earlier is used.
#![cfg(feature = "device")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The example lies beside this test's own folder.
fn device_pool() -> Command {
    let this_test = std::env::current_exe().expect("a test knows its own path");
    let profile = this_test.ancestors().nth(2).expect("tests lie in PROFILE/deps");
    let name = format!("device_pool{}", std::env::consts::EXE_SUFFIX);
    let example = profile.join("examples").join(name);
    assert!(
        example.exists(),
        "{} is missing: run `cargo test`, or build it with `cargo build --example device_pool`",
        example.display(),
    );
    Command::new(example)
}

/// The example's figures go to a folder that is deleted afterwards.
struct Run {
    folder: TempDir,
}

impl Run {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary folder can be made") }
    }

    fn json(&self) -> PathBuf {
        self.folder.path().join("device_pool.json")
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = device_pool();
        command.arg("--json").arg(self.json()).args(options);
        command
    }

    fn figures(&self) -> Value {
        let json = fs::read(self.json()).expect("the figures were written");
        serde_json::from_slice(&json).expect("the figures are JSON")
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn count(value: &Value) -> u64 {
    value.as_u64().expect("counts are whole numbers")
}

/// Every query has one outcome, and none is a failure.
fn assert_adds_up(figures: &Value) {
    let outcomes = figures["outcomes"].as_array().expect("outcomes are a list");
    let names: Vec<_> = outcomes.iter().filter_map(|outcome| outcome["outcome"].as_str()).collect();
    assert_eq!(names, ["done", "refused", "timed out", "cancelled", "failed"]);
    let counts: Vec<_> = outcomes.iter().map(|outcome| count(&outcome["count"])).collect();
    assert_eq!(counts[4], 0, "{figures}");
    assert_eq!(count(&figures["offered"]), counts.iter().sum::<u64>(), "{figures}");
    assert_eq!(count(&figures["wrong"]), 0, "{figures}");
}

/// The example refuses to run: exit code 2, and `expected` in what it says.
fn assert_refuses(mut command: Command, expected: &str) {
    let output = command.output().expect("the example starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_short_run_checks_itself_and_accounts_for_every_query() {
    let run = Run::new();
    let options = ["--seconds", "0.3", "--clients", "20", "--seed", "7"];
    let output = run.command(&options).output().expect("the example starts");
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("check ok"), "{}", stdout(&output));
    assert!(stdout(&output).contains("scope \"queries\" is closed"), "{}", stdout(&output));
    // Where there is no terminal, what goes on is told in lines.
    assert!(stderr(&output).contains("gpu1: "), "{}", stderr(&output));

    let figures = run.figures();
    assert_eq!((count(&figures["seed"]), count(&figures["clients"])), (7, 20));
    assert_eq!(figures["interrupted_by"], Value::Null);
    assert_eq!(figures["check"]["ok"], true, "{figures}");
    assert_eq!(figures["shutdown"]["complete"], true, "{figures}");
    assert!(count(&figures["offered"]) >= 20, "{figures}");
    assert_adds_up(&figures);
    let pools = figures["pools"].as_array().expect("pools are a list");
    let devices: Vec<_> = pools.iter().filter_map(|pool| pool["device"].as_str()).collect();
    assert_eq!(devices, ["gpu0", "gpu1"]);
}

#[test]
fn a_bad_number_is_refused() {
    for (option, value) in [
        ("--seconds", "soon"),
        ("--seconds", "0"),
        ("--seconds", "-1"),
        ("--seconds", "NaN"),
        ("--seconds", "inf"),
        ("--seconds", "1e300"),
        ("--clients", "0"),
        ("--clients", "-1"),
        ("--clients", "many"),
        ("--clients", "65536"),
        ("--seed", "1.5"),
        ("--seed", "-1"),
    ] {
        assert_refuses(Run::new().command(&[option, value]), option);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_run() {
    let run = Run::new();
    let mut command = device_pool();
    command.arg("--json").arg(run.folder.path().join("no such folder").join("figures.json"));
    assert_refuses(command, "figures.json");
}

#[cfg(unix)]
fn ends_well_on(signal: &str, name: &str, code: i32) {
    let run = Run::new();
    let mut command = run.command(&["--seconds", "3600", "--clients", "20"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the example starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let mut said = String::new();
    // Clients are at work from the first line on.
    while !said.contains("gpu1: ") {
        let read = stderr.read_line(&mut said).expect("stderr is text");
        assert_ne!(read, 0, "the example ended by itself: {said}");
    }
    let id = child.id().to_string();
    let kill = Command::new("kill").args([signal, &id]).status().expect("kill can be run");
    assert!(kill.success());
    stderr.read_to_string(&mut said).expect("stderr is text");
    let output = child.wait_with_output().expect("the example ends");
    assert_eq!(output.status.code(), Some(code), "{}\n{said}", stdout(&output));
    assert!(said.contains(&format!("{name}: ending in good order")), "{said}");
    let stdout = stdout(&output);
    assert!(stdout.contains("check ok") && stdout.contains("shutdown: complete"), "{stdout}");
    assert!(stdout.contains(&format!("{name} ended the run early")), "{stdout}");

    let figures = run.figures();
    assert_eq!(figures["interrupted_by"], name);
    assert_eq!(figures["check"]["ok"], true, "{figures}");
    assert_eq!(figures["shutdown"]["complete"], true, "{figures}");
    assert_adds_up(&figures);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_in_good_order() {
    ends_well_on("-INT", "ctrl-c", 130);
}

#[cfg(unix)]
#[test]
fn sigterm_ends_a_run_in_good_order() {
    ends_well_on("-TERM", "SIGTERM", 143);
}
