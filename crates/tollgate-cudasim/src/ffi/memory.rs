//! Memory that is allocated and freed at once, and what is known of addresses.

use crate::code::Code;
use crate::memory::{Block, Kind};
use crate::raw::{HostPointer, In, Out, Untyped};
use crate::state::Call;

const ON_DEVICE: &[Kind] = &[Kind::Device, Kind::Managed];

api! {
    fn cuMemAlloc_v2(out: Out<u64>, bytes: usize) |it| {
        it.answer(out, |it| it.allocate(bytes, Kind::Device))
    };
    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, rows: usize, element: u32) |it| {
        if !matches!(element, 4 | 8 | 16) || pitch.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let own = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let bytes = own.checked_mul(rows).ok_or(Code::INVALID_VALUE)?;
        it.answer(out, |it| it.allocate(bytes, Kind::Device))?;
        pitch.set(own)
    };
    fn cuMemFree_v2(address: u64) |it| if address == 0 { Ok(()) } else { it.free(address, ON_DEVICE) };
    fn cuMemAllocManaged(out: Out<u64>, bytes: usize, flags: u32) |it| it.answer(out, |it| {
        if !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(it.allocate_host(bytes, Kind::Managed, flags)?.address())
    });
    fn cuMemAllocHost_v2(out: Out<HostPointer>, bytes: usize) |it| {
        it.answer(out, |it| it.allocate_host(bytes, Kind::Pinned, 0))
    };
    fn cuMemHostAlloc(out: Out<HostPointer>, bytes: usize, flags: u32) |it| {
        it.answer(out, |it| it.allocate_host(bytes, Kind::Pinned, flags))
    };
    fn cuMemFreeHost(pointer: HostPointer) |it| it.free(pointer.address(), &[Kind::Pinned]);
    fn cuMemHostRegister_v2(pointer: HostPointer, bytes: usize, flags: u32) |it| {
        it.register_host(pointer, bytes, flags)
    };
    fn cuMemHostUnregister(pointer: HostPointer) |it| it.free(pointer.address(), &[Kind::Registered]);
    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, pointer: HostPointer, flags: u32) |it| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        it.answer(out, |it| it.known(pointer.address(), 1, false).map(|_| pointer.address()))
    };
    fn cuMemHostGetFlags(out: Out<u32>, pointer: HostPointer) |it| {
        it.answer(out, |it| Ok(it.block_of(pointer.address())?.1.flags))
    };
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |it| {
        let device = it.context()?.device;
        let memory = it.devices.get(device).map_or(0, |it| it.memory);
        it.answer(free, |it| Ok(it.free_bytes(device)))?;
        it.answer(total, |_| Ok(memory))
    };
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) |it| {
        let (own, block) = it.block_of(address).map_err(|_| Code::NOT_FOUND)?;
        bytes.set_if_asked(block.bytes);
        base.set_if_asked(own);
        Ok(())
    };
    /// Managed memory is the host's and the device's at once.
    fn cuMemPrefetchAsync(address: u64, bytes: usize, _device: i32, stream: usize) |it| {
        it.stream(stream)?;
        it.known(address, bytes, false).map(drop)
    };
    fn cuMemAdvise(address: u64, bytes: usize, _advice: u32, _device: i32) |it| {
        it.known(address, bytes, false).map(drop)
    };
    fn cuPointerGetAttribute(out: Untyped, attribute: u32, address: u64) |it| {
        say(it, out, attribute, address)
    };
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, outs: In<Untyped>, address: u64) |it| {
        it.current()?;
        for at in 0..count as usize {
            // what an address does not have is left as it was
            let _ = say(it, outs.at(at)?, attributes.at(at)?, address);
        }
        Ok(())
    };
}

/// What the driver knows of an address.
fn say(it: &mut Call, out: Untyped, attribute: u32, address: u64) -> Result<(), Code> {
    let pool = it.block_of(address)?.1.pool;
    let (base, block) = it.block_of(address)?;
    let &Block { kind, bytes, context, device, .. } = block;
    let on_host = !matches!(kind, Kind::Device | Kind::Global);
    match attribute {
        // context, which kind of memory, address on the device, on the host
        1 => out.out::<u64>().set(context),
        2 => out.out::<u32>().set(if on_host && kind != Kind::Managed { 1 } else { 2 }),
        3 => out.out::<u64>().set(address),
        4 if on_host => out.out::<u64>().set(address),
        // a number of the block, whether it is managed, of which device, where it begins, its size
        7 => out.out::<u64>().set(base),
        8 => out.out::<u32>().set(u32::from(kind == Kind::Managed)),
        9 => out.out::<u32>().set(u32::try_from(device).unwrap_or(0)),
        11 => out.out::<u64>().set(base),
        12 => out.out::<u64>().set(bytes as u64),
        13 => out.out::<u32>().set(1),
        17 => out.out::<u64>().set(pool.unwrap_or(0)),
        _ => Err(Code::INVALID_VALUE),
    }
}
