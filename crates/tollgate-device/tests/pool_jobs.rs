//! Async jobs: on which threads they run, how they end, and what comes back then.

mod support;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::Context;
use support::pools::*;
use support::{Alive, PATIENCE, eventually, without_hanging};
use tollgate_device::admission::{Deadline, JobState};
use tollgate_device::backend::Backend;
use tollgate_device::host::HostDevice;
use tollgate_device::{
    BuildError, Class, DeviceKind, DevicePool, DeviceProfile, EventKind, Outcome, Phase, Reason,
    Refused,
};

fn profile() -> DeviceProfile {
    DeviceProfile::new(4, 2)
}

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// DEV-1
#[test]
fn workers_are_named_after_the_device_and_have_it_bound_before_their_first_job() {
    let device = HostDevice::builder().name("H200").ordinal(3).build().unwrap();
    let pool = DevicePool::builder(device.clone(), profile()).build().unwrap();
    let (bound, jobs) = (device.clone(), pool.clone());
    let seen = pool.job("look").run_with(move |_| {
        // the builder of the future runs there as well
        let builder = (thread_name(), bound.is_bound());
        async move {
            let control = bound.clone();
            let blocking =
                jobs.job("b").submit_blocking(move || (thread_name(), control.is_bound()));
            [builder, (thread_name(), bound.is_bound()), blocking.unwrap().await.unwrap()]
        }
    });
    let [builder, job, blocking] = get(seen).unwrap();
    for (name, bound) in [&builder, &job] {
        assert!(name.starts_with("H200:3-worker-"), "{name}");
        assert!(bound);
    }
    assert!(blocking.0.starts_with("H200:3-blocking"), "{}", blocking.0);
    assert!(blocking.1);
    assert!(!device.is_bound(), "the test's own thread is not bound");
    shut_down(&pool);
}

/// DEV-1
#[test]
fn threads_may_be_called_anything() {
    for name in ["", "a\0b", "\u{1f980} \n"] {
        let pool = builder(profile()).thread_name(name).build().unwrap();
        let seen = get(pool.job("look").run(async { thread_name() })).unwrap();
        assert!(seen.starts_with(&name.replace('\0', "\u{fffd}")), "{seen:?}");
        get(pool.job("b").submit_blocking(|| ()).unwrap()).unwrap();
        shut_down(&pool);
    }
}

/// DEV-1
#[test]
fn a_device_that_can_not_be_bound_makes_no_pool() {
    let device = HostDevice::builder().build().unwrap();
    device.control().lose();
    let error = DevicePool::builder(device, profile()).build().unwrap_err();
    assert!(matches!(error, BuildError::Device(_)), "{error}");
}

/// DEV-1
/// G8
#[test]
fn a_job_is_bound_whatever_was_done_to_its_thread() {
    let device = HostDevice::builder().build().unwrap();
    let other = HostDevice::builder().build().unwrap();
    let pool = DevicePool::builder(device.clone(), profile()).build().unwrap();
    let bound = |pool: &Pool| {
        let device = device.clone();
        get(pool.job("look").run(async move { device.create_stream(0).map(drop) })).unwrap()
    };
    bound(&pool).unwrap();
    // every thread of the pool, since any may be next
    device.bind().unwrap();
    device.reset().unwrap();
    bound(&pool).expect("after a reset");
    for _ in 0..4 {
        let (device, other) = (device.clone(), other.clone());
        let stray = pool.job("unbinds").run(async move {
            device.unbind();
            Yield(1).await;
            assert!(device.is_bound(), "also after an await");
            other.bind().unwrap();
        });
        get(stray).unwrap();
        bound(&pool).expect("after a job that bound another device");
    }
    let blocking = pool.job("blocking").submit_blocking({
        let device = device.clone();
        move || device.unbind()
    });
    get(blocking.unwrap()).unwrap();
    let look = device.clone();
    let blocking = pool.job("blocking").submit_blocking(move || look.is_bound());
    assert!(get(blocking.unwrap()).unwrap());
    shut_down(&pool);
}

/// DEV-5, DEV-15
#[test]
fn a_job_that_can_not_be_bound_never_runs_and_says_so() {
    let device = HostDevice::builder().build().unwrap();
    let pool = DevicePool::builder(device.clone(), profile()).build().unwrap();
    get(pool.job("fine").run(async {})).unwrap();
    let mut events = pool.events();
    let alive = Alive::default();
    let unbinds = device.clone();
    let spoil = pool.clone();
    let token = alive.token();
    let spoilt = pool.job("spoil").run(async move {
        unbinds.control().lose();
        unbinds.unbind();
        let token = token;
        reason(spoil.job("inner").run(async move { drop(token) }).await)
    });
    let inner = get(spoilt).unwrap();
    assert!(matches!(inner, Reason::Unbound(_)), "{inner}");
    assert_eq!(alive.count(), 0);
    let all = by_job(&read(&mut events));
    assert_eq!(all[1], [EventKind::Enqueued, EventKind::Ended(Outcome::Failed)]);
    assert_idle(&pool);
    shut_down(&pool);
}

/// DEV-5
#[test]
fn a_blocking_job_that_can_not_be_bound_never_runs_and_says_so() {
    let device = HostDevice::builder().build().unwrap();
    let pool = DevicePool::builder(device.clone(), profile()).build().unwrap();
    // its thread is new, and finds the device gone
    device.control().lose();
    let (told, tell) = channel();
    let task = pool
        .job("b")
        .on_complete(move || told.send(()).unwrap())
        .submit_blocking(|| panic!("it ran"))
        .unwrap();
    let error = get(task).unwrap_err();
    assert!(matches!(error.reason(), Reason::Unbound(_)), "{error}");
    assert!(error.never_ran());
    tell.recv_timeout(PATIENCE).unwrap();
    settles(&pool);
}

/// DEV-5
#[test]
fn nothing_is_accepted_or_counted_before_the_first_poll() {
    let pool = pool(profile());
    let mut events = pool.events();
    let alive = Alive::default();
    let token = alive.token();
    let run = pool.job("never").run(async move { drop(token) });
    assert_eq!(format!("{run:?}"), "DeviceRun(not submitted)");
    let snapshot = pool.snapshot();
    assert_eq!((snapshot.queued, snapshot.peak_queued), (0, 0));
    drop(run);
    assert_eq!(alive.count(), 0);
    assert_eq!(events.try_recv(), None);
    assert_eq!(pool.snapshot().class(Class::Root).unwrap().admitted, 0);
}

/// DEV-5
#[test]
fn awaiting_a_job_yields_its_output() {
    let pool = pool(profile());
    let text = String::from("moved");
    assert_eq!(get(pool.job("run").run(async move { text })).unwrap(), "moved");
    let task = pool.job("spawn").spawn(async { 7 }).unwrap();
    let id = task.id();
    let mut task = task;
    assert_eq!(get(&mut task).unwrap(), 7);
    assert!(task.is_done());
    assert_eq!(task.id(), id);
    assert_eq!(pool.job("join").spawn(async { 8 }).unwrap().join().unwrap(), 8);
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn a_panic_comes_back_with_its_message_device_kind_and_class() {
    let device = HostDevice::builder().ordinal(5).build().unwrap();
    let pool = DevicePool::builder(device, profile()).build().unwrap();
    let kind = DeviceKind::CLEANUP;
    let text = get(pool.job("p").kind(kind).run(async { panic!("a &str") })).unwrap_err();
    assert_eq!((text.device(), text.kind(), text.class()), (5, kind, Class::Root));
    assert_eq!(
        text.to_string(),
        "no result of a job of kind cleanup (class root) on device 5: it panicked: a &str"
    );
    assert!(!text.never_ran());
    let number = 3;
    let string = reason(get(pool.job("p").run(async move { panic!("a string {number}") })));
    assert!(matches!(&string, Reason::Panicked(it) if it.message() == Some("a string 3")));
    let other = reason(get(pool.job("p").run(async { std::panic::panic_any(9_u8) })));
    let Reason::Panicked(panic) = other else { panic!("{other}") };
    assert_eq!(panic.message(), None);
    assert_eq!(panic.into_payload().downcast_ref::<u8>(), Some(&9));
    // in the builder of the future, whose captures are gone too
    let alive = Alive::default();
    let token = alive.token();
    let built = pool.job("p").run_with(move |_| -> std::future::Ready<()> {
        let _token = token;
        panic!("builder")
    });
    let built = reason(get(built));
    assert!(matches!(&built, Reason::Panicked(it) if it.message() == Some("builder")));
    assert_eq!(alive.count(), 0);
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn a_job_whose_destructor_panics_has_panicked_whatever_it_returned() {
    struct Ends(bool, Bomb);
    impl Future for Ends {
        type Output = Bomb;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> std::task::Poll<Bomb> {
            if self.0 { panic!("first") } else { std::task::Poll::Ready(Bomb) }
        }
    }
    let pool = pool(profile());
    for panics in [false, true] {
        let result = get(pool.job("bomb").run(Ends(panics, Bomb)));
        let Reason::Panicked(panic) = reason(result) else { panic!("not a panic") };
        std::mem::forget(panic.into_payload());
        // and within another job, which goes on
        let inner = pool.clone();
        let outer = pool.job("outer").run(async move {
            let Reason::Panicked(panic) = reason(inner.job("i").run(Ends(panics, Bomb)).await)
            else {
                panic!("not a panic")
            };
            std::mem::forget(panic.into_payload());
        });
        get(outer).unwrap();
    }
    assert_idle(&pool);
    shut_down(&pool);
}

/// DEV-5
#[test]
fn captures_that_panic_when_they_are_dropped_unstarted_harm_nobody() {
    let pool = pool(DeviceProfile::new(2, 2));
    let door = Door::new();
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    // never submitted, queued, refused
    drop(pool.job("fresh").run(bomb_capture()));
    let mut queued = pool.job("queued").run(bomb_capture());
    start(&mut queued);
    let full = Refused::ClassFull { class: Class::Root, capacity: 2 };
    assert_eq!(refused(get(pool.job("no").run(bomb_capture()))), full);
    assert_eq!(refused(pool.job("no").spawn(bomb_capture())), full);
    let bomb = Bomb;
    let callback = Bomb;
    let no = pool.job("no").on_complete(move || std::mem::forget(callback));
    assert_eq!(refused(no.submit_blocking(move || std::mem::forget(bomb))), full);
    drop(queued);
    assert_eq!(free(&pool, Class::Root), 1);
    door.open();
    get(held).unwrap();
    settles(&pool);
    shut_down(&pool);
}

async fn pending_bomb(bomb: Bomb) {
    let _bomb = bomb;
    std::future::pending::<()>().await;
}

fn bomb_capture() -> impl Future<Output = ()> + Send + 'static {
    pending_bomb(Bomb)
}

/// DEV-5
#[test]
fn dropping_the_await_of_a_queued_job_drops_its_captures_and_its_permits_at_once() {
    let pool = pool(profile());
    let door = Door::new();
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    let mut events = pool.events();
    let (alive, tell) = (Alive::default(), channel());
    let token = alive.token();
    let mut run = pool
        .job("queued")
        .on_complete(move || tell.0.send(()).unwrap())
        .run(async move { drop(token) });
    start(&mut run);
    assert_eq!((pool.snapshot().queued, free(&pool, Class::Root)), (1, 2));
    drop(run);
    assert_eq!((alive.count(), pool.snapshot().queued, free(&pool, Class::Root)), (0, 0, 3));
    tell.1.try_recv().expect("it was called");
    let expected = [
        EventKind::Enqueued,
        EventKind::CancellationRequested,
        EventKind::Ended(Outcome::Cancelled),
    ];
    assert_eq!(by_job(&read(&mut events)), [expected]);
    door.open();
    get(held).unwrap();
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn dropping_the_await_of_a_running_job_ends_it_at_its_next_await() {
    let pool = pool(profile());
    let mut events = pool.events();
    let (alive, door, second) = (Alive::default(), Door::new(), Door::new());
    let (token, way, pass) = (alive.token(), door.way(), second.pass());
    let mut run = pool.job("running").run_with(move |cx| async move {
        let (_token, stop) = (token, cx.token());
        way.block();
        assert!(stop.is_cancelled());
        pass.await;
        unreachable!("it was to be dropped");
    });
    start(&mut run);
    door.wait();
    drop(run);
    assert_eq!((alive.count(), free(&pool, Class::Root)), (1, 3), "it has not ended");
    assert_eq!(pool.jobs()[0].state, JobState::Abandoned);
    door.open();
    settles(&pool);
    assert_eq!(alive.count(), 0);
    let all = by_job(&read(&mut events));
    assert_eq!(
        all[0][2..],
        [EventKind::CancellationRequested, EventKind::Ended(Outcome::Cancelled)]
    );
    second.wait();
}

/// DEV-5
#[test]
fn a_job_that_waits_is_not_polled_again_once_it_was_cancelled() {
    struct Counts(Arc<AtomicUsize>, Way);
    impl Future for Counts {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> std::task::Poll<()> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    self.1.open();
                    std::task::Poll::Pending
                }
                // what it waits for has come about, as it was cancelled
                _ => std::task::Poll::Ready(()),
            }
        }
    }
    let pool = pool(profile());
    for within in [false, true] {
        let (polls, door) = (Arc::new(AtomicUsize::new(0)), Door::new());
        let counts = Counts(Arc::clone(&polls), door.way());
        let inner = pool.clone();
        let task = if within {
            pool.job("outer").spawn(async move { drop(inner.job("inner").run(counts).await) })
        } else {
            pool.job("waits").spawn(counts)
        };
        get(door.pass());
        let task = task.unwrap();
        assert!(task.cancel());
        assert!(matches!(reason(get(task)), Reason::Cancelled));
        assert_eq!(polls.load(Ordering::SeqCst), 1, "within: {within}");
    }
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn a_job_that_has_ended_is_asked_for_nothing_more() {
    let pool = pool(profile());
    let (tell, told) = channel();
    let mut run = pool.job("ends").run_with(move |cx| async move {
        tell.send(cx.token()).unwrap();
    });
    start(&mut run);
    settles(&pool);
    drop(run);
    assert!(!told.recv().unwrap().is_cancelled());
}

/// DEV-5
#[test]
fn a_job_that_ends_before_it_is_stopped_has_finished() {
    let pool = pool(profile());
    let mut events = pool.events();
    let (door, alive) = (Door::new(), Alive::default());
    let (way, token) = (door.way(), alive.token());
    let mut run = pool.job("ends").run(async move {
        way.block();
        token
    });
    start(&mut run);
    door.wait();
    drop(run);
    door.open();
    settles(&pool);
    assert_eq!(alive.count(), 0, "its result is dropped");
    let all = by_job(&read(&mut events));
    assert_eq!(
        all[0][2..],
        [EventKind::CancellationRequested, EventKind::Ended(Outcome::Finished)]
    );
}

/// DEV-5
#[test]
fn a_result_that_nobody_wants_is_gone_before_the_permit_is_back() {
    let pool = pool(DeviceProfile::new(1, 2));
    for blocking in [false, true] {
        let (door, tell) = (Door::new(), channel());
        let (way, look) = (door.way(), pool.clone());
        let result = OnDrop(move || tell.0.send(free(&look, Class::Root)).unwrap());
        let work = move || {
            way.block();
            result
        };
        if blocking {
            drop(pool.job("b").submit_blocking(work).unwrap());
        } else {
            drop(pool.job("a").spawn(async move { work() }).unwrap());
        }
        door.wait();
        door.open();
        assert_eq!(tell.1.recv_timeout(PATIENCE).unwrap(), 0);
        settles(&pool);
    }
    // one that panics
    drop(pool.job("bomb").spawn(async { Bomb }).unwrap());
    drop(pool.job("bomb").submit_blocking(|| Bomb).map_err(drop));
    settles(&pool);
    shut_down(&pool);
}

/// DEV-3, DEV-5, DEV-7, DEV-17
#[test]
fn what_has_completed_panics_when_it_is_polled_again() {
    #[track_caller]
    fn panics<F: Future + Unpin>(mut completed: F, what: &str) {
        get(&mut completed);
        let again = catch_unwind(AssertUnwindSafe(|| drop(poll(&mut completed))));
        let payload = again.expect_err("it was polled again");
        let message = payload.downcast_ref::<&str>().copied().unwrap_or_default();
        assert_eq!(message, format!("{what} was polled after it had completed"));
    }
    let pool = pool(DeviceProfile::new(1, 2).max_waiting(0));
    panics(pool.job("run").run(async {}), "a job");
    panics(pool.job("spawned").spawn(async {}).unwrap(), "a job");
    panics(pool.job("blocking").submit_blocking(|| {}).unwrap(), "a job");
    panics(pool.admission(), "an admission");
    let attempt = admit(&pool);
    panics(pool.admission(), "an admission");
    panics(pool.job("refused").run(async {}), "a job");
    drop(attempt);
    panics(pool.shutdown(Deadline::after(PATIENCE)), "a shutdown");
}

/// DEV-5
#[test]
fn whoever_has_a_result_can_use_the_slot() {
    let pool = pool(DeviceProfile::new(1, 2));
    for _ in 0..200 {
        get(pool.job("async").run(async {})).unwrap();
        get(pool.job("async").spawn(Yield(1)).unwrap()).unwrap();
        get(pool.job("blocking").submit_blocking(|| ()).unwrap()).unwrap();
        let _ = reason(get(pool.job("panics").run(async { panic!("no") })));
    }
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn a_job_given_as_a_builder_knows_its_id_and_worker_and_they_are_the_reported_ones() {
    let device = HostDevice::builder().ordinal(2).build().unwrap();
    let pool = DevicePool::builder(device, profile()).build().unwrap();
    let mut events = pool.events();
    let kind = DeviceKind::SETUP;
    let task = pool.job("w").kind(kind).spawn_with(|cx| async move { cx });
    let task = task.unwrap();
    let id = task.id();
    let cx = get(task).unwrap();
    assert_eq!((cx.id(), cx.device(), cx.kind()), (id, 2, kind));
    let events = of(&read(&mut events), id);
    assert_eq!(events[1], EventKind::Started { worker: cx.worker() });
    assert!(cx.worker().is_some_and(|it| it < 2));
    assert!(!cx.token().is_cancelled());
    let attempt = admit(&pool);
    let under = attempt.job("u").run_with(|cx| async move { cx.id() });
    assert!(get(under).unwrap() > id, "ids grow");
    let blocking = pool.job("b").submit_blocking_with(|cx| (cx.id(), cx.worker())).unwrap();
    let id = blocking.id();
    assert_eq!(get(blocking).unwrap(), (id, None));
}

/// DEV-5
#[test]
fn cancelling_a_spawned_job_is_said_once_and_is_in_vain_once_it_has_ended() {
    let pool = pool(profile());
    let door = Door::new();
    let mut running = pool.job("running").spawn(door.pass()).unwrap();
    door.wait();
    let mut queued = pool.job("queued").spawn(async {}).unwrap();
    assert!(queued.cancel());
    assert!(queued.is_done() && !queued.cancel());
    assert!(matches!(reason(get(&mut queued)), Reason::Cancelled));
    assert!(running.cancel());
    assert!(!running.cancel(), "the second time");
    assert!(matches!(reason(get(&mut running)), Reason::Cancelled));
    let mut ended = pool.job("ended").spawn(async { 1 }).unwrap();
    eventually("it ends", || ended.is_done());
    assert!(!ended.cancel());
    assert_eq!(get(&mut ended).unwrap(), 1);
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn a_spawned_job_goes_on_unwatched() {
    let pool = pool(profile());
    let (door, tell) = (Door::new(), channel());
    let pass = door.pass();
    let running = pool.job("running").spawn(async move {
        pass.await;
        Yield(3).await;
        tell.0.send(1).unwrap();
    });
    door.wait();
    drop(running);
    let again = tell.1;
    let (told, tells) = channel();
    drop(pool.job("queued").spawn(async move { told.send(2).unwrap() }));
    door.open();
    assert_eq!(again.recv_timeout(PATIENCE), Ok(1));
    assert_eq!(tells.recv_timeout(PATIENCE), Ok(2));
    settles(&pool);
}

/// DEV-5
#[test]
fn a_job_dropped_at_any_of_its_awaits_leaves_nothing() {
    let pool = pool(profile());
    let mut events = pool.events();
    let alive = Alive::default();
    for polls in 0..8_usize {
        for within in [false, true] {
            let (token, inner) = (alive.token(), pool.clone());
            let body = async move {
                let _token = token;
                Yield(3).await;
                inner.job("inner").run(Yield(2)).await.map_err(drop).unwrap();
            };
            let job = if within {
                let outer = pool.clone();
                pool.job("outer").run(async move {
                    let mut run = outer.job("middle").run(body);
                    for _ in 0..polls {
                        if futures_lite::future::poll_once(&mut run).await.is_some() {
                            break;
                        }
                    }
                    drop(run);
                })
            } else {
                pool.job("direct").run(body)
            };
            let mut job = job;
            for _ in 0..polls {
                if poll(&mut job).is_ready() {
                    break;
                }
                std::thread::yield_now();
            }
            drop(job);
            settles(&pool);
            assert_eq!(alive.count(), 0, "after {polls}");
        }
    }
    by_job(&read(&mut events)).iter().for_each(|it| assert_lifecycle(it));
    shut_down(&pool);
}

/// DEV-5
#[test]
fn a_job_may_be_dropped_on_any_thread_also_one_of_the_pools() {
    let pool = pool(profile());
    let alive = Alive::default();
    let door = Door::new();
    let token = alive.token();
    let pass = door.pass();
    let mut run = pool.job("outside").run(async move {
        let _token = token;
        pass.await;
    });
    start(&mut run);
    door.wait();
    let drops = pool.job("drops").kind(DeviceKind::SETUP).run(async move { drop(run) });
    get(drops).unwrap();
    settles(&pool);
    // one that began within the pool, on a thread that has nothing to do with it
    let (inner, sends) = (pool.clone(), channel());
    let token = alive.token();
    let outer = pool.job("outer").run(async move {
        let mut run = Box::pin(inner.job("inner").run(async move {
            let _token = token;
            Yield(1).await;
            std::future::pending::<()>().await;
        }));
        assert!(futures_lite::future::poll_once(&mut run).await.is_none());
        sends.0.send(run).unwrap();
    });
    get(outer).unwrap();
    let mut run = sends.1.recv_timeout(PATIENCE).unwrap();
    assert_eq!((alive.count(), pool.snapshot().active), (1, 1));
    assert!(run.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
    drop(run);
    assert_eq!(alive.count(), 0);
    assert_idle(&pool);
    shut_down(&pool);
}

/// DEV-5
#[test]
fn wakers_that_panic_harm_nobody() {
    let pool = pool(profile());
    let bell = waker(|| panic!("a waker"));
    let mut cx = Context::from_waker(&bell);
    let door = Door::new();
    let mut run = Box::pin(pool.job("async").run(door.pass()));
    assert!(run.as_mut().poll(&mut cx).is_pending());
    let way = door.way();
    let mut blocking = Box::pin(pool.job("blocking").submit_blocking(move || way.block()).unwrap());
    assert!(blocking.as_mut().poll(&mut cx).is_pending());
    let (first, second) = (admit(&pool), admit(&pool));
    let mut admission = Box::pin(pool.admission());
    assert!(admission.as_mut().poll(&mut cx).is_pending());
    let mut events = pool.events();
    let mut next = Box::pin(events.recv());
    assert!(next.as_mut().poll(&mut cx).is_pending());
    door.wait_for(2);
    door.open();
    get(run).unwrap();
    get(blocking).unwrap();
    drop((first, second));
    drop(get(admission).unwrap());
    assert!(get(next).is_some());
    let mut phase = Box::pin(pool.wait(Phase::Drain, Deadline::never()));
    assert!(phase.as_mut().poll(&mut cx).is_pending());
    pool.close();
    get(phase).unwrap();
    shut_down(&pool);
}

/// DEV-5
#[test]
fn the_runtime_of_whoever_waits_may_end() {
    let pool = pool(profile());
    let (alive, door) = (Alive::default(), Door::new());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (token, pass) = (alive.token(), door.pass());
    let job = pool.job("job").run(async move {
        let _token = token;
        pass.await;
    });
    drop(runtime.spawn(job));
    runtime.block_on(Yield(1));
    door.wait();
    drop(runtime);
    settles(&pool);
    assert_eq!(alive.count(), 0, "it was cancelled");
    get(pool.job("next").run(async {})).unwrap();
}

/// DEV-5
#[test]
fn no_lock_is_held_around_code_of_users() {
    without_hanging(|| {
        let pool = pool(DeviceProfile::new(8, 2));
        // each use of the pool takes its lock
        let uses = {
            let pool = pool.clone();
            move || {
                let _ = (pool.snapshot(), pool.jobs(), pool.recorder().recording());
                let _ = pool.job("more").spawn(async {}).map_err(drop);
            }
        };
        let count = Arc::new(AtomicUsize::new(0));
        let on_drop = || {
            let (uses, count) = (uses.clone(), Arc::clone(&count));
            OnDrop(move || {
                count.fetch_add(1, Ordering::SeqCst);
                uses();
            })
        };
        let bell = waker(uses.clone());
        let mut cx = Context::from_waker(&bell);
        let door = Door::new();
        // captures and results, of a job that runs, one that waits, and one that is refused; wakers; callbacks
        let (captured, pass, result) = (on_drop(), door.pass(), on_drop());
        let mut running = Box::pin(pool.job("running").on_complete(uses.clone()).run(async move {
            let _captured = captured;
            pass.await;
            result
        }));
        assert!(running.as_mut().poll(&mut cx).is_pending());
        door.wait();
        let captured = on_drop();
        let mut queued = Box::pin(pool.job("queued").on_complete(uses.clone()).run(async move {
            drop(captured);
        }));
        assert!(queued.as_mut().poll(&mut cx).is_pending());
        let mut events = pool.events();
        assert!(Box::pin(events.recv()).as_mut().poll(&mut cx).is_pending());
        drop(queued);
        door.open();
        drop(get(running).unwrap());
        settles(&pool);
        pool.close();
        let captured = on_drop();
        let refused = pool.job("refused").run(async move { drop(captured) });
        assert!(get(refused).is_err());
        shut_down(&pool);
        assert_eq!(count.load(Ordering::SeqCst), 4);
    });
}
