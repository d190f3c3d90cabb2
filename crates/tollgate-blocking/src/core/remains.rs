//! Jobs that were refused, until nothing of them is left.

use crate::cell::Job;
use std::collections::VecDeque;
use std::sync::Arc;

/// Refused jobs. The pool is not quiet before each has ended, wherever it is: with whoever tells it, waiting here for a
/// worker to drop its captures between two jobs, or with whoever drops them.
#[derive(Default)]
pub(crate) struct Remains {
    here: VecDeque<Arc<dyn Job>>,
    /// Those that have not come here, and those that were taken from here and have not ended.
    elsewhere: usize,
    /// Of those that are here, some keep a scope or the pool from its end.
    urgent: bool,
    /// Somebody is ending all of them.
    reaped: bool,
}

impl Remains {
    /// Whether there is one to be [taken](Self::take).
    #[inline]
    pub(super) fn are_here(&self) -> bool {
        !self.here.is_empty()
    }

    /// Whether those that are here are not to wait until a worker has time.
    #[inline]
    pub(super) fn are_urgent(&self) -> bool {
        self.urgent
    }

    /// A scope, or the pool, was closed: what is here may keep it from its end.
    pub(super) fn hurry(&mut self) {
        self.urgent = self.are_here();
    }

    /// Whether every one of them has ended.
    #[inline]
    pub(super) fn are_gone(&self) -> bool {
        self.elsewhere == 0 && self.here.is_empty()
    }

    /// One that is refused, or given up, and is with whoever tells it or ends it.
    #[inline]
    pub(super) fn expect_one(&mut self) {
        self.elsewhere += 1;
    }

    /// Those that were told come here; `urgent` when one of them keeps something from its end.
    pub(super) fn put(&mut self, told: Vec<Arc<dyn Job>>, urgent: bool) {
        self.elsewhere -= told.len();
        self.urgent |= urgent;
        self.here.extend(told);
    }

    /// One for the caller to end. One at a time: those behind a destructor that never ends are for others.
    pub(super) fn take(&mut self) -> Option<Arc<dyn Job>> {
        let job = self.here.pop_front()?;
        self.urgent &= !self.here.is_empty();
        self.elsewhere += 1;
        Some(job)
    }

    /// One that was elsewhere has ended.
    pub(super) fn one_ended(&mut self) {
        self.elsewhere -= 1;
    }

    /// The caller is to end all of them, unless somebody does. Then it [takes](Self::take_to_reap) until there is none.
    pub(super) fn begin_to_reap(&mut self) -> bool {
        !std::mem::replace(&mut self.reaped, true)
    }

    /// As [`take`](Self::take), for who ends all of them. With none left, nobody does any more.
    pub(super) fn take_to_reap(&mut self) -> Option<Arc<dyn Job>> {
        let job = self.take();
        self.reaped = job.is_some();
        job
    }
}
