//! Order within streams, between streams, and none where none was asked for.

mod support;

use std::thread;
use support::{Gate, Log, bound, device, eventually, kernel};
use tollgate_device::backend::{Backend, Bell, Signal};
use tollgate_device::host::{DEFAULT_ENGINES, FaultPlan, HostDevice};

/// DEV-2
#[test]
fn a_launch_returns_before_its_kernel_has_run() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let gate = Gate::default();
    let idle = || device.control().stats().idle;
    eventually("the engines are idle", || idle() == DEFAULT_ENGINES);
    device.launch(&stream, gate.kernel()).unwrap();
    eventually("one was woken for it", || idle() == DEFAULT_ENGINES - 1);
    assert!(!device.query_stream(&stream).unwrap());
    gate.open();
    device.synchronize_stream(&stream).unwrap();
    assert!(device.query_stream(&stream).unwrap());
}

/// DEV-2
#[test]
fn kernels_of_two_streams_overlap() {
    let device = bound(HostDevice::builder().engines(2));
    let meet = Gate::default();
    let streams = [device.create_stream(0).unwrap(), device.create_stream(0).unwrap()];
    for stream in &streams {
        let meet = meet.clone();
        // neither ends before the other has begun
        let both = move || {
            meet.arrive();
            meet.wait_for(2);
        };
        device.launch(stream, kernel(both)).unwrap();
    }
    for stream in &streams {
        device.synchronize_stream(stream).unwrap();
    }
}

/// DEV-2
#[test]
fn work_of_a_stream_is_done_one_after_the_other_in_the_order_of_the_calls() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let log = Log::new();
    let gate = Gate::default();
    device.launch(&stream, gate.kernel()).unwrap();
    for entry in 0..100 {
        device.launch(&stream, log.kernel(entry)).unwrap();
    }
    assert!(log.entries().is_empty());
    gate.open();
    device.synchronize_stream(&stream).unwrap();
    assert_eq!(log.entries(), (0..100).collect::<Vec<_>>());
}

/// DEV-2
#[test]
fn a_stalled_stream_stops_no_other_and_takes_no_thread() {
    let plan = FaultPlan::new().stall_stream(1).stall_stream(2);
    let device = bound(HostDevice::builder().engines(1).faults(plan));
    let stalled = [device.create_stream(-5).unwrap(), device.create_stream(-5).unwrap()];
    let free = device.create_stream(0).unwrap();
    let log = Log::new();
    for (stream, entry) in stalled.iter().zip(1..) {
        device.launch(stream, log.kernel(entry)).unwrap();
    }
    device.launch(&free, log.kernel(3)).unwrap();
    device.synchronize_stream(&free).unwrap();
    assert_eq!(log.entries(), [3]);
    assert!(!device.query_stream(&stalled[0]).unwrap());
    device.control().release(stalled[1].number());
    device.synchronize_stream(&stalled[1]).unwrap();
    assert_eq!(log.entries(), [3, 2]);
    device.control().release(stalled[0].number());
    device.synchronize_stream(&stalled[0]).unwrap();
    // and again, while it is at work
    device.control().stall(free.number());
    device.launch(&free, log.kernel(4)).unwrap();
    device.launch(&stalled[0], log.kernel(5)).unwrap();
    device.synchronize_stream(&stalled[0]).unwrap();
    assert_eq!(log.entries(), [3, 2, 1, 5]);
    device.control().release(free.number());
    device.synchronize_stream(&free).unwrap();
}

/// DEV-2
#[test]
fn a_stream_goes_on_after_what_it_waited_for_and_meanwhile_takes_no_thread() {
    let device = bound(HostDevice::builder().engines(1));
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(-5).unwrap());
    let event = device.create_event().unwrap();
    let log = Log::new();
    device.control().stall(first.number());
    device.launch(&first, log.kernel("first")).unwrap();
    device.record(&event, &first).unwrap();
    device.launch(&first, log.kernel("later")).unwrap();
    device.wait_event(&second, &event).unwrap();
    device.launch(&second, log.kernel("second")).unwrap();
    assert!(!device.query_event(&event).unwrap());
    let other = device.create_stream(0).unwrap();
    device.launch(&other, log.kernel("other")).unwrap();
    device.synchronize_stream(&other).unwrap();
    device.control().release(first.number());
    device.synchronize_event(&event).unwrap();
    assert!(device.query_event(&event).unwrap());
    device.synchronize_stream(&second).unwrap();
    device.synchronize_stream(&first).unwrap();
    let entries = log.entries();
    let at = |name| entries.iter().position(|entry| *entry == name).unwrap();
    assert_eq!(entries[0], "other");
    assert!(at("first") < at("second"), "{entries:?}");
}

/// DEV-2
#[test]
fn an_event_stands_for_its_last_record_and_waits_for_the_one_it_had() {
    let device = device();
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let event = device.create_event().unwrap();
    assert!(device.query_event(&event).unwrap(), "never recorded counts as passed");
    device.synchronize_event(&event).unwrap();
    device.wait_event(&second, &event).unwrap();

    device.launch(&first, kernel(|| ())).unwrap();
    device.record(&event, &first).unwrap();
    device.wait_event(&second, &event).unwrap();
    let gate = Gate::default();
    device.launch(&first, gate.kernel()).unwrap();
    device.record(&event, &first).unwrap();
    // the wait was for the first record
    device.synchronize_stream(&second).unwrap();
    assert!(!device.query_event(&event).unwrap());
    gate.open();
    device.synchronize_event(&event).unwrap();
}

/// DEV-2
#[test]
fn an_event_may_be_dropped_while_a_stream_waits_for_it() {
    let device = device();
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let gate = Gate::default();
    let log = Log::new();
    device.launch(&first, gate.kernel()).unwrap();
    device.launch(&first, log.kernel(1)).unwrap();
    let event = device.create_event().unwrap();
    device.record(&event, &first).unwrap();
    device.wait_event(&second, &event).unwrap();
    drop(event);
    device.launch(&second, log.kernel(2)).unwrap();
    gate.open();
    device.synchronize_stream(&second).unwrap();
    assert_eq!(log.entries(), [1, 2]);
}

/// DEV-2
#[test]
fn a_stream_that_is_dropped_does_what_it_was_given_and_whoever_waits_for_it_goes_on() {
    let device = device();
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let gate = Gate::default();
    let log = Log::new();
    let event = device.create_event().unwrap();
    device.launch(&first, gate.kernel()).unwrap();
    device.launch(&first, log.kernel(1)).unwrap();
    device.record(&event, &first).unwrap();
    device.wait_event(&second, &event).unwrap();
    device.launch(&second, log.kernel(2)).unwrap();
    drop(first);
    gate.open();
    device.synchronize_event(&event).unwrap();
    device.synchronize_stream(&second).unwrap();
    assert_eq!(log.entries(), [1, 2]);
    eventually("a stream with nothing left to do goes", || device.control().stats().streams == 1);
}

/// DEV-2
#[test]
fn when_there_are_more_streams_than_threads_the_greater_priority_goes_first() {
    let device = bound(HostDevice::builder().engines(1));
    let gate = Gate::default();
    let blocker = device.create_stream(0).unwrap();
    device.launch(&blocker, gate.kernel()).unwrap();
    let log = Log::new();
    let streams: Vec<_> = [0, -3, -5, -3]
        .into_iter()
        .map(|priority| device.create_stream(priority).unwrap())
        .collect();
    for (entry, stream) in streams.iter().enumerate() {
        device.launch(stream, log.kernel(entry)).unwrap();
    }
    gate.open();
    for stream in &streams {
        device.synchronize_stream(stream).unwrap();
    }
    assert_eq!(log.entries(), [2, 1, 3, 0]);
}

/// DEV-13, G6
#[test]
fn a_signal_is_raised_once_the_stream_has_passed_it() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let (bell, gate) = (Bell::new(), Gate::default());
    let signals = [Signal::new(&bell), Signal::new(&bell)];
    device.notify(&stream, &signals[0]).unwrap();
    bell.wait(0);
    assert!(signals[0].is_raised());
    device.launch(&stream, gate.kernel()).unwrap();
    device.notify(&stream, &signals[1]).unwrap();
    let seen = bell.rings();
    assert!(!signals[1].is_raised());
    gate.open();
    assert_eq!(bell.wait(seen), seen + 1);
    assert!(signals[1].is_raised());
    assert!(device.query_stream(&stream).unwrap(), "whoever is rung finds the stream past it");
}

/// DEV-13
#[test]
fn a_bell_is_not_waited_for_longer_than_until_the_time_given() {
    let bell = Bell::new();
    assert_eq!(bell.wait_until(0, std::time::Instant::now()), 0);
    bell.ring();
    assert_eq!(bell.wait_until(0, std::time::Instant::now()), 1);
    let signal = Signal::new(&bell);
    signal.raise();
    signal.raise();
    assert_eq!(bell.rings(), 2, "a signal rings once");
}

/// DEV-2
#[test]
fn engines_are_as_many_as_was_said_and_idle_ones_are_not_woken() {
    let device = bound(HostDevice::builder().engines(3));
    let control = device.control();
    assert_eq!(control.stats().engines, 3);
    let stream = device.create_stream(0).unwrap();
    eventually("all are idle", || control.stats().idle == 3);
    let before = control.stats().wakes;
    // a stream that waits, or is stalled, is nothing to wake anybody for
    control.stall(stream.number());
    for _ in 0..100 {
        device.launch(&stream, kernel(|| ())).unwrap();
    }
    let event = device.create_event().unwrap();
    let other = device.create_stream(0).unwrap();
    device.record(&event, &stream).unwrap();
    device.wait_event(&other, &event).unwrap();
    device.launch(&other, kernel(|| ())).unwrap();
    assert_eq!(control.stats().wakes, before);
    assert_eq!((control.stats().idle, control.stats().queued), (3, 101));
    control.release(stream.number());
    device.synchronize_stream(&other).unwrap();
    eventually("all are idle again", || control.stats().idle == 3);
}

/// DEV-2
#[test]
fn several_threads_wait_for_one_stream_and_all_go_on() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let gate = Gate::default();
    device.launch(&stream, gate.kernel()).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                device.bind().unwrap();
                device.synchronize_stream(&stream).unwrap();
            });
        }
        eventually("three wait", || device.control().stats().waiting == 3);
        gate.open();
    });
}
