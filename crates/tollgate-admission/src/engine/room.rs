//! How much of the capacity is free, and for whom.

/// The capacity and what of it is out or withheld.
///
/// What is out exceeds the capacity only by the deficit that a shrink left. What is withheld are the sums over the lanes
/// of what each of them [withholds](Withheld).
#[derive(Debug)]
pub(super) struct Room {
    capacity: u64,
    out: u64,
    kept: u64,
    protected: u64,
}

/// What a lane withholds from others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withheld {
    /// From every other lane: what is kept for it and not in use.
    pub(super) kept: u64,
    /// From borrowers: its unmet reservation when its head fits inside that, else `kept`.
    pub(super) protected: u64,
}

impl Room {
    /// Nothing is out; every lane withholds what is kept for it, `kept` in all.
    pub(super) fn new(capacity: u64, kept: u64) -> Self {
        Room { capacity, out: 0, kept, protected: kept }
    }

    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    pub(super) fn out(&self) -> u64 {
        self.out
    }

    pub(super) fn deficit(&self) -> u64 {
        self.out.saturating_sub(self.capacity)
    }

    /// What a lane may take within what is kept for it: nobody else can have taken that.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.out)
    }

    /// What a lane may take within its reservation, apart from what it is kept itself.
    #[inline]
    pub(super) fn unkept(&self) -> u64 {
        self.free().saturating_sub(self.kept)
    }

    /// What a borrower may take, apart from what its own lane is kept.
    #[inline]
    pub(super) fn slack(&self) -> u64 {
        self.free().saturating_sub(self.protected)
    }

    #[inline]
    pub(super) fn take(&mut self, weight: u64) {
        self.out += weight;
    }

    #[inline]
    pub(super) fn give_back(&mut self, weight: u64) {
        self.out -= weight;
    }

    pub(super) fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// A lane withholds something else than before.
    #[inline]
    pub(super) fn withhold(&mut self, before: Withheld, now: Withheld) {
        // wrapping: half-way through a resize the sums may pass u64::MAX, at its end they are at most the capacity
        self.kept = self.kept.wrapping_sub(before.kept).wrapping_add(now.kept);
        self.protected = self.protected.wrapping_sub(before.protected).wrapping_add(now.protected);
    }
}
