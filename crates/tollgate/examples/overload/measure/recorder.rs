//! Follows every request from its intended arrival to its one end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::trend::Trend;
use crate::corpus::Digest;
use crate::service::{NotDone, Refused};

/// The timeline's resolution: a step is cut into this many slices.
const SLICES: usize = 80;

/// Longest latency that the histograms tell apart, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Collects the figures of one stretch of load.
///
/// The stretch has a window, from which the rate is computed. What was offered inside it may end
/// after it, and then counts everywhere but in the rate.
#[derive(Debug)]
pub(crate) struct Recorder {
    expected: Arc<[Digest]>,
    start: Instant,
    figures: Mutex<Figures>,
}

/// The figures so far. Each offered request is in exactly one of the other counts once it ended.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) offered: u64,
    pub(crate) done: u64,
    pub(crate) refused: Refused,
    pub(crate) cancelled: u64,
    pub(crate) failed: u64,
    /// Of those done: answers that differ from the serial pass.
    pub(crate) wrong: u64,
    /// The first failure or wrong answer, in words: its file and what happened.
    pub(crate) first_problem: Option<(usize, String)>,
    /// Of what was done, in microseconds.
    pub(crate) latency: Histogram<u64>,
    /// Of the health probes, in microseconds. A probe that was never answered counts with the
    /// time for which it had been waiting.
    pub(crate) health: Histogram<u64>,
    pub(crate) unanswered_probes: u64,
    /// How much later than intended requests were offered, in microseconds.
    pub(crate) lateness: Histogram<u64>,
    /// Length of the window.
    pub(crate) seconds: f64,
    planned_seconds: f64,
    done_in_window: u64,
    trend: Trend,
    timeline: Vec<Slice>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    done: u64,
    latency_ms: f64,
}

impl Recorder {
    /// The window begins at `start`, which may lie ahead, and lasts `planned`.
    pub(crate) fn new(expected: Arc<[Digest]>, start: Instant, planned: Duration) -> Arc<Self> {
        let histogram =
            || Histogram::new_with_max(LONGEST_US, 3).expect("3 digits are within what is allowed");
        let figures = Figures {
            offered: 0,
            done: 0,
            refused: Refused::default(),
            cancelled: 0,
            failed: 0,
            wrong: 0,
            first_problem: None,
            latency: histogram(),
            health: histogram(),
            unanswered_probes: 0,
            lateness: histogram(),
            seconds: planned.as_secs_f64(),
            planned_seconds: planned.as_secs_f64(),
            done_in_window: 0,
            trend: Trend::default(),
            timeline: vec![Slice::default(); SLICES],
        };
        Arc::new(Self { expected, start, figures: Mutex::new(figures) })
    }

    /// How many files requests may be for.
    pub(crate) fn files(&self) -> usize {
        self.expected.len()
    }

    /// Counts a request for `file` that was meant to arrive at `intended`.
    pub(crate) fn offer(self: &Arc<Self>, file: usize, intended: Instant) -> Request {
        let mut figures = self.figures.lock();
        figures.offered += 1;
        figures.lateness.saturating_record(micros(intended.elapsed()));
        drop(figures);
        Request { recorder: Arc::clone(self), file, intended, ended: false }
    }

    /// A health probe that was meant to start at `intended`.
    pub(crate) fn probe(self: &Arc<Self>, intended: Instant) -> Probe {
        Probe { recorder: Arc::clone(self), intended, answered: false }
    }

    /// Ends the window now, before its planned end.
    pub(crate) fn cut_short(&self) {
        let seconds = self.start.elapsed().as_secs_f64();
        let mut figures = self.figures.lock();
        figures.seconds = figures.seconds.min(seconds);
    }

    /// A consistent copy, taken under one lock.
    pub(crate) fn figures(&self) -> Figures {
        self.figures.lock().clone()
    }

    /// Requests that have not ended.
    pub(crate) fn outstanding(&self) -> u64 {
        self.figures.lock().outstanding()
    }

    /// Offered, done and refused so far: what a progress line shows.
    pub(crate) fn progress(&self) -> (u64, u64, u64) {
        let figures = self.figures.lock();
        (figures.offered, figures.done, figures.refused.total())
    }

    fn settle(&self, request: &Request, outcome: Result<Digest, NotDone>) {
        let now = Instant::now();
        let mut figures = self.figures.lock();
        let problem = match outcome {
            Ok(digest) => {
                figures.record_done(self.start, request.intended, now);
                let is_wrong = digest != self.expected[request.file];
                figures.wrong += u64::from(is_wrong);
                is_wrong.then(|| "the answer differs from the serial pass's".to_owned())
            }
            Err(NotDone::Refused(refusal)) => {
                figures.refused.count(refusal);
                None
            }
            Err(NotDone::Cancelled) => {
                figures.cancelled += 1;
                None
            }
            Err(NotDone::Failed(problem)) => {
                figures.failed += 1;
                Some(problem)
            }
        };
        if let (Some(problem), None) = (problem, &figures.first_problem) {
            figures.first_problem = Some((request.file, problem));
        }
    }
}

impl Figures {
    fn outstanding(&self) -> u64 {
        self.offered - self.accounted()
    }

    /// Requests that ended, in whichever way.
    pub(crate) fn accounted(&self) -> u64 {
        self.done + self.refused.total() + self.cancelled + self.failed
    }

    /// Requests done per second of the window.
    pub(crate) fn goodput(&self) -> f64 {
        self.done_in_window as f64 / self.seconds
    }

    /// How fast latency grew over the stretch, in milliseconds per second.
    pub(crate) fn slope(&self) -> Option<f64> {
        self.trend.slope()
    }

    /// Mean latency over the stretch: seconds from its start, milliseconds. Slices in which
    /// nothing arrived that was done are left out.
    pub(crate) fn timeline(&self) -> Vec<(f64, f64)> {
        let slice_seconds = self.planned_seconds / SLICES as f64;
        let slices = self.timeline.iter().enumerate().filter(|(_, slice)| slice.done > 0);
        slices
            .map(|(index, slice)| {
                ((index as f64 + 0.5) * slice_seconds, slice.latency_ms / slice.done as f64)
            })
            .collect()
    }

    fn record_done(&mut self, start: Instant, intended: Instant, now: Instant) {
        let latency = now.saturating_duration_since(intended);
        let latency_ms = latency.as_secs_f64() * 1e3;
        let at = intended.saturating_duration_since(start).as_secs_f64();
        self.done += 1;
        self.latency.saturating_record(micros(latency));
        self.trend.add(at, latency_ms);

        let share = at / self.planned_seconds;
        let slice = &mut self.timeline[((share * SLICES as f64) as usize).min(SLICES - 1)];
        slice.done += 1;
        slice.latency_ms += latency_ms;

        let ended = now.checked_duration_since(start);
        if ended.is_some_and(|ended| ended.as_secs_f64() <= self.seconds) {
            self.done_in_window += 1;
        }
    }
}

/// A request under way. Dropping it records it as cancelled, so that none goes unaccounted.
#[derive(Debug)]
#[must_use = "dropping a request records it as cancelled"]
pub(crate) struct Request {
    recorder: Arc<Recorder>,
    file: usize,
    intended: Instant,
    ended: bool,
}

impl Request {
    pub(crate) fn end(mut self, outcome: Result<Digest, NotDone>) {
        self.ended = true;
        self.recorder.settle(&self, outcome);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.ended {
            self.recorder.settle(self, Err(NotDone::Cancelled));
        }
    }
}

/// A health probe under way. Dropping it unanswered counts it with the time it waited.
#[derive(Debug)]
#[must_use = "dropping a probe records it as unanswered"]
pub(crate) struct Probe {
    recorder: Arc<Recorder>,
    intended: Instant,
    answered: bool,
}

impl Probe {
    pub(crate) fn end(mut self, outcome: Result<(), NotDone>) {
        self.answered = outcome.is_ok();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let waited = micros(self.intended.elapsed());
        let mut figures = self.recorder.figures.lock();
        figures.health.saturating_record(waited);
        figures.unanswered_probes += u64::from(!self.answered);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
