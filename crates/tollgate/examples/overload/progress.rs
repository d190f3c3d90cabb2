//! Shows on stderr what runs now: a bar on a terminal, and in any case one line per phase.

use std::time::{Duration, Instant};

use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use crate::measure::Recorder;

/// The phases of a run, numbered as they begin.
#[derive(Debug)]
pub(crate) struct Progress {
    phases: usize,
    begun: usize,
}

impl Progress {
    pub(crate) fn new(phases: usize) -> Self {
        Self { phases, begun: 0 }
    }

    /// Begins the next phase, which is expected to take `length`.
    pub(crate) fn phase(&mut self, name: impl Into<String>, length: Duration) -> Phase {
        self.begun += 1;
        let name = format!("[{}/{}] {}", self.begun, self.phases, name.into());
        // Draws nothing when stderr is not a terminal.
        let bar = ProgressBar::new(millis(length));
        let style = ProgressStyle::with_template("{prefix}  {bar:24}  {msg}");
        bar.set_style(style.expect("the template is well-formed"));
        bar.set_prefix(name.clone());
        Phase { name, bar, begun: Instant::now() }
    }
}

/// One phase under way.
#[derive(Debug)]
pub(crate) struct Phase {
    name: String,
    bar: ProgressBar,
    begun: Instant,
}

impl Phase {
    /// Moves the bar by the time that has passed.
    pub(crate) fn show(&self, recorder: &Recorder) {
        let (offered, done, refused) = recorder.progress();
        self.bar.set_position(millis(self.begun.elapsed()));
        self.bar.set_message(format!(
            "offered {}, done {}, refused {}",
            HumanCount(offered),
            HumanCount(done),
            HumanCount(refused)
        ));
    }

    /// Replaces the bar by a line that stays.
    pub(crate) fn finish(self, outcome: &str) {
        self.bar.finish_and_clear();
        eprintln!("{}: {outcome}", self.name);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
