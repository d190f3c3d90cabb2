//! What a pool remembers of jobs that have ended, for those who look.

use super::crew::Running;
use crate::cell::{ABANDONED, TIMED_OUT};
use crate::histogram::Histogram;
use crate::stats::{JobCounts, LaneJobs};
use std::sync::Arc;
use std::time::Duration;
use tollgate_admission::JobKind;
use tollgate_admission::engine::LaneId;

/// The records of all lanes. They are shared by all workers, and so move from core to core when they are written: what
/// every job adds is left with the worker first, in its [`Notes`].
pub(crate) struct Records {
    lanes: Vec<Record>,
}

/// Figures of a lane beyond those of its budget.
#[derive(Default)]
struct Record {
    counts: JobCounts,
    waits: Histogram,
    finished: Histogram,
    panicked: Histogram,
    unclaimed: Histogram,
}

/// Jobs that have ended on one worker, not yet in the records.
#[derive(Default)]
pub(crate) struct Notes {
    ended: Vec<Ended>,
}

/// How many a worker notes before they are entered.
const NOTES: usize = 32;

#[derive(Clone, Copy)]
struct Ended {
    lane: u32,
    flags: u8,
    panicked: bool,
    waited: Duration,
    ran: Duration,
}

impl Notes {
    pub(super) const fn new() -> Self {
        Notes { ended: Vec::new() }
    }

    /// For a worker that has come: its jobs are to allocate nothing.
    pub(super) fn make_room(&mut self) {
        self.ended.reserve_exact(NOTES);
    }
}

impl Records {
    pub(super) fn new(lanes: usize) -> Self {
        Records { lanes: (0..lanes).map(|_| Record::default()).collect() }
    }

    /// Notes a job that has run.
    #[inline]
    pub(super) fn note(
        &mut self,
        notes: &mut Notes,
        running: &Running,
        panicked: bool,
        ran: Duration,
    ) {
        let header = running.job.header();
        let (lane, flags, waited) = (header.lane().0, header.flags(), running.waited);
        notes.ended.push(Ended { lane, flags, panicked, waited, ran });
        if notes.ended.len() >= NOTES {
            self.enter(notes);
        }
    }

    /// Enters what a worker has noted.
    pub(super) fn enter(&mut self, notes: &mut Notes) {
        for ended in notes.ended.drain(..) {
            self.lanes[ended.lane as usize].enter(&ended);
        }
    }

    fn counts(&mut self, lane: LaneId) -> &mut JobCounts {
        &mut self.lanes[lane.0 as usize].counts
    }

    pub(super) fn count_cancelled(&mut self, lane: LaneId) {
        self.counts(lane).cancelled += 1;
    }

    pub(super) fn count_inline(&mut self, lane: LaneId) {
        self.counts(lane).inline += 1;
    }

    pub(super) fn count_no_thread(&mut self, lane: LaneId) {
        self.counts(lane).no_thread += 1;
    }

    /// A copy of what was entered, for lanes of these names.
    pub(super) fn copy<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) -> Vec<LaneJobs> {
        let copy = |(name, record): (&Arc<str>, &Record)| LaneJobs {
            name: Arc::clone(name),
            counts: record.counts,
            waits: record.waits.clone(),
            finished: record.finished.clone(),
            panicked: record.panicked.clone(),
            unclaimed: record.unclaimed.clone(),
        };
        names.zip(&self.lanes).map(copy).collect()
    }
}

impl Record {
    fn enter(&mut self, ended: &Ended) {
        self.counts.started += 1;
        self.waits.record(ended.waited);
        if ended.flags & TIMED_OUT != 0 {
            self.counts.timed_out += 1;
        } else if ended.flags & ABANDONED != 0 {
            self.counts.abandoned += 1;
        }
        if ended.panicked {
            self.counts.panicked += 1;
            self.panicked.record(ended.ran);
        } else {
            self.counts.finished += 1;
            let claimed = ended.flags & (TIMED_OUT | ABANDONED) == 0;
            if claimed { &mut self.finished } else { &mut self.unclaimed }.record(ended.ran);
        }
    }
}

/// The kinds of jobs seen so far. Their places, from 1, are their classes in the state; class 0 is that of acquires.
#[derive(Default)]
pub(crate) struct Kinds {
    seen: Vec<JobKind>,
}

impl Kinds {
    /// The class of this kind, which has been seen from here on.
    #[inline]
    pub(super) fn class_of(&mut self, kind: JobKind) -> u16 {
        let known = self.seen.iter().position(|&known| known == kind);
        let place = known.unwrap_or_else(|| {
            // whoever makes up kinds without end finds them counted with the last
            if self.seen.len() < usize::from(u16::MAX) {
                self.seen.push(kind);
            }
            self.seen.len() - 1
        });
        place as u16 + 1
    }

    /// All of them, in the order of their classes, without that of acquires.
    pub(crate) fn iter(&self) -> impl Iterator<Item = JobKind> {
        self.seen.iter().copied()
    }

    /// Where a kind stands among them.
    pub(crate) fn place(&self, kind: JobKind) -> usize {
        let known = self.seen.iter().position(|&known| known == kind);
        known.unwrap_or(self.seen.len().saturating_sub(1))
    }
}
