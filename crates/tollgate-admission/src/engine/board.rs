//! Where the lanes stand: which of them goes next, and when one must be looked at because time is up.

use super::heap::{Entry, Heap};

/// Where a lane stands, by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// The head fits inside what is kept for this lane.
    Kept,
    /// The head fits inside the lane's reservation, not inside what is kept.
    Reserved,
    /// The head needs capacity that is not reserved for this lane.
    Borrowing,
    /// No head, or the head does not fit under the lane's own limit, or the lane is closed.
    Out,
}

/// What a lane shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) standing: Standing,
    /// A borrowing head that may not be passed any more.
    pub(super) stuck: bool,
    /// When the head arrived.
    pub(super) arrival: u64,
    /// What it needs beyond what its own lane is kept.
    pub(super) need: u64,
}

impl Row {
    pub(super) const OUT: Row =
        Row { standing: Standing::Out, stuck: false, arrival: u64::MAX, need: u64::MAX };
}

/// "Never", for times.
const NEVER: u64 = u64::MAX;

/// Up to this many lanes, looking at all of them costs less than keeping heaps of them.
const FEW: usize = 8;

/// The rows of all lanes, and with many lanes the heaps that find one without looking at all. Nothing is
/// allocated after it is built: ordered sets from the standard library would allocate whenever a queue becomes empty or
/// stops being so, which a pool that is just saturated does all the time.
#[derive(Debug)]
pub(super) struct Board {
    rows: Vec<Row>,
    /// When each lane's head meets the lane's queue timeout; first come is first out, so heads are enough.
    due: Vec<u64>,
    /// At most the least of `due`: most heads leave long before their time, so it is not raised when one does, but when
    /// it is reached.
    next_due: u64,
    many: Option<Box<Heaps>>,
}

#[derive(Debug)]
struct Heaps {
    kept: Heap,
    reserved: Heap,
    borrowing: Heap,
    stuck: Heap,
}

impl Heaps {
    fn of(&mut self, standing: Standing) -> Option<&mut Heap> {
        match standing {
            Standing::Kept => Some(&mut self.kept),
            Standing::Reserved => Some(&mut self.reserved),
            Standing::Borrowing => Some(&mut self.borrowing),
            Standing::Out => None,
        }
    }
}

impl Board {
    pub(super) fn new(lanes: usize) -> Self {
        let many = (lanes > FEW).then(|| {
            let heap = || Heap::new(lanes);
            let (kept, reserved, borrowing) = (heap(), heap(), heap());
            Box::new(Heaps { kept, reserved, borrowing, stuck: heap() })
        });
        Board { rows: vec![Row::OUT; lanes], due: vec![NEVER; lanes], next_due: NEVER, many }
    }

    /// O(log lanes).
    #[inline]
    pub(super) fn set(&mut self, lane: usize, row: Row) {
        let before = std::mem::replace(&mut self.rows[lane], row);
        if let Some(many) = &mut self.many
            && before != row
        {
            if before.standing != row.standing
                && let Some(heap) = many.of(before.standing)
            {
                heap.set(lane, None);
            }
            let entry = Entry { arrival: row.arrival, need: row.need };
            if let Some(heap) = many.of(row.standing) {
                heap.set(lane, Some(entry));
            }
            // a heap of few: most heads are never passed that often
            if before.stuck || row.stuck {
                many.stuck.set(lane, row.stuck.then_some(entry));
            }
        }
    }

    /// O(1). `u64::MAX` is never.
    #[inline]
    pub(super) fn set_due(&mut self, lane: usize, due: u64) {
        self.due[lane] = due;
        self.next_due = self.next_due.min(due);
    }

    /// When this lane's head meets the lane's queue timeout; `u64::MAX` is never.
    #[inline]
    pub(super) fn due(&self, lane: usize) -> u64 {
        self.due[lane]
    }

    /// No queue timeout is met before this; `u64::MAX` is never.
    #[inline]
    pub(super) fn next_due(&self) -> u64 {
        self.next_due
    }

    /// Whoever has looked at every lane's [`due`](Self::due) says what the least of them is.
    #[inline]
    pub(super) fn set_next_due(&mut self, least: u64) {
        self.next_due = least;
    }

    /// The lane that goes next, and where it stands: by standing, then by arrival, of those that need at most what a
    /// lane standing there may take.
    ///
    /// O(log lanes) when the needs are equal; with mixed needs it looks at most at the lanes that fit.
    #[inline]
    pub(super) fn next(&self, kept: u64, reserved: u64, borrowing: u64) -> Option<(usize, Row)> {
        let lane = match &self.many {
            None => {
                let mut best = (Standing::Out, u64::MAX, None);
                for (lane, row) in self.rows.iter().enumerate() {
                    let room = match row.standing {
                        Standing::Out => continue,
                        Standing::Kept => kept,
                        Standing::Reserved => reserved,
                        Standing::Borrowing => borrowing,
                    };
                    if row.need <= room && (row.standing, row.arrival) < (best.0, best.1) {
                        best = (row.standing, row.arrival, Some(lane));
                    }
                }
                best.2?
            }
            Some(many) => many
                .kept
                .first_fit(kept)
                .or_else(|| many.reserved.first_fit(reserved))
                .or_else(|| many.borrowing.first_fit(borrowing))?,
        };
        Some((lane, self.rows[lane]))
    }

    /// Whether a borrower that arrived at `arrival` would pass a head that may not be passed.
    #[inline]
    pub(super) fn is_blocked(&self, arrival: u64) -> bool {
        match &self.many {
            None => self.rows.iter().any(|row| row.stuck && row.arrival < arrival),
            Some(many) => many.stuck.earliest() < arrival,
        }
    }

    /// Calls `visit` with every borrowing lane whose head arrived before `arrival`, in no order.
    #[inline]
    pub(super) fn for_each_borrowing_before(&self, arrival: u64, mut visit: impl FnMut(usize)) {
        match &self.many {
            None => {
                for (lane, row) in self.rows.iter().enumerate() {
                    if row.standing == Standing::Borrowing && row.arrival < arrival {
                        visit(lane);
                    }
                }
            }
            Some(many) => many.borrowing.for_each_before(arrival, visit),
        }
    }

    /// Marks a borrowing lane as one that may not be passed any more.
    pub(super) fn set_stuck(&mut self, lane: usize) {
        let row = self.rows[lane];
        self.set(lane, Row { stuck: true, ..row });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Kept),
            Just(Standing::Reserved),
            Just(Standing::Borrowing),
            Just(Standing::Out)
        ]
    }

    proptest! {
        /// However many lanes there are, looking at all of them and the heaps tell the same.
        #[test]
        fn few_and_many_lanes_give_the_same_answers(
            lanes in 1_usize..20,
            steps in proptest::collection::vec(
                (0_usize..20, standing(), any::<bool>(), 0_u64..50, 0_u64..6, proptest::option::of(0_u64..9)),
                1..60,
            ),
            rooms in (0_u64..6, 0_u64..6, 0_u64..6),
            before in 0_u64..60,
        ) {
            let mut flat = Board::new(lanes);
            flat.many = None;
            let mut tall = Board::new(FEW + 1 + lanes);
            for (n, (lane, standing, stuck, arrival, need, due)) in steps.into_iter().enumerate() {
                let lane = lane % lanes;
                let row = match standing {
                    Standing::Out => Row::OUT,
                    _ => Row {
                        standing,
                        stuck: stuck && standing == Standing::Borrowing,
                        // arrivals are unique in use, so make them so here
                        arrival: arrival * 100 + n as u64,
                        need,
                    },
                };
                // times are told apart likewise
                let due = due.map_or(NEVER, |due| due * 100 + n as u64);
                for board in [&mut flat, &mut tall] {
                    board.set(lane, row);
                    board.set_due(lane, due);
                }
            }
            prop_assert_eq!(
                flat.next(rooms.0, rooms.1, rooms.2),
                tall.next(rooms.0, rooms.1, rooms.2)
            );
            prop_assert_eq!(flat.next_due(), tall.next_due());
            prop_assert!((0..lanes).all(|lane| flat.next_due() <= flat.due(lane)));
            prop_assert_eq!(flat.is_blocked(before * 100), tall.is_blocked(before * 100));
            let (mut seen, mut also) = (Vec::new(), Vec::new());
            flat.for_each_borrowing_before(before * 100, |lane| seen.push(lane));
            tall.for_each_borrowing_before(before * 100, |lane| also.push(lane));
            also.sort_unstable();
            prop_assert_eq!(seen, also);
        }
    }
}
