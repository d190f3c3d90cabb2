//! Runs `examples/overload` as a process: its exit codes, its JSON, its page.
//!
//! `cargo test` builds the example beforehand; with `--test overload_cli` alone, an example that
//! was built earlier is used.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// The example lies beside this test's own folder.
fn overload() -> Command {
    let this_test = std::env::current_exe().expect("a test knows its own path");
    let profile = this_test.ancestors().nth(2).expect("tests lie in PROFILE/deps");
    let name = format!("overload{}", std::env::consts::EXE_SUFFIX);
    let example = profile.join("examples").join(name);
    assert!(
        example.exists(),
        "{} is missing: run `cargo test`, or build it with `cargo build --example overload`",
        example.display(),
    );
    Command::new(example)
}

fn folder() -> TempDir {
    TempDir::new().expect("a temporary folder can be made")
}

/// Some files of different sizes, one of them in a folder of its own.
fn corpus() -> TempDir {
    let root = folder();
    for (name, lines) in [("empty", 0), ("small", 10), ("medium", 200), ("large", 4_000)] {
        let text: String =
            (0..lines).map(|line| format!("{name} {line} {}\n", line * 7919)).collect();
        fs::write(root.path().join(name), text).expect("a temporary file can be written");
    }
    let inner = root.path().join("inner");
    fs::create_dir(&inner).expect("a temporary folder can be made");
    fs::write(inner.join("file"), "a file in a folder").expect("a temporary file can be written");
    root
}

/// The example's outputs go to a folder that is deleted afterwards.
struct Run {
    outputs: TempDir,
}

impl Run {
    fn new() -> Self {
        Self { outputs: folder() }
    }

    fn json(&self) -> PathBuf {
        self.outputs.path().join("overload.json")
    }

    fn html(&self) -> PathBuf {
        self.outputs.path().join("overload.html")
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = overload();
        command.arg(dir).arg("--json").arg(self.json()).arg("--html").arg(self.html());
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

/// The example refuses to run: exit code 2, and `expected` in what it says.
fn assert_refuses(mut command: Command, expected: &str) {
    let output = command.output().expect("the example starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_short_run_checks_itself_and_reports_every_step() {
    let (corpus, run) = (corpus(), Run::new());
    let mut command = run.command(corpus.path());
    let output = command.args(["--seconds-per-step", "0.1", "--seed", "7"]).output();
    let output = output.expect("the example starts");
    assert_eq!(output.status.code(), Some(0), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("self-check ok"), "{}", stdout(&output));
    assert!(stdout(&output).contains(&run.html().display().to_string()), "{}", stdout(&output));

    let figures = run.figures();
    assert_eq!(figures["seed"], 7);
    assert_eq!(figures["corpus"]["files"], 5);
    assert_eq!(figures["interrupted"], false);
    assert_eq!(figures["self_check"]["ok"], true);
    assert_eq!(figures["shutdown"]["complete"], true);
    assert_eq!(figures["bars"].as_array().map(Vec::len), Some(3));

    let steps = figures["steps"].as_array().expect("steps are a list");
    let ran: Vec<_> = steps.iter().map(|step| (step["service"].as_str(), &step["load"])).collect();
    let planned = ["tollgate", "spawn_blocking"].map(|service| LOADS.map(|load| (service, load)));
    let planned: Vec<_> = planned.into_iter().flatten().collect();
    assert_eq!(ran.len(), planned.len());
    for ((service, load), (planned_service, planned_load)) in ran.into_iter().zip(planned) {
        assert_eq!((service, load.as_f64()), (Some(planned_service), Some(planned_load)));
    }
    for step in steps {
        let count = |value: &Value| value.as_u64().expect("counts are whole numbers");
        let refused = step["refused"].as_object().expect("refusals are by cause");
        let ended = count(&step["done"])
            + refused.values().map(count).sum::<u64>()
            + count(&step["cancelled"]);
        assert_eq!(count(&step["offered"]), ended, "{step}");
        assert_eq!(count(&step["wrong"]), 0, "{step}");
    }
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let (corpus, run) = (corpus(), Run::new());
    let mut command = run.command(corpus.path());
    let output = command.args(["--seconds-per-step", "0.1"]).output().expect("the example starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = fs::read_to_string(run.html()).expect("the page was written");
    assert_eq!(page.matches("<svg").count(), 3);
    for reference in ["src=", "href=", "url(", "@import", "<script", "{{"] {
        assert!(!page.contains(reference), "the page holds {reference}");
    }
}

#[test]
fn a_missing_directory_is_refused_by_name() {
    let root = folder();
    let missing = root.path().join("no such folder");
    assert_refuses(Run::new().command(&missing), "no such folder");
}

#[test]
fn a_file_in_place_of_the_directory_is_refused() {
    let corpus = corpus();
    let file = corpus.path().join("small");
    assert_refuses(Run::new().command(&file), "is not a directory");
}

#[test]
fn a_directory_without_files_is_refused() {
    let root = folder();
    fs::create_dir(root.path().join("inner")).expect("a temporary folder can be made");
    assert_refuses(Run::new().command(root.path()), "no files below");
}

#[test]
fn skipped_folders_hold_no_files() {
    let root = folder();
    for name in [".git", "target"] {
        fs::create_dir(root.path().join(name)).expect("a temporary folder can be made");
        fs::write(root.path().join(name).join("file"), "x").expect("a file can be written");
    }
    assert_refuses(Run::new().command(root.path()), "no files below");
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_is_refused_by_name() {
    let corpus = corpus();
    // Unlike a file without permissions, it is unreadable for every user.
    std::os::unix::fs::symlink("nowhere", corpus.path().join("dangling"))
        .expect("a link can be made");
    assert_refuses(Run::new().command(corpus.path()), "dangling");
}

#[test]
fn a_bad_number_is_refused() {
    let corpus = corpus();
    for (option, value) in [
        ("--seconds-per-step", "soon"),
        ("--seconds-per-step", "0"),
        ("--seconds-per-step", "-1"),
        ("--seconds-per-step", "NaN"),
        ("--seconds-per-step", "inf"),
        ("--seconds-per-step", "1e300"),
        ("--seed", "1.5"),
    ] {
        let mut command = Run::new().command(corpus.path());
        command.args([option, value]);
        assert_refuses(command, option);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_run() {
    let corpus = corpus();
    let mut command = overload();
    let nowhere = corpus.path().join("no such folder").join("figures.json");
    command.arg(corpus.path()).arg("--json").arg(nowhere);
    command.arg("--html").arg(corpus.path().join("page.html"));
    assert_refuses(command, "figures.json");
}

#[test]
fn a_wrong_answer_fails_the_run() {
    let (corpus, run) = (corpus(), Run::new());
    let mut command = run.command(corpus.path());
    command.args(["--seconds-per-step", "0.2"]);
    let under_load = UnderLoad::start(command);
    // The serial pass is over, so from now on this file's hash is another one.
    fs::write(corpus.path().join("medium"), "changed").expect("a file can be written");

    let output = under_load.end();
    assert_eq!(output.status.code(), Some(1), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("self-check FAILED"), "{}", stdout(&output));
    assert!(stdout(&output).contains("medium"), "{}", stdout(&output));
    assert_eq!(run.figures()["self_check"]["ok"], false);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_gracefully() {
    let (corpus, run) = (corpus(), Run::new());
    let mut command = run.command(corpus.path());
    command.args(["--seconds-per-step", "1"]);
    let under_load = UnderLoad::start(command);
    let id = under_load.child.id().to_string();
    let kill = Command::new("kill").args(["-INT", &id]).status().expect("kill can be run");
    assert!(kill.success());

    let output = under_load.end();
    assert_eq!(output.status.code(), Some(130), "{}\n{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("shutting down gracefully"), "{}", stderr(&output));
    assert!(stdout(&output).contains("shutdown"), "{}", stdout(&output));

    let figures = run.figures();
    assert_eq!(figures["interrupted"], true);
    assert_eq!(figures["self_check"]["ok"], true);
    assert_eq!(figures["shutdown"]["complete"], true);
    assert!(figures["steps"].as_array().is_some_and(|steps| steps.len() < 2 * LOADS.len()));
}

/// The example, once it knows its capacity: the first step is under way.
struct UnderLoad {
    child: Child,
    stderr: BufReader<ChildStderr>,
    said: Vec<u8>,
}

impl UnderLoad {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the example starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut said = String::new();
        while !said.contains("[1/") {
            let read = stderr.read_line(&mut said).expect("stderr is text");
            assert_ne!(read, 0, "the example ended without measuring the capacity: {said}");
        }
        Self { child, stderr, said: said.into_bytes() }
    }

    fn end(mut self) -> Output {
        self.stderr.read_to_end(&mut self.said).expect("stderr can be read");
        let output = self.child.wait_with_output().expect("the example ends");
        Output { stderr: self.said, ..output }
    }
}
