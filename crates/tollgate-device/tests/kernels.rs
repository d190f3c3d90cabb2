//! Kernels and the views that they get.

mod support;

use support::{Gate, bound, cause, device, fault, kernel};
use tollgate_device::backend::{Allocation, Backend, Cause, ErrorClass};
use tollgate_device::host::{HostDevice, HostKernel};

/// DEV-2
#[test]
fn a_kernel_gets_views_of_the_types_it_names() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let (bytes, words) =
        (device.allocate(&stream, 24).unwrap(), device.allocate(&stream, 24).unwrap());
    let write = HostKernel::new("write", (bytes.write::<u8>(), words.write::<u64>()), |(b, w)| {
        assert_eq!((b.len(), w.len()), (24, 3));
        b.fill(1);
        w.copy_from_slice(&[1, 2, 3]);
    });
    assert_eq!(write.name(), "write");
    device.launch(&stream, write).unwrap();
    let add = (bytes.read::<u64>(), words.write::<u64>());
    let add = HostKernel::new("add", add, |(ones, sums)| {
        sums.iter_mut().zip(ones).for_each(|(sum, one)| *sum += one);
    });
    device.launch(&stream, add).unwrap();
    let one = 0x0101_0101_0101_0101;
    let check = HostKernel::new("check", (words.read::<u64>(),), move |(sums,)| {
        assert_eq!(sums, [one + 1, one + 2, one + 3]);
    });
    device.launch(&stream, check).unwrap();
    device.synchronize_stream(&stream).unwrap();
}

/// DEV-2
#[test]
fn parts_of_one_memory_may_be_read_together_and_written_apart() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let memory = device.allocate(&stream, 16).unwrap();
    device.fill(&stream, &memory, 0..16, 3).unwrap();
    let parts = (
        memory.write::<u8>().part(12..16),
        memory.read::<u8>().part(0..8),
        memory.read::<u16>().part(2..6),
        memory.write::<u8>().part(4..4),
        memory.read::<u64>().part(1..1),
    );
    let run = HostKernel::new("parts", parts, |(tail, head, middle, none, nothing)| {
        assert_eq!((head.len(), middle.len(), none.len(), nothing.len()), (8, 4, 0, 0));
        assert_eq!((head[7], middle[0]), (3, 0x0303));
        tail.fill(head[0] + 1);
    });
    device.launch(&stream, run).unwrap();
    let check = HostKernel::new("check", (memory.read::<u8>(),), |(x,)| {
        assert_eq!((x[11], x[12], x[15]), (3, 4, 4));
    });
    device.launch(&stream, check).unwrap();
    device.synchronize_stream(&stream).unwrap();

    let both = |parts| HostKernel::new("overlap", parts, |_| ());
    let overlap = Cause::Overlap { memory: memory.number() };
    let error = device.launch(&stream, both((memory.write::<u8>(), memory.read::<u8>())));
    assert_eq!(cause(error), overlap);
    let parts = (memory.write::<u8>().part(0..5), memory.read::<u8>().part(4..6));
    assert_eq!(cause(device.launch(&stream, both(parts))), overlap);
    let parts = (memory.write::<u8>().part(0..4), memory.read::<u8>().part(4..6));
    device.launch(&stream, both(parts)).unwrap();
}

/// DEV-2
#[test]
fn elements_that_do_not_fit_the_bytes_are_refused_with_the_numbers() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let memory = device.allocate(&stream, 10).unwrap();
    let odd = HostKernel::new("odd", (memory.read::<u32>(),), |_| ());
    let misaligned = Cause::Misaligned { offset: 0, bytes: 10, size: 4, align: 4 };
    assert_eq!(cause(device.launch(&stream, odd)), misaligned);
    let nothing = HostKernel::new("nothing", (memory.read::<[u32; 0]>(),), |_| ());
    let sizeless = Cause::Misaligned { offset: 0, bytes: 10, size: 0, align: 4 };
    assert_eq!(cause(device.launch(&stream, nothing)), sizeless);
    let fits = HostKernel::new("fits", (memory.read::<u32>().part(0..2),), |(x,)| {
        assert_eq!(x.len(), 2);
    });
    device.launch(&stream, fits).unwrap();
    device.synchronize_stream(&stream).unwrap();
    assert_eq!(memory.bytes(), 10);
}

/// DEV-2, DEV-14
#[test]
fn a_panic_in_a_kernel_breaks_the_device_and_says_why() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let memory = device.allocate(&stream, 4).unwrap();
    let bad = HostKernel::new("bad", (memory.read::<u8>(),), |(x,)| {
        assert!(x.is_empty(), "{} bytes too many", x.len());
    });
    device.launch(&stream, bad).unwrap();
    let error = device.synchronize_stream(&stream).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Sticky);
    let text = error.to_string();
    let expected = "device 0 can't synchronize stream: the device has failed: launch on stream #1: \
                    \"bad\" panicked: 4 bytes too many";
    assert_eq!(text, expected);
    assert_eq!(device.create_event().unwrap_err().class(), ErrorClass::Sticky);
}

/// DEV-2
#[test]
fn payloads_and_captures_that_panic_when_dropped_are_a_fault_and_nothing_worse() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let device = bound(HostDevice::builder().engines(1));
    let stream = device.create_stream(0).unwrap();
    let bomb = Bomb;
    device.launch(&stream, kernel(move || drop(bomb))).unwrap();
    assert!(fault(device.synchronize_stream(&stream)).contains("dropped"));
    device.reset().unwrap();
    device.bind().unwrap();

    let stream = device.create_stream(0).unwrap();
    device.launch(&stream, kernel(|| std::panic::panic_any(Bomb))).unwrap();
    assert!(fault(device.synchronize_stream(&stream)).contains("no message"));
    device.reset().unwrap();
    device.bind().unwrap();

    // unstarted, when others go before it
    let stream = device.create_stream(0).unwrap();
    let gate = Gate::default();
    device.launch(&stream, gate.kernel()).unwrap();
    for _ in 0..2 {
        let bomb = Bomb;
        device.launch(&stream, kernel(move || drop(bomb))).unwrap();
    }
    device.control().fault("enough");
    gate.open();
    device.reset().unwrap();
    device.bind().unwrap();
    let stream = device.create_stream(0).unwrap();
    device.launch(&stream, kernel(|| ())).unwrap();
    device.synchronize_stream(&stream).unwrap();
}

/// DEV-2
#[test]
fn kernels_that_use_two_memories_in_opposite_ways_do_not_wait_in_a_circle() {
    let device = bound(HostDevice::builder().engines(2).check_order(false));
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let (a, b) = (device.allocate(&first, 8).unwrap(), device.allocate(&first, 8).unwrap());
    for _ in 0..500 {
        let there = HostKernel::new("there", (a.read::<u8>(), b.write::<u8>()), |(x, y)| {
            y.copy_from_slice(x);
        });
        let back = HostKernel::new("back", (b.read::<u8>(), a.write::<u8>()), |(x, y)| {
            y.copy_from_slice(x);
        });
        device.launch(&first, there).unwrap();
        device.launch(&second, back).unwrap();
        device.copy_on_device(&first, &a, 0..8, &b, 0).unwrap();
        device.copy_on_device(&second, &b, 0..8, &a, 0).unwrap();
    }
    device.synchronize_stream(&first).unwrap();
    device.synchronize_stream(&second).unwrap();
}
