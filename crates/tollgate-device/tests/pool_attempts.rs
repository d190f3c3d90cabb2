//! How attempts end: the cleanup that can't be refused, and what it frees.

mod support;

use std::sync::mpsc::channel;
use support::pools::*;
use support::{Alive, PATIENCE};
use tollgate_device::admission::{Closed, Deadline};
use tollgate_device::{
    Class, DeviceKind, DeviceProfile, EventKind, Outcome, Phase, Reason, Refused,
};

/// DEV-8
#[test]
fn cleanup_is_accepted_while_every_other_permit_is_out() {
    let pool = pool(DeviceProfile::new(3, 2).auxiliary(2).max_waiting(9));
    let door = Door::new();
    let attempts = [0, 1, 2].map(|_| admit(&pool));
    let mut held = Vec::new();
    for attempt in &attempts {
        for kind in [DeviceKind::EXECUTION, DeviceKind::AUXILIARY, DeviceKind::AUXILIARY] {
            let way = door.way();
            held.push(attempt.job("held").kind(kind).submit_blocking(move || way.block()).unwrap());
        }
    }
    let way = door.way();
    let full = refused(pool.job("no").run(async move { way.block() }).await_here());
    assert_eq!(full, Refused::ClassFull { class: Class::Root, capacity: 3 });
    let mut waits: Vec<_> = (0..9).map(|_| pool.admission()).collect();
    waits.iter_mut().for_each(start);
    for attempt in attempts {
        get(attempt.release("free", Yield(2)).unwrap()).unwrap();
    }
    assert_eq!(pool.snapshot().attempts, 3, "they have jobs that have not ended");
    door.open();
    held.into_iter().for_each(|it| get(it).unwrap());
    drop(waits);
    settles(&pool);
    shut_down(&pool);
}

trait AwaitHere: Future + Sized {
    fn await_here(self) -> Self::Output {
        get(self)
    }
}
impl<F: Future> AwaitHere for F {}

use std::future::Future;

/// DEV-8
#[test]
fn every_possible_attempt_has_a_cleanup_of_its_own() {
    let pool = pool(DeviceProfile::new(5, 2));
    let mut events = pool.events();
    let attempts = [(); 5].map(|()| admit(&pool));
    assert_eq!(free(&pool, Class::Release), 0, "from when it is admitted");
    let door = Door::new();
    let cleanups = attempts.map(|it| it.release("slow", door.pass()).unwrap());
    door.wait_for(2);
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (2, 3));
    assert_eq!((free(&pool, Class::Root), free(&pool, Class::Release)), (5, 0));
    let busy = pool.admission().try_admit().unwrap_err();
    assert!(busy.to_string().contains("device 0"), "no attempt without a cleanup: {busy}");
    assert_eq!(free(&pool, Class::Root), 5, "what it had is back");
    get(pool.job("direct").kind(DeviceKind::SETUP).submit_blocking(|| ()).unwrap()).unwrap();
    door.open();
    cleanups.into_iter().for_each(|it| get(it).unwrap());
    assert_idle(&pool);
    let cleanups = read(&mut events).into_iter().filter(|it| it.class == Class::Release);
    assert!(cleanups.clone().all(|it| it.kind == DeviceKind::CLEANUP));
    assert_eq!(cleanups.count(), 15);
}

/// DEV-8
#[test]
fn cleanup_is_accepted_after_the_close_and_the_drain_waits_for_it() {
    let pool = pool(DeviceProfile::new(2, 2));
    let (attempt, dropped) = (admit(&pool), admit(&pool));
    pool.close();
    let under = attempt.job("no").run(async {});
    assert_eq!(refused(get(under)), Refused::Closed { what: Closed::Budget });
    let mut drained = pool.wait(Phase::Drain, Deadline::never());
    start(&mut drained);
    drop(dropped);
    start(&mut drained);
    let door = Door::new();
    let cleanup = attempt.release("free", door.pass()).unwrap();
    door.wait();
    start(&mut drained);
    assert_eq!(pool.snapshot().attempts, 0, "all that is left is the cleanup");
    door.open();
    get(cleanup).unwrap();
    get(drained).unwrap();
    shut_down(&pool);
}

/// DEV-8
#[test]
fn the_drain_waits_for_the_callback_of_a_cleanup() {
    let pool = pool(DeviceProfile::new(2, 2));
    let door = Door::new();
    let way = door.way();
    let cleanup = admit(&pool).release_then("free", async { 3 }, move || way.block()).unwrap();
    door.wait();
    assert_eq!(get(cleanup).unwrap(), 3, "its outcome can be had");
    assert_eq!(free(&pool, Class::Release), 2, "and its permit is back");
    pool.close();
    let mut drained = pool.wait(Phase::Drain, Deadline::never());
    start(&mut drained);
    door.open();
    get(drained).unwrap();
    shut_down(&pool);
}

/// DEV-8
#[test]
fn cleanup_goes_on_unwatched_and_is_reported_like_any_job() {
    let pool = pool(DeviceProfile::new(1, 2));
    let mut events = pool.events();
    let (door, tell) = (Door::new(), channel());
    let pass = door.pass();
    let cleanup = admit(&pool).release_then("free", pass, move || tell.0.send(()).unwrap());
    drop(cleanup.unwrap());
    door.wait();
    door.open();
    tell.1.recv_timeout(PATIENCE).unwrap();
    let panics = admit(&pool).release("panics", async { panic!("cleanup") }).unwrap();
    assert!(matches!(reason(get(panics)), Reason::Panicked(_)));
    let cancelled = admit(&pool).release("stops", std::future::pending::<()>()).unwrap();
    assert!(cancelled.cancel());
    assert!(matches!(reason(get(cancelled)), Reason::Cancelled));
    settles(&pool);
    let all = by_job(&read(&mut events));
    all.iter().for_each(|it| assert_lifecycle(it));
    let ends: Vec<_> = all.iter().map(|it| *it.last().unwrap()).collect();
    let expected = [Outcome::Finished, Outcome::Panicked, Outcome::Cancelled];
    assert_eq!(ends, expected.map(EventKind::Ended));
}

/// DEV-8, DEV-17
#[test]
fn cleanup_is_refused_once_the_runtime_was_to_end_and_nothing_is_kept() {
    let pool = pool(DeviceProfile::new(2, 2));
    let attempt = admit(&pool);
    pool.close();
    pool.request_exit().unwrap();
    let alive = Alive::default();
    let (captured, called) = (alive.token(), alive.token());
    let refusal = attempt.release_then("free", async move { drop(captured) }, move || {
        panic!("called {}", std::mem::size_of_val(&called));
    });
    assert_eq!(refused(refusal), Refused::Closed { what: Closed::Runtime });
    assert_eq!(alive.count(), 0);
    shut_down(&pool);
}

/// DEV-8
#[test]
fn an_attempt_dropped_anywhere_gives_everything_back() {
    let pool = pool(DeviceProfile::new(2, 2));
    drop(admit(&pool));
    assert_idle(&pool);
    let attempt = admit(&pool);
    let worker = pool.job("drops").kind(DeviceKind::SETUP).run(async move { drop(attempt) });
    get(worker).unwrap();
    assert_idle(&pool);
    // by its own job, which it lends its permit
    let attempt = admit(&pool);
    let under = attempt.handle();
    let own = under.job("own").run(async move { drop(attempt) });
    get(own).unwrap();
    assert_idle(&pool);
    // released by its own job
    let attempt = admit(&pool);
    let under = attempt.handle();
    let own = under
        .job("own")
        .run(async move { attempt.release("free", async { 4 }).unwrap().await.unwrap() });
    assert_eq!(get(own).unwrap(), 4);
    assert_idle(&pool);
    shut_down(&pool);
}
