//! What a budget can be built from, and what it says to numbers that don't fit.

mod support;

use support::{Waiter, budget, granted, refused};
use tollgate_admission::{
    AcquireError, Budget, BudgetBuilder, BuildError, Closed, DEFAULT_MAX_WAITING, LaneConfig,
    TryAcquireError,
};

fn lane(name: &str) -> LaneConfig {
    LaneConfig::new(name)
}

fn refusal<const N: usize>(capacity: u64, lanes: [LaneConfig; N]) -> BuildError {
    let builder = Budget::builder().capacity(capacity);
    lanes.into_iter().fold(builder, BudgetBuilder::lane).build().unwrap_err()
}

/// ADM-1, A13
#[test]
fn a_budget_in_which_nothing_could_run_is_refused() {
    assert_eq!(refusal(0, [lane("l")]), BuildError::ZeroCapacity);
    assert_eq!(BuildError::ZeroCapacity.to_string(), "the capacity is 0");
    assert_eq!(Budget::builder().lane(lane("l")).build().unwrap_err(), BuildError::ZeroCapacity);
    assert_eq!(refusal(1, []), BuildError::NoLanes);
    assert_eq!(BuildError::NoLanes.to_string(), "there are no lanes");
}

/// ADM-1, A13
#[test]
fn a_lane_in_which_nothing_could_run_is_refused_by_name() {
    let error = refusal(4, [lane("fine"), lane("stuck").limit(0)]);
    assert_eq!(error, BuildError::ZeroLimit { lane: "stuck".into() });
    assert_eq!(error.to_string(), "lane `stuck` has limit 0");
}

/// ADM-1, A13
#[test]
fn a_reservation_above_the_limit_is_refused_with_both_numbers() {
    let error = refusal(9, [lane("fine").reserved(3).limit(3), lane("io").reserved(6).limit(4)]);
    let (lane, reserved, limit) = ("io".into(), 6, 4);
    assert_eq!(error, BuildError::ReservedAboveLimit { lane, reserved, limit });
    assert_eq!(error.to_string(), "lane `io` reserves 6 permits but its limit is 4");
}

/// ADM-1, A13
#[test]
fn keeping_more_than_is_reserved_is_refused_with_both_numbers() {
    let error = refusal(9, [lane("fine").reserved(1).kept(1), lane("probes").reserved(2).kept(3)]);
    let (lane, kept, reserved) = ("probes".into(), 3, 2);
    assert_eq!(error, BuildError::KeptAboveReserved { lane, kept, reserved });
    assert_eq!(error.to_string(), "lane `probes` keeps 3 permits but reserves 2");
}

/// ADM-1, A13
#[test]
fn reservations_above_the_capacity_are_refused_at_the_lane_that_exceeds_it() {
    let reserving = |name, permits| lane(name).reserved(permits);
    let error = refusal(5, [reserving("a", 2), reserving("b", 2), reserving("c", 2), lane("d")]);
    let (lane, reserved, capacity) = ("c".into(), 6, 5);
    assert_eq!(error, BuildError::ReservationsAboveCapacity { lane, reserved, capacity });
    assert_eq!(
        error.to_string(),
        "lane `c` brings the reservations to 6 permits but the capacity is 5"
    );
    // a sum that does not fit either
    let error = refusal(u64::MAX - 1, [reserving("a", u64::MAX - 1), reserving("b", u64::MAX)]);
    let (lane, reserved, capacity) = ("b".into(), u64::MAX, u64::MAX - 1);
    assert_eq!(error, BuildError::ReservationsAboveCapacity { lane, reserved, capacity });
}

/// ADM-1, A13
#[test]
fn two_lanes_of_one_name_are_refused() {
    let error = refusal(5, [lane("a"), lane("b"), lane("a")]);
    assert_eq!(error, BuildError::DuplicateLane { lane: "a".into() });
    assert_eq!(error.to_string(), "there is more than one lane `a`");
}

/// ADM-1
#[test]
fn numbers_at_their_bounds_are_accepted() {
    let lanes = [
        lane("all reserved").reserved(2).kept(2).limit(2),
        lane("rest").reserved(3).kept(0).limit(u64::MAX).max_waiting(0),
    ];
    let (budget, [all, rest], _) = budget(5, lanes);
    let _rest = granted(rest.acquire_many(3));
    let _all = granted(all.acquire_many(2));
    assert_eq!(budget.stats().available, 0);
}

/// ADM-1
#[test]
fn a_lane_without_a_queue_refuses_whoever_would_have_to_wait() {
    let (budget, [lane], _) = budget(1, [lane("no queue").max_waiting(0)]);
    let _permit = granted(lane.acquire());
    let error = refused(lane.acquire());
    assert_eq!(error, AcquireError::QueueFull { lane: "no queue".into(), max_waiting: 0 });
    assert_eq!(error.to_string(), "lane `no queue` already has 0 waiting, which is its bound");
    assert_eq!(budget.stats().lanes[0].refused.queue_full, 1);
}

/// ADM-1
#[test]
fn a_queue_is_bounded_unless_it_is_asked_for_without_a_bound() {
    let lanes = [lane("default"), lane("unbounded").unbounded_waiting()];
    let (budget, [default, unbounded], _) = budget(1, lanes);
    let _permit = default.try_acquire().unwrap();
    let mut waiters = Vec::new();
    for _ in 0..DEFAULT_MAX_WAITING {
        waiters.push(Waiter::queue(default.acquire()));
        waiters.push(Waiter::queue(unbounded.acquire()));
    }
    let error = refused(default.acquire());
    assert!(matches!(error, AcquireError::QueueFull { max_waiting: DEFAULT_MAX_WAITING, .. }));
    waiters.push(Waiter::queue(unbounded.acquire()));
    assert_eq!(budget.stats().lanes[1].waiting, DEFAULT_MAX_WAITING + 1);
}

/// ADM-1
#[test]
fn a_budget_has_any_number_of_lanes() {
    let builder = (0..1_000).fold(Budget::builder().capacity(1_000), |builder, n| {
        builder.lane(lane(&format!("lane {n}")).reserved(1).kept(1))
    });
    let budget = builder.build().unwrap();
    let permits: Vec<_> = (0..1_000)
        .map(|n| budget.lane(&format!("lane {n}")).unwrap().try_acquire().unwrap())
        .collect();
    assert_eq!(budget.stats().available, 0);
    drop(permits);
    assert_eq!(budget.stats().available, 1_000);
}

/// ADM-1, section 5: names with any characters.
#[test]
fn any_characters_make_a_name() {
    let long = "long ".repeat(10_000);
    let names = ["", " ", "\0", "a`b\n\r\t", "{}", "\u{202e}gnol", "früh, 早い, 🚦", &long];
    let builder = Budget::builder().capacity(1);
    let budget = names.iter().fold(builder, |builder, name| builder.lane(lane(name)));
    let budget = budget.build().unwrap();
    for name in names {
        let lane = budget.lane(name).unwrap();
        assert_eq!(lane.name(), name);
        drop(granted(lane.acquire()));
        let error = refused(lane.acquire_many(2)).to_string();
        assert!(error.contains(name));
        assert_eq!(budget.stats().lane(name).unwrap().refused.too_large, 1);
    }
}

/// ADM-1
#[test]
fn a_lane_that_is_not_there_is_named() {
    let (budget, [_lane], _) = budget(1, [lane("files")]);
    let error = budget.lane("Files").unwrap_err();
    assert_eq!(error.to_string(), "there is no lane `Files`");
    assert_eq!(&*error.lane, "Files");
}

/// ADM-2, section 5: maximum and overflow.
#[test]
fn the_greatest_numbers_overflow_nothing() {
    let half = u64::MAX / 2;
    let lanes = [
        lane("a").reserved(half).kept(half).max_waiting(usize::MAX),
        lane("b").reserved(half + 1).kept(1),
    ];
    let (budget, [a, b], _) = budget(u64::MAX, lanes);
    assert_eq!(budget.stats().available, u64::MAX);
    // all but what the other keeps
    let heavy = granted(a.acquire_many(u64::MAX - 1));
    let error = a.try_acquire_many(u64::MAX).unwrap_err();
    assert!(matches!(error, TryAcquireError::TooLarge { weight: u64::MAX, .. }));
    let heavier = Waiter::queue(b.acquire_many(half + 1));
    let heaviest = Waiter::queue(a.acquire_many(u64::MAX - 1));
    assert!(matches!(b.try_acquire(), Err(TryAcquireError::Busy { .. })));
    budget.resize().lane("a", |lane| lane.reserved(u64::MAX - half - 1)).apply().unwrap();
    drop(heavy);
    assert_eq!((heavier.wakes(), heaviest.wakes()), (1, 0));
    budget.resize().capacity(u64::MAX).lane("b", |lane| lane.limit(u64::MAX)).apply().unwrap();
    drop(heavier);
    assert_eq!(heaviest.wakes(), 1);
    drop(heaviest);
    let stats = budget.stats();
    assert_eq!((stats.available, stats.lanes[0].peak), (u64::MAX, u64::MAX - 1));
}

/// ADM-6, ADM-9, section 5: zero.
#[test]
fn a_weight_of_zero_is_refused_and_counted() {
    let (budget, [lane], _) = budget(1, [lane("l")]);
    let error = refused(lane.acquire_many(0));
    assert_eq!(error, AcquireError::ZeroWeight { lane: "l".into() });
    assert_eq!(error.to_string(), "a weight of 0 was asked of lane `l`; permits weigh at least 1");
    assert!(matches!(lane.try_acquire_many(0), Err(TryAcquireError::ZeroWeight { .. })));
    assert_eq!(budget.stats().lanes[0].refused.zero_weight, 2);
}

/// ADM-1
#[test]
fn a_lane_from_which_the_others_keep_everything_is_told_so() {
    let lanes = [lane("probes").reserved(2).kept(2), lane("left out")];
    let (_budget, [_probes, left_out], _) = budget(2, lanes);
    let error = refused(left_out.acquire());
    assert!(matches!(error, AcquireError::TooLarge { weight: 1, limit: 0, .. }), "{error:?}");
}

/// ADM-9
#[test]
fn errors_say_in_words_what_happened() {
    let lane = || "io".into();
    let texts = [
        (
            AcquireError::QueueFull { lane: lane(), max_waiting: 8 }.to_string(),
            "lane `io` already has 8 waiting, which is its bound",
        ),
        (TryAcquireError::Busy { lane: lane() }.to_string(), "lane `io` has no permit free"),
        (
            TryAcquireError::Deadline { lane: lane() }.to_string(),
            "the deadline had passed when lane `io` was asked",
        ),
        (
            AcquireError::Closed { lane: lane(), what: Closed::Runtime }.to_string(),
            "lane `io` admits nothing more: the runtime that owns it is gone",
        ),
        (
            TryAcquireError::TooLarge { lane: lane(), weight: 9, limit: 8 }.to_string(),
            "a weight of 9 exceeds 8, the most that lane `io` can ever grant",
        ),
    ];
    for (text, expected) in texts {
        assert_eq!(text, expected);
    }
}
