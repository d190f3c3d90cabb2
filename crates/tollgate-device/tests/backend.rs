//! What code can do that does not know which backend it has.

mod support;

use support::device;
use tollgate_device::backend::{Allocation, Backend, Bell, DriverError, Signal};

/// Sends bytes there and back, over two streams, and is told by a signal.
fn round_trip<B: Backend>(device: &B, bytes: &[u8]) -> Result<Vec<u8>, DriverError> {
    device.bind()?;
    let range = device.info().priorities;
    let (first, second) =
        (device.create_stream(range.least)?, device.create_stream(range.greatest)?);
    let mut there = device.allocate_pinned(bytes.len())?;
    let mut back = device.allocate_pinned(bytes.len())?;
    let (a, b) = (device.allocate(&first, bytes.len())?, device.allocate(&first, bytes.len())?);
    device.pinned_bytes(&mut there)?.copy_from_slice(bytes);
    let all = 0..a.bytes();
    device.copy_to_device(&first, &there, all.clone(), &a, 0)?;
    device.fill(&first, &b, all.clone(), 0)?;
    let event = device.create_event()?;
    device.record(&event, &first)?;
    device.wait_event(&second, &event)?;
    device.copy_on_device(&second, &a, 1..a.bytes(), &b, 1)?;
    device.copy_to_host(&second, &b, all, &back, 0)?;
    device.record(&event, &second)?;
    device.wait_event(&first, &event)?;
    device.free(&first, a)?;
    device.free(&first, b)?;
    let bell = Bell::new();
    let signal = Signal::new(&bell);
    device.notify(&first, &signal)?;
    while !signal.is_raised() {
        bell.wait(0);
    }
    // a signal is a hint
    assert!(device.query_stream(&first)?);
    let free = device.memory_info()?;
    assert_eq!(free.free, free.total);
    Ok(device.pinned_bytes(&mut back)?.to_vec())
}

/// DEV-2
#[test]
fn code_that_knows_no_backend_runs_on_the_host() {
    let device = device();
    device.unbind();
    assert_eq!(round_trip(&device, &[1, 2, 3]).unwrap(), [0, 2, 3]);
    device.unbind();
    let there = std::thread::spawn({
        let device = device.clone();
        move || round_trip(&device, &[7; 1000]).unwrap()
    });
    assert_eq!(there.join().unwrap()[999], 7);
}
