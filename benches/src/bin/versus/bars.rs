//! The bars, as a table.

use tollgate_benches::bars::{Judged, Limit};

use crate::field::{
    BARE_RUNTIME, BLOCKING_ALONE, RAYON, RECORDED, ROCKETMQ, SEMAPHORE, SPAWN_BLOCKING,
};
use crate::measure::Outcome;
use crate::report::Report;
use crate::workloads::{DEVICE, DEVICE_BLOCKING, ONE_CALLER};

/// Fresh processes that a median needs.
const FEWEST_PROCESSES: usize = 9;

/// Which of the two ways to say the same thing a bar uses.
#[derive(Debug, Clone, Copy)]
enum Demand {
    /// At least this many times the peer's throughput.
    Throughput(f64),
    /// At most this many times the peer's time.
    Time(f64),
}

/// (workload, peer, demand), for 4 workers on 2 cores.
const BARS: [(&str, &str, Demand); 9] = [
    ("noop_64", ROCKETMQ, Demand::Throughput(12.0)),
    ("noop_64", SEMAPHORE, Demand::Throughput(8.0)),
    ("noop_64", RAYON, Demand::Time(1.6)),
    ("noop_1024", ROCKETMQ, Demand::Throughput(15.0)),
    ("noop_1024", SEMAPHORE, Demand::Throughput(10.0)),
    ("noop_1024", RAYON, Demand::Time(1.5)),
    ("busy20us_64", ROCKETMQ, Demand::Throughput(1.3)),
    ("busy20us_64", RAYON, Demand::Time(1.1)),
    (DEVICE, BARE_RUNTIME, Demand::Time(1.5)),
];

/// One caller, over fresh processes: not slower than this peer.
const FRESH: Limit = Limit::AtLeast(1.0);

/// Holds the report to every bar.
pub(crate) fn judge(report: &Report) -> Vec<Judged> {
    let raced = BARS.iter().map(|&(workload, peer, demand)| {
        let outcome = report.outcome(workload);
        let ratio = outcome.and_then(|outcome| outcome.ratio(peer));
        let judged = match demand {
            Demand::Throughput(times) => {
                let what = format!("{workload}, throughput over {peer}'s");
                Judged::new(what, Limit::AtLeast(times), "x", ratio)
            }
            Demand::Time(times) => {
                let what = format!("{workload}, time over {peer}'s");
                Judged::new(what, Limit::AtMost(times), "x", ratio.map(f64::recip))
            }
        };
        match outcome.and_then(|outcome| outcome.void.clone()) {
            Some(reason) => judged.void(reason),
            None => judged,
        }
    });
    let fresh = report.fresh.as_ref();
    let what = format!("{} in fresh processes, speed over {SPAWN_BLOCKING}'s", ONE_CALLER.name);
    let mut lone = Judged::new(what, FRESH, "x", fresh.map(super::fresh::Fresh::ratio));
    if let Some(fresh) = fresh
        && fresh.ratios.len() < FEWEST_PROCESSES
    {
        lone = lone
            .void(format!("{} processes, where {FEWEST_PROCESSES} are needed", fresh.ratios.len()));
    }
    let judged = |what: &str, limit, unit, workload, figure: fn(&Outcome) -> Option<f64>| {
        let outcome = report.outcome(workload);
        let judged = Judged::new(what.to_owned(), limit, unit, outcome.and_then(figure));
        match outcome.and_then(|outcome| outcome.void.clone()) {
            Some(reason) => judged.void(reason),
            None => judged,
        }
    };
    let recorded = judged(
        "device_noop_64 with a recorder, time over tokio_runtime's",
        Limit::AtMost(2.0),
        "x",
        DEVICE,
        |outcome| Some(outcome.ratio(RECORDED)? / outcome.ratio(BARE_RUNTIME)?),
    );
    let blocking = judged(
        "device_blocking_64, more than tollgate_blocking_alone",
        Limit::AtMost(0.3),
        "us",
        DEVICE_BLOCKING,
        |outcome| Some(outcome.ours.median * (1.0 - outcome.ratio(BLOCKING_ALONE)?)),
    );
    raced.chain([lone, recorded, blocking]).collect()
}
