//! What the system knows about this process's threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

/// A thread's name, and its context switches so far, voluntary or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) switches: u64,
}

/// Every thread of this process but the main one, by number; `None` where the system does not tell.
pub(crate) fn others() -> anyhow::Result<Option<BTreeMap<u32, Thread>>> {
    let tasks = Path::new("/proc/self/task");
    if !tasks.exists() {
        return Ok(None);
    }
    let mut threads = BTreeMap::new();
    for task in tasks.read_dir()? {
        let task = task?;
        let number: u32 = task.file_name().to_string_lossy().parse()?;
        if number == std::process::id() {
            continue;
        }
        // A thread that ended since the folder was listed is none.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|line| line.trim_start_matches(':').trim())
                .with_context(|| format!("/proc/self/task/{number}/status lacks {name}"))
        };
        let switches = field("voluntary_ctxt_switches")?.parse::<u64>()?
            + field("nonvoluntary_ctxt_switches")?.parse::<u64>()?;
        threads.insert(number, Thread { name: field("Name")?.to_owned(), switches });
    }
    Ok(Some(threads))
}

/// Processor time that all threads of this process have used, ended ones included; `None` where the
/// system does not tell.
pub(crate) fn processor_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(time).ok()
    }
    #[cfg(not(unix))]
    None
}
