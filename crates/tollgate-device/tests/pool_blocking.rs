//! Blocking jobs: their threads, how they end, and what is called then.

mod support;

use std::sync::mpsc::channel;
use support::pools::*;
use support::{Alive, PATIENCE, eventually};
use tollgate_device::admission::{Deadline, JobState};
use tollgate_device::{
    Class, DeviceKind, DeviceProfile, EventKind, Outcome, Phase, Reason, Refused,
};

/// DEV-7
#[test]
fn blocking_jobs_are_bounded_by_their_class_alone() {
    // more than there are workers, also while those are taken for good
    let pool = pool(DeviceProfile::new(6, 2).auxiliary(2));
    let door = Door::new();
    let way = door.way();
    let worker = pool.job("worker").spawn(async move { way.block() }).unwrap();
    let attempt = admit(&pool);
    let block = |kind| {
        let way = door.way();
        attempt.job("b").kind(kind).submit_blocking(move || way.block())
    };
    let mut held =
        vec![block(DeviceKind::AUXILIARY).unwrap(), block(DeviceKind::AUXILIARY).unwrap()];
    held.push(block(DeviceKind::EXECUTION).unwrap());
    held.extend((0..4).map(|_| {
        let way = door.way();
        pool.job("b").submit_blocking(move || way.block()).unwrap()
    }));
    door.wait_for(8);
    let full = Refused::ClassFull { class: Class::Root, capacity: 6 };
    assert_eq!(refused(pool.job("b").submit_blocking(|| ())), full);
    assert_eq!((pool.snapshot().active, pool.snapshot().queued), (8, 0));
    door.open();
    held.into_iter().for_each(|it| get(it).unwrap());
    get(worker).unwrap();
    drop(attempt);
    assert_idle(&pool);
}

/// DEV-7
#[test]
fn a_started_job_always_delivers_whoever_has_left() {
    let pool = pool(DeviceProfile::new(4, 2));
    let mut events = pool.events();
    let (door, tell) = (Door::new(), channel());
    let (way, alive) = (door.way(), Alive::default());
    let token = alive.token();
    let told = tell.0.clone();
    let task = pool.job("b").on_complete(move || tell.0.send("called").unwrap()).submit_blocking(
        move || {
            way.block();
            told.send("ran").unwrap();
            token
        },
    );
    door.wait();
    drop(task);
    assert_eq!(pool.jobs()[0].state, JobState::Abandoned);
    assert_eq!(free(&pool, Class::Root), 3, "it holds its permit until it has ended");
    door.open();
    assert_eq!(tell.1.recv_timeout(PATIENCE), Ok("ran"));
    assert_eq!(tell.1.recv_timeout(PATIENCE), Ok("called"));
    settles(&pool);
    assert_eq!(alive.count(), 0);
    let all = by_job(&read(&mut events));
    assert_eq!(
        all[0][1..],
        [EventKind::Started { worker: None }, EventKind::Ended(Outcome::Finished)]
    );
}

/// DEV-7
#[test]
fn cancelling_asks_a_running_job_by_its_token() {
    let pool = pool(DeviceProfile::new(4, 2));
    let mut events = pool.events();
    let door = Door::new();
    let way = door.way();
    let task = pool.job("b").submit_blocking_with(move |cx| {
        way.block();
        cx.token().is_cancelled()
    });
    let task = task.unwrap();
    door.wait();
    assert!(task.cancel());
    assert!(!task.cancel());
    door.open();
    assert!(get(task).unwrap(), "and delivers");
    assert_eq!(
        by_job(&read(&mut events))[0][2..],
        [EventKind::CancellationRequested, EventKind::Ended(Outcome::Finished)]
    );
    assert_idle(&pool);
}

/// DEV-7
#[test]
fn panics_of_blocking_jobs_come_back_as_errors() {
    let pool = pool(DeviceProfile::new(4, 2));
    for _ in 0..10 {
        let tell = channel();
        let task = pool
            .job("p")
            .on_complete(move || tell.0.send(()).unwrap())
            .submit_blocking(|| -> u8 { panic!("boom") })
            .unwrap();
        let error = task.join().unwrap_err();
        assert!(matches!(error.reason(), Reason::Panicked(it) if it.message() == Some("boom")));
        tell.1.recv_timeout(PATIENCE).expect("called also then");
    }
    settles(&pool);
    assert_eq!(get(pool.job("fine").submit_blocking(|| 1).unwrap()).unwrap(), 1);
    assert_idle(&pool);
}

/// DEV-7, DEV-15
#[test]
fn a_callback_comes_once_after_the_outcome_can_be_had_and_before_the_job_is_no_longer_counted() {
    let pool = pool(DeviceProfile::new(4, 3));
    let recorder = pool.recorder();
    // finished, panicked, cancelled while it ran, cancelled while it waited; async and blocking
    for case in 0..6 {
        let (door, look, tell) = (Door::new(), pool.clone(), channel());
        let hold = Door::new();
        let held = (case == 5).then(|| {
            let held = [0, 1].map(|_| pool.job("held").spawn(hold.pass()).unwrap());
            hold.wait_for(2);
            held
        });
        let free_before = free(&pool, Class::Root);
        let (calls, called) = channel();
        let gate = Door::new();
        let way = gate.way();
        let job = pool.job("job").on_complete(move || {
            way.block();
            let snapshot = look.snapshot();
            let free = snapshot.class(Class::Root).unwrap().free;
            calls.send((snapshot.ending, snapshot.active, free)).unwrap();
        });
        let (way, pass) = (door.way(), door.pass());
        let outcome = match case {
            0 => Outcome::Finished,
            1 => Outcome::Panicked,
            2 => Outcome::Finished,
            3 => Outcome::Panicked,
            _ => Outcome::Cancelled,
        };
        let mut done: Box<dyn FnMut() -> bool> = match case {
            0 | 1 => {
                let task = job.submit_blocking(move || {
                    way.block();
                    assert!(case == 0, "a panic");
                });
                let task = task.unwrap();
                Box::new(move || task.is_done())
            }
            _ => {
                let task = job.spawn(async move {
                    pass.await;
                    assert!(case == 2, "a panic");
                });
                let task = task.unwrap();
                if case == 4 {
                    door.wait();
                }
                if case >= 4 {
                    let stop = std::thread::spawn(move || {
                        task.cancel();
                        let _ = tell.0.send(());
                        task
                    });
                    gate.wait();
                    gate.open();
                    let task = stop.join().unwrap();
                    Box::new(move || task.is_done())
                } else {
                    Box::new(move || task.is_done())
                }
            }
        };
        door.open();
        if case < 4 {
            gate.wait();
            assert!(done(), "the outcome can be had while the callback runs");
            let last = recorder.recording().events.last().unwrap().what;
            assert_eq!(last, EventKind::Ended(outcome));
            assert_eq!(pool.snapshot().ending, 1, "it is still counted");
            gate.open();
        }
        let (ending, active, free) = called.recv_timeout(PATIENCE).unwrap();
        assert_eq!((ending, active), (1, if case == 5 { 2 } else { 0 }));
        assert_eq!(free, free_before, "its permit is back");
        eventually("it leaves", || pool.snapshot().ending == 0);
        assert!(done());
        assert!(called.recv().is_err(), "once");
        hold.open();
        if let Some(held) = held {
            held.into_iter().for_each(|it| get(it).unwrap());
        }
    }
    assert_idle(&pool);
    shut_down(&pool);
}

/// DEV-7
#[test]
fn a_callback_may_panic_or_use_the_pool_or_drop_it() {
    let pool = pool(DeviceProfile::new(4, 2));
    let mut events = pool.events();
    let panics = pool.job("panics").on_complete(|| panic!("a callback")).submit_blocking(|| 1);
    assert_eq!(get(panics.unwrap()).unwrap(), 1);
    let panics = pool.job("panics").on_complete(|| std::panic::panic_any(Bomb)).spawn(async { 1 });
    assert_eq!(get(panics.unwrap()).unwrap(), 1);
    settles(&pool);
    let (uses, tell) = (pool.clone(), channel());
    let again = tell.0.clone();
    let job = pool.job("uses").on_complete(move || {
        let blocking = uses.job("inner").submit_blocking(|| 2).unwrap();
        let spawned = uses.job("inner").spawn(async { 3 }).unwrap();
        tell.0.send(blocking.join().unwrap() + spawned.join().unwrap()).unwrap();
    });
    get(job.spawn(async {}).unwrap()).unwrap();
    assert_eq!(tell.1.recv_timeout(PATIENCE), Ok(5));
    settles(&pool);
    let last = pool.clone();
    let way = Door::new();
    let pass = way.pass();
    let job = pool.job("drops").on_complete(move || {
        drop(last);
        again.send(6).unwrap();
    });
    drop(job.spawn(pass).unwrap());
    drop(pool);
    way.open();
    assert_eq!(tell.1.recv_timeout(PATIENCE), Ok(6));
    get(async { while events.recv().await.is_some() {} });
}

/// DEV-7
#[test]
fn a_refused_job_calls_nobody_back() {
    let pool = pool(DeviceProfile::new(1, 2));
    let attempt = admit(&pool);
    let alive = Alive::default();
    for _ in 0..2 {
        let (first, second) = (alive.token(), alive.token());
        let job = pool.job("no").on_complete(move || drop(first));
        let _ = job.submit_blocking(move || drop(second)).unwrap_err();
        let (first, second) = (alive.token(), alive.token());
        let job =
            pool.job("no").on_complete(move || panic!("called {}", std::mem::size_of_val(&first)));
        let _ = get(job.run(async move { drop(second) })).unwrap_err();
    }
    assert_eq!(alive.count(), 0, "and nothing is kept");
    drop(attempt);
    assert_idle(&pool);
}

/// DEV-7, DEV-17
#[test]
fn at_the_end_of_the_runtime_every_job_can_be_joined_and_every_callback_has_come_once() {
    let pool = pool(DeviceProfile::new(8, 2));
    let mut events = pool.events();
    let (door, tell) = (Door::new(), channel());
    let job = |name: &'static str| {
        let tell = tell.0.clone();
        pool.job(name).on_complete(move || tell.send(name).unwrap())
    };
    let way = door.way();
    let blocking = job("blocking").submit_blocking_with(move |cx| {
        way.block();
        cx.token().is_cancelled()
    });
    let awaits = job("awaits").spawn(door.pass()).unwrap();
    door.wait_for(2);
    let queued = job("queued").spawn(async {}).unwrap();
    pool.close();
    pool.request_exit().unwrap();
    assert!(matches!(reason(get(awaits)), Reason::Lost));
    assert!(matches!(reason(get(queued)), Reason::Lost));
    let waits = get(futures_lite::future::poll_once(pool.wait(Phase::Runtime, Deadline::never())));
    assert!(waits.is_none(), "what is synchronous is waited for");
    let blocking = blocking.unwrap();
    assert!(!blocking.is_done());
    door.open();
    assert!(get(blocking).unwrap(), "it delivers, and was asked");
    get(pool.wait(Phase::Supervisor, Deadline::after(PATIENCE))).unwrap();
    let mut names: Vec<_> = tell.1.try_iter().collect();
    names.sort_unstable();
    assert_eq!(names, ["awaits", "blocking", "queued"]);
    let all = by_job(&read(&mut events));
    all.iter().for_each(|it| assert_lifecycle(it));
    assert_eq!(all[2], [EventKind::Enqueued, EventKind::Ended(Outcome::Dropped)]);
    assert_idle(&pool);
    shut_down(&pool);
}
