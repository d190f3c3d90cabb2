//! What a device pool needs of a driver, and nothing of which driver it is.
//!
//! A [`Backend`] is one device. [`HostDevice`](crate::host::HostDevice) is one on the CPU.
//!
//! # The rules that every backend keeps
//!
//! * **Threads are bound.** A call needs the device bound to the calling thread ([`Backend::bind`]), and fails with
//!   [`Cause::NotBound`] otherwise. Queries of the handle itself ([`Backend::info`], [`Allocation::bytes`]) and drops need
//!   no binding: a drop binds by itself what it needs, and leaves the thread bound as it was.
//! * **Calls return before the work is done**, unless they say that they wait. Work of one stream is done in the order of
//!   the calls. Work of two streams is in no order but what events make.
//! * **Errors are not only of the call.** Any call may return the fault of work that was submitted before. A
//!   [`Sticky`](ErrorClass::Sticky) error comes back from every later call until a reset that works; a query is therefore
//!   the way to learn whether work that is over was done.
//! * **A signal is a hint.** It is not raised after the device has failed, and may be raised although it failed. Query
//!   before success is believed, and query now and then while nothing is heard.
//! * **Nothing is lost by a failed call.** One that fails with a request or out-of-memory error has no effect, and drops
//!   what it was given.
//! * **A handle may be dropped at any time**, on any thread, also one that is bound to another device, also after a
//!   fault. Memory that submitted work uses stays until the device has passed that work; a backend may have to wait for
//!   that in the drop, so whoever can't wait frees in stream order or keeps the handle until an event has passed.

mod error;
mod info;
mod signal;

pub use error::{Cause, DriverError, ErrorClass, Fault, Operation};
pub use info::{DeviceInfo, DeviceUuid, MemoryInfo, PriorityRange};
pub use signal::{Bell, Signal};

use std::fmt::Debug;
use std::ops::Range;

/// Memory of a device, or of the host in a form that a device can copy from and to.
pub trait Allocation: Debug + Send + Sync + 'static {
    /// How many bytes it has. At least 1.
    fn bytes(&self) -> usize;
}

/// One device, through its driver. Clones are the same device.
///
/// The [module](self) has the rules that hold for all calls.
///
/// # Errors
///
/// Every call that returns a `Result` may fail with a request error (unbound thread, handle of another device or of
/// before a reset), and with the device's sticky fault or loss. Only further errors are mentioned below.
pub trait Backend: Clone + Debug + Send + Sync + 'static {
    /// A queue of work that is done in order. Dropping it lets the work go on.
    type Stream: Debug + Send + Sync + 'static;
    /// A point in a stream's work. Dropping it harms nobody who waits for it.
    type Event: Debug + Send + Sync + 'static;
    /// Memory of the device.
    type Memory: Allocation;
    /// Memory of the host that the device can copy from and to while the host goes on.
    type Pinned: Allocation;
    /// Work that the device does by code of the user's, with all that it needs: it keeps what it captures, and the memory
    /// it names, until the device has passed it.
    type Kernel: Send + 'static;

    /// What the device is. Needs no driver call.
    fn info(&self) -> &DeviceInfo;

    /// Binds the device to the calling thread, in place of what was bound. May be repeated. Threads that were bound before
    /// a reset have to be bound again.
    ///
    /// # Errors
    ///
    /// [`Cause::DriverThread`] inside a kernel.
    fn bind(&self) -> Result<(), DriverError>;

    /// Unbinds the calling thread, if it is bound to this device.
    fn unbind(&self);

    /// Whether the calling thread is bound to this device, as it is since its last reset.
    fn is_bound(&self) -> bool;

    /// A new stream. Lower numbers go first.
    ///
    /// # Errors
    ///
    /// [`Cause::Priority`] when the device has no such priority: it is never changed silently.
    /// [`PriorityRange::nearest`] finds one that it has.
    fn create_stream(&self, priority: i32) -> Result<Self::Stream, DriverError>;

    /// Whether the device has passed all work that the stream was given so far.
    fn query_stream(&self, stream: &Self::Stream) -> Result<bool, DriverError>;

    /// Blocks the calling thread until the device has passed all work that the stream was given so far, or has failed.
    fn synchronize_stream(&self, stream: &Self::Stream) -> Result<(), DriverError>;

    /// A new event that was never recorded: it counts as passed.
    fn create_event(&self) -> Result<Self::Event, DriverError>;

    /// Makes the event stand for the work that the stream was given so far. Whoever waits for an earlier record goes on
    /// doing so.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), DriverError>;

    /// Whether the device has passed the event's last record.
    fn query_event(&self, event: &Self::Event) -> Result<bool, DriverError>;

    /// What the stream is given from now on is done after the event's last record.
    fn wait_event(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), DriverError>;

    /// Blocks the calling thread until the device has passed the event's last record, or has failed.
    fn synchronize_event(&self, event: &Self::Event) -> Result<(), DriverError>;

    /// Has the signal raised, by a thread of the driver's, once the device has passed all work that the stream was given so
    /// far. It is not raised when the device fails before: see the rules of the [module](self).
    fn notify(&self, stream: &Self::Stream, signal: &Signal) -> Result<(), DriverError>;

    /// Memory with any contents. The bytes are taken at the call; other streams may use the memory after an event that
    /// this stream records later, or after the host has seen this stream pass.
    ///
    /// # Errors
    ///
    /// [`Cause::ZeroBytes`]; an error of class [`OutOfMemory`](ErrorClass::OutOfMemory).
    fn allocate(&self, stream: &Self::Stream, bytes: usize) -> Result<Self::Memory, DriverError>;

    /// Gives memory back once the stream has come to this point. Work of other streams must be ordered before it.
    ///
    /// # Errors
    ///
    /// [`Cause::Freed`], [`Cause::Unordered`], where the backend can tell. The handle is then dropped.
    fn free(&self, stream: &Self::Stream, memory: Self::Memory) -> Result<(), DriverError>;

    /// Pinned memory, all zero.
    ///
    /// # Errors
    ///
    /// [`Cause::ZeroBytes`]; an error of class [`OutOfMemory`](ErrorClass::OutOfMemory).
    fn allocate_pinned(&self, bytes: usize) -> Result<Self::Pinned, DriverError>;

    /// The contents of pinned memory. Needs no binding, and works also when the device has failed.
    ///
    /// # Errors
    ///
    /// [`Cause::InFlight`] while a copy that was submitted uses the memory.
    fn pinned_bytes<'a>(&self, pinned: &'a mut Self::Pinned) -> Result<&'a mut [u8], DriverError>;

    /// Copies the bytes `range` of `source` to `target`, beginning at `offset`.
    ///
    /// # Errors
    ///
    /// [`Cause::OutOfRange`]. An empty range within bounds is no error, and no copy.
    fn copy_to_device(
        &self,
        stream: &Self::Stream,
        source: &Self::Pinned,
        range: Range<usize>,
        target: &Self::Memory,
        offset: usize,
    ) -> Result<(), DriverError>;

    /// Copies the bytes `range` of `source` to `target`, beginning at `offset`.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device).
    fn copy_to_host(
        &self,
        stream: &Self::Stream,
        source: &Self::Memory,
        range: Range<usize>,
        target: &Self::Pinned,
        offset: usize,
    ) -> Result<(), DriverError>;

    /// Copies the bytes `range` of `source` to `target`, beginning at `offset`.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device); [`Cause::Overlap`] when bytes are copied onto each other.
    fn copy_on_device(
        &self,
        stream: &Self::Stream,
        source: &Self::Memory,
        range: Range<usize>,
        target: &Self::Memory,
        offset: usize,
    ) -> Result<(), DriverError>;

    /// Sets the bytes `range` of `memory` to `value`.
    ///
    /// # Errors
    ///
    /// As for [`copy_to_device`](Self::copy_to_device).
    fn fill(
        &self,
        stream: &Self::Stream,
        memory: &Self::Memory,
        range: Range<usize>,
        value: u8,
    ) -> Result<(), DriverError>;

    /// Has the device run a kernel.
    fn launch(&self, stream: &Self::Stream, kernel: Self::Kernel) -> Result<(), DriverError>;

    /// How much memory is free.
    fn memory_info(&self) -> Result<MemoryInfo, DriverError>;

    /// Makes the device as new, for all its users: work that has not begun is dropped, and every stream, event, allocation
    /// and binding of before is worth nothing. Needs no binding.
    ///
    /// # Errors
    ///
    /// The device is then as it was before. A reset is no promise: a fault may outlive it, and a lost device stays lost.
    fn reset(&self) -> Result<(), DriverError>;
}
