//! The load: clients that ask one query after the other, and the ledger of what became of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::columns::Answer;
use crate::service::{Ended, Outcome, Request, Service};

/// How long a client waits after its query was refused.
const BACK_OFF: Duration = Duration::from_millis(4);

/// Longest latency that the histograms tell apart, in microseconds: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// The ways in which a query may end, in the order of [`Ledger::ended`].
pub(crate) const WAYS: [&str; 5] = ["done", "refused", "timed out", "cancelled", "failed"];

/// What became of every query that was offered.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// How each query ended, by its number: an index of [`WAYS`].
    pub(crate) ends: Vec<Option<u8>>,
    /// Queries that ended more than once.
    pub(crate) ended_twice: u64,
    /// How many ended in which way, and after how many microseconds.
    pub(crate) ended: [Histogram<u64>; WAYS.len()],
    /// Answers that differ from the serial computation's.
    pub(crate) wrong: u64,
    /// The first failure or wrong answer, in words.
    pub(crate) first_problem: Option<String>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let histogram = |_| {
            Histogram::new_with_max(LONGEST_US, 3).expect("3 digits are within what is allowed")
        };
        Self {
            ends: Vec::new(),
            ended_twice: 0,
            ended: std::array::from_fn(histogram),
            wrong: 0,
            first_problem: None,
        }
    }

    fn offer(&mut self) -> usize {
        self.ends.push(None);
        self.ends.len() - 1
    }

    fn end(&mut self, number: usize, ended: &Ended, expected: Option<Answer>) {
        let way = match &ended.outcome {
            Outcome::Done(answer) => {
                if let Some(expected) = expected.filter(|expected| expected != answer) {
                    self.wrong += 1;
                    let problem = format!("query {number}: {answer} instead of {expected}");
                    self.first_problem.get_or_insert(problem);
                }
                0
            }
            Outcome::Refused => 1,
            Outcome::TimedOut => 2,
            Outcome::Cancelled => 3,
            Outcome::Failed(why) => {
                self.first_problem.get_or_insert_with(|| format!("query {number}: {why}"));
                4
            }
        };
        self.ended_twice += u64::from(self.ends[number].replace(way).is_some());
        let micros = u64::try_from(ended.took.as_micros()).unwrap_or(u64::MAX);
        self.ended[usize::from(way)].saturating_record(micros);
    }

    /// How many were offered, and how many ended in which way.
    pub(crate) fn counts(&self) -> (u64, [u64; WAYS.len()]) {
        let ended = std::array::from_fn(|way| self.ended[way].len());
        (self.ends.len() as u64, ended)
    }
}

/// Has `clients` ask the service until `until`, or until interrupted. Each ends with its last query.
pub(crate) fn start(
    service: &Arc<Service>,
    ledger: &Arc<Mutex<Ledger>>,
    clients: u16,
    seed: u64,
    until: Instant,
    interrupt: &CancellationToken,
) -> JoinSet<()> {
    let client = |number| {
        let (service, ledger) = (Arc::clone(service), Arc::clone(ledger));
        let interrupt = interrupt.clone();
        // No two clients ask for the same.
        let mut random = StdRng::seed_from_u64(seed.rotate_left(16) ^ (u64::from(number) + 1));
        async move {
            while Instant::now() < until && !interrupt.is_cancelled() {
                let request = Request::random(&mut random);
                let number = ledger.lock().offer();
                let ended = service.ask(&request, interrupt.cancelled()).await;
                let refused = matches!(ended.outcome, Outcome::Refused);
                let expected = matches!(ended.outcome, Outcome::Done(_))
                    .then(|| service.columns().answer(&request.query));
                ledger.lock().end(number, &ended, expected);
                if refused {
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
    };
    (0..clients).map(client).collect()
}
