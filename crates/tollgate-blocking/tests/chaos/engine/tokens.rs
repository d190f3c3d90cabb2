//! What closures capture and return, to count what becomes of it.

use crate::engine::books::{Allowance, Count, Faults, Running, Spark};
use std::cell::Cell;
use std::sync::Arc;

/// How often things happened to closures and their results.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Closures that came to be, and went.
    pub(crate) made: Count,
    pub(crate) dropped: Count,
    /// Closures that started.
    pub(crate) ran: Count,
    /// Of these, those of pools whose figures are looked at.
    pub(crate) ran_observed: Count,
    /// Results that came to be, and went.
    pub(crate) results: Count,
    pub(crate) results_dropped: Count,
    /// Of these, those of pools whose figures are looked at.
    pub(crate) results_observed: Count,
    pub(crate) faults: Faults,
}

/// What a job is bound to, as far as its closure may know: no handle that would keep a scope or a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bonds {
    pub(crate) running: Option<Arc<Running>>,
    pub(crate) allowance: Option<Arc<Allowance>>,
}

/// Captured by a closure: counts its drop, and sees to it that the closure runs once.
pub(crate) struct Token {
    pub(crate) tally: Arc<Tally>,
    bonds: Bonds,
    observed: bool,
    /// To panic with when it is dropped.
    bomb: Option<Spark>,
    ran: Cell<bool>,
}

impl Token {
    pub(crate) fn new(
        tally: &Arc<Tally>,
        bonds: Bonds,
        observed: bool,
        bomb: Option<Spark>,
    ) -> Self {
        tally.made.add();
        Token { tally: Arc::clone(tally), bonds, observed, bomb, ran: Cell::new(false) }
    }

    /// The closure runs.
    pub(crate) fn start(&self) {
        let tally = &self.tally;
        if self.ran.replace(true) {
            tally.faults.add("a closure ran twice");
        }
        tally.ran.add();
        if self.observed {
            tally.ran_observed.add();
        }
        if let Some(running) = &self.bonds.running {
            running.begins();
        }
        if let Some(allowance) = &self.bonds.allowance {
            allowance.use_up(&tally.faults);
        }
    }

    /// What the closure returns.
    pub(crate) fn result(&self) -> Outcome {
        if self.bomb.is_some() {
            // never to be seen: the captures panic once it is there, and then the language loses it, which is no fault
            // of the pool's (rust-lang/rust#47949)
            return Outcome(None);
        }
        self.tally.results.add();
        if self.observed {
            self.tally.results_observed.add();
        }
        Outcome(Some(Arc::clone(&self.tally)))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(running) = self.bonds.running.take().filter(|_| self.ran.get()) {
            running.ends();
        }
        let bomb = self.bomb.take().filter(|_| !std::thread::panicking());
        self.tally.dropped.add();
        if let Some(spark) = bomb {
            spark.fly();
        }
    }
}

/// What a closure returns: counts its drop.
pub(crate) struct Outcome(Option<Arc<Tally>>);

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(tally) = &self.0 {
            tally.results_dropped.add();
        }
    }
}
