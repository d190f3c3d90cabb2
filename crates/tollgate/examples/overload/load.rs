//! The load: a closed loop that finds out the capacity, and an open loop that exceeds it.

use std::io;
use std::iter;
use std::panic::resume_unwind;
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

/// The load's thread sleeps no shorter than this, and then sends all that is due: waking it for
/// every arrival would take more time from the service than the arrivals themselves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(500);

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
    /// Keeps `callers` requests under way for `length`, each file in turn, and then waits for them
    /// as [`open_loop`](Self::open_loop) does.
    pub(crate) fn closed_loop<S: Service>(
        &self,
        service: &Arc<S>,
        runtime: &Handle,
        callers: usize,
        length: Duration,
        patience: Duration,
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
        let offering = || Instant::now() < end && !callers.iter().all(JoinHandle::is_finished);
        self.watch(phase, recorder, usage, offering, end + patience)
    }

    /// Offers requests at `rate` per second for `length`, whatever becomes of them, and then
    /// waits for those under way: at most for `patience`, and not when interrupted.
    ///
    /// # Errors
    ///
    /// When there can be no thread to offer them from.
    pub(crate) fn open_loop<S: Service>(
        &self,
        service: &Arc<S>,
        runtime: &Handle,
        rate: f64,
        length: Duration,
        patience: Duration,
        phase: &Phase,
    ) -> io::Result<Offered> {
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
            .spawn(move || generator.run(arrivals))?;

        let offering = || !generator.is_finished();
        let offered = self.watch(phase, recorder, usage, offering, start + length + patience);
        generator.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok(offered)
    }

    /// Looks on while load is offered, and then until all of it has ended, or until `give_up`, or
    /// until interrupted.
    fn watch(
        &self,
        phase: &Phase,
        recorder: Arc<Recorder>,
        mut usage: Usage,
        offering: impl Fn() -> bool,
        give_up: Instant,
    ) -> Offered {
        let under_way = || {
            let patient = Instant::now() < give_up && !self.interrupt.is_cancelled();
            recorder.outstanding() > 0 && patient
        };
        while offering() || under_way() {
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
        let ahead = instant.saturating_duration_since(Instant::now());
        if !ahead.is_zero() {
            // Never long, since the next probe is near.
            thread::sleep(ahead.max(SHORTEST_SLEEP));
        }
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
