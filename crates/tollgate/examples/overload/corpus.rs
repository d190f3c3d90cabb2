//! The files that the service reads, and the work it does on each.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

/// More files than this make a pass slow without making the load more varied.
const MAX_FILES: usize = 256;

/// Only the beginning of a larger file is read, so that no single request weighs much more than
/// the others and latency speaks of queueing, not of one file.
const MAX_BYTES_PER_FILE: u64 = 64 * 1024;

/// Folders that are skipped: they hold no files of the user's own.
const SKIPPED_FOLDERS: [&str; 2] = [".git", "target"];

/// Makes a request cost about a millisecond: service-like, and heavy enough that offering four
/// times the load costs little beside serving it.
const ZSTD_LEVEL: i32 = 15;

/// Why there is nothing to work on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CorpusError {
    #[error("`{}` is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("no files below `{}` (folders named .git and target are skipped)", .0.display())]
    Empty(PathBuf),
    #[error("cannot read `{}`", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// The files below a directory, in the order of their paths.
#[derive(Debug)]
pub(crate) struct Corpus {
    root: PathBuf,
    files: Vec<PathBuf>,
    truncated: bool,
}

impl Corpus {
    /// Lists the first files below `root`, by path.
    ///
    /// Links to folders are not followed; a link to a file is read as the file it names.
    ///
    /// # Errors
    ///
    /// When `root` is no directory, holds no file, or when something below it cannot be listed;
    /// a link that leads nowhere counts as such.
    pub(crate) fn find(root: &Path) -> Result<Self, CorpusError> {
        let unreadable =
            |path: &Path, source| CorpusError::Unreadable { path: path.into(), source };
        let metadata = fs::metadata(root).map_err(|source| unreadable(root, source))?;
        if !metadata.is_dir() {
            return Err(CorpusError::NotADirectory(root.into()));
        }

        let mut corpus = Self { root: root.into(), files: Vec::new(), truncated: false };
        let entries = WalkDir::new(root).sort_by_file_name().into_iter();
        for entry in entries.filter_entry(|entry| !is_skipped(entry)) {
            let entry = entry.map_err(|error| {
                let path = error.path().unwrap_or(root).to_owned();
                unreadable(&path, error.into())
            })?;
            // Through a link, if it is one. Sockets, pipes and devices are no files.
            let is_file = if entry.path_is_symlink() {
                fs::metadata(entry.path())
                    .map_err(|source| unreadable(entry.path(), source))?
                    .is_file()
            } else {
                entry.file_type().is_file()
            };
            if !is_file {
                continue;
            }
            if corpus.files.len() == MAX_FILES {
                corpus.truncated = true;
                break;
            }
            corpus.files.push(entry.into_path());
        }
        if corpus.files.is_empty() {
            return Err(CorpusError::Empty(root.into()));
        }
        Ok(corpus)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// At least 1.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there were more files than a run takes.
    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    pub(crate) fn path(&self, file: usize) -> &Path {
        &self.files[file]
    }

    /// Reads a file, or the beginning of a large one. This is what the storage lane does.
    pub(crate) fn read(&self, file: usize) -> Result<Vec<u8>, CorpusError> {
        let path = self.path(file);
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|open| open.take(MAX_BYTES_PER_FILE).read_to_end(&mut bytes))
            .map_err(|source| CorpusError::Unreadable { path: path.into(), source })?;
        Ok(bytes)
    }
}

fn is_skipped(entry: &DirEntry) -> bool {
    entry.depth() > 0
        && entry.file_type().is_dir()
        && SKIPPED_FOLDERS.iter().any(|name| entry.file_name() == *name)
}

/// What a request answers: the same for the same bytes, however it was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    hash: blake3::Hash,
    bytes: usize,
    compressed: usize,
}

impl Digest {
    /// Hashes and compresses. This is what the cpu lane does.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let compressed = zstd::bulk::compress(bytes, ZSTD_LEVEL)
            .expect("compressing into memory cannot fail at a valid level");
        Self { hash: blake3::hash(bytes), bytes: bytes.len(), compressed: compressed.len() }
    }

    /// How many bytes were read.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
