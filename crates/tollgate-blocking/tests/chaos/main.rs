//! Everything at once, in an order that a seed decides: whatever is done to jobs, each runs once or is dropped once,
//! every result arrives, and at the end nothing is left.
//!
//! `TOLLGATE_CHAOS_SEED` repeats a run, as far as threads let it; `TOLLGATE_CHAOS_JOBS` makes it longer.
//! `cargo xtask soak` does the same for longer, and looks at what is left in memory too.

mod engine;

use engine::{Figures, Plan, round, watch_for_panics};
use std::time::SystemTime;

/// Jobs of one round.
const EACH: u64 = 2_000;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?} and no number")))
}

/// BLK-6, BLK-7, BLK-9, BLK-10, BLK-11, BLK-15, ADM-2
#[test]
fn whatever_is_done_to_jobs_each_runs_once_or_is_dropped_once_and_nothing_is_left() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number_from("TOLLGATE_CHAOS_SEED").unwrap_or(now.as_nanos() as u64);
    let jobs = number_from("TOLLGATE_CHAOS_JOBS").unwrap_or(16_000);
    watch_for_panics();
    let mut all = Figures::default();
    for number in 0..jobs.div_ceil(EACH) {
        // the first round is decided by the seed that is printed
        let seed = seed.wrapping_add(number);
        match round(&Plan { seed, jobs: EACH }) {
            Ok(figures) => all += figures,
            Err(failure) => panic!(
                "this is wrong:\n{failure}\nto repeat it: TOLLGATE_CHAOS_SEED={seed} cargo test \
                 -p tollgate-blocking --test chaos"
            ),
        }
    }
    assert!(all.ran > all.jobs / 4, "hardly anything ran: {all:?}");
}
