use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// A stream of numbers that a seed decides, the same on every machine and with every version of `rand`.
pub(crate) struct Dice(Xoshiro256PlusPlus);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Another stream, which this one decides.
    pub(crate) fn split(&mut self) -> Dice {
        Dice::new(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 or more, and less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // the bias is nothing at these bounds
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn micros(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.below(bound))
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let len = from.len() as u64;
        if len == 0 { None } else { from.get(self.below(len) as usize) }
    }
}
