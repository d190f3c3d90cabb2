//! The documents name the tests that show what they say. Each of them is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Documents that name tests as `file.rs::function`, or files of tests as `file.rs`.
const DOCUMENTS: [&str; 3] = [
    "docs/contract.md",
    "docs/coming-from-algeon-query-runtime.md",
    "docs/coming-from-rocketmq-runtime.md",
];

/// A test as a document names it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    /// Below a crate's `tests/`; or from `src/` on.
    file: String,
    /// Without one, the file as a whole is meant.
    function: Option<String>,
}

/// What stands between backticks and looks like a test.
fn named(document: &str) -> BTreeSet<Named> {
    document.split('`').skip(1).step_by(2).filter_map(parse).collect()
}

fn parse(span: &str) -> Option<Named> {
    let is_name = |text: &str, more: &[char]| {
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || more.contains(&c);
        !text.is_empty() && text.chars().all(of_name)
    };
    let (file, function) = match span.split_once("::") {
        Some((file, function)) => (file, Some(function.to_owned())),
        None => (span, None),
    };
    let is_file = file.strip_suffix(".rs").is_some_and(|stem| is_name(stem, &['/']));
    let is_function = function.as_deref().is_none_or(|function| is_name(function, &[':']));
    (is_file && is_function).then(|| Named { file: file.to_owned(), function })
}

/// The sources of all crates, as documents call them: tests by their path below `tests`, others by that below the crate.
fn sources(root: &Path) -> BTreeMap<String, Vec<String>> {
    let mut sources: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(root.join("crates")).expect("the crates lie below `crates`") {
        let library = entry.expect("an entry of a folder can be read").path();
        for (folder, named_from) in
            [(library.join("tests"), library.join("tests")), (library.join("src"), library)]
        {
            for path in files(folder) {
                let name = path.strip_prefix(&named_from).expect("it lies below");
                let name = name.to_string_lossy().replace('\\', "/");
                let source = fs::read_to_string(&path).expect("a source can be read");
                sources.entry(name).or_default().push(source);
            }
        }
    }
    sources
}

/// All files below a folder, if it is there.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("an entry of a folder can be read").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// The path of a function ends with its name; a module before it says nothing of where it is.
fn has(source: &str, function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap_or(function);
    source.contains(&format!("fn {name}("))
}

#[test]
fn every_test_that_a_document_names_is_there() {
    // Where the package is now, which may not be where it was built.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.expect("cargo says where the package is");
    let root = here.parent().expect("it lies in the workspace");
    let sources = sources(root);
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).expect("a document can be read");
        let named = named(&text);
        assert!(!named.is_empty(), "{document} names no test");
        for Named { file, function } in named {
            let found = sources.get(&file).is_some_and(|sources| {
                let there = |function: &String| sources.iter().any(|source| has(source, function));
                function.as_ref().is_none_or(there)
            });
            if !found {
                let function = function.map(|function| format!("::{function}"));
                missing.push(format!("{document}: {file}{}", function.unwrap_or_default()));
            }
        }
    }
    assert!(missing.is_empty(), "named, and not there:\n{}", missing.join("\n"));
}

#[test]
fn names_of_tests_are_told_from_other_code() {
    let document = "See `run.rs::it_runs`, `prop/main.rs::a::b`, all of `run.rs`; not `Scope`, \
                    `src/*.rs`, `a.b()`, or run.rs::plain.";
    let named: Vec<_> = named(document).into_iter().collect();
    let test = |file: &str, function: Option<&str>| Named {
        file: file.to_owned(),
        function: function.map(str::to_owned),
    };
    assert_eq!(
        named,
        [test("prop/main.rs", Some("a::b")), test("run.rs", None), test("run.rs", Some("it_runs")),]
    );
}
