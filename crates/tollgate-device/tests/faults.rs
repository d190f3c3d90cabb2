//! Everything that a plan, or a test, can make go wrong.

mod support;

use std::thread;
use support::{Alive, Gate, Log, bound, cause, device, eventually, fault, kernel};
use tollgate_device::backend::{
    Backend, Bell, Cause, DriverError, ErrorClass, MemoryInfo, Operation, Signal,
};
use tollgate_device::host::{
    Failure, FaultPlan, HostControl, HostDevice, HostHealth, HostKernel, HostStream,
};

/// Makes one call of every operation that needs a binding, with handles of its own.
type Try = fn(&HostDevice, &HostStream) -> Result<(), DriverError>;

fn every_call() -> Vec<(Operation, Try)> {
    use Operation as Op;
    vec![
        (Op::Bind, |d, _| d.bind()),
        (Op::CreateStream, |d, _| d.create_stream(0).map(drop)),
        (Op::QueryStream, |d, s| d.query_stream(s).map(drop)),
        (Op::SynchronizeStream, |d, s| d.synchronize_stream(s)),
        (Op::CreateEvent, |d, _| d.create_event().map(drop)),
        (Op::Record, |d, s| d.record(&d.create_event()?, s)),
        (Op::QueryEvent, |d, _| d.query_event(&d.create_event()?).map(drop)),
        (Op::WaitEvent, |d, s| d.wait_event(s, &d.create_event()?)),
        (Op::SynchronizeEvent, |d, _| d.synchronize_event(&d.create_event()?)),
        (Op::Notify, |d, s| d.notify(s, &Signal::new(&Bell::new()))),
        (Op::Allocate, |d, s| d.allocate(s, 8).map(drop)),
        (Op::Free, |d, s| d.free(s, d.allocate(s, 8)?)),
        (Op::AllocatePinned, |d, _| d.allocate_pinned(8).map(drop)),
        (Op::CopyToDevice, |d, s| {
            d.copy_to_device(s, &d.allocate_pinned(8)?, 0..8, &d.allocate(s, 8)?, 0)
        }),
        (Op::CopyToHost, |d, s| {
            d.copy_to_host(s, &d.allocate(s, 8)?, 0..8, &d.allocate_pinned(8)?, 0)
        }),
        (Op::CopyOnDevice, |d, s| {
            d.copy_on_device(s, &d.allocate(s, 8)?, 0..8, &d.allocate(s, 8)?, 0)
        }),
        (Op::Fill, |d, s| d.fill(s, &d.allocate(s, 8)?, 0..8, 0)),
        (Op::Launch, |d, s| d.launch(s, kernel(|| ()))),
        (Op::MemoryInfo, |d, _| d.memory_info().map(drop)),
    ]
}

fn work(operation: Operation) -> bool {
    use Operation as Op;
    matches!(operation, Op::Notify | Op::Free | Op::Fill | Op::Launch)
        || matches!(operation, Op::CopyToDevice | Op::CopyToHost | Op::CopyOnDevice)
}

/// DEV-2, G12
#[test]
fn the_call_that_the_plan_names_fails_without_an_effect_and_the_others_work() {
    for (operation, call) in every_call() {
        for failure in [Failure::Request, Failure::OutOfMemory] {
            // the first bind is the test's own
            let nth = if operation == Operation::Bind { 3 } else { 2 };
            let nth = if operation == Operation::CreateStream { 3 } else { nth };
            let device =
                bound(HostDevice::builder().faults(FaultPlan::new().fail(operation, nth, failure)));
            let stream = device.create_stream(0).unwrap();
            call(&device, &stream).unwrap();
            let error = call(&device, &stream).unwrap_err();
            assert_eq!(error.operation(), operation);
            let class = match failure {
                Failure::OutOfMemory => ErrorClass::OutOfMemory,
                _ => ErrorClass::Request,
            };
            assert_eq!(error.class(), class, "{error}");
            call(&device, &stream).unwrap();
            device.synchronize_stream(&stream).unwrap();
            let stats = device.control().stats();
            assert_eq!((stats.memory.in_use, stats.pinned.in_use), (0, 0), "{operation}");
            assert_eq!((stats.streams, stats.health), (1, HostHealth::Well), "{operation}");
        }
    }
}

/// DEV-14
#[test]
fn after_a_sticky_fault_every_call_fails_with_it_until_a_reset() {
    for (operation, call) in every_call() {
        for failure in [Failure::Sticky, Failure::StickyLater] {
            let device = device();
            let stream = device.create_stream(0).unwrap();
            device.control().fail_next(operation, failure);
            let result = call(&device, &stream);
            if failure == Failure::StickyLater && work(operation) {
                result.unwrap();
                let first = device.synchronize_stream(&stream).unwrap_err();
                let Cause::Sticky(fault) = first.cause() else { panic!("{first}") };
                assert_eq!(fault.operation, Some(operation));
                assert_eq!(fault.stream, Some(stream.number()));
            } else {
                let error = result.unwrap_err();
                assert_eq!((error.operation(), error.class()), (operation, ErrorClass::Sticky));
            }
            for (other, call) in every_call() {
                let error = call(&device, &stream).expect_err(other.as_str());
                assert_eq!(error.class(), ErrorClass::Sticky, "{error}");
                assert!(error.to_string().contains(operation.as_str()), "{error}");
            }
            device.reset().unwrap();
            assert!(!device.is_bound(), "a binding is of before the reset");
            device.bind().unwrap();
            for (_, call) in every_call() {
                call(&device, &device.create_stream(0).unwrap()).unwrap();
            }
        }
    }
}

/// DEV-14
#[test]
fn a_lost_device_stays_lost() {
    for (operation, call) in every_call() {
        let device = device();
        let stream = device.create_stream(0).unwrap();
        device.control().fail_next(operation, Failure::Lost);
        assert_eq!(cause(call(&device, &stream)), Cause::Lost);
        assert_eq!(cause(device.reset()), Cause::Lost);
        for (_, call) in every_call() {
            assert_eq!(call(&device, &stream).unwrap_err().class(), ErrorClass::DeviceLost);
        }
        assert_eq!(device.control().stats().health, HostHealth::Lost);
    }
}

/// DEV-14
#[test]
fn a_fault_drops_what_has_not_begun_and_wakes_whoever_waits() {
    for lose in [false, true] {
        let device = device();
        let (stream, other) = (device.create_stream(0).unwrap(), device.create_stream(0).unwrap());
        let (event, gate, alive) =
            (device.create_event().unwrap(), Gate::default(), Alive::default());
        let token = alive.token();
        let running = gate.clone();
        let (tell, told) = std::sync::mpsc::channel();
        device
            .launch(
                &stream,
                kernel(move || {
                    tell.send(()).unwrap();
                    running.wait();
                    drop(token);
                }),
            )
            .unwrap();
        told.recv().unwrap();
        device.record(&event, &stream).unwrap();
        device.wait_event(&other, &event).unwrap();
        for _ in 0..3 {
            let (token, elsewhere) = (alive.token(), alive.token());
            device.launch(&stream, kernel(move || drop(token))).unwrap();
            device.launch(&other, kernel(move || drop(elsewhere))).unwrap();
        }
        let control = device.control();
        thread::scope(|scope| {
            let waits = [
                scope.spawn(|| device.bind().and_then(|()| device.synchronize_stream(&stream))),
                scope.spawn(|| device.bind().and_then(|()| device.synchronize_stream(&other))),
                scope.spawn(|| device.bind().and_then(|()| device.synchronize_event(&event))),
            ];
            eventually("all wait", || control.stats().waiting == 3);
            if lose {
                control.lose();
            } else {
                control.fault("cosmic ray");
            }
            for wait in waits {
                let class = wait.join().unwrap().unwrap_err().class();
                let expected = if lose { ErrorClass::DeviceLost } else { ErrorClass::Sticky };
                assert_eq!(class, expected);
            }
        });
        assert_eq!(alive.count(), 1, "what runs goes on");
        assert_eq!((control.stats().queued, control.stats().running), (0, 1));
        gate.open();
        eventually("it ends", || alive.count() == 0);
    }
}

/// DEV-14
#[test]
fn of_two_faults_the_first_is_the_one() {
    let device = device();
    let control = device.control();
    control.fault("first");
    control.fault("second");
    let error = device.memory_info().unwrap_err();
    assert_eq!(error.to_string(), "device 0 can't memory info: the device has failed: first");
    control.lose();
    assert_eq!(cause(device.memory_info()), Cause::Lost);
    control.fault("third");
    assert_eq!(cause(device.memory_info()), Cause::Lost);
}

/// DEV-14
#[test]
fn a_reset_makes_everything_of_before_worth_nothing() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let event = device.create_event().unwrap();
    let memory = device.allocate(&stream, 100).unwrap();
    let mut pinned = device.allocate_pinned(100).unwrap();
    let (gate, log, begun) = (Gate::default(), Log::new(), Gate::default());
    let running = kernel({
        let (gate, begun) = (gate.clone(), begun.clone());
        move || {
            begun.open();
            gate.wait();
        }
    });
    device.launch(&stream, running).unwrap();
    device.launch(&stream, log.kernel("before")).unwrap();
    begun.wait();
    device.reset().unwrap();

    assert_eq!(cause(device.create_event()), Cause::BeforeReset);
    device.bind().unwrap();
    let new = device.create_stream(0).unwrap();
    assert_ne!(new.number(), stream.number());
    let old = Cause::BeforeReset;
    assert_eq!(cause(device.query_stream(&stream)), old);
    assert_eq!(cause(device.query_event(&event)), old);
    assert_eq!(cause(device.wait_event(&new, &event)), old);
    assert_eq!(cause(device.fill(&new, &memory, 0..1, 0)), old);
    assert_eq!(cause(device.pinned_bytes(&mut pinned)), old);
    let total = 1 << 30;
    assert_eq!(device.memory_info().unwrap(), MemoryInfo { free: total, total });
    let later = device.allocate(&new, 10).unwrap();
    // handles of before take nothing from what is new
    drop((stream, event, memory, pinned));
    gate.open();
    device.launch(&new, log.kernel("after")).unwrap();
    device.synchronize_stream(&new).unwrap();
    eventually("the kernel of before ends", || device.control().stats().running == 0);
    assert_eq!(log.entries(), ["after"]);
    assert_eq!(device.control().stats().memory.in_use, 10);
    assert_eq!(device.control().stats().resets, 1);
    drop(later);
    assert_eq!(device.control().stats().memory.in_use, 0);
}

/// DEV-14
#[test]
fn a_kernel_of_before_a_reset_that_fails_after_it_harms_nobody() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let (gate, begun) = (Gate::default(), Gate::default());
    let running = kernel({
        let (gate, begun) = (gate.clone(), begun.clone());
        move || {
            begun.open();
            gate.wait();
            panic!("too late");
        }
    });
    device.launch(&stream, running).unwrap();
    begun.wait();
    device.reset().unwrap();
    device.bind().unwrap();
    gate.open();
    eventually("it fails", || device.control().stats().running == 0);
    let stream = device.create_stream(0).unwrap();
    device.launch(&stream, kernel(|| ())).unwrap();
    device.synchronize_stream(&stream).unwrap();
}

/// DEV-14
#[test]
fn whoever_waits_for_a_stream_that_is_reset_is_told() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    device.control().stall(stream.number());
    device.launch(&stream, kernel(|| ())).unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| {
            device.bind().unwrap();
            cause(device.synchronize_stream(&stream))
        });
        eventually("it waits", || device.control().stats().waiting == 1);
        device.reset().unwrap();
        assert_eq!(wait.join().unwrap(), Cause::BeforeReset);
    });
}

/// DEV-14
#[test]
fn a_reset_that_fails_leaves_the_device_as_it_was() {
    let plan = FaultPlan::new().fail(Operation::Reset, 1, Failure::Request).fail(
        Operation::Reset,
        2..=3,
        Failure::Sticky,
    );
    let device = bound(HostDevice::builder().faults(plan));
    let stream = device.create_stream(0).unwrap();
    assert_eq!(device.reset().unwrap_err().class(), ErrorClass::Request);
    assert!(device.query_stream(&stream).unwrap(), "a well one stays well");
    device.control().fault("broken");
    for _ in 2..=3 {
        assert_eq!(fault(device.reset()), "broken");
    }
    assert_eq!(fault(device.memory_info()), "broken");
    device.reset().unwrap();
    device.bind().unwrap();
    assert_eq!(cause(device.query_stream(&stream)), Cause::BeforeReset);
}

/// G4
#[test]
fn a_signal_of_a_device_that_fails_is_never_raised_and_a_query_tells() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let (bell, gate) = (Bell::new(), Gate::default());
    let signal = Signal::new(&bell);
    device.launch(&stream, gate.kernel()).unwrap();
    device.launch(&stream, kernel(|| panic!("no"))).unwrap();
    device.notify(&stream, &signal).unwrap();
    gate.open();
    let error = device.synchronize_stream(&stream).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Sticky);
    assert!(!signal.is_raised());
    assert_eq!(bell.rings(), 0);
}

/// G4
#[test]
fn a_plan_can_keep_a_signal_from_being_raised_on_a_device_that_works() {
    let device = bound(HostDevice::builder().faults(FaultPlan::new().never_notify(1..=2)));
    let stream = device.create_stream(0).unwrap();
    let bell = Bell::new();
    let signals = [Signal::new(&bell), Signal::new(&bell), Signal::new(&bell)];
    for signal in &signals {
        device.notify(&stream, signal).unwrap();
    }
    bell.wait(0);
    assert!(device.query_stream(&stream).unwrap());
    assert_eq!(signals.map(|signal| signal.is_raised()), [false, false, true]);
}

/// G5
#[test]
fn a_plan_can_have_signals_raised_although_the_device_failed() {
    let device = bound(HostDevice::builder().faults(FaultPlan::new().notify_despite_faults()));
    let stream = device.create_stream(0).unwrap();
    let (bell, gate) = (Bell::new(), Gate::default());
    let signal = Signal::new(&bell);
    device.launch(&stream, gate.kernel()).unwrap();
    device.notify(&stream, &signal).unwrap();
    device.control().fault("unseen");
    assert!(signal.is_raised());
    assert_eq!(fault(device.query_stream(&stream)), "unseen");
    gate.open();
}

/// DEV-14
#[test]
fn a_fault_of_one_device_leaves_the_others_alone() {
    let (first, second) = (HostDevice::builder().build().unwrap(), device());
    first.control().fault("only here");
    let stream = second.create_stream(0).unwrap();
    second.launch(&stream, kernel(|| ())).unwrap();
    second.synchronize_stream(&stream).unwrap();
    assert_eq!(fault(first.bind()), "only here");
}

/// DEV-2
#[test]
fn calls_that_could_not_be_made_do_not_count_for_the_plan() {
    let plan = FaultPlan::new().fail(Operation::CreateEvent, 2, Failure::Request);
    let device = HostDevice::builder().faults(plan).build().unwrap();
    assert!(device.create_event().is_err(), "not bound");
    device.bind().unwrap();
    device.create_event().unwrap();
    assert_eq!(device.create_event().unwrap_err().class(), ErrorClass::Request);
    assert_eq!(device.control().stats().calls[&Operation::CreateEvent], 2);
}

/// DEV-2
#[test]
fn calls_are_named_by_number_or_range_and_the_first_entry_counts() {
    fn fails(plan: FaultPlan) -> Vec<u64> {
        let device = bound(HostDevice::builder().faults(plan));
        (1..=5).filter(|_| device.create_event().is_err()).collect()
    }
    const NONE: [u64; 0] = [];
    let plan = FaultPlan::new;
    let (event, no) = (Operation::CreateEvent, Failure::Request);
    assert_eq!(fails(plan()), NONE);
    assert_eq!(fails(plan().fail(event, 3, no)), [3]);
    assert_eq!(fails(plan().fail(event, 2..4, no)), [2, 3]);
    assert_eq!(fails(plan().fail(event, 2..=4, no)), [2, 3, 4]);
    assert_eq!(fails(plan().fail(event, 4.., no)), [4, 5]);
    assert_eq!(fails(plan().fail(event, .., no)), [1, 2, 3, 4, 5]);
    assert_eq!(fails(plan().fail(event, 0..0, no)), NONE);
    assert_eq!(fails(plan().fail(event, 0, no)), NONE);
    let device =
        bound(HostDevice::builder().faults(plan().fail(event, 1, Failure::OutOfMemory).fail(
            event,
            ..,
            no,
        )));
    assert_eq!(device.create_event().unwrap_err().class(), ErrorClass::OutOfMemory);
    assert_eq!(device.create_event().unwrap_err().class(), ErrorClass::Request);
}

/// DEV-2
#[test]
fn a_plan_from_a_seed_is_the_same_each_time_and_another_for_another_seed() {
    let operations = [Operation::Allocate, Operation::Launch, Operation::CreateEvent];
    let plan = |seed| FaultPlan::from_seed(seed, &operations, &Failure::ALL, 100, 5);
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
    assert_eq!(FaultPlan::from_seed(7, &[], &Failure::ALL, 100, 5), FaultPlan::new());
    assert_eq!(FaultPlan::from_seed(7, &operations, &[], 0, 5), FaultPlan::new());
    let all = FaultPlan::from_seed(7, &[Operation::CreateEvent], &[Failure::Request], 0, 1);
    let device = bound(HostDevice::builder().faults(all));
    assert!(device.create_event().is_err(), "of no calls, the first");
}

/// DEV-16
#[test]
#[cfg(feature = "serde")]
fn figures_can_be_written_as_json() {
    let device = device();
    let stream = device.create_stream(0).unwrap();
    device.allocate(&stream, 8).unwrap();
    device.control().fault("broken");
    let json = serde_json::to_value(device.control().stats()).unwrap();
    assert_eq!(json["memory"]["peak"], 8);
    assert_eq!(json["health"]["faulted"]["message"], "broken");
    assert_eq!(json["calls"]["create_stream"], 1);
    let info = serde_json::to_string(device.info()).unwrap();
    assert_eq!(
        serde_json::from_str::<tollgate_device::backend::DeviceInfo>(&info).unwrap(),
        *device.info()
    );
}

/// DEV-2
#[test]
fn the_testers_end_may_be_used_from_anywhere_also_inside_a_kernel() {
    fn look(control: &HostControl) -> usize {
        control.stats().running
    }
    let device = device();
    let stream = device.create_stream(0).unwrap();
    let other = device.create_stream(0).unwrap();
    let (control, log) = (device.control(), Log::new());
    control.stall(other.number());
    device.launch(&other, log.kernel(2)).unwrap();
    let inside = HostKernel::new("inside", (), {
        let (control, log, number) = (control.clone(), log.clone(), other.number());
        move |()| {
            log.push(look(&control));
            control.release(number);
        }
    });
    device.launch(&stream, inside).unwrap();
    device.synchronize_stream(&other).unwrap();
    assert_eq!(log.entries(), [1, 2]);
}
