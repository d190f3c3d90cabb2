//! A pool without work costs nothing.
#![cfg(target_os = "linux")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use support::{Gate, block_on, eventually, runtime};
use tollgate_blocking::{BlockingPool, LanePolicy};

/// Context switches so far, by thread, of those whose name starts with `prefix`; `None` while one of them is awake.
fn switches(prefix: &str) -> Option<BTreeMap<String, u64>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // a thread may have ended meanwhile
        let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.trim_start_matches(':').trim().to_owned()
        };
        let name = field("Name");
        if !name.starts_with(prefix) {
            continue;
        }
        if !field("State").starts_with('S') {
            return None;
        }
        let count = |key| field(key).parse::<u64>().unwrap();
        let total = count("voluntary_ctxt_switches") + count("nonvoluntary_ctxt_switches");
        threads.insert(format!("{name} {}", path.display()), total);
    }
    Some(threads)
}

/// BLK-3
#[test]
fn no_thread_of_an_idle_pool_wakes_up() {
    let owner = runtime();
    let lane = LanePolicy::new("io")
        .queue_timeout(Duration::from_secs(30))
        .task_timeout(Duration::from_secs(30));
    let pool = BlockingPool::builder(owner.handle().clone())
        .capacity(3)
        .lane(lane)
        .thread_name("tg-idle")
        .keep_alive(Duration::from_secs(60))
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let tickets: Vec<_> = (0..3).map(|_| io.submit(gate.closure()).unwrap()).collect();
    (0..3).for_each(|_| gate.wait_started());
    gate.open();
    tickets.into_iter().for_each(|ticket| ticket.join().unwrap());
    for _ in 0..1_000 {
        block_on(io.run(|| ())).unwrap();
    }
    let mut before = BTreeMap::new();
    eventually("all threads sleep", || {
        if pool.stats().threads.idle < 3 {
            return false;
        }
        let Some(now) = switches("tg-idle") else { return false };
        // asleep at two looks in a row
        let settled = now == before;
        before = now;
        settled
    });
    assert_eq!(before.len(), 4, "three workers and the timer: {before:?}");
    // the one wait for time in these tests: what must not happen can't be waited for
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(switches("tg-idle"), Some(before), "a thread did something while there was nothing");
    assert_eq!(block_on(io.run(|| 7)).unwrap(), 7);
}
