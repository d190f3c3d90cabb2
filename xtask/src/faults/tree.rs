//! A copy of the working tree that can be broken and restored.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::command;

/// The files of a working tree as they were at one moment: those that git tracks, and those that
/// it neither tracks nor ignores. Later edits to the working tree do not reach a run under way.
#[derive(Debug)]
pub(crate) struct Snapshot {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Snapshot {
    pub(crate) fn of(root: &Path) -> anyhow::Result<Self> {
        let list = command::output(
            Command::new("git")
                .current_dir(root)
                .args(["ls-files", "-co", "-z"])
                .args(["--exclude-standard", "--deduplicate"]),
        )?;
        let list = String::from_utf8(list).context("a file's name is not UTF-8")?;
        let mut files = BTreeMap::new();
        for name in list.split_terminator('\0') {
            let path = root.join(name);
            // Git also lists files that were deleted, and other repositories as directories.
            if path.is_file() {
                let bytes =
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                files.insert(PathBuf::from(name), bytes);
            }
        }
        Ok(Self { files })
    }

    /// Makes `tree` hold these files and no others. Files that are right already are not touched,
    /// so that cargo rebuilds only what changed.
    pub(crate) fn restore(&self, tree: &Path) -> anyhow::Result<()> {
        for name in files_below(tree)? {
            if !self.files.contains_key(&name) {
                let path = tree.join(name);
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        for (name, bytes) in &self.files {
            let path = tree.join(name);
            if !matches!(fs::read(&path), Ok(own) if own == *bytes) {
                if let Some(dir) = path.parent() {
                    fs::create_dir_all(dir)?;
                }
                fs::write(&path, bytes)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    pub(crate) fn differs_from(&self, tree: &Path) -> anyhow::Result<bool> {
        let names = files_below(tree)?;
        if !names.iter().eq(self.files.keys()) {
            return Ok(true);
        }
        for (name, bytes) in &self.files {
            if fs::read(tree.join(name))? != *bytes {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The files below a directory, by their paths inside it, in order. None where it does not exist.
fn files_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(inside) = pending.pop() {
        let entries = match fs::read_dir(dir.join(&inside)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot list {}", dir.display()));
            }
        };
        for entry in entries {
            let entry = entry?;
            let name = inside.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                pending.push(name);
            } else {
                files.push(name);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// `git apply` in a directory whatever repository lies around it: inside one, git would take paths
/// from that repository's root, and skip in silence what is not there.
pub(crate) fn git_apply(dir: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(dir).args(["apply", "--whitespace=nowarn"]);
    if let Some(parent) = dir.parent() {
        git.env("GIT_CEILING_DIRECTORIES", parent);
    }
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty directory of this test's own, below the target directory.
    fn empty_dir(test: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn snapshot(files: &[(&str, &str)]) -> Snapshot {
        let files = files.iter().map(|(name, text)| (name.into(), text.as_bytes().to_vec()));
        Snapshot { files: files.collect() }
    }

    #[test]
    fn restoring_brings_back_what_was_changed_added_and_removed() {
        let tree = empty_dir("restore");
        let snapshot = snapshot(&[("a", "1"), ("dir/b", "2"), ("dir/c", "3")]);
        snapshot.restore(&tree).unwrap();
        assert!(!snapshot.differs_from(&tree).unwrap());

        fs::write(tree.join("a"), "changed").unwrap();
        fs::write(tree.join("dir/new"), "added").unwrap();
        fs::remove_file(tree.join("dir/c")).unwrap();
        assert!(snapshot.differs_from(&tree).unwrap());

        snapshot.restore(&tree).unwrap();
        assert!(!snapshot.differs_from(&tree).unwrap());
        assert_eq!(fs::read_to_string(tree.join("dir/c")).unwrap(), "3");
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn restoring_leaves_right_files_alone() {
        let tree = empty_dir("mtime");
        let snapshot = snapshot(&[("a", "1")]);
        snapshot.restore(&tree).unwrap();
        let modified = || fs::metadata(tree.join("a")).unwrap().modified().unwrap();
        let before = modified();
        snapshot.restore(&tree).unwrap();
        assert_eq!(modified(), before);
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn a_patch_applies_in_a_directory_inside_another_repository() {
        let outer = empty_dir("apply");
        let git = Command::new("git").current_dir(&outer).args(["init", "--quiet"]).status();
        assert!(git.unwrap().success());
        let tree = outer.join("target/tree");
        snapshot(&[("a", "1\n")]).restore(&tree).unwrap();
        let patch = outer.join("x.patch");
        let diff = "Rule: ADM-1\n\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n";
        fs::write(&patch, diff).unwrap();

        command::output(git_apply(&tree).arg(&patch)).unwrap();
        assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "2\n");
        // It is applied already, so it applies no more.
        assert!(command::output(git_apply(&tree).arg(&patch)).is_err());
        fs::remove_dir_all(outer).unwrap();
    }
}
