//! Runs `examples/graceful_shutdown` as a process: signals, exit codes, and what it leaves on the disk.
//!
//! `cargo test` builds the example beforehand; with `--test graceful_shutdown_cli` alone, an example that was built
//! earlier is used.
#![cfg(unix)]

#[allow(dead_code, reason = "the example itself uses all of it")]
#[path = "../examples/graceful_shutdown/clients.rs"]
mod clients;
#[allow(dead_code, reason = "the example itself uses all of it")]
#[path = "../examples/graceful_shutdown/store/mod.rs"]
mod store;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use store::disk::FileDisk;
use store::log::{Log, Recovered};

/// After this time a child that hangs is killed, and its test fails. No test passes by waiting this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The example lies beside this test's own folder.
fn example() -> Command {
    let this_test = std::env::current_exe().expect("a test knows its own path");
    let profile = this_test.ancestors().nth(2).expect("tests lie in PROFILE/deps");
    let example = profile.join("examples").join("graceful_shutdown");
    assert!(
        example.exists(),
        "{} is missing: run `cargo test`, or build it with `cargo build --example graceful_shutdown`",
        example.display(),
    );
    Command::new(example)
}

fn folder() -> TempDir {
    TempDir::new().expect("a temporary folder can be made")
}

/// A running example. It is killed when it has outlived the test's patience, or when the test fails.
struct Running {
    child: Arc<Mutex<Child>>,
    stdout: BufReader<ChildStdout>,
    stderr: JoinHandle<String>,
    said: String,
    /// Dropped to end the watchdog, which then has nothing to kill.
    done: Option<Sender<()>>,
    watchdog: Option<JoinHandle<()>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the example starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let stderr = std::thread::spawn(move || {
            let mut said = String::new();
            // What can't be read is missing from a message only.
            let _ = stderr.read_to_string(&mut said);
            said
        });
        let child = Arc::new(Mutex::new(child));
        let watched = Arc::clone(&child);
        let (done, ended) = channel();
        let watchdog = std::thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // Its stdout ends with it, so the test goes on, and fails.
                let _ = watched.lock().kill();
            }
        });
        let (done, watchdog) = (Some(done), Some(watchdog));
        Running { child, stdout, stderr, said: String::new(), done, watchdog }
    }

    /// Reads on until a line that holds `text` has come.
    fn wait_for(&mut self, text: &str) {
        loop {
            let from = self.said.len();
            let read = self.stdout.read_line(&mut self.said).expect("stdout is text");
            assert_ne!(read, 0, "it ended without saying {text:?}:\n{}", self.said);
            if self.said[from..].contains(text) {
                return;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.lock().id().to_string();
        let kill = Command::new("kill").args([signal, &id]).status().expect("kill can be run");
        assert!(kill.success());
    }

    fn end(mut self) -> Ended {
        // To the end of its output first: a child that can't write does not end.
        self.stdout.read_to_string(&mut self.said).expect("stdout is text");
        let status = self.child.lock().wait().expect("a child can be waited for");
        self.done = None;
        let stderr = std::mem::replace(&mut self.stderr, std::thread::spawn(String::new));
        let stderr = stderr.join().expect("reading does not panic");
        Ended { status, stdout: std::mem::take(&mut self.said), stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.done = None;
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
        // It is waited for already, unless the test failed.
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn assert_code(&self, code: i32) {
        let Ended { status, .. } = self;
        assert_eq!(status.code(), Some(code), "{status}\n{}\n{}", self.summary(), self.stderr);
    }

    fn assert_says(&self, text: &str) {
        assert!(self.stdout.contains(text), "it does not say {text:?}:\n{}", self.summary());
    }

    /// The keys of the writes that it called acknowledged.
    fn acknowledged(&self) -> Vec<&str> {
        self.stdout.lines().filter_map(|line| line.strip_prefix("acknowledged ")).collect()
    }

    /// Everything else.
    fn summary(&self) -> String {
        let lines = self.stdout.lines().filter(|line| !line.starts_with("acknowledged "));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// A store in `dir` with many clients, past its first acknowledged write.
fn at_work(dir: &Path, options: &[&str]) -> Running {
    let mut command = example();
    command.arg(dir).args(["--print-acks", "--writers", "24"]).args(options);
    let mut running = Running::start(command);
    running.wait_for("acknowledged ");
    running
}

fn reopen(dir: &Path) -> Recovered {
    let disk = FileDisk::open(dir).expect("the process that had it is gone");
    let (_, recovered) = Log::open(disk).expect("what it left is a log");
    recovered
}

fn assert_holds(contents: &BTreeMap<String, Vec<u8>>, acknowledged: &[&str]) {
    assert!(!acknowledged.is_empty());
    for &key in acknowledged {
        let value = contents.get(key);
        assert!(value.is_some(), "{key} was acknowledged and is lost");
        assert!(value == Some(&clients::value(key)), "{key} holds something else than was written");
    }
}

fn ends_well_on(signal: &str, name: &str) {
    let dir = folder();
    let running = at_work(dir.path(), &["--deadline-ms", "30000"]);
    running.signal(signal);
    let ended = running.end();
    ended.assert_code(0);
    ended.assert_says(&format!("{name}: shutting down"));
    ended.assert_says("scope \"store\" is closed");
    ended.assert_says("its scope is closed");
    ended.assert_says("last flush: done");
    ended.assert_says("check ok");

    let recovered = reopen(dir.path());
    assert!(recovered.clean, "the log is marked");
    assert_holds(&recovered.contents, &ended.acknowledged());
}

/// A18: the writes that waited are refused, for a reason that is printed.
#[test]
fn sigterm_ends_it_within_its_deadline_and_nothing_acknowledged_is_lost() {
    ends_well_on("-TERM", "SIGTERM");
}

#[test]
fn ctrl_c_ends_it_too() {
    ends_well_on("-INT", "ctrl-c");
}

#[test]
fn a_store_that_was_killed_holds_what_was_acknowledged_and_goes_on() {
    let dir = folder();
    let running = at_work(dir.path(), &[]);
    running.signal("-KILL");
    let killed = running.end();
    assert_eq!(killed.status.code(), None, "{}", killed.status);

    let running = at_work(dir.path(), &[]);
    running.signal("-TERM");
    let ended = running.end();
    ended.assert_code(0);
    let recovered = reopen(dir.path());
    assert_holds(&recovered.contents, &killed.acknowledged());
    assert_holds(&recovered.contents, &ended.acknowledged());
}

#[test]
fn a_closure_that_never_ends_is_named_and_ends_the_process_with_the_code_that_was_asked_for() {
    let dir = folder();
    let options = ["--stuck", "--deadline-ms", "3000", "--exit-code-on-stuck", "42"];
    let running = at_work(dir.path(), &options);
    running.signal("-TERM");
    let ended = running.end();
    ended.assert_code(42);
    ended.assert_says("scope \"store\" is not closed");
    // The pool may have told nobody yet that its time is up, which is now.
    let named = ended.stdout.lines().find(|line| line.contains("\"a job that never ends\""));
    assert!(named.is_some_and(|line| line.contains("running, for")), "{}", ended.summary());
    // It holds up nothing but the end.
    ended.assert_says("last flush: done");
    let recovered = reopen(dir.path());
    assert!(recovered.clean, "the log is marked");
    assert_holds(&recovered.contents, &ended.acknowledged());
}

#[test]
fn a_second_signal_ends_a_shutdown_that_hangs() {
    let dir = folder();
    let mut running = at_work(dir.path(), &["--stuck", "--deadline-ms", "3600000"]);
    running.signal("-TERM");
    running.wait_for("SIGTERM: shutting down");
    running.signal("-TERM");
    running.end().assert_code(130);
}

#[test]
fn it_ends_by_itself_and_checks_the_store() {
    let mut command = example();
    command.args(["--seconds", "0.2", "--writers", "3"]);
    let ended = Running::start(command).end();
    ended.assert_code(0);
    ended.assert_says("the time is up");
    ended.assert_says("check ok");
}

/// The example refuses to run: exit code 2, and `expected` in what it says.
fn assert_refuses(mut command: Command, expected: &str) {
    command.args(["--seconds", "0.1"]);
    let ended = Running::start(command).end();
    ended.assert_code(2);
    assert!(ended.stderr.contains(expected), "{:?} does not say {expected:?}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn a_file_in_place_of_the_directory_is_refused_by_name() {
    let dir = folder();
    let file = dir.path().join("a file");
    fs::write(&file, "text").expect("a file can be written");
    let mut command = example();
    command.arg(&file);
    assert_refuses(command, "a file");
}

#[test]
fn a_log_that_is_none_is_refused_and_left_alone() {
    let dir = folder();
    fs::write(dir.path().join("log"), "of something else").expect("a file can be written");
    let mut command = example();
    command.arg(dir.path());
    assert_refuses(command, "something else than a log");
    let log = fs::read_to_string(dir.path().join("log")).expect("it is there");
    assert_eq!(log, "of something else");
}

#[test]
fn a_store_that_another_process_has_is_refused() {
    let dir = folder();
    let running = at_work(dir.path(), &[]);
    let mut command = example();
    command.arg(dir.path());
    assert_refuses(command, "in use by another process");
    running.signal("-TERM");
    running.end().assert_code(0);
}

#[test]
fn a_bad_number_is_refused() {
    for (option, value) in [
        ("--writers", "0"),
        ("--writers", "many"),
        ("--deadline-ms", "0"),
        ("--deadline-ms", "-1"),
        ("--exit-code-on-stuck", "0"),
        ("--exit-code-on-stuck", "256"),
    ] {
        let mut command = example();
        command.args([option, value]);
        assert_refuses(command, option);
    }
    for value in ["soon", "-1", "NaN", "inf", "1e300"] {
        let mut command = example();
        command.args(["--seconds", value]);
        let ended = Running::start(command).end();
        ended.assert_code(2);
        assert!(ended.stderr.contains("--seconds"), "{}", ended.stderr);
    }
}
