//! Copies and fills.

use crate::code::Code;
use crate::memory::{End, Rows, Then};
use crate::raw::{HostPointer, In};
use crate::state::Call;

/// The null stream.
const NULL: usize = 0;

fn copy(
    it: &mut Call,
    to: End,
    from: End,
    bytes: usize,
    stream: usize,
    then: Then,
) -> Result<(), Code> {
    it.copy((to, Rows::one(bytes)), (from, Rows::one(bytes)), stream, then)
}

api! {
    fn cuMemcpyHtoD_v2(to: u64, from: HostPointer, bytes: usize) |it| {
        copy(it, End::Device(to), End::Host(from), bytes, NULL, Then::Wait)
    };
    fn cuMemcpyDtoH_v2(to: HostPointer, from: u64, bytes: usize) |it| {
        copy(it, End::Host(to), End::Device(from), bytes, NULL, Then::Wait)
    };
    /// Nobody waits for a copy on the device.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) |it| {
        copy(it, End::Device(to), End::Device(from), bytes, NULL, Then::GoOn)
    };
    fn cuMemcpy(to: HostPointer, from: HostPointer, bytes: usize) |it| {
        let (to, from) = (somewhere(it, to), somewhere(it, from));
        copy(it, to, from, bytes, NULL, Then::Wait)
    };
    fn cuMemcpyHtoDAsync_v2(to: u64, from: HostPointer, bytes: usize, stream: usize) |it| {
        copy(it, End::Device(to), End::Host(from), bytes, stream, Then::GoOn)
    };
    fn cuMemcpyDtoHAsync_v2(to: HostPointer, from: u64, bytes: usize, stream: usize) |it| {
        copy(it, End::Host(to), End::Device(from), bytes, stream, Then::GoOn)
    };
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) |it| {
        copy(it, End::Device(to), End::Device(from), bytes, stream, Then::GoOn)
    };
    fn cuMemcpyAsync(to: HostPointer, from: HostPointer, bytes: usize, stream: usize) |it| {
        let (to, from) = (somewhere(it, to), somewhere(it, from));
        copy(it, to, from, bytes, stream, Then::GoOn)
    };
    fn cuMemcpyPeer(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize) |it| {
        it.check_context(to_context as u64)?;
        it.check_context(from_context as u64)?;
        copy(it, End::Device(to), End::Device(from), bytes, NULL, Then::GoOn)
    };
    fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize, stream: usize) |it| {
        it.check_context(to_context as u64)?;
        it.check_context(from_context as u64)?;
        copy(it, End::Device(to), End::Device(from), bytes, stream, Then::GoOn)
    };
    fn cuMemcpy2D_v2(what: In<Rectangle>) |it| what.get()?.copy(it, NULL, Then::Wait);
    fn cuMemcpy2DUnaligned_v2(what: In<Rectangle>) |it| what.get()?.copy(it, NULL, Then::Wait);
    fn cuMemcpy2DAsync_v2(what: In<Rectangle>, stream: usize) |it| what.get()?.copy(it, stream, Then::GoOn);

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) |it| {
        fill(it, to, 0, &value.to_ne_bytes(), (count, 1), NULL, Then::Wait)
    };
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) |it| {
        fill(it, to, 0, &value.to_ne_bytes(), (count, 1), NULL, Then::Wait)
    };
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) |it| {
        fill(it, to, 0, &value.to_ne_bytes(), (count, 1), NULL, Then::Wait)
    };
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) |it| {
        fill(it, to, 0, &value.to_ne_bytes(), (count, 1), stream, Then::GoOn)
    };
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) |it| {
        fill(it, to, 0, &value.to_ne_bytes(), (count, 1), stream, Then::GoOn)
    };
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) |it| {
        fill(it, to, 0, &value.to_ne_bytes(), (count, 1), stream, Then::GoOn)
    };
    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, rows: usize) |it| {
        fill(it, to, pitch, &value.to_ne_bytes(), (width, rows), NULL, Then::Wait)
    };
    fn cuMemsetD2D16_v2(to: u64, pitch: usize, value: u16, width: usize, rows: usize) |it| {
        fill(it, to, pitch, &value.to_ne_bytes(), (width, rows), NULL, Then::Wait)
    };
    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, rows: usize) |it| {
        fill(it, to, pitch, &value.to_ne_bytes(), (width, rows), NULL, Then::Wait)
    };
    fn cuMemsetD2D8Async(to: u64, pitch: usize, value: u8, width: usize, rows: usize, stream: usize) |it| {
        fill(it, to, pitch, &value.to_ne_bytes(), (width, rows), stream, Then::GoOn)
    };
    fn cuMemsetD2D16Async(to: u64, pitch: usize, value: u16, width: usize, rows: usize, stream: usize) |it| {
        fill(it, to, pitch, &value.to_ne_bytes(), (width, rows), stream, Then::GoOn)
    };
    fn cuMemsetD2D32Async(to: u64, pitch: usize, value: u32, width: usize, rows: usize, stream: usize) |it| {
        fill(it, to, pitch, &value.to_ne_bytes(), (width, rows), stream, Then::GoOn)
    };
}

/// An address of either side.
fn somewhere(it: &mut Call, pointer: HostPointer) -> End {
    let address = pointer.address();
    if it.may_be_on_device(address) { End::Device(address) } else { End::Host(pointer) }
}

fn fill(
    it: &mut Call,
    to: u64,
    pitch: usize,
    pattern: &[u8],
    (width, rows): (usize, usize),
    stream: usize,
    then: Then,
) -> Result<(), Code> {
    let bytes = width.checked_mul(pattern.len()).ok_or(Code::INVALID_VALUE)?;
    if rows > 1 && pitch < bytes {
        return Err(Code::INVALID_VALUE);
    }
    it.fill(to, Rows { bytes, rows, pitch }, pattern, stream, then)
}

/// A copy of rows, as C says it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Rectangle {
    from: RectangleEnd,
    to: RectangleEnd,
    bytes: usize,
    rows: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RectangleEnd {
    x_bytes: usize,
    y: usize,
    kind: u32,
    host: HostPointer,
    device: u64,
    array: usize,
    pitch: usize,
}

impl Rectangle {
    fn copy(self, it: &mut Call, stream: usize, then: Then) -> Result<(), Code> {
        let rows = |end: RectangleEnd| {
            // a row that is said to have no pitch is as long as what is copied of it
            let pitch = if end.pitch == 0 { self.bytes } else { end.pitch };
            let fits = end.x_bytes.checked_add(self.bytes).is_some_and(|it| it <= pitch);
            let skipped = end.y.checked_mul(pitch).and_then(|it| it.checked_add(end.x_bytes));
            let skipped = skipped.filter(|_| fits || self.rows <= 1).ok_or(Code::INVALID_VALUE)?;
            let place = match end.kind {
                1 => End::Host(end.host.add(skipped)),
                2 => End::Device(end.device.wrapping_add(skipped as u64)),
                // arrays, and memory of any kind
                _ => return Err(Code::NOT_SUPPORTED),
            };
            Ok((place, Rows { bytes: self.bytes, rows: self.rows, pitch }))
        };
        it.copy(rows(self.to)?, rows(self.from)?, stream, then)
    }
}
