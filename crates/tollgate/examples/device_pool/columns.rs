//! The data, what is asked of it, and the serial computation that every answer is checked against.

use std::fmt;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Rows of the table.
const ROWS: usize = 1 << 20;

/// The rows that one query looks at: at least and at most.
const LEAST_ROWS: usize = 1 << 14;
const MOST_ROWS: usize = 1 << 17;

/// Keys are below this.
const KEYS: u32 = 1 << 16;

/// A table of two columns.
#[derive(Debug)]
pub(crate) struct Columns {
    pub(crate) keys: Vec<u32>,
    pub(crate) values: Vec<u32>,
}

/// `SELECT count(*), sum(value) FROM columns[rows] WHERE key IN wanted`.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) rows: Range<usize>,
    pub(crate) wanted: Range<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "count {}, sum {}", self.count, self.sum)
    }
}

impl Columns {
    pub(crate) fn generate(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        Self {
            keys: (0..ROWS).map(|_| random.random_range(0..KEYS)).collect(),
            values: (0..ROWS).map(|_| random.random()).collect(),
        }
    }

    /// The answer, without any device.
    pub(crate) fn answer(&self, query: &Query) -> Answer {
        let rows = self.keys[query.rows.clone()].iter().zip(&self.values[query.rows.clone()]);
        let mut answer = Answer { count: 0, sum: 0 };
        for (_, &value) in rows.filter(|(key, _)| query.wanted.contains(key)) {
            answer.count += 1;
            answer.sum += u64::from(value);
        }
        answer
    }
}

impl Query {
    pub(crate) fn random(random: &mut StdRng) -> Self {
        let rows = random.random_range(LEAST_ROWS..=MOST_ROWS);
        let first = random.random_range(0..=ROWS - rows);
        let (one, other) = (random.random_range(0..=KEYS), random.random_range(0..=KEYS));
        Self { rows: first..first + rows, wanted: one.min(other)..one.max(other) }
    }
}
