//! Mutations written by hand: each patch breaks one invariant, and the test that guards the
//! invariant must notice.

mod patch;
mod tree;

use std::{
    collections::HashMap,
    fmt,
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use comfy_table::{Row, Table};

use self::{
    patch::{Patch, TestRef},
    tree::{Snapshot, git_apply},
};
use crate::{
    artifact::{self, Artifact, Ran, Verdict},
    command, loom,
    workspace::{Workspace, cargo_in},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run only these faults, by the name of the patch file without `.patch`
    names: Vec<String>,
    /// List the faults and run nothing
    #[arg(long, conflicts_with = "check")]
    list: bool,
    /// Check only that every patch is well formed and applies
    #[arg(long)]
    check: bool,
    /// Kill a test that takes longer than this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = artifact::seconds)]
    limit: Duration,
}

/// What became of one fault.
enum Outcome {
    /// The test passes without the patch and fails with it.
    Red(&'static str),
    /// The patch changes nothing that the test notices.
    Green,
    /// The fault says nothing about the test.
    Void(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Red(how) => write!(f, "red ({how})"),
            Self::Green => f.write_str("GREEN: the test did not notice"),
            Self::Void(why) => write!(f, "VOID: {why}"),
        }
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let patches = load(workspace, &options.names)?;
    if options.list {
        return list(&patches);
    }
    let refused = refused_by_git(workspace, &patches)?;
    if options.check {
        if refused.is_empty() {
            println!("all {} patches apply", patches.len());
            return Ok(());
        }
        bail!("{}", refused.join("\n"));
    }
    loom::refuse_early_stops()?;
    let mut bench = Bench::set_up(workspace, options.limit)?;
    let mut table = table(["fault", "rule", "test", "result", "seconds"]);
    let (mut passed, mut failed) = (0, 0);
    for patch in &patches {
        print!("fault {} ... ", patch.name);
        // The line is completed by the outcome; what is shown meanwhile is a courtesy.
        let _ = std::io::Write::flush(&mut std::io::stdout());
        let (outcome, took) = bench.try_fault(patch)?;
        println!("{outcome}");
        if let Outcome::Red(_) = outcome {
            passed += 1;
        } else {
            failed += 1;
            let log = bench.log(&patch.name);
            print!("{}", artifact::tail(&log, 30));
            println!("    all of it: {}", log.display());
        }
        let seconds = took.map(|took| format!("{:.1}", took.as_secs_f64())).unwrap_or_default();
        let rules = patch.rules.join(", ");
        table.add_row([&patch.name, &rules, &patch.test.name, &outcome.to_string(), &seconds]);
    }
    println!("\n{table}\n{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} faults did not turn their test red");
    }
    Ok(())
}

/// A table that reads well in a log.
pub(crate) fn table<T: Into<Row>>(header: T) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header);
    table
}

/// Reads the patches in the order of their names: all of them, or those that are named.
fn load(workspace: &Workspace, names: &[String]) -> anyhow::Result<Vec<Patch>> {
    let dir = workspace.root.join("faults");
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("there are no faults: no file matches faults/*.patch");
    }
    let (mut patches, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match Patch::read(&file) {
            Ok(patch) => patches.push(patch),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    if !errors.is_empty() {
        bail!("{}", errors.join("\n"));
    }
    if let Some(name) = names.iter().find(|name| !patches.iter().any(|p| p.name == **name)) {
        bail!("there is no fault `{name}`: `cargo xtask faults --list` names those there are");
    }
    if !names.is_empty() {
        patches.retain(|patch| names.contains(&patch.name));
    }
    Ok(patches)
}

fn list(patches: &[Patch]) -> anyhow::Result<()> {
    let mut table = table(["fault", "rule", "test", "what it breaks"]);
    for patch in patches {
        table.add_row([&patch.name, &patch.rules.join(", "), &patch.test.name, &patch.why]);
    }
    println!("{table}");
    Ok(())
}

/// What `git apply --check` has against the patches, on the working tree.
fn refused_by_git(workspace: &Workspace, patches: &[Patch]) -> anyhow::Result<Vec<String>> {
    command::require(
        std::process::Command::new("git").arg("--version"),
        "apt-get install git (or your system's own way)",
    )?;
    Ok(patches
        .iter()
        .filter_map(|patch| {
            let check = command::output(git_apply(&workspace.root).arg("--check").arg(&patch.path));
            check.err().map(|error| format!("fault {} does not apply: {error:#}", patch.name))
        })
        .collect())
}

/// A copy of the working tree with target directories of its own.
struct Bench {
    snapshot: Snapshot,
    dir: PathBuf,
    limit: Duration,
    /// How each distinct test fared without a patch.
    unpatched: HashMap<TestRef, Result<Duration, String>>,
    /// Held for as long as the copy is in use.
    _lock: File,
}

impl Bench {
    fn set_up(workspace: &Workspace, limit: Duration) -> anyhow::Result<Self> {
        let dir = workspace.target.join("faults");
        let lock = artifact::create(&dir.join("lock"))?;
        lock.try_lock().context("another `cargo xtask faults` is using the same copy")?;
        let snapshot = Snapshot::of(&workspace.root)?;
        Ok(Self { snapshot, dir, limit, unpatched: HashMap::new(), _lock: lock })
    }

    fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    fn log(&self, name: &str) -> PathBuf {
        artifact::log_path(&self.dir.join("logs"), name)
    }

    /// Says what became of the fault, and how long its test ran with the patch applied.
    fn try_fault(&mut self, patch: &Patch) -> anyhow::Result<(Outcome, Option<Duration>)> {
        self.snapshot.restore(&self.tree())?;
        let unpatched = match self.run_unpatched(&patch.test, &patch.name)? {
            Ok(took) => took,
            Err(why) => return Ok((Outcome::Void(why), None)),
        };
        if let Err(error) = command::output(git_apply(&self.tree()).arg(&patch.path)) {
            fs::write(self.log(&patch.name), format!("{error:#}\n"))?;
            return Ok((Outcome::Void("the patch does not apply".into()), None));
        }
        if !self.snapshot.differs_from(&self.tree())? {
            return Ok((Outcome::Void("the patch changes nothing".into()), None));
        }
        let ran = match self.run_test(&patch.test, &patch.name, self.limit_for(patch, unpatched))? {
            Ok(ran) => ran,
            Err(why) => return Ok((Outcome::Void(format!("with the patch, {why}")), None)),
        };
        Ok((judge(patch, ran.verdict), Some(ran.took)))
    }

    /// A test that is expected to hang need not be waited for as long as one that is not.
    fn limit_for(&self, patch: &Patch, unpatched: Duration) -> Duration {
        if patch.may_hang {
            self.limit.min(Duration::from_secs(10) + unpatched * 20)
        } else {
            self.limit
        }
    }

    /// How long the test takes without any patch, or why that says nothing; found out once.
    fn run_unpatched(
        &mut self,
        test: &TestRef,
        log: &str,
    ) -> anyhow::Result<Result<Duration, String>> {
        if let Some(known) = self.unpatched.get(test) {
            return Ok(known.clone());
        }
        let result = match self.run_test(test, log, self.limit)? {
            Ok(Ran { verdict: Verdict::Passed, took }) => Ok(took),
            Ok(Ran { verdict, .. }) => Err(format!("without the patch, the test {verdict}")),
            Err(why) => Err(format!("without the patch, {why}")),
        };
        self.unpatched.insert(test.clone(), result.clone());
        Ok(result)
    }

    /// Builds and runs one test in the copy. An inner error says why it could not be run.
    fn run_test(
        &self,
        test: &TestRef,
        log: &str,
        limit: Duration,
    ) -> anyhow::Result<Result<Ran, String>> {
        let log = self.log(log);
        let mut cargo = cargo_in(&self.tree());
        cargo.arg("test");
        if test.loom {
            loom::enable(&mut cargo, &self.dir.join("loom"));
        } else {
            cargo.arg("--all-features").env("CARGO_TARGET_DIR", self.dir.join("build"));
        }
        cargo.args(&test.selection);
        let Ok(programs) = artifact::build_tests(&mut cargo, Stdio::from(artifact::create(&log)?))
        else {
            return Ok(Err("it cannot be built".into()));
        };
        let [program]: &[Artifact] = &programs else {
            let n = programs.len();
            return Ok(Err(format!("`Test:` selects {n} test programs and must select one")));
        };
        // A fault's failure is expected; its backtraces would bury the message.
        let envs = [("RUST_BACKTRACE", "0".to_owned())];
        program.run_test(&test.name, &envs, &log, limit).map(Ok)
    }
}

fn judge(patch: &Patch, verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Failed => Outcome::Red("failed"),
        Verdict::Passed => Outcome::Green,
        // A failing model may panic again while it unwinds, which ends the process.
        Verdict::Aborted if patch.may_abort || patch.test.loom => Outcome::Red("aborted"),
        Verdict::TimedOut if patch.may_hang => Outcome::Red("hung"),
        Verdict::Aborted => Outcome::Void("the test aborted, and `Abort: yes` is not set".into()),
        Verdict::TimedOut => Outcome::Void("the test hung, and `Hang: yes` is not set".into()),
        Verdict::Ignored | Verdict::NotFound | Verdict::Unclear(_) => {
            Outcome::Void(format!("with the patch, the test {verdict}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(headers: &str) -> Patch {
        let text =
            format!("Rule: ADM-5\nTest: -p a --test b c\nWhy: d\n{headers}diff --git a/x b/x\n");
        Patch::parse("x.patch".as_ref(), &text).unwrap()
    }

    #[test]
    fn a_failed_test_is_red_and_a_passed_one_green() {
        assert!(matches!(judge(&patch(""), Verdict::Failed), Outcome::Red(_)));
        assert!(matches!(judge(&patch(""), Verdict::Passed), Outcome::Green));
    }

    #[test]
    fn a_hang_is_red_only_where_the_patch_says_so() {
        assert!(matches!(judge(&patch(""), Verdict::TimedOut), Outcome::Void(_)));
        assert!(matches!(judge(&patch("Hang: yes\n"), Verdict::TimedOut), Outcome::Red(_)));
        assert!(matches!(judge(&patch("Hang: yes\n"), Verdict::Passed), Outcome::Green));
    }

    #[test]
    fn an_abort_is_red_only_for_a_model_or_where_the_patch_says_so() {
        assert!(matches!(judge(&patch(""), Verdict::Aborted), Outcome::Void(_)));
        assert!(matches!(judge(&patch("Loom: yes\n"), Verdict::Aborted), Outcome::Red(_)));
        assert!(matches!(judge(&patch("Abort: yes\n"), Verdict::Aborted), Outcome::Red(_)));
    }

    #[test]
    fn a_test_that_does_not_exist_is_not_red() {
        assert!(matches!(judge(&patch(""), Verdict::NotFound), Outcome::Void(_)));
        assert!(matches!(judge(&patch(""), Verdict::Ignored), Outcome::Void(_)));
    }
}
