//! Memory: which blocks there are, who uses them, copies and fills.

use crate::bytes::{Memory, Place};
use crate::code::Code;
use crate::engine::Work;
use crate::misuse::MisuseKind;
use crate::order::{Touch, Uses};
use crate::raw::HostPointer;
use crate::state::{Call, State};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    /// Of a module.
    Global,
    Pinned,
    Registered,
    Managed,
}

impl Kind {
    fn is_on_device(self) -> bool {
        matches!(self, Kind::Device | Kind::Global)
    }
}

/// Memory that the driver knows.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
    pub(crate) context: u64,
    pub(crate) device: usize,
    /// Whose bytes it has, where it was allocated in a stream's order.
    pub(crate) pool: Option<u64>,
    pub(crate) flags: u32,
    pub(crate) memory: Arc<Memory>,
    /// A stream was asked to free it.
    pub(crate) freed: bool,
    uses: Uses,
}

/// Some bytes of the block at this address, and what for.
pub(crate) type Use = (u64, Touch);

/// Between two blocks, so that what runs over the end of one is in none.
const GAP: u64 = 512;

/// Some bytes of memory, of one row after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) bytes: usize,
    pub(crate) rows: usize,
    pub(crate) pitch: usize,
}

impl Rows {
    pub(crate) fn one(bytes: usize) -> Self {
        Rows { bytes, rows: 1, pitch: bytes }
    }

    /// From the first byte to the last.
    pub(crate) fn span(self) -> Result<usize, Code> {
        if self.bytes == 0 || self.rows == 0 {
            return Ok(0);
        }
        let before = self.pitch.checked_mul(self.rows - 1);
        before.and_then(|it| it.checked_add(self.bytes)).ok_or(Code::INVALID_VALUE)
    }
}

impl State {
    fn block_at(&self, address: u64) -> Option<(u64, &Block)> {
        let (&base, block) = self.blocks.range(..=address).next_back()?;
        (address - base < block.bytes.max(1) as u64).then_some((base, block))
    }

    /// What a kernel finds at an address, and how far into it that is.
    pub(crate) fn memory_at(&self, address: u64) -> Option<(Arc<Memory>, usize)> {
        let (base, block) = self.block_at(address)?;
        Some((Arc::clone(&block.memory), usize::try_from(address - base).ok()?))
    }

    /// Bytes in the block at this address, if there are some: for a kernel that may read or write any of them.
    pub(crate) fn whole_block(&self, address: u64) -> Option<Use> {
        let (base, block) = self.block_at(address)?;
        Some((base, Touch { start: 0, end: block.bytes, write: false }))
    }

    /// Whether the driver gives such addresses to memory that no host has.
    pub(crate) fn may_be_on_device(&self, address: u64) -> bool {
        self.devices.iter().any(|it| it.has_address(address))
    }

    /// Whether a stream was asked to free the memory there.
    pub(crate) fn is_freed(&self, address: u64) -> bool {
        self.block_at(address).is_some_and(|(_, it)| it.freed)
    }

    /// Adds a block, and says its address.
    fn add_block(
        &mut self,
        context: u64,
        kind: Kind,
        pool: Option<u64>,
        flags: u32,
        memory: Memory,
    ) -> Result<u64, Code> {
        let bytes = memory.len();
        let device = self.contexts.get(&context).map_or(0, |it| it.device);
        let address = match memory.pointer() {
            Some(pointer) => pointer.address(),
            None => {
                let device = self.devices.get_mut(device).ok_or(Code::INVALID_DEVICE)?;
                let address = device.next_address;
                device.next_address += (bytes as u64).next_multiple_of(GAP) + GAP;
                address
            }
        };
        let block = Block {
            kind,
            bytes,
            context,
            device,
            pool,
            flags,
            memory: Arc::new(memory),
            freed: false,
            uses: Uses::default(),
        };
        self.blocks.insert(address, block);
        Ok(address)
    }

    /// Takes the block away, with what it counts for.
    pub(crate) fn forget_block(&mut self, address: u64) {
        let Some(block) = self.blocks.remove(&address) else { return };
        if !block.freed {
            self.uncount(block.kind, block.pool, block.device, block.bytes);
        }
    }

    fn uncount(&mut self, kind: Kind, pool: Option<u64>, device: usize, bytes: usize) {
        match pool {
            Some(pool) => self.give_back(pool, bytes as u64),
            None if kind.is_on_device() => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.used -= bytes as u64;
                }
            }
            None => {}
        }
    }

    pub(crate) fn add_uses(&mut self, stream: u64, position: u64, uses: &[Use]) {
        for &(address, touch) in uses {
            if let Some(block) = self.blocks.get_mut(&address) {
                let seen = |stream, position| self.timeline.is_seen(stream, position);
                block.uses.add(stream, position, touch, seen);
            }
        }
    }

    /// A stream that uses these bytes in no order with what this stream is given next.
    fn conflict(&mut self, stream: u64, (address, touch): Use) -> Option<u64> {
        let block = self.blocks.get(&address)?;
        let timeline = &mut self.timeline;
        block.uses.conflict(touch, |other, position| timeline.is_before(stream, other, position))
    }

    /// A stream that may still use the block, other than this one.
    fn user_of(&self, address: u64, except: u64) -> Option<u64> {
        let block = self.blocks.get(&address)?;
        let whole = Touch { start: 0, end: block.bytes, write: true };
        let over = |it, position| it == except || self.timeline.is_seen(it, position);
        block.uses.conflict(whole, over)
    }
}

impl Call {
    pub(crate) fn check_order(&mut self, stream: u64, uses: &[Use]) -> Result<(), Code> {
        for &it in uses {
            if let Some(other) = self.conflict(stream, it) {
                let detail = format!(
                    "stream {stream:#x} uses {:#x} with neither an event nor the host between it and stream {other:#x}",
                    it.0
                );
                return Err(self.found(MisuseKind::Unordered, Code::ILLEGAL_STATE, detail));
            }
        }
        Ok(())
    }

    /// Memory of the device, which exists at once.
    pub(crate) fn allocate(&mut self, bytes: usize, kind: Kind) -> Result<u64, Code> {
        let context = self.current()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let device = self.contexts.get(&context).map_or(0, |it| it.device);
        self.take_bytes(device, bytes as u64)?;
        let memory = Memory::on_device(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        self.add_block(context, kind, None, 0, memory)
    }

    /// Memory of the device in a pool, which exists for what the stream is given next.
    pub(crate) fn allocate_in_order(
        &mut self,
        bytes: usize,
        pool: Option<u64>,
        stream: usize,
    ) -> Result<u64, Code> {
        let context = self.current()?;
        let stream = self.stream(stream)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let device = self.contexts.get(&context).map_or(0, |it| it.device);
        let pool = pool.or(self.devices.get(device).map(|it| it.pool)).unwrap_or(0);
        self.take_from_pool(pool, device, bytes as u64)?;
        let memory = Memory::on_device(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let address = self.add_block(context, Kind::Device, Some(pool), 0, memory)?;
        self.order(stream, context);
        if let Some(point) = self.timeline.mark(stream, 0) {
            let whole = Touch { start: 0, end: bytes, write: true };
            self.add_uses(stream, point.position, &[(address, whole)]);
        }
        Ok(address)
    }

    /// Memory of the host: pinned, or managed.
    pub(crate) fn allocate_host(
        &mut self,
        bytes: usize,
        kind: Kind,
        flags: u32,
    ) -> Result<HostPointer, Code> {
        let context = self.current()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let memory = Memory::on_host(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let pointer = memory.pointer().ok_or(Code::OUT_OF_MEMORY)?;
        self.add_block(context, kind, None, flags, memory)?;
        Ok(pointer)
    }

    pub(crate) fn register_host(
        &mut self,
        pointer: HostPointer,
        bytes: usize,
        flags: u32,
    ) -> Result<(), Code> {
        let context = self.current()?;
        let (start, end) = (pointer.address(), pointer.address().saturating_add(bytes as u64));
        if start == 0 || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let before = self.blocks.range(..end).next_back();
        if before.is_some_and(|(&base, block)| base + block.bytes as u64 > start) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let memory = Memory::Registered(pointer, bytes);
        self.add_block(context, Kind::Registered, None, flags, memory).map(drop)
    }

    /// A block that starts at this address.
    fn block(&mut self, address: u64, kinds: &[Kind]) -> Result<&mut Block, Code> {
        let found =
            self.blocks.get(&address).is_some_and(|it| !it.freed && kinds.contains(&it.kind));
        if !found {
            let detail = format!("no memory of this kind begins at {address:#x}, or it was freed");
            return Err(self.found(MisuseKind::BadAddress, Code::INVALID_VALUE, detail));
        }
        self.blocks.get_mut(&address).ok_or(Code::INVALID_VALUE)
    }

    /// Frees at once. What the null stream does with it is waited for; nobody else may use it.
    pub(crate) fn free(&mut self, address: u64, kinds: &[Kind]) -> Result<(), Code> {
        let context = self.current()?;
        self.block(address, kinds)?;
        let legacy = self.context()?.legacy;
        if let Some(other) = self.user_of(address, legacy) {
            let detail = format!(
                "{address:#x} is freed, and nobody has seen that stream {other:#x} is done with it"
            );
            return Err(self.found(MisuseKind::Unfinished, Code::ILLEGAL_STATE, detail));
        }
        if let Some(point) = self.timeline.point(legacy) {
            self.wait_for(context, &point)?;
        }
        self.forget_block(address);
        Ok(())
    }

    /// Frees once the stream has come there.
    pub(crate) fn free_in_order(&mut self, address: u64, stream: usize) -> Result<(), Code> {
        let stream = self.stream(stream)?;
        let block = self.block(address, &[Kind::Device])?;
        let whole = Touch { start: 0, end: block.bytes, write: true };
        let context = self.current()?;
        self.order(stream, context);
        if let Some(other) = self.conflict(stream, (address, whole)) {
            let detail = format!(
                "{address:#x} is freed on stream {stream:#x}, in no order with stream {other:#x}, which uses it"
            );
            return Err(self.found(MisuseKind::Unfinished, Code::ILLEGAL_STATE, detail));
        }
        self.submit(stream, Work::Free(address), &[(address, whole)])?;
        let block = self.block(address, &[Kind::Device])?;
        block.freed = true;
        // whoever allocates next is ordered after, so the bytes are there for it at once
        let (pool, device, bytes) = (block.pool, block.device, block.bytes);
        self.uncount(Kind::Device, pool, device, bytes);
        Ok(())
    }

    /// Known memory at an address.
    pub(crate) fn known(
        &mut self,
        address: u64,
        bytes: usize,
        write: bool,
    ) -> Result<(Place, Use), Code> {
        self.current()?;
        let Some((base, block)) = self.block_at(address).filter(|(_, it)| !it.freed) else {
            let detail = format!("there is no memory at {address:#x}: freed, or never allocated");
            return Err(self.found(MisuseKind::BadAddress, Code::INVALID_VALUE, detail));
        };
        let start = usize::try_from(address - base).map_err(|_| Code::INVALID_VALUE)?;
        let has = block.bytes;
        let memory = Arc::clone(&block.memory);
        match start.checked_add(bytes).filter(|end| *end <= has) {
            Some(end) => Ok((Place::Known(memory, start), (base, Touch { start, end, write }))),
            None => {
                let detail =
                    format!("{bytes} bytes from {start} on, and the memory at {base:#x} has {has}");
                Err(self.found(MisuseKind::OutOfRange, Code::INVALID_VALUE, detail))
            }
        }
    }

    /// Memory of the host, which the driver may know.
    fn host(
        &mut self,
        pointer: HostPointer,
        bytes: usize,
        write: bool,
    ) -> Result<(Place, Option<Use>), Code> {
        let address = pointer.address();
        if address == 0 {
            return Err(Code::INVALID_VALUE);
        }
        match self.block_at(address) {
            Some((_, block)) if !block.freed => {
                if block.kind.is_on_device() {
                    let detail =
                        format!("{address:#x} is on a device, and meant to be on the host");
                    return Err(self.found(MisuseKind::BadAddress, Code::INVALID_VALUE, detail));
                }
                let (place, used) = self.known(address, bytes, write)?;
                Ok((place, Some(used)))
            }
            _ => Ok((Place::Host(pointer), None)),
        }
    }

    fn place(
        &mut self,
        address: End,
        bytes: usize,
        write: bool,
    ) -> Result<(Place, Option<Use>), Code> {
        match address {
            End::Device(address) => {
                self.known(address, bytes, write).map(|(place, used)| (place, Some(used)))
            }
            End::Host(pointer) => self.host(pointer, bytes, write),
        }
    }

    /// Copies rows as the stream comes there. Host memory that is not pinned is read before this returns, and written
    /// before it does.
    pub(crate) fn copy(
        &mut self,
        to: (End, Rows),
        from: (End, Rows),
        stream: usize,
        then: Then,
    ) -> Result<(), Code> {
        let context = self.current()?;
        let number = self.stream(stream)?;
        let ((to, to_rows), (from, from_rows)) = (to, from);
        let (to_span, from_span) = (to_rows.span()?, from_rows.span()?);
        if to_span == 0 || from_span == 0 {
            return Ok(());
        }
        let (to, written) = self.place(to, to_span, true)?;
        let (from, read) = self.place(from, from_span, false)?;
        let waits = then == Then::Wait || matches!(to, Place::Host(_));
        let from = match from {
            Place::Host(pointer) => Place::Taken(Arc::new(pointer.read(from_span)?)),
            place => place,
        };
        let uses: Vec<Use> = written.into_iter().chain(read).collect();
        self.submit(number, Work::Copy { to, to_rows, from, from_rows }, &uses)?;
        self.wait_if(waits, context, number)
    }

    /// Fills rows with a pattern as the stream comes there.
    pub(crate) fn fill(
        &mut self,
        to: u64,
        rows: Rows,
        pattern: &[u8],
        stream: usize,
        then: Then,
    ) -> Result<(), Code> {
        let context = self.current()?;
        let number = self.stream(stream)?;
        if !(to as usize).is_multiple_of(pattern.len()) {
            return Err(Code::INVALID_VALUE);
        }
        let span = rows.span()?;
        if span == 0 {
            return Ok(());
        }
        let (place, used) = self.known(to, span, true)?;
        let Place::Known(memory, _) = &place else { return Err(Code::INVALID_VALUE) };
        // as the driver does for what the host can look at
        let waits = then == Then::Wait && memory.pointer().is_some();
        let work = Work::Fill { to: place, rows, pattern: pattern.to_vec() };
        self.submit(number, work, &[used])?;
        self.wait_if(waits, context, number)
    }

    fn wait_if(&mut self, waits: bool, context: u64, stream: u64) -> Result<(), Code> {
        match self.timeline.point(stream) {
            Some(point) if waits => self.wait_for(context, &point),
            _ => Ok(()),
        }
    }

    /// The block that an address is in: where it begins.
    pub(crate) fn block_of(&mut self, address: u64) -> Result<(u64, &Block), Code> {
        self.current()?;
        self.block_at(address).filter(|(_, it)| !it.freed).ok_or(Code::INVALID_VALUE)
    }
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// Or any other memory that the driver knows.
    Device(u64),
    Host(HostPointer),
}

/// Whether the caller waits for what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Wait,
    GoOn,
}
