//! Wakers, collected under a lock and called outside of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Calls what is the user's where a panic must not spread. The panic hook reports it.
pub fn contain(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // a payload's drop may panic in its turn; the payload of that is one too many
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        dropped.unwrap_or_else(std::mem::forget);
    }
}

/// Wakers to call once the lock is released.
///
/// The first few need no allocation, which covers nearly every operation: at most one waiter is woken per permit.
#[derive(Debug, Default)]
pub struct WakeList {
    few: [Option<Waker>; WakeList::FEW],
    len: usize,
    more: Vec<Waker>,
}

impl WakeList {
    const FEW: usize = 4;

    /// Wakers that one hold of the lock collects at most; with more to tell, unlock, wake, and lock again.
    pub const BATCH: usize = 64;

    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        WakeList::default()
    }

    /// How many are collected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none to wake.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one, to be woken after those that were added before.
    pub fn push(&mut self, waker: Waker) {
        match self.few.get_mut(self.len) {
            Some(place) => *place = Some(waker),
            None => self.more.push(waker),
        }
        self.len += 1;
    }

    /// Wakes all, in order. A waker that panics does not keep the others from being woken, nor harm the caller: it may
    /// be a permit's drop or a worker thread.
    pub fn wake_all(&mut self) {
        if self.len == 0 {
            return;
        }
        self.len = 0;
        let few = self.few.iter_mut().filter_map(Option::take);
        for waker in few.chain(self.more.drain(..)) {
            contain(|| waker.wake());
        }
    }
}

/// Wakers of those who wait for a condition, each replaced or removed by its owner in O(1).
#[derive(Debug, Default)]
pub struct WakerSet {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl WakerSet {
    /// Puts `waker` in the place `at`, or in a new one. Returns the place, and a former waker to drop outside the lock.
    pub fn register(&mut self, at: Option<usize>, waker: Waker) -> (usize, Option<Waker>) {
        if let Some(at) = at {
            return (at, self.wakers[at].replace(waker));
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.wakers.push(None);
            self.wakers.len() - 1
        });
        self.wakers[at] = Some(waker);
        (at, None)
    }

    /// Gives up a place. Returns its waker, to drop outside the lock.
    pub fn remove(&mut self, at: usize) -> Option<Waker> {
        self.free.push(at);
        self.wakers[at].take()
    }

    /// Moves all wakers to `list`. Their places stay taken until their owners remove them.
    pub fn take_all(&mut self, list: &mut WakeList) {
        for waker in self.wakers.iter_mut().filter_map(Option::take) {
            list.push(waker);
        }
    }
}
