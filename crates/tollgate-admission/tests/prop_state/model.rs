//! The rules ADM-1 to ADM-12, and of ADM-14 and ADM-16 what a state does for them, as written down, with lists and loops: nothing is kept that can be counted anew.
//!
//! One reading of ADM-4 is built in: capacity that is *kept* is lent to nobody, also not to a lane within its own
//! reservation, while a lane within its reservation is never held back to protect the *reservation* of another.

use std::time::Duration;
use tollgate_admission::engine::{Attempt, Cause, Tick};
use tollgate_admission::{Closed, LaneConfig, Refused};

/// A deadline that never passes.
pub(crate) const NEVER: u64 = u64::MAX;

/// What a lane is configured to.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) reserved: u64,
    pub(crate) kept: u64,
    pub(crate) limit: u64,
    pub(crate) max_waiting: usize,
    pub(crate) queue_timeout: Option<u64>,
}

impl Numbers {
    pub(crate) fn config(&self, lane: usize) -> LaneConfig {
        LaneConfig::new(format!("lane {lane}"))
            .reserved(self.reserved)
            .kept(self.kept)
            .limit(self.limit)
            .max_waiting(self.max_waiting)
            .queue_timeout(self.queue_timeout.map(Duration::from_nanos))
    }
}

pub(crate) fn configs(numbers: &[Numbers]) -> Vec<LaneConfig> {
    numbers.iter().enumerate().map(|(lane, numbers)| numbers.config(lane)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Waiting,
    Granted,
    Refused(Cause),
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) lane: usize,
    pub(crate) weight: u64,
    pub(crate) deadline: u64,
    pub(crate) group: Option<usize>,
    pub(crate) leased: bool,
}

/// What belongs together, and is told to end together.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) deadline: u64,
    /// 1: for what comes without a lease; 2: for everything.
    pub(crate) closed: u8,
    pub(crate) let_go: bool,
    /// What its engine counts besides.
    pub(crate) others: u64,
    /// Refused because it was closed.
    pub(crate) refused: u64,
}

/// Somebody who was queued and has not been collected or cancelled since.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) id: u64,
    pub(crate) lane: usize,
    pub(crate) weight: u64,
    pub(crate) deadline: u64,
    pub(crate) group: Option<usize>,
    pub(crate) leased: bool,
    pub(crate) since: u64,
    /// Younger borrowers that were granted while this one was a borrowing head.
    pub(crate) passed: u32,
    pub(crate) fate: Fate,
}

/// A permit that somebody answers for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: u64,
    pub(crate) lane: usize,
    pub(crate) weight: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) admitted: u64,
    pub(crate) peak: u64,
    pub(crate) refused: Refused,
}

/// What the last call must have answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    None,
    Attempt(Attempt),
    Entered(Attempt),
    /// Whose deadline became earlier, in order.
    Tightened(Vec<u64>),
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) capacity: u64,
    pub(crate) numbers: Vec<Numbers>,
    pub(crate) max_bypass: u32,
    /// The latest reading that was offered.
    pub(crate) clock: u64,
    pub(crate) closed: Option<Closed>,
    pub(crate) closed_lanes: Vec<bool>,
    /// In the order of their arrival.
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) held: Vec<Held>,
    pub(crate) figures: Vec<Figures>,
    pub(crate) groups: Vec<Group>,
    pub(crate) last_id: u64,
    pub(crate) reply: Reply,
}

impl Model {
    pub(crate) fn new(capacity: u64, numbers: Vec<Numbers>, max_bypass: u32) -> Self {
        Model {
            capacity,
            max_bypass,
            clock: 1,
            closed: None,
            groups: Vec::new(),
            closed_lanes: vec![false; numbers.len()],
            waiters: Vec::new(),
            held: Vec::new(),
            figures: vec![Figures::default(); numbers.len()],
            last_id: 0,
            reply: Reply::None,
            numbers,
        }
    }

    // ---- what can be counted ----

    pub(crate) fn lanes(&self) -> std::ops::Range<usize> {
        0..self.numbers.len()
    }

    pub(crate) fn running(&self, lane: usize) -> u64 {
        let held = self.held.iter().filter(|held| held.lane == lane).map(|held| held.weight);
        let granted = self.waiters.iter().filter(|w| w.lane == lane && w.fate == Fate::Granted);
        held.chain(granted.map(|w| w.weight)).sum()
    }

    pub(crate) fn out(&self) -> u64 {
        self.lanes().map(|lane| self.running(lane)).sum()
    }

    pub(crate) fn waiting(&self, lane: usize) -> usize {
        self.waiters.iter().filter(|w| w.lane == lane && w.fate == Fate::Waiting).count()
    }

    /// ADM-16: what comes under a lease fills no queue.
    fn unleased(&self, lane: usize) -> usize {
        let waiting = self.waiters.iter().filter(|w| w.lane == lane && w.fate == Fate::Waiting);
        waiting.filter(|w| !w.leased).count()
    }

    pub(crate) fn head(&self, lane: usize) -> Option<&Waiter> {
        self.waiters.iter().find(|w| w.lane == lane && w.fate == Fate::Waiting)
    }

    pub(crate) fn closed_cause(&self, lane: usize) -> Option<Cause> {
        if self.closed_lanes[lane] {
            Some(Cause::Closed(Closed::Lane))
        } else if self.closed == Some(Closed::Budget) {
            Some(Cause::Closed(Closed::Budget))
        } else {
            None
        }
    }

    /// Why nothing is admitted, if nothing is.
    fn closed_to(&self, lane: usize, group: Option<usize>, leased: bool) -> Option<Cause> {
        let group = group.is_some_and(|group| self.groups[group].closed > u8::from(leased));
        let scope = group || (self.closed == Some(Closed::Scope) && !leased);
        self.closed_cause(lane).or(scope.then_some(Cause::Closed(Closed::Scope)))
    }

    /// ADM-6: the largest weight that this lane could ever be granted.
    pub(crate) fn largest(&self, lane: usize) -> u64 {
        let kept_by_others: u64 = self
            .lanes()
            .filter(|&other| other != lane && self.closed_cause(other).is_none())
            .map(|other| self.numbers[other].kept)
            .sum();
        self.numbers[lane].limit.min(self.capacity - kept_by_others)
    }

    /// When this waiter's time is up.
    pub(crate) fn expiry(&self, waiter: &Waiter) -> u64 {
        let timeout = self.numbers[waiter.lane].queue_timeout;
        waiter.deadline.min(timeout.map_or(NEVER, |span| waiter.since.saturating_add(span)))
    }

    /// Groups in which something may be entered.
    pub(crate) fn entered(&self) -> Vec<usize> {
        (0..self.groups.len()).filter(|&group| !self.groups[group].let_go).collect()
    }

    // ---- who may run: ADM-4 and ADM-5, word for word ----

    fn fits_limit(&self, lane: usize, weight: u64) -> bool {
        u128::from(self.running(lane)) + u128::from(weight) <= u128::from(self.numbers[lane].limit)
    }

    pub(crate) fn within_reservation(&self, lane: usize, weight: u64) -> bool {
        let reserved = u128::from(self.numbers[lane].reserved);
        u128::from(self.running(lane)) + u128::from(weight) <= reserved
    }

    pub(crate) fn kept_idle(&self, lane: usize) -> u64 {
        match self.closed_cause(lane) {
            Some(_) => 0,
            None => self.numbers[lane].kept.saturating_sub(self.running(lane)),
        }
    }

    /// What a lane withholds from a borrower in another lane.
    fn protects(&self, lane: usize) -> u64 {
        match self.head(lane) {
            Some(head) if self.within_reservation(lane, head.weight) => {
                self.numbers[lane].reserved - self.running(lane)
            }
            _ => self.kept_idle(lane),
        }
    }

    /// Whether idle capacity allows it: the lane's queue and limit apart, and who must not be passed apart.
    pub(crate) fn fits(&self, lane: usize, weight: u64) -> bool {
        let idle = u128::from(self.capacity.saturating_sub(self.out()));
        let others = |withheld: &dyn Fn(usize) -> u64| -> u128 {
            let others = self.lanes().filter(|&other| other != lane);
            others.map(|other| u128::from(withheld(other))).sum()
        };
        let withheld = if weight <= self.kept_idle(lane) {
            0
        } else if self.within_reservation(lane, weight) {
            others(&|other| self.kept_idle(other))
        } else {
            others(&|other| self.protects(other))
        };
        u128::from(weight) + withheld <= idle
    }

    /// Heads that wait for capacity beyond their reservation, not for their own lane's limit.
    pub(crate) fn borrowing_heads(&self) -> Vec<u64> {
        let heads = self.lanes().filter_map(|lane| self.head(lane));
        heads
            .filter(|head| self.fits_limit(head.lane, head.weight))
            .filter(|head| !self.within_reservation(head.lane, head.weight))
            .map(|head| head.id)
            .collect()
    }

    fn waiter(&self, id: u64) -> &Waiter {
        self.waiters.iter().find(|w| w.id == id).expect("the id is of a waiter")
    }

    fn waiter_mut(&mut self, id: u64) -> &mut Waiter {
        self.waiters.iter_mut().find(|w| w.id == id).expect("the id is of a waiter")
    }

    /// Whether no head that a borrower with this id passes has been passed often enough.
    pub(crate) fn may_pass(&self, id: u64) -> bool {
        let older = self.borrowing_heads().into_iter().filter(|&head| head < id);
        older.into_iter().all(|head| self.waiter(head).passed < self.max_bypass)
    }

    fn pass(&mut self, id: u64) {
        for head in self.borrowing_heads().into_iter().filter(|&head| head < id) {
            self.waiter_mut(head).passed += 1;
        }
    }

    // ---- what happens ----

    fn count_grant(&mut self, lane: usize) {
        let running = self.running(lane);
        let figures = &mut self.figures[lane];
        figures.admitted += 1;
        figures.peak = figures.peak.max(running);
    }

    fn count_refusal(&mut self, lane: usize, cause: Cause) {
        let refused = &mut self.figures[lane].refused;
        *match cause {
            Cause::QueueFull { .. } => &mut refused.queue_full,
            Cause::Deadline => &mut refused.deadline,
            Cause::Closed(_) => &mut refused.closed,
            Cause::TooLarge { .. } => &mut refused.too_large,
            Cause::ZeroWeight => &mut refused.zero_weight,
            Cause::Busy => &mut refused.busy,
            Cause::NoTimer => &mut refused.no_timer,
            Cause::LeaseExpired => &mut refused.lease_expired,
            Cause::LeaseExhausted => &mut refused.lease_exhausted,
            Cause::LongRunning => &mut refused.long_running,
        } += 1;
    }

    fn refuse_waiter(&mut self, id: u64, cause: Cause) {
        let waiter = self.waiter_mut(id);
        assert_eq!(waiter.fate, Fate::Waiting);
        waiter.fate = Fate::Refused(cause);
        let (lane, group) = (waiter.lane, waiter.group);
        self.count_refusal(lane, cause);
        self.count_in_group(group, cause);
    }

    fn count_in_group(&mut self, group: Option<usize>, cause: Cause) {
        if let (Some(group), Cause::Closed(Closed::Scope)) = (group, cause) {
            self.groups[group].refused += 1;
        }
    }

    /// ADM-8, then ADM-5.
    fn settle(&mut self) {
        let waiting = self.waiters.iter().filter(|w| w.fate == Fate::Waiting);
        let due = waiting.filter(|w| self.expiry(w) <= self.clock).map(|w| w.id);
        for id in due.collect::<Vec<_>>() {
            self.refuse_waiter(id, Cause::Deadline);
        }
        while let Some(id) = self.next() {
            self.waiter_mut(id).fate = Fate::Granted;
            let lane = self.waiter(id).lane;
            self.count_grant(lane);
        }
    }

    fn next(&mut self) -> Option<u64> {
        let mut fitting: Vec<(u64, usize, u64)> = self
            .lanes()
            .filter_map(|lane| self.head(lane))
            .filter(|head| self.fits_limit(head.lane, head.weight))
            .filter(|head| self.fits(head.lane, head.weight))
            .map(|head| (head.id, head.lane, head.weight))
            .collect();
        fitting.sort_unstable();
        let within =
            fitting.iter().find(|&&(_, lane, weight)| self.within_reservation(lane, weight));
        if let Some(&(id, ..)) = within {
            return Some(id);
        }
        let &(id, ..) = fitting.first()?;
        if !self.may_pass(id) {
            return None;
        }
        self.pass(id);
        Some(id)
    }

    /// ADM-14: the earliest of its own deadline and its group's.
    fn deadline_of(&self, ask: &Ask) -> u64 {
        ask.deadline.min(ask.group.map_or(NEVER, |group| self.groups[group].deadline))
    }

    fn attempt(&mut self, ask: &Ask) -> Attempt {
        let Ask { lane, weight, group, leased, .. } = *ask;
        let deadline = self.deadline_of(ask);
        let cause = if let Some(closed) = self.closed_to(lane, group, leased) {
            closed
        } else if weight == 0 {
            Cause::ZeroWeight
        } else if weight > self.largest(lane) {
            Cause::TooLarge { limit: self.largest(lane) }
        } else if deadline <= self.clock {
            Cause::Deadline
        } else {
            let newcomer = self.last_id + 1;
            let own_turn = self.head(lane).is_none();
            if !own_turn || !self.fits_limit(lane, weight) || !self.fits(lane, weight) {
                return Attempt::Wait;
            }
            if !self.within_reservation(lane, weight) {
                if !self.may_pass(newcomer) {
                    return Attempt::Wait;
                }
                self.pass(newcomer);
            }
            self.last_id = newcomer;
            self.held.push(Held { id: newcomer, lane, weight });
            self.count_grant(lane);
            return Attempt::Granted;
        };
        self.count_refusal(lane, cause);
        self.count_in_group(group, cause);
        Attempt::Refused(cause)
    }

    // ---- the calls ----

    pub(crate) fn try_acquire(&mut self, ask: &Ask) {
        self.settle();
        self.reply = Reply::Attempt(self.attempt(ask));
    }

    pub(crate) fn enter(&mut self, ask: &Ask) {
        self.settle();
        let Ask { lane, weight, group, leased, .. } = *ask;
        let deadline = self.deadline_of(ask);
        let mut reply = self.attempt(ask);
        if reply == Attempt::Wait {
            let Numbers { max_waiting, queue_timeout, .. } = self.numbers[lane];
            let cause = if queue_timeout == Some(0) {
                Some(Cause::Deadline)
            } else if !leased && self.unleased(lane) >= max_waiting {
                Some(Cause::QueueFull { max_waiting })
            } else {
                None
            };
            if let Some(cause) = cause {
                self.count_refusal(lane, cause);
                reply = Attempt::Refused(cause);
            } else {
                self.last_id += 1;
                let (id, since) = (self.last_id, self.clock);
                let fate = Fate::Waiting;
                self.waiters.push(Waiter {
                    id,
                    lane,
                    weight,
                    deadline,
                    group,
                    leased,
                    since,
                    passed: 0,
                    fate,
                });
            }
        }
        self.reply = Reply::Entered(reply);
    }

    pub(crate) fn release(&mut self, id: u64) {
        self.held.retain(|held| held.id != id);
        self.settle();
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        let at = self.waiters.iter().position(|w| w.id == id).expect("the id is of a waiter");
        let waiter = self.waiters.remove(at);
        if !matches!(waiter.fate, Fate::Refused(_)) {
            self.settle();
        }
    }

    pub(crate) fn refuse(&mut self, id: u64, cause: Cause) {
        self.refuse_waiter(id, cause);
        self.settle();
    }

    pub(crate) fn collect(&mut self, id: u64) {
        let at = self.waiters.iter().position(|w| w.id == id).expect("the id is of a waiter");
        let Waiter { id, lane, weight, fate, .. } = self.waiters.remove(at);
        if fate == Fate::Granted {
            self.held.push(Held { id, lane, weight });
        }
    }

    pub(crate) fn advance(&mut self) {
        self.settle();
    }

    pub(crate) fn resize(&mut self, capacity: u64, numbers: Vec<Numbers>) {
        self.settle();
        self.capacity = capacity;
        self.numbers = numbers;
        let waiting = self.waiters.iter().filter(|w| w.fate == Fate::Waiting);
        let too_large = waiting.filter(|w| w.weight > self.largest(w.lane));
        for (id, lane) in too_large.map(|w| (w.id, w.lane)).collect::<Vec<_>>() {
            self.refuse_waiter(id, Cause::TooLarge { limit: self.largest(lane) });
        }
        self.settle();
    }

    pub(crate) fn close_lane(&mut self, lane: usize) {
        if self.closed_cause(lane).is_some() {
            return;
        }
        self.closed_lanes[lane] = true;
        self.refuse_closed();
        self.settle();
    }

    pub(crate) fn close(&mut self) {
        self.closed = Some(Closed::Budget);
        self.refuse_closed();
    }

    /// Closed but for what comes under a lease.
    pub(crate) fn close_as_scope(&mut self) {
        self.settle();
        self.closed = self.closed.or(Some(Closed::Scope));
        self.refuse_closed();
        self.settle();
    }

    pub(crate) fn open_group(&mut self, deadline: u64) {
        let group = Group { deadline, closed: 0, let_go: false, others: 0, refused: 0 };
        self.groups.push(group);
    }

    pub(crate) fn close_group(&mut self, group: usize, leased: bool) {
        self.settle();
        let closed = &mut self.groups[group].closed;
        *closed = (*closed).max(1 + u8::from(leased));
        self.refuse_closed();
        self.settle();
    }

    /// Says whose deadline became earlier.
    pub(crate) fn tighten_group(&mut self, group: usize, deadline: u64) -> Vec<u64> {
        let earlier = deadline < self.groups[group].deadline;
        self.groups[group].deadline = self.groups[group].deadline.min(deadline);
        let mut changed = Vec::new();
        for waiter in self.waiters.iter_mut().filter(|w| earlier && w.group == Some(group)) {
            if waiter.fate == Fate::Waiting && deadline < waiter.deadline {
                waiter.deadline = deadline;
                changed.push(waiter.id);
            }
        }
        self.settle();
        changed
    }

    fn refuse_closed(&mut self) {
        let waiting = self.waiters.iter().filter(|w| w.fate == Fate::Waiting);
        let closed =
            waiting.filter_map(|w| Some((w.id, self.closed_to(w.lane, w.group, w.leased)?)));
        for (id, cause) in closed.collect::<Vec<_>>() {
            self.refuse_waiter(id, cause);
        }
    }
}

/// A deadline as the state takes it.
pub(crate) fn tick(at: u64) -> Tick {
    if at == NEVER { Tick::NEVER } else { Tick(at) }
}
