//! What the whole process uses, as Linux tells it.

use std::fs;

/// Peaks over a stretch of time; a figure is `None` where the system does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// The most threads seen by any sample.
    pub(crate) peak_threads: Option<u64>,
    /// Bytes of resident memory. Where the kernel's own mark could be reset this is exact,
    /// otherwise the most seen by any sample.
    pub(crate) peak_memory: Option<u64>,
    mark_was_reset: bool,
}

impl Usage {
    /// Starts a new stretch.
    pub(crate) fn start() -> Self {
        // Writing 5 sets the kernel's "peak resident memory" mark back to what is resident now.
        let mark_was_reset = fs::write("/proc/self/clear_refs", "5").is_ok();
        let mut usage = Self { mark_was_reset, ..Self::default() };
        usage.sample();
        usage
    }

    pub(crate) fn sample(&mut self) {
        let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
        let memory = if self.mark_was_reset { "VmHWM:" } else { "VmRSS:" };
        self.peak_threads = self.peak_threads.max(field(&status, "Threads:"));
        self.peak_memory = self.peak_memory.max(field(&status, memory).map(|kib| kib * 1024));
    }
}

fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}
