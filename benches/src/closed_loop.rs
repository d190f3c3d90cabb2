//! The closed loop: a number of callers, each of which submits a job, waits for its result, and
//! submits the next.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::runtime::Runtime;
use tracing::{Instrument as _, info_span};

use crate::entrants::{Client as _, Entrant, Work};

/// How long one sample may take before the run is given up as hung.
const PATIENCE: Duration = Duration::from_secs(120);

/// What one sample of a closed loop does.
#[derive(Debug, Clone, Copy)]
pub struct Loop {
    /// Callers at work at once.
    pub callers: usize,
    /// Jobs of each caller, one after the other.
    pub jobs_each: u64,
    /// What each job does.
    pub work: Work,
}

/// Runs samples; any [`Entrant`] does.
///
/// This is what lets entrants of different types sit in one list, without boxing the future of
/// every job.
pub trait Sampler: Send + Sync {
    /// Runs one closed loop on `runtime` and returns microseconds per job, over all callers.
    ///
    /// # Errors
    ///
    /// When a job is refused, fails, or returns what it should not, and when the loop hangs.
    fn sample(&self, runtime: &Runtime, shape: Loop) -> anyhow::Result<f64>;

    /// How the entrant is set up, in words.
    fn settings(&self) -> String;
}

impl<E: Entrant> Sampler for E {
    fn sample(&self, runtime: &Runtime, shape: Loop) -> anyhow::Result<f64> {
        let Loop { callers, jobs_each, work } = shape;
        let elapsed = runtime.block_on(async {
            let start = Instant::now();
            let tasks: Vec<_> = (0..callers)
                .map(|index| {
                    let client = self.client(index);
                    let calls = async move {
                        for _ in 0..jobs_each {
                            let result = client.call(work).await?;
                            if result != Work::RESULT {
                                bail!("a job returned {result}, not {}", Work::RESULT);
                            }
                        }
                        Ok(())
                    };
                    // Without a subscriber the span is disabled and costs a branch per poll.
                    tokio::spawn(calls.instrument(info_span!("caller", index)))
                })
                .collect();
            let all = async {
                for task in tasks {
                    task.await.context("a caller panicked")??;
                }
                anyhow::Ok(())
            };
            tokio::time::timeout(PATIENCE, all)
                .await
                .with_context(|| format!("not done after {PATIENCE:?}"))??;
            anyhow::Ok(start.elapsed())
        })?;
        Ok(1e6 * elapsed.as_secs_f64() / (callers as f64 * jobs_each as f64))
    }

    fn settings(&self) -> String {
        Entrant::settings(self)
    }
}
