//! The run, from the serial pass to the report.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::corpus::{Corpus, CorpusError, Digest};
use crate::interrupt;
use crate::load::{Offered, Rig};
use crate::measure::Figures;
use crate::progress::{Phase, Progress};
use crate::report::bars;
use crate::report::page::PlotError;
use crate::report::{
    Capacity, CorpusReport, Cut, Load, Report, SelfCheck, ServiceName, Shutdown, Step,
};
use crate::service::{OverSpawnBlocking, OverTollgate, Policy, Service, SetupError};

/// The loads, as multiples of 1 x.
const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// 1 x, as a share of what the closed loop reached: a service that runs, but only just.
const ONE_X: f64 = 0.95;

/// The closed loop lasts as long as a step, but at least this long: all else is a multiple of it.
const SHORTEST_CLOSED_LOOP: Duration = Duration::from_millis(500);

/// How long requests may take to end once no more are offered. tollgate's queue is bounded, so
/// this is never used up; it is there to be reported if that were wrong.
const PATIENCE_WITH_TOLLGATE: Duration = Duration::from_secs(10);

/// The same for bare `spawn_blocking`, whose backlog would take longer than anybody waits.
const PATIENCE_WITH_BARE: Duration = Duration::from_secs(1);

/// How long the last requests may take to end once their service has been stopped.
const SETTLING: Duration = Duration::from_secs(1);

/// How long a dropped runtime's running closures may take.
const RUNTIME_END: Duration = Duration::from_secs(5);

/// The threads of a runtime that only passes work on.
const RUNTIME_WORKERS: usize = 2;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    #[error("cannot write `{}`", path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error("cannot start a tokio runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot start a thread that offers load")]
    Generator(#[source] io::Error),
    #[error("cannot set up tollgate")]
    Setup(#[from] SetupError),
    #[error("no request was done within {seconds} s; try a larger --seconds-per-step")]
    TooSlow { seconds: f64 },
    #[error("cannot draw the plots")]
    Plot(#[source] PlotError),
    #[error("cannot write the figures as JSON")]
    Json(#[source] serde_json::Error),
}

/// Runs everything; ctrl-c ends it early, with a report of what ran until then.
pub(crate) fn run(args: &Args, corpus: Corpus) -> Result<Report, Error> {
    let corpus = Arc::new(corpus);
    let runtime = runtime()?;
    let interrupt = interrupt::listen(runtime.handle());
    let expected = serial_pass(&corpus, &interrupt)?;
    let corpus_report = CorpusReport {
        dir: corpus.root().to_owned(),
        files: corpus.len(),
        bytes: expected.iter().map(Digest::bytes).sum(),
        truncated: corpus.is_truncated(),
    };
    eprintln!("{corpus_report}; seed {}", args.seed);

    let mut experiment = Experiment {
        rig: Rig { expected: expected.into(), seed: args.seed, interrupt: interrupt.clone() },
        progress: Progress::new(1 + 2 * LOADS.len()),
        step_length: args.seconds_per_step,
        corpus,
        self_check: SelfCheck::new(),
    };
    let tollgate = experiment.over_tollgate(&runtime)?;
    let mut steps = tollgate.steps;
    if let Some(capacity) = tollgate.capacity {
        steps.extend(experiment.over_spawn_blocking(capacity)?);
    }

    Ok(Report {
        seed: args.seed,
        seconds_per_step: args.seconds_per_step.as_secs_f64(),
        cores: cores(),
        interrupted: interrupt.is_cancelled(),
        corpus: corpus_report,
        capacity: tollgate.capacity,
        bars: bars::check(&steps, &tollgate.policy),
        self_check: experiment.self_check,
        policy: tollgate.policy,
        steps,
        shutdown: tollgate.shutdown,
    })
}

/// Computes every answer once, one after the other. Incomplete when interrupted.
fn serial_pass(corpus: &Corpus, interrupt: &CancellationToken) -> Result<Vec<Digest>, CorpusError> {
    (0..corpus.len())
        .take_while(|_| !interrupt.is_cancelled())
        .map(|file| Ok(Digest::of(&corpus.read(file)?)))
        .collect()
}

struct Experiment {
    rig: Rig,
    progress: Progress,
    step_length: Duration,
    corpus: Arc<Corpus>,
    self_check: SelfCheck,
}

/// tollgate's part of the report.
struct TollgatePart {
    capacity: Option<Capacity>,
    policy: Policy,
    steps: Vec<Step>,
    shutdown: Shutdown,
}

impl Experiment {
    fn is_interrupted(&self) -> bool {
        self.rig.interrupt.is_cancelled()
    }

    /// One pool serves the closed loop and all steps, and is shut down at their end.
    fn over_tollgate(&mut self, runtime: &Runtime) -> Result<TollgatePart, Error> {
        let mut policy = Policy::for_cores(cores());
        let service = OverTollgate::start(Arc::clone(&self.corpus), &policy, runtime.handle())?;
        let service = Arc::new(service);

        let capacity = self.capacity(&service, &policy, runtime)?;
        let mut offered = Vec::new();
        if let Some(capacity) = capacity {
            policy.bound_queue(capacity.per_second);
            service.apply(&policy)?;
            for load in LOADS.map(|times| capacity.load(times)) {
                if self.is_interrupted() {
                    break;
                }
                let name = ServiceName::Tollgate;
                let (phase, step) =
                    self.offer(name, &service, runtime, load, PATIENCE_WITH_TOLLGATE)?;
                phase.finish(&outcome(&step.recorder.figures()));
                offered.push((load, step));
            }
        }

        // What is still queued is refused now, and so comes to its end too.
        let shutdown = shut_down(&service, runtime);
        let steps = offered
            .into_iter()
            .map(|(load, step)| self.step(ServiceName::Tollgate, load, &step, None));
        Ok(TollgatePart { capacity, policy, steps: steps.collect(), shutdown })
    }

    /// `None` when interrupted.
    fn capacity(
        &mut self,
        service: &Arc<OverTollgate>,
        policy: &Policy,
        runtime: &Runtime,
    ) -> Result<Option<Capacity>, Error> {
        if self.is_interrupted() {
            return Ok(None);
        }
        let length = self.step_length.max(SHORTEST_CLOSED_LOOP);
        let callers = policy.closed_loop_callers();
        let phase = self.progress.phase("capacity, closed loop over tollgate", length);
        let patience = PATIENCE_WITH_TOLLGATE;
        let offered =
            self.rig.closed_loop(service, runtime.handle(), callers, length, patience, &phase);
        let figures = settled(&offered);
        let per_second = figures.goodput();
        self.self_check.examine("closed loop", &figures, &self.corpus);
        phase.finish(&format!("{per_second:.0}/s"));
        if self.is_interrupted() {
            return Ok(None);
        }
        if per_second == 0.0 {
            return Err(Error::TooSlow { seconds: length.as_secs_f64() });
        }
        Ok(Some(Capacity { callers, per_second, one_x_per_second: ONE_X * per_second }))
    }

    /// Each step has a runtime of its own, since dropping it is the only way to end a backlog.
    fn over_spawn_blocking(&mut self, capacity: Capacity) -> Result<Vec<Step>, Error> {
        let service = Arc::new(OverSpawnBlocking::new(Arc::clone(&self.corpus)));
        let mut steps = Vec::new();
        for load in LOADS.map(|times| capacity.load(times)) {
            if self.is_interrupted() {
                break;
            }
            let runtime = runtime()?;
            let name = ServiceName::SpawnBlocking;
            let (phase, step) = self.offer(name, &service, &runtime, load, PATIENCE_WITH_BARE)?;
            let cut = throw_away(runtime, step.recorder.outstanding());
            phase.finish(&outcome(&settled(&step)));
            steps.push(self.step(name, load, &step, cut));
        }
        Ok(steps)
    }

    fn offer<S: Service>(
        &mut self,
        name: ServiceName,
        service: &Arc<S>,
        runtime: &Runtime,
        load: Load,
        patience: Duration,
    ) -> Result<(Phase, Offered), Error> {
        let Load { times, per_second } = load;
        let title = format!("{}, {times} x ({per_second:.0}/s)", name.text());
        let (length, runtime) = (self.step_length, runtime.handle());
        let phase = self.progress.phase(title, length);
        let offered = self.rig.open_loop(service, runtime, per_second, length, patience, &phase);
        Ok((phase, offered.map_err(Error::Generator)?))
    }

    /// What is reported of a step, and whether it can be believed.
    fn step(&mut self, name: ServiceName, load: Load, offered: &Offered, cut: Option<Cut>) -> Step {
        let figures = settled(offered);
        let title = format!("{} at {} x", name.text(), load.times);
        self.self_check.examine(&title, &figures, &self.corpus);
        Step::new(name, load, &figures, offered.usage, cut)
    }
}

/// A phase's figures in one line.
fn outcome(figures: &Figures) -> String {
    format!(
        "offered {}, done {}, refused {}, cancelled {}, p99 {:.1} ms",
        figures.offered,
        figures.done,
        figures.refused.total(),
        figures.cancelled,
        figures.latency.value_at_quantile(0.99) as f64 / 1e3,
    )
}

fn shut_down(service: &OverTollgate, runtime: &Runtime) -> Shutdown {
    let begun = Instant::now();
    let (complete, report) = runtime.block_on(service.shut_down());
    Shutdown { complete, took_seconds: begun.elapsed().as_secs_f64(), report }
}

/// Drops a runtime and what is still queued on it.
fn throw_away(runtime: Runtime, unfinished: u64) -> Option<Cut> {
    let begun = Instant::now();
    runtime.shutdown_timeout(RUNTIME_END);
    let took = begun.elapsed();
    (unfinished > 0).then(|| Cut {
        unfinished,
        runtime_gone_after_seconds: took.as_secs_f64(),
        threads_ended: took < RUNTIME_END,
    })
}

/// The figures once every request has ended. If one never does, the self-check tells.
fn settled(offered: &Offered) -> Figures {
    let give_up = Instant::now() + SETTLING;
    while offered.recorder.outstanding() > 0 && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(1));
    }
    offered.recorder.figures()
}

fn runtime() -> Result<Runtime, Error> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(RUNTIME_WORKERS).enable_all().build().map_err(Error::Runtime)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
