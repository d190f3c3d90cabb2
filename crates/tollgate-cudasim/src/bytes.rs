//! What memory holds.

use crate::code::Code;
use crate::raw::{HostBlock, HostPointer};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// The bytes of a block. Those of a device have no address, so nothing but the driver gets at them.
pub(crate) enum Memory {
    Device {
        /// Words, so that whatever a kernel keeps there is aligned.
        words: RwLock<Vec<u64>>,
        bytes: usize,
    },
    Host(HostBlock, usize),
    /// The user's, registered with the driver.
    Registered(HostPointer, usize),
}

/// What nobody has written yet, so that whoever reads it sees that it is none of theirs.
const UNWRITTEN: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// Large memory is left as the system gives it, which costs nothing until it is used.
const LARGE: usize = 1 << 20;

impl Memory {
    pub(crate) fn on_device(bytes: usize) -> Option<Self> {
        let count = bytes.div_ceil(8);
        let fill = if bytes > LARGE { 0 } else { UNWRITTEN };
        let words = RwLock::new(vec![fill; count]);
        Some(Memory::Device { words, bytes })
    }

    pub(crate) fn on_host(bytes: usize) -> Option<Self> {
        HostBlock::new(bytes).map(|it| Memory::Host(it, bytes))
    }

    /// Its address on the host, where it has one.
    pub(crate) fn pointer(&self) -> Option<HostPointer> {
        match self {
            Memory::Device { .. } => None,
            Memory::Host(block, _) => Some(block.pointer()),
            Memory::Registered(pointer, _) => Some(*pointer),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::Device { bytes, .. }
            | Memory::Host(_, bytes)
            | Memory::Registered(_, bytes) => *bytes,
        }
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), Code> {
        let end = offset.checked_add(bytes);
        if end.is_some_and(|end| end <= self.len()) { Ok(()) } else { Err(Code::ILLEGAL_ADDRESS) }
    }

    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, Code> {
        self.check(offset, bytes)?;
        match self {
            Memory::Device { words, .. } => {
                let words = words.read().unwrap_or_else(PoisonError::into_inner);
                let all: &[u8] = bytemuck::cast_slice(&words);
                Ok(all[offset..offset + bytes].to_vec())
            }
            Memory::Host(block, _) => block.pointer().add(offset).read(bytes),
            Memory::Registered(pointer, _) => pointer.add(offset).read(bytes),
        }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Code> {
        self.check(offset, bytes.len())?;
        match self {
            Memory::Device { words, .. } => {
                let mut words = words.write().unwrap_or_else(PoisonError::into_inner);
                let all: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
                all[offset..offset + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Memory::Host(block, _) => block.pointer().add(offset).write(bytes),
            Memory::Registered(pointer, _) => pointer.add(offset).write(bytes),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(&self.len()).finish()
    }
}

/// Where a copy comes from or goes to.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In memory that the driver knows, from this offset on.
    Known(Arc<Memory>, usize),
    /// Somewhere on the host.
    Host(HostPointer),
    /// What a copy took with it when it was asked for.
    Taken(Arc<Vec<u8>>),
}

impl Place {
    pub(crate) fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Code> {
        match self {
            Place::Known(memory, offset) => memory.read(offset.saturating_add(at), bytes),
            Place::Host(pointer) => pointer.add(at).read(bytes),
            Place::Taken(taken) => {
                Ok(taken.get(at..at + bytes).ok_or(Code::ILLEGAL_ADDRESS)?.to_vec())
            }
        }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Code> {
        match self {
            Place::Known(memory, offset) => memory.write(offset.saturating_add(at), bytes),
            Place::Host(pointer) => pointer.add(at).write(bytes),
            Place::Taken(_) => Err(Code::ILLEGAL_ADDRESS),
        }
    }
}
