//! Where waiters live: slots with intrusive links, in chunks that never move.

use super::group::GroupId;
use super::state::{LaneId, Outcome};
use super::tick::Tick;

/// "No slot", for links.
pub(super) const NIL: u32 = u32::MAX;

/// Slots per chunk. A slab that grew by doubling would copy every waiter while the lock is held; a chunk costs the same
/// at the millionth waiter as at the first.
const CHUNK: usize = 64;

/// Names one waiter. A key that outlived its waiter is recognised and harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Neighbours in a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    /// In no list, or alone in one.
    pub(super) const NONE: Links = Links { prev: NIL, next: NIL };
}

/// Which of a slot's links a list is threaded through.
pub(super) const QUEUE: usize = 0;
/// See [`QUEUE`].
pub(super) const GROUP: usize = 1;
/// See [`QUEUE`].
pub(super) const CLASS: usize = 2;

/// Where a waiter stands. Its first links mean something else in each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Linked into the list of free slots.
    Free,
    /// Linked into its lane's queue, and the lists of its group and its class.
    Waiting,
    /// Decided, but its owner has not been told: linked into the list of the settled.
    Settled(Outcome),
    /// Decided and told; not linked. Its owner removes it.
    Announced(Outcome),
}

/// Aligned, so that a waiter that is queued on one core and taken on another moves as few cache lines as it can. What its
/// neighbours write, and what is looked at while it waits, fills the first one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot<W> {
    pub(super) links: [Links; 3],
    pub(super) weight: u64,
    pub(super) arrival: u64,
    pub(super) since: Tick,
    pub(super) lane: u32,
    pub(super) generation: u32,
    pub(super) class: u16,
    /// It came under a drain lease.
    pub(super) leased: bool,
    pub(super) waiter: Option<W>,
    pub(super) deadline: Tick,
    pub(super) place: Place,
    pub(super) group: Option<GroupId>,
}

impl<W> Slot<W> {
    /// Lane, since when, and what waits, if it is in its lane's queue.
    pub(super) fn waiting(&self) -> Option<(LaneId, Tick, &W)> {
        let waiter = self.waiter.as_ref().filter(|_| self.place == Place::Waiting)?;
        Some((LaneId(self.lane), self.since, waiter))
    }
}

#[derive(Debug)]
pub(super) struct Slab<W> {
    chunks: Vec<Vec<Slot<W>>>,
    len: u32,
    free: u32,
}

impl<W> Slab<W> {
    pub(super) fn new() -> Self {
        Slab { chunks: Vec::new(), len: 0, free: NIL }
    }

    /// `None` when every index is taken (four thousand million waiters).
    pub(super) fn insert(&mut self, mut slot: Slot<W>) -> Option<u32> {
        if self.free != NIL {
            let index = self.free;
            let old = &mut self[index];
            let next = old.links[QUEUE].next;
            slot.generation = old.generation;
            *old = slot;
            self.free = next;
            return Some(index);
        }
        let index = self.len;
        if index == NIL {
            return None;
        }
        if (index as usize).is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[index as usize / CHUNK].push(slot);
        self.len += 1;
        Some(index)
    }

    /// Frees the slot; what waited there is handed back so that it can be dropped outside the lock.
    pub(super) fn remove(&mut self, index: u32) -> Option<W> {
        let free = self.free;
        let slot = &mut self[index];
        slot.place = Place::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.links[QUEUE].next = free;
        let waiter = slot.waiter.take();
        self.free = index;
        waiter
    }

    pub(super) fn key(&self, index: u32) -> Key {
        Key { index, generation: self[index].generation }
    }

    /// The slot that `key` names, unless it has been freed since.
    pub(super) fn get(&self, key: Key) -> Option<&Slot<W>> {
        let slot = self.chunks.get(key.index as usize / CHUNK)?.get(key.index as usize % CHUNK)?;
        (slot.generation == key.generation && slot.place != Place::Free).then_some(slot)
    }

    /// The slots from `at` to the end of a chunk, about `count` of them, and where the next part begins.
    pub(super) fn part(
        &self,
        at: usize,
        count: usize,
    ) -> (Option<usize>, impl Iterator<Item = &Slot<W>>) {
        let first = (at / CHUNK).min(self.chunks.len());
        let last = (first + count.div_ceil(CHUNK).max(1)).min(self.chunks.len());
        let next = (last < self.chunks.len()).then_some(last * CHUNK);
        (next, self.chunks[first..last].iter().flatten())
    }
}

impl<W> std::ops::Index<u32> for Slab<W> {
    type Output = Slot<W>;
    #[inline]
    fn index(&self, index: u32) -> &Slot<W> {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

impl<W> std::ops::IndexMut<u32> for Slab<W> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Slot<W> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

/// Head and tail of a list that is threaded through one of the links of the slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const LINKS: usize> {
    pub(super) head: u32,
    tail: u32,
}

impl<const LINKS: usize> List<LINKS> {
    pub(super) const fn new() -> Self {
        List { head: NIL, tail: NIL }
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.head == NIL
    }

    /// The one after `index`, or [`NIL`].
    #[inline]
    pub(super) fn after<W>(slab: &Slab<W>, index: u32) -> u32 {
        slab[index].links[LINKS].next
    }

    /// The one before `index`, or [`NIL`].
    #[inline]
    pub(super) fn before<W>(slab: &Slab<W>, index: u32) -> u32 {
        slab[index].links[LINKS].prev
    }

    #[inline]
    pub(super) fn push<W>(&mut self, slab: &mut Slab<W>, index: u32) {
        let tail = self.tail;
        slab[index].links[LINKS] = Links { prev: tail, next: NIL };
        if tail == NIL {
            self.head = index;
        } else {
            slab[tail].links[LINKS].next = index;
        }
        self.tail = index;
    }

    #[inline]
    pub(super) fn unlink<W>(&mut self, slab: &mut Slab<W>, index: u32) {
        let Links { prev, next } = slab[index].links[LINKS];
        if prev == NIL {
            self.head = next;
        } else {
            slab[prev].links[LINKS].next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            slab[next].links[LINKS].prev = prev;
        }
    }
}
