//! What is accepted: permits per class, attempts and what they lend, and the profile that all of it comes from.

mod support;

use std::time::Duration;
use support::pools::*;
use tollgate_device::admission::{AcquireError, Deadline};
use tollgate_device::host::HostDevice;
use tollgate_device::{
    Attempt, BuildError, Class, DeviceKind, DevicePool, DeviceProfile, MAX_WORKERS, Reason,
    Refused, Seats,
};

const SECOND: Duration = Duration::from_secs(1);

fn refuses(profile: DeviceProfile) -> BuildError {
    let device = HostDevice::builder().memory(1000).build().unwrap();
    DevicePool::builder(device, profile).build().expect_err("it was to be refused")
}

/// DEV-9
#[test]
fn capacities_come_from_the_profile() {
    let profile = DeviceProfile::new(3, 4)
        .auxiliary(2)
        .lifecycle_workers(2)
        .max_waiting(7)
        .managed_bytes(500)
        .cache_bytes(100);
    let device = HostDevice::builder().memory(1000).build().unwrap();
    let pool = DevicePool::builder(device, profile).build().unwrap();
    let it = pool.capacities();
    assert_eq!((it.attempts, it.auxiliary_per_attempt, it.auxiliary), (3, 2, 6));
    assert_eq!((it.workers, it.lifecycle_workers, it.max_waiting), (4, 2, 7));
    assert_eq!((it.managed_bytes, it.cache_bytes), (500, 100));
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.capacities, it);
    let capacity = |class| snapshot.class(class).unwrap().capacity;
    let capacities = [Class::Root, Class::Auxiliary, Class::Release].map(capacity);
    assert_eq!(capacities, [3, 6, 3], "A, A x S, and one cleanup per attempt");
    assert_idle(&pool);
}

/// DEV-9
#[test]
fn what_a_profile_does_not_say_is_the_least_that_works() {
    let device = HostDevice::builder().memory(1000).build().unwrap();
    let pool = DevicePool::builder(device, DeviceProfile::new(5, 2)).build().unwrap();
    let it = pool.capacities();
    assert_eq!((it.auxiliary, it.lifecycle_workers, it.max_waiting), (5, 1, 5));
    assert_eq!((it.managed_bytes, it.cache_bytes), (1000, 0));
}

/// DEV-4, DEV-9
#[test]
fn a_profile_that_can_not_work_is_refused_and_the_error_has_the_numbers() {
    let fine = DeviceProfile::new(1, 2);
    let error = refuses(DeviceProfile::new(0, 2));
    assert!(matches!(error, BuildError::ZeroAttempts), "{error}");
    let error = refuses(fine.auxiliary(0));
    assert!(matches!(error, BuildError::ZeroAuxiliary), "{error}");
    let error = refuses(fine.lifecycle_workers(0));
    assert!(matches!(error, BuildError::ZeroLifecycle), "{error}");
    for (workers, lifecycle) in [(0, 1), (1, 1), (2, 2), (2, u32::MAX), (MAX_WORKERS, MAX_WORKERS)]
    {
        let error = refuses(DeviceProfile::new(1, workers).lifecycle_workers(lifecycle));
        let BuildError::NoExecutionSeat { workers: w, lifecycle: l } = error else {
            panic!("{error}")
        };
        assert_eq!((w, l), (workers, lifecycle));
    }
    let error = refuses(DeviceProfile::new(1, MAX_WORKERS + 1));
    assert!(
        matches!(error, BuildError::Workers { asked, most: MAX_WORKERS } if asked == MAX_WORKERS + 1)
    );
    let error = refuses(fine.managed_bytes(1001));
    assert!(matches!(error, BuildError::ManagedBytes { asked: 1001, total: 1000 }), "{error}");
    let error = refuses(fine.managed_bytes(10).cache_bytes(11));
    assert!(matches!(error, BuildError::CacheBytes { asked: 11, managed: 10 }), "{error}");
    let error = builder(fine).events(0).build().unwrap_err();
    assert!(matches!(error, BuildError::ZeroEvents), "{error}");
    let text = refuses(DeviceProfile::new(1, 2).lifecycle_workers(3)).to_string();
    assert_eq!(
        text,
        "3 of 2 workers are kept for setup and cleanup, which leaves none for execution"
    );
}

/// DEV-9
#[test]
fn the_largest_numbers_make_a_pool_that_works() {
    let profile = DeviceProfile::new(u32::MAX, 2).auxiliary(u32::MAX).max_waiting(u32::MAX);
    let pool = pool(profile);
    assert_eq!(pool.capacities().auxiliary, u64::from(u32::MAX) * u64::from(u32::MAX));
    let attempt = admit(&pool);
    assert_eq!(get(attempt.job("one").run(async { 1 })).unwrap(), 1);
    let task = attempt.job("two").kind(DeviceKind::AUXILIARY).submit_blocking(|| 2).unwrap();
    assert_eq!(get(task).unwrap(), 2);
    drop(attempt);
    shut_down(&pool);
}

/// DEV-3
#[test]
fn a_full_class_refuses_every_kind_of_it_at_once_and_names_it() {
    let pool = pool(DeviceProfile::new(2, 2));
    let door = Door::new();
    let held = [0, 1].map(|_| pool.job("held").spawn(door.pass()).unwrap());
    let full = Refused::ClassFull { class: Class::Root, capacity: 2 };
    for kind in [DeviceKind::SETUP, DeviceKind::EXECUTION, DeviceKind::CLEANUP] {
        assert_eq!(refused(get(pool.job("one more").kind(kind).run(async {}))), full);
        assert_eq!(refused(pool.job("one more").kind(kind).spawn(async {})), full);
        assert_eq!(refused(pool.job("one more").kind(kind).submit_blocking(|| ())), full);
    }
    let root = pool.snapshot().class(Class::Root).unwrap().clone();
    assert_eq!((root.free, root.admitted, root.refused.busy), (0, 2, 9), "each is counted once");
    assert_eq!(root.refused.total(), 9);
    door.open();
    for task in held {
        get(task).unwrap();
    }
    get(pool.job("now").run(async {})).unwrap();
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn a_refusal_says_which_device_kind_and_class_and_that_nothing_ran() {
    let device = HostDevice::builder().ordinal(3).build().unwrap();
    let pool = DevicePool::builder(device, DeviceProfile::new(1, 2)).build().unwrap();
    let error = pool.job("aux").kind(DeviceKind::AUXILIARY).spawn(async {}).unwrap_err();
    assert_eq!(
        (error.device(), error.kind(), error.class()),
        (3, DeviceKind::AUXILIARY, Class::Auxiliary)
    );
    assert!(error.never_ran());
    assert_eq!(
        error.to_string(),
        "no result of a job of kind auxiliary (class auxiliary) on device 3: a job of class \
         auxiliary needs an attempt"
    );
}

/// DEV-3
#[test]
fn an_attempt_counts_once_through_its_setup_and_its_execution() {
    let pool = pool(DeviceProfile::new(1, 2));
    let attempt = admit(&pool);
    let full = Refused::ClassFull { class: Class::Root, capacity: 1 };
    for kind in [DeviceKind::SETUP, DeviceKind::EXECUTION, DeviceKind::CLEANUP] {
        assert_eq!(free(&pool, Class::Root), 0);
        let door = Door::new();
        let mut run = attempt.job("root").kind(kind).run(door.pass());
        start(&mut run);
        door.wait();
        assert_eq!(pool.snapshot().class(Class::Root).unwrap().admitted, 1, "it is lent");
        assert_eq!(refused(get(pool.job("direct").run(async {}))), full);
        door.open();
        get(run).unwrap();
    }
    assert_eq!(pool.snapshot().peak_attempts, 1);
    drop(attempt);
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn a_root_permit_is_lent_to_one_job_at_a_time_and_comes_back() {
    let pool = pool(DeviceProfile::new(2, 3));
    let attempt = admit(&pool);
    let door = Door::new();
    let mut first = attempt.job("first").run(door.pass());
    start(&mut first);
    door.wait();
    let id = pool.jobs()[0].id;
    let lent = Refused::RootLent { to: id };
    assert_eq!(refused(get(attempt.job("second").run(async {}))), lent);
    assert_eq!(refused(attempt.handle().job("blocking").submit_blocking(|| ())), lent);
    let other = admit(&pool);
    get(other.job("other").run(async {})).unwrap();
    // however it ends
    drop(first);
    settles_jobs(&pool);
    let panicked = reason(get(attempt.job("third").run(async { panic!("boom") })));
    assert!(matches!(panicked, Reason::Panicked(_)), "{panicked}");
    get(attempt.job("fourth").submit_blocking(|| ()).unwrap()).unwrap();
    get(attempt.job("fifth").run(async {})).unwrap();
    drop((attempt, other));
    assert_idle(&pool);
}

fn settles_jobs(pool: &Pool) {
    support::eventually("no job is left", || pool.jobs().is_empty());
}

/// DEV-3
#[test]
fn auxiliary_work_needs_an_attempt_whatever_it_is() {
    let pool = pool(DeviceProfile::new(2, 2));
    let none = Refused::NoAttempt { class: Class::Auxiliary };
    let setup = || pool.job("setup").kind(DeviceKind::SETUP).charge(Class::Auxiliary);
    let own = DeviceKind::new("scan", Class::Auxiliary, Seats::Execution);
    assert_eq!(refused(get(pool.job("scan").kind(own).run(async {}))), none);
    assert_eq!(refused(pool.job("scan").kind(own).submit_blocking(|| ())), none);
    assert_eq!(refused(setup().spawn(async {})), none);
    let auxiliary = pool.snapshot().class(Class::Auxiliary).unwrap().clone();
    assert_eq!((auxiliary.free, auxiliary.admitted), (2, 0));
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn no_attempt_has_more_than_its_share_and_none_has_less() {
    let pool = pool(DeviceProfile::new(2, 6).auxiliary(2));
    let (greedy, modest) = (admit(&pool), admit(&pool));
    let door = Door::new();
    let scan = |attempt: &Attempt| {
        let way = door.way();
        attempt.job("scan").kind(DeviceKind::AUXILIARY).submit_blocking(move || way.block())
    };
    let held = [scan(&greedy), scan(&greedy)];
    let full = Refused::ShareFull { share: 2 };
    assert_eq!(refused(scan(&greedy)), full);
    let async_one = greedy.job("scan").kind(DeviceKind::AUXILIARY).run(async {});
    assert_eq!(refused(get(async_one)), full);
    assert_eq!(free(&pool, Class::Auxiliary), 2, "the other's are not lent");
    let others = [scan(&modest), scan(&modest)];
    assert_eq!(refused(scan(&modest)), full);
    assert_eq!(free(&pool, Class::Auxiliary), 0);
    assert_eq!(pool.snapshot().class(Class::Auxiliary).unwrap().refused.busy, 3);
    door.open();
    for task in held.into_iter().chain(others) {
        get(task.unwrap()).unwrap();
    }
    get(scan(&greedy).unwrap()).unwrap();
    drop((greedy, modest));
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn a_later_setup_is_charged_to_the_auxiliary_slots_of_its_attempt() {
    let pool = pool(DeviceProfile::new(1, 3).auxiliary(1));
    let attempt = admit(&pool);
    let door = Door::new();
    let mut query = attempt.job("query").run(door.pass());
    start(&mut query);
    door.wait();
    let later = Door::new();
    let setup = || attempt.job("later").kind(DeviceKind::SETUP).charge(Class::Auxiliary);
    let mut run = setup().run(later.pass());
    start(&mut run);
    later.wait();
    assert_eq!(free(&pool, Class::Auxiliary), 0);
    assert_eq!(pool.snapshot().executing, 1, "a setup does not execute");
    assert_eq!(refused(get(setup().run(async {}))), Refused::ShareFull { share: 1 });
    later.open();
    get(run).unwrap();
    door.open();
    get(query).unwrap();
    drop(attempt);
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn nothing_but_the_end_of_an_attempt_is_charged_to_its_release() {
    let pool = pool(DeviceProfile::new(1, 2));
    let attempt = admit(&pool);
    let own = DeviceKind::new("free", Class::Release, Seats::Lifecycle);
    assert_eq!(refused(get(attempt.job("a").kind(own).run(async {}))), Refused::NotARelease);
    let charged = attempt.job("b").charge(Class::Release).submit_blocking(|| ());
    assert_eq!(refused(charged), Refused::NotARelease);
    drop(attempt);
    assert_eq!(refused(pool.job("c").charge(Class::Release).spawn(async {})), Refused::NotARelease);
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn every_refusal_is_counted_once_under_its_class() {
    let pool = pool(DeviceProfile::new(1, 2));
    let refusals = |class| pool.snapshot().class(class).unwrap().refused;
    let _ = pool.job("a").kind(DeviceKind::AUXILIARY).spawn(async {}).unwrap_err();
    assert_eq!(refusals(Class::Auxiliary).total(), 1, "no attempt");
    let _ = pool.job("b").charge(Class::Release).spawn(async {}).unwrap_err();
    assert_eq!(refusals(Class::Release).total(), 1, "not a release");
    let attempt = admit(&pool);
    let handle = attempt.handle();
    pool.close();
    let _ = get(handle.job("c").run(async {})).unwrap_err();
    assert_eq!(refusals(Class::Root).closed, 1, "closed, though the attempt has a permit to lend");
    pool.request_exit().unwrap();
    let _ = get(handle.job("d").run(async {})).unwrap_err();
    let _ = get(pool.job("e").run(async {})).unwrap_err();
    assert_eq!(refusals(Class::Root).closed, 3, "the runtime goes");
    let _ = attempt.release("f", async {}).unwrap_err();
    assert_eq!(refusals(Class::Release).total(), 2, "the runtime goes");
    shut_down(&pool);
}

/// DEV-3
#[test]
fn only_an_admission_waits_and_it_does_so_in_turn() {
    let pool = pool(DeviceProfile::new(1, 2));
    let first = admit(&pool);
    let (rings, bell) = Rings::new();
    let mut cx = std::task::Context::from_waker(&bell);
    let mut second = Box::pin(pool.admission());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert_eq!(pool.snapshot().waiting, 1);
    assert_eq!(rings.count(), 0);
    let late = get(async { pool.admission().await.map(drop) }).unwrap_err();
    assert!(matches!(late.cause(), AcquireError::QueueFull { max_waiting: 1, .. }), "{late}");
    let busy = pool.admission().try_admit().unwrap_err();
    assert!(matches!(busy.cause(), AcquireError::Busy { .. }), "{busy}");
    drop(first);
    assert_eq!(rings.count(), 1, "it was handed on");
    let busy = pool.admission().try_admit().unwrap_err();
    assert!(matches!(busy.cause(), AcquireError::Busy { .. }), "to whom it is handed on");
    let direct = refused(get(pool.job("direct").run(async {})));
    assert_eq!(direct, Refused::ClassFull { class: Class::Root, capacity: 1 });
    drop(get(second).unwrap());
    drop(pool.admission().try_admit().unwrap());
    assert_idle(&pool);
}

use std::future::Future;

/// DEV-3
#[test]
fn an_admission_waits_no_longer_than_its_deadline() {
    let (pool, time) = timed(DeviceProfile::new(1, 2));
    let held = admit(&pool);
    let mut waits =
        pool.admission().deadline(after(&time, 2 * SECOND)).deadline(after(&time, SECOND));
    let (rings, bell) = Rings::new();
    let mut cx = std::task::Context::from_waker(&bell);
    assert!(std::pin::Pin::new(&mut waits).poll(&mut cx).is_pending());
    time.advance(SECOND);
    assert_eq!(rings.count(), 1, "the pool keeps the time itself");
    let error = get(waits).unwrap_err();
    assert_eq!(error.device(), 0);
    assert!(matches!(error.cause(), AcquireError::Deadline { .. }), "{error}");
    drop(held);
    let past = get(pool.admission().deadline(after(&time, Duration::ZERO))).unwrap_err();
    assert!(matches!(past.cause(), AcquireError::Deadline { .. }), "also when it is free: {past}");
    drop(get(pool.admission().deadline(Deadline::after(Duration::MAX))).unwrap());
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn a_profile_without_waiting_refuses_an_admission_at_once() {
    let pool = pool(DeviceProfile::new(1, 2).max_waiting(0));
    let held = admit(&pool);
    let error = get(pool.admission()).unwrap_err();
    assert!(matches!(error.cause(), AcquireError::QueueFull { max_waiting: 0, .. }), "{error}");
    drop(held);
    drop(admit(&pool));
    assert_idle(&pool);
}

/// DEV-3
#[test]
fn an_admission_given_up_at_any_point_leaves_nothing() {
    let pool = pool(DeviceProfile::new(1, 2));
    drop(pool.admission());
    assert_eq!(pool.snapshot().class(Class::Root).unwrap().admitted, 0, "it was never polled");
    // while it waits for a root permit
    let attempt = admit(&pool);
    let mut waits = pool.admission();
    start(&mut waits);
    drop(waits);
    assert_eq!(pool.snapshot().waiting, 0);
    // once it was handed one, unseen
    let mut waits = pool.admission();
    start(&mut waits);
    drop(attempt);
    drop(waits);
    assert_idle(&pool);
    // with a root permit, waiting for the cleanup of the last attempt
    let door = Door::new();
    let cleanup = admit(&pool).release("slow", door.pass()).unwrap();
    door.wait();
    let mut waits = pool.admission();
    start(&mut waits);
    assert_eq!(free(&pool, Class::Root), 0);
    drop(waits);
    assert_eq!((free(&pool, Class::Root), pool.snapshot().waiting), (1, 0));
    // once it was handed both, unseen
    let mut waits = pool.admission();
    start(&mut waits);
    door.open();
    get(cleanup).unwrap();
    drop(waits);
    assert_idle(&pool);
    shut_down(&pool);
}

/// DEV-3, DEV-17
#[test]
fn whoever_waits_to_be_admitted_is_told_when_the_pool_closes() {
    let pool = pool(DeviceProfile::new(2, 2));
    let door = Door::new();
    let cleanups: Vec<_> = [0, 1]
        .map(|_| admit(&pool))
        .into_iter()
        .map(|it| it.release("slow", door.pass()).unwrap())
        .collect();
    door.wait();
    let (rings, bell) = Rings::new();
    let mut cx = std::task::Context::from_waker(&bell);
    // two with a root permit, and two without
    let mut waits: Vec<_> = (0..4).map(|_| Box::pin(pool.admission())).collect();
    waits.iter_mut().for_each(|it| assert!(it.as_mut().poll(&mut cx).is_pending()));
    pool.close();
    assert_eq!(rings.count(), 4);
    for wait in waits {
        let error = get(wait).unwrap_err();
        assert!(matches!(error.cause(), AcquireError::Closed { .. }), "{error}");
    }
    assert_eq!(free(&pool, Class::Root), 2);
    door.open();
    cleanups.into_iter().for_each(|it| get(it).unwrap());
    shut_down(&pool);
}

/// DEV-3
#[test]
fn an_attempt_that_is_over_takes_no_more_and_counts_until_its_last_job_has_ended() {
    let pool = pool(DeviceProfile::new(1, 3));
    let attempt = admit(&pool);
    let under = attempt.handle();
    let door = Door::new();
    let mut root = under.job("root").run(door.pass());
    let way = door.way();
    let scan =
        under.job("scan").kind(DeviceKind::AUXILIARY).submit_blocking(move || way.block()).unwrap();
    start(&mut root);
    door.wait_for(2);
    drop(attempt);
    for kind in [DeviceKind::EXECUTION, DeviceKind::AUXILIARY] {
        assert_eq!(refused(get(under.job("late").kind(kind).run(async {}))), Refused::AttemptOver);
        let late = under.job("late").kind(kind).submit_blocking(|| ());
        assert_eq!(refused(late), Refused::AttemptOver);
    }
    assert_eq!((pool.snapshot().attempts, free(&pool, Class::Root)), (1, 0));
    door.open();
    get(root).unwrap();
    get(scan).unwrap();
    assert_idle(&pool);
    // its place may be another's by now
    let next = admit(&pool);
    assert_eq!(refused(get(under.job("later").run(async {}))), Refused::AttemptOver);
    drop(next);
    assert_idle(&pool);
}

/// DEV-3
/// G11
#[test]
fn what_an_attempt_needs_does_not_queue_behind_those_who_wait_for_the_attempt() {
    let pool = pool(DeviceProfile::new(1, 2).max_waiting(3));
    let attempt = admit(&pool);
    let mut waits: Vec<_> = (0..3).map(|_| pool.admission()).collect();
    waits.iter_mut().for_each(start);
    let under = attempt.handle();
    let sum = get(attempt.job("query").run(async move {
        let scan = under.job("scan").kind(DeviceKind::AUXILIARY).run(async { 20 });
        let setup = under.job("more").kind(DeviceKind::SETUP).charge(Class::Auxiliary);
        scan.await.unwrap() + setup.run(async { 1 }).await.unwrap()
    }));
    assert_eq!(sum.unwrap(), 21);
    get(attempt.job("again").run(async {})).unwrap();
    assert_eq!(pool.snapshot().waiting, 3);
    get(attempt.release("free", async {}).unwrap()).unwrap();
    for wait in waits {
        drop(get(wait).unwrap());
    }
    shut_down(&pool);
}
