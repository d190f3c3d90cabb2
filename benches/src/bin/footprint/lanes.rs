//! Many lanes: a round trip must not pay for lanes it does not use.

use tokio::runtime::Runtime;
use tollgate_benches::closed_loop::{Loop, Sampler as _};
use tollgate_benches::entrants::{Tollgate, Work};
use tollgate_benches::stats::median;

use crate::figures::Figures;

const FEW: usize = 4;
const MANY: usize = 1_000;
const ROUNDS: usize = 15;

pub(crate) fn measure(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    let pool = |lanes| Tollgate::with_lanes(runtime.handle().clone(), lanes, 0);
    let (few, many) = (pool(FEW)?, pool(MANY)?);
    // As many callers as lanes, so that every lane is in use.
    let shape = Loop { callers: MANY, jobs_each: 100, work: Work::NOTHING };
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let once = (few.sample(runtime, shape)?, many.sample(runtime, shape)?);
        // The first round starts the threads.
        if round > 0 {
            of_few.push(once.0);
            of_many.push(once.1);
        }
    }
    let (few, many) = (median(of_few), median(of_many));
    figures.insert("lanes_4_us_per_job", few);
    figures.insert("lanes_1000_us_per_job", many);
    figures.insert("lanes_1000_over_4", many / few);
    Ok(())
}
