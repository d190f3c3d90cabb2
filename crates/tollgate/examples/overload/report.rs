//! What a run found: the one structure behind the table, the JSON file and the page.

pub(crate) mod bars;
pub(crate) mod page;
pub(crate) mod table;

use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::Serialize;

use self::bars::Bar;
use crate::measure::{Figures, Usage};
use crate::service::{Policy, Refused};

/// Everything that a run found. Times are in milliseconds unless the name says otherwise.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds_per_step: f64,
    pub(crate) cores: usize,
    /// Ctrl-c ended the run before its time.
    pub(crate) interrupted: bool,
    pub(crate) corpus: CorpusReport,
    pub(crate) capacity: Option<Capacity>,
    pub(crate) policy: Policy,
    pub(crate) steps: Vec<Step>,
    pub(crate) bars: Vec<Bar>,
    pub(crate) self_check: SelfCheck,
    pub(crate) shutdown: Shutdown,
}

#[derive(Debug, Serialize)]
pub(crate) struct CorpusReport {
    pub(crate) dir: PathBuf,
    pub(crate) files: usize,
    pub(crate) bytes: usize,
    /// There were more files than a run takes.
    pub(crate) truncated: bool,
}

/// What the closed loop measured, in requests per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Capacity {
    pub(crate) callers: usize,
    pub(crate) per_second: f64,
    /// The rate that the loads are multiples of.
    pub(crate) one_x_per_second: f64,
}

/// One of the two services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServiceName {
    Tollgate,
    SpawnBlocking,
}

impl ServiceName {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Tollgate => "tollgate",
            Self::SpawnBlocking => "spawn_blocking",
        }
    }
}

/// One load over one service.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) service: ServiceName,
    /// The load as a multiple of 1 x.
    pub(crate) load: f64,
    pub(crate) offered_per_second: f64,
    /// How long load was offered, which an interrupt makes shorter than planned.
    pub(crate) seconds: f64,
    pub(crate) offered: u64,
    pub(crate) done: u64,
    pub(crate) refused: Refused,
    pub(crate) cancelled: u64,
    pub(crate) failed: u64,
    /// Of those done: answers that differ from the serial pass's.
    pub(crate) wrong: u64,
    /// Requests done per second.
    pub(crate) goodput_per_second: f64,
    /// From the intended arrival to the answer, of what was done.
    pub(crate) latency_ms: Percentiles,
    /// How fast latency grew while load was offered.
    pub(crate) latency_slope_ms_per_second: Option<f64>,
    pub(crate) health_ms: Percentiles,
    pub(crate) unanswered_probes: u64,
    /// Of the whole process.
    pub(crate) peak_threads: Option<u64>,
    /// Of the whole process.
    pub(crate) peak_memory_bytes: Option<u64>,
    /// How much later than intended requests were offered; latency counts that too.
    pub(crate) generator_late_ms: Percentiles,
    /// What was left when the step's time was up, where that had to be thrown away.
    pub(crate) cut: Option<Cut>,
    #[serde(skip)]
    pub(crate) timeline: Vec<(f64, f64)>,
    #[serde(skip)]
    pub(crate) first_problem: Option<(usize, String)>,
}

impl Step {
    pub(crate) fn new(
        service: ServiceName,
        load: f64,
        offered_per_second: f64,
        figures: &Figures,
        usage: Usage,
        cut: Option<Cut>,
    ) -> Self {
        Self {
            service,
            load,
            offered_per_second,
            seconds: figures.seconds,
            offered: figures.offered,
            done: figures.done,
            refused: figures.refused,
            cancelled: figures.cancelled,
            failed: figures.failed,
            wrong: figures.wrong,
            goodput_per_second: figures.goodput(),
            latency_ms: Percentiles::of(&figures.latency),
            latency_slope_ms_per_second: figures.slope(),
            health_ms: Percentiles::of(&figures.health),
            unanswered_probes: figures.unanswered_probes,
            peak_threads: usage.peak_threads,
            peak_memory_bytes: usage.peak_memory,
            generator_late_ms: Percentiles::of(&figures.lateness),
            cut,
            timeline: figures.timeline(),
            first_problem: figures.first_problem.clone(),
        }
    }

    pub(crate) fn is(&self, service: ServiceName, load: f64) -> bool {
        self.service == service && self.load == load
    }
}

/// `None` where nothing was recorded.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) p999: Option<f64>,
}

impl Percentiles {
    /// Of a histogram of microseconds, in milliseconds.
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| {
            let recorded = !histogram.is_empty();
            recorded.then(|| histogram.value_at_quantile(quantile) as f64 / 1e3)
        };
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    }
}

/// How bare `spawn_blocking` was made to end a step: by dropping its runtime.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cut {
    /// Requests that were queued or running.
    pub(crate) unfinished: u64,
    pub(crate) runtime_gone_after_seconds: f64,
    /// Whether the runtime's threads ended in the time they were given.
    pub(crate) threads_ended: bool,
}

/// Whether the run can be believed.
#[derive(Debug, Serialize)]
pub(crate) struct SelfCheck {
    pub(crate) ok: bool,
    /// In words, empty if all is well.
    pub(crate) problems: Vec<String>,
}

impl SelfCheck {
    /// Every answer is right, and every request offered is done, refused or cancelled.
    pub(crate) fn of(steps: &[Step], path_of: impl Fn(usize) -> PathBuf) -> Self {
        let mut problems = Vec::new();
        for step in steps {
            let name = format!("{} at {} x", step.service.text(), step.load);
            let accounted = step.done + step.refused.total() + step.cancelled;
            if step.offered != accounted {
                problems.push(format!(
                    "{name}: offered {} but done {} + refused {} + cancelled {} = {accounted}; failed {}",
                    step.offered,
                    step.done,
                    step.refused.total(),
                    step.cancelled,
                    step.failed,
                ));
            }
            if step.wrong > 0 {
                problems.push(format!(
                    "{name}: {} of {} answers differ from the serial pass's; did a file change meanwhile?",
                    step.wrong, step.done,
                ));
            }
            if let Some((file, problem)) = &step.first_problem {
                problems.push(format!("{name}: first at `{}`: {problem}", path_of(*file).display()));
            }
        }
        Self { ok: problems.is_empty(), problems }
    }
}

/// How tollgate's part of the run ended.
#[derive(Debug, Serialize)]
pub(crate) struct Shutdown {
    /// Nothing was left queued or running.
    pub(crate) complete: bool,
    pub(crate) took_seconds: f64,
    /// The pool's own report, in words.
    pub(crate) report: String,
}

