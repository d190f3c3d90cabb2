//! The end of devices and of what belongs to them, in every order and on any thread.

mod support;

use std::thread;
use std::time::Duration;
use support::{Alive, Gate, Log, PATIENCE, bound, device, eventually, kernel, without_hanging};
use tollgate_device::backend::{Backend, Bell, Signal};
use tollgate_device::host::{HostDevice, HostHealth};

/// DEV-2, G8
#[test]
fn handles_may_be_dropped_in_any_order_on_any_thread_with_work_in_flight() {
    // every order of six things
    for mut order in 0..720usize {
        let device = bound(HostDevice::builder().engines(1));
        let control = device.control();
        let alive = Alive::default();
        let stream = device.create_stream(0).unwrap();
        let event = device.create_event().unwrap();
        let memory = device.allocate(&stream, 64).unwrap();
        let pinned = device.allocate_pinned(64).unwrap();
        let signal = Signal::new(&Bell::new());
        let token = alive.token();
        device.launch(&stream, kernel(move || drop(token))).unwrap();
        device.copy_to_device(&stream, &pinned, 0..64, &memory, 0).unwrap();
        device.notify(&stream, &signal).unwrap();
        device.record(&event, &stream).unwrap();
        device.unbind();
        let mut things: Vec<Box<dyn Send>> = vec![
            Box::new(device),
            Box::new(stream),
            Box::new(event),
            Box::new(memory),
            Box::new(pinned),
            Box::new(signal.clone()),
        ];
        let elsewhere = order % 2 == 1;
        let mut drop_all = move || {
            while !things.is_empty() {
                let next = order % things.len();
                order /= things.len();
                drop(things.swap_remove(next));
            }
        };
        if elsewhere {
            thread::spawn(drop_all).join().unwrap();
        } else {
            drop_all();
        }
        assert!(control.wait_ended(PATIENCE));
        let stats = control.stats();
        assert_eq!(alive.count(), 0);
        assert_eq!((stats.memory.in_use, stats.pinned.in_use), (0, 0));
        assert_eq!((stats.queued, stats.streams, stats.engines), (0, 0, 0));
        assert_eq!(stats.health, HostHealth::Well);
        assert!(signal.is_raised(), "what was given to the device was done");
    }
}

/// DEV-2
#[test]
fn a_device_that_is_dropped_finishes_what_it_was_given_and_then_its_threads_end() {
    let device = bound(HostDevice::builder().engines(2));
    let (first, second) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let (control, gate, log) = (device.control(), Gate::default(), Log::new());
    let event = device.create_event().unwrap();
    device.launch(&first, gate.kernel()).unwrap();
    device.launch(&first, log.kernel(1)).unwrap();
    device.record(&event, &first).unwrap();
    device.wait_event(&second, &event).unwrap();
    // the two need both threads
    let meet = Gate::default();
    for stream in [&first, &second] {
        let meet = meet.clone();
        let both = move || {
            meet.arrive();
            meet.wait_for(2);
        };
        device.launch(stream, kernel(both)).unwrap();
        device.launch(stream, log.kernel(2)).unwrap();
    }
    let mut wakes = 0;
    eventually("one works and one is idle", || {
        let stats = control.stats();
        wakes = stats.wakes;
        (stats.running, stats.idle) == (1, 1)
    });
    drop(device);
    eventually("the idle one has looked", || control.stats().wakes > wakes);
    assert_eq!(control.stats().engines, 2, "it stays while there may be more to do");
    assert!(!control.has_ended());
    assert!(!control.wait_ended(Duration::ZERO), "nor is it waited for longer than was said");
    gate.open();
    assert!(control.wait_ended(PATIENCE));
    assert!(control.has_ended());
    assert!(control.wait_ended(Duration::MAX), "it may be asked again");
    assert_eq!(log.entries(), [1, 2, 2]);
}

/// DEV-2
#[test]
fn what_is_stalled_when_its_device_ends_is_dropped_with_all_that_waits_for_it() {
    let device = bound(HostDevice::builder().engines(2));
    let (stalled, other) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
    let (control, alive) = (device.control(), Alive::default());
    let event = device.create_event().unwrap();
    control.stall(stalled.number());
    for stream in [&stalled, &other] {
        let token = alive.token();
        device.launch(stream, kernel(move || drop(token))).unwrap();
        device.record(&event, &stalled).unwrap();
        device.wait_event(&other, &event).unwrap();
    }
    drop(device);
    assert!(control.wait_ended(PATIENCE));
    control.release(stalled.number());
    assert_eq!(alive.count(), 0);
}

/// DEV-2
#[test]
fn the_last_handle_may_be_dropped_by_a_kernel() {
    let device = bound(HostDevice::builder().engines(1));
    let stream = device.create_stream(0).unwrap();
    let (control, gate) = (device.control(), Gate::default());
    device.launch(&stream, gate.kernel()).unwrap();
    let last = device.clone();
    device.launch(&stream, kernel(move || drop(last))).unwrap();
    drop((device, stream));
    gate.open();
    assert!(control.wait_ended(PATIENCE));
}

/// DEV-2
#[test]
fn captures_are_gone_when_their_work_has_passed() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let alive = Alive::default();
    for _ in 0..200 {
        let token = alive.token();
        // not by the closure's hand: it only has it
        device
            .launch(
                &stream,
                kernel(move || {
                    let _ = &token;
                }),
            )
            .unwrap();
        device.synchronize_stream(&stream).unwrap();
        assert_eq!(alive.count(), 0);
    }
}

/// DEV-2
#[test]
fn captures_of_a_launch_that_is_refused_may_use_the_device_when_they_are_dropped() {
    struct Caller(HostDevice, Log<bool>);
    impl Drop for Caller {
        fn drop(&mut self) {
            self.1.push(self.0.memory_info().is_ok());
        }
    }
    let log = Log::new();
    let kept = log.clone();
    without_hanging(move || {
        let other = device();
        let foreign = other.create_stream(0).unwrap();
        let device = device();
        let caller = Caller(device.clone(), log.clone());
        device.launch(&foreign, kernel(move || drop(caller))).unwrap_err();
        let stream = device.create_stream(0).unwrap();
        // and those of what a fault drops
        let gate = Gate::default();
        device.launch(&stream, gate.kernel()).unwrap();
        let caller = Caller(device.clone(), log.clone());
        device.launch(&stream, kernel(move || drop(caller))).unwrap();
        device.control().fault("broken");
        gate.open();
        // and of what a reset drops
        device.reset().unwrap();
        device.bind().unwrap();
        let stream = device.create_stream(0).unwrap();
        device.control().stall(stream.number());
        let caller = Caller(device.clone(), log.clone());
        device.launch(&stream, kernel(move || drop(caller))).unwrap();
        device.reset().unwrap();
    });
    assert_eq!(kept.entries(), [true, false, false]);
}

/// DEV-2
#[test]
fn many_devices_come_and_go_and_leave_no_thread() {
    let mut controls = Vec::new();
    for _ in 0..50 {
        let device = bound(HostDevice::builder().engines(2));
        let stream = device.create_stream(0).unwrap();
        device.launch(&stream, kernel(|| ())).unwrap();
        controls.push(device.control());
    }
    for control in &controls {
        assert!(control.wait_ended(PATIENCE));
    }
    eventually("all is done", || controls.iter().all(|control| control.stats().queued == 0));
}
