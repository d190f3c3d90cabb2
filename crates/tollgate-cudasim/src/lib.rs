//! The CUDA driver API on the CPU, for tests on machines with no GPU.
//!
//! A program that is linked with this crate finds the driver's functions in it: [`cust`](https://docs.rs/cust) and whatever
//! else calls `libcuda` then runs on simulated devices. Link it with `use tollgate_cudasim as _;`, or use what is here to say
//! what goes wrong:
//!
//! ```
//! use tollgate_cudasim::{Code, Setup, Simulation};
//!
//! let sim = Simulation::start(Setup::new().devices(2).fail("cuMemAlloc", 2, Code::OUT_OF_MEMORY));
//! // .. what is tested calls the driver
//! assert_eq!(sim.stats().blocks, 0, "nothing is left");
//! assert!(sim.misuses().is_empty());
//! ```
//!
//! What is not simulated answers that it is not supported.

mod bytes;
mod code;
mod context;
mod device;
mod engine;
mod event;
mod faults;
mod ffi;
mod kernel;
mod memory;
mod misuse;
mod module;
mod order;
mod pool;
mod ptx;
mod raw;
mod setup;
mod sim;
mod state;
mod stream;
mod thread;
mod timeline;

pub use code::Code;
pub use faults::{Calls, Failure};
pub use kernel::{Launch, register_kernel};
pub use misuse::{Misuse, MisuseKind};
pub use setup::{ParseSetupError, Setup};
pub use sim::{Simulation, Stats, VARIABLE};
