//! What is told of jobs: events in order, figures that agree, peaks that are exact.

mod support;

use std::sync::Arc;
use std::sync::mpsc::channel;
use support::eventually;
use support::pools::*;
use tollgate_device::admission::JobState;
use tollgate_device::{Class, DeviceKind, DeviceProfile, EventKind, Outcome, Tracker};

use EventKind::{CancellationRequested, Ended, Enqueued};

fn started(worker: u32) -> EventKind {
    EventKind::Started { worker: Some(worker) }
}

/// DEV-15
#[test]
fn every_way_to_end_has_its_events_in_order() {
    let pool = pool(DeviceProfile::new(8, 2));
    let mut events = pool.events();
    get(pool.job("finishes").run(async {})).unwrap();
    let _ = get(pool.job("panics").run(async { panic!("no") })).unwrap_err();
    let door = Door::new();
    let running = pool.job("running").spawn(door.pass()).unwrap();
    door.wait();
    let queued = pool.job("queued").spawn(async {}).unwrap();
    // the other way round the one that waits might begin between the two
    assert!(queued.cancel() && running.cancel());
    let _ = (get(running).unwrap_err(), get(queued).unwrap_err());
    let lost = pool.job("lost").spawn(std::future::pending::<()>()).unwrap();
    eventually("it runs", || pool.snapshot().active == 1);
    let waits = pool.job("waits").spawn(async {}).unwrap();
    pool.close();
    pool.request_exit().unwrap();
    let _ = (get(lost).unwrap_err(), get(waits).unwrap_err());
    shut_down(&pool);
    let all = read(&mut events);
    assert_eq!(
        by_job(&all),
        [
            vec![Enqueued, started(0), Ended(Outcome::Finished)],
            vec![Enqueued, started(0), Ended(Outcome::Panicked)],
            vec![Enqueued, started(0), CancellationRequested, Ended(Outcome::Cancelled)],
            vec![Enqueued, CancellationRequested, Ended(Outcome::Cancelled)],
            vec![Enqueued, started(0), Ended(Outcome::Dropped)],
            vec![Enqueued, Ended(Outcome::Dropped)],
        ]
    );
    let numbers: Vec<_> = all.iter().map(|it| it.number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "without a gap");
    let first = &all[0];
    assert_eq!((first.name.as_str(), first.kind), ("finishes", DeviceKind::EXECUTION));
    assert_eq!(first.class, Class::Root);
}

/// DEV-15
#[test]
fn each_job_has_one_terminal_event_under_every_race() {
    let pool = pool(DeviceProfile::new(64, 4));
    let pool = Arc::new(pool);
    let mut events = pool.events();
    let mut accepted = 0;
    for round in 0..100 {
        let tasks: Vec<_> =
            (0..8).map(|i| pool.job("raced").spawn(Yield(i % 3)).unwrap()).collect();
        accepted += 8;
        let stoppers: Vec<_> = tasks
            .into_iter()
            .enumerate()
            .map(|(i, task)| {
                move || {
                    if (i + round) % 3 == 0 {
                        drop(task);
                    } else {
                        task.cancel();
                        let _ = get(task);
                    }
                }
            })
            .collect();
        let threads: Vec<_> = stoppers.into_iter().map(std::thread::spawn).collect();
        threads.into_iter().for_each(|it| it.join().unwrap());
        settles(&pool);
        let all = by_job(&read(&mut events));
        assert_eq!(all.len(), 8);
        all.iter().for_each(|it| assert_lifecycle(it));
    }
    assert_eq!(pool.snapshot().class(Class::Root).unwrap().admitted, accepted);
    assert_eq!(events.missed(), 0);
}

/// DEV-15
#[test]
fn an_observer_that_is_late_misses_some_and_knows_how_many() {
    let pool = builder(DeviceProfile::new(2, 2)).events(4).build().unwrap();
    let (mut late, mut later) = (pool.events(), pool.events());
    let recorder = pool.recorder();
    for _ in 0..5 {
        get(pool.job("j").run(async {})).unwrap();
    }
    let seen: Vec<_> = read(&mut late).iter().map(|it| it.number).collect();
    assert_eq!((seen, late.missed()), (vec![12, 13, 14, 15], 11));
    get(pool.job("j").run(async {})).unwrap();
    let seen: Vec<_> = read(&mut late).iter().map(|it| it.number).collect();
    assert_eq!((seen, late.missed()), (vec![16, 17, 18], 11), "who keeps up misses no more");
    get(pool.job("j").run(async {})).unwrap();
    assert_eq!(get(later.recv()).unwrap().number, 18);
    assert_eq!(later.missed(), 17);
    let recording = recorder.recording();
    assert_eq!((recording.events.len(), recording.missed), (4, 17));
    assert_eq!(recording, recorder.recording(), "looking changes nothing");
    let mut fresh = pool.events();
    assert_eq!(fresh.try_recv(), None, "it follows from now on");
    get(pool.job("j").run(async {})).unwrap();
    assert_eq!((read(&mut fresh).len(), fresh.missed()), (3, 0));
}

/// DEV-15
#[test]
fn observers_that_never_read_hold_up_nobody() {
    let pool = builder(DeviceProfile::new(2, 2)).events(1).build().unwrap();
    let mut streams: Vec<_> = (0..8).map(|_| pool.events()).collect();
    for _ in 0..500 {
        get(pool.job("j").run(async {})).unwrap();
    }
    for stream in &mut streams {
        assert_eq!(read(stream).len(), 1);
        assert_eq!(stream.missed(), 1499);
    }
}

/// DEV-15
#[test]
fn events_are_kept_only_while_somebody_observes() {
    let pool = pool(DeviceProfile::new(2, 2));
    get(pool.job("unseen").run(async {})).unwrap();
    let recorder = pool.recorder();
    get(pool.job("seen").run(async {})).unwrap();
    assert_eq!(recorder.recording().events.len(), 3);
    drop(recorder);
    get(pool.job("unseen").run(async {})).unwrap();
    let recorder = pool.recorder();
    assert_eq!(recorder.recording().events, []);
    get(pool.job("seen").run(async {})).unwrap();
    let recording = recorder.recording();
    assert_eq!((recording.events[0].number, recording.events.len()), (4, 3));
}

/// DEV-15
#[test]
fn a_stream_wakes_its_reader_and_ends_with_the_pool() {
    let pool = pool(DeviceProfile::new(2, 2));
    let mut events = pool.events();
    let (rings, bell) = Rings::new();
    {
        let mut next = Box::pin(events.recv());
        let mut cx = std::task::Context::from_waker(&bell);
        assert!(next.as_mut().poll(&mut cx).is_pending());
        assert!(next.as_mut().poll(&mut cx).is_pending());
    }
    get(pool.job("j").run(async {})).unwrap();
    assert!(rings.count() >= 1);
    let reader = std::thread::spawn(move || {
        get(async {
            let mut kinds = Vec::new();
            while let Some(event) = events.recv().await {
                kinds.push(event.what);
            }
            assert_eq!(events.recv().await, None, "it stays so");
            kinds
        })
    });
    shut_down(&pool);
    assert_eq!(reader.join().unwrap(), [Enqueued, started(0), Ended(Outcome::Finished)]);
    get(async { assert_eq!(pool.events().recv().await, None, "also one that comes later") });
}

use std::future::Future;

/// DEV-15, DEV-16
#[test]
fn a_job_is_at_every_instant_in_exactly_one_of_queued_and_active() {
    let pool = pool(DeviceProfile::new(32, 3));
    fn look(pool: &Pool) {
        let it = pool.snapshot();
        let out: u64 = it.classes.iter().map(|it| it.capacity - it.free).sum();
        // no attempts here: each permit is a job's, and each job's permit is out until it ends
        assert_eq!(it.queued + it.active, out, "{it:?}");
        assert!(it.executing <= it.active && it.active <= it.peak_active, "{it:?}");
        assert!(it.peak_executing <= 2 && it.peak_active <= 3, "{it:?}");
    }
    let inner = pool.clone();
    get(pool.job("looks").run(async move { look(&inner) })).unwrap();
    let (stop, stopped) = channel::<()>();
    let looks = pool.clone();
    let looker = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            look(&looks);
        }
    });
    for round in 0..60 {
        let kind = if round % 4 == 0 { DeviceKind::SETUP } else { DeviceKind::EXECUTION };
        let tasks: Vec<_> =
            (0..16).map(|i| pool.job("j").kind(kind).spawn(Yield(i % 4)).unwrap()).collect();
        for (i, task) in tasks.into_iter().enumerate() {
            if i % 5 == 0 {
                task.cancel();
            }
            let _ = get(task);
        }
    }
    drop(stop);
    looker.join().unwrap();
    assert_idle(&pool);
}

/// DEV-16
#[test]
fn a_snapshot_says_what_goes_on_and_its_peaks_are_exact() {
    let pool = pool(DeviceProfile::new(8, 3).auxiliary(2));
    let door = Door::new();
    let attempt = admit(&pool);
    let runs: Vec<_> = (0..4).map(|_| pool.job("e").spawn(door.pass()).unwrap()).collect();
    let setup = pool.job("s").kind(DeviceKind::SETUP).spawn(door.pass()).unwrap();
    let way = door.way();
    let scan = attempt.job("a").kind(DeviceKind::AUXILIARY).submit_blocking(move || way.block());
    door.wait_for(4);
    let it = pool.snapshot();
    assert_eq!((it.queued, it.active, it.executing), (2, 4, 2));
    assert_eq!((it.attempts, it.closed, it.pool), (1, false, pool.id()));
    let free: Vec<_> = it.classes.iter().map(|it| it.free).collect();
    assert_eq!(free, [2, 15, 7]);
    let jobs = pool.jobs();
    let states: Vec<_> = jobs.iter().map(|it| it.state).collect();
    let (running, queued) = (JobState::Running, JobState::Queued);
    assert_eq!(states.iter().filter(|it| **it == running).count(), 4);
    assert_eq!(states.iter().filter(|it| **it == queued).count(), 2);
    let lanes: Vec<_> = jobs.iter().map(|it| &*it.lane).collect();
    assert_eq!(lanes, ["root", "root", "root", "root", "root", "auxiliary"]);
    door.open();
    runs.into_iter().for_each(|it| get(it).unwrap());
    get(setup).unwrap();
    get(scan.unwrap()).unwrap();
    drop(attempt);
    assert_idle(&pool);
    let it = pool.snapshot();
    assert_eq!((it.peak_active, it.peak_executing, it.peak_attempts), (4, 2, 1));
    assert!((2..=6).contains(&it.peak_queued), "{}", it.peak_queued);
    assert_eq!((it.device, it.name.as_str()), (0, "gpu"));
    assert_eq!(it.uuid, pool.device().uuid);
}

/// DEV-16
#[test]
fn every_pool_has_a_number_of_its_own_also_one_for_the_same_device() {
    let profile = DeviceProfile::new(1, 2);
    let device = tollgate_device::host::HostDevice::builder().build().unwrap();
    let build = || tollgate_device::DevicePool::builder(device.clone(), profile).build().unwrap();
    let first = build();
    shut_down(&first);
    let (second, third) = (build(), build());
    assert!(first.id() < second.id() && second.id() < third.id());
    assert_eq!(second.snapshot().pool, second.id());
    let id = get(second.job("j").run_with(|cx| async move { cx.id() })).unwrap();
    assert_eq!(id.get(), 1, "jobs are counted per pool");
}

/// DEV-16
#[test]
fn a_tracker_has_the_exact_peak_over_pools_that_share_it() {
    let tracker = Tracker::new();
    let profile = DeviceProfile::new(8, 5);
    let pools = [0, 1].map(|_| builder(profile).tracker(&tracker).build().unwrap());
    let hold = |pool: &Pool, count: usize| {
        let door = Door::new();
        let tasks: Vec<_> = (0..count).map(|_| pool.job("j").spawn(door.pass()).unwrap()).collect();
        door.wait_for(count);
        (door, tasks)
    };
    let end = |(door, tasks): (Door, Vec<tollgate_device::DeviceTask<()>>)| {
        door.open();
        tasks.into_iter().for_each(|it| get(it).unwrap());
    };
    let first = hold(&pools[0], 3);
    let second = hold(&pools[1], 1);
    assert_eq!(tracker.snapshot().active, 4);
    end(first);
    let third = hold(&pools[1], 2);
    let scan = pools[0].job("s").kind(DeviceKind::SETUP).submit_blocking({
        let tracker = tracker.clone();
        move || tracker.snapshot()
    });
    let inside = get(scan.unwrap()).unwrap();
    assert_eq!((inside.active, inside.executing), (4, 3));
    end(second);
    end(third);
    let it = pools[0].tracker().snapshot();
    assert_eq!((it.active, it.executing), (0, 0));
    assert_eq!((it.peak_active, it.peak_executing), (4, 4), "not the 3 + 3 of each for itself");
    let peaks = [&pools[0], &pools[1]].map(|it| it.snapshot().peak_active);
    assert_eq!(peaks, [3, 3]);
}
