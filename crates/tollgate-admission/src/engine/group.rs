//! Waiters and permits that belong together, and are told to end together: those of one scope.

use super::slab::{GROUP, List, NIL};
use super::tick::Tick;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Names a group of a state. An id that outlived its group is recognised and harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    pub(super) index: u32,
    /// Never 0, so that a job has room for an id that it may not have.
    generation: NonZeroU32,
}

/// Who wants to know what becomes of a group. Called outside the lock.
pub trait GroupOwner: Send + Sync {
    /// The group is closed, and nothing in it is left. Told once.
    fn idle(&self);

    /// The group was let go and nothing in it is left: it is no more. So many were refused in it, for it was closed.
    fn gone(&self, refused: u64);
}

/// Something to tell a group's owner.
pub struct Told {
    owner: Arc<dyn GroupOwner>,
    gone: Option<u64>,
}

impl Told {
    /// Tells it. Not under the lock.
    pub fn tell(self) {
        match self.gone {
            Some(refused) => self.owner.gone(refused),
            None => self.owner.idle(),
        }
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("gone", &self.gone).finish_non_exhaustive()
    }
}

/// What is in a group at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Waiters.
    pub waiting: usize,
    /// Permits out, by weight.
    pub out: u64,
    /// What is neither and has not ended: jobs that were refused or given up and whose captures are not gone.
    pub ending: u64,
    /// Refused so far because the group was closed.
    pub refused: u64,
}

/// A group. Its waiters are linked through their slots. What changes with every permit fills the first cache line.
#[repr(C, align(64))]
pub(super) struct Group {
    pub(super) waiting: usize,
    out: u64,
    /// Its waiters without a lease, and those under one.
    pub(super) queues: [List<GROUP>; 2],
    /// What its engine counts besides: jobs that end.
    others: u64,
    pub(super) deadline: Tick,
    pub(super) closed: Closing,
    idle_told: bool,
    let_go: bool,
    /// What runs in it was asked to stop, so is what starts: without a lease, and under one.
    pub(super) asked: [bool; 2],
    refused: u64,
    owner: Arc<dyn GroupOwner>,
}

/// How far a group is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    Open,
    /// Work under a drain lease is still admitted.
    Draining,
    Closed,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("waiting", &self.waiting)
            .field("out", &self.out)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl Group {
    fn is_empty(&self) -> bool {
        self.waiting == 0 && self.out == 0 && self.others == 0
    }

    /// The first of those who wait and are refused.
    pub(super) fn first_refused(&self) -> u32 {
        let [plain, leased] = self.queues.map(|queue| queue.head);
        match self.closed {
            Closing::Open => NIL,
            Closing::Draining => plain,
            Closing::Closed if plain == NIL => leased,
            Closing::Closed => plain,
        }
    }

    /// Whether it admits nothing more, or nothing but what is under a lease.
    pub(super) fn refuses(&self, leased: bool) -> bool {
        self.closed > if leased { Closing::Draining } else { Closing::Open }
    }
}

#[derive(Debug)]
struct Place {
    group: Option<Group>,
    generation: NonZeroU32,
}

/// All groups of a state.
#[derive(Debug, Default)]
pub(super) struct Groups {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Groups that may have something to tell.
    changed: Vec<GroupId>,
}

impl Groups {
    pub(super) fn open(&mut self, owner: Arc<dyn GroupOwner>, deadline: Tick) -> GroupId {
        let group = Group {
            owner,
            queues: [List::new(); 2],
            waiting: 0,
            out: 0,
            others: 0,
            deadline,
            closed: Closing::Open,
            refused: 0,
            idle_told: false,
            let_go: false,
            asked: [false; 2],
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: NonZeroU32::MIN, group: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.group = Some(group);
        GroupId { index, generation: place.generation }
    }

    #[inline]
    pub(super) fn get(&self, id: GroupId) -> Option<&Group> {
        let place = self.places.get(id.index as usize)?;
        if place.generation == id.generation { place.group.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.group.as_mut() } else { None }
    }

    /// Counts a permit of this weight that is out.
    #[inline]
    pub(super) fn take(&mut self, id: GroupId, weight: u64) {
        if let Some(group) = self.get_mut(id) {
            group.out += weight;
        }
    }

    /// Counts it as back.
    #[inline]
    pub(super) fn give_back(&mut self, id: GroupId, weight: u64) {
        self.change(id, |group| group.out -= weight);
    }

    pub(super) fn join(&mut self, id: GroupId) {
        self.change(id, |group| group.others += 1);
    }

    pub(super) fn leave(&mut self, id: GroupId) {
        self.change(id, |group| group.others -= 1);
    }

    pub(super) fn count_refusal(&mut self, id: GroupId) {
        self.change(id, |group| group.refused += 1);
    }

    pub(super) fn close(&mut self, id: GroupId, closing: Closing) {
        self.change(id, |group| group.closed = group.closed.max(closing));
    }

    pub(super) fn let_go(&mut self, id: GroupId) {
        self.change(id, |group| group.let_go = true);
    }

    /// Changes a group; what that brings about is told by [`next_told`](Self::next_told).
    #[inline]
    pub(super) fn change(&mut self, id: GroupId, f: impl FnOnce(&mut Group)) {
        if let Some(group) = self.get_mut(id) {
            f(group);
            let ends = group.let_go || (group.closed > Closing::Open && !group.idle_told);
            if ends && group.is_empty() {
                self.changed.push(id);
            }
        }
    }

    pub(super) fn stats(&self, id: GroupId) -> GroupStats {
        self.get(id).map_or(GroupStats::default(), |group| GroupStats {
            waiting: group.waiting,
            out: group.out,
            ending: group.others,
            refused: group.refused,
        })
    }

    #[inline]
    pub(super) fn has_news(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What an owner is to be told. Judged by what is so now: something may have come in again.
    pub(super) fn next_told(&mut self) -> Option<Told> {
        while let Some(id) = self.changed.pop() {
            let Some(group) = self.get_mut(id).filter(|group| group.is_empty()) else { continue };
            if group.let_go {
                let place = &mut self.places[id.index as usize];
                // wraps after four thousand million groups in one place
                place.generation = place.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
                self.free.push(id.index);
                return place
                    .group
                    .take()
                    .map(|it| Told { owner: it.owner, gone: Some(it.refused) });
            }
            if group.closed > Closing::Open && !std::mem::replace(&mut group.idle_told, true) {
                return Some(Told { owner: Arc::clone(&group.owner), gone: None });
            }
        }
        None
    }
}
