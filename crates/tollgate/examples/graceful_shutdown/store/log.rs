//! The log: what was appended, and how much of it has been synced.

use std::collections::BTreeMap;
use std::io;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::disk::Disk;
use super::record::{LONGEST, Record, Records, TooLong};

/// How every log begins, so that no other file is taken for one that is torn, and cut off.
const MAGIC: &[u8] = b"tollgate example log 1\n";

/// What one look of the scrubber reads at most.
const STRETCH: u64 = 4 * LONGEST as u64;

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("the file `log` holds something else than a log of this store")]
    NotALog,
    #[error("the log could not be read or repaired")]
    Io(#[from] io::Error),
}

/// Why the log did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("the log could not be written or read")]
    Io(#[from] io::Error),
    #[error("the log takes nothing more since an earlier write failed")]
    Failed,
    #[error("what had been synced is damaged at byte {at}")]
    Damaged { at: u64 },
}

/// What a log held when it was opened.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) contents: BTreeMap<String, Vec<u8>>,
    /// It ended with the mark of a clean shutdown.
    pub(crate) clean: bool,
    /// The length of its torn end, which was cut off.
    pub(crate) cut: u64,
}

/// How much of the log lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synced {
    pub(crate) to: u64,
    /// No more will.
    pub(crate) over: bool,
}

pub(crate) struct Log {
    disk: Box<dyn Disk>,
    tail: Mutex<Tail>,
    synced: watch::Sender<Synced>,
    opened_at: u64,
}

struct Tail {
    end: u64,
    /// A write failed. What the end of the file holds is not known then, so nothing is written behind it; and a sync that
    /// is tried again after it failed may succeed without what the first one lost.
    failed: bool,
}

impl Log {
    /// Reads the log up to the first record that is not whole, and cuts off the rest.
    pub(crate) fn open(disk: impl Disk) -> Result<(Log, Recovered), OpenError> {
        let length = disk.len()?;
        let bytes = disk.read(0, length)?;
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            if !MAGIC.starts_with(&bytes) {
                return Err(OpenError::NotALog);
            }
            // A new one, or the power was cut as it was begun.
            disk.truncate(0)?;
            disk.append(MAGIC)?;
            disk.sync()?;
            let recovered = Recovered { contents: BTreeMap::new(), clean: false, cut: 0 };
            return Ok((Log::at(disk, MAGIC.len() as u64), recovered));
        };
        let mut contents = BTreeMap::new();
        let mut clean = false;
        let mut records = Records::new(body);
        for record in &mut records {
            clean = record == Record::Clean;
            if let Record::Put { key, value } = record {
                contents.insert(key, value);
            }
        }
        let end = (MAGIC.len() + records.whole()) as u64;
        let cut = length - end;
        if cut > 0 {
            disk.truncate(end)?;
        }
        // What was read may not last yet: a process that was killed leaves it to the system to write it.
        disk.sync()?;
        Ok((Log::at(disk, end), Recovered { contents, clean: clean && cut == 0, cut }))
    }

    fn at(disk: impl Disk, end: u64) -> Log {
        let (synced, _) = watch::channel(Synced { to: end, over: false });
        let tail = Mutex::new(Tail { end, failed: false });
        Log { disk: Box::new(disk), tail, synced, opened_at: end }
    }

    /// Where it ended when it was opened: no other run of the store that left anything has begun there.
    pub(crate) fn opened_at(&self) -> u64 {
        self.opened_at
    }

    /// Follows how much of it lasts.
    pub(crate) fn synced(&self) -> watch::Receiver<Synced> {
        self.synced.subscribe()
    }

    /// Appends a record, and says up to where the log has to be synced for it to last.
    pub(crate) fn append(&self, record: &Record) -> Result<u64, LogError> {
        let framed = record.encode()?;
        let mut tail = self.tail.lock();
        if tail.failed {
            return Err(LogError::Failed);
        }
        if let Err(error) = self.disk.append(&framed) {
            tail.failed = true;
            drop(tail);
            self.give_up();
            return Err(error.into());
        }
        tail.end += framed.len() as u64;
        Ok(tail.end)
    }

    /// Makes everything last that has been appended; more can be appended meanwhile.
    pub(crate) fn sync(&self) -> Result<(), LogError> {
        let to = {
            let tail = self.tail.lock();
            if tail.failed {
                return Err(LogError::Failed);
            }
            tail.end
        };
        if let Err(error) = self.disk.sync() {
            self.tail.lock().failed = true;
            self.give_up();
            return Err(error.into());
        }
        self.synced.send_modify(|synced| synced.to = synced.to.max(to));
        Ok(())
    }

    /// The last flush, and the mark that it was one.
    pub(crate) fn finish(&self) -> Result<(), LogError> {
        // Whoever waits for it is told before the mark is written.
        self.sync()?;
        self.append(&Record::Clean)?;
        self.sync()
    }

    /// Nothing more will be synced: whoever waits for it is told.
    pub(crate) fn give_up(&self) {
        self.synced.send_modify(|synced| synced.over = true);
    }

    /// Reads what has been synced from a mark on, or a stretch of it, and says how far it got.
    pub(crate) fn check(&self, from: u64) -> Result<u64, LogError> {
        let to = self.synced.borrow().to;
        let most = to.min(from + STRETCH);
        let bytes = self.disk.read(from, most)?;
        let mut records = Records::new(&bytes);
        let _ = (&mut records).count();
        let good = from + records.whole() as u64;
        // A stretch may end within a record. What has been synced does not, nor is any record as long as a stretch.
        if good < most && (most == to || good == from) {
            return Err(LogError::Damaged { at: good });
        }
        Ok(good)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("synced", &*self.synced.borrow()).finish_non_exhaustive()
    }
}
