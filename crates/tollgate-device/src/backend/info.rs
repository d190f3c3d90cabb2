use std::fmt;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceInfo {
    /// The driver's number for it, from 0. A filter of visible devices can change it between two runs.
    pub ordinal: u32,
    /// What stays the same whatever the ordinal is.
    pub uuid: DeviceUuid,
    /// What people call it. Threads are named after it.
    pub name: String,
    /// Bytes of memory it has.
    pub total_memory: u64,
    /// The priorities that its streams may have.
    pub priorities: PriorityRange,
}

/// The 16 bytes that name a device for good.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceUuid(pub [u8; 16]);

/// As drivers write it: `GPU-` and five groups of hexadecimal digits.
impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which priorities streams may have. As in CUDA a *lower* number goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PriorityRange {
    /// The number of those that go first. Not above `least`.
    pub greatest: i32,
    /// The number of those that go last.
    pub least: i32,
}

impl PriorityRange {
    /// Whether a stream may have this priority.
    #[must_use]
    pub fn contains(self, priority: i32) -> bool {
        (self.greatest..=self.least).contains(&priority)
    }

    /// The nearest priority that a stream may have, for those who would rather have that than an error.
    #[must_use]
    pub fn nearest(self, priority: i32) -> i32 {
        priority.min(self.least).max(self.greatest)
    }
}

impl fmt::Display for PriorityRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (first) to {} (last)", self.greatest, self.least)
    }
}

/// How much memory a device has, and how much of it can still be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryInfo {
    /// Bytes that are not in use.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}
