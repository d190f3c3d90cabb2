//! How a pool ends: phase by phase, composed, and by the drop of its last handle.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use support::pools::*;
use support::{Alive, PATIENCE, eventually};
use tollgate_device::admission::{Closed, Deadline};
use tollgate_device::host::HostDevice;
use tollgate_device::{
    DeviceKind, DevicePool, DeviceProfile, EventStream, Outcome, Phase, PhaseError, Reason, Refused,
};

const SECOND: Duration = Duration::from_secs(1);

fn profile() -> DeviceProfile {
    DeviceProfile::new(8, 2)
}

/// Waits for the end of a pool that nobody has a handle of.
fn ends(mut events: EventStream) -> Vec<tollgate_device::DeviceEvent> {
    get(async move {
        let mut all = Vec::new();
        while let Some(event) = events.recv().await {
            all.push(event);
        }
        all
    })
}

/// DEV-17
#[test]
fn each_phase_can_be_watched_for_itself_in_any_order_and_again() {
    let pool = pool(profile());
    let phases = [Phase::Drain, Phase::Runtime, Phase::Supervisor];
    let mut waits: Vec<_> = phases.map(|it| pool.wait(it, Deadline::never())).into_iter().collect();
    waits.iter_mut().for_each(start);
    let door = Door::new();
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    pool.close();
    waits.iter_mut().for_each(start);
    door.open();
    get(held).unwrap();
    get(waits.remove(0)).unwrap();
    waits.iter_mut().for_each(start);
    pool.request_exit().unwrap();
    waits.into_iter().rev().for_each(|it| get(it).unwrap());
    for phase in phases {
        pool.wait(phase, Deadline::after(Duration::ZERO)).block().unwrap();
    }
    shut_down(&pool);
    shut_down(&pool);
}

/// DEV-17
#[test]
fn a_phase_that_is_waited_for_wakes_its_waiters() {
    let pool = pool(profile());
    for phase in [Phase::Drain, Phase::Runtime, Phase::Supervisor] {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let wait = pool.wait(phase, Deadline::never());
                std::thread::spawn(move || get(wait).unwrap())
            })
            .collect();
        if phase == Phase::Drain {
            pool.close();
        } else {
            pool.request_exit().unwrap();
        }
        waiters.into_iter().for_each(|it| it.join().unwrap());
    }
}

/// DEV-17
#[test]
fn the_runtime_does_not_end_before_the_pool_is_closed() {
    let device = HostDevice::builder().ordinal(6).build().unwrap();
    let pool = DevicePool::builder(device, profile()).build().unwrap();
    let error = pool.request_exit().unwrap_err();
    assert_eq!(error.device(), 6);
    assert_eq!(
        error.to_string(),
        "the pool of device 6 is not closed: its runtime can't end before"
    );
    get(pool.job("fine").run(async {})).unwrap();
    pool.close();
    assert!(pool.is_closed() && pool.snapshot().closed);
    pool.request_exit().unwrap();
    pool.request_exit().unwrap();
    shut_down(&pool);
}

/// DEV-17
#[test]
fn what_is_submitted_while_the_pool_closes_runs_or_is_refused_and_nothing_after_it_is_accepted() {
    for _ in 0..20 {
        let pool = pool(DeviceProfile::new(1000, 3).max_waiting(9));
        let (ran, closed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let submitters: Vec<_> = (0..3)
            .map(|i| {
                let (pool, ran, closed) = (pool.clone(), Arc::clone(&ran), Arc::clone(&closed));
                std::thread::spawn(move || {
                    let mut accepted = 0_u64;
                    for _ in 0..300 {
                        let after = closed.load(Ordering::SeqCst);
                        let count = Arc::clone(&ran);
                        let work = move || {
                            count.fetch_add(1, Ordering::SeqCst);
                        };
                        let result = match i {
                            0 => pool.job("b").submit_blocking(work).map(drop),
                            _ => pool.job("a").spawn(async move { work() }).map(drop),
                        };
                        match result {
                            Ok(()) => {
                                assert!(!after, "accepted after the close");
                                accepted += 1;
                            }
                            Err(error) => {
                                let refused = error.refused().unwrap();
                                let busy = matches!(refused, Refused::ClassFull { .. });
                                assert!(
                                    busy || *refused == Refused::Closed { what: Closed::Budget }
                                );
                            }
                        }
                    }
                    accepted
                })
            })
            .collect();
        eventually("some have run", || ran.load(Ordering::SeqCst) > 20);
        pool.close();
        closed.store(true, Ordering::SeqCst);
        let accepted: u64 = submitters.into_iter().map(|it| it.join().unwrap()).sum();
        get(pool.wait(Phase::Drain, Deadline::after(PATIENCE))).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), accepted);
        shut_down(&pool);
    }
}

/// DEV-17
#[test]
fn a_deadline_that_is_missed_says_what_is_left_and_can_be_followed_by_another() {
    let (pool, time) = timed(DeviceProfile::new(8, 2));
    let door = Door::new();
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    let queued = pool.job("queued").spawn(async {}).unwrap();
    let attempt = admit(&pool);
    pool.close();
    for round in 0..3 {
        let phase = [Phase::Drain, Phase::Runtime, Phase::Supervisor][round];
        let mut wait = pool.wait(phase, after(&time, SECOND));
        start(&mut wait);
        time.advance(SECOND);
        let error = get(wait).unwrap_err();
        assert!(error.is_deadline());
        let expected = PhaseError::Deadline { phase, queued: 1, active: 1, ending: 0, attempts: 1 };
        assert_eq!(error, expected);
    }
    door.open();
    get(held).unwrap();
    get(queued).unwrap();
    drop(attempt);
    get(pool.wait(Phase::Drain, after(&time, Duration::ZERO))).unwrap();
    shut_down(&pool);
}

/// DEV-17
#[test]
fn the_end_of_the_runtime_cancels_async_jobs_at_their_next_await_and_waits_for_synchronous_ones() {
    let pool = pool(DeviceProfile::new(8, 3));
    let mut events = pool.events();
    let (alive, door, pending) = (Alive::default(), Door::new(), Door::new());
    let (token, pass) = (alive.token(), pending.pass());
    let awaits = pool.job("awaits").spawn(async move {
        let _token = token;
        pass.await;
    });
    let (token, way) = (alive.token(), door.way());
    let keeps = pool.job("keeps").spawn(async move {
        let _token = token;
        way.block();
        Yield(1).await;
        unreachable!("it is dropped at its next await");
    });
    let way = door.way();
    let returns = pool.job("returns").kind(DeviceKind::SETUP).spawn(async move {
        way.block();
        5
    });
    door.wait_for(2);
    pending.wait();
    let token = alive.token();
    let queued = pool.job("queued").spawn(async move { drop(token) }).unwrap();
    pool.close();
    pool.request_exit().unwrap();
    assert!(matches!(reason(get(queued)), Reason::Lost), "at once");
    assert!(matches!(reason(get(awaits.unwrap())), Reason::Lost));
    eventually("both are gone", || alive.count() == 1);
    let mut wait = pool.wait(Phase::Runtime, Deadline::never());
    start(&mut wait);
    assert_eq!(
        refused(get(pool.job("late").run(async {}))),
        Refused::Closed { what: Closed::Runtime }
    );
    door.open();
    assert!(matches!(reason(get(keeps.unwrap())), Reason::Lost));
    assert_eq!(get(returns.unwrap()).unwrap(), 5, "what needs no await ends as it would");
    get(wait).unwrap();
    assert_eq!(alive.count(), 0);
    let all = by_job(&read(&mut events));
    all.iter().for_each(|it| assert_lifecycle(it));
    let ends: Vec<_> = all.iter().map(|it| *it.last().unwrap()).collect();
    use Outcome::{Dropped, Finished};
    assert_eq!(ends, [Dropped, Dropped, Finished, Dropped].map(tollgate_device::EventKind::Ended));
    shut_down(&pool);
}

/// DEV-17
#[test]
fn one_call_composes_the_phases_and_reports() {
    let (pool, time) = timed(DeviceProfile::new(8, 2));
    drop(pool.shutdown(Deadline::never()));
    assert!(!pool.is_closed(), "it was never polled");
    let door = Door::new();
    let way = door.way();
    let held = pool.job("held up").spawn(async move { way.block() }).unwrap();
    door.wait();
    let queued = pool.job("queued").spawn(async {}).unwrap();
    let mut shutdown = pool.shutdown(after(&time, SECOND));
    start(&mut shutdown);
    assert!(pool.is_closed());
    time.advance(SECOND);
    let report = get(shutdown);
    assert!(!report.complete && !report.runtime_gone);
    assert!(report.failure.as_ref().is_some_and(PhaseError::is_deadline), "{report}");
    let names: Vec<_> = report.jobs.iter().map(|it| it.name.as_str()).collect();
    assert!(names.contains(&"held up"), "{report}");
    assert_eq!((report.pool, report.device), (pool.id(), 0));
    assert_eq!(report.took.draining + report.took.ending, SECOND);
    assert!(matches!(reason(get(queued)), Reason::Lost), "at the deadline what waits is dropped");
    let text = report.to_string();
    assert!(text.contains("has not ended") && text.contains("held up"), "{text}");
    door.open();
    get(held).unwrap();
    let report = get(pool.shutdown(Deadline::after(PATIENCE)));
    assert!(report.complete && report.failure.is_none(), "{report}");
    assert!(pool.shutdown(after(&time, Duration::ZERO)).block().complete, "it stays so");
}

/// DEV-17
#[test]
fn an_attempt_that_outlasts_the_threads_is_what_went_wrong() {
    let (pool, time) = timed(DeviceProfile::new(8, 2));
    let attempt = admit(&pool);
    let shutdown = pool.shutdown(after(&time, SECOND)).exit_at(after(&time, Duration::ZERO));
    let report = get(shutdown);
    assert!(!report.complete && report.runtime_gone, "{report}");
    let failure = report.failure.as_ref().expect("something is left");
    let PhaseError::Deadline { phase: Phase::Drain, attempts: 1, .. } = failure else {
        panic!("{report}");
    };
    drop(attempt);
    let report = get(pool.shutdown(after(&time, SECOND)));
    assert!(report.complete && report.failure.is_none(), "{report}");
}

/// DEV-17
#[test]
fn an_earlier_mark_ends_the_runtime_while_the_shutdown_waits_on() {
    let (pool, time) = timed(DeviceProfile::new(8, 2));
    let alive = Alive::default();
    let (door, token) = (Door::new(), alive.token());
    let pass = door.pass();
    let held = pool.job("held").spawn(async move {
        let _token = token;
        pass.await;
    });
    door.wait();
    let mut shutdown = pool.shutdown(after(&time, 9 * SECOND)).exit_at(after(&time, SECOND));
    start(&mut shutdown);
    time.advance(SECOND);
    let report = get(shutdown);
    assert!(report.complete, "what is over was not late: {report}");
    assert!(matches!(reason(get(held.unwrap())), Reason::Lost));
    assert_eq!(alive.count(), 0);
}

/// DEV-17
#[test]
fn a_shutdown_that_is_dropped_leaves_the_pool_closed_and_can_be_asked_for_again() {
    let pool = pool(profile());
    let attempt = admit(&pool);
    let mut shutdown = pool.shutdown(Deadline::never());
    start(&mut shutdown);
    drop(shutdown);
    assert!(pool.is_closed());
    drop(attempt);
    shut_down(&pool);
}

/// DEV-17
#[test]
fn the_thread_that_brings_an_end_about_is_not_waited_for_by_itself() {
    let pool = pool(profile());
    let door = Door::new();
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    let (waits, tell) = (pool.clone(), channel());
    // it is dropped, and called back, by the thread that ends the runtime
    let queued = pool.job("queued").on_complete(move || {
        let all = [Phase::Drain, Phase::Runtime, Phase::Supervisor]
            .map(|phase| waits.wait(phase, Deadline::never()).block());
        tell.0.send(all).unwrap();
    });
    drop(queued.spawn(async {}).unwrap());
    pool.close();
    pool.request_exit().unwrap();
    for result in tell.1.recv_timeout(PATIENCE).unwrap() {
        assert!(matches!(result, Err(PhaseError::OwnThread { .. })), "{result:?}");
    }
    let _ = get(held);
    shut_down(&pool);
}

/// DEV-1, DEV-17
#[test]
fn the_last_handle_may_be_dropped_on_any_thread_and_what_was_accepted_is_finished() {
    let cases: [fn(Pool, Door); 7] = [
        |pool, _| drop(pool),
        |pool, _| {
            let handle = pool.handle();
            drop(pool);
            get(handle.job("still open").kind(DeviceKind::SETUP).run(async {})).unwrap();
        },
        |pool, _| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async move { drop(pool) });
        },
        |pool, _| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async move { tokio::spawn(async move { drop(pool) }).await }).unwrap();
        },
        |pool, _| {
            // in a job of its own, which goes on
            let inner = pool.clone();
            drop(pool.job("own").kind(DeviceKind::SETUP).spawn(async move {
                Yield(2).await;
                drop(inner);
                Yield(2).await;
            }));
        },
        |pool, _| {
            let inner = pool.clone();
            drop(pool.job("own").submit_blocking(move || drop(inner)));
        },
        |pool, _| {
            let inner = pool.clone();
            let job = pool.job("own").on_complete(move || drop(inner));
            drop(job.submit_blocking(|| ()));
        },
    ];
    for (i, case) in cases.into_iter().enumerate() {
        let device = HostDevice::builder().build().unwrap();
        let control = device.control();
        let pool = DevicePool::builder(device, profile()).build().unwrap();
        let (events, door) = (pool.events(), Door::new());
        let held = pool.job("held").spawn(door.pass()).unwrap();
        door.wait();
        let queued = pool.job("queued").spawn(async { 7 }).unwrap();
        let cleanup = admit(&pool);
        case(pool, Door::new());
        let cleanup = cleanup.release("free", async {}).unwrap();
        door.open();
        get(held).unwrap();
        get(cleanup).unwrap();
        assert_eq!(get(queued).unwrap(), 7, "case {i}");
        let all = by_job(&ends(events));
        all.iter().for_each(|it| assert_lifecycle(it));
        assert!(control.wait_ended(PATIENCE), "case {i}: nobody has the device any more");
    }
}

/// DEV-1, DEV-17
#[test]
fn a_job_that_captures_its_own_pool_keeps_it_until_it_has_ended() {
    let pool = pool(profile());
    let (events, door) = (pool.events(), Door::new());
    let (inner, pass) = (pool.clone(), door.pass());
    let task = pool.job("keeps").spawn(async move {
        pass.await;
        inner.job("more").run(async { 3 }).await.unwrap()
    });
    door.wait();
    drop(pool);
    door.open();
    assert_eq!(get(task.unwrap()).unwrap(), 3);
    assert_eq!(by_job(&ends(events)).len(), 2);
}

/// DEV-17
#[test]
fn an_attempt_keeps_a_pool_without_handles_until_it_is_released() {
    let pool = pool(profile());
    let mut events = pool.events();
    let attempt = admit(&pool);
    drop(pool);
    assert!(get(futures_lite::future::poll_once(events.recv())).is_none());
    let late = get(attempt.job("late").run(async {}));
    assert!(matches!(refused(late), Refused::Closed { .. }));
    get(attempt.release("free", async {}).unwrap()).unwrap();
    assert_eq!(ends(events).len(), 3);
}

/// DEV-1
#[test]
fn a_pool_may_be_built_and_ended_inside_any_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let pool = pool(profile());
        assert_eq!(pool.job("j").run(async { 1 }).await.unwrap(), 1);
        assert!(pool.shutdown(Deadline::never()).await.complete);
        drop(pool);
    });
    let outer = pool(profile());
    let nested = outer.job("outer").run(async {
        let inner = pool(profile());
        let result = inner.job("j").run(async { 2 }).await.unwrap();
        assert!(inner.shutdown(Deadline::never()).await.complete);
        result
    });
    assert_eq!(get(nested).unwrap(), 2);
    shut_down(&outer);
}
