//! Where async jobs run: workers and who may have them, and what is submitted from within the pool.

mod support;

use std::sync::mpsc::channel;
use std::thread::ThreadId;
use support::pools::*;
use support::{Alive, PATIENCE, eventually};
use tollgate_device::{Class, DeviceKind, DeviceProfile, EventKind, Outcome, Reason, Refused};

fn here() -> ThreadId {
    std::thread::current().id()
}

/// DEV-4
#[test]
fn execution_never_gets_the_workers_that_are_kept_for_setup_and_cleanup() {
    let pool = pool(DeviceProfile::new(9, 4).lifecycle_workers(2));
    let door = Door::new();
    let runs: Vec<_> = (0..5).map(|_| pool.job("e").spawn(door.pass()).unwrap()).collect();
    door.wait_for(2);
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (2, 3));
    let setups: Vec<_> =
        (0..2).map(|_| pool.job("s").kind(DeviceKind::SETUP).spawn(door.pass()).unwrap()).collect();
    door.wait_for(2);
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (4, 3));
    door.open();
    runs.into_iter().chain(setups).for_each(|it| get(it).unwrap());
    assert_eq!(pool.snapshot().peak_active, 4);
    assert_eq!(pool.snapshot().peak_executing, 2);
    assert_idle(&pool);
}

/// DEV-4
#[test]
fn setup_and_cleanup_may_have_all_workers_when_nothing_executes() {
    let pool = pool(DeviceProfile::new(4, 3));
    let door = Door::new();
    let kinds = [DeviceKind::SETUP, DeviceKind::CLEANUP, DeviceKind::SETUP, DeviceKind::CLEANUP];
    let runs = kinds.map(|kind| pool.job("l").kind(kind).spawn(door.pass()).unwrap());
    door.wait_for(3);
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (3, 1));
    door.open();
    runs.into_iter().for_each(|it| get(it).unwrap());
    assert_idle(&pool);
}

/// DEV-4
#[test]
fn setup_and_cleanup_complete_while_execution_has_its_threads_for_good() {
    // blocked threads are the worst there is: nothing can be polled on them
    let pool = pool(DeviceProfile::new(20, 3).auxiliary(2));
    let attempts: Vec<_> = (0..8).map(|_| admit(&pool)).collect();
    let door = Door::new();
    let way = door.way();
    let held: Vec<_> = (0..8)
        .map(|_| {
            let way = way.clone();
            pool.job("for good").spawn(async move { way.block() }).unwrap()
        })
        .collect();
    door.wait_for(2);
    // from outside, under an attempt, at an attempt's end
    for kind in [DeviceKind::SETUP, DeviceKind::CLEANUP] {
        get(pool.job("direct").kind(kind).run(Yield(3))).unwrap();
        get(pool.job("direct").kind(kind).spawn(Yield(3)).unwrap()).unwrap();
        get(attempts[0].job("under").kind(kind).run(Yield(3))).unwrap();
    }
    // from inside one, in every way
    let (under, outer) = (attempts[1].handle(), pool.clone());
    let nested = attempts[1].job("outer").kind(DeviceKind::SETUP).run(async move {
        let more = under.job("more").kind(DeviceKind::SETUP).charge(Class::Auxiliary);
        more.run(Yield(3)).await.unwrap();
        outer.job("inner").kind(DeviceKind::CLEANUP).run(Yield(3)).await.unwrap();
        let apart = outer.job("apart").kind(DeviceKind::CLEANUP).spawn(Yield(3)).unwrap();
        apart.await.unwrap();
        let unwatched = outer.job("unwatched").kind(DeviceKind::SETUP);
        drop(unwatched.spawn(Yield(3)).unwrap());
        let next = outer.admission().await.unwrap();
        next.release("free", Yield(3)).unwrap().await.unwrap();
    });
    get(nested).unwrap();
    for attempt in attempts {
        get(attempt.release("free", Yield(3)).unwrap()).unwrap();
    }
    eventually("only what executes is left", || pool.jobs().len() == 8);
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (2, 6));
    door.open();
    held.into_iter().for_each(|it| get(it).unwrap());
    shut_down(&pool);
}

/// DEV-6
#[test]
fn a_job_from_within_the_pool_runs_on_its_submitters_thread_and_worker_and_counts() {
    let pool = pool(DeviceProfile::new(4, 4).auxiliary(2));
    let attempt = admit(&pool);
    let mut events = pool.events();
    let (under, outer) = (attempt.handle(), pool.clone());
    let job = attempt.job("outer").run_with(move |cx| async move {
        let (thread, worker) = (here(), cx.worker());
        assert!(worker.is_some());
        let scan = under.job("scan").kind(DeviceKind::AUXILIARY);
        let scanned = scan.run_with(move |cx| async move {
            let it = outer.snapshot();
            assert_eq!((it.active, it.executing), (2, 1));
            assert_eq!(it.class(Class::Auxiliary).unwrap().free, 7, "the class is counted");
            (here(), cx.worker())
        });
        assert_eq!(scanned.await.unwrap(), (thread, worker));
    });
    get(job).unwrap();
    let all = by_job(&read(&mut events));
    let [outer, inner] = &all[..] else { panic!("{all:?}") };
    assert_eq!(outer[1], inner[1], "both say the same worker");
    assert_eq!(pool.snapshot().peak_active, 2);
    drop(attempt);
    assert_idle(&pool);
}

/// DEV-6
#[test]
fn one_seat_for_execution_composes_with_itself_to_any_depth() {
    let pool = pool(DeviceProfile::new(40, 2));
    fn nest(pool: Pool, depth: u32) -> std::pin::Pin<Box<dyn Future<Output = u32> + Send>> {
        Box::pin(async move {
            if depth == 0 {
                return 0;
            }
            let inner = pool.job("inner").run(nest(pool.clone(), depth - 1));
            inner.await.unwrap() + 1
        })
    }
    assert_eq!(get(pool.job("outer").run(nest(pool.clone(), 39))).unwrap(), 39);
    assert_eq!((pool.snapshot().peak_active, pool.snapshot().peak_executing), (40, 40));
    let too_deep = get(pool.job("outer").run({
        let pool = pool.clone();
        async move {
            let all: Vec<_> = (0..39).map(|_| pool.admission().try_admit().unwrap()).collect();
            let one_more = refused(pool.job("inner").run(async {}).await);
            drop(all);
            one_more
        }
    }));
    assert_eq!(too_deep.unwrap(), Refused::ClassFull { class: Class::Root, capacity: 40 });
    assert_idle(&pool);
}

/// DEV-6
#[test]
fn execution_within_setup_takes_a_seat_or_is_refused_and_never_waits() {
    let pool = pool(DeviceProfile::new(9, 3));
    let door = Door::new();
    let held = [0, 1].map(|_| pool.job("e").spawn(door.pass()).unwrap());
    door.wait_for(2);
    let inner = pool.clone();
    let setup = pool.job("s").kind(DeviceKind::SETUP).run(async move {
        let alive = Alive::default();
        let token = alive.token();
        let no = inner.job("no").run(async move { drop(token) }).await;
        assert_eq!(alive.count(), 0);
        let aux = inner.admission().await.unwrap();
        let no_scan = aux.job("no").kind(DeviceKind::AUXILIARY).run(async {}).await;
        (refused(no), refused(no_scan))
    });
    assert_eq!(get(setup).unwrap(), (Refused::NoSeat, Refused::NoSeat));
    assert_eq!(pool.snapshot().active, 2);
    door.open();
    held.into_iter().for_each(|it| get(it).unwrap());
    // with one free it takes that: another job does not get it meanwhile
    let (inner, way) = (pool.clone(), Door::new());
    let door = Door::new();
    let other = pool.job("e").spawn(door.pass()).unwrap();
    door.wait();
    let pass = way.pass();
    let setup = pool.job("s").kind(DeviceKind::SETUP).spawn(async move {
        inner.job("yes").run(pass).await.unwrap();
    });
    way.wait();
    let third = pool.job("third").spawn(async {}).unwrap();
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (3, 1));
    way.open();
    get(setup.unwrap()).unwrap();
    get(third).unwrap();
    door.open();
    get(other).unwrap();
    assert_idle(&pool);
    shut_down(&pool);
}

/// DEV-6
#[test]
fn a_closed_pool_says_so_to_its_own_jobs() {
    let pool = pool(DeviceProfile::new(9, 2));
    let door = Door::new();
    let held = pool.job("e").spawn(door.pass()).unwrap();
    door.wait();
    let (inner, attempt) = (pool.clone(), admit(&pool));
    let setup = pool.job("s").kind(DeviceKind::SETUP).run(async move {
        inner.close();
        let run = inner.job("no").run(async {}).await;
        let spawned = inner.job("no").spawn(async {});
        let blocking = inner.job("no").submit_blocking(|| ());
        let under = attempt.job("no").kind(DeviceKind::AUXILIARY).run(async {}).await;
        let root = attempt.job("no").kind(DeviceKind::SETUP).run(async {}).await;
        [refused(run), refused(spawned), refused(blocking), refused(under), refused(root)]
    });
    for refusal in get(setup).unwrap() {
        assert!(matches!(refusal, Refused::Closed { .. }), "{refusal}");
    }
    door.open();
    get(held).unwrap();
    shut_down(&pool);
}

/// DEV-5, DEV-6
#[test]
fn a_panic_of_a_job_within_another_is_an_error_and_not_the_others() {
    let pool = pool(DeviceProfile::new(3, 2));
    let mut events = pool.events();
    let inner = pool.clone();
    let outer = pool.job("outer").run(async move {
        let panicked = reason(inner.job("inner").run(async { panic!("inner") }).await);
        assert!(matches!(&panicked, Reason::Panicked(it) if it.message() == Some("inner")));
        let dropped = reason(
            inner.job("bomb").run(async { Bomb }).await.map(std::mem::forget).and(
                inner
                    .job("bomb")
                    .run(async {
                        let _bomb = Bomb;
                        std::future::pending::<()>().await;
                    })
                    .await,
            ),
        );
        drop(dropped);
    });
    let mut outer = outer;
    start(&mut outer);
    eventually("the last is there", || pool.jobs().len() == 2);
    drop(outer);
    settles(&pool);
    let all = by_job(&read(&mut events));
    all.iter().for_each(|it| assert_lifecycle(it));
    let ends: Vec<_> = all.iter().map(|it| *it.last().unwrap()).collect();
    assert_eq!(
        ends[..3],
        [
            // its own future's destructor panics as it is dropped
            EventKind::Ended(Outcome::Cancelled),
            EventKind::Ended(Outcome::Panicked),
            EventKind::Ended(Outcome::Finished),
        ]
    );
    shut_down(&pool);
}

/// DEV-5, DEV-6
#[test]
fn a_job_within_another_that_is_dropped_half_way_leaves_nothing() {
    let pool = pool(DeviceProfile::new(3, 3));
    let mut events = pool.events();
    let (inner, alive) = (pool.clone(), Alive::default());
    let token = alive.token();
    let setup = pool.job("outer").kind(DeviceKind::SETUP).run(async move {
        let (before, polled) = (inner.snapshot().active, Door::new());
        let (pass, token) = (polled.pass(), token);
        let mut run = inner.job("inner").run(async move {
            let _token = token;
            pass.await;
        });
        assert!(futures_lite::future::poll_once(&mut run).await.is_none());
        polled.wait();
        assert_eq!(inner.snapshot().active, before + 1);
        drop(run);
        assert_eq!(inner.snapshot().active, before);
        assert_eq!(inner.snapshot().class(Class::Root).unwrap().free, 2);
    });
    get(setup).unwrap();
    assert_eq!(alive.count(), 0);
    let inner = &by_job(&read(&mut events))[1];
    assert_lifecycle(inner);
    assert_eq!(
        inner[2..],
        [EventKind::CancellationRequested, EventKind::Ended(Outcome::Cancelled)]
    );
    // its seat for execution is back as well: two can execute
    let door = Door::new();
    let both = [0, 1].map(|_| pool.job("e").spawn(door.pass()).unwrap());
    door.wait_for(2);
    door.open();
    both.into_iter().for_each(|it| get(it).unwrap());
    assert_idle(&pool);
}

/// DEV-6
#[test]
fn a_task_that_a_job_spawned_counts_as_within_the_pool() {
    let pool = pool(DeviceProfile::new(9, 3));
    let door = Door::new();
    let inner = pool.clone();
    // with a seat free it has one, and so a worker
    let free = pool.job("outer").run({
        let inner = inner.clone();
        async move {
            tokio::spawn(async move {
                let thread = here();
                inner
                    .job("in task")
                    .run_with(move |cx| async move {
                        assert_eq!(here(), thread);
                        cx.worker()
                    })
                    .await
            })
            .await
            .unwrap()
        }
    });
    assert!(get(free).unwrap().unwrap().is_some());
    // without, it runs under whatever seat its parent has
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    let full = pool.job("outer").run(async move {
        let task = tokio::spawn(async move {
            let run = inner.job("in task").run_with(|cx| async move { cx.worker() });
            run.await
        });
        task.await.unwrap()
    });
    assert_eq!(get(full).unwrap().unwrap(), None);
    door.open();
    get(held).unwrap();
    shut_down(&pool);
}

/// DEV-6
#[test]
fn a_job_that_waits_for_a_worker_runs_within_the_one_that_awaits_it() {
    let pool = pool(DeviceProfile::new(9, 2));
    let mut events = pool.events();
    let inner = pool.clone();
    let outer = pool.job("outer").run_with(move |cx| async move {
        let thread = here();
        let task = inner.job("queued").spawn_with(move |inner| async move {
            assert_eq!((here(), inner.worker()), (thread, cx.worker()));
            7
        });
        assert_eq!(inner.snapshot().queued, 1);
        task.unwrap().await
    });
    assert_eq!(get(outer).unwrap().unwrap(), 7);
    // and on the thread of a blocking job, whether that awaits or joins
    let inner = pool.clone();
    let door = Door::new();
    let held = pool.job("held").spawn(door.pass()).unwrap();
    door.wait();
    let blocking = pool.job("blocking").submit_blocking(move || {
        let thread = here();
        let run = inner.job("run").run(async move { assert_eq!(here(), thread) });
        get(run).unwrap();
        let task = inner.job("join").spawn(async move { assert_eq!(here(), thread) }).unwrap();
        task.join().unwrap();
        let nested = inner.job("nested").submit_blocking(move || assert_eq!(here(), thread));
        let nested = nested.unwrap();
        assert!(nested.is_done(), "it has run when it is accepted");
        nested.join().unwrap();
    });
    get(blocking.unwrap()).unwrap();
    door.open();
    get(held).unwrap();
    by_job(&read(&mut events)).iter().for_each(|it| assert_lifecycle(it));
    assert_idle(&pool);
}

/// DEV-6
#[test]
fn a_job_may_join_what_it_spawned_whichever_seat_either_has() {
    let pool = pool(DeviceProfile::new(20, 2));
    let inner = pool.clone();
    let outer = pool.job("outer").run(async move {
        for kind in [DeviceKind::EXECUTION, DeviceKind::SETUP, DeviceKind::CLEANUP] {
            inner.job("joined").kind(kind).spawn(Yield(2)).unwrap().join().unwrap();
        }
        let stopped = inner.job("stopped").spawn(std::future::pending::<()>()).unwrap();
        assert!(stopped.cancel());
        assert!(matches!(reason(stopped.join()), Reason::Cancelled));
        inner.job("blocking").submit_blocking(|| 1).unwrap().join().unwrap()
    });
    assert_eq!(get(outer).unwrap(), 1);
    assert_idle(&pool);
}

/// DEV-5
#[test]
fn worker_numbers_are_distinct_among_those_that_run_and_are_used_again() {
    let pool = pool(DeviceProfile::new(20, 5));
    for _ in 0..3 {
        let door = Door::new();
        let (tell, told) = channel();
        let tasks: Vec<_> = (0..5)
            .map(|i| {
                let (tell, pass) = (tell.clone(), door.pass());
                let kind = if i < 4 { DeviceKind::EXECUTION } else { DeviceKind::SETUP };
                let task = pool.job("w").kind(kind).spawn_with(move |cx| {
                    tell.send(cx.worker().unwrap()).unwrap();
                    pass
                });
                task.unwrap()
            })
            .collect();
        door.wait_for(5);
        let mut workers: Vec<_> = told.try_iter().collect();
        workers.sort_unstable();
        assert_eq!(workers, [0, 1, 2, 3, 4]);
        // however they end
        let (mut cancelled, finished): (Vec<_>, Vec<_>) =
            tasks.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
        for (_, task) in &mut cancelled {
            task.cancel();
            assert!(matches!(reason(get(task)), Reason::Cancelled));
        }
        door.open();
        finished.into_iter().for_each(|(_, it)| get(it).unwrap());
    }
    assert_idle(&pool);
}

/// DEV-4
#[test]
fn a_job_spawned_by_one_that_then_keeps_its_thread_runs_elsewhere() {
    let pool = pool(DeviceProfile::new(20, 3));
    for _ in 0..20 {
        let inner = pool.clone();
        let outer = pool.job("outer").run(async move {
            let (tell, told) = channel();
            let other = tell.clone();
            inner.job("e").spawn(async move { tell.send(()).unwrap() }).map(drop).unwrap();
            let setup = inner.job("s").kind(DeviceKind::SETUP);
            setup.spawn(async move { other.send(()).unwrap() }).map(drop).unwrap();
            // as a call of a driver would
            told.recv_timeout(PATIENCE).expect("one runs elsewhere");
            told.recv_timeout(PATIENCE).expect("so does the other");
        });
        get(outer).unwrap();
    }
    // they end after they have told
    settles(&pool);
}

/// DEV-4
#[test]
fn a_job_woken_by_one_that_then_keeps_its_thread_goes_on_elsewhere() {
    let pool = pool(DeviceProfile::new(20, 3));
    for _ in 0..20 {
        let (wake, woken) = tokio::sync::oneshot::channel::<()>();
        let (tell, told) = channel();
        let door = Door::new();
        let pass = door.pass();
        let waits = pool.job("waits").kind(DeviceKind::SETUP).spawn(async move {
            pass.await;
            woken.await.unwrap();
            tell.send(()).unwrap();
        });
        door.wait();
        door.open();
        let keeps = pool.job("keeps").run(async move {
            // it may still be on its way to the wait
            std::thread::yield_now();
            wake.send(()).unwrap();
            told.recv_timeout(PATIENCE).expect("whom it woke goes on elsewhere");
        });
        get(keeps).unwrap();
        get(waits.unwrap()).unwrap();
    }
    assert_idle(&pool);
}

/// DEV-4, DEV-5
#[test]
fn a_job_cancelled_by_one_that_then_keeps_its_thread_ends_elsewhere() {
    let pool = pool(DeviceProfile::new(20, 3));
    for _ in 0..20 {
        let (door, gone) = (Door::new(), channel());
        let (pass, tell) = (door.pass(), gone.0);
        let waits = pool.job("waits").spawn(async move {
            let _token = OnDrop(move || tell.send(()).unwrap());
            pass.await;
        });
        let (waits, told) = (waits.unwrap(), gone.1);
        door.wait();
        let keeps = pool.job("keeps").run(async move {
            assert!(waits.cancel());
            told.recv_timeout(PATIENCE).expect("whom it cancelled ends elsewhere");
            waits.join()
        });
        assert!(matches!(reason(get(keeps).unwrap()), Reason::Cancelled));
    }
    assert_idle(&pool);
}

/// DEV-4
#[test]
fn a_job_woken_by_the_end_of_one_whose_seat_another_gets_goes_on_elsewhere() {
    let pool = pool(DeviceProfile::new(20, 3));
    // by the result, and by what is dropped with a result that nobody wants
    for wanted in [true, false].repeat(10) {
        let (ends, holds) = (Door::new(), Door::new());
        let (tell, told) = channel();
        let (dropped, gone) = tokio::sync::oneshot::channel::<()>();
        let pass = ends.pass();
        let first = pool.job("ends").spawn(async move {
            pass.await;
            dropped
        });
        ends.wait();
        let (first, way) = (first.unwrap(), holds.way());
        let waits = pool.job("waits").spawn(async move {
            if wanted {
                way.pass().await;
                drop(first.await.unwrap());
            } else {
                drop(first);
                way.pass().await;
                let _ = gone.await;
            }
            tell.send(()).unwrap();
        });
        holds.wait();
        holds.open();
        let next = pool.job("next").spawn(async move {
            told.recv_timeout(PATIENCE).expect("whom the end of a job woke goes on elsewhere");
        });
        assert_eq!(pool.snapshot().queued, 1);
        ends.open();
        get(next.unwrap()).unwrap();
        get(waits.unwrap()).unwrap();
    }
    settles(&pool);
}

/// DEV-4
#[test]
fn a_job_woken_by_a_callback_that_then_keeps_its_thread_goes_on_elsewhere() {
    let pool = pool(DeviceProfile::new(20, 3));
    for _ in 0..20 {
        let (wake, woken) = tokio::sync::oneshot::channel::<()>();
        let (tell, told) = channel();
        let (heard, hears) = channel();
        let door = Door::new();
        let pass = door.pass();
        let waits = pool.job("waits").spawn(async move {
            pass.await;
            woken.await.unwrap();
            tell.send(()).unwrap();
        });
        door.wait();
        door.open();
        let calls = pool.job("calls").on_complete(move || {
            std::thread::yield_now();
            wake.send(()).unwrap();
            heard.send(told.recv_timeout(PATIENCE)).unwrap();
        });
        get(calls.run(async {})).unwrap();
        hears.recv().unwrap().expect("whom it woke goes on elsewhere");
        get(waits.unwrap()).unwrap();
    }
    settles(&pool);
}

/// DEV-4
#[test]
fn a_seat_goes_to_the_next_job_without_a_spawn_unless_something_else_waits_for_the_thread() {
    let pool = pool(DeviceProfile::new(20, 2));
    for spawns in [false, true] {
        let door = Door::new();
        let (pass, other) = (door.pass(), tokio::sync::oneshot::channel::<()>());
        let first = pool.job("first").spawn(async move {
            pass.await;
            let task = spawns.then(|| tokio::spawn(other.1));
            (tokio::task::id(), task)
        });
        door.wait();
        let next: Vec<_> =
            (0..5).map(|_| pool.job("next").spawn(async { tokio::task::id() }).unwrap()).collect();
        door.open();
        let (id, task) = get(first.unwrap()).unwrap();
        let ids: Vec<_> = next.into_iter().map(|it| get(it).unwrap()).collect();
        assert_eq!(ids.iter().all(|it| *it == id), !spawns, "{id} {ids:?}");
        drop(other.0);
        task.into_iter().for_each(|it| drop(get(it)));
    }
    settles(&pool);
}

/// DEV-4
#[test]
fn a_task_of_a_job_whose_seat_another_gets_is_not_held_up_by_that() {
    let pool = pool(DeviceProfile::new(20, 3));
    for _ in 0..20 {
        let door = Door::new();
        let (tell, told) = channel();
        let pass = door.pass();
        let first = pool.job("spawns").spawn(async move {
            pass.await;
            tokio::spawn(async move { tell.send(()).unwrap() });
        });
        let other = Door::new();
        let second = pool.job("other").spawn(other.pass());
        door.wait();
        other.wait();
        let next = pool.job("next").spawn(async move {
            told.recv_timeout(PATIENCE).expect("what a job spawned runs elsewhere");
        });
        door.open();
        get(next.unwrap()).unwrap();
        get(first.unwrap()).unwrap();
        other.open();
        get(second.unwrap()).unwrap();
    }
    settles(&pool);
}

/// DEV-4
#[test]
fn closing_leaves_the_seats_open_until_the_pool_has_drained() {
    let pool = pool(DeviceProfile::new(9, 2));
    let door = Door::new();
    let running = pool.job("running").spawn(door.pass()).unwrap();
    door.wait();
    let queued: Vec<_> =
        (0..5).map(|i| pool.job("queued").spawn(async move { i }).unwrap()).collect();
    pool.close();
    assert_eq!(pool.snapshot().queued, 5);
    door.open();
    get(running).unwrap();
    let results: Vec<_> = queued.into_iter().map(|it| get(it).unwrap()).collect();
    assert_eq!(results, [0, 1, 2, 3, 4]);
    shut_down(&pool);
}

use std::future::Future;
