//! A device on the CPU.
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
