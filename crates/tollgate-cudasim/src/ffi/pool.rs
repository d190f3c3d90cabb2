//! Memory in a stream's order, and its pools.

use crate::code::Code;
use crate::pool::Pool;
use crate::raw::{In, Out, Untyped};
use crate::state::Call;

api! {
    fn cuMemAllocAsync(out: Out<u64>, bytes: usize, stream: usize) |it| {
        it.answer(out, |it| it.allocate_in_order(bytes, None, stream))
    };
    fn cuMemAllocFromPoolAsync(out: Out<u64>, bytes: usize, pool: usize, stream: usize) |it| {
        it.answer(out, |it| it.allocate_in_order(bytes, Some(pool as u64), stream))
    };
    fn cuMemFreeAsync(address: u64, stream: usize) |it| it.free_in_order(address, stream);

    fn cuDeviceGetDefaultMemPool(out: Out<usize>, device: i32) |it| it.answer(out, |it| {
        let at = it.device(device)?;
        Ok(it.devices.get(at).map_or(0, |it| it.default_pool))
    });
    fn cuDeviceGetMemPool(out: Out<usize>, device: i32) |it| it.answer(out, |it| {
        let at = it.device(device)?;
        Ok(it.devices.get(at).map_or(0, |it| it.pool))
    });
    fn cuDeviceSetMemPool(device: i32, pool: usize) |it| {
        let at = it.device(device)?;
        if it.pool(pool)?.device != at {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(device) = it.devices.get_mut(at) {
            device.pool = pool as u64;
        }
        Ok(())
    };
    fn cuMemPoolCreate(out: Out<usize>, properties: In<Properties>) |it| it.answer(out, |it| {
        let properties = properties.get()?;
        // memory of a device, pinned there, not shared with other processes
        if (properties.kind, properties.handles, properties.place.kind) != (1, 0, 1) {
            return Err(Code::INVALID_VALUE);
        }
        let device = it.device(properties.place.number)?;
        Ok(it.open_pool(device, properties.limit as u64, false))
    });
    fn cuMemPoolDestroy(pool: usize) |it| it.destroy_pool(pool);
    fn cuMemPoolTrimTo(pool: usize, keep: usize) |it| {
        it.pool(pool)?;
        it.trim_pool(pool as u64, keep as u64);
        Ok(())
    };
    fn cuMemPoolGetAttribute(pool: usize, attribute: u32, out: Untyped) |it| {
        let pool = it.pool(pool)?;
        match attribute {
            1..=3 => out.out::<i32>().set(pool.reuse[attribute as usize - 1]),
            _ => out.out::<u64>().set(*level(pool, attribute)?),
        }
    };
    fn cuMemPoolSetAttribute(pool: usize, attribute: u32, value: Untyped) |it| {
        let pool = it.pool(pool)?;
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.value::<i32>().get()?,
            4 => pool.threshold = value.value::<u64>().get()?,
            // a peak is set back to what there is now
            6 if value.value::<u64>().get()? == 0 => pool.reserved.high = pool.reserved.now,
            8 if value.value::<u64>().get()? == 0 => pool.used.high = pool.used.now,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    };
    /// Every device may use every pool.
    fn cuMemPoolSetAccess(pool: usize, accesses: In<Access>, count: usize) |it| {
        it.pool(pool)?;
        for at in 0..count {
            check(it, accesses.at(at)?.place)?;
        }
        Ok(())
    };
    fn cuMemPoolGetAccess(out: Out<u32>, pool: usize, place: In<Location>) |it| it.answer(out, |it| {
        it.pool(pool)?;
        check(it, place.get()?)?;
        Ok(3_u32)
    });
}

fn level(pool: &mut Pool, attribute: u32) -> Result<&mut u64, Code> {
    Ok(match attribute {
        4 => &mut pool.threshold,
        5 => &mut pool.reserved.now,
        6 => &mut pool.reserved.high,
        7 => &mut pool.used.now,
        8 => &mut pool.used.high,
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn check(it: &mut Call, place: Location) -> Result<(), Code> {
    if place.kind == 1 { it.device(place.number).map(drop) } else { Err(Code::INVALID_VALUE) }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Location {
    kind: u32,
    number: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Access {
    place: Location,
    flags: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    kind: u32,
    handles: u32,
    place: Location,
    security: usize,
    /// 0 for no limit. Older headers have it among what is reserved, and zero.
    limit: usize,
    reserved: [u8; 56],
}
