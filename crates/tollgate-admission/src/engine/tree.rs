//! The earliest of many lanes that fits: a tournament.

/// What a lane shows the tree: when its head arrived and how much it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) arrival: u64,
    pub(super) need: u64,
}

/// No head: loses every comparison.
const EMPTY: Entry = Entry { arrival: u64::MAX, need: u64::MAX };

/// The earliest of the lanes whose need fits, without an allocation after it is built.
///
/// Ordered sets from the standard library would allocate on every transition of a queue between empty and not empty,
/// which is the common case of a pool that is just saturated.
#[derive(Debug)]
pub(super) struct Tree {
    /// Index of the first leaf; a power of two, so that node `i` has children `2i` and `2i + 1`.
    leaves: usize,
    nodes: Vec<Entry>,
}

impl Tree {
    pub(super) fn new(lanes: usize) -> Self {
        let leaves = lanes.next_power_of_two();
        Tree { leaves, nodes: vec![EMPTY; 2 * leaves] }
    }

    /// O(log lanes), and O(1) when nothing changes further up.
    pub(super) fn set(&mut self, lane: usize, entry: Option<Entry>) {
        let mut at = self.leaves + lane;
        let entry = entry.unwrap_or(EMPTY);
        if self.nodes[at] == entry {
            return;
        }
        self.nodes[at] = entry;
        while at > 1 {
            at /= 2;
            let (left, right) = (self.nodes[2 * at], self.nodes[2 * at + 1]);
            let best =
                Entry { arrival: left.arrival.min(right.arrival), need: left.need.min(right.need) };
            if self.nodes[at] == best {
                break;
            }
            self.nodes[at] = best;
        }
    }

    /// Arrival of the earliest entry whatever it needs; `u64::MAX` when there is none.
    pub(super) fn earliest(&self) -> u64 {
        self.nodes[1].arrival
    }

    /// The lane of the earliest entry among those that need at most `room`.
    ///
    /// O(log lanes) when the needs are equal; with mixed needs it visits at most the lanes that fit.
    pub(super) fn first_fit(&self, room: u64) -> Option<usize> {
        self.search(1, room, u64::MAX).map(|(_, lane)| lane)
    }

    fn search(&self, at: usize, room: u64, best: u64) -> Option<(u64, usize)> {
        let node = self.nodes[at];
        if node.need > room || node.arrival >= best {
            return None;
        }
        if at >= self.leaves {
            return Some((node.arrival, at - self.leaves));
        }
        let (left, right) = (2 * at, 2 * at + 1);
        let (sooner, later) = if self.nodes[left].arrival <= self.nodes[right].arrival {
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
        self.walk_before(1, arrival, &mut visit);
    }

    fn walk_before(&self, at: usize, arrival: u64, visit: &mut impl FnMut(usize)) {
        if self.nodes[at].arrival >= arrival {
            return;
        }
        if at >= self.leaves {
            visit(at - self.leaves);
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
