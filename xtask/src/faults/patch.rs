//! A patch with a header that says which rule it breaks and which test must notice.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

/// One fault. The header is what stands before the diff:
///
/// ```text
/// Rule: ADM-5
/// Test: -p tollgate-admission --test fairness a_released_permit_goes_to_the_oldest_waiter
/// Why: hands a released permit to the newest waiter
///  instead of the oldest
/// diff --git a/crates/…
/// ```
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    /// The ids of the rules that the patch breaks, at least one.
    pub(crate) rules: Vec<String>,
    pub(crate) test: TestRef,
    /// What the patch breaks, in words.
    pub(crate) why: String,
    /// A test that never ends counts as red.
    pub(crate) may_hang: bool,
    /// A test that ends the whole process by a panic counts as red.
    pub(crate) may_abort: bool,
}

/// One test, as `cargo test` would be told to run it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TestRef {
    /// The package and the target, as arguments for cargo.
    pub(crate) selection: Vec<String>,
    /// The test's full path inside that target.
    pub(crate) name: String,
    /// Built under `--cfg tollgate_loom`, optimised.
    pub(crate) loom: bool,
}

impl Patch {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(path, &text).with_context(|| path.display().to_string())
    }

    pub(crate) fn parse(path: &Path, text: &str) -> anyhow::Result<Self> {
        let name = path.file_stem().context("the file has no name")?;
        let mut headers = headers(text)?;
        let mut take = |key: &str| {
            let at = headers.iter().position(|(own, _)| own == key)?;
            Some(headers.swap_remove(at).1)
        };
        let rules = take("Rule").context("the header `Rule:` is missing")?;
        let test = take("Test").context("the header `Test:` is missing")?;
        let why = take("Why").context("the header `Why:` is missing")?;
        let mut flag = |key| take(key).map_or(Ok(false), |value| yes(key, &value));
        let patch = Self {
            path: path.to_path_buf(),
            name: name.to_string_lossy().into_owned(),
            rules: parse_rules(&rules)?,
            test: TestRef::parse(&test, flag("Loom")?)?,
            why,
            may_hang: flag("Hang")?,
            may_abort: flag("Abort")?,
        };
        if let Some((key, _)) = headers.first() {
            bail!(
                "the header `{key}:` is unknown or there twice: \
                 Rule, Test, Why, Loom, Hang and Abort are known"
            );
        }
        Ok(patch)
    }
}

impl TestRef {
    fn parse(text: &str, loom: bool) -> anyhow::Result<Self> {
        let mut words = text.split_whitespace();
        let mut selection = Vec::new();
        let (mut packages, mut targets, mut names) = (0, 0, Vec::new());
        while let Some(word) = words.next() {
            let counted = match word {
                "-p" => &mut packages,
                "--test" | "--lib" => &mut targets,
                option if option.starts_with('-') => {
                    bail!("`Test:` takes -p, --test and --lib, not `{option}`")
                }
                name => {
                    names.push(name);
                    continue;
                }
            };
            *counted += 1;
            selection.push(word.to_owned());
            if word != "--lib" {
                let value = words.next().with_context(|| format!("`{word}` lacks its value"))?;
                selection.push(value.to_owned());
            }
        }
        ensure!(packages == 1, "`Test:` needs one `-p PACKAGE` and has {packages}");
        ensure!(targets == 1, "`Test:` needs one `--test FILE` or `--lib` and has {targets}");
        let [name] = names[..] else {
            bail!("`Test:` needs the name of one test and has {}", names.len());
        };
        Ok(Self { selection, name: name.to_owned(), loom })
    }
}

/// The `Key: value` lines before the diff. An indented line continues the one above it.
fn headers(text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("diff --git ") || line.starts_with("--- ") {
            return Ok(headers);
        }
        if line.trim().is_empty() {
            continue;
        }
        let continued = line.starts_with(char::is_whitespace);
        match (headers.last_mut(), line.split_once(':')) {
            (Some((_, value)), _) if continued => {
                value.push(' ');
                value.push_str(line.trim());
            }
            (_, Some((key, value))) if !continued && !key.contains(' ') => {
                headers.push((key.to_owned(), value.trim().to_owned()));
            }
            _ => bail!("line {} of the header is not `Key: value`", at + 1),
        }
    }
    bail!("there is no diff below the header")
}

fn parse_rules(text: &str) -> anyhow::Result<Vec<String>> {
    let rules: Vec<String> = text.split(',').map(|rule| rule.trim().to_owned()).collect();
    for rule in &rules {
        let well_formed = rule.split_once('-').is_some_and(|(area, number)| {
            area.len() == 3
                && area.bytes().all(|byte| byte.is_ascii_uppercase())
                && number.parse::<u16>().is_ok()
        });
        ensure!(well_formed, "`{rule}` is not the id of a rule, such as `ADM-5`");
    }
    Ok(rules)
}

fn yes(key: &str, value: &str) -> anyhow::Result<bool> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => bail!("`{key}:` is `yes` or `no`, not `{other}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\
Rule: ADM-5, ADM-7
Test: -p tollgate-admission --test fairness oldest_first
Why: hands a released permit to the newest waiter:
  the queue becomes a stack
";
    const DIFF: &str = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a: 1\n+b: 2\n";

    fn parse(header: &str) -> anyhow::Result<Patch> {
        Patch::parse(Path::new("faults/adm-5-newest-first.patch"), &format!("{header}{DIFF}"))
    }

    fn refusal(header: &str) -> String {
        format!("{:#}", parse(header).unwrap_err())
    }

    #[test]
    fn a_header_says_what_is_broken_and_who_must_notice() {
        let patch = parse(HEADER).unwrap();
        assert_eq!(patch.name, "adm-5-newest-first");
        assert_eq!(patch.rules, ["ADM-5", "ADM-7"]);
        assert_eq!(patch.test.selection, ["-p", "tollgate-admission", "--test", "fairness"]);
        assert_eq!(patch.test.name, "oldest_first");
        assert_eq!(
            patch.why,
            "hands a released permit to the newest waiter: the queue becomes a stack"
        );
        assert!(!patch.test.loom && !patch.may_hang && !patch.may_abort);
    }

    #[test]
    fn options_are_off_unless_asked_for() {
        let patch = parse(&format!("{HEADER}Loom: yes\nHang: yes\nAbort: no\n")).unwrap();
        assert!(patch.test.loom && patch.may_hang && !patch.may_abort);
        assert_eq!(
            refusal(&format!("{HEADER}Loom: true\n")),
            "`Loom:` is `yes` or `no`, not `true`"
        );
    }

    #[test]
    fn a_missing_header_is_named() {
        for key in ["Rule", "Test", "Why"] {
            let without: String = HEADER
                .replace("\n  ", " ")
                .lines()
                .filter(|line| !line.starts_with(key))
                .map(|line| format!("{line}\n"))
                .collect();
            assert_eq!(refusal(&without), format!("the header `{key}:` is missing"));
        }
    }

    #[test]
    fn an_unknown_or_repeated_header_is_refused() {
        assert!(refusal(&format!("{HEADER}Hangs: yes\n")).contains("`Hangs:` is unknown"));
        assert!(refusal(&format!("{HEADER}Rule: ADM-6\n")).contains("`Rule:` is unknown or there"));
    }

    #[test]
    fn a_test_is_one_package_one_target_one_name() {
        let with = |test: &str| format!("Rule: ADM-5\nWhy: w\nTest: {test}\n");
        assert!(parse(&with("-p a --lib state::tests::b")).is_ok());
        assert!(refusal(&with("--lib b")).contains("one `-p PACKAGE` and has 0"));
        assert!(refusal(&with("-p a b")).contains("`--lib` and has 0"));
        assert!(refusal(&with("-p a --lib --test t b")).contains("`--lib` and has 2"));
        assert!(refusal(&with("-p a --lib")).contains("the name of one test and has 0"));
        assert!(refusal(&with("-p a --lib b c")).contains("the name of one test and has 2"));
        assert!(refusal(&with("-p a --test")).contains("`--test` lacks its value"));
        assert!(refusal(&with("-p a --release b")).contains("not `--release`"));
    }

    #[test]
    fn a_rule_is_an_id() {
        assert!(refusal(&HEADER.replace("ADM-7", "ADM7")).contains("`ADM7` is not the id"));
        assert!(refusal(&HEADER.replace("ADM-5, ADM-7", "")).contains("`` is not the id"));
    }

    #[test]
    fn prose_in_the_header_is_refused_by_its_line() {
        assert_eq!(
            refusal(&format!("{HEADER}this is prose\n")),
            "line 5 of the header is not `Key: value`"
        );
    }

    #[test]
    fn a_header_without_a_diff_is_no_fault() {
        let error = Patch::parse(Path::new("x.patch"), HEADER).unwrap_err();
        assert_eq!(error.to_string(), "there is no diff below the header");
    }
}
