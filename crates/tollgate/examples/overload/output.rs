//! The files that a run writes, and where the repository is.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::experiment::Error;

/// A file that is known to be writable.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    /// Creates the file, or leaves an existing one as it is, until [`write`](Self::write).
    pub(crate) fn create(path: PathBuf) -> Result<Self, Error> {
        match OpenOptions::new().append(true).create(true).open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(source) => Err(Error::Output { path, source }),
        }
    }

    /// Replaces what the file holds.
    pub(crate) fn write(&self, text: &str) -> Result<(), Error> {
        fs::write(&self.path, text)
            .map_err(|source| Error::Output { path: self.path.clone(), source })
    }
}

impl fmt::Display for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

/// The repository this example belongs to, or the current directory when cargo did not start it.
pub(crate) fn repository() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = package.as_deref().and_then(|package| package.ancestors().nth(2));
    root.unwrap_or(Path::new(".")).to_owned()
}

/// Where the page goes unless the command line says otherwise.
pub(crate) fn default_page() -> PathBuf {
    let folder = repository().join("target");
    // If this fails, creating the file will say why.
    let _ = fs::create_dir_all(&folder);
    folder.join("overload.html")
}
