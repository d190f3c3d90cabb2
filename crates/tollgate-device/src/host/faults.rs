//! What is to go wrong, and when.

use crate::backend::Operation;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Failure {
    /// With a request error. It has no effect.
    Request,
    /// With an out-of-memory error. It has no effect.
    OutOfMemory,
    /// With a sticky fault of the device.
    Sticky,
    /// It works, and the device has a sticky fault when it comes to the work: as most real faults do. Calls that give a
    /// stream no work fail with the fault at once.
    StickyLater,
    /// With the loss of the device.
    Lost,
}

impl Failure {
    /// All of them.
    pub const ALL: [Failure; 5] = [
        Failure::Request,
        Failure::OutOfMemory,
        Failure::Sticky,
        Failure::StickyLater,
        Failure::Lost,
    ];
}

/// Which calls of an operation are meant, counted from 1 for each device: a number, or a range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    first: u64,
    /// Included.
    last: u64,
}

impl Calls {
    fn include(self, call: u64) -> bool {
        (self.first..=self.last).contains(&call)
    }
}

impl From<u64> for Calls {
    fn from(call: u64) -> Self {
        Calls { first: call, last: call }
    }
}
impl From<RangeInclusive<u64>> for Calls {
    fn from(calls: RangeInclusive<u64>) -> Self {
        Calls { first: *calls.start(), last: *calls.end() }
    }
}
impl From<Range<u64>> for Calls {
    fn from(calls: Range<u64>) -> Self {
        match calls.end.checked_sub(1) {
            Some(last) => Calls { first: calls.start, last },
            None => Calls { first: 1, last: 0 },
        }
    }
}
impl From<RangeFrom<u64>> for Calls {
    fn from(calls: RangeFrom<u64>) -> Self {
        Calls { first: calls.start, last: u64::MAX }
    }
}
impl From<RangeFull> for Calls {
    fn from(_: RangeFull) -> Self {
        Calls { first: 0, last: u64::MAX }
    }
}

/// What is to go wrong on a device, decided before it is built.
///
/// Calls are counted from 1 for each operation, those that fail included, but for those that fail on an unbound thread or
/// on a device that has failed. Where several entries name a call, the first one counts. Looking at pinned memory
/// ([`Operation::PinnedBytes`]) is no driver call, and never counted. What happens as the test goes on is said by
/// [`HostControl`](super::HostControl).
///
/// ```
/// use tollgate_device::backend::{Backend, ErrorClass, Operation};
/// use tollgate_device::host::{Failure, FaultPlan, HostDevice};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let plan = FaultPlan::new()
///     .fail(Operation::Allocate, 2, Failure::OutOfMemory)
///     .fail(Operation::Reset, .., Failure::Sticky)
///     .stall_stream(1);
/// let device = HostDevice::builder().faults(plan).build()?;
/// device.bind()?;
///
/// let stream = device.create_stream(0)?;
/// let first = device.allocate(&stream, 1024)?;
/// let error = device.allocate(&stream, 1024).unwrap_err();
/// assert_eq!(error.class(), ErrorClass::OutOfMemory);
/// assert!(device.allocate(&stream, 1024).is_ok());
///
/// device.free(&stream, first)?;
/// assert!(!device.query_stream(&stream)?, "it is stalled");
/// device.control().release(1);
/// device.synchronize_stream(&stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a plan does nothing unless a device is built with it"]
pub struct FaultPlan {
    failures: Vec<(Operation, Calls, Failure)>,
    silent: Vec<Calls>,
    pub(super) despite: bool,
    pub(super) stalled: Vec<u64>,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub fn new() -> Self {
        FaultPlan::default()
    }

    /// These calls of the operation fail. A reset that fails leaves the device as it was.
    pub fn fail(mut self, operation: Operation, calls: impl Into<Calls>, failure: Failure) -> Self {
        self.failures.push((operation, calls.into(), failure));
        self
    }

    /// The signals of these calls of [`notify`](crate::backend::Backend::notify) are never raised, although the stream
    /// passes them and the calls work.
    pub fn never_notify(mut self, calls: impl Into<Calls>) -> Self {
        self.silent.push(calls.into());
        self
    }

    /// When the device fails, the signals that wait are raised as if all were well.
    pub fn notify_despite_faults(mut self) -> Self {
        self.despite = true;
        self
    }

    /// The stream with this number does nothing until [`HostControl::release`](super::HostControl::release) is called.
    /// Streams are numbered from 1 in the order in which they are created.
    pub fn stall_stream(mut self, number: u64) -> Self {
        self.stalled.push(number);
        self
    }

    /// Some calls fail somehow, the same ones for the same seed: `count` of the first `calls` calls of these operations.
    ///
    /// For tests that look for what nobody thought of. A failed test should print the seed.
    pub fn from_seed(
        seed: u64,
        operations: &[Operation],
        failures: &[Failure],
        calls: u64,
        count: usize,
    ) -> Self {
        let mut state = seed;
        // SplitMix64
        let mut random = |below: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below.max(1)
        };
        let mut plan = FaultPlan::new();
        for _ in 0..count {
            let operation = operations.get(random(operations.len() as u64) as usize);
            let failure = failures.get(random(failures.len() as u64) as usize);
            let call = 1 + random(calls);
            if let (Some(&operation), Some(&failure)) = (operation, failure) {
                plan = plan.fail(operation, call, failure);
            }
        }
        plan
    }

    /// What becomes of this call.
    pub(super) fn verdict(&self, operation: Operation, call: u64) -> Option<Failure> {
        let named =
            self.failures.iter().find(|(o, calls, _)| *o == operation && calls.include(call));
        named.map(|&(_, _, failure)| failure)
    }

    /// Before all other entries.
    pub(super) fn fail_first(&mut self, operation: Operation, call: u64, failure: Failure) {
        self.failures.insert(0, (operation, call.into(), failure));
    }

    pub(super) fn is_silent(&self, call: u64) -> bool {
        self.silent.iter().any(|calls| calls.include(call))
    }
}
