//! Programs that cargo has built, run one by one and under a time limit.

use std::{
    fmt,
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::command;

/// The exit status of a test program in which a test failed.
const LIBTEST_FAILED: i32 = 101;
const SIGABRT: i32 = 6;

/// An executable, and the package directory in which cargo would run it.
#[derive(Debug)]
pub(crate) struct Artifact {
    pub(crate) target: String,
    path: PathBuf,
    package: PathBuf,
    is_test: bool,
    /// Its tests are those inside a library.
    pub(crate) is_library: bool,
}

/// Builds with the given cargo command and returns the executables of its targets.
///
/// Compiler messages go to `diagnostics`.
pub(crate) fn build(cargo: &mut Command, diagnostics: Stdio) -> anyhow::Result<Vec<Artifact>> {
    let shown = command::shown(cargo);
    cargo.arg("--message-format=json-render-diagnostics").stdin(Stdio::null()).stderr(diagnostics);
    let output = cargo.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", output.status);
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    Ok(artifacts(&messages))
}

/// As [`build`], for a `cargo test` command: the test programs alone.
pub(crate) fn build_tests(
    cargo: &mut Command,
    diagnostics: Stdio,
) -> anyhow::Result<Vec<Artifact>> {
    let mut built = build(cargo.arg("--no-run"), diagnostics)?;
    built.retain(|artifact| artifact.is_test);
    Ok(built)
}

fn artifacts(messages: &str) -> Vec<Artifact> {
    #[derive(Deserialize)]
    struct Message {
        executable: PathBuf,
        manifest_path: PathBuf,
        profile: Profile,
        target: Target,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    // Other kinds of message, and artifacts without an executable, lack one of the fields.
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .map(|message| Artifact {
            is_library: message.target.kind.iter().any(|kind| kind == "lib"),
            target: message.target.name,
            path: message.executable,
            package: message.manifest_path.parent().map(Path::to_path_buf).unwrap_or_default(),
            is_test: message.profile.test,
        })
        .collect()
}

/// How a single test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// A panic ended the whole process.
    Aborted,
    TimedOut,
    Ignored,
    /// The program has no test of that name.
    NotFound,
    /// The program ended in a way that says nothing about the test.
    Unclear(ExitStatus),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed => f.write_str("failed"),
            Self::Aborted => f.write_str("aborted"),
            Self::TimedOut => f.write_str("was still running at its time limit"),
            Self::Ignored => f.write_str("is ignored"),
            Self::NotFound => f.write_str("does not exist"),
            Self::Unclear(status) => write!(f, "ended with {status} and without a test result"),
        }
    }
}

/// The verdict on a single test, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
}

impl Artifact {
    /// The program, with the environment that `cargo run` and `cargo test` give it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.env("CARGO_MANIFEST_DIR", &self.package).stdin(Stdio::null());
        command
    }

    /// The names of the tests in this program.
    pub(crate) fn tests(&self) -> anyhow::Result<Vec<String>> {
        let mut list = self.command();
        let list = command::output(list.args(["--list", "--format", "terse"]))?;
        let list = String::from_utf8_lossy(&list);
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Runs one test, with its output in `log`.
    pub(crate) fn run_test(
        &self,
        name: &str,
        envs: &[(&str, String)],
        log: &Path,
        limit: Duration,
    ) -> anyhow::Result<Ran> {
        let file = create(log)?;
        let mut command = self.command();
        // Uncaptured, so that the log says why a process aborted or hung.
        command
            .args(["--exact", name, "--nocapture", "--color", "never"])
            .envs(envs.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.package)
            .stdout(file.try_clone()?)
            .stderr(file);
        let started = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", command::shown(&command)))?;
        let status = command::wait_within(&mut child, limit)?;
        let took = started.elapsed();
        let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        Ok(Ran { verdict: verdict(status, &output), took })
    }
}

fn verdict(status: Option<ExitStatus>, output: &str) -> Verdict {
    let Some(status) = status else { return Verdict::TimedOut };
    let result = output.lines().rev().find_map(|line| line.strip_prefix("test result: "));
    match (status.code(), result) {
        (Some(0), Some(result)) if result.starts_with("ok. 1 passed") => Verdict::Passed,
        (Some(0), Some(result)) if result.contains(" 1 ignored") => Verdict::Ignored,
        (Some(0), Some(_)) => Verdict::NotFound,
        (Some(LIBTEST_FAILED), Some(result))
            if result.starts_with("FAILED. 0 passed; 1 failed") =>
        {
            Verdict::Failed
        }
        _ if status.signal() == Some(SIGABRT) && output.contains("panicked at") => Verdict::Aborted,
        _ => Verdict::Unclear(status),
    }
}

/// Creates a file and the directories it is in.
pub(crate) fn create(path: &Path) -> anyhow::Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    File::create(path).with_context(|| format!("cannot create {}", path.display()))
}

/// The last lines of a log, indented, to be shown under a failure.
pub(crate) fn tail(log: &Path, lines: usize) -> String {
    let Ok(bytes) = fs::read(log) else { return String::new() };
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| format!("    {line}\n")).collect()
}

/// The directory for logs of one kind, below the target directory.
pub(crate) fn log_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{}.log", name.replace("::", ".")))
}

/// A limit in whole seconds, for the command line.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of seconds, 1 or more".into()),
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    fn killed(signal: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(signal))
    }

    #[test]
    fn one_passed_test_is_a_pass() {
        let output = "running 1 test\ntest a ... ok\n\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        assert_eq!(verdict(exited(0), output), Verdict::Passed);
    }

    #[test]
    fn a_run_without_tests_is_not_a_pass() {
        let output = "running 0 tests\n\n\
                      test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        assert_eq!(verdict(exited(0), output), Verdict::NotFound);
    }

    #[test]
    fn an_ignored_test_is_not_a_pass() {
        let output = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out\n";
        assert_eq!(verdict(exited(0), output), Verdict::Ignored);
    }

    #[test]
    fn a_failure_needs_both_the_exit_code_and_the_result_line() {
        let output = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered\n";
        assert_eq!(verdict(exited(101), output), Verdict::Failed);
        assert_eq!(verdict(exited(1), output), Verdict::Unclear(exited(1).unwrap()));
        assert_eq!(verdict(exited(101), ""), Verdict::Unclear(exited(101).unwrap()));
    }

    #[test]
    fn an_abort_counts_only_after_a_panic() {
        assert_eq!(verdict(killed(6), "thread 'a' panicked at src/lib.rs:1"), Verdict::Aborted);
        assert_eq!(verdict(killed(6), ""), Verdict::Unclear(killed(6).unwrap()));
        assert_eq!(verdict(killed(11), "panicked at"), Verdict::Unclear(killed(11).unwrap()));
    }

    #[test]
    fn a_killed_test_has_timed_out_whatever_it_wrote() {
        assert_eq!(verdict(None, "test result: ok. 1 passed"), Verdict::TimedOut);
    }

    #[test]
    fn only_messages_with_an_executable_are_artifacts() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":false},"target":{"name":"a","kind":["lib"]},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","profile":{"test":true},"target":{"name":"loom","kind":["test"]},"executable":"/t/loom-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\nnot json\n",
        );
        let [artifact] = &artifacts(messages)[..] else { panic!("one executable") };
        assert_eq!(artifact.target, "loom");
        assert_eq!(artifact.package, Path::new("/w/a"));
        assert!(artifact.is_test && !artifact.is_library);
    }

    #[test]
    fn limits_are_whole_seconds_above_zero() {
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert!(seconds("0").is_err());
        assert!(seconds("-1").is_err());
        assert!(seconds("1.5").is_err());
    }
}
