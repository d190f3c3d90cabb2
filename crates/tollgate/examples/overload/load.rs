//! The load: a closed loop that finds out the capacity, and an open loop that exceeds it.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, Exp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::corpus::Digest;
use crate::measure::{Recorder, Usage};
use crate::progress::Phase;
use crate::service::Service;

/// How often the service's health is probed.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// How often the progress bar moves and the process is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The share of a closed loop's length for which it runs before it is measured.
const WARM_UP_SHARE: f64 = 0.25;

/// What every stretch of load shares.
#[derive(Debug)]
pub(crate) struct Rig {
    /// The serial pass's answers, by file.
    pub(crate) expected: Arc<[Digest]>,
    pub(crate) seed: u64,
    /// Ends the load before its time.
    pub(crate) interrupt: CancellationToken,
}

/// Load that is no longer offered; some of it may not have ended yet.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) usage: Usage,
}

impl Rig {
    /// Keeps `callers` requests under way for `length`, each file in turn.
    pub(crate) fn closed_loop<S: Service>(
        &self,
        service: &Arc<S>,
        runtime: &Handle,
        callers: usize,
        length: Duration,
        phase: &Phase,
    ) -> Offered {
        let warm_up = length.mul_f64(WARM_UP_SHARE);
        let start = Instant::now() + warm_up;
        let end = Instant::now() + length;
        let recorder = Recorder::new(Arc::clone(&self.expected), start, length - warm_up);
        let usage = Usage::start();
        let turn = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                let (service, recorder) = (Arc::clone(service), Arc::clone(&recorder));
                let (turn, interrupt) = (Arc::clone(&turn), self.interrupt.clone());
                runtime.spawn(async move {
                    while Instant::now() < end && !interrupt.is_cancelled() {
                        // Relaxed: it hands out numbers and orders nothing else.
                        let file = turn.fetch_add(1, Ordering::Relaxed) % recorder.files();
                        let request = recorder.offer(file, Instant::now());
                        request.end(service.request(file).await);
                    }
                })
            })
            .collect();
        let finished = || callers.iter().all(JoinHandle::is_finished);
        self.watch(phase, recorder, usage, finished)
    }

    /// Offers requests at `rate` per second for `length`, whatever becomes of them, and then
    /// waits for those under way: at most for `patience`, and not when interrupted.
    pub(crate) fn open_loop<S: Service>(
        &self,
        service: &Arc<S>,
        runtime: &Handle,
        rate: f64,
        length: Duration,
        patience: Duration,
        phase: &Phase,
    ) -> Offered {
        let start = Instant::now();
        let recorder = Recorder::new(Arc::clone(&self.expected), start, length);
        let usage = Usage::start();
        let generator = Generator {
            service: Arc::clone(service),
            runtime: runtime.clone(),
            recorder: Arc::clone(&recorder),
            interrupt: self.interrupt.clone(),
            start,
            end: start + length,
        };
        let arrivals = arrivals(self.seed, rate, recorder.files(), start);
        // A thread of its own: neither service can hold it up other than by taking its core.
        let generator = thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || generator.run(arrivals))
            .expect("the system starts one more thread");

        let give_up = start + length + patience;
        let finished = || {
            let ended = recorder.outstanding() == 0 || Instant::now() >= give_up;
            generator.is_finished() && (ended || self.interrupt.is_cancelled())
        };
        self.watch(phase, Arc::clone(&recorder), usage, finished)
    }

    /// Keeps looking until `finished`.
    fn watch(
        &self,
        phase: &Phase,
        recorder: Arc<Recorder>,
        mut usage: Usage,
        finished: impl Fn() -> bool,
    ) -> Offered {
        while !finished() {
            thread::sleep(LOOK_EVERY);
            usage.sample();
            phase.show(&recorder);
        }
        if self.interrupt.is_cancelled() {
            recorder.cut_short();
        }
        Offered { recorder, usage }
    }
}

/// Poisson arrivals from `start` on, for ever: when, and for which file. Files come in shuffled
/// passes over all of them, so that every stretch of load has the same mix.
fn arrivals(
    seed: u64,
    rate: f64,
    files: usize,
    start: Instant,
) -> impl Iterator<Item = (Instant, usize)> + Send {
    let mut random = StdRng::seed_from_u64(seed);
    let gap = Exp::new(rate).expect("a measured rate is positive");
    let mut pass: Vec<usize> = (0..files).collect();
    let mut turn = 0;
    let mut seconds = 0.0;
    iter::from_fn(move || {
        if turn % files == 0 {
            pass.shuffle(&mut random);
        }
        let file = pass[turn % files];
        turn += 1;
        seconds += gap.sample(&mut random);
        Some((start + Duration::from_secs_f64(seconds), file))
    })
}

/// Sends every request and every health probe when it is due, and none before or never.
struct Generator<S> {
    service: Arc<S>,
    runtime: Handle,
    recorder: Arc<Recorder>,
    interrupt: CancellationToken,
    start: Instant,
    end: Instant,
}

impl<S: Service> Generator<S> {
    fn run(self, arrivals: impl Iterator<Item = (Instant, usize)>) {
        let mut probe = self.start;
        for (arrival, file) in arrivals {
            while probe <= arrival && probe < self.end {
                if !self.wait_until(probe) {
                    return;
                }
                self.probe(probe);
                probe += PROBE_EVERY;
            }
            if arrival >= self.end || !self.wait_until(arrival) {
                return;
            }
            self.request(file, arrival);
        }
    }

    /// Returns at once when `instant` has passed: what is late is sent late, not dropped.
    /// `false` when it should stop.
    fn wait_until(&self, instant: Instant) -> bool {
        // Never long, since the next probe is near.
        thread::sleep(instant.saturating_duration_since(Instant::now()));
        !self.interrupt.is_cancelled()
    }

    fn request(&self, file: usize, intended: Instant) {
        let request = self.recorder.offer(file, intended);
        let service = Arc::clone(&self.service);
        self.runtime.spawn(async move { request.end(service.request(file).await) });
    }

    fn probe(&self, intended: Instant) {
        let probe = self.recorder.probe(intended);
        let service = Arc::clone(&self.service);
        self.runtime.spawn(async move { probe.end(service.probe().await) });
    }
}
