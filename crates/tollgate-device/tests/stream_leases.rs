//! Streams on lease and completions, on the host device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tollgate_device::backend::{Backend, Cause, ErrorClass};
use tollgate_device::host::{FaultPlan, HostControl, HostDevice, HostKernel, HostStream};
use tollgate_device::stream::{StreamLeaseError, StreamPool, StreamPoolError};

const PATIENCE: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(2);

fn device_with(plan: FaultPlan) -> HostDevice {
    let device = HostDevice::builder().engines(4).faults(plan).build().expect("a host device");
    device.bind().expect("the device is well");
    device
}

fn device() -> HostDevice {
    device_with(FaultPlan::new())
}

fn pool(device: &HostDevice, streams: u32) -> StreamPool<HostDevice> {
    let builder = StreamPool::builder(device.clone()).streams(streams).spin(Duration::ZERO);
    builder.watchdog(PERIOD).build().expect("a pool of streams")
}

/// Work that goes on until the sender is dropped or sends.
fn gate() -> (mpsc::Sender<()>, HostKernel) {
    let (open, opened) = mpsc::channel::<()>();
    (
        open,
        HostKernel::new("gate", (), move |()| {
            let _ = opened.recv();
        }),
    )
}

/// Tells when it is dropped.
struct Tell(mpsc::Sender<&'static str>, &'static str);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < PATIENCE, "it did not come about");
        std::thread::yield_now();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    futures_lite::future::block_on(future)
}

/// The device was looked at this often since, by the thread of the pool.
fn queries(control: &HostControl) -> u64 {
    let calls = control.stats().calls;
    calls.get(&tollgate_device::backend::Operation::QueryEvent).copied().unwrap_or(0)
}

/// DEV-12, G1
#[test]
fn what_a_lease_holds_lives_until_the_device_has_passed_the_work_although_the_lease_is_gone() {
    let device = device();
    let streams = pool(&device, 2);
    let (tell, told) = mpsc::channel();
    let mut lease = streams.try_lease(0).unwrap();
    let (open, kernel) = gate();
    device.launch(&lease, kernel).unwrap();
    lease.hold(Tell(tell, "held"));
    drop(lease);
    let stats = streams.stats();
    assert_eq!((stats.leased, stats.parked, stats.held), (0, 1, 1));
    assert!(told.try_recv().is_err(), "the device still uses it");
    drop(open);
    assert_eq!(told.recv_timeout(PATIENCE), Ok("held"));
    until(|| streams.stats().parked == 0);
    assert_eq!((streams.stats().held, streams.stats().streams), (0, 1));
}

/// DEV-12
#[test]
fn a_stream_is_used_again_only_after_the_device_has_passed_it() {
    let device = device();
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    let number = lease.number();
    let (open, kernel) = gate();
    device.launch(&lease, kernel).unwrap();
    drop(lease);
    assert!(matches!(streams.try_lease(0), Err(StreamLeaseError::Busy(_))));
    drop(open);
    let again = block_on(streams.lease(0)).unwrap();
    assert_eq!(again.number(), number);
}

/// DEV-12
#[test]
fn one_stuck_stream_delays_the_cleanup_of_no_other() {
    let device = device();
    let streams = pool(&device, 3);
    let (tell, told) = mpsc::channel();
    let stuck = streams.try_lease(0).unwrap();
    device.control().stall(stuck.number());
    device.launch(&stuck, HostKernel::new("never", (), |()| {})).unwrap();
    drop(stuck);
    for _ in 0..20 {
        let mut lease = block_on(streams.lease(0)).unwrap();
        device.launch(&lease, HostKernel::new("work", (), |()| {})).unwrap();
        lease.hold(Tell(tell.clone(), "held"));
        drop(lease);
        assert_eq!(told.recv_timeout(PATIENCE), Ok("held"));
    }
    until(|| streams.stats().parked == 1);
}

/// DEV-12
#[test]
fn what_is_retired_goes_when_the_device_has_passed_the_point_and_the_lease_goes_on() {
    let device = device();
    let streams = pool(&device, 1);
    let (tell, told) = mpsc::channel();
    let lease = streams.try_lease(0).unwrap();
    lease.retire(Tell(tell.clone(), "first"));
    assert_eq!(told.recv_timeout(PATIENCE), Ok("first"));
    let (open, kernel) = gate();
    device.launch(&lease, kernel).unwrap();
    lease.retire(Tell(tell, "second"));
    assert!(told.try_recv().is_err());
    drop(open);
    assert_eq!(told.recv_timeout(PATIENCE), Ok("second"));
}

/// DEV-12
#[test]
fn streams_are_bounded_and_who_waits_is_served_in_order() {
    let device = device();
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    let (served, order) = mpsc::channel();
    let waits: Vec<_> = (0..3)
        .map(|number| {
            let (pool, device, served) = (streams.clone(), device.clone(), served.clone());
            let thread = std::thread::spawn(move || {
                device.bind().unwrap();
                let lease = block_on(pool.lease(0)).unwrap();
                served.send(number).unwrap();
                drop(lease);
            });
            until(|| streams.stats().waiting > number);
            thread
        })
        .collect();
    assert_eq!(streams.stats().streams, 1);
    drop(lease);
    assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    waits.into_iter().for_each(|thread| thread.join().unwrap());
}

/// DEV-12, G15
#[test]
fn a_priority_that_the_device_does_not_have_is_refused_with_the_range() {
    let device = device();
    let streams = pool(&device, 1);
    let Err(StreamLeaseError::Driver(error)) = streams.try_lease(7) else { panic!("no such one") };
    assert!(matches!(error.cause(), Cause::Priority { asked: 7, .. }));
    let lease = streams.try_lease(-5).unwrap();
    let stream: &HostStream = &lease;
    assert_eq!(stream.priority(), -5);
    drop(lease);
    // one of another priority takes the place of the idle one
    assert_eq!(streams.try_lease(0).unwrap().priority(), 0);
    assert_eq!(streams.stats().streams, 1);
}

/// DEV-12, G8
#[test]
fn a_lease_may_be_dropped_on_a_thread_to_which_no_device_is_bound() {
    let device = device();
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    std::thread::spawn(move || drop(lease)).join().unwrap();
    assert!(block_on(streams.lease(0)).is_ok());
    let unbound = streams.clone();
    let refused = std::thread::spawn(move || block_on(unbound.lease(0)).map(drop));
    let error = refused.join().unwrap().expect_err("it would have to create or query one");
    assert!(
        matches!(error, StreamLeaseError::Driver(error) if matches!(error.cause(), Cause::NotBound { .. }))
    );
    assert!(streams.try_lease(0).is_ok(), "nothing is lost by that");
}

/// DEV-13
#[test]
fn ten_thousand_completions_are_awaited_with_one_thread() {
    let device = device();
    let streams = pool(&device, 4);
    let leases: Vec<_> = (0..4).map(|_| streams.try_lease(0).unwrap()).collect();
    let gates: Vec<_> = leases
        .iter()
        .map(|lease| {
            let (open, kernel) = gate();
            device.launch(lease, kernel).unwrap();
            open
        })
        .collect();
    let completions: Vec<_> =
        (0..10_000).map(|number| leases[number % leases.len()].completion()).collect();
    assert_eq!(streams.stats().pending, 10_000);
    drop(gates);
    for completion in completions {
        block_on(completion).unwrap();
    }
    until(|| streams.stats().pending == 0);
}

/// DEV-13, G4
#[test]
fn a_fault_wakes_the_waiter_although_the_driver_never_calls_back() {
    let device = device_with(FaultPlan::new().never_notify(..));
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    block_on(lease.completion()).expect("the device is asked though the driver is silent");
    let (open, kernel) = gate();
    device.launch(&lease, kernel).unwrap();
    let completion = lease.completion();
    device.control().fault("an uncorrectable error");
    let error = block_on(completion).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Sticky);
    drop(open);
}

/// DEV-13, G5
#[test]
fn a_callback_after_a_fault_is_not_taken_for_success() {
    let device = device_with(FaultPlan::new().notify_despite_faults());
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    device.launch(&lease, HostKernel::new("breaks", (), |()| panic!("broken"))).unwrap();
    let completion = lease.completion();
    assert_eq!(block_on(completion).unwrap_err().class(), ErrorClass::Sticky);
}

/// DEV-13
#[test]
fn the_loss_of_the_device_wakes_all_who_wait() {
    let device = device();
    let streams = pool(&device, 2);
    let (one, two) = (streams.try_lease(0).unwrap(), streams.try_lease(0).unwrap());
    let control = device.control();
    control.stall(one.number());
    device.launch(&one, HostKernel::new("never", (), |()| {})).unwrap();
    let waits: Vec<_> = (0..8).map(|_| one.completion()).collect();
    control.lose();
    for wait in waits {
        assert_eq!(block_on(wait).unwrap_err().class(), ErrorClass::DeviceLost);
    }
    assert_eq!(block_on(two.completion()).unwrap_err().class(), ErrorClass::DeviceLost);
    drop((one, two));
    until(|| streams.stats().streams == 0);
    assert_eq!(streams.stats().parked, 0);
}

/// DEV-13
#[test]
fn a_completion_of_before_a_reset_ends_and_streams_are_made_anew() {
    let device = device();
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    device.control().stall(lease.number());
    device.launch(&lease, HostKernel::new("never", (), |()| {})).unwrap();
    let completion = lease.completion();
    device.reset().unwrap();
    device.bind().unwrap();
    assert!(block_on(completion).is_err());
    drop(lease);
    let lease = block_on(streams.lease(0)).unwrap();
    block_on(lease.completion()).unwrap();
}

/// DEV-13
#[test]
fn nothing_is_asked_of_a_device_while_nobody_waits() {
    let device = device();
    let streams = pool(&device, 1);
    let lease = streams.try_lease(0).unwrap();
    block_on(lease.completion()).unwrap();
    until(|| streams.stats().pending == 0);
    let before = queries(&device.control());
    // some periods, by a device that is asked in each
    let other = self::device();
    let clock = pool(&other, 1);
    let stuck = clock.try_lease(0).unwrap();
    other.control().stall(stuck.number());
    other.launch(&stuck, HostKernel::new("never", (), |()| {})).unwrap();
    let _ticks = stuck.completion();
    until(|| queries(&other.control()) > 5);
    assert_eq!(queries(&device.control()), before);
}

/// DEV-12, DEV-13
#[test]
fn the_last_handle_ends_the_thread_once_what_is_parked_has_passed() {
    let device = device();
    let control = device.control();
    let streams = pool(&device, 1);
    let dropped = Arc::new(AtomicBool::new(false));
    let mut lease = streams.try_lease(0).unwrap();
    let (open, kernel) = gate();
    device.launch(&lease, kernel).unwrap();
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    lease.hold(Flag(Arc::clone(&dropped)));
    drop(streams);
    drop(lease);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(open);
    device.unbind();
    drop(device);
    assert!(control.wait_ended(PATIENCE), "the pool's thread lets go of the device");
    assert!(dropped.load(Ordering::SeqCst));
}

/// DEV-12
#[test]
fn a_pool_without_streams_or_a_watchdog_without_a_period_is_refused() {
    let device = device();
    let none = StreamPool::builder(device.clone()).streams(0).build();
    assert_eq!(none.map(drop), Err(StreamPoolError::NoStreams));
    let still = StreamPool::builder(device).watchdog(Duration::ZERO).build();
    assert_eq!(still.map(drop), Err(StreamPoolError::NoPeriod));
}
