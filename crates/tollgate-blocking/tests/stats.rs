//! What a pool tells about itself.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::*;
use tollgate_blocking::{JobKind, JobState, LanePolicy};

const SECOND: Duration = Duration::from_secs(1);

/// BLK-13
#[test]
fn the_figures_of_a_lane_are_of_that_lane() {
    let owned = Owned::new();
    let (pool, a, b) = owned.two_lanes(2);
    let gate = Gate::new();
    let running = a.submit(gate.closure()).unwrap();
    gate.wait_started();
    block_on(b.run(|| ())).unwrap();
    let _ = block_on(b.run(|| panic!("on purpose")));
    let stats = pool.stats();
    assert_eq!(stats.lanes.iter().map(|lane| &*lane.name).collect::<Vec<_>>(), ["a", "b"]);
    let (of_a, of_b) = (stats.lane("a").unwrap().counts, stats.lane("b").unwrap().counts);
    assert_eq!((of_a.started, of_a.finished, of_a.panicked), (1, 0, 0));
    assert_eq!((of_b.started, of_b.finished, of_b.panicked), (2, 1, 1));
    assert!(stats.lane("c").is_none());
    let lanes = &stats.budget.lanes;
    assert_eq!((lanes[0].running, lanes[1].running, stats.budget.available), (1, 0, 1));
    assert_eq!((lanes[0].peak, lanes[1].peak), (1, 1));
    gate.open();
    running.join().unwrap();
}

/// BLK-13
#[test]
fn counts_agree_with_each_other_at_every_moment() {
    let owned = Owned::new();
    let lane = LanePolicy::new("io").max_waiting(64);
    let (pool, io) = owned.with_lane(3, lane);
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..2)
        .map(|thread| {
            let (io, stop) = (io.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut n = thread;
                while !stop.load(Ordering::SeqCst) {
                    n += 1;
                    match n % 4 {
                        0 => drop(io.submit(|| ())),
                        1 => drop(block_on(io.run(|| std::panic::panic_any(0_u8)))),
                        2 => {
                            let mut run = io.run(|| ());
                            let _ = poll(&mut run);
                        }
                        _ => drop(block_on(io.run(|| ()))),
                    }
                }
            })
        })
        .collect();
    for _ in 0..3_000 {
        let stats = pool.stats();
        let (budget, counts) = (&stats.budget, &stats.lanes[0].counts);
        let lane = &budget.lanes[0];
        let ended = counts.finished + counts.panicked;
        let in_hand = counts.started.checked_sub(ended).expect("more ended than started");
        assert!(in_hand <= lane.running && lane.running <= 3, "{stats:?}");
        assert_eq!(budget.running() + budget.available, budget.capacity + budget.deficit);
        assert!(lane.peak >= lane.running && lane.waiting <= 64);
        assert!(stats.threads.idle <= stats.threads.alive && stats.threads.peak <= 3);
        assert_eq!(stats.lanes[0].waits.count(), ended);
        let [finished, panicked, unclaimed] =
            [&stats.lanes[0].finished, &stats.lanes[0].panicked, &stats.lanes[0].unclaimed];
        assert_eq!(finished.count() + unclaimed.count(), counts.finished);
        assert_eq!(panicked.count(), counts.panicked);
        let snapshot = pool.snapshot();
        let queued = |job: &&tollgate_blocking::JobInfo| job.state == JobState::Queued;
        let waiting = snapshot.jobs.iter().filter(queued).count();
        let (running, lane) = (snapshot.jobs.len() - waiting, &snapshot.budget.lanes[0]);
        assert!(running as u64 <= lane.running, "{snapshot:?}");
        assert!(waiting as u64 + running as u64 <= lane.waiting as u64 + lane.running);
    }
    stop.store(true, Ordering::SeqCst);
    load.into_iter().for_each(|thread| thread.join().unwrap());
    eventually("all jobs end", || available(&pool) == 3);
    let stats = pool.stats();
    let counts = stats.lanes[0].counts;
    assert_eq!(counts.started, counts.finished + counts.panicked, "nothing runs");
    let admitted = stats.budget.lanes[0].admitted;
    assert!(admitted >= counts.started && admitted <= counts.started + counts.cancelled);
    shut_down(&pool);
}

/// BLK-13
#[test]
fn histograms_hold_waits_and_runs_by_outcome() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let close = |span: Duration, expected: Duration| {
        let error = span.as_secs_f64() / expected.as_secs_f64() - 1.0;
        assert!(error.abs() <= 0.01, "{span:?} is not {expected:?}");
    };
    for (panics, wait, run) in [(false, 3, 2), (true, 5, 7)] {
        let (first, second) = (Gate::new(), Gate::new());
        let before = io.submit(first.closure()).unwrap();
        first.wait_started();
        let closure = second.closure();
        let queued = io.submit(move || {
            closure();
            assert!(!panics, "on purpose");
        });
        owned.time.advance(wait * SECOND);
        first.open();
        before.join().unwrap();
        second.wait_started();
        owned.time.advance(run * SECOND);
        second.open();
        assert_eq!(queued.unwrap().join().is_err(), panics);
        let stats = pool.stats();
        let lane = &stats.lanes[0];
        close(lane.waits.max(), wait * SECOND);
        // the one before ran while this one waited
        close(lane.finished.max(), wait * SECOND);
        let of_this = if panics { &lane.panicked } else { &lane.finished };
        close(of_this.quantile(0.0), run * SECOND);
    }
    let stats = pool.stats();
    let lane = &stats.lanes[0];
    assert_eq!((lane.waits.count(), lane.finished.count(), lane.panicked.count()), (4, 3, 1));
    close(lane.waits.mean(), 2 * SECOND);
    close(lane.panicked.quantile(0.5), 7 * SECOND);
    assert_eq!(lane.waits.quantile(0.5), Duration::ZERO);
    assert_eq!(lane.waits.buckets().map(|(_, count)| count).sum::<u64>(), 4);
    assert_eq!((lane.unclaimed.count(), lane.unclaimed.quantile(0.9)), (0, Duration::ZERO));
    assert_eq!((lane.unclaimed.max(), lane.unclaimed.mean()), (Duration::ZERO, Duration::ZERO));
    assert_eq!(lane.unclaimed.buckets().count(), 0);
    assert!(format!("{:?}", lane.waits).starts_with("Histogram { count: 4"));
}

/// BLK-13
#[test]
fn a_quantile_out_of_range_is_the_nearest_in_range() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    block_on(io.run(|| ())).unwrap();
    let stats = pool.stats();
    let runs = &stats.lanes[0].finished;
    for quantile in [-1.0, f64::NEG_INFINITY, 2.0, f64::INFINITY, f64::NAN] {
        assert!(runs.quantile(quantile) <= runs.max(), "{quantile}");
    }
}

/// BLK-13
#[test]
fn a_snapshot_shows_every_job_with_its_times() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 8);
    let gate = Gate::new();
    let running = io.job("running").submit(gate.closure()).unwrap();
    gate.wait_started();
    owned.time.advance(SECOND);
    let queued = io.job("queued").submit(|| ()).unwrap();
    let mut acquire = io.acquire();
    start(&mut acquire);
    owned.time.advance(SECOND);
    let mut jobs = pool.snapshot().jobs;
    jobs.sort_by_key(|job| job.id);
    let text: Vec<_> = jobs.iter().map(ToString::to_string).collect();
    let expected = [
        r##"#1 "running" (short_io, lane "io") running, for 2s"##,
        r##"#2 "queued" (short_io, lane "io") queued, waiting for 1s"##,
    ];
    assert_eq!(text, expected);
    assert_eq!((jobs[0].id, jobs[1].id), (running.id(), queued.id()));
    assert!(format!("{pool:?}").contains("queued"));
    drop(acquire);
    gate.open();
    running.join().unwrap();
    queued.join().unwrap();
    eventually("nothing is left", || pool.snapshot().jobs.is_empty());
}

/// BLK-13, ADM-6
#[test]
fn a_look_at_the_figures_that_finds_a_deadline_passed_starts_what_may_start_now() {
    let owned = Owned::new();
    let clock = JumpyClock::new();
    let builder = owned.builder(2).lane(LanePolicy::new("io")).time(Arc::new(clock.clone()));
    let pool = builder.build().unwrap();
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let soon = std::time::Instant::now() + SECOND;
    let heavy = io.job("heavy").weight(2).deadline(soon).submit(|| ()).unwrap();
    let light = io.submit(gate.closure()).unwrap();
    clock.jump(5 * SECOND);
    assert_eq!(pool.stats().budget.lanes[0].waiting, 0);
    gate.wait_started();
    assert!(heavy.join().is_err());
    gate.open();
    running.join().unwrap();
    light.join().unwrap();
}

/// BLK-13, FAC-3
#[cfg(feature = "serde")]
#[test]
fn figures_and_reports_can_be_written_as_json() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, 0);
    let gate = Gate::new();
    let running = io.job("a \"name\"").submit(gate.closure()).unwrap();
    gate.wait_started();
    block_on(io.run(|| ())).unwrap();
    let stats = serde_json::to_value(pool.stats()).unwrap();
    assert_eq!(stats["budget"]["capacity"], 2);
    assert_eq!(stats["lanes"][0]["name"], "io");
    assert_eq!(stats["lanes"][0]["counts"]["started"], 2);
    assert_eq!(stats["lanes"][0]["finished"]["count"], 1);
    assert!(stats["lanes"][0]["waits"]["p99"].is_object());
    assert_eq!(stats["threads"]["alive"], 2);
    let snapshot = serde_json::to_value(pool.snapshot()).unwrap();
    let job = &snapshot["jobs"][0];
    assert_eq!((&job["name"], &job["state"]), (&"a \"name\"".into(), &"running".into()));
    assert_eq!((&job["kind"], &job["id"]), (&"short_io".into(), &1.into()));
    let report = block_on(pool.shutdown(owned.after(Duration::ZERO)));
    let report = serde_json::to_value(report).unwrap();
    assert_eq!((&report["complete"], &report["permits"]), (&false.into(), &1.into()));
    gate.open();
    running.join().unwrap();
}

/// BLK-13
#[test]
fn the_figures_count_jobs_by_state_and_by_kind_with_the_oldest_of_each() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(3, 100);
    const SCAN: JobKind = JobKind::new("scan");
    let gate = Gate::new();
    let job = |kind| io.job("x").kind(kind);
    let running = job(SCAN).submit(gate.closure()).unwrap();
    gate.wait_started();
    owned.time.advance(SECOND);
    let mut left = job(SCAN).run(gate.closure());
    start(&mut left);
    gate.wait_started();
    let mut late = job(JobKind::CPU_BOUND).deadline(owned.after(SECOND)).run(gate.closure());
    start(&mut late);
    gate.wait_started();
    let queued: Vec<_> = (0..3)
        .map(|n| {
            owned.time.advance(SECOND);
            job(if n == 1 { SCAN } else { JobKind::SHORT_IO }).submit(|| ()).unwrap()
        })
        .collect();
    let mut acquire = io.acquire();
    start(&mut acquire);
    drop(left);
    owned.time.advance(SECOND);
    let stats = pool.stats();
    let states = stats.states;
    assert_eq!((states.queued, states.running), (3, 1), "an acquire is no job");
    assert_eq!((states.abandoned, states.timed_out, states.total()), (1, 1, 6));
    let of = |kind| *stats.kinds.iter().find(|stats| stats.kind == kind).unwrap();
    let scan = of(SCAN);
    assert_eq!((scan.queued, scan.oldest_wait), (1, Some(2 * SECOND)));
    assert_eq!((scan.running, scan.oldest_run), (2, Some(5 * SECOND)));
    let cpu = of(JobKind::CPU_BOUND);
    assert_eq!((cpu.queued, cpu.oldest_wait, cpu.running), (0, None, 1));
    assert_eq!(cpu.oldest_run, Some(4 * SECOND));
    let io_kind = of(JobKind::SHORT_IO);
    assert_eq!((io_kind.queued, io_kind.oldest_wait), (2, Some(3 * SECOND)));
    assert_eq!((io_kind.running, io_kind.oldest_run), (0, None));
    // the oldest leaves, and the next one is
    assert!(queued[0].cancel());
    let stats = pool.stats();
    let io_kind = stats.kinds.iter().find(|stats| stats.kind == JobKind::SHORT_IO).unwrap();
    assert_eq!((io_kind.queued, io_kind.oldest_wait), (1, Some(SECOND)));
    drop(acquire);
    gate.open();
    running.join().unwrap();
    eventually("all jobs end", || pool.stats().states.total() == 0);
    let empty = pool.stats().kinds;
    assert!(empty.iter().all(|kind| (kind.queued, kind.running) == (0, 0)), "{empty:?}");
}

/// BLK-13
#[test]
fn a_snapshot_of_very_many_jobs_is_copied_in_steps_and_shows_all_that_wait_throughout() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, usize::MAX);
    let gate = Gate::new();
    let running = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let tickets: Vec<_> = (0..5_000).map(|_| io.submit(|| ()).unwrap()).collect();
    let (other, stop) = (io.clone(), Arc::new(AtomicBool::new(false)));
    let come_and_go = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                other.submit(|| ()).unwrap().cancel();
            }
        })
    };
    for _ in 0..20 {
        let jobs = pool.snapshot().jobs;
        let mut ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        ids.sort_unstable();
        assert!(ids.is_sorted_by(|a, b| a < b), "a job is shown twice");
        assert!(tickets.iter().all(|ticket| ids.binary_search(&ticket.id()).is_ok()));
        assert!(ids.binary_search(&running.id()).is_ok());
    }
    stop.store(true, Ordering::Relaxed);
    come_and_go.join().unwrap();
    tickets.iter().for_each(|ticket| assert!(ticket.cancel()));
    gate.open();
}
