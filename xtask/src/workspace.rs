//! What cargo says about this workspace.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use serde::Deserialize;

use crate::command;

/// The workspace this program was built in.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    kind: Vec<String>,
    #[serde(default, rename = "required-features")]
    pub(crate) required_features: Vec<String>,
}

impl Target {
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind.iter().any(|own| own == kind)
    }
}

impl Workspace {
    pub(crate) fn load() -> anyhow::Result<Self> {
        // `cargo xtask` says where the package is now, which may not be where it was built
        let here = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let json = command::output(cargo_in(&here).args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
        ]))?;
        serde_json::from_slice(&json).context("cannot read what `cargo metadata` says")
    }

    /// A cargo command at the root of the workspace.
    pub(crate) fn cargo(&self) -> Command {
        cargo_in(&self.root)
    }

    /// The published crates, which live below `crates/`.
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Package> {
        let crates = self.root.join("crates");
        self.packages.iter().filter(move |package| {
            package.manifest_path.starts_with(&crates)
                && package.targets.iter().any(|target| target.is("lib"))
        })
    }

    /// The library crates that have a test file whose name starts with `prefix`.
    pub(crate) fn with_tests_named(&self, prefix: &str) -> Vec<&Package> {
        let named = |target: &Target| target.is("test") && target.name.starts_with(prefix);
        self.libraries().filter(|package| package.targets.iter().any(named)).collect()
    }

    /// The library crates that have a module of tests in a source file of this name.
    pub(crate) fn with_source_named(&self, name: &str) -> Vec<&Package> {
        self.libraries().filter(|package| package.has_source(name)).collect()
    }
}

impl Package {
    /// Whether a source file of the package's library has this name.
    fn has_source(&self, name: &str) -> bool {
        fn find(dir: &Path, name: &str) -> bool {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).any(|path| match path.is_dir() {
                true => find(&path, name),
                false => path.file_name().is_some_and(|own| own == name),
            })
        }
        self.manifest_path.parent().is_some_and(|package| find(&package.join("src"), name))
    }
}

/// The cargo that runs this program, so that nested commands use the same toolchain.
pub(crate) fn cargo_in(dir: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(dir);
    cargo
}

/// Optimised, yet with debug assertions and overflow checks.
pub(crate) fn checked_release(cargo: &mut Command) -> &mut Command {
    cargo
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .arg("--release")
}
