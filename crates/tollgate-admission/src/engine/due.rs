//! When somebody's time is up: the deadlines of single waiters, and the queue timeouts of lanes.

use super::slab::Key;
use super::tick::Tick;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Below this many entries a sweep is not worth its call.
const FEW: usize = 64;

/// What times there are. Nobody's time is up before [`next`](Self::next), and whoever looks then finds who it was, or
/// raises it.
#[derive(Debug)]
pub(super) struct Due {
    /// Explicit deadlines. Entries of waiters that left are skipped, and swept once they outnumber the live ones.
    deadlines: BinaryHeap<Reverse<(Tick, Key)>>,
    /// Waiters with an explicit deadline.
    live: usize,
    /// When each lane's head meets the lane's queue timeout; first come is first out, so heads are enough.
    timeouts: Vec<Tick>,
    /// At most the least of `timeouts`: most heads leave long before their time, so it is not raised when one does, but
    /// when it is reached.
    next_timeout: Tick,
}

impl Due {
    pub(super) fn new(lanes: usize) -> Self {
        let (deadlines, timeouts) = (BinaryHeap::new(), vec![Tick::NEVER; lanes]);
        Due { deadlines, live: 0, timeouts, next_timeout: Tick::NEVER }
    }

    /// No time is up before this.
    #[inline]
    pub(super) fn next(&self) -> Tick {
        match self.deadlines.peek() {
            // the entry of one that left only makes this too early, as does the timeout of one: it costs an idle call
            Some(&Reverse((deadline, _))) => self.next_timeout.min(deadline),
            None => self.next_timeout,
        }
    }

    /// Whether there is any time to look at.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.live > 0 || self.next_timeout != Tick::NEVER
    }

    // ---- deadlines ----

    /// A waiter has come, with this deadline.
    #[inline]
    pub(super) fn add(&mut self, deadline: Tick, key: Key) {
        if deadline != Tick::NEVER {
            self.live += 1;
            self.deadlines.push(Reverse((deadline, key)));
        }
    }

    /// The deadline of a waiter became earlier. Its former entry is skipped when its time comes.
    pub(super) fn tighten(&mut self, before: Tick, deadline: Tick, key: Key) {
        self.live += usize::from(before == Tick::NEVER);
        self.deadlines.push(Reverse((deadline, key)));
    }

    /// A waiter with this deadline leaves.
    #[inline]
    pub(super) fn remove(&mut self, deadline: Tick, is_live: impl Fn(Tick, Key) -> bool) {
        if deadline != Tick::NEVER {
            self.live -= 1;
            self.sweep(is_live);
        }
    }

    /// Drops the entries of those that are not live, if they are many.
    #[inline]
    pub(super) fn sweep(&mut self, is_live: impl Fn(Tick, Key) -> bool) {
        if self.live == 0 {
            // few are left, or they would have been swept before
            self.deadlines.clear();
        } else if self.deadlines.len() > 2 * self.live + FEW {
            self.deadlines.retain(|&Reverse((deadline, key))| is_live(deadline, key));
        }
    }

    /// The next of those whose deadline has passed at `now` and that are live.
    #[inline]
    pub(super) fn pop(&mut self, now: Tick, is_live: impl Fn(Key) -> bool) -> Option<Key> {
        while let Some(&Reverse((deadline, key))) = self.deadlines.peek() {
            let live = is_live(key);
            if live && deadline > now {
                return None;
            }
            self.deadlines.pop();
            if live {
                return Some(key);
            }
        }
        None
    }

    // ---- timeouts ----

    /// The head of `lane` meets its queue timeout then. O(1).
    #[inline]
    pub(super) fn set_timeout(&mut self, lane: usize, at: Tick) {
        self.timeouts[lane] = at;
        self.next_timeout = self.next_timeout.min(at);
    }

    /// When the head of `lane` meets its queue timeout.
    #[inline]
    pub(super) fn timeout(&self, lane: usize) -> Tick {
        self.timeouts[lane]
    }

    /// Whether some lane's head may have met its queue timeout at `now`.
    #[inline]
    pub(super) fn may_time_out(&self, now: Tick) -> bool {
        self.next_timeout <= now
    }

    /// Whoever has looked at every lane's [`timeout`](Self::timeout) says what the least of them is.
    #[inline]
    pub(super) fn raise_timeouts(&mut self, least: Tick) {
        self.next_timeout = least;
    }
}
