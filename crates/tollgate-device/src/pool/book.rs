//! The jobs and attempts of a pool as arithmetic: who is counted where, who pays with which permit, who runs on which worker,
//! and what observers are told of it. No lock, no clock, no waker, no thread.

use super::error::Refused;
use super::events::{DeviceEvent, EventKind, Outcome, Ring};
use super::kind::{Class, DeviceKind, Seats};
use super::tracker::Tracker;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tollgate_admission::engine::{Claim, GroupId, Key, Tick};
use tollgate_admission::{JobId, JobInfo, JobName, JobState};

/// What a job is, for as long as it is counted.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: JobName,
    pub(crate) kind: DeviceKind,
    pub(crate) class: Class,
    pub(crate) group: Option<GroupId>,
}

/// A place in the book. It may be another job's by now, so it is looked up together with the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) id: JobId,
}

/// An attempt's place in the book, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptPlace {
    index: usize,
    id: u64,
}

/// What pays for a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payment {
    /// A permit of its own.
    Own(Claim),
    /// The root permit of its attempt.
    Lent,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Active,
    /// Its outcome is known and told; what was to be called then is being called.
    Ending,
}

#[derive(Debug)]
struct Entry<S> {
    id: JobId,
    facts: Facts,
    stage: Stage,
    payment: Payment,
    attempt: Option<AttemptPlace>,
    /// The seat that it waits for.
    waits: Option<Key>,
    /// The seat that it has, if it has one of its own.
    seat: Option<Claim>,
    worker: Option<u32>,
    /// The worker goes with its own seat, and is free when it ends.
    owns_worker: bool,
    /// Somebody asked for its end.
    asked: bool,
    /// Whoever waited for it has left.
    abandoned: bool,
    /// It is counted in its group besides its permits.
    joined: bool,
    accepted: Tick,
    started: Tick,
    /// How it is asked to stop.
    stop: S,
}

#[derive(Debug)]
struct AttemptEntry {
    id: u64,
    root: Claim,
    /// Until the attempt's cleanup pays with it.
    release: Option<Claim>,
    /// The job that pays with the root permit.
    lent: Option<JobId>,
    /// Auxiliary jobs.
    auxiliary: u32,
    /// All jobs that keep the attempt.
    jobs: u32,
    /// Nothing more may begin under it.
    over: bool,
}

/// Permits that came back. They are returned to the budgets that they are of.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    pub(crate) classes: [Option<Claim>; 3],
    pub(crate) seat: Option<Claim>,
}

impl Returned {
    fn class(&mut self, claim: Claim) {
        // a job returns its own, and with the last job of an attempt that is over the attempt's two
        let free = self.classes.iter_mut().find(|it| it.is_none());
        *free.expect("nobody returns more than three") = Some(claim);
    }
}

/// Counts, each with the highest that it ever was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) queued: Peaked,
    pub(crate) active: Peaked,
    pub(crate) executing: Peaked,
    /// Ended, but for what is called at the end.
    pub(crate) ending: u64,
    pub(crate) attempts: Peaked,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaked {
    pub(crate) now: u64,
    pub(crate) peak: u64,
}

impl Counts {
    /// Jobs that anybody may wait for.
    pub(crate) fn unfinished(&self) -> u64 {
        self.queued.now + self.active.now + self.ending
    }
}

impl Peaked {
    fn add(&mut self) {
        self.now += 1;
        self.peak = self.peak.max(self.now);
    }

    fn sub(&mut self) {
        self.now -= 1;
    }
}

/// Whom a job's beginning is told to.
pub(crate) trait Begun {
    /// It has begun on this worker.
    fn begun(&self, worker: Option<u32>);
}

/// `S` is how a job is asked to stop: the book hands it out, and never calls it.
pub(crate) struct Book<S> {
    jobs: Slab<Entry<S>>,
    attempts: Slab<AttemptEntry>,
    next_job: u64,
    next_attempt: u64,
    counts: Counts,
    /// Counts what runs for this pool and others.
    tracker: Tracker,
    /// Workers that nobody has, the lowest first.
    workers: BinaryHeap<Reverse<u32>>,
    /// Auxiliary jobs that an attempt may have.
    share: u32,
    pub(crate) events: Ring,
}

impl<S: Clone> Book<S> {
    pub(crate) fn new(workers: u32, share: u32, events: usize, tracker: Tracker) -> Self {
        Book {
            jobs: Slab::new(),
            attempts: Slab::new(),
            next_job: 1,
            next_attempt: 1,
            counts: Counts::default(),
            tracker,
            workers: (0..workers).map(Reverse).collect(),
            share,
            events: Ring::new(events),
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    #[cfg(test)]
    pub(crate) fn free_workers(&self) -> usize {
        self.workers.len()
    }

    /// No job and no attempt is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.attempts.is_empty()
    }

    fn entry(&self, place: Place) -> Option<&Entry<S>> {
        self.jobs.get(place.index).filter(|entry| entry.id == place.id)
    }

    fn entry_mut(&mut self, place: Place) -> Option<&mut Entry<S>> {
        self.jobs.get_mut(place.index).filter(|entry| entry.id == place.id)
    }

    fn tell(&mut self, index: usize, at: Tick, what: EventKind) {
        if !self.events.is_observed() {
            return;
        }
        let Entry { id, facts, .. } = &self.jobs[index];
        self.events.push(DeviceEvent {
            number: 0,
            at: at.since(Tick::ZERO),
            job: *id,
            name: facts.name.clone(),
            kind: facts.kind,
            class: facts.class,
            what,
        });
    }

    /// Counts a job that is paid for as queued.
    pub(crate) fn accept(
        &mut self,
        facts: Facts,
        payment: Payment,
        attempt: Option<AttemptPlace>,
        stop: S,
        now: Tick,
    ) -> Place {
        let id = JobId::new(self.next_job);
        self.next_job += 1;
        if let Some(at) = attempt {
            let entry = &mut self.attempts[at.index];
            entry.jobs += 1;
            match payment {
                Payment::Lent => entry.lent = Some(id),
                Payment::Own(_) if facts.class == Class::Auxiliary => entry.auxiliary += 1,
                Payment::Own(_) => {}
            }
        }
        let index = self.jobs.insert(Entry {
            id,
            facts,
            stage: Stage::Queued,
            payment,
            attempt,
            waits: None,
            seat: None,
            worker: None,
            owns_worker: false,
            asked: false,
            abandoned: false,
            joined: false,
            accepted: now,
            started: now,
            stop,
        });
        self.counts.queued.add();
        self.tell(index, now, EventKind::Enqueued);
        Place { index, id }
    }

    /// It waits for a seat, under this key.
    pub(crate) fn waits(&mut self, place: Place, key: Key) {
        if let Some(entry) = self.entry_mut(place) {
            entry.waits = Some(key);
        }
    }

    /// The seat that it waits for, which somebody is about to take it away from or give it.
    pub(crate) fn take_wait(&mut self, place: Place) -> Option<Key> {
        self.entry_mut(place).and_then(|entry| entry.waits.take())
    }

    /// It has a seat of its own from here on.
    pub(crate) fn seated(&mut self, place: Place, seat: Claim) {
        if let Some(entry) = self.entry_mut(place) {
            entry.waits = None;
            entry.seat = Some(seat);
        }
    }

    /// It runs: on the worker that goes with its seat if it has one, otherwise on that of whoever submitted it. Says which.
    pub(crate) fn start(&mut self, place: Place, outer: Option<u32>, now: Tick) -> Option<u32> {
        let entry = self.jobs.get_mut(place.index).filter(|entry| entry.id == place.id)?;
        debug_assert_eq!(entry.stage, Stage::Queued);
        entry.stage = Stage::Active;
        entry.started = now;
        entry.worker = match (entry.seat, outer) {
            // one that runs within another job stays on that one's worker, with a seat more or not
            (_, Some(outer)) => Some(outer),
            (Some(_), None) => self.workers.pop().map(|Reverse(worker)| worker),
            (None, None) => None,
        };
        entry.owns_worker = outer.is_none() && entry.worker.is_some();
        let worker = entry.worker;
        let executing = is_executing(&entry.facts);
        self.counts.queued.sub();
        self.counts.active.add();
        self.tracker.started(executing);
        if executing {
            self.counts.executing.add();
        }
        self.tell(place.index, now, EventKind::Started { worker });
        worker
    }

    /// It begins, by itself, on whoever had its seat before. It finds that out when it is run.
    pub(crate) fn begin_next(&mut self, place: Place, now: Tick)
    where
        S: Begun,
    {
        let worker = self.start(place, None, now);
        if let Some(entry) = self.entry(place) {
            entry.stop.begun(worker);
        }
    }

    /// Its outcome is not known.
    pub(crate) fn is_live(&self, place: Place) -> bool {
        self.entry(place).is_some_and(|entry| entry.stage != Stage::Ending)
    }

    /// Whether somebody asks for its end for the first time, while it has not ended. `left` when whoever waited for it has
    /// left.
    pub(crate) fn ask(&mut self, place: Place, left: bool, now: Tick) -> bool {
        let Some(entry) = self.entry_mut(place) else { return false };
        if entry.stage == Stage::Ending {
            return false;
        }
        entry.abandoned |= left;
        if std::mem::replace(&mut entry.asked, true) {
            return false;
        }
        self.tell(place.index, now, EventKind::CancellationRequested);
        true
    }

    /// Whoever waited for it has left, and lets it go on.
    pub(crate) fn abandon(&mut self, place: Place) {
        if let Some(entry) = self.entry_mut(place) {
            entry.abandoned = true;
        }
    }

    pub(crate) fn was_asked(&self, place: Place) -> bool {
        self.entry(place).is_some_and(|entry| entry.asked)
    }

    /// Its outcome is known. Its permits come back; it is still counted as one that ends.
    pub(crate) fn end(&mut self, place: Place, outcome: Outcome, now: Tick) -> Returned {
        let mut returned = Returned::default();
        let Some(entry) = self.jobs.get_mut(place.index).filter(|entry| entry.id == place.id)
        else {
            return returned;
        };
        let was = std::mem::replace(&mut entry.stage, Stage::Ending);
        debug_assert_ne!(was, Stage::Ending, "a job ends once");
        match was {
            Stage::Active => {
                let executing = is_executing(&entry.facts);
                self.tracker.ended(executing);
                self.counts.active.sub();
                if executing {
                    self.counts.executing.sub();
                }
            }
            _ => self.counts.queued.sub(),
        }
        self.counts.ending += 1;
        returned.seat = entry.seat.take();
        if let (Some(worker), true) = (entry.worker, entry.owns_worker) {
            self.workers.push(Reverse(worker));
        }
        let (payment, attempt, class) = (entry.payment, entry.attempt, entry.facts.class);
        if let Payment::Own(claim) = payment {
            returned.class(claim);
        }
        if let Some(at) = attempt {
            let attempt = &mut self.attempts[at.index];
            attempt.jobs -= 1;
            match payment {
                Payment::Lent => attempt.lent = None,
                Payment::Own(_) if class == Class::Auxiliary => attempt.auxiliary -= 1,
                Payment::Own(_) => {}
            }
            self.settle_attempt(at, &mut returned);
        }
        self.tell(place.index, now, EventKind::Ended(outcome));
        returned
    }

    /// No permit stands for it in its group: its attempt lends it one that is in another, or in none.
    pub(crate) fn is_foreign(&self, place: Place) -> bool {
        let Some(entry) = self.entry(place) else { return false };
        match (entry.payment, entry.attempt) {
            (Payment::Lent, Some(at)) => self.attempts[at.index].root.group != entry.facts.group,
            _ => false,
        }
    }

    /// It is counted in its group besides its permits, from now until it [leaves](Self::leave). Says which group that is,
    /// the first time.
    pub(crate) fn join(&mut self, place: Place) -> Option<GroupId> {
        let entry = self.entry_mut(place)?;
        let group = entry.facts.group?;
        (!std::mem::replace(&mut entry.joined, true)).then_some(group)
    }

    /// It is no longer counted. Says in which group it was counted besides its permits.
    pub(crate) fn leave(&mut self, place: Place) -> Option<GroupId> {
        self.entry(place)?;
        let entry = self.jobs.remove(place.index);
        self.counts.ending -= 1;
        entry.facts.group.filter(|_| entry.joined)
    }

    /// Counts an attempt that was admitted with these two permits.
    pub(crate) fn admit(&mut self, root: Claim, release: Claim) -> AttemptPlace {
        let id = self.next_attempt;
        self.next_attempt += 1;
        let index = self.attempts.insert(AttemptEntry {
            id,
            root,
            release: Some(release),
            lent: None,
            auxiliary: 0,
            jobs: 0,
            over: false,
        });
        self.counts.attempts.add();
        AttemptPlace { index, id }
    }

    fn attempt(&self, at: AttemptPlace) -> Option<&AttemptEntry> {
        self.attempts.get(at.index).filter(|it| it.id == at.id)
    }

    /// Whether a job of `class` may begin under the attempt, as far as the attempt goes.
    pub(crate) fn admits(&self, at: AttemptPlace, class: Class) -> Result<(), Refused> {
        let attempt = self.attempt(at).filter(|attempt| !attempt.over);
        let Some(attempt) = attempt else { return Err(Refused::AttemptOver) };
        match class {
            Class::Auxiliary if attempt.auxiliary >= self.share => {
                Err(Refused::ShareFull { share: self.share })
            }
            Class::Auxiliary => Ok(()),
            Class::Root | Class::Release => match attempt.lent {
                Some(to) => Err(Refused::RootLent { to }),
                None => Ok(()),
            },
        }
    }

    /// Nothing more may begin under the attempt. Its permits come back with its last job.
    pub(crate) fn close_attempt(&mut self, at: AttemptPlace) -> Returned {
        let mut returned = Returned::default();
        if let Some(attempt) = self.attempts.get_mut(at.index).filter(|it| it.id == at.id) {
            attempt.over = true;
            self.settle_attempt(at, &mut returned);
        }
        returned
    }

    /// The permit for the cleanup that ends the attempt, once.
    pub(crate) fn take_release(&mut self, at: AttemptPlace) -> Option<Claim> {
        let attempt = self.attempts.get_mut(at.index).filter(|it| it.id == at.id)?;
        attempt.release.take()
    }

    fn settle_attempt(&mut self, at: AttemptPlace, returned: &mut Returned) {
        let attempt = &self.attempts[at.index];
        if attempt.over && attempt.jobs == 0 {
            let attempt = self.attempts.remove(at.index);
            self.counts.attempts.sub();
            returned.class(attempt.root);
            if let Some(release) = attempt.release {
                returned.class(release);
            }
        }
    }

    /// How the jobs that `which` picks are asked to stop.
    pub(crate) fn stops(&self, which: impl Fn(&Facts) -> bool) -> Vec<(Place, S)> {
        let picked = self.jobs.iter().filter(|(_, it)| which(&it.facts));
        picked
            .filter(|(_, it)| it.stage != Stage::Ending)
            .map(|(index, it)| (Place { index, id: it.id }, it.stop.clone()))
            .collect()
    }

    /// What reports say of the jobs that `which` picks. O(jobs).
    pub(crate) fn infos(&self, now: Tick, which: impl Fn(&Facts) -> bool) -> Vec<JobInfo> {
        let picked = self.jobs.iter().map(|(_, it)| it).filter(|it| which(&it.facts));
        let mut infos: Vec<_> = picked
            .map(|it| {
                let queued = it.stage == Stage::Queued;
                JobInfo {
                    id: it.id,
                    name: it.facts.name.clone(),
                    kind: it.facts.kind.job_kind(),
                    lane: lane_name(it.facts.class).into(),
                    state: match () {
                        () if queued => JobState::Queued,
                        () if it.abandoned => JobState::Abandoned,
                        () => JobState::Running,
                    },
                    waited: if queued { now } else { it.started }.since(it.accepted),
                    ran: (!queued).then(|| now.since(it.started)),
                }
            })
            .collect();
        infos.sort_by_key(|info| info.id);
        infos
    }
}

/// A root job that executes, as distinct from what is issued under it.
fn is_executing(facts: &Facts) -> bool {
    facts.kind.class() == Class::Root && facts.kind.seats() == Seats::Execution
}

/// What the lane of the budget of accepted jobs is called.
pub(crate) fn lane_name(class: Class) -> &'static str {
    match class {
        Class::Root => "root",
        Class::Auxiliary => "auxiliary",
        Class::Release => "release",
    }
}
