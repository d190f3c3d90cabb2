//! Rounds: every starter once, in an order that changes, until enough rounds count.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde::Serialize;
use tollgate_benches::closed_loop::Loop;
use tollgate_benches::stats::{median, near_median};

use crate::field::{RAYON, Starter, TOLLGATE, TOLLGATE_AGAIN, is_ours, renew};
use crate::workloads::Workload;

/// How far the two equal entrants may differ.
const SAME: RangeInclusive<f64> = 0.95..=1.05;
/// A round in which the gauge is off its own median by more than this does not count.
const QUIET: f64 = 1.5;
/// Fewer rounds than this show nothing.
const FEWEST_ROUNDS: usize = 5;
/// Times everybody runs in one round. Where threads are placed is drawn anew with every loop, so
/// several short loops say more than a long one.
const PASSES: u32 = 4;
/// Jobs each caller runs at least, so that starting and ending a loop weigh little.
const FEWEST_JOBS_EACH: u64 = 16;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Rounds that must count.
    pub(crate) rounds: usize,
    /// How long one starter should take in a round.
    pub(crate) sample: Duration,
    /// How often a void workload is measured again.
    pub(crate) repeats: usize,
    /// Where the whole run has only so much time: when this workload must be done.
    pub(crate) until: Option<Instant>,
}

/// One starter's figures in one workload, in microseconds per job, over the rounds that count.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub(crate) median: f64,
    pub(crate) fastest: f64,
    pub(crate) slowest: f64,
}

impl Plan {
    /// Whether something that takes `span` would end too late.
    fn too_late_for(&self, span: Duration) -> bool {
        self.until.is_some_and(|until| Instant::now() + span > until)
    }
}

impl Figures {
    fn of(samples: &[f64]) -> Self {
        Self {
            median: median(samples.iter().copied()),
            fastest: samples.iter().copied().fold(f64::INFINITY, f64::min),
            slowest: samples.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// What came of one workload.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Every starter's figures, in the order of the field.
    pub(crate) figures: Vec<(&'static str, Figures)>,
    /// Both of our entrants' samples taken together: what ratios are formed with.
    pub(crate) ours: Figures,
    /// Rounds that count.
    pub(crate) rounds: usize,
    /// Rounds dropped because the machine was not quiet.
    pub(crate) dropped: usize,
    /// The second of the two equal entrants over the first.
    pub(crate) again_over_first: f64,
    /// Times the workload was measured; all but the last were void.
    pub(crate) attempts: usize,
    /// Why the figures show nothing, if they do not.
    pub(crate) void: Option<String>,
}

impl Outcome {
    /// The peer's time over ours.
    pub(crate) fn ratio(&self, peer: &str) -> Option<f64> {
        let (_, figures) = self.figures.iter().find(|(name, _)| *name == peer)?;
        Some(figures.median / self.ours.median)
    }

    /// One line.
    pub(crate) fn summary(&self) -> String {
        let Self { ours, rounds, dropped, again_over_first, attempts, void, .. } = self;
        let void = void.as_ref().map_or(String::new(), |reason| format!(", VOID: {reason}"));
        format!(
            "{:.2} us per job, {rounds} rounds, {dropped} dropped, A/A {again_over_first:.3}, \
             attempt {attempts}{void}",
            ours.median
        )
    }

    fn new(names: &[&'static str], rounds: &[Vec<f64>], wanted: usize, attempts: usize) -> Self {
        let quiet = quiet_rounds(names, rounds);
        let valid: Vec<_> =
            rounds.iter().zip(quiet).filter_map(|(round, quiet)| quiet.then_some(round)).collect();
        let column = |index: usize| valid.iter().map(|round| round[index]).collect::<Vec<_>>();
        let figures: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(index, name)| (*name, Figures::of(&column(index))))
            .collect();
        let ours: Vec<f64> =
            (0..names.len()).filter(|index| is_ours(names[*index])).flat_map(column).collect();
        let of = |wanted: &str| {
            figures.iter().find(|(name, _)| *name == wanted).map_or(f64::NAN, |(_, f)| f.median)
        };
        let again_over_first = of(TOLLGATE_AGAIN) / of(TOLLGATE);
        let void = if valid.len() < wanted.max(FEWEST_ROUNDS) {
            Some(format!("only {} of {} rounds count", valid.len(), rounds.len()))
        } else if !SAME.contains(&again_over_first) {
            Some(format!("A/A {again_over_first:.3} is outside {} to {}", SAME.start(), SAME.end()))
        } else {
            None
        };
        Self {
            ours: Figures::of(&ours),
            figures,
            rounds: valid.len(),
            dropped: rounds.len() - valid.len(),
            again_over_first,
            attempts,
            void,
        }
    }
}

/// Measures a workload; again, with everybody set up anew, while it is void and the plan allows.
pub(crate) fn workload(
    field: &mut [Starter],
    workload: &Workload,
    plan: &Plan,
) -> anyhow::Result<Outcome> {
    let names: Vec<_> = field.iter().map(|starter| starter.name).collect();
    let mut order = Order::new(0);
    for attempt in 1.. {
        let start = Instant::now();
        // So that it does not inherit what made the attempt before it void.
        renew(field)?;
        let shapes = warm_up(field, workload, plan.sample, &mut order)?;
        let mut rounds = Vec::new();
        while quiet_rounds(&names, &rounds).iter().filter(|quiet| **quiet).count() < plan.rounds
            && rounds.len() < 2 * plan.rounds
            && !(rounds.len() >= FEWEST_ROUNDS && plan.too_late_for(Duration::ZERO))
        {
            rounds.push(round(field, &shapes, &mut order)?);
        }
        let outcome = Outcome::new(&names, &rounds, plan.rounds, attempt);
        let last = attempt > plan.repeats || plan.too_late_for(start.elapsed());
        if outcome.void.is_none() || last {
            return Ok(outcome);
        }
        eprintln!("{}: {}; once more", workload.name, outcome.summary());
    }
    unreachable!("the attempts are counted without an end")
}

/// Starts everybody's threads, and sizes everybody's loops to take about the same time.
pub(crate) fn warm_up(
    field: &[Starter],
    workload: &Workload,
    sample: Duration,
    order: &mut Order,
) -> anyhow::Result<Vec<Loop>> {
    let &Workload { callers, work, .. } = workload;
    let first = Loop { callers, jobs_each: (2_000 / callers as u64).max(4), work };
    let costs = pass(field, &vec![first; field.len()], order)?;
    let sized = |us: &f64| sized(first, *us, sample / PASSES);
    let shapes: Vec<_> = costs.iter().map(sized).collect();
    // Once more: the first jobs paid for starting the threads.
    let costs = pass(field, &shapes, order)?;
    Ok(costs.iter().map(sized).collect())
}

/// A loop that takes about `sample` where a job costs `us` microseconds.
fn sized(shape: Loop, us: f64, sample: Duration) -> Loop {
    let jobs = 1e6 * sample.as_secs_f64() / us;
    let jobs_each = (jobs / shape.callers as f64) as u64;
    Loop { jobs_each: jobs_each.max(FEWEST_JOBS_EACH), ..shape }
}

/// One figure for everybody, in microseconds per job and in the order of the field.
pub(crate) fn round(
    field: &[Starter],
    shapes: &[Loop],
    order: &mut Order,
) -> anyhow::Result<Vec<f64>> {
    let mut us = vec![0.0; field.len()];
    for _ in 0..PASSES {
        let once = pass(field, shapes, order)?;
        us.iter_mut().zip(once).for_each(|(sum, once)| *sum += once / f64::from(PASSES));
    }
    Ok(us)
}

/// One loop of everybody.
fn pass(field: &[Starter], shapes: &[Loop], order: &mut Order) -> anyhow::Result<Vec<f64>> {
    let mut us = vec![f64::NAN; field.len()];
    for index in order.next(field.len()) {
        us[index] = field[index].sample(shapes[index])?;
    }
    Ok(us)
}

/// Which rounds count: those in which the gauge was near its median.
fn quiet_rounds(names: &[&str], rounds: &[Vec<f64>]) -> Vec<bool> {
    match names.iter().position(|name| *name == RAYON) {
        Some(gauge) => {
            let gauge: Vec<f64> = rounds.iter().map(|round| round[gauge]).collect();
            near_median(&gauge, QUIET)
        }
        None => vec![true; rounds.len()],
    }
}

/// The order of each pass: shuffled, the same in every run with the same seed.
#[derive(Debug)]
pub(crate) struct Order(fastrand::Rng);

impl Order {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        self.0.shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = [TOLLGATE, TOLLGATE_AGAIN, "peer", RAYON];

    fn outcome(rounds: &[[f64; 4]]) -> Outcome {
        let rounds: Vec<_> = rounds.iter().map(|round| round.to_vec()).collect();
        Outcome::new(&NAMES, &rounds, FEWEST_ROUNDS, 1)
    }

    #[test]
    fn a_ratio_is_the_peers_time_over_ours() {
        let outcome = outcome(&[[2.0, 2.0, 5.0, 1.0]; 5]);
        assert_eq!(outcome.ratio("peer"), Some(2.5));
        assert_eq!(outcome.void, None);
    }

    #[test]
    fn a_round_in_which_the_gauge_is_off_is_dropped_and_counted() {
        let mut rounds = vec![[2.0, 2.0, 5.0, 1.0]; 5];
        rounds.push([90.0, 90.0, 90.0, 1.6]);
        let outcome = outcome(&rounds);
        assert_eq!((outcome.rounds, outcome.dropped), (5, 1));
        assert_eq!(outcome.ours.slowest, 2.0);
        assert_eq!(outcome.void, None);
    }

    #[test]
    fn too_few_rounds_that_count_are_void() {
        let mut rounds = vec![[2.0, 2.0, 5.0, 1.0]; 4];
        rounds.push([2.0, 2.0, 5.0, 0.5]);
        assert!(outcome(&rounds).void.is_some());
    }

    #[test]
    fn equal_entrants_that_differ_are_void() {
        assert!(outcome(&[[2.0, 2.2, 5.0, 1.0]; 5]).void.is_some());
        assert!(outcome(&[[2.2, 2.0, 5.0, 1.0]; 5]).void.is_some());
        assert!(outcome(&[[2.0, 2.08, 5.0, 1.0]; 5]).void.is_none());
    }
}
