//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Runs a query service on two devices, which are on the CPU, under more load than they can carry,
/// shows what their pools make of it, and checks every answer.
#[derive(Debug, Parser)]
#[command(name = "device_pool")]
pub(crate) struct Args {
    /// How long load is offered, in seconds; fractions are fine
    #[arg(
        long,
        value_name = "N",
        default_value = "5",
        value_parser = seconds,
        allow_negative_numbers = true
    )]
    pub(crate) seconds: Duration,

    /// How many clients ask, each one query after the other
    #[arg(
        long,
        value_name = "N",
        default_value_t = 48,
        value_parser = clap::value_parser!(u16).range(1..=10_000),
        allow_negative_numbers = true
    )]
    pub(crate) clients: u16,

    /// Seed of the columns and of what the clients ask for
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) seed: u64,

    /// Also write every figure to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Below this a run holds too few queries to say anything; above it something was mistyped.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // A range holds no NaN, so this refuses it too.
    if !SECONDS.contains(&seconds) {
        return Err(format!("must be from {} to {}", SECONDS.start(), SECONDS.end()));
    }
    Ok(Duration::from_secs_f64(seconds))
}
