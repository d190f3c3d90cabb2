//! Many operations from several threads at once: nothing is lost, doubled, or left.

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::pools::*;
use support::{Alive, PATIENCE};
use tollgate_device::admission::Deadline;
use tollgate_device::{
    Attempt, AttemptHandle, Class, DeviceContext, DeviceKind, DeviceProfile, DeviceTask, EventKind,
    JobError, Tracker,
};

/// The `SplitMix64` generator.
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// What becomes of jobs, counted from the outside.
#[derive(Default)]
struct Tally {
    called: AtomicU64,
    callbacks: AtomicU64,
}

fn body(
    pool: Pool,
    under: Option<AttemptHandle>,
    alive: Alive,
    choice: u64,
) -> impl FnOnce(DeviceContext) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>> + Send {
    let token = alive.token();
    move |cx| {
        Box::pin(async move {
            let _token = token;
            assert!(!cx.token().is_cancelled() || choice < 100);
            match choice % 8 {
                0 => panic!("on purpose"),
                1 => {
                    let _ = pool.job("inner").run(Yield(2)).await;
                }
                2 => drop(pool.job("spawned").spawn(Yield(1)).map_err(drop)),
                3 => {
                    if let Some(under) = under {
                        let scan = under.job("scan").kind(DeviceKind::AUXILIARY);
                        let _ = scan.run(Yield(1)).await;
                    }
                }
                4 => {
                    if let Ok(task) = pool.job("joined").submit_blocking(|| 4) {
                        let _ = task.await;
                    }
                }
                5 => {
                    let _ = pool
                        .job("setup")
                        .kind(DeviceKind::SETUP)
                        .spawn(Yield(1))
                        .map(DeviceTask::join);
                }
                _ => Yield(choice as usize % 4).await,
            }
            choice
        })
    }
}

fn rough(seed: u64, rounds: u64, exits: bool) {
    let tracker = Tracker::new();
    let profile = DeviceProfile::new(12, 4).auxiliary(2).max_waiting(4);
    let pool = builder(profile).events(1 << 20).tracker(&tracker).build().unwrap();
    let recorder = pool.recorder();
    let (alive, tally) = (Alive::default(), Arc::new(Tally::default()));
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let (pool, alive, tally) = (pool.clone(), alive.clone(), Arc::clone(&tally));
            std::thread::spawn(move || {
                let mut random = Random(seed.wrapping_mul(31).wrapping_add(thread));
                let mut attempts: Vec<Attempt> = Vec::new();
                for round in 0..rounds {
                    if exits && thread == 0 && round == rounds / 2 {
                        pool.close();
                        if random.below(2) == 0 {
                            pool.request_exit().unwrap();
                        }
                    }
                    let choice = 100 + random.below(800);
                    let kinds = [DeviceKind::SETUP, DeviceKind::EXECUTION, DeviceKind::CLEANUP];
                    let kind = kinds[random.below(3) as usize];
                    let under = attempts.last().map(Attempt::handle);
                    let callback = {
                        let tally = Arc::clone(&tally);
                        move || {
                            tally.called.fetch_add(1, Ordering::SeqCst);
                        }
                    };
                    let make = body(pool.clone(), under.clone(), alive.clone(), choice);
                    let count = |ok: bool| {
                        if ok {
                            tally.callbacks.fetch_add(1, Ordering::SeqCst);
                        }
                    };
                    let accepted = |result: &Result<u64, JobError>| match result {
                        Ok(_) => true,
                        Err(error) => error.refused().is_none(),
                    };
                    match random.below(9) {
                        0 => {
                            let result = get(pool
                                .job("run")
                                .kind(kind)
                                .on_complete(callback)
                                .run_with(make));
                            count(accepted(&result));
                        }
                        1 => {
                            // dropped after some polls: whether it was accepted, its events say
                            let mut run = pool.job("dropped").kind(kind).run_with(make);
                            for _ in 0..random.below(4) {
                                if poll(&mut run).is_ready() {
                                    break;
                                }
                                std::thread::yield_now();
                            }
                        }
                        2 => {
                            let task =
                                pool.job("spawn").kind(kind).on_complete(callback).spawn_with(make);
                            count(task.is_ok());
                            if let Ok(task) = task {
                                if random.below(2) == 0 {
                                    task.cancel();
                                }
                                if random.below(2) == 0 {
                                    let _ = get(task);
                                }
                            }
                        }
                        3 => {
                            let token = alive.token();
                            let task =
                                pool.job("b").on_complete(callback).submit_blocking(move || {
                                    let _token = token;
                                    assert!(!choice.is_multiple_of(8), "on purpose");
                                });
                            count(task.is_ok());
                            if let Ok(task) = task
                                && random.below(2) == 0
                            {
                                task.cancel();
                                let _ = get(task);
                            }
                        }
                        4 => attempts.extend(pool.admission().try_admit().ok()),
                        5 => {
                            let mut admission =
                                pool.admission().deadline(Deadline::after(PATIENCE));
                            if let std::task::Poll::Ready(Ok(attempt)) = poll(&mut admission) {
                                attempts.push(attempt);
                            }
                        }
                        6 => {
                            if let Some(attempt) = attempts.pop() {
                                let token = alive.token();
                                let task = attempt.release_then(
                                    "free",
                                    async move { drop(token) },
                                    callback,
                                );
                                count(task.is_ok());
                                if random.below(2) == 0 {
                                    let _ = task.map(get);
                                }
                            }
                        }
                        7 => drop(attempts.pop()),
                        _ => {
                            if let Some(under) = under {
                                let scan = under.job("scan").kind(DeviceKind::AUXILIARY);
                                let task = scan.on_complete(callback).submit_blocking(|| ());
                                count(task.is_ok());
                            }
                        }
                    }
                    let it = pool.snapshot();
                    assert!(it.executing <= it.active, "{it:?}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|it| it.join().unwrap());
    pool.close();
    let drained = get(pool.wait(tollgate_device::Phase::Drain, Deadline::after(PATIENCE)));
    drained.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_idle(&pool);
    assert_eq!(alive.count(), 0, "seed {seed}");
    assert_eq!(tracker.snapshot().active, 0);
    let (called, callbacks) = (&tally.called, &tally.callbacks);
    assert_eq!(called.load(Ordering::SeqCst), callbacks.load(Ordering::SeqCst), "seed {seed}");
    shut_down(&pool);
    let recording = recorder.recording();
    assert_eq!(recording.missed, 0);
    let mut jobs = HashMap::<_, Vec<_>>::new();
    for event in &recording.events {
        jobs.entry(event.job).or_default().push(event.what);
        if let EventKind::Started { worker: Some(worker) } = event.what {
            assert!(worker < 4, "seed {seed}: {event}");
        }
    }
    jobs.values().for_each(|it| assert_lifecycle(it));
    let admitted = pool.snapshot().class(Class::Root).unwrap().admitted;
    assert!(admitted > 0);
}

/// DEV-5, DEV-7, DEV-15
#[test]
fn whatever_is_done_at_once_every_job_ends_once_and_everything_comes_back() {
    for seed in 0..6 {
        rough(seed, 400, false);
    }
}

/// DEV-15, DEV-17
#[test]
fn whatever_is_done_while_the_pool_ends_every_job_ends_once_and_everything_comes_back() {
    for seed in 100..130 {
        rough(seed, 60, true);
    }
}
