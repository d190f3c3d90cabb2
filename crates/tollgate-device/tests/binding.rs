//! Which threads may call a device, and which device that is.

mod support;

use std::thread;
use support::{PATIENCE, bound, cause, device, kernel};
use tollgate_device::backend::{Backend, Cause, DeviceUuid, ErrorClass};
use tollgate_device::host::{HostBuildError, HostDevice, MAX_ENGINES};

/// DEV-1, DEV-2
#[test]
fn a_thread_that_is_not_bound_can_call_nothing() {
    let device = HostDevice::builder().build().unwrap();
    assert!(!device.is_bound());
    let error = device.create_stream(0).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Request);
    assert_eq!(*error.cause(), Cause::NotBound { bound: None });
    device.bind().unwrap();
    assert!(device.is_bound());
    let stream = device.create_stream(0).unwrap();
    device.unbind();
    assert!(!device.is_bound());
    assert_eq!(cause(device.query_stream(&stream)), Cause::NotBound { bound: None });
    assert_eq!(device.info().name, "host", "what it is needs no call");
}

/// DEV-1
#[test]
fn a_thread_is_bound_to_one_device_and_each_thread_for_itself() {
    let first = bound(HostDevice::builder().ordinal(0));
    let second = bound(HostDevice::builder().ordinal(1));
    assert!(second.is_bound() && !first.is_bound());
    assert_eq!(cause(first.create_event()), Cause::NotBound { bound: Some(1) });
    first.unbind();
    assert!(second.is_bound(), "unbinding another device changes nothing");
    let there = thread::spawn({
        let second = second.clone();
        move || (second.is_bound(), second.create_event().is_err())
    });
    assert_eq!(there.join().unwrap(), (false, true));
}

/// DEV-2
#[test]
fn what_belongs_to_another_device_is_refused_also_when_both_have_the_same_ordinal() {
    let (mine, other) = (device(), HostDevice::builder().build().unwrap());
    other.bind().unwrap();
    let (stream, event) = (other.create_stream(0).unwrap(), other.create_event().unwrap());
    let memory = other.allocate(&stream, 8).unwrap();
    let mut pinned = other.allocate_pinned(8).unwrap();
    mine.bind().unwrap();
    let own = mine.create_stream(0).unwrap();
    let wrong = Cause::OtherDevice { device: 0 };
    assert_eq!(cause(mine.query_stream(&stream)), wrong);
    assert_eq!(cause(mine.synchronize_stream(&stream)), wrong);
    assert_eq!(cause(mine.record(&event, &own)), wrong);
    assert_eq!(cause(mine.wait_event(&own, &event)), wrong);
    assert_eq!(cause(mine.query_event(&event)), wrong);
    assert_eq!(cause(mine.synchronize_event(&event)), wrong);
    assert_eq!(cause(mine.allocate(&stream, 8)), wrong);
    assert_eq!(cause(mine.fill(&own, &memory, 0..8, 0)), wrong);
    assert_eq!(cause(mine.copy_to_device(&own, &pinned, 0..8, &memory, 0)), wrong);
    assert_eq!(cause(mine.copy_to_host(&own, &memory, 0..8, &pinned, 0)), wrong);
    assert_eq!(cause(mine.copy_on_device(&own, &memory, 0..4, &memory, 4)), wrong);
    assert_eq!(cause(mine.pinned_bytes(&mut pinned)), wrong);
    assert_eq!(cause(mine.launch(&stream, kernel(|| ()))), wrong);
    assert_eq!(cause(mine.free(&own, memory)), wrong);
}

/// G6
#[test]
fn a_kernel_may_not_call_the_driver() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let control = device.control();
    let inside = kernel({
        let device = device.clone();
        move || {
            let causes = [
                cause(device.bind()),
                cause(device.create_stream(0)),
                cause(device.memory_info()),
                cause(device.reset()),
            ];
            tell.send((causes, control.wait_ended(PATIENCE))).unwrap();
        }
    });
    device.launch(&stream, inside).unwrap();
    device.synchronize_stream(&stream).unwrap();
    let (causes, ended) = told.recv().unwrap();
    assert!(causes.iter().all(|cause| *cause == Cause::DriverThread), "{causes:?}");
    assert!(!ended, "nor wait for the end of its own thread");
}

/// G15
#[test]
fn a_priority_that_the_device_does_not_have_is_refused_with_the_range() {
    let device = bound(HostDevice::builder().priorities(-2, 1));
    let range = device.info().priorities;
    for asked in [i32::MIN, -3, 2, i32::MAX] {
        assert_eq!(cause(device.create_stream(asked)), Cause::Priority { asked, range });
        let near = range.nearest(asked);
        assert_eq!(device.create_stream(near).unwrap().priority(), near);
    }
    let error = device.create_stream(7).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device 0 can't create stream: priority 7 is outside of -2 (first) to 1 (last)"
    );
}

/// DEV-2
#[test]
fn a_device_that_could_not_work_is_not_built_and_the_error_names_the_numbers() {
    let none = HostDevice::builder().engines(0).build().unwrap_err();
    assert!(matches!(none, HostBuildError::Engines { asked: 0, most: MAX_ENGINES }), "{none}");
    let many = HostDevice::builder().engines(usize::MAX).build().unwrap_err();
    assert!(matches!(many, HostBuildError::Engines { asked: usize::MAX, .. }), "{many}");
    let twisted = HostDevice::builder().priorities(1, 0).build().unwrap_err();
    assert!(matches!(twisted, HostBuildError::Priorities { greatest: 1, least: 0 }), "{twisted}");
    let empty = HostDevice::builder().memory(0).build().unwrap_err();
    assert!(matches!(empty, HostBuildError::NoMemory), "{empty}");
}

/// G14
#[test]
fn a_device_is_known_by_a_uuid_of_its_own() {
    let (first, second) = (HostDevice::builder(), HostDevice::builder());
    let uuid =
        |builder: &tollgate_device::host::HostBuilder| builder.clone().build().unwrap().info().uuid;
    assert_ne!(uuid(&first), uuid(&second));
    let given = DeviceUuid([0xab; 16]);
    assert_eq!(uuid(&first.uuid(given)), given);
    assert_eq!(given.to_string(), "GPU-abababab-abab-abab-abab-abababababab");
}

/// DEV-1
#[test]
fn threads_are_named_after_the_device_whatever_characters_the_name_has() {
    let device = bound(HostDevice::builder().name("a\0\u{1f980} b").engines(1));
    let stream = device.create_stream(0).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let look = move || tell.send(thread::current().name().map(str::to_owned)).unwrap();
    device.launch(&stream, kernel(look)).unwrap();
    assert_eq!(told.recv().unwrap().as_deref(), Some("a\u{fffd}\u{1f980} b-engine-1"));
}
