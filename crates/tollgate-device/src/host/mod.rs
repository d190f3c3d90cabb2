//! A device on the CPU: how to test a GPU service without a GPU.
//!
//! [`HostDevice`] is a [`Backend`](crate::backend::Backend) that does real work: kernels are closures over typed views of
//! device memory, run by engine threads in the order of their streams. Code that is written against the trait runs on it
//! unchanged. What a GPU does seldom, it does when told to, and what a GPU lets pass, it finds.
//!
//! # How a test goes
//!
//! The code under test gets the device. The test keeps a [`HostControl`], with which it sees and disturbs what goes on:
//!
//! ```
//! use std::time::Duration;
//! use tollgate_device::backend::{Backend, DriverError, ErrorClass, Operation};
//! use tollgate_device::host::{Failure, HostDevice, HostHealth, HostKernel};
//!
//! /// The code under test: it knows no backend.
//! struct Staging<B: Backend> {
//!     device: B,
//!     stream: B::Stream,
//!     pinned: B::Pinned,
//! }
//!
//! impl<B: Backend> Staging<B> {
//!     fn new(device: B, bytes: usize) -> Result<Self, DriverError> {
//!         device.bind()?;
//!         let stream = device.create_stream(0)?;
//!         let pinned = device.allocate_pinned(bytes)?;
//!         Ok(Staging { device, stream, pinned })
//!     }
//!
//!     /// Sends bytes to the device, and waits until the staging memory can be used again.
//!     fn send(&mut self, bytes: &[u8]) -> Result<B::Memory, DriverError> {
//!         let memory = self.device.allocate(&self.stream, bytes.len())?;
//!         self.device.pinned_bytes(&mut self.pinned)?[..bytes.len()].copy_from_slice(bytes);
//!         self.device.copy_to_device(&self.stream, &self.pinned, 0..bytes.len(), &memory, 0)?;
//!         self.device.synchronize_stream(&self.stream)?;
//!         Ok(memory)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = HostDevice::builder().name("gpu0").memory(1 << 20).build()?;
//! let control = device.control();
//! let mut staging = Staging::new(device.clone(), 64)?;
//!
//! // it works
//! let memory = staging.send(&[1, 2, 3])?;
//! let check = HostKernel::new("check", (memory.read::<u8>(),), |(bytes,)| {
//!     assert_eq!(bytes, [1, 2, 3]);
//! });
//! device.launch(&staging.stream, check)?;
//! device.synchronize_stream(&staging.stream)?;
//!
//! // it takes an out-of-memory error, and leaves nothing behind
//! control.fail_next(Operation::Allocate, Failure::OutOfMemory);
//! assert_eq!(staging.send(&[4]).unwrap_err().class(), ErrorClass::OutOfMemory);
//! assert_eq!(control.stats().memory.in_use, 3);
//!
//! // the copy is accepted, and breaks the device when it is done
//! control.fail_next(Operation::CopyToDevice, Failure::StickyLater);
//! assert_eq!(staging.send(&[5]).unwrap_err().class(), ErrorClass::Sticky);
//! assert!(matches!(control.stats().health, HostHealth::Faulted(_)));
//!
//! // a reset brings it back, with everything new
//! device.reset()?;
//! staging = Staging::new(device.clone(), 64)?;
//! staging.send(&[6])?;
//!
//! // and nothing is left at the end
//! drop((staging, memory, device));
//! assert!(control.wait_ended(Duration::from_secs(10)));
//! assert_eq!(control.stats().memory.in_use, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What it does as a device would
//!
//! * **Streams** are done by [`HostBuilder::engines`] threads, the greater priority first when threads are short. A launch
//!   returns before its kernel has run, and streams overlap. A stream that waits for an event or is stalled takes no
//!   thread, and threads that have nothing to do are not woken.
//! * **Memory** has limits that are kept to the byte: [`MemoryUse`] says what is in use and what was at most. Bytes are
//!   taken by the call that allocates and given back when the stream passes the free. Fresh memory is full of nonsense.
//! * **Threads** are bound to a device, and those that are not can call nothing. A reset unbinds them all.
//!
//! # What it finds
//!
//! | mistake | what comes of it |
//! | --- | --- |
//! | a range that the memory does not have | [`Cause::OutOfRange`] from the call |
//! | a use after the free, a second free | [`Cause::Freed`] from the call |
//! | two streams use the same bytes, one writes, and no event orders them | [`Cause::Unordered`] from the second call |
//! | a free on one stream while another may use the memory | [`Cause::Unordered`] from the free |
//! | a use of fresh memory on a stream that has not waited for the one it was allocated on | [`Cause::Unordered`] |
//! | staging memory touched while a copy uses it | [`Cause::InFlight`] |
//! | a handle of another device, or of before a reset | [`Cause::OtherDevice`], [`Cause::BeforeReset`] |
//! | a call on a thread that is not bound | [`Cause::NotBound`] |
//! | a call of the driver inside a kernel | [`Cause::DriverThread`] |
//! | a kernel that panics | a sticky fault with its message |
//!
//! The order of two uses is worked out from the calls, so a missing event is found each time, also when the threads happen
//! to run in the right order. Two uses are ordered when they are on one stream, when a chain of events leads from one to
//! the other, or when the host has seen the first pass ([`query_event`](crate::backend::Backend::query_event) or
//! [`synchronize_event`](crate::backend::Backend::synchronize_event), or those of the stream) before it submitted the
//! second. A [`Signal`](crate::backend::Signal) orders nothing: it is a hint to query.
//! [`HostBuilder::check_order`] turns this off.
//!
//! # What can be made to go wrong
//!
//! | on a device | before it is built | as the test goes on |
//! | --- | --- | --- |
//! | the n-th call of an operation fails | [`FaultPlan::fail`] | [`HostControl::fail_next`] |
//! | work that was accepted breaks the device later | [`Failure::StickyLater`] | the same, or a kernel that panics |
//! | the device breaks, or is gone, with nobody calling | | [`HostControl::fault`], [`HostControl::lose`] |
//! | a stream does not get on | [`FaultPlan::stall_stream`] | [`HostControl::stall`] |
//! | nobody is called back | [`FaultPlan::never_notify`] | |
//! | somebody is called back as if all were well | [`FaultPlan::notify_despite_faults`] | |
//! | a reset does not help | [`FaultPlan::fail`] of [`Operation::Reset`] | [`HostControl::fail_next`] |
//! | anything, anywhere | [`FaultPlan::from_seed`] | |
//!
//! # What it does not do
//!
//! * Work that has begun is never stopped: after a fault, a reset or the loss of the device a closure runs to its end, on
//!   its engine thread, and nobody hears of it.
//! * Freed memory can be allocated anew only when the stream has passed the free, also on the same stream.
//! * A kernel that writes one part of an allocation and one that uses another part take turns. Two kernels that wait for
//!   each other need allocations of their own, and an engine thread each.
//! * A stream that goes while the host has not seen all of its work pass is remembered for as long as the device lives, to
//!   tell what is ordered after it, and every later call pays for that. Where streams come and go, synchronise or query each
//!   before its handle is dropped.
//! * Nothing is timed: how long something takes says nothing of a GPU.
//!
//! [`Cause::OutOfRange`]: crate::backend::Cause::OutOfRange
//! [`Cause::Freed`]: crate::backend::Cause::Freed
//! [`Cause::Unordered`]: crate::backend::Cause::Unordered
//! [`Cause::InFlight`]: crate::backend::Cause::InFlight
//! [`Cause::OtherDevice`]: crate::backend::Cause::OtherDevice
//! [`Cause::BeforeReset`]: crate::backend::Cause::BeforeReset
//! [`Cause::NotBound`]: crate::backend::Cause::NotBound
//! [`Cause::DriverThread`]: crate::backend::Cause::DriverThread
//! [`Operation::Reset`]: crate::backend::Operation::Reset

mod binding;
mod control;
mod core;
mod device;
mod faults;
mod handles;
mod kernel;
mod memory;
mod order;
mod stats;
mod timeline;

pub use control::HostControl;
pub use device::{DEFAULT_ENGINES, HostBuildError, HostBuilder, HostDevice, MAX_ENGINES};
pub use faults::{Calls, Failure, FaultPlan};
pub use handles::{HostEvent, HostStream};
pub use kernel::{Argument, Arguments, HostKernel, Read, Write};
pub use memory::{HostMemory, HostPinned};
pub use stats::{HostHealth, HostStats, MemoryUse};
