//! Blocks of bytes, and how work gets at them.

use super::core::Core;
use super::kernel::{Read, Write};
use crate::backend::Allocation;
use crate::sync::plain::RwLock;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory of a host device.
///
/// Clones are handles to the same memory, as copies of a raw pointer would be: so a use after a free, or a second free, can
/// be written, and is found. When the last handle is dropped without a free, the bytes go back once all work that uses them
/// is done.
///
/// Kernels name what they use by [`read`](Self::read) and [`write`](Self::write).
#[derive(Clone)]
pub struct HostMemory {
    pub(super) block: Arc<Block>,
}

/// Memory that a host device copies from and to. The bytes go back when it is dropped and no copy uses it any more.
pub struct HostPinned {
    pub(super) block: Arc<Block>,
}

/// The bytes behind handles. It is in use for as long as anybody has it.
pub(super) struct Block {
    /// Unique in its device, never used again.
    pub(super) number: u64,
    pub(super) core: Arc<Core>,
    pub(super) generation: u64,
    pub(super) bytes: usize,
    pub(super) store: RwLock<Store>,
}

/// In elements of 16 bytes, so that views of any plain type are aligned.
#[derive(Debug)]
pub(super) enum Store {
    /// Nobody has used it: a device of 80 GB costs nothing until then.
    Untouched,
    Held(Vec<u128>),
    /// A stream has passed the free.
    Freed,
}

/// What fresh device memory is full of: not a number, in every floating-point type, and not a plausible index.
const FRESH: u128 = u128::MAX;

impl Store {
    /// Zeroed bytes, or `None` when the system has none.
    pub(super) fn zeroed(bytes: usize) -> Option<Store> {
        Self::filled(bytes, 0)
    }

    fn filled(bytes: usize, with: u128) -> Option<Store> {
        let elements = bytes.div_ceil(size_of::<u128>());
        let mut all = Vec::new();
        all.try_reserve_exact(elements).ok()?;
        all.resize(elements, with);
        Some(Store::Held(all))
    }

    /// The bytes; `None` once they are freed.
    pub(super) fn bytes(&self, bytes: usize) -> Option<&[u8]> {
        match self {
            Store::Held(all) => bytemuck::cast_slice(all).get(..bytes),
            Store::Untouched | Store::Freed => None,
        }
    }

    /// The bytes, to be written; `None` once they are freed.
    pub(super) fn bytes_mut(&mut self, bytes: usize) -> Option<&mut [u8]> {
        match self {
            Store::Held(all) => bytemuck::cast_slice_mut(all).get_mut(..bytes),
            Store::Untouched | Store::Freed => None,
        }
    }
}

impl Block {
    /// Makes the bytes be there, unless they were freed. Errors are faults of the work that needed them.
    pub(super) fn touch(&self) -> Result<(), String> {
        let mut store = self.store.write();
        if matches!(*store, Store::Untouched) {
            let Block { number, bytes, .. } = self;
            *store = Store::filled(*bytes, FRESH)
                .ok_or_else(|| format!("the host has no {bytes} bytes for memory #{number}"))?;
        }
        Ok(())
    }

    /// What work says that finds the bytes gone. Where the order is checked it can't: a free is ordered after every use.
    pub(super) fn gone(&self) -> String {
        format!("memory #{} was freed while work still used it", self.number)
    }

    /// The stream has passed the free.
    pub(super) fn free(&self) {
        *self.store.write() = Store::Freed;
        self.core.release(self.number);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.core.release(self.number);
    }
}

/// Sets bytes of a block.
pub(super) fn fill(block: &Block, range: Range<usize>, value: u8) -> Result<(), String> {
    // nothing orders it before a free
    if range.is_empty() {
        return Ok(());
    }
    block.touch()?;
    let mut store = block.store.write();
    let bytes = store.bytes_mut(block.bytes).ok_or_else(|| block.gone())?;
    bytes[range].fill(value);
    Ok(())
}

/// Copies bytes of one block to another, or to another place of the same.
pub(super) fn copy(
    source: &Block,
    from: Range<usize>,
    target: &Block,
    offset: usize,
) -> Result<(), String> {
    // nothing orders it before a free of either
    if from.is_empty() {
        return Ok(());
    }
    source.touch()?;
    target.touch()?;
    let end = offset + from.len();
    if std::ptr::eq(source, target) {
        let mut store = target.store.write();
        store.bytes_mut(target.bytes).ok_or_else(|| target.gone())?.copy_within(from, offset);
        return Ok(());
    }
    // locks are taken in the order of the numbers, here and for kernels, so nobody waits in a circle
    let (source_store, mut target_store);
    if source.number < target.number {
        source_store = source.store.read();
        target_store = target.store.write();
    } else {
        target_store = target.store.write();
        source_store = source.store.read();
    }
    let bytes = source_store.bytes(source.bytes).ok_or_else(|| source.gone())?;
    let place = target_store.bytes_mut(target.bytes).ok_or_else(|| target.gone())?;
    place[offset..end].copy_from_slice(&bytes[from]);
    Ok(())
}

impl HostMemory {
    /// The number that errors and faults call it by. Never used again by its device.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.block.number
    }

    /// For a kernel that reads all of it as elements of this type.
    #[must_use]
    pub fn read<T: bytemuck::Pod + Send + Sync>(&self) -> Read<T> {
        Read::all(Arc::clone(&self.block))
    }

    /// For a kernel that reads and writes all of it as elements of this type.
    #[must_use]
    pub fn write<T: bytemuck::Pod + Send + Sync>(&self) -> Write<T> {
        Write::all(Arc::clone(&self.block))
    }
}

impl Allocation for HostMemory {
    fn bytes(&self) -> usize {
        self.block.bytes
    }
}

impl Allocation for HostPinned {
    fn bytes(&self) -> usize {
        self.block.bytes
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, "HostMemory", &self.block)
    }
}

impl fmt::Debug for HostPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, "HostPinned", &self.block)
    }
}

fn show(f: &mut fmt::Formatter<'_>, name: &str, block: &Block) -> fmt::Result {
    f.debug_struct(name)
        .field("device", &block.core.info.ordinal)
        .field("number", &block.number)
        .field("bytes", &block.bytes)
        .finish_non_exhaustive()
}
