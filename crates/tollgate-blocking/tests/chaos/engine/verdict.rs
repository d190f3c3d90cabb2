//! The end of a round, and whether the accounts agree.

use crate::engine::books::{LaneBook, unplanned_panics};
use crate::engine::janitor::Janitor;
use crate::engine::tokens::Tally;
use crate::engine::world::{Pool, World};
use crate::engine::{Figures, PATIENCE, ends, eventually};
use futures_lite::future::block_on;
use std::sync::Arc;
use tollgate_blocking::{Deadline, Histogram, LaneJobs, ScopeReport};

/// What can be said about something that does not end.
pub(crate) fn hang(what: &str, world: &World) -> Vec<String> {
    let mut findings = vec![format!("this does not end, after {PATIENCE:?}: {what}")];
    findings.push(format!("scopes: {}", world.root.scope.report()));
    for pool in &world.pools {
        findings.push(format!("pool {}: {:#?}", pool.number, pool.pool.snapshot()));
    }
    findings.extend(faults(&world.tally));
    findings
}

fn faults(tally: &Tally) -> Vec<String> {
    let mut faults = tally.faults.take();
    faults.extend(unplanned_panics());
    faults
}

/// Ends the world, and finds out whether everything has come to its end.
pub(crate) fn end(world: Arc<World>, janitor: Janitor) -> Result<Figures, Vec<String>> {
    let tally = Arc::clone(&world.tally);
    let mut findings = Vec::new();
    world.let_go();
    let root = world.root.scope.clone();
    let Some(report) = ends(move || block_on(root.shutdown(Deadline::never()))) else {
        return Err(hang("the shutdown of the root", &world));
    };
    check_report(&report, &mut findings);
    world.root.check_closed(&tally.faults);
    for pool in &world.pools {
        let own = pool.pool.clone();
        let Some(report) = ends(move || block_on(own.shutdown(Deadline::never()))) else {
            return Err(hang("the shutdown of a pool", &world));
        };
        if !report.complete || !report.jobs.is_empty() || report.permits + report.threads as u64 > 0
        {
            findings.push(format!("pool {} ended, and has not: {report}", pool.number));
        }
    }
    if ends(move || janitor.stop()).is_none() {
        return Err(hang("what was thrown away, or left to be waited for", &world));
    }
    // of pools that nobody has any more, jobs may still run
    let all_gone = || {
        tally.made.get() == tally.dropped.get()
            && tally.results.get() == tally.results_dropped.get()
            && Arc::strong_count(&world) == 1
    };
    if !eventually(all_gone) {
        findings.push(format!(
            "closures or results were lost, {} hold the world: {tally:?}",
            Arc::strong_count(&world)
        ));
        findings.extend(hang("the last closure", &world));
        return Err(findings);
    }
    let mut refused = 0;
    let (mut started, mut finished, mut panicked) = (0, 0, 0);
    for pool in &world.pools {
        let stats = check_pool(pool, &mut findings);
        started += stats.started;
        finished += stats.finished;
        panicked += stats.panicked;
        refused += stats.refused;
    }
    let mut agree = |what: &str, here: u64, there: u64| {
        if here != there {
            findings.push(format!("{what}: {here} were seen, and the pools count {there}"));
        }
    };
    let returned = tally.results_observed.get();
    agree("closures that started", tally.ran_observed.get(), started);
    agree("closures that returned", returned, finished);
    agree("closures that panicked", tally.ran_observed.get() - returned, panicked);
    drop(world);
    findings.extend(faults(&tally));
    if !findings.is_empty() {
        return Err(findings);
    }
    Ok(Figures { jobs: tally.made.get(), ran: tally.ran.get(), panicked, refused })
}

fn check_report(report: &ScopeReport, findings: &mut Vec<String>) {
    if !report.complete || !report.nodes.is_empty() {
        findings.push(format!("the root ended, and has not: {report}"));
    }
}

/// Sums over a pool's lanes.
#[derive(Default)]
struct Sums {
    started: u64,
    finished: u64,
    panicked: u64,
    refused: u64,
}

fn check_pool(pool: &Pool, findings: &mut Vec<String>) -> Sums {
    let stats = pool.pool.stats();
    let (budget, threads) = (&stats.budget, stats.threads);
    let mut wrong = |what: String| findings.push(format!("pool {}: {what}", pool.number));
    if budget.available != budget.capacity || budget.deficit != 0 {
        wrong(format!("permits are out: {budget:?}"));
    }
    if (threads.alive, threads.idle) != (0, 0) {
        wrong(format!("threads are left: {threads:?}"));
    }
    let mut sums = Sums::default();
    for ((lane, jobs), own) in budget.lanes.iter().zip(&stats.lanes).zip(&pool.lanes) {
        let refused = lane.refused.total();
        if (lane.running, lane.borrowed, lane.waiting) != (0, 0, 0) {
            wrong(format!("a lane is not empty: {lane:?}"));
        }
        check_lane(&own.book, jobs, refused, |what| wrong(format!("lane {}: {what}", lane.name)));
        sums.started += jobs.counts.started;
        sums.finished += jobs.counts.finished;
        sums.panicked += jobs.counts.panicked;
        sums.refused += refused;
    }
    sums
}

fn check_lane(book: &LaneBook, jobs: &LaneJobs, refused: u64, mut wrong: impl FnMut(String)) {
    let counts = jobs.counts;
    if counts.started != counts.finished + counts.panicked {
        wrong(format!("started is not finished and panicked: {counts:?}"));
    }
    if jobs.waits.count() != counts.started {
        wrong(format!("{} waits were recorded, of {counts:?}", jobs.waits.count()));
    }
    let ended = [&jobs.finished, &jobs.panicked, &jobs.unclaimed];
    let ended: u64 = ended.into_iter().map(Histogram::count).sum();
    if ended != counts.started {
        wrong(format!("{ended} times were recorded, of {counts:?}"));
    }
    // everything that was asked for became one thing; an acquire that was given up may have been refused before
    let offered = book.jobs.get() + book.acquires.get() - book.granted.get();
    let became = counts.started + counts.cancelled + counts.no_thread + refused;
    if !(offered - book.given_up.get()..=offered).contains(&became) {
        wrong(format!("{book:?}, and {became} became of it: {counts:?}, {refused} refused"));
    }
}
