//! One pool per device and process.

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::Context;
use support::pools::*;
use support::{PATIENCE, eventually};
use tollgate_device::admission::Deadline;
use tollgate_device::backend::{Backend, DeviceUuid};
use tollgate_device::host::HostDevice;
use tollgate_device::{DevicePool, DeviceProfile, ExitPolicy, SharedError};

fn shared(device: &HostDevice, workers: u32) -> Result<Pool, SharedError> {
    DevicePool::builder(device.clone(), DeviceProfile::new(8, workers)).shared()
}

fn find(device: &HostDevice) -> Option<Pool> {
    DevicePool::find(device.info().uuid)
}

/// DEV-19
#[test]
fn the_same_width_is_the_same_pool_and_another_width_is_an_error_that_names_both() {
    let device = HostDevice::builder().build().unwrap();
    let first = shared(&device, 3).unwrap();
    let second = shared(&device, 3).unwrap();
    assert_eq!(first.id(), second.id());
    // a device is known by its uuid, whoever opened it
    let same = HostDevice::builder().uuid(device.info().uuid).build().unwrap();
    assert_eq!(shared(&same, 3).unwrap().id(), first.id());
    let error = shared(&device, 4).unwrap_err();
    let SharedError::Width { uuid, existing: 3, asked: 4 } = error else { panic!("{error}") };
    assert_eq!(uuid, device.info().uuid);
    assert!(error.to_string().ends_with("has a shared pool with 3 workers, not 4"), "{error}");
    let other = HostDevice::builder().build().unwrap();
    assert_ne!(shared(&other, 4).unwrap().id(), first.id());
    let own = DevicePool::builder(device.clone(), DeviceProfile::new(2, 5)).build().unwrap();
    assert_ne!(own.id(), first.id(), "one that is not shared is nobody else's business");
}

/// DEV-19
#[test]
fn a_pool_is_found_by_ordinal_and_by_uuid_while_it_is_open() {
    let device = HostDevice::builder().ordinal(4711).build().unwrap();
    let by_ordinal = || DevicePool::<HostDevice>::find(4711);
    assert!(find(&device).is_none() && by_ordinal().is_none());
    assert!(DevicePool::<HostDevice>::find(DeviceUuid([9; 16])).is_none());
    let pool = shared(&device, 2).unwrap();
    assert_eq!(find(&device).unwrap().id(), pool.id());
    assert_eq!(by_ordinal().unwrap().id(), pool.id());
    pool.close();
    assert!(find(&device).is_none() && by_ordinal().is_none(), "a closed one is never returned");
}

/// DEV-19
#[test]
fn a_closed_pool_is_never_returned_and_another_comes_once_its_threads_have_ended() {
    let device = HostDevice::builder().build().unwrap();
    let first = shared(&device, 2).unwrap();
    first.close();
    for workers in [2, 3] {
        let error = shared(&device, workers).unwrap_err();
        assert!(matches!(error, SharedError::Ending { .. }), "{error}");
    }
    shut_down(&first);
    let second = shared(&device, 3).expect("of any width");
    assert_ne!(first.id(), second.id());
    assert!(matches!(shared(&device, 2).unwrap_err(), SharedError::Width { existing: 3, .. }));
    assert_eq!(get(second.job("j").run(async { 1 })).unwrap(), 1);
}

/// DEV-19
#[test]
fn once_the_last_handle_is_gone_another_comes_when_the_old_threads_have_ended() {
    let device = HostDevice::builder().build().unwrap();
    let first = shared(&device, 2).unwrap();
    let (id, door) = (first.id(), Door::new());
    let held = first.job("held").spawn(door.pass()).unwrap();
    door.wait();
    drop(first);
    assert!(find(&device).is_none());
    assert!(matches!(shared(&device, 2).unwrap_err(), SharedError::Ending { .. }));
    door.open();
    get(held).unwrap();
    let mut second = None;
    eventually("another one can be had", || {
        second = shared(&device, 3).ok();
        second.is_some()
    });
    assert_ne!(second.unwrap().id(), id);
}

/// DEV-19
#[test]
fn a_pool_that_can_not_be_built_leaves_nothing() {
    let device = HostDevice::builder().build().unwrap();
    let error = shared(&device, 1).unwrap_err();
    assert!(matches!(error, SharedError::Build(_)), "{error}");
    shared(&device, 2).unwrap();
}

/// DEV-19
#[test]
fn no_lock_is_held_around_code_of_users_while_a_shared_pool_is_asked_for() {
    let (tell, told) = channel();
    let done = tell.clone();
    std::thread::spawn(move || {
        let device = HostDevice::builder().build().unwrap();
        let own = device.clone();
        let asks = OnDrop(move || assert!(find(&own).is_none()));
        let policy = ExitPolicy::wait().on_leak(move |_| {
            let _captured = &asks;
        });
        let profile = DeviceProfile::new(4, 1);
        let refused = DevicePool::builder(device, profile).exit(policy).shared();
        tell.send(refused.is_err()).unwrap();
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "what a policy has captured asks for a pool");
    // the thread that ends a pool calls wakers, and a new one is not built before it has ended
    std::thread::spawn(move || {
        let device = HostDevice::builder().build().unwrap();
        let (first, own) = (shared(&device, 2).unwrap(), device.clone());
        let (woken, wakes) = channel();
        let asked = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&asked);
        let waker = waker(move || {
            woken.send(()).unwrap();
            eventually("another is asked for", || asks.load(Ordering::SeqCst));
            for _ in 0..1000 {
                assert!(find(&own).is_none());
                std::thread::yield_now();
            }
        });
        // there is no event, so this is woken when the pool has ended and not before
        let mut events = first.events();
        let mut end = events.recv();
        assert!(Pin::new(&mut end).poll(&mut Context::from_waker(&waker)).is_pending());
        first.close();
        first.request_exit().unwrap();
        wakes.recv().unwrap();
        asked.store(true, Ordering::SeqCst);
        done.send(shared(&device, 2).is_ok()).unwrap();
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "a waker asks for a pool");
}

/// DEV-19
#[test]
fn all_who_ask_at_once_get_the_same_pool() {
    for _ in 0..10 {
        let device = HostDevice::builder().build().unwrap();
        let start = Arc::new(Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (device, start) = (device.clone(), Arc::clone(&start));
                std::thread::spawn(move || {
                    start.wait();
                    shared(&device, 2).unwrap()
                })
            })
            .collect();
        let pools: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        assert!(pools.iter().all(|it| it.id() == pools[0].id()));
        let report = get(pools[0].shutdown(Deadline::after(PATIENCE)));
        assert!(report.complete);
    }
}

/// DEV-19
#[test]
fn handles_that_come_and_go_while_others_ask_never_meet_a_closed_pool() {
    let device = HostDevice::builder().build().unwrap();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let device = device.clone();
            std::thread::spawn(move || {
                let mut got = 0;
                while got < 40 {
                    match shared(&device, 2) {
                        Ok(pool) => {
                            got += 1;
                            assert_eq!(get(pool.job("j").run(async { 1 })).unwrap(), 1);
                            if let Some(found) = find(&device) {
                                get(found.job("j").run(async {})).unwrap();
                            }
                        }
                        Err(SharedError::Ending { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|it| it.join().unwrap());
}
