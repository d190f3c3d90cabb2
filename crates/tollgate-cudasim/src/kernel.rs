//! Kernels: Rust functions with the names that PTX modules declare.

use crate::code::Code;
use crate::state::driver;
use crate::thread;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

type Body = dyn Fn(&Launch) -> Result<(), Code> + Send + Sync;

static KERNELS: Mutex<BTreeMap<String, Arc<Body>>> = Mutex::new(BTreeMap::new());

/// Says what the kernels with this name do, in whichever module they are. An error is a fault of their context.
///
/// The function is called once for each launch, with all of its grid. It runs on a thread of the driver, and must not call
/// the driver.
pub fn register_kernel(
    name: impl Into<String>,
    body: impl Fn(&Launch) -> Result<(), Code> + Send + Sync + 'static,
) {
    let old =
        KERNELS.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), Arc::new(body));
    // not under the lock
    drop(old);
}

pub(crate) fn registered(name: &str) -> Option<Kernel> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().map(Kernel)
}

/// What a kernel does.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Body>);

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel")
    }
}

/// A launch of a kernel.
#[derive(Debug)]
pub struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) session: u64,
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) arguments: Vec<Vec<u8>>,
}

impl Launch {
    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many blocks there are, by dimension.
    pub fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// How many threads a block has, by dimension.
    pub fn block(&self) -> [u32; 3] {
        self.block
    }

    /// The dynamic shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// An argument, counted from 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is none of this size.
    pub fn argument<T: bytemuck::Pod>(&self, index: usize) -> Result<T, Code> {
        let bytes = self.arguments.get(index).ok_or(Code::INVALID_VALUE)?;
        bytemuck::try_pod_read_unaligned(bytes).map_err(|_| Code::INVALID_VALUE)
    }

    /// Reads memory that the device has.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` when it has none there, or not so much.
    pub fn read<T: bytemuck::Pod>(&self, address: u64, count: usize) -> Result<Vec<T>, Code> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or(Code::ILLEGAL_ADDRESS)?;
        let (memory, offset) = self.find(address)?;
        let bytes = memory.read(offset, bytes)?;
        Ok(bytes.chunks_exact(size_of::<T>().max(1)).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Writes memory that the device has.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` when it has none there, or not so much.
    pub fn write<T: bytemuck::Pod>(&self, address: u64, values: &[T]) -> Result<(), Code> {
        let (memory, offset) = self.find(address)?;
        memory.write(offset, bytemuck::cast_slice(values))
    }

    fn find(&self, address: u64) -> Result<(Arc<crate::bytes::Memory>, usize), Code> {
        let state = driver().peek();
        let found = (state.session == self.session).then(|| state.memory_at(address)).flatten();
        found.ok_or(Code::ILLEGAL_ADDRESS)
    }

    pub(crate) fn run(&self) -> Result<(), Code> {
        let mut outcome = Err(Code::LAUNCH_FAILED);
        thread::in_host_function(|| {
            // a panic has said its message
            let body = AssertUnwindSafe(|| (self.kernel.0)(self));
            outcome = catch_unwind(body).unwrap_or_else(|payload| {
                // dropping this one could panic again
                std::mem::forget(payload);
                Err(Code::LAUNCH_FAILED)
            });
        });
        outcome
    }
}
