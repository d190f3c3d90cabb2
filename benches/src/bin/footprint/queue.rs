//! A long queue: what a job in it weighs, and what leaving it costs.

use std::hint::black_box;
use std::pin::Pin;
use std::sync::{Arc, RwLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use stats_alloc::Region;
use tokio::runtime::Runtime;
use tollgate_benches::entrants::{RocketmqRuntime, Tollgate, WORKERS};
use tollgate_benches::polling::{poll_once, queued};
use tollgate_benches::stats::median;

use crate::ALLOCATOR;
use crate::figures::Figures;

/// Jobs in the long queue.
const LONG: usize = 64_000;
const LONG_TIMES: usize = 3;
/// Jobs in the short one, which is filled again and again.
const SHORT: usize = 64;
const SHORT_TIMES: usize = 500;
/// What each job captures.
type Capture = [u64; 4];

/// Something whose jobs queue.
trait Queue {
    /// The future that runs `job`, just as its owner gives it.
    fn submit(&self, job: impl FnOnce() -> u64 + Send + 'static) -> impl Future + Send;
}

impl Queue for Tollgate {
    fn submit(&self, job: impl FnOnce() -> u64 + Send + 'static) -> impl Future + Send {
        self.executor(0).run(job)
    }
}

impl Queue for RocketmqRuntime {
    fn submit(&self, job: impl FnOnce() -> u64 + Send + 'static) -> impl Future + Send {
        self.spawn(job)
    }
}

/// What one queue was found to cost.
struct Cost {
    bytes_each: f64,
    future_bytes: usize,
    cancel_long_us: f64,
    cancel_short_us: f64,
}

pub(crate) fn measure(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    let _entered = runtime.enter();
    let ours = cost(&Tollgate::new(runtime.handle().clone())?)?;
    figures.insert("queued_bytes_each", ours.bytes_each);
    figures.insert("queued_future_bytes", ours.future_bytes as f64);
    figures.insert("cancel_newest_of_64000_us_each", ours.cancel_long_us);
    figures.insert("cancel_newest_of_64_us_each", ours.cancel_short_us);

    let theirs = cost(&RocketmqRuntime::new()?)?;
    figures.insert("rocketmq_queued_bytes_each", theirs.bytes_each);
    figures.insert("rocketmq_queued_future_bytes", theirs.future_bytes as f64);
    figures.insert("rocketmq_cancel_newest_of_64000_us_each", theirs.cancel_long_us);
    figures.insert("rocketmq_cancel_newest_of_64_us_each", theirs.cancel_short_us);
    Ok(())
}

fn cost(queue: &impl Queue) -> anyhow::Result<Cost> {
    // Every worker is kept busy until the gate opens, so that what comes later waits.
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().expect("nobody has panicked with it");
    let (started, starts) = mpsc::channel();
    let mut running: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (gate, started) = (Arc::clone(&gate), started.clone());
            Box::pin(queue.submit(move || {
                let _ = started.send(());
                drop(gate.read());
                0
            }))
        })
        .collect();
    for job in &mut running {
        let _ = poll_once(job.as_mut());
    }
    for _ in 0..WORKERS {
        starts.recv_timeout(Duration::from_secs(10)).context("a worker did not start its job")?;
    }

    let capture = black_box([1; size_of::<Capture>() / size_of::<u64>()]);
    let submit = || queue.submit(move || black_box(Capture::from(capture))[0]);
    // The long queue first: it pays for whatever tables have to grow.
    let mut futures = Vec::with_capacity(LONG);
    let region = Region::new(ALLOCATOR);
    fill(&mut futures, LONG, submit);
    let change = region.change();
    let bytes = change.bytes_allocated as f64 - change.bytes_deallocated as f64;
    let future_bytes = size_of_val(&*futures[0]);
    let mut cancel_long = vec![empty(&mut futures).as_secs_f64()];
    while cancel_long.len() < LONG_TIMES {
        fill(&mut futures, LONG, submit);
        cancel_long.push(empty(&mut futures).as_secs_f64());
    }

    let mut cancel_short = Duration::ZERO;
    for _ in 0..SHORT_TIMES {
        fill(&mut futures, SHORT, submit);
        cancel_short += empty(&mut futures);
    }
    drop(closed);
    Ok(Cost {
        bytes_each: bytes / LONG as f64,
        future_bytes,
        cancel_long_us: 1e6 * median(cancel_long) / LONG as f64,
        cancel_short_us: 1e6 * cancel_short.as_secs_f64() / (SHORT * SHORT_TIMES) as f64,
    })
}

/// Queues `count` jobs.
fn fill<F: Future>(futures: &mut Vec<Pin<Box<F>>>, count: usize, submit: impl Fn() -> F) {
    futures.extend((0..count).map(|_| queued(Box::pin(submit()))));
}

/// Cancels all of them, newest first, and says how long that took.
fn empty<F>(futures: &mut Vec<Pin<Box<F>>>) -> Duration {
    let start = Instant::now();
    while let Some(newest) = futures.pop() {
        drop(newest);
    }
    start.elapsed()
}
