//! Many lanes: a round trip must not pay for lanes it does not use.

use tokio::runtime::Runtime;
use tollgate_benches::closed_loop::{Loop, Sampler as _};
use tollgate_benches::entrants::{Tollgate, Work};
use tollgate_benches::stats::median;

use crate::figures::Figures;

const FEW: usize = 4;
const MANY: usize = 1_000;
/// As in the comparison with peers.
const CALLERS: usize = 64;
const ROUNDS: usize = 15;

pub(crate) fn measure(runtime: &Runtime, figures: &mut Figures) -> anyhow::Result<()> {
    let pool = |lanes| Tollgate::with_lanes(runtime.handle().clone(), lanes, 0);
    let (few, many) = (pool(FEW)?, pool(MANY)?);
    let compare = |callers, jobs_each| -> anyhow::Result<(f64, f64)> {
        let shape = Loop { callers, jobs_each, work: Work::NOTHING };
        let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let once = (few.sample(runtime, shape)?, many.sample(runtime, shape)?);
            // The first round starts the threads.
            if round > 0 {
                of_few.push(once.0);
                of_many.push(once.1);
            }
        }
        Ok((median(of_few), median(of_many)))
    };
    let (few, many) = compare(CALLERS, 1_500)?;
    figures.insert("lanes_4_us_per_job", few);
    figures.insert("lanes_1000_us_per_job", many);
    figures.insert("lanes_1000_over_4", many / few);
    // As many callers as lanes, so that every lane is in use: what it costs then is the memory of all of them.
    let (few, many) = compare(MANY, 100)?;
    figures.insert("lanes_1000_in_use_over_4", many / few);
    Ok(())
}
