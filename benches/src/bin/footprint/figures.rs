//! The figures by name, and the bars they are held to.

use std::collections::BTreeMap;

use tollgate_benches::bars::{Judged, Limit};

/// Every figure of a run, by a name that ends with its unit.
pub(crate) type Figures = BTreeMap<&'static str, f64>;

const IDLE: &str = "idle_context_switches";
/// How long an idle pool must be watched.
const IDLE_SECONDS: f64 = 10.0;

/// (figure, what it is, limit, unit), for 4 workers on 2 cores.
const BARS: [(&str, &str, Limit, &str); 12] = [
    ("queued_bytes_each", "a job of 64,000 queued", Limit::AtMost(512.0), "bytes"),
    (
        "cancel_newest_of_64000_us_each",
        "cancelling 64,000 queued jobs, newest first",
        Limit::AtMost(0.3),
        "us each",
    ),
    (IDLE, "an idle pool", Limit::AtMost(0.0), "context switches"),
    (
        "load_cpu_over_spawn_blocking",
        "a pool at 1% load, processor time over `spawn_blocking`'s",
        Limit::AtMost(1.3),
        "x",
    ),
    ("acquire_allocations_each", "an uncontended acquire", Limit::AtMost(0.0), "allocations"),
    ("run_allocations_each", "a run in steady state", Limit::AtMost(1.0), "allocations"),
    ("run_bytes_each", "a run in steady state", Limit::AtMost(256.0), "bytes allocated"),
    ("lanes_1000_over_4", "a round trip with 1,000 lanes over one with 4", Limit::AtMost(1.5), "x"),
    (
        "scope_shutdown_100000_ms",
        "ending 100,000 scopes with 100,000 queued jobs",
        Limit::AtMost(1_000.0),
        "ms",
    ),
    (
        "scope_shutdown_100000_over_10_times_10000",
        "ending 100,000 scopes over ten times ending 10,000",
        Limit::AtMost(1.5),
        "x",
    ),
    (
        "snapshot_100000_hold_ms",
        "the longest wait for the lock while 100,000 jobs are copied",
        Limit::AtMost(1.0),
        "ms",
    ),
    (
        "device_setup_over_quantum",
        "what setup waits on a busy device's pool beyond 1.2 x its wait on an idle one",
        Limit::AtMost(1.0),
        "quanta of 4 ms",
    ),
];

/// Holds the figures to every bar.
pub(crate) fn judge(figures: &Figures) -> Vec<Judged> {
    BARS.iter()
        .map(|&(name, what, limit, unit)| {
            let judged = Judged::new(what.to_owned(), limit, unit, figures.get(name).copied());
            let watched = figures.get("idle_seconds").copied().unwrap_or_default();
            if name == IDLE && watched < IDLE_SECONDS {
                judged.void(format!("watched for {watched} s, where {IDLE_SECONDS} are needed"))
            } else {
                judged
            }
        })
        .collect()
}
