//! What is counted and timed while load runs.

mod process;
mod recorder;
mod trend;

pub(crate) use process::Usage;
pub(crate) use recorder::{Figures, Recorder};
