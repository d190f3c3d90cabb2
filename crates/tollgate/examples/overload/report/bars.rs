//! What tollgate promises under four times the load, against what was measured.

use std::fmt;

use serde::Serialize;

use super::{ServiceName, Step};
use crate::service::Policy;

/// Goodput at 4 x, as a share of the goodput at 1 x.
const LEAST_GOODPUT: f64 = 0.95;
/// Latency, as a multiple of what a full queue explains.
const MOST_LATENCY: f64 = 1.5;
/// Health probes, in milliseconds.
const MOST_HEALTH_MS: f64 = 10.0;

/// One promise.
#[derive(Debug, Serialize)]
pub(crate) struct Bar {
    pub(crate) name: &'static str,
    pub(crate) measured: f64,
    pub(crate) limit: f64,
    pub(crate) unit: &'static str,
    pub(crate) met: bool,
    /// In words, with the numbers that it was computed from.
    pub(crate) explanation: String,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, measured, limit, unit, explanation, .. } = self;
        let verdict = if self.met { "ok" } else { "missed" };
        write!(f, "{verdict}: {name}: {measured:.2}{unit}, limit {limit:.2}{unit} ({explanation})")
    }
}

/// The bars, if both of the steps that they compare were run.
pub(crate) fn check(steps: &[Step], policy: &Policy) -> Vec<Bar> {
    let find = |load| steps.iter().find(|step| step.is(ServiceName::Tollgate, load));
    let (Some(at_1), Some(at_4)) = (find(1.0), find(4.0)) else { return Vec::new() };
    [goodput(at_1, at_4), latency(at_4, policy), health(at_4)].into_iter().flatten().collect()
}

fn goodput(at_1: &Step, at_4: &Step) -> Option<Bar> {
    let (least, goodput) = (at_1.goodput_per_second, at_4.goodput_per_second);
    let measured = goodput / least;
    measured.is_finite().then(|| Bar {
        name: "goodput at 4 x over goodput at 1 x",
        measured,
        limit: LEAST_GOODPUT,
        unit: "",
        met: measured >= LEAST_GOODPUT,
        explanation: format!("{goodput:.0}/s over {least:.0}/s"),
    })
}

fn latency(at_4: &Step, policy: &Policy) -> Option<Bar> {
    let measured = at_4.latency_ms.p99?;
    let full = (policy.max_waiting + policy.in_flight as usize) as f64;
    let limit = MOST_LATENCY * full / at_4.goodput_per_second * 1e3;
    Some(Bar {
        name: "p99 of what was admitted at 4 x",
        measured,
        limit,
        unit: " ms",
        met: measured <= limit,
        explanation: format!(
            "{MOST_LATENCY} x ({} waiting + {} in flight) / {:.0}/s",
            policy.max_waiting, policy.in_flight, at_4.goodput_per_second,
        ),
    })
}

fn health(at_4: &Step) -> Option<Bar> {
    let measured = at_4.health_ms.p99?;
    Some(Bar {
        name: "health probe p99 at 4 x",
        measured,
        limit: MOST_HEALTH_MS,
        unit: " ms",
        met: measured < MOST_HEALTH_MS && at_4.unanswered_probes == 0,
        explanation: format!("{} unanswered", at_4.unanswered_probes),
    })
}
