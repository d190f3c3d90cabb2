//! Device memory and pinned memory: how much, whose, and in which order.

mod support;

use support::{Gate, bound, cause, device, eventually, kernel};
use tollgate_device::backend::{Allocation, Backend, Cause, ErrorClass};
use tollgate_device::host::{HostDevice, HostKernel, MemoryUse};

fn usage(device: &HostDevice) -> MemoryUse {
    device.control().stats().memory
}

/// DEV-2, G13
#[test]
fn memory_is_counted_to_the_byte_and_what_does_not_fit_is_refused_with_the_numbers() {
    let device = bound(HostDevice::builder().memory(100));
    let stream = device.create_stream(0).unwrap();
    let first = device.allocate(&stream, 60).unwrap();
    let error = device.allocate(&stream, 41).unwrap_err();
    assert_eq!(error.class(), ErrorClass::OutOfMemory);
    assert_eq!(*error.cause(), Cause::OutOfMemory { asked: 41, in_use: 60, limit: 100 });
    let second = device.allocate(&stream, 40).unwrap();
    assert_eq!((first.bytes(), second.bytes()), (60, 40));
    assert_eq!(device.memory_info().unwrap().free, 0);
    drop(first);
    assert_eq!(usage(&device), MemoryUse { limit: 100, in_use: 40, peak: 100, allocations: 1 });
    let huge = cause(device.allocate(&stream, usize::MAX));
    assert_eq!(huge, Cause::OutOfMemory { asked: u64::MAX, in_use: 40, limit: 100 });
    assert_eq!(cause(device.allocate(&stream, 0)), Cause::ZeroBytes);
    assert_eq!(device.memory_info().unwrap().free, 60);
    assert_eq!(usage(&device).peak, 100);
}

/// DEV-2
#[test]
fn pinned_memory_has_a_limit_of_its_own() {
    let device = bound(HostDevice::builder().memory(10).pinned_memory(20));
    let mut pinned = device.allocate_pinned(20).unwrap();
    assert_eq!(device.pinned_bytes(&mut pinned).unwrap(), [0; 20]);
    let error = device.allocate_pinned(1).unwrap_err();
    assert_eq!(*error.cause(), Cause::OutOfMemory { asked: 1, in_use: 20, limit: 20 });
    assert_eq!(cause(device.allocate_pinned(0)), Cause::ZeroBytes);
    drop(pinned);
    assert_eq!(device.control().stats().pinned.in_use, 0);
    assert_eq!(device.memory_info().unwrap().free, 10);
}

/// DEV-2
#[test]
fn memory_the_host_itself_does_not_have_is_out_of_memory_or_a_fault_and_nothing_worse() {
    let device = bound(HostDevice::builder().memory(u64::MAX).pinned_memory(u64::MAX));
    let stream = device.create_stream(0).unwrap();
    let bytes = isize::MAX as usize;
    let error = device.allocate_pinned(bytes).unwrap_err();
    assert_eq!(error.class(), ErrorClass::OutOfMemory);
    assert_eq!(device.control().stats().pinned.in_use, 0, "what was reserved is given back");
    // a device of any size costs nothing until it is used
    let memory = device.allocate(&stream, bytes).unwrap();
    device.fill(&stream, &memory, 0..1, 1).unwrap();
    let error = device.synchronize_stream(&stream).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Sticky);
}

/// DEV-2
#[test]
fn bytes_go_to_the_device_and_back() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let mut pinned = device.allocate_pinned(16).unwrap();
    let memory = device.allocate(&stream, 16).unwrap();
    let other = device.allocate(&stream, 16).unwrap();
    let numbers: Vec<u8> = (0..16).collect();
    device.pinned_bytes(&mut pinned).unwrap().copy_from_slice(&numbers);
    device.copy_to_device(&stream, &pinned, 0..16, &memory, 0).unwrap();
    device.fill(&stream, &other, 0..16, 0xee).unwrap();
    device.copy_on_device(&stream, &memory, 2..6, &other, 12).unwrap();
    device.copy_on_device(&stream, &other, 12..16, &other, 1).unwrap();
    device.copy_to_host(&stream, &other, 0..16, &pinned, 0).unwrap();
    device.synchronize_stream(&stream).unwrap();
    let e = 0xee;
    let expected = [e, 2, 3, 4, 5, e, e, e, e, e, e, e, 2, 3, 4, 5];
    assert_eq!(device.pinned_bytes(&mut pinned).unwrap(), expected);
}

/// DEV-2
#[test]
fn a_device_is_full_of_nonsense_until_it_is_written() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let memory = device.allocate(&stream, 4).unwrap();
    let look = HostKernel::new("look", (memory.read::<f32>(),), |(x,)| assert!(x[0].is_nan()));
    device.launch(&stream, look).unwrap();
    device.synchronize_stream(&stream).unwrap();
}

/// DEV-2
#[test]
#[expect(clippy::reversed_empty_ranges, reason = "which is what is to be refused")]
fn bytes_that_the_memory_does_not_have_are_refused_with_the_numbers() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let (small, large) =
        (device.allocate(&stream, 8).unwrap(), device.allocate(&stream, 32).unwrap());
    let pinned = device.allocate_pinned(16).unwrap();
    let range = |offset, bytes, size| Cause::OutOfRange { offset, bytes, size };
    let to_device = |range, offset| device.copy_to_device(&stream, &pinned, range, &small, offset);
    assert_eq!(cause(to_device(10..17, 0)), range(10, 7, 16));
    assert_eq!(cause(to_device(0..9, 0)), range(0, 9, 8));
    assert_eq!(cause(to_device(0..1, 8)), range(8, 1, 8));
    assert_eq!(cause(to_device(0..1, usize::MAX)), range(usize::MAX, 0, 8));
    assert_eq!(cause(to_device(3..2, 0)), range(3, 0, 16));
    assert_eq!(cause(to_device(usize::MAX..usize::MAX, 0)), range(usize::MAX, 0, 16));
    to_device(16..16, 8).unwrap();
    let to_host = device.copy_to_host(&stream, &large, 0..32, &pinned, 0);
    assert_eq!(cause(to_host), range(0, 32, 16));
    let on_device = device.copy_on_device(&stream, &large, 0..32, &small, 0);
    assert_eq!(cause(on_device), range(0, 32, 8));
    assert_eq!(cause(device.fill(&stream, &small, 8..9, 0)), range(8, 1, 8));
    let part = HostKernel::new("part", (small.read::<u32>().part(1..3),), |_| ());
    assert_eq!(cause(device.launch(&stream, part)), range(4, 8, 8));
    let far = HostKernel::new("far", (small.read::<u32>().part(0..usize::MAX),), |_| ());
    assert_eq!(cause(device.launch(&stream, far)), range(0, usize::MAX, 8));
    let onto = device.copy_on_device(&stream, &large, 0..8, &large, 7);
    assert_eq!(cause(onto), Cause::Overlap { memory: large.number() });
    device.synchronize_stream(&stream).unwrap();
}

/// DEV-2
#[test]
fn a_free_takes_its_turn_in_the_stream() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let gate = Gate::default();
    let memory = device.allocate(&stream, 8).unwrap();
    device.fill(&stream, &memory, 0..8, 1).unwrap();
    device.launch(&stream, gate.kernel()).unwrap();
    device.free(&stream, memory).unwrap();
    assert_eq!(usage(&device).in_use, 8);
    gate.open();
    device.synchronize_stream(&stream).unwrap();
    assert_eq!(usage(&device).in_use, 0);
}

/// DEV-2
#[test]
fn a_use_after_the_free_and_a_second_free_are_refused_whether_or_not_the_stream_is_there_yet() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let gate = Gate::default();
    let memory = device.allocate(&stream, 8).unwrap();
    let freed = Cause::Freed { memory: memory.number() };
    let late = HostKernel::new("late", (memory.write::<u8>(),), |_| ());
    let pinned = device.allocate_pinned(8).unwrap();
    device.launch(&stream, gate.kernel()).unwrap();
    device.free(&stream, memory.clone()).unwrap();
    assert_eq!(cause(device.fill(&stream, &memory, 0..8, 1)), freed);
    assert_eq!(cause(device.free(&stream, memory.clone())), freed);
    gate.open();
    device.synchronize_stream(&stream).unwrap();
    assert_eq!(cause(device.launch(&stream, late)), freed);
    assert_eq!(cause(device.copy_to_host(&stream, &memory, 0..8, &pinned, 0)), freed);
    assert_eq!(cause(device.free(&stream, memory)), freed);
    assert_eq!(usage(&device).in_use, 0);
    assert_eq!(device.control().stats().queued, 0);
}

/// DEV-2, G1
#[test]
fn memory_that_is_dropped_stays_until_the_work_that_uses_it_is_done() {
    let device = device();
    let (stream, other) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let (gate, event) = (Gate::default(), device.create_event().unwrap());
    let memory = device.allocate(&stream, 8).unwrap();
    device.record(&event, &stream).unwrap();
    device.launch(&other, gate.kernel()).unwrap();
    device.wait_event(&other, &event).unwrap();
    device.fill(&other, &memory, 0..8, 7).unwrap();
    let check = HostKernel::new("check", (memory.read::<u8>(),), |(x,)| assert_eq!(x, [7; 8]));
    device.launch(&other, check).unwrap();
    drop(memory);
    assert_eq!(usage(&device).in_use, 8);
    gate.open();
    device.synchronize_stream(&other).unwrap();
    assert_eq!(usage(&device).in_use, 0);
}

/// DEV-2, G3
#[test]
fn pinned_memory_is_out_of_reach_while_a_copy_uses_it_and_stays_when_it_is_dropped() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let gate = Gate::default();
    let memory = device.allocate(&stream, 4).unwrap();
    let mut pinned = device.allocate_pinned(4).unwrap();
    device.pinned_bytes(&mut pinned).unwrap().fill(5);
    device.launch(&stream, gate.kernel()).unwrap();
    device.copy_to_device(&stream, &pinned, 0..4, &memory, 0).unwrap();
    assert_eq!(cause(device.pinned_bytes(&mut pinned)), Cause::InFlight);
    drop(pinned);
    assert_eq!(device.control().stats().pinned.in_use, 4);
    gate.open();
    let mut back = device.allocate_pinned(4).unwrap();
    device.copy_to_host(&stream, &memory, 0..4, &back, 0).unwrap();
    device.synchronize_stream(&stream).unwrap();
    assert_eq!(device.control().stats().pinned.in_use, 4);
    assert_eq!(device.pinned_bytes(&mut back).unwrap(), [5; 4], "at once after the wait");
}

/// DEV-2, G2
#[test]
fn a_free_that_no_event_orders_after_another_streams_use_is_refused() {
    let device = device();
    let (home, guest) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let event = device.create_event().unwrap();
    let memory = device.allocate(&home, 8).unwrap();
    let number = memory.number();
    device.record(&event, &home).unwrap();
    device.wait_event(&guest, &event).unwrap();
    device.fill(&guest, &memory, 0..8, 0).unwrap();
    // also when the work happens to be done
    eventually("it is", || device.control().stats().queued + device.control().stats().running == 0);
    let unordered = Cause::Unordered { memory: number, stream: guest.number() };
    assert_eq!(cause(device.free(&home, memory.clone())), unordered);
    device.record(&event, &guest).unwrap();
    device.wait_event(&home, &event).unwrap();
    device.free(&home, memory).unwrap();
    device.synchronize_stream(&home).unwrap();
    assert_eq!(usage(&device).in_use, 0);
}

/// DEV-2
#[test]
fn uses_that_nothing_orders_are_refused_unless_both_read_or_their_bytes_differ() {
    let device = device();
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let memory = device.allocate(&first, 16).unwrap();
    let by = |stream: u64| Cause::Unordered { memory: memory.number(), stream };
    let read = || HostKernel::new("read", (memory.read::<u8>(),), |_| ());
    // it does not exist there yet
    assert_eq!(cause(device.launch(&second, read())), by(first.number()));
    device.synchronize_stream(&first).unwrap();
    // what the host has seen is over for everybody
    device.launch(&second, read()).unwrap();
    device.launch(&first, read()).unwrap();
    assert_eq!(cause(device.fill(&first, &memory, 0..1, 0)), by(second.number()));
    let event = device.create_event().unwrap();
    device.record(&event, &second).unwrap();
    device.wait_event(&first, &event).unwrap();
    device.record(&event, &first).unwrap();
    device.wait_event(&second, &event).unwrap();
    device.fill(&first, &memory, 0..8, 0).unwrap();
    device.fill(&second, &memory, 8..16, 0).unwrap();
    assert_eq!(cause(device.fill(&second, &memory, 7..9, 0)), by(first.number()));
    // an edge by way of a third stream will do
    let third = device.create_stream(0).unwrap();
    device.record(&event, &first).unwrap();
    device.wait_event(&third, &event).unwrap();
    device.record(&event, &third).unwrap();
    device.wait_event(&second, &event).unwrap();
    device.fill(&second, &memory, 7..9, 0).unwrap();
}

/// DEV-2
#[test]
fn a_query_that_says_passed_orders_what_comes_later() {
    let device = device();
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let (memory, event) = (device.allocate(&first, 8).unwrap(), device.create_event().unwrap());
    device.fill(&first, &memory, 0..8, 0).unwrap();
    device.record(&event, &first).unwrap();
    eventually("it passes", || device.query_event(&event).unwrap());
    device.fill(&second, &memory, 0..8, 0).unwrap();
    eventually("it passes", || device.query_stream(&second).unwrap());
    device.fill(&first, &memory, 0..8, 0).unwrap();
}

/// DEV-2
#[test]
fn where_the_order_is_not_checked_a_free_under_a_running_stream_is_its_fault() {
    let device = bound(HostDevice::builder().check_order(false));
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let gate = Gate::default();
    let memory = device.allocate(&first, 8).unwrap();
    device.launch(&second, gate.kernel()).unwrap();
    let late = HostKernel::new("late", (memory.read::<u8>(),), |_| ());
    device.launch(&second, late).unwrap();
    device.free(&first, memory).unwrap();
    device.synchronize_stream(&first).unwrap();
    gate.open();
    let message = support::fault(device.synchronize_stream(&second));
    assert!(message.contains("was freed while work still used it"), "{message}");
}

/// DEV-2
#[test]
fn when_streams_free_and_allocate_from_many_threads_no_byte_is_lost() {
    let device = bound(HostDevice::builder().memory(4096));
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let device = device.clone();
            scope.spawn(move || {
                device.bind().unwrap();
                let stream = device.create_stream(0).unwrap();
                for round in 0..200 {
                    let Ok(memory) = device.allocate(&stream, 1 + (thread * 977 + round) % 1500)
                    else {
                        device.synchronize_stream(&stream).unwrap();
                        continue;
                    };
                    device.fill(&stream, &memory, 0..1, 1).unwrap();
                    match round % 3 {
                        0 => device.free(&stream, memory).unwrap(),
                        1 => drop(memory),
                        _ => device.launch(&stream, kernel(move || drop(memory))).unwrap(),
                    }
                }
                device.synchronize_stream(&stream).unwrap();
            });
        }
    });
    let MemoryUse { in_use, peak, allocations, .. } = usage(&device);
    assert_eq!((in_use, allocations), (0, 0));
    assert!(peak <= 4096, "{peak}");
}
