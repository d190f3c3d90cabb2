use super::PriorityRange;
use std::fmt;
use std::sync::Arc;

/// Which call of a [`Backend`](super::Backend) it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Operation {
    /// [`bind`](super::Backend::bind).
    Bind,
    /// [`create_stream`](super::Backend::create_stream).
    CreateStream,
    /// [`query_stream`](super::Backend::query_stream).
    QueryStream,
    /// [`synchronize_stream`](super::Backend::synchronize_stream).
    SynchronizeStream,
    /// [`create_event`](super::Backend::create_event).
    CreateEvent,
    /// [`record`](super::Backend::record).
    Record,
    /// [`query_event`](super::Backend::query_event).
    QueryEvent,
    /// [`wait_event`](super::Backend::wait_event).
    WaitEvent,
    /// [`synchronize_event`](super::Backend::synchronize_event).
    SynchronizeEvent,
    /// [`notify`](super::Backend::notify).
    Notify,
    /// [`allocate`](super::Backend::allocate).
    Allocate,
    /// [`free`](super::Backend::free).
    Free,
    /// [`allocate_pinned`](super::Backend::allocate_pinned).
    AllocatePinned,
    /// [`pinned_bytes`](super::Backend::pinned_bytes).
    PinnedBytes,
    /// [`copy_to_device`](super::Backend::copy_to_device).
    CopyToDevice,
    /// [`copy_to_host`](super::Backend::copy_to_host).
    CopyToHost,
    /// [`copy_on_device`](super::Backend::copy_on_device).
    CopyOnDevice,
    /// [`fill`](super::Backend::fill).
    Fill,
    /// [`launch`](super::Backend::launch).
    Launch,
    /// [`memory_info`](super::Backend::memory_info).
    MemoryInfo,
    /// [`reset`](super::Backend::reset).
    Reset,
}

impl Operation {
    /// What it is called in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Bind => "bind",
            Operation::CreateStream => "create stream",
            Operation::QueryStream => "query stream",
            Operation::SynchronizeStream => "synchronize stream",
            Operation::CreateEvent => "create event",
            Operation::Record => "record",
            Operation::QueryEvent => "query event",
            Operation::WaitEvent => "wait for event",
            Operation::SynchronizeEvent => "synchronize event",
            Operation::Notify => "notify",
            Operation::Allocate => "allocate",
            Operation::Free => "free",
            Operation::AllocatePinned => "allocate pinned",
            Operation::PinnedBytes => "pinned bytes",
            Operation::CopyToDevice => "copy to device",
            Operation::CopyToHost => "copy to host",
            Operation::CopyOnDevice => "copy on device",
            Operation::Fill => "fill",
            Operation::Launch => "launch",
            Operation::MemoryInfo => "memory info",
            Operation::Reset => "reset",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How bad an error is, which decides what is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ErrorClass {
    /// The call was wrong, and had no effect. The device is well.
    Request,
    /// There was not enough memory, and the call had no effect. The device is well, and the same call may work later.
    OutOfMemory,
    /// The device's context is broken. Every later call fails with the same error, until a reset that works.
    Sticky,
    /// The device is gone, for good.
    DeviceLost,
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ErrorClass::Request => "request",
            ErrorClass::OutOfMemory => "out of memory",
            ErrorClass::Sticky => "sticky",
            ErrorClass::DeviceLost => "device lost",
        })
    }
}

/// Why a call of a backend failed.
///
/// One type for all calls, since a driver may answer any call with the fault of work that was submitted long before. What
/// is to be done depends on its [`class`](Self::class) alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device} can't {operation}: {cause}")]
pub struct DriverError {
    device: u32,
    operation: Operation,
    cause: Cause,
}

impl DriverError {
    /// For backends: `operation` failed on the device with this ordinal.
    #[must_use]
    pub fn new(device: u32, operation: Operation, cause: Cause) -> Self {
        DriverError { device, operation, cause }
    }

    /// The device's ordinal.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The call that failed. With a sticky error that need not be the call at fault.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// What exactly went wrong.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// How bad it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        self.cause.class()
    }
}

/// What exactly went wrong. Few should need more than its [`class`](Self::class).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The calling thread is bound to no device, or to another one.
    #[error("{}", match bound {
        None => "the calling thread is bound to no device".to_owned(),
        Some(other) => format!("the calling thread is bound to another device, {other}"),
    })]
    NotBound {
        /// The ordinal of the other one.
        bound: Option<u32>,
    },
    /// The call came from a thread of the driver's own: from inside a kernel.
    #[error("a kernel may not call the driver")]
    DriverThread,
    /// The priority is none that a stream of this device may have.
    #[error("priority {asked} is outside of {range}")]
    Priority {
        /// What was asked for.
        asked: i32,
        /// What there is.
        range: PriorityRange,
    },
    /// Memory of no size was asked for.
    #[error("an allocation has at least 1 byte")]
    ZeroBytes,
    /// Bytes that the memory does not have.
    #[error("{bytes} bytes at {offset} are not within memory of {size} bytes")]
    OutOfRange {
        /// Where they were to begin.
        offset: usize,
        /// How many there were to be. For a range that ends before it begins, 0.
        bytes: usize,
        /// How many the memory has.
        size: usize,
    },
    /// Bytes that are no whole number of elements, or do not begin where an element may.
    #[error("{bytes} bytes at {offset} hold no elements of {size} bytes aligned to {align}")]
    Misaligned {
        /// Where they begin.
        offset: usize,
        /// How many they are.
        bytes: usize,
        /// Bytes of an element.
        size: usize,
        /// Where elements may begin: at its multiples.
        align: usize,
    },
    /// One piece of work writes bytes that it also uses otherwise.
    #[error("memory #{memory} is written where the same work uses it otherwise")]
    Overlap {
        /// The memory's number.
        memory: u64,
    },
    /// A stream, event or memory of another device.
    #[error("a handle belongs to another device, {device}")]
    OtherDevice {
        /// The ordinal of that one.
        device: u32,
    },
    /// A stream, an event, memory or the thread's binding is of before the device's last reset.
    #[error("a handle or the thread's binding is of before the device was reset")]
    BeforeReset,
    /// Memory that was freed before, in the order of the calls.
    #[error("memory #{memory} was freed before")]
    Freed {
        /// The memory's number.
        memory: u64,
    },
    /// Memory that other work uses, with nothing that says which goes first.
    #[error("memory #{memory} is used by stream #{stream}, and no event orders the two")]
    Unordered {
        /// The memory's number.
        memory: u64,
        /// The number of the stream that uses it.
        stream: u64,
    },
    /// Pinned memory that a copy still uses.
    #[error("a copy that uses the memory is in flight")]
    InFlight,
    /// The memory that was asked for is not there.
    #[error("{asked} bytes do not fit: {in_use} of {limit} are in use")]
    OutOfMemory {
        /// How many bytes were asked for.
        asked: u64,
        /// How many were in use then.
        in_use: u64,
        /// How many there are.
        limit: u64,
    },
    /// The driver's own error code, for backends that have one.
    #[error("{name} (driver error {code})")]
    Driver {
        /// How bad it is.
        class: ErrorClass,
        /// The driver's number for it.
        code: i64,
        /// The driver's name for it.
        name: Arc<str>,
    },
    /// A fault plan says so; sticky ones come as [`Sticky`](Cause::Sticky), and the loss as [`Lost`](Cause::Lost).
    #[error("injected: {class}")]
    Injected {
        /// Request or out of memory.
        class: ErrorClass,
    },
    /// The system refused the thread that was to watch the device.
    #[error("there is no thread to watch the device: {message}")]
    NoThread {
        /// What the system said.
        message: Arc<str>,
    },
    /// The device failed, in this call or in work that was submitted before.
    #[error("the device has failed: {0}")]
    Sticky(Arc<Fault>),
    /// The device is gone.
    #[error("the device is lost")]
    Lost,
}

impl Cause {
    /// How bad it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Cause::OutOfMemory { .. } => ErrorClass::OutOfMemory,
            Cause::Sticky(_) => ErrorClass::Sticky,
            Cause::Lost => ErrorClass::DeviceLost,
            Cause::Driver { class, .. } | Cause::Injected { class } => *class,
            Cause::NotBound { .. }
            | Cause::DriverThread
            | Cause::Priority { .. }
            | Cause::ZeroBytes
            | Cause::OutOfRange { .. }
            | Cause::Misaligned { .. }
            | Cause::Overlap { .. }
            | Cause::OtherDevice { .. }
            | Cause::BeforeReset
            | Cause::Freed { .. }
            | Cause::Unordered { .. }
            | Cause::InFlight
            | Cause::NoThread { .. } => ErrorClass::Request,
        }
    }
}

/// What broke a device, said once and repeated by every later call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fault {
    /// The call that failed, or that had submitted the work that did, where that is known.
    pub operation: Option<Operation>,
    /// The number of the stream whose work failed, where that is known.
    pub stream: Option<u64>,
    /// What happened, in words.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { operation, stream, message } = self;
        if let Some(operation) = operation {
            write!(f, "{operation}")?;
        }
        if let Some(stream) = stream {
            let space = if operation.is_some() { " " } else { "" };
            write!(f, "{space}on stream #{stream}")?;
        }
        let colon = if operation.is_some() || stream.is_some() { ": " } else { "" };
        write!(f, "{colon}{message}")
    }
}
