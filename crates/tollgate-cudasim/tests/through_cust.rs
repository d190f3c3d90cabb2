//! Programs that use cust run, and are none the wiser.
#![expect(unsafe_code, reason = "half of cust is")]

use cust::context::{Context, CurrentContext, ResourceLimit};
use cust::device::{Device, DeviceAttribute};
use cust::error::CudaError;
use cust::event::{Event, EventFlags, EventStatus};
use cust::function::{BlockSize, GridSize};
use cust::memory::{
    AsyncCopyDestination, CopyDestination, DeviceBox, DeviceBuffer, LockedBuffer, UnifiedBuffer,
    mem_get_info,
};
use cust::module::Module;
use cust::stream::{Stream, StreamFlags, StreamWaitEventFlags};
use std::ffi::CString;
use std::sync::mpsc;
use tollgate_cudasim::{Code, Setup, Simulation, register_kernel};

/// With one device, and its primary context on this thread.
fn start() -> (Simulation, Context) {
    let sim = Simulation::start(Setup::new());
    let context = cust::quick_init().unwrap();
    (sim, context)
}

fn stream() -> Stream {
    Stream::new(StreamFlags::NON_BLOCKING, None).unwrap()
}

#[test]
fn devices_say_what_they_are() {
    let _sim = Simulation::start(Setup::new().devices(3).memory(64 << 20));
    assert_eq!(Device::num_devices(), Err(CudaError::NotInitialized));
    cust::init(cust::CudaFlags::empty()).unwrap();
    assert_eq!(Device::num_devices(), Ok(3));
    assert_eq!(Device::get_device(3).unwrap_err(), CudaError::InvalidDevice);
    let device = Device::get_device(2).unwrap();
    assert_eq!(device.name().unwrap(), "Simulated Device 2");
    assert_eq!(device.total_memory().unwrap(), 64 << 20);
    assert_eq!(device.get_attribute(DeviceAttribute::WarpSize), Ok(32));
    assert_eq!(device.get_attribute(DeviceAttribute::ComputeCapabilityMajor), Ok(8));
}

#[test]
fn a_context_has_its_limits_and_its_thread() {
    let (sim, _context) = start();
    let old = CurrentContext::get_resource_limit(ResourceLimit::StackSize).unwrap();
    CurrentContext::set_resource_limit(ResourceLimit::StackSize, old * 2).unwrap();
    assert_eq!(CurrentContext::get_resource_limit(ResourceLimit::StackSize), Ok(old * 2));
    let range = CurrentContext::get_stream_priority_range().unwrap();
    assert_eq!((range.least, range.greatest), (0, -5));
    std::thread::spawn(|| assert!(CurrentContext::get_device().is_err())).join().unwrap();
    assert_eq!(sim.misuses().len(), 1, "a thread without a context asked for its device");
}

#[test]
fn what_is_copied_there_comes_back() {
    let (sim, context) = start();
    let numbers: Vec<u32> = (0..1000).collect();
    let buffer = DeviceBuffer::from_slice(&numbers).unwrap();
    let mut copy = DeviceBuffer::from_slice(&vec![0_u32; 1000]).unwrap();
    buffer.copy_to(&mut copy).unwrap();
    assert_eq!(copy.as_host_vec().unwrap(), numbers);
    let mut boxed = DeviceBox::new(&5_u64).unwrap();
    boxed.copy_from(&7).unwrap();
    assert_eq!(boxed.as_host_value().unwrap(), 7);
    let (free, total) = mem_get_info().unwrap();
    assert_eq!(total - free, 8008);
    drop((buffer, copy, boxed));
    assert_eq!(mem_get_info().unwrap().0, total);
    drop(context);
    assert_eq!(sim.stats().contexts, 0);
}

#[test]
fn fills_write_each_element() {
    let (_sim, _context) = start();
    let buffer = DeviceBuffer::from_slice(&[0_u32; 8]).unwrap();
    buffer.index(2..6).set_32(0xdead_beef).unwrap();
    let expected = [0, 0, 0xdead_beef, 0xdead_beef, 0xdead_beef, 0xdead_beef, 0, 0];
    assert_eq!(buffer.as_host_vec().unwrap(), expected);
    let zeroed = DeviceBuffer::<u64>::zeroed(4).unwrap();
    assert_eq!(zeroed.as_host_vec().unwrap(), [0; 4]);
}

#[test]
fn a_stalled_stream_holds_what_comes_after_it_and_nothing_else() {
    let (sim, _context) = start();
    let (first, second) = (stream(), stream());
    let event = Event::new(EventFlags::DEFAULT).unwrap();
    sim.stall(first.as_inner() as usize, true);
    let source = LockedBuffer::new(&3_u8, 64).unwrap();
    let mut target = DeviceBuffer::from_slice(&[0_u8; 64]).unwrap();
    let mut other = DeviceBuffer::from_slice(&[0_u8; 64]).unwrap();
    // SAFETY: all of it lives until the streams are synchronised.
    unsafe { target.async_copy_from(&source, &first) }.unwrap();
    event.record(&first).unwrap();
    // SAFETY: as above.
    unsafe { other.async_copy_from(&source, &second) }.unwrap();
    second.synchronize().unwrap();
    assert_eq!(event.query(), Ok(EventStatus::NotReady));
    sim.stall(first.as_inner() as usize, false);
    event.synchronize().unwrap();
    assert_eq!(event.query(), Ok(EventStatus::Ready));
    assert_eq!(target.as_host_vec().unwrap(), [3; 64]);
    assert_eq!(other.as_host_vec().unwrap(), [3; 64]);
}

#[test]
fn a_stream_waits_for_the_event_of_another_one() {
    let (sim, _context) = start();
    let (first, second) = (stream(), stream());
    let mut host = LockedBuffer::new(&0_u8, 16).unwrap();
    let ones = LockedBuffer::new(&1_u8, 16).unwrap();
    let mut buffer = DeviceBuffer::from_slice(&[0_u8; 16]).unwrap();
    sim.stall(first.as_inner() as usize, true);
    let event = Event::new(EventFlags::DISABLE_TIMING).unwrap();
    // SAFETY: all of it lives until the second stream is synchronised, which comes after the first.
    unsafe { buffer.async_copy_from(&ones, &first) }.unwrap();
    event.record(&first).unwrap();
    second.wait_event(event, StreamWaitEventFlags::DEFAULT).unwrap();
    // SAFETY: as above.
    unsafe { buffer.async_copy_to(&mut host, &second) }.unwrap();
    sim.stall(first.as_inner() as usize, false);
    second.synchronize().unwrap();
    assert_eq!(&*host, [1; 16]);
}

#[test]
fn callbacks_come_in_the_order_of_their_stream() {
    let (_sim, _context) = start();
    let stream = stream();
    let (send, receive) = mpsc::channel();
    for number in 0..100 {
        let send = send.clone();
        stream.add_callback(Box::new(move || send.send(number).unwrap())).unwrap();
    }
    drop(send);
    let expected: Vec<_> = (0..100).collect();
    assert_eq!(receive.iter().collect::<Vec<_>>(), expected);
    stream.synchronize().unwrap();
}

#[test]
fn events_tell_the_time_between_them() {
    let (_sim, _context) = start();
    let stream = stream();
    let (start, end) =
        (Event::new(EventFlags::DEFAULT).unwrap(), Event::new(EventFlags::DEFAULT).unwrap());
    start.record(&stream).unwrap();
    stream.add_callback(Box::new(|| ())).unwrap();
    end.record(&stream).unwrap();
    end.synchronize().unwrap();
    assert!(end.elapsed_time_f32(&start).unwrap() >= 0.0);
    let untimed = Event::new(EventFlags::DISABLE_TIMING).unwrap();
    untimed.record(&stream).unwrap();
    untimed.synchronize().unwrap();
    assert_eq!(untimed.elapsed_time_f32(&start), Err(CudaError::InvalidHandle));
}

#[test]
fn managed_memory_is_the_hosts_and_the_devices() {
    let (_sim, _context) = start();
    let mut unified = UnifiedBuffer::new(&1_u16, 10).unwrap();
    unified[3] = 7;
    let mut device = DeviceBuffer::from_slice(&[0_u16; 10]).unwrap();
    device.copy_from(unified.as_slice()).unwrap();
    assert_eq!(device.as_host_vec().unwrap(), [1, 1, 1, 7, 1, 1, 1, 1, 1, 1]);
}

const PTX: &str = "
.version 7.8
.target sm_52
.address_size 64
.visible .global .align 4 .u32 offset = 10;
.visible .entry add_all(.param .u64 .ptr .align 4 values, .param .u64 count, .param .u32 by) { ret; }
.visible .entry fault_there(.param .u64 at) { ret; }
";

fn kernels() {
    register_kernel("add_all", |launch| {
        let (values, count, by): (u64, u64, u32) =
            (launch.argument(0)?, launch.argument(1)?, launch.argument(2)?);
        let mut all = launch.read::<u32>(values, count as usize)?;
        all.iter_mut().for_each(|it| *it += by);
        launch.write(values, &all)
    });
    register_kernel("fault_there", |launch| launch.read::<u8>(launch.argument(0)?, 1).map(drop));
}

#[test]
fn a_kernel_of_a_module_is_the_function_with_its_name() {
    let (_sim, _context) = start();
    kernels();
    let module = Module::from_ptx(PTX, &[]).unwrap();
    assert!(module.get_function("subtract").is_err());
    let function = module.get_function("add_all").unwrap();
    let buffer = DeviceBuffer::from_slice(&[1_u32, 2, 3]).unwrap();
    let stream = stream();
    let (pointer, count) = (buffer.as_device_ptr(), buffer.len());
    // SAFETY: what the function is told is there.
    unsafe {
        let (grid, block) = (GridSize::x(1), BlockSize::x(3));
        cust::launch!(function<<<grid, block, 0, stream>>>(pointer, count, 40_u32)).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(buffer.as_host_vec().unwrap(), [41, 42, 43]);

    let name = CString::new("offset").unwrap();
    let mut symbol = module.get_global::<u32>(&name).unwrap();
    let mut value = 0;
    symbol.copy_to(&mut value).unwrap();
    assert_eq!(value, 10);
    symbol.copy_from(&12).unwrap();
    symbol.copy_to(&mut value).unwrap();
    assert_eq!(value, 12);
}

#[test]
fn a_kernel_that_faults_takes_its_context_with_it_until_the_reset() {
    let (sim, context) = start();
    kernels();
    let module = Module::from_ptx(PTX, &[]).unwrap();
    let function = module.get_function("fault_there").unwrap();
    let stream = stream();
    // SAFETY: it faults, which is what is looked at.
    unsafe { cust::launch!(function<<<1, 1, 0, stream>>>(0x30_u64)).unwrap() };
    assert_eq!(stream.synchronize(), Err(CudaError::IllegalAddress));
    assert_eq!(DeviceBuffer::<u8>::zeroed(1).unwrap_err(), CudaError::IllegalAddress);
    let device = Device::get_device(0).unwrap();
    // they are gone with what was reset
    std::mem::forget((module, stream, context));
    // SAFETY: nobody uses what it had any more.
    unsafe { Context::reset(&device) }.unwrap();
    let fresh = Context::new(device).unwrap();
    assert_eq!(DeviceBuffer::<u8>::zeroed(1).map(drop), Ok(()));
    drop(fresh);
    assert!(sim.misuses().is_empty());
}

#[test]
fn memory_that_there_is_not_is_refused() {
    let _sim = Simulation::start(Setup::new().memory(1 << 20));
    let _context = cust::quick_init().unwrap();
    let half = DeviceBuffer::<u8>::zeroed(1 << 19).unwrap();
    let error = DeviceBuffer::<u8>::zeroed((1 << 19) + 1).unwrap_err();
    assert_eq!(error, CudaError::OutOfMemory);
    drop(half);
    assert!(DeviceBuffer::<u8>::zeroed((1 << 19) + 1).is_ok());
}

#[test]
fn a_planned_failure_is_what_cust_gets() {
    let _sim = Simulation::start(Setup::new().fail("cuStreamCreateWithPriority", 2, Code(719)));
    let _context = cust::quick_init().unwrap();
    let first = stream();
    assert_eq!(Stream::new(StreamFlags::NON_BLOCKING, None).unwrap_err(), CudaError::LaunchFailed);
    first.synchronize().unwrap();
}
