//! The figures: consistent with each other, and each refusal once.

mod support;

use std::time::Duration;
use support::{Waiter, budget, granted, refused};
use tollgate_admission::{
    Budget, ClockOnly, Deadline, LaneConfig, Refused, ThreadTimer, TimeSource,
};

/// ADM-12
#[test]
fn every_figure_of_a_lane_is_shown() {
    let lanes = [LaneConfig::new("files").reserved(2), LaneConfig::new("busy").reserved(1)];
    let (budget, [files, busy], time) = budget(6, lanes);
    let file = granted(files.acquire_many(4));
    let _busy = granted(busy.acquire_many(2));
    let _first = Waiter::queue(files.acquire_many(5));
    time.advance(Duration::from_secs(3));
    let _second = Waiter::queue(files.acquire());
    time.advance(Duration::from_secs(4));
    assert!(busy.try_acquire().is_err());

    let stats = budget.stats();
    assert_eq!((stats.capacity, stats.available, stats.deficit), (6, 0, 0));
    assert_eq!((stats.running(), stats.closed), (6, None));
    let names: Vec<_> = stats.lanes.iter().map(|lane| &*lane.name).collect();
    assert_eq!(names, ["files", "busy"], "in the order in which they were given");
    let files = stats.lane("files").unwrap();
    assert_eq!((files.running, files.borrowed, files.peak), (4, 2, 4));
    assert_eq!((files.waiting, files.oldest_wait), (2, Some(Duration::from_secs(7))));
    assert_eq!((files.admitted, files.refused), (1, Refused::default()));
    let busy = stats.lane("busy").unwrap();
    assert_eq!((busy.running, busy.borrowed, busy.waiting, busy.oldest_wait), (2, 1, 0, None));
    assert_eq!((busy.refused.busy, busy.refused.total()), (1, 1));
    assert_eq!(stats.lane("nobody"), None);

    drop(file);
    let files = budget.stats().lanes[0].clone();
    assert_eq!((files.running, files.borrowed, files.peak, files.admitted), (0, 0, 4, 1));
}

/// ADM-9, ADM-12
#[test]
fn each_refusal_is_counted_once_by_its_cause() {
    let lanes = [LaneConfig::new("l").max_waiting(2), LaneConfig::new("other")];
    let (budget, [lane, _other], time) = budget(2, lanes);
    let seen = || budget.stats().lanes[0].refused;
    let mut expected = Refused::default();

    refused(lane.acquire_many(0));
    expected.zero_weight += 1;
    assert_eq!(seen(), expected);
    refused(lane.acquire_many(3));
    expected.too_large += 1;
    assert_eq!(seen(), expected);
    refused(lane.acquire_until(time.now()));
    expected.deadline += 1;
    assert_eq!(seen(), expected);

    let permit = granted(lane.acquire_many(2));
    assert!(lane.try_acquire().is_err());
    expected.busy += 1;
    assert_eq!(seen(), expected);
    let timed = Waiter::queue(lane.acquire_until(time.now() + SECOND));
    let closed = Waiter::queue(lane.acquire());
    refused(lane.acquire());
    expected.queue_full += 1;
    assert_eq!(seen(), expected);
    time.advance(SECOND);
    expected.deadline += 1;
    assert_eq!(seen(), expected);
    let cancelled = Waiter::queue(lane.acquire());
    drop(cancelled);
    assert_eq!(seen(), expected, "giving up is no refusal");
    budget.close();
    expected.closed += 1;
    assert_eq!(seen(), expected);
    // looking at what was refused counts nothing
    timed.refusal();
    closed.refusal();
    drop(permit);
    refused(lane.acquire());
    expected.closed += 1;
    assert_eq!(seen(), expected);
    assert_eq!(seen().total(), 8);
    assert_eq!(budget.stats().lanes[1].refused.total(), 0);
}

const SECOND: Duration = Duration::from_secs(1);

/// ADM-9
#[test]
fn the_lack_of_a_timer_is_a_cause_of_its_own() {
    let budget = Budget::builder().capacity(1).lane(LaneConfig::new("l"));
    let budget = budget.time(std::sync::Arc::new(ClockOnly)).build().unwrap();
    let lane = budget.lane("l").unwrap();
    let _permit = granted(lane.acquire());
    refused(lane.acquire_until(Deadline::after(SECOND)));
    let refused = budget.stats().lanes[0].refused;
    assert_eq!((refused.no_timer, refused.total()), (1, 1));
}

/// ADM-12, ADM-2
#[test]
fn each_copy_is_consistent_while_threads_are_at_work() {
    let lanes = [LaneConfig::new("a").limit(3), LaneConfig::new("b").reserved(1).kept(1)];
    let (budget, [a, b], _) = budget(4, lanes);
    std::thread::scope(|scope| {
        let workers = [&a, &b, &a, &b].map(|lane| {
            scope.spawn(|| {
                for round in 0..3_000 {
                    match round % 3 {
                        0 => drop(lane.try_acquire()),
                        1 => drop(support::block_on(lane.acquire()).unwrap()),
                        _ => drop(support::Polled::new(lane.acquire_many(2)).poll()),
                    }
                }
            })
        });
        let mut before = budget.stats();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let stats = budget.stats();
            assert_eq!(stats.running() + stats.available, stats.capacity + stats.deficit);
            for (lane, before) in stats.lanes.iter().zip(&before.lanes) {
                assert!(lane.admitted >= before.admitted && lane.peak >= before.peak);
                assert!(lane.running <= lane.peak);
                assert_eq!(lane.waiting > 0, lane.oldest_wait.is_some());
            }
            assert!(stats.lanes[0].running <= 3);
            before = stats;
        }
    });
}

/// ADM-12
#[test]
fn what_is_debugged_shows_its_figures() {
    let (budget, [lane], time) = budget(3, [LaneConfig::new("files")]);
    let permit = granted(lane.acquire_many(2));
    let acquire = lane.acquire_many(3);
    let shown = format!("{budget:?} {lane:?} {permit:?} {acquire:?} {time:?}");
    for part in ["running: 2", "name: \"files\"", "Permit", "weight: 2", "weight: 3", "pending: 0"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let resize = budget.resize().lane("files", |lane| lane.limit(77));
    let shown = format!("{resize:?} {:?} {:?}", budget.drained(), ThreadTimer::new("tick"));
    for part in ["Resize", "77", "Drained", "tick", "started: false"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
}

/// ADM-12
#[cfg(feature = "serde")]
#[test]
fn stats_survive_a_round_trip_through_json() {
    let (budget, [lane], time) = budget(2, [LaneConfig::new("früh \"1\"")]);
    let _permit = granted(lane.acquire_many(2));
    let _waiter = Waiter::queue(lane.acquire());
    time.advance(Duration::from_millis(1_500));
    budget.resize().capacity(1).apply().unwrap();
    budget.close();
    let stats = budget.stats();
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["lanes"][0]["name"], "früh \"1\"");
    assert_eq!(json["lanes"][0]["refused"]["closed"], 1);
    assert_eq!((&json["deficit"], &json["closed"]), (&1.into(), &"budget".into()));
    let back: tollgate_admission::BudgetStats = serde_json::from_value(json).unwrap();
    assert_eq!(back, stats);
}
