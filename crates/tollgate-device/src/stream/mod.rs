//! Streams on lease, and what waits for the device to have passed a point of one.
//!
//! A [`StreamPool`] has a bounded number of a device's streams. A [`StreamLease`] is one of them for a while. What the lease's
//! work uses is [given to it to hold](StreamLease::hold), and whoever wants to know when the work is done awaits a
//! [`Completion`], which costs no thread. When a lease is dropped in the middle of its work, the stream and what it holds are
//! *parked*: they are used again, or dropped, once the device has passed the work, and counted until then.
//!
//! ```
//! use tollgate_device::backend::Backend;
//! use tollgate_device::host::{HostDevice, HostKernel};
//! use tollgate_device::stream::StreamPool;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let rt = tokio::runtime::Runtime::new()?;
//! # rt.block_on(async {
//! let device = HostDevice::builder().build()?;
//! device.bind()?;
//! let streams = StreamPool::builder(device.clone()).streams(4).build()?;
//!
//! let mut lease = streams.lease(0).await?;
//! let memory = device.allocate(&lease, 8)?;
//! device.launch(&lease, HostKernel::new("fill", (memory.write::<u8>(),), |(bytes,)| bytes.fill(1)))?;
//! lease.hold(memory);
//! lease.completion().await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```

mod engine;
mod lease;
mod lines;

pub use lease::{
    Completion, LeaseStream, StreamLease, StreamLeaseError, StreamPool, StreamPoolBuilder,
    StreamPoolError, StreamStats,
};

use std::time::Duration;

/// How many streams a pool has unless it is told otherwise.
pub const DEFAULT_STREAMS: u32 = 32;

/// How long a driver may stay silent before the device is asked, unless a pool is told otherwise.
pub const DEFAULT_WATCHDOG: Duration = Duration::from_millis(5);

/// How long a completion asks the device again and again before it waits to be told, unless a pool is told otherwise.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(10);
