//! Which lane goes next: a tournament over lanes.

/// What a lane shows the tree: when its head arrived and how much it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) arrival: u64,
    pub(super) need: u64,
}

impl Entry {
    /// The smaller arrival and the smaller need, whoever they belong to.
    #[inline]
    fn least(self, other: Entry) -> Entry {
        Entry { arrival: self.arrival.min(other.arrival), need: self.need.min(other.need) }
    }
}

/// No head: loses every comparison.
const EMPTY: Entry = Entry { arrival: u64::MAX, need: u64::MAX };

/// Up to this many lanes, looking at all of them costs less than keeping a tree over them.
const FEW: usize = 8;

/// The earliest of the lanes whose need fits, without an allocation after it is built.
///
/// Ordered sets from the standard library would allocate on every transition of a queue between empty and not empty,
/// which is the common case of a pool that is just saturated.
#[derive(Debug)]
pub(super) struct Tree {
    /// The minima over all lanes, each for itself.
    root: Entry,
    lanes: Vec<Entry>,
    /// Minima over pairs of lanes, over pairs of pairs, and so on. Node `i` has children `2i` and `2i + 1`; those from
    /// `lanes.len()` up are the lanes themselves. Empty for a few lanes.
    inner: Vec<Entry>,
}

impl Tree {
    pub(super) fn new(lanes: usize) -> Self {
        let flat = lanes <= FEW;
        let leaves = if flat { lanes } else { lanes.next_power_of_two() };
        let inner = if flat { Vec::new() } else { vec![EMPTY; leaves] };
        Tree { root: EMPTY, lanes: vec![EMPTY; leaves], inner }
    }

    /// O(log lanes), and O(1) when nothing changes further up.
    pub(super) fn set(&mut self, lane: usize, entry: Option<Entry>) {
        let entry = entry.unwrap_or(EMPTY);
        if std::mem::replace(&mut self.lanes[lane], entry) == entry {
            return;
        }
        if self.inner.is_empty() {
            self.root = self.lanes.iter().fold(EMPTY, |best, lane| best.least(*lane));
            return;
        }
        let mut at = (self.lanes.len() + lane) / 2;
        while at > 0 {
            let best = self.node(2 * at).least(self.node(2 * at + 1));
            if std::mem::replace(&mut self.inner[at], best) == best {
                return;
            }
            at /= 2;
        }
        self.root = self.inner[1];
    }

    fn node(&self, at: usize) -> Entry {
        match at.checked_sub(self.lanes.len()) {
            Some(lane) => self.lanes[lane],
            None => self.inner[at],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.earliest() == u64::MAX
    }

    /// Arrival of the earliest entry whatever it needs; `u64::MAX` when there is none.
    #[inline]
    pub(super) fn earliest(&self) -> u64 {
        self.root.arrival
    }

    /// The lane of the earliest entry among those that need at most `room`.
    ///
    /// O(log lanes) when the needs are equal; with mixed needs it visits at most the lanes that fit.
    #[inline]
    pub(super) fn first_fit(&self, room: u64) -> Option<usize> {
        if self.root.need > room || self.is_empty() {
            return None;
        }
        if !self.inner.is_empty() {
            return self.search(1, room, u64::MAX).map(|(_, lane)| lane);
        }
        let mut best = (u64::MAX, None);
        for (index, lane) in self.lanes.iter().enumerate() {
            if lane.need <= room && lane.arrival < best.0 {
                best = (lane.arrival, Some(index));
            }
        }
        best.1
    }

    fn search(&self, at: usize, room: u64, best: u64) -> Option<(u64, usize)> {
        let node = self.node(at);
        if node.need > room || node.arrival >= best {
            return None;
        }
        if let Some(lane) = at.checked_sub(self.lanes.len()) {
            return Some((node.arrival, lane));
        }
        let (left, right) = (2 * at, 2 * at + 1);
        let (sooner, later) = if self.node(left).arrival <= self.node(right).arrival {
            (left, right)
        } else {
            (right, left)
        };
        let first = self.search(sooner, room, best);
        let bound = first.map_or(best, |(arrival, _)| arrival);
        self.search(later, room, bound).or(first)
    }

    /// Calls `visit` with every lane whose entry arrived before `arrival`.
    pub(super) fn for_each_before(&self, arrival: u64, mut visit: impl FnMut(usize)) {
        if self.inner.is_empty() {
            let lanes = self.lanes.iter().enumerate();
            lanes.filter(|(_, lane)| lane.arrival < arrival).for_each(|(index, _)| visit(index));
        } else {
            self.walk_before(1, arrival, &mut visit);
        }
    }

    fn walk_before(&self, at: usize, arrival: u64, visit: &mut impl FnMut(usize)) {
        if self.node(at).arrival >= arrival {
            return;
        }
        if let Some(lane) = at.checked_sub(self.lanes.len()) {
            visit(lane);
        } else {
            self.walk_before(2 * at, arrival, visit);
            self.walk_before(2 * at + 1, arrival, visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_fit_is_the_earliest_lane_that_fits(
            lanes in 1_usize..20,
            sets in proptest::collection::vec((0_usize..20, proptest::option::of((0_u64..50, 0_u64..6))), 1..60),
            room in 0_u64..6,
            before in 0_u64..50,
        ) {
            let mut tree = Tree::new(lanes);
            let mut model = vec![None; lanes];
            for (n, (lane, entry)) in sets.into_iter().enumerate() {
                let lane = lane % lanes;
                // arrivals are unique in use, so make them so here
                let entry = entry.map(|(arrival, need)| Entry { arrival: arrival * 100 + n as u64, need });
                tree.set(lane, entry);
                model[lane] = entry;
            }
            let fit = (0..lanes)
                .filter(|&lane| model[lane].is_some_and(|e: Entry| e.need <= room))
                .min_by_key(|&lane| model[lane].unwrap().arrival);
            prop_assert_eq!(tree.first_fit(room), fit);
            let earliest = model.iter().flatten().map(|e| e.arrival).min().unwrap_or(u64::MAX);
            prop_assert_eq!(tree.earliest(), earliest);
            let mut seen = Vec::new();
            tree.for_each_before(before * 100, |lane| seen.push(lane));
            let older: Vec<_> = (0..lanes)
                .filter(|&lane| model[lane].is_some_and(|e: Entry| e.arrival < before * 100))
                .collect();
            prop_assert_eq!(seen, older);
        }
    }
}
