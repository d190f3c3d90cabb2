//! Where the lanes stand: which of them goes next, and who may be passed.
//!
//! A borrower may be passed by younger ones that need less. Each pass is counted, and a head that was passed `max_bypass`
//! times is passed by no further borrower. Counting costs O(heads passed), which is bounded by `max_bypass` per waiter over
//! its life.

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
    stuck: bool,
    /// When the head arrived.
    pub(super) arrival: u64,
    /// What it needs beyond what its own lane is kept.
    pub(super) need: u64,
}

impl Row {
    pub(super) const OUT: Row =
        Row { standing: Standing::Out, stuck: false, arrival: u64::MAX, need: u64::MAX };

    pub(super) fn new(standing: Standing, arrival: u64, need: u64) -> Self {
        Row { standing, stuck: false, arrival, need }
    }
}

/// Up to this many lanes, looking at all of them costs less than keeping heaps of them.
const FEW: usize = 8;

/// The rows of all lanes, and with many lanes the heaps that find one without looking at all. Nothing is
/// allocated after it is built: ordered sets from the standard library would allocate whenever a queue becomes empty or
/// stops being so, which a pool that is just saturated does all the time.
#[derive(Debug)]
pub(super) struct Board {
    rows: Vec<Row>,
    /// How many younger borrowers have passed each lane's head.
    passed: Vec<u32>,
    max_bypass: u32,
    /// Emptied at once; kept so that counting passes allocates nothing.
    newly_stuck: Vec<usize>,
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
    pub(super) fn new(lanes: usize, max_bypass: u32) -> Self {
        let many = (lanes > FEW).then(|| {
            let heap = || Heap::new(lanes);
            let (kept, reserved, borrowing) = (heap(), heap(), heap());
            Box::new(Heaps { kept, reserved, borrowing, stuck: heap() })
        });
        let newly_stuck = Vec::with_capacity(lanes);
        Board { rows: vec![Row::OUT; lanes], passed: vec![0; lanes], max_bypass, newly_stuck, many }
    }

    /// The lane stands here now, with the head that it had. O(log lanes).
    #[inline]
    pub(super) fn set(&mut self, lane: usize, mut row: Row) {
        row.stuck = row.standing == Standing::Borrowing && self.passed[lane] >= self.max_bypass;
        self.put(lane, row);
    }

    /// The lane's head is another one than before, and was passed by nobody. What it needs is to be [set](Self::set).
    #[inline]
    pub(super) fn new_head(&mut self, lane: usize) {
        self.passed[lane] = 0;
    }

    // always: on the path of whatever waits
    #[inline(always)]
    fn put(&mut self, lane: usize, row: Row) {
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

    /// Whether a borrower that arrived at `arrival` may go now; counts it against the heads it passes.
    ///
    /// Every older borrowing head is passed: whoever asks is the earliest that fits, or a newcomer.
    #[inline]
    pub(super) fn pass(&mut self, arrival: u64) -> bool {
        if self.is_blocked(arrival) {
            return false;
        }
        let Board { rows, passed, max_bypass, newly_stuck, many } = self;
        for_each_borrowing_before(rows, many.as_deref(), arrival, |lane| {
            passed[lane] += 1;
            if passed[lane] == *max_bypass {
                newly_stuck.push(lane);
            }
        });
        while let Some(lane) = self.newly_stuck.pop() {
            let row = self.rows[lane];
            self.put(lane, Row { stuck: true, ..row });
        }
        true
    }

    /// Whether a borrower that arrived at `arrival` would pass a head that may not be passed.
    #[inline]
    fn is_blocked(&self, arrival: u64) -> bool {
        match &self.many {
            None => self.rows.iter().any(|row| row.stuck && row.arrival < arrival),
            Some(many) => many.stuck.earliest() < arrival,
        }
    }
}

/// Calls `visit` with every borrowing lane whose head arrived before `arrival`, in no order.
#[inline]
fn for_each_borrowing_before(
    rows: &[Row],
    many: Option<&Heaps>,
    arrival: u64,
    mut visit: impl FnMut(usize),
) {
    match many {
        None => {
            for (lane, row) in rows.iter().enumerate() {
                if row.standing == Standing::Borrowing && row.arrival < arrival {
                    visit(lane);
                }
            }
        }
        Some(many) => many.borrowing.for_each_before(arrival, visit),
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
                (0_usize..20, standing(), any::<bool>(), 0_u64..50, 0_u64..6),
                1..60,
            ),
            rooms in (0_u64..6, 0_u64..6, 0_u64..6),
            before in 0_u64..60,
        ) {
            let mut flat = Board::new(lanes, u32::MAX);
            flat.many = None;
            let mut tall = Board::new(FEW + 1 + lanes, u32::MAX);
            for (n, (lane, standing, stuck, arrival, need)) in steps.into_iter().enumerate() {
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
                for board in [&mut flat, &mut tall] {
                    board.put(lane, row);
                }
            }
            prop_assert_eq!(
                flat.next(rooms.0, rooms.1, rooms.2),
                tall.next(rooms.0, rooms.1, rooms.2)
            );
            prop_assert_eq!(flat.is_blocked(before * 100), tall.is_blocked(before * 100));
            let (mut seen, mut also) = (Vec::new(), Vec::new());
            for (board, found) in [(&flat, &mut seen), (&tall, &mut also)] {
                let many = board.many.as_deref();
                for_each_borrowing_before(&board.rows, many, before * 100, |lane| found.push(lane));
            }
            also.sort_unstable();
            prop_assert_eq!(seen, also);
        }
    }
}
