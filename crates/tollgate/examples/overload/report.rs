//! What a run found: the one structure behind the table, the JSON file and the page.

pub(crate) mod bars;
pub(crate) mod page;
pub(crate) mod table;

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use hdrhistogram::Histogram;
use indicatif::HumanBytes;
use serde::Serialize;

use self::bars::Bar;
use crate::corpus::Corpus;
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

impl Report {
    /// What was run, in a sentence or two.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!("{}. Seed {}, {} cores. ", self.corpus, self.seed, self.cores);
        if let Some(capacity) = &self.capacity {
            // Writing to a string cannot fail.
            let _ = write!(text, "{capacity} ");
        }
        text + &self.policy.to_string()
    }

    /// What had stopped at the end, and what had not.
    pub(crate) fn shutdown_text(&self) -> String {
        let mut text = format!("tollgate: {}\n", self.shutdown);
        for step in &self.steps {
            if let Some(cut) = step.cut {
                let _ = writeln!(text, "spawn_blocking, {} x: {cut}", step.load);
            }
        }
        text
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct CorpusReport {
    pub(crate) dir: PathBuf,
    pub(crate) files: usize,
    pub(crate) bytes: usize,
    /// There were more files than a run takes.
    pub(crate) truncated: bool,
}

impl fmt::Display for CorpusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = if self.truncated { "the first " } else { "" };
        let files = if self.files == 1 { "file" } else { "files" };
        let size = HumanBytes(self.bytes as u64);
        write!(f, "{first}{} {files} ({size}) below {}", self.files, self.dir.display())
    }
}

/// What the closed loop measured, in requests per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Capacity {
    pub(crate) callers: usize,
    pub(crate) per_second: f64,
    /// The rate that the loads are multiples of.
    pub(crate) one_x_per_second: f64,
}

impl Capacity {
    pub(crate) fn load(&self, times: f64) -> Load {
        Load { times, per_second: times * self.one_x_per_second }
    }
}

/// How much is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// As a multiple of 1 x.
    pub(crate) times: f64,
    pub(crate) per_second: f64,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { callers, per_second, one_x_per_second } = self;
        write!(
            f,
            "A closed loop of {callers} callers reached {per_second:.0}/s; \
             1 x is {one_x_per_second:.0}/s."
        )
    }
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
}

impl Step {
    pub(crate) fn new(
        service: ServiceName,
        load: Load,
        figures: &Figures,
        usage: Usage,
        cut: Option<Cut>,
    ) -> Self {
        Self {
            service,
            load: load.times,
            offered_per_second: load.per_second,
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

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unfinished, runtime_gone_after_seconds, threads_ended } = self;
        let ended = if *threads_ended { "had ended" } else { "had not all ended" };
        write!(
            f,
            "its runtime was dropped with {unfinished} requests unfinished; \
             its threads {ended} after {runtime_gone_after_seconds:.2} s"
        )
    }
}

/// Whether the run can be believed.
#[derive(Debug, Serialize)]
pub(crate) struct SelfCheck {
    pub(crate) ok: bool,
    /// In words, empty if all is well.
    pub(crate) problems: Vec<String>,
}

impl SelfCheck {
    pub(crate) fn new() -> Self {
        Self { ok: true, problems: Vec::new() }
    }

    /// Checks that every answer is right, and that every request offered was done, refused or
    /// cancelled.
    pub(crate) fn examine(&mut self, load: &str, figures: &Figures, corpus: &Corpus) {
        let Figures { offered, done, cancelled, failed, wrong, .. } = figures;
        let refused = figures.refused.total();
        if *offered != done + refused + cancelled {
            self.problems.push(format!(
                "{load}: offered {offered}, but done {done} + refused {refused} + cancelled \
                 {cancelled} = {}; failed {failed}",
                done + refused + cancelled,
            ));
        }
        if *wrong > 0 {
            self.problems.push(format!(
                "{load}: {wrong} of {done} answers are not the serial pass's; did a file change?",
            ));
        }
        if let Some((file, problem)) = &figures.first_problem {
            let path = corpus.path(*file).display();
            self.problems.push(format!("{load}: first at `{path}`: {problem}"));
        }
        self.ok = self.problems.is_empty();
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

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after {:.3} s)", self.report, self.took_seconds)
    }
}
