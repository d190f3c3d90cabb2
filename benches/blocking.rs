//! The blocking pool: what a job costs, with `spawn_blocking` beside it.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use tokio::task::spawn_blocking;
use tollgate_benches::closed_loop::{Loop, Sampler};
use tollgate_benches::entrants::{SpawnBlocking, Tollgate, Work};

/// tokio's own default, which is what this runtime has.
const MAX_BLOCKING_THREADS: usize = 512;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime starts")
}

fn tollgate(runtime: &Runtime) -> Tollgate {
    Tollgate::new(runtime.handle().clone()).expect("the pool is valid")
}

/// A closed loop as a benchmark: one iteration is one job.
fn race(c: &mut Criterion, group: &str, id: BenchmarkId, callers: usize, entrant: &dyn Sampler) {
    let runtime = runtime();
    c.benchmark_group(group).bench_function(id, |b| {
        b.iter_custom(|jobs| {
            let jobs_each = jobs.div_ceil(callers as u64);
            let shape = Loop { callers, jobs_each, work: Work::NOTHING };
            let us = entrant.sample(&runtime, shape).expect("the loop runs");
            Duration::from_secs_f64(us * jobs as f64 / 1e6)
        });
    });
    runtime.shutdown_background();
}

/// A job that does nothing, for one caller and for many.
fn run_nothing(c: &mut Criterion) {
    let owner = runtime();
    for callers in [1, 64, 1_024] {
        let id = |name| BenchmarkId::new(name, callers);
        race(c, "run_nothing", id("tollgate"), callers, &tollgate(&owner));
        let peer = SpawnBlocking { max_blocking_threads: MAX_BLOCKING_THREADS };
        race(c, "run_nothing", id("spawn_blocking"), callers, &peer);
    }
}

/// As many lanes as callers: what a round trip costs should not depend on how many.
fn lanes(c: &mut Criterion) {
    let owner = runtime();
    for lanes in [4, 1_000] {
        let pool = Tollgate::with_lanes(owner.handle().clone(), lanes, 0);
        let pool = pool.expect("the pool is valid");
        race(c, "run_nothing_in_lanes", BenchmarkId::from_parameter(lanes), 1_000, &pool);
    }
}

/// A ticket that is awaited, as one awaits the handle of `spawn_blocking`.
fn submit_and_wait(c: &mut Criterion) {
    let runtime = runtime();
    let pool = tollgate(&runtime);
    let executor = pool.executor(0);
    let mut group = c.benchmark_group("submit_and_wait");
    group.bench_function("tollgate", |b| {
        b.to_async(Tokio(&runtime)).iter(|| async {
            let ticket = executor.submit(|| Work::NOTHING.run()).expect("there is room");
            ticket.await.expect("the job ends well")
        });
    });
    group.bench_function("spawn_blocking", |b| {
        b.to_async(Tokio(&runtime)).iter(|| async {
            spawn_blocking(|| Work::NOTHING.run()).await.expect("the job ends well")
        });
    });
    group.finish();
}

/// Work submitted from a worker, which runs it there and then.
fn nested(c: &mut Criterion) {
    let runtime = runtime();
    let pool = tollgate(&runtime);
    let executor = pool.executor(0).clone();
    c.bench_function("nested_inline", |b| {
        b.iter_custom(|jobs| {
            let inner = executor.clone();
            let outer = executor.run(move || {
                let start = std::time::Instant::now();
                for _ in 0..jobs {
                    let run = std::pin::pin!(inner.run(|| Work::NOTHING.run()));
                    tollgate_benches::polling::ready(run).expect("it runs inline");
                }
                start.elapsed()
            });
            runtime.block_on(outer).expect("the job ends well")
        });
    });
}

/// Lets criterion await on the runtime.
struct Tokio<'a>(&'a Runtime);

impl criterion::async_executor::AsyncExecutor for Tokio<'_> {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.block_on(future)
    }
}

criterion_group!(benches, run_nothing, lanes, submit_and_wait, nested);
criterion_main!(benches);
