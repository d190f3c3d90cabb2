//! Work on devices for services on tokio: what may start, where it runs, and how it ends.
//!
//! A [`DevicePool`] decides which work may start on one device, runs it on threads to which the device is bound, and can
//! prove at its end what has ended and what has not. It works with any driver that there is a [`Backend`](backend::Backend)
//! for. One is always there: [`host`], a device on the CPU that does real work and fails when it is told to.
//!
//! | need | use |
//! | --- | --- |
//! | bound what runs on a device, and what is accepted for it | [`DevicePool`], [`DeviceProfile`] |
//! | admit a query as a whole, then run its parts | [`DevicePool::admission`], [`Attempt`] |
//! | run something that awaits, or blocks | [`DeviceJob::run`], [`DeviceJob::submit_blocking`] |
//! | free what a query had, whatever else goes on | [`Attempt::release`] |
//! | hand out the right to run, and no more | [`DeviceHandle`] |
//! | follow what becomes of jobs | [`EventStream`], [`Recorder`], [`DeviceSnapshot`], [`Tracker`] |
//! | stop, and know what has stopped | [`DevicePool::shutdown`], [`DeviceReport`] |
//! | exit the process with work under way | [`ExitPolicy`] |
//! | write code that runs on any driver | [`backend::Backend`] |
//! | have one pool per device in the whole process | [`DevicePoolBuilder::shared`], [`DevicePool::find`] |
//! | have a bounded number of streams, and give them back in mid-work | [`stream::StreamPool`], [`stream::StreamLease`] |
//! | await a stream without a blocked thread | [`stream::Completion`] |
//! | test a GPU service on a machine without a GPU | [`host`] |
//! | make a device fail, at the call or long after it | [`host::FaultPlan`], [`host::HostControl`] |
//!
//! # A query on a device
//!
//! ```
//! use tollgate_device::backend::Backend;
//! use tollgate_device::host::{HostDevice, HostKernel};
//! use tollgate_device::{DeviceKind, DevicePool, DeviceProfile};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let rt = tokio::runtime::Runtime::new()?;
//! # rt.block_on(async {
//! let device = HostDevice::builder().name("gpu0").build()?;
//! // 4 attempts at once, 3 workers, of which 1 is kept for setup and cleanup
//! let pool = DevicePool::builder(device.clone(), DeviceProfile::new(4, 3)).build()?;
//! let attempt = pool.admission().await?;
//!
//! let own = device.clone();
//! let set_up = async move {
//!     let stream = own.create_stream(0)?;
//!     let memory = own.allocate(&stream, 4096)?;
//!     Ok::<_, tollgate_device::backend::DriverError>((stream, memory))
//! };
//! let (stream, memory) = attempt.job("set up").kind(DeviceKind::SETUP).run(set_up).await??;
//!
//! let own = device.clone();
//! let query = async move {
//!     own.launch(&stream, HostKernel::new("ones", (memory.write::<u8>(),), |(row,)| row.fill(1)))?;
//!     // the job has a worker until it ends, so it may block
//!     own.synchronize_stream(&stream).map(|()| (stream, memory))
//! };
//! let (stream, memory) = attempt.job("query").run(query).await??;
//!
//! // never waits behind executions, and is never refused for want of a permit
//! attempt.release("free", async move { device.free(&stream, memory) })?.await??;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })
//! # }
//! ```
//!
//! # What is guaranteed
//!
//! * A job's permit is taken before it is accepted and comes back when it has really ended, whoever stopped waiting for it.
//! * Setup and cleanup never wait behind execution. The cleanup that ends an attempt is never refused for want of a permit.
//! * A job that is submitted from within the pool runs there, or is refused: it never waits for what its submitter holds.
//! * Whoever has a result can use the slot.
//! * Each job has one terminal event, in order under every race.
//!
//! # Features
//!
//! `tracing` (default): [events](EventStream) can be written to it. `serde`: figures and reports can be serialised.

pub mod backend;
mod exit;
pub mod host;
mod pool;
pub mod stream;
mod sync;

pub use exit::ExitPolicy;
pub use pool::*;

pub use tollgate_admission as admission;
