//! Scopes and snapshots at scale: how long it takes to end a large tree, and how long a copy of all jobs keeps others waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::runtime::Runtime;
use tollgate_admission::{Deadline, Scope};
use tollgate_benches::entrants::{Tollgate, WORKERS};
use tollgate_benches::stats::median;
use tollgate_blocking::{Executor, Ticket};

use crate::figures::Figures;

/// Nodes, each with a queued job.
const SMALL: usize = 10_000;
const LARGE: usize = 100_000;
/// Children of a node.
const BRANCHES: usize = 10;
const TIMES: usize = 3;
/// Copies of all jobs, of which the one that was disturbed least by other processes counts.
const COPIES: usize = 30;
/// How often the lock must be asked for during a copy.
const ASKS: usize = 100;

pub(crate) fn measure(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    let pool = Tollgate::with_lanes(runtime.handle().clone(), 1, 0)?;
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().expect("nobody has panicked with it");
    occupy(&pool, &gate)?;
    let shutdown = |nodes| {
        let times: anyhow::Result<Vec<f64>> =
            (0..TIMES).map(|_| end_a_tree(runtime, pool.executor(0), nodes)).collect();
        times.map(median)
    };
    let (small, large) = (shutdown(SMALL)?, shutdown(LARGE)?);
    figures.insert("scope_shutdown_10000_ms", small);
    figures.insert("scope_shutdown_100000_ms", large);
    figures.insert("scope_shutdown_100000_over_10_times_10000", large / (10.0 * small));
    figures.insert("snapshot_100000_hold_ms", hold(&pool)?);
    drop(closed);
    Ok(())
}

/// Keeps every worker busy until the gate opens, so that what comes later waits.
fn occupy(pool: &Tollgate, gate: &Arc<RwLock<()>>) -> anyhow::Result<()> {
    let (started, starts) = mpsc::channel();
    for _ in 0..WORKERS {
        let (gate, started) = (Arc::clone(gate), started.clone());
        drop(pool.executor(0).submit(move || {
            let _ = started.send(());
            drop(gate.read());
        })?);
    }
    for _ in 0..WORKERS {
        starts.recv_timeout(Duration::from_secs(10)).context("a worker did not start its job")?;
    }
    Ok(())
}

/// Milliseconds that the shutdown of a tree takes in whose every node a job waits.
fn end_a_tree(runtime: &Runtime, executor: &Executor, nodes: usize) -> anyhow::Result<f64> {
    let mut tree = vec![Scope::root("root")];
    while tree.len() < nodes {
        let parent = &tree[(tree.len() - 1) / BRANCHES];
        tree.push(parent.child("node")?);
    }
    let tickets: Result<Vec<_>, _> =
        tree.iter().map(|node| executor.job("queued").scope(node).submit(|| ())).collect();
    let tickets = tickets?;
    let started = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(60));
    let report = runtime.block_on(tree[0].shutdown(deadline));
    let took = started.elapsed();
    ensure!(report.complete && report.refused == nodes as u64, "{report}");
    ensure!(tickets.iter().all(Ticket::is_done), "a job was not told");
    Ok(1e3 * took.as_secs_f64())
}

/// Milliseconds for which a copy of 100,000 queued jobs keeps the lock from somebody who wants it.
fn hold(pool: &Tollgate) -> anyhow::Result<f64> {
    let executor = pool.executor(0);
    let tickets: Result<Vec<_>, _> = (0..LARGE).map(|_| executor.submit(|| ())).collect();
    let _tickets = tickets?;
    let mut least = f64::INFINITY;
    for _ in 0..COPIES {
        let copying = AtomicBool::new(true);
        let longest = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let (mut longest, mut asks) = (Duration::ZERO, 0);
                while copying.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    let _ = executor.try_acquire();
                    longest = longest.max(asked.elapsed());
                    asks += 1;
                    std::thread::yield_now();
                }
                (longest, asks)
            });
            let jobs = pool.pool().snapshot().jobs.len();
            copying.store(false, Ordering::Relaxed);
            let waits = waits.join().expect("it only asks for permits");
            ensure!(jobs >= LARGE, "{jobs} of {LARGE} jobs were copied");
            Ok(waits)
        })?;
        let (longest, asks) = longest;
        // one that was hardly there while the jobs were copied says nothing
        if asks >= ASKS {
            least = least.min(1e3 * longest.as_secs_f64());
        }
    }
    ensure!(least.is_finite(), "nobody asked for the lock often enough while jobs were copied");
    Ok(least)
}
