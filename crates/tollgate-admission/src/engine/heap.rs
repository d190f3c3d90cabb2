//! The earliest of many lanes that fits: a heap.

/// Children per node: what a step down looks at is two cache lines.
const ARITY: usize = 4;

/// Where a lane is that is not in the heap.
const ABSENT: u32 = u32::MAX;

/// What a lane shows the heap: when its head arrived and how much it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) arrival: u64,
    pub(super) need: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    arrival: u64,
    need: u64,
    /// What the one that needs least of all in this subtree needs.
    least: u64,
    lane: u32,
}

/// The lanes that have an entry, the earliest on top, without an allocation after it is built.
///
/// Its size is that of the lanes in use, not of all there are: few lanes in use are few cache lines to look at. An entry
/// that is the newest of all, as that of an empty queue that gets a waiter, stays where it is put.
#[derive(Debug)]
pub(super) struct Heap {
    /// The children of node `i` are `ARITY * i + 1` and those that follow.
    nodes: Vec<Node>,
    /// Where each lane's node is.
    at: Vec<u32>,
}

impl Heap {
    pub(super) fn new(lanes: usize) -> Self {
        Heap { nodes: Vec::with_capacity(lanes), at: vec![ABSENT; lanes] }
    }

    /// O(log lanes); O(1) for an entry that is later than all others, when none needs less.
    pub(super) fn set(&mut self, lane: usize, entry: Option<Entry>) {
        let at = self.at[lane];
        match entry {
            None if at == ABSENT => {}
            None => self.remove(at as usize),
            Some(entry) if at == ABSENT => self.insert(lane, entry),
            Some(entry) => {
                let node = &mut self.nodes[at as usize];
                node.arrival = entry.arrival;
                node.need = entry.need;
                self.settle(at as usize);
            }
        }
    }

    fn insert(&mut self, lane: usize, Entry { arrival, need }: Entry) {
        let at = self.nodes.len();
        self.nodes.push(Node { arrival, need, least: need, lane: lane as u32 });
        self.at[lane] = at as u32;
        self.settle(at);
    }

    fn remove(&mut self, at: usize) {
        let Some(last) = self.nodes.pop() else { return };
        let end = self.nodes.len();
        self.at[self.nodes.get(at).unwrap_or(&last).lane as usize] = ABSENT;
        if end > 0 {
            // what was under it lost a node
            self.mend((end - 1) / ARITY, usize::MAX);
        }
        if at < end {
            self.put(at, last);
            self.settle(at);
        }
    }

    #[inline]
    fn put(&mut self, at: usize, node: Node) {
        self.nodes[at] = node;
        self.at[node.lane as usize] = at as u32;
    }

    /// Moves a node whose arrival or need changed to where it belongs.
    fn settle(&mut self, from: usize) {
        let node = self.nodes[from];
        let mut at = from;
        while at > 0 && node.arrival < self.nodes[(at - 1) / ARITY].arrival {
            let parent = (at - 1) / ARITY;
            self.put(at, self.nodes[parent]);
            at = parent;
        }
        if at < from {
            self.put(at, node);
            self.mend(from, at);
            return;
        }
        while let Some(child) = self.earliest_child(at)
            && self.nodes[child].arrival < node.arrival
        {
            self.put(at, self.nodes[child]);
            at = child;
        }
        if at > from {
            self.put(at, node);
        }
        self.mend(at, from);
    }

    #[inline]
    fn children(&self, at: usize) -> std::ops::Range<usize> {
        let first = ARITY * at + 1;
        first.min(self.nodes.len())..(first + ARITY).min(self.nodes.len())
    }

    #[inline]
    fn earliest_child(&self, at: usize) -> Option<usize> {
        let children = self.children(at);
        let mut best = (u64::MAX, None);
        for (child, node) in children.clone().zip(&self.nodes[children]) {
            if node.arrival < best.0 {
                best = (node.arrival, Some(child));
            }
        }
        best.1
    }

    /// Recomputes what the subtrees need at least, from `at` up: to `changed` whatever is found there, for the nodes on
    /// the way were moved with what they had below them elsewhere; and further up as long as it makes a difference.
    fn mend(&mut self, mut at: usize, changed: usize) {
        loop {
            let below = self.nodes[self.children(at)].iter();
            let least = below.fold(self.nodes[at].need, |least, child| least.min(child.least));
            let same = std::mem::replace(&mut self.nodes[at].least, least) == least;
            if at == 0 || (same && at < changed) {
                return;
            }
            at = (at - 1) / ARITY;
        }
    }

    /// Arrival of the earliest entry whatever it needs; `u64::MAX` when there is none.
    #[inline]
    pub(super) fn earliest(&self) -> u64 {
        self.nodes.first().map_or(u64::MAX, |node| node.arrival)
    }

    /// The lane of the earliest entry among those that need at most `room`.
    ///
    /// O(1) when the needs are equal; with mixed needs it looks at most at the lanes that fit, and at those above them.
    #[inline]
    pub(super) fn first_fit(&self, room: u64) -> Option<usize> {
        let top = self.nodes.first()?;
        if top.least > room {
            return None;
        }
        if top.need <= room {
            return Some(top.lane as usize);
        }
        self.search(0, room, u64::MAX).map(|(_, lane)| lane as usize)
    }

    fn search(&self, at: usize, room: u64, mut best: u64) -> Option<(u64, u32)> {
        let node = self.nodes[at];
        if node.least > room || node.arrival >= best {
            return None;
        }
        if node.need <= room {
            return Some((node.arrival, node.lane));
        }
        let mut found = None;
        for child in self.children(at) {
            if let Some(better) = self.search(child, room, best) {
                best = better.0;
                found = Some(better);
            }
        }
        found
    }

    /// Calls `visit` with every lane whose entry arrived before `arrival`, in no order.
    #[inline]
    pub(super) fn for_each_before(&self, arrival: u64, mut visit: impl FnMut(usize)) {
        if self.earliest() < arrival {
            self.walk_before(0, arrival, &mut visit);
        }
    }

    fn walk_before(&self, at: usize, arrival: u64, visit: &mut impl FnMut(usize)) {
        if self.nodes[at].arrival >= arrival {
            return;
        }
        visit(self.nodes[at].lane as usize);
        for child in self.children(at) {
            self.walk_before(child, arrival, visit);
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
            lanes in 1_usize..40,
            sets in proptest::collection::vec((0_usize..40, proptest::option::of((0_u64..50, 0_u64..6))), 1..120),
            before in 0_u64..50,
        ) {
            let mut heap = Heap::new(lanes);
            let mut model = vec![None; lanes];
            for (n, (lane, entry)) in sets.into_iter().enumerate() {
                let lane = lane % lanes;
                // arrivals are unique in use, so make them so here
                let entry = entry.map(|(arrival, need)| Entry { arrival: arrival * 1000 + n as u64, need });
                heap.set(lane, entry);
                model[lane] = entry;
                for room in 0..6 {
                    let fit = (0..lanes)
                        .filter(|&lane| model[lane].is_some_and(|e: Entry| e.need <= room))
                        .min_by_key(|&lane| model[lane].unwrap().arrival);
                    prop_assert_eq!(heap.first_fit(room), fit);
                }
                let earliest = model.iter().flatten().map(|e| e.arrival).min().unwrap_or(u64::MAX);
                prop_assert_eq!(heap.earliest(), earliest);
            }
            let mut seen = Vec::new();
            heap.for_each_before(before * 1000, |lane| seen.push(lane));
            seen.sort_unstable();
            let older: Vec<_> = (0..lanes)
                .filter(|&lane| model[lane].is_some_and(|e: Entry| e.arrival < before * 1000))
                .collect();
            prop_assert_eq!(seen, older);
        }

        #[test]
        fn each_node_knows_what_is_needed_least_below_it(
            sets in proptest::collection::vec((0_usize..40, proptest::option::of((0_u64..50, 0_u64..6))), 1..120),
        ) {
            let mut heap = Heap::new(40);
            for (n, (lane, entry)) in sets.into_iter().enumerate() {
                heap.set(lane, entry.map(|(arrival, need)| Entry { arrival: arrival * 1000 + n as u64, need }));
                for at in (0..heap.nodes.len()).rev() {
                    let below = heap.nodes[heap.children(at)].iter().map(|child| child.least);
                    let least = below.fold(heap.nodes[at].need, u64::min);
                    prop_assert_eq!(heap.nodes[at].least, least);
                }
            }
        }
    }
}
