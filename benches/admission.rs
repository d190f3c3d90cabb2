//! Admission alone: what a permit costs, with tokio's semaphore beside it.
//!
//! Futures are polled by hand, so that no executor is part of the figures.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::sync::Semaphore;
use tollgate_admission::{Budget, Lane, LaneConfig};
use tollgate_benches::polling::{poll_once, queued, ready};

const CAPACITY: usize = 8;

fn lanes(count: usize) -> Vec<Lane> {
    let names: Vec<_> = (0..count).map(|n| format!("lane {n}")).collect();
    let config =
        |name: &String| LaneConfig::new(name.as_str()).limit(CAPACITY as u64).unbounded_waiting();
    let budget = names
        .iter()
        .fold(Budget::builder().capacity(CAPACITY as u64), |b, name| b.lane(config(name)))
        .build()
        .expect("the lanes fit the budget");
    names.iter().map(|name| budget.lane(name).expect("the lane was added")).collect()
}

fn semaphore() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CAPACITY))
}

/// A permit that is free, taken and given back.
fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("acquire_and_drop");
    for count in [4, 1_000] {
        let lanes = lanes(count);
        let mut turns = lanes.iter().cycle();
        group.bench_function(BenchmarkId::new("tollgate", count), |b| {
            b.iter(|| ready(pin!(turns.next().expect("a cycle never ends").acquire())));
        });
    }
    let semaphore = semaphore();
    group.bench_function("tokio_semaphore", |b| {
        b.iter(|| ready(pin!(Arc::clone(&semaphore).acquire_owned())));
    });
    group.finish();

    let mut group = c.benchmark_group("try_acquire_and_drop");
    let lane = lanes(4).remove(0);
    group.bench_function("tollgate", |b| b.iter(|| lane.try_acquire()));
    group.bench_function("tokio_semaphore", |b| b.iter(|| semaphore.try_acquire()));
    group.finish();
}

/// Everything is taken and many wait: a permit comes back, the eldest waiter gets it, and a new one
/// joins the queue.
fn hand_off(c: &mut Criterion) {
    const WAITING: usize = 4_096;

    fn saturated<F: Future>(c: &mut Criterion, id: BenchmarkId, acquire: impl Fn(usize) -> F) {
        let mut held: VecDeque<F::Output> =
            (0..CAPACITY).map(|n| ready(pin!(acquire(n)))).collect();
        let mut waiting: VecDeque<Pin<Box<F>>> =
            (0..WAITING).map(|n| queued(Box::pin(acquire(n)))).collect();
        let mut turn = WAITING;
        c.benchmark_group("hand_off").bench_function(id, |b| {
            b.iter(|| {
                drop(held.pop_front());
                let mut eldest = waiting.pop_front().expect("as many join as leave");
                held.push_back(ready(eldest.as_mut()));
                // The eldest's box is used again: what is measured allocates nothing here.
                eldest.set(acquire(turn));
                waiting.push_back(queued(eldest));
                turn += 1;
            });
        });
        // Waiters first, so that no permit is handed on while everything is taken apart.
        drop(waiting);
    }

    for count in [4, 1_000] {
        let lanes = lanes(count);
        saturated(c, BenchmarkId::new("tollgate", count), |turn| lanes[turn % count].acquire());
    }
    let semaphore = semaphore();
    saturated(c, BenchmarkId::from_parameter("tokio_semaphore"), |_| {
        Arc::clone(&semaphore).acquire_owned()
    });
}

/// One more joins a queue, and gives up.
fn cancel_newest(c: &mut Criterion) {
    fn behind<F: Future>(c: &mut Criterion, name: &str, waiting: usize, acquire: impl Fn() -> F) {
        let held: Vec<_> = (0..CAPACITY).map(|_| ready(pin!(acquire()))).collect();
        let waiters: Vec<_> = (0..waiting).map(|_| queued(Box::pin(acquire()))).collect();
        let id = BenchmarkId::new(name, waiting);
        c.benchmark_group("enqueue_and_cancel_newest").bench_function(id, |b| {
            b.iter(|| assert!(poll_once(pin!(acquire())).is_pending()));
        });
        drop(waiters);
        drop(held);
    }

    for waiting in [100, 1_000_000] {
        let lane = lanes(4).remove(0);
        behind(c, "tollgate", waiting, || lane.acquire());
        let semaphore = semaphore();
        behind(c, "tokio_semaphore", waiting, || Arc::clone(&semaphore).acquire_owned());
    }
}

criterion_group!(benches, uncontended, hand_off, cancel_newest);
criterion_main!(benches);
