//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Offers a service that reads, hashes and compresses files up to four times the load it can
/// carry, over tollgate and over bare `spawn_blocking`, and shows what each makes of it.
#[derive(Debug, Parser)]
#[command(name = "overload")]
pub(crate) struct Args {
    /// The service reads the files below this directory [default: this repository]
    pub(crate) dir: Option<PathBuf>,

    /// How long each of the eight load steps lasts, in seconds; fractions are fine
    #[arg(
        long,
        value_name = "N",
        default_value = "3",
        value_parser = seconds,
        allow_negative_numbers = true
    )]
    pub(crate) seconds_per_step: Duration,

    /// Also write every figure to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write the page with the plots here [default: target/overload.html of this repository]
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Seed of the arrivals and of the order of the files
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Below this a step holds too few requests to say anything; above it something was mistyped.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // A range holds no NaN, so this refuses it too.
    if !SECONDS.contains(&seconds) {
        return Err(format!("must be from {} to {}", SECONDS.start(), SECONDS.end()));
    }
    Ok(Duration::from_secs_f64(seconds))
}
