//! What the log lies on.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// One file that grows at its end. Tests put one in its place whose power can be cut.
pub(crate) trait Disk: Send + Sync + 'static {
    fn len(&self) -> io::Result<u64>;

    /// The bytes between two marks that the file reaches.
    fn read(&self, from: u64, to: u64) -> io::Result<Vec<u8>>;

    /// Writes at the end. What was written may be lost, in whole or in part, until it is synced; also when this fails.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything last that had been appended when this was called.
    fn sync(&self) -> io::Result<()>;

    /// Drops the end of the file.
    fn truncate(&self, length: u64) -> io::Result<()>;
}

/// Why a directory can't hold a store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirError {
    #[error("cannot use {} for a store", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the store in {} is in use by another process", .path.display())]
    InUse { path: PathBuf },
}

/// The file `log` in a directory, which is locked meanwhile.
#[derive(Debug)]
pub(crate) struct FileDisk {
    path: PathBuf,
    file: File,
    /// Locked until it is dropped. A file of its own, since some systems let nobody read what is locked.
    _lock: File,
}

impl FileDisk {
    /// Makes the directory and the file if they are missing.
    pub(crate) fn open(dir: &Path) -> Result<Self, DirError> {
        let failed = |source| DirError::Io { path: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(failed)?;
        let path = dir.join("log");
        let lock = File::create(dir.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirError::InUse { path: dir.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed)?;
        // A new file is in its directory for good once the directory is synced. Elsewhere directories are no files.
        #[cfg(unix)]
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(FileDisk { path, file, _lock: lock })
    }
}

impl Disk for FileDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(to - from).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
}
