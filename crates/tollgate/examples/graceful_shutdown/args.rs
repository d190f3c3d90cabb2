//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Writes to a small log-structured store from many tasks, ends it in good order on ctrl-c or
/// SIGTERM, and checks that no acknowledged write was lost.
#[derive(Debug, Parser)]
#[command(name = "graceful_shutdown")]
pub(crate) struct Args {
    /// The store lies in this directory, which is made if it is missing [default: a new temporary
    /// one, which is removed at the end]
    pub(crate) dir: Option<PathBuf>,

    /// How many clients write at the same time
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=10_000),
        allow_negative_numbers = true
    )]
    pub(crate) writers: u16,

    /// End by itself after this time, in seconds; fractions are fine [default: 3 in a temporary
    /// directory, and never in one that was given]
    #[arg(long, value_name = "N", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: Option<Duration>,

    /// How long the shutdown may take, in milliseconds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5_000,
        value_parser = clap::value_parser!(u64).range(1..=3_600_000),
        allow_negative_numbers = true
    )]
    pub(crate) deadline_ms: u64,

    /// Print the key of every write as it is acknowledged
    #[arg(long)]
    pub(crate) print_acks: bool,

    /// Start a job that never ends, so that the shutdown can't complete
    #[arg(long)]
    pub(crate) stuck: bool,

    /// The exit code when the shutdown has not completed by its deadline
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(1..),
        allow_negative_numbers = true
    )]
    pub(crate) exit_code_on_stuck: u8,
}

/// How long a run in a temporary directory lasts.
const TEMPORARY: Duration = Duration::from_secs(3);

impl Args {
    /// After what time it ends by itself.
    pub(crate) fn lasts(&self) -> Option<Duration> {
        self.seconds.or(self.dir.is_none().then_some(TEMPORARY))
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

/// Above this something was mistyped.
const SECONDS: std::ops::RangeInclusive<f64> = 0.0..=86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // A range holds no NaN, so this refuses it too.
    if !SECONDS.contains(&seconds) {
        return Err(format!("must be from {} to {}", SECONDS.start(), SECONDS.end()));
    }
    Ok(Duration::from_secs_f64(seconds))
}
