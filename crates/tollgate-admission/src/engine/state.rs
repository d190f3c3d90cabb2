//! The arithmetic of admission: no lock, no clock, no waker.
//!
//! The parts have their own: [`Room`] how much is free and for whom, [`Board`] which lane goes next and who may be
//! passed, [`Due`] when somebody's time is up, [`Groups`] what ends together. What is here is what must change at once:
//! lanes, their queues, and whoever moves from a queue to the settled.
//!
//! # Invariants
//!
//! They hold after every public call, whatever the order of calls:
//!
//! 1. What is out is the sum of what runs in the lanes; it exceeds the capacity only by the deficit that a shrink left.
//! 2. What runs in a lane exceeds its limit only after a shrink.
//! 3. No waiter that could be granted is left waiting: every call ends by settling whoever fits.
//! 4. A waiter is in exactly one [`Place`]; only `Waiting` ones are linked into a lane's queue and counted as waiting.
//! 5. What the room withholds is the sum over the lanes of what each withholds from others (see [`Withheld`]).
//! 6. The board shows every lane as it stands (see [`Standing`]).
//! 7. No queue timeout is met before the next one that is due, which is "never" when nobody waits and later than the
//!    latest reading once the due were settled: a moment that stayed in the past would have the timer call again and
//!    again.
//!
//! # Who goes next
//!
//! A lane's head stands in one of three places. It fits inside what is *kept* for its lane, so nobody else can have
//! taken it; or it fits inside the lane's *reservation*, and then competes only with what is kept for others; or it is a
//! *borrower*, and also leaves alone what is reserved for lanes whose own head fits inside their reservation. A head
//! that straddles its reservation is a borrower: were it protected, two such heads could wait for each other for ever.
//! Lanes within their reservation go first; then the earliest arrival that fits.

use super::board::{Board, Row, Standing};
use super::cause::Cause;
use super::class::Classes;
use super::due::Due;
use super::group::{Closing, Group, GroupId, GroupOwner, GroupStats, Groups, Told};
use super::room::{Room, Withheld};
use super::slab::{GROUP, Key, Links, List, NIL, Place, QUEUE, Slab, Slot};
use super::tick::Tick;
use crate::budget::config::{LaneConfig, effective_limits, validate};
use crate::error::{AcquireError, BuildError, Closed, TryAcquireError};
use crate::stats::{BudgetStats, LaneStats, Refused};
use std::sync::Arc;
use std::time::Duration;

/// Index of a lane in the order in which lanes were given at build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// What an acquire asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// A lane of this state.
    pub lane: LaneId,
    /// Permits, 1 or more.
    pub weight: u64,
    /// Latest moment at which the permit may still be granted.
    pub deadline: Tick,
    /// The group that it belongs to, if to any: its deadline counts too, and closing it refuses this.
    pub group: Option<GroupId>,
    /// What [`State::classes`] counts it under: small numbers, whose meaning is the engine's.
    pub class: u16,
    /// It comes under a drain lease: closing its group, or a state as [`Closed::Scope`], does not refuse it, and it waits
    /// for its turn however many wait.
    pub leased: bool,
}

impl Request {
    /// For `weight` permits of `lane`, without a deadline, a group or a lease.
    #[must_use]
    pub const fn new(lane: LaneId, weight: u64) -> Self {
        Request { lane, weight, deadline: Tick::NEVER, group: None, class: 0, leased: false }
    }

    /// What it is granted.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        Claim { lane: self.lane, weight: self.weight, group: self.group }
    }
}

/// What a permit takes, and gives back in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The lane that it came from.
    pub lane: LaneId,
    /// Permits.
    pub weight: u64,
    /// The group that it belongs to, if to any.
    pub group: Option<GroupId>,
}

/// The fate of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds a permit, which its owner must release.
    Granted,
    /// It holds nothing.
    Refused(Cause),
}

/// What [`State::try_acquire`] decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The permit is out.
    Granted,
    /// It would have to wait. Nothing was counted.
    Wait,
    /// Refused, and counted.
    Refused(Cause),
}

/// What [`State::enter`] decided. A waiter that was not queued is handed back.
#[derive(Debug, PartialEq, Eq)]
pub enum Entered<W> {
    /// The permit is out.
    Granted(W),
    /// Queued under this key.
    Queued(Key),
    /// Refused, and counted.
    Refused(Cause, W),
}

/// A waiter whose fate is decided, as [`State::announce`] shows it. Unless it is [taken](Self::take), it stays under its
/// key until its owner collects it.
#[derive(Debug)]
pub struct Settled<'a, W> {
    waiters: &'a mut Slab<W>,
    index: u32,
    outcome: Outcome,
}

impl<W> Settled<'_, W> {
    /// Its key.
    pub fn key(&self) -> Key {
        self.waiters.key(self.index)
    }

    /// What was decided. Whoever takes a waiter that was granted answers for the permit.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// When it was queued.
    pub fn since(&self) -> Tick {
        self.waiters[self.index].since
    }

    /// What waits; `None` if it was taken before.
    pub fn waiter(&mut self) -> Option<&mut W> {
        self.waiters[self.index].waiter.as_mut()
    }

    /// Takes it out and frees its place.
    pub fn take(self) -> Option<W> {
        self.waiters.remove(self.index)
    }
}

/// Where a waiter stands, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Still in its queue.
    Waiting,
    /// Decided.
    Settled(Outcome),
    /// The key outlived its waiter.
    Gone,
}

#[derive(Debug)]
// What changes with every permit fills the first cache line; what is only read, and what changes seldom, has others. A
// lock that moves from core to core takes along the lines that are written under it.
#[repr(C, align(64))]
struct Lane {
    running: u64,
    waiting: usize,
    queue: List<QUEUE>,
    withheld: Withheld,
    peak: u64,
    admitted: u64,
    /// The largest weight that could ever be granted: the limit, and what others do not keep.
    ceiling: u64,
    config: LaneConfig,
    closed: Option<Closed>,
    /// Those of `waiting` that came under a lease: the bound is not for them.
    leased: usize,
    refused: Refused,
}

impl Lane {
    fn new(config: LaneConfig, ceiling: u64) -> Self {
        let withheld = Withheld { kept: config.kept, protected: config.kept };
        Lane {
            config,
            ceiling,
            closed: None,
            leased: 0,
            running: 0,
            waiting: 0,
            queue: List::new(),
            withheld,
            peak: 0,
            admitted: 0,
            refused: Refused::default(),
        }
    }

    /// Whether it takes part, in a state that is closed as this.
    #[inline]
    fn is_open(&self, closed: Option<Closed>) -> bool {
        self.closed.is_none() && matches!(closed, None | Some(Closed::Scope))
    }

    #[inline]
    fn standing_of(&self, weight: u64) -> Standing {
        if weight > self.config.limit.saturating_sub(self.running) {
            Standing::Out
        } else if weight <= self.config.kept.saturating_sub(self.running) {
            Standing::Kept
        } else if weight <= self.config.reserved.saturating_sub(self.running) {
            Standing::Reserved
        } else {
            Standing::Borrowing
        }
    }
}

/// A budget, its lanes and whoever waits, generic over what waits.
///
/// Every method that takes `now` calls it at most once, and only when a deadline has to be compared or a waiter is
/// queued. A reading that is earlier than a former one counts as the former one.
#[derive(Debug)]
pub struct State<W> {
    room: Room,
    closed: Option<Closed>,
    latest: Tick,
    arrivals: u64,
    waiting: usize,
    lanes: Vec<Lane>,
    waiters: Slab<W>,
    /// Decided, not yet announced.
    settled: List<QUEUE>,
    /// Lanes that were closed while they had waiters.
    refusing: Vec<u32>,
    /// In the last of these, the last waiter that was looked at and waits on; [`NIL`] before the first. Those before it need
    /// no second look, which would cost as many for each that is refused.
    spared: u32,
    board: Board,
    due: Due,
    /// Closed as [`Closed::Scope`], to what comes under a lease too.
    leases_over: bool,
    groups: Groups,
    classes: Classes,
    /// Groups that were closed while somebody waited in them.
    refusing_groups: Vec<GroupId>,
}

impl<W> State<W> {
    /// A state in which nothing runs and nobody waits.
    ///
    /// # Errors
    ///
    /// What [`BuildError`] lists.
    pub fn new(capacity: u64, lanes: Vec<LaneConfig>, max_bypass: u32) -> Result<Self, BuildError> {
        validate(capacity, &lanes)?;
        let ceilings = effective_limits(capacity, &lanes);
        let count = lanes.len();
        let kept = lanes.iter().map(|lane| lane.kept).sum();
        Ok(State {
            room: Room::new(capacity, kept),
            closed: None,
            latest: Tick::ZERO,
            arrivals: 0,
            waiting: 0,
            lanes: lanes
                .into_iter()
                .zip(ceilings)
                .map(|(lane, max)| Lane::new(lane, max))
                .collect(),
            waiters: Slab::new(),
            settled: List::new(),
            refusing: Vec::new(),
            spared: NIL,
            board: Board::new(count, max_bypass),
            due: Due::new(count),
            leases_over: false,
            groups: Groups::default(),
            classes: Classes::default(),
            refusing_groups: Vec::new(),
        })
    }

    /// Permits that may be out at once.
    pub fn capacity(&self) -> u64 {
        self.room.capacity()
    }

    /// Permits that are out, those handed to waiters that have not looked yet included.
    pub fn out(&self) -> u64 {
        self.room.out()
    }

    /// The latest reading of the clock that it was given; [`Tick::ZERO`] before the first.
    #[inline]
    pub fn latest(&self) -> Tick {
        self.latest
    }

    /// Waiters in all queues.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Number of lanes; their ids are `0..lanes()`.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The lane with this name.
    pub fn lane(&self, name: &str) -> Option<LaneId> {
        let index = self.lanes.iter().position(|lane| &*lane.config.name == name)?;
        Some(LaneId(index as u32))
    }

    /// What `lane` is configured to at this moment.
    pub fn config(&self, lane: LaneId) -> &LaneConfig {
        &self.lanes[lane.0 as usize].config
    }

    /// Why the whole budget admits nothing, if it is closed.
    pub fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Closed, nobody waits and every permit is back. It stays so.
    pub fn is_drained(&self) -> bool {
        self.closed.is_some() && self.room.out() == 0 && self.waiting == 0
    }

    /// Whether a waiter under this request would need a timer to be told in time.
    pub fn needs_timer(&self, request: &Request) -> bool {
        self.deadline_of(request) != Tick::NEVER
            || self.config(request.lane).queue_timeout.is_some()
    }

    /// No waiter's time is up before this; [`Tick::NEVER`] when none is timed. Call [`advance`](Self::advance) then: it
    /// settles whose time is up, or finds that who had to leave then has left, and this moves on to a later moment.
    #[inline]
    pub fn next_deadline(&self) -> Tick {
        self.due.next()
    }

    #[inline]
    fn is_open(&self, index: usize) -> bool {
        self.lanes[index].is_open(self.closed)
    }

    fn read(&mut self, now: impl FnOnce() -> Tick) -> Tick {
        self.latest = self.latest.max(now());
        self.latest
    }

    /// The earliest of a request's own deadline and its group's.
    #[inline]
    pub fn deadline_of(&self, request: &Request) -> Tick {
        match request.group.and_then(|group| self.groups.get(group)) {
            Some(group) => request.deadline.min(group.deadline),
            None => request.deadline,
        }
    }

    /// Why a request is admitted nothing, if it is not: its lane, its group or the whole state is closed to it.
    #[inline]
    pub fn closed_to(&self, request: &Request) -> Option<Closed> {
        let closed = self.lanes[request.lane.0 as usize].closed.or(self.closed);
        if closed.is_some_and(|what| what != Closed::Scope || !self.admits(request.leased)) {
            return closed;
        }
        // one that is gone admits nothing
        let group = self.groups.get(request.group?);
        group.is_none_or(|group| group.refuses(request.leased)).then_some(Closed::Scope)
    }

    /// Closed as [`Closed::Scope`]: whether what comes under a lease, or does not, is admitted nevertheless.
    #[inline]
    fn admits(&self, leased: bool) -> bool {
        leased && !self.leases_over
    }

    /// Takes a permit if that is possible without waiting and without passing a waiter of the lane.
    ///
    /// O(log lanes); O(1) when nobody waits.
    #[inline]
    pub fn try_acquire(&mut self, request: &Request, now: impl FnOnce() -> Tick) -> Attempt {
        let deadline = self.deadline_of(request);
        if deadline != Tick::NEVER || self.due.is_any() {
            let now = self.read(now);
            self.settle_due(now);
        }
        self.attempt(request, deadline)
    }

    /// Decides a newcomer's fate; the due waiters were settled before.
    #[inline]
    fn attempt(&mut self, request: &Request, deadline: Tick) -> Attempt {
        let index = request.lane.0 as usize;
        let weight = request.weight;
        let closed = self.closed_to(request);
        let lane = &self.lanes[index];
        let cause = if let Some(closed) = closed {
            Cause::Closed(closed)
        } else if weight == 0 {
            Cause::ZeroWeight
        } else if weight > lane.ceiling {
            Cause::TooLarge { limit: lane.ceiling }
        } else if deadline <= self.latest && deadline != Tick::NEVER {
            Cause::Deadline
        } else {
            if !lane.queue.is_empty() {
                return Attempt::Wait;
            }
            let fits = match lane.standing_of(weight) {
                Standing::Out => false,
                Standing::Kept => weight <= self.room.free(),
                Standing::Reserved => weight - lane.withheld.kept <= self.room.unkept(),
                Standing::Borrowing => {
                    weight - lane.withheld.kept <= self.room.slack()
                        && self.board.pass(self.arrivals)
                }
            };
            if !fits {
                return Attempt::Wait;
            }
            self.take(index, weight);
            if let Some(group) = request.group {
                self.groups.take(group, weight);
            }
            return Attempt::Granted;
        };
        self.count_refused(request, cause);
        Attempt::Refused(cause)
    }

    /// Takes a permit, or queues `waiter`, or refuses.
    ///
    /// O(log lanes).
    #[inline]
    pub fn enter(
        &mut self,
        request: &Request,
        waiter: W,
        now: impl FnOnce() -> Tick,
    ) -> Entered<W> {
        let now = self.read(now);
        self.settle_due(now);
        let deadline = self.deadline_of(request);
        match self.attempt(request, deadline) {
            Attempt::Granted => return Entered::Granted(waiter),
            Attempt::Refused(cause) => return Entered::Refused(cause, waiter),
            Attempt::Wait => {}
        }
        let index = request.lane.0 as usize;
        let Lane { config: LaneConfig { max_waiting, queue_timeout, .. }, waiting, leased, .. } =
            self.lanes[index];
        let cause = if queue_timeout == Some(Duration::ZERO) {
            Some(Cause::Deadline)
        } else if waiting - leased >= max_waiting && !request.leased {
            Some(Cause::QueueFull { max_waiting })
        } else {
            None
        };
        if let Some(cause) = cause {
            self.count_refusal(request.lane, cause);
            return Entered::Refused(cause, waiter);
        }
        let arrival = self.arrivals;
        let inserted = self.waiters.insert(Slot {
            waiter: Some(waiter),
            generation: 0,
            lane: request.lane.0,
            links: [Links::NONE; 3],
            weight: request.weight,
            arrival,
            since: now,
            deadline,
            place: Place::Waiting,
            group: request.group,
            class: request.class,
            leased: request.leased,
        });
        let slot = inserted.expect("fewer than 2^32 - 1 waiters fit into memory");
        self.arrivals += 1;
        let lane = &mut self.lanes[index];
        let was_empty = lane.queue.is_empty();
        lane.queue.push(&mut self.waiters, slot);
        lane.waiting += 1;
        lane.leased += usize::from(request.leased);
        self.waiting += 1;
        let key = self.waiters.key(slot);
        self.due.add(deadline, key);
        self.link(slot, request);
        if was_empty {
            self.new_head(index);
        }
        Entered::Queued(key)
    }

    /// Returns a permit and hands it on.
    ///
    /// O(log lanes) per permit handed on; O(1) when nobody waits.
    #[inline]
    pub fn release(&mut self, claim: &Claim, now: impl FnOnce() -> Tick) {
        let Claim { lane, weight, group } = *claim;
        let index = lane.0 as usize;
        debug_assert!(weight <= self.lanes[index].running, "a permit came back twice");
        self.room.give_back(weight);
        self.lanes[index].running -= weight;
        if let Some(group) = group {
            self.groups.give_back(group, weight);
        }
        self.rebalance(index);
        self.settle_with(now);
    }

    /// Settles everybody whose time is up at `now`, and whoever fits then.
    ///
    /// O(log lanes) per waiter that is settled.
    pub fn advance(&mut self, now: Tick) {
        let now = self.read(|| now);
        self.settle_due(now);
    }

    /// Takes a waiter out, whatever its fate: one that waits leaves its queue in O(1) (amortised when it had a
    /// deadline of its own), and the permit of one that was granted is handed on. What waited is handed back, so that
    /// it can be dropped outside the lock.
    pub fn cancel(&mut self, key: Key, now: impl FnOnce() -> Tick) -> Option<W> {
        let slot = self.waiters.get(key)?;
        let claim = Claim { lane: LaneId(slot.lane), weight: slot.weight, group: slot.group };
        match slot.place {
            Place::Free => None,
            Place::Waiting => {
                self.unqueue(key.index);
                let waiter = self.waiters.remove(key.index);
                self.settle_with(now);
                waiter
            }
            Place::Settled(outcome) | Place::Announced(outcome) => {
                let waiter = self.forget(key.index);
                if outcome == Outcome::Granted {
                    self.release(&claim, now);
                }
                waiter
            }
        }
    }

    /// Refuses a waiter for a reason that the state does not know of. `false` when it was settled before.
    pub fn refuse(&mut self, key: Key, cause: Cause, now: impl FnOnce() -> Tick) -> bool {
        let waits = self.waiters.get(key).is_some_and(|slot| slot.place == Place::Waiting);
        if waits {
            self.settle(key.index, Outcome::Refused(cause));
            self.settle_with(now);
        }
        waits
    }

    /// Where a waiter stands.
    pub fn status(&self, key: Key) -> Status {
        match self.waiters.get(key).map(|slot| slot.place) {
            None | Some(Place::Free) => Status::Gone,
            Some(Place::Waiting) => Status::Waiting,
            Some(Place::Settled(outcome) | Place::Announced(outcome)) => Status::Settled(outcome),
        }
    }

    /// Frees the slot of a waiter that is settled and says what became of it; its owner now answers for the permit.
    pub fn collect(&mut self, key: Key) -> Option<(Outcome, Option<W>)> {
        let Status::Settled(outcome) = self.status(key) else { return None };
        Some((outcome, self.forget(key.index)))
    }

    /// Whether [`next_settled`](Self::next_settled) has something to tell.
    #[inline]
    pub fn has_settled(&self) -> bool {
        !self.settled.is_empty() || !self.refusing.is_empty() || !self.refusing_groups.is_empty()
    }

    /// When the waiter under `key` was queued; [`Tick::ZERO`] when it is gone.
    pub fn since(&self, key: Key) -> Tick {
        self.waiters.get(key).map_or(Tick::ZERO, |slot| slot.since)
    }

    /// The largest weight that `lane` could ever grant as things are configured.
    pub fn largest(&self, lane: LaneId) -> u64 {
        self.lanes[lane.0 as usize].ceiling
    }

    /// What waits under `key`.
    pub fn waiter_mut(&mut self, key: Key) -> Option<&mut W> {
        self.waiters.get(key)?;
        self.waiters[key.index].waiter.as_mut()
    }

    /// The next waiter that was settled and has not been announced. The owner of the lock calls this until `None`,
    /// now or after it has unlocked in between, and tells each one outside the lock.
    #[inline]
    pub fn next_settled(&mut self) -> Option<(Key, Outcome)> {
        self.announce().map(|settled| (settled.key(), settled.outcome()))
    }

    /// Like [`next_settled`](Self::next_settled), with access to the waiter, and the choice to take it out at once.
    #[inline]
    pub fn announce(&mut self) -> Option<Settled<'_, W>> {
        if self.settled.is_empty() && !self.settle_refused() {
            return None;
        }
        let index = self.settled.head;
        self.settled.unlink(&mut self.waiters, index);
        let slot = &mut self.waiters[index];
        let Place::Settled(outcome) = slot.place else {
            unreachable!("only settled waiters are in the list of the settled")
        };
        slot.place = Place::Announced(outcome);
        Some(Settled { waiters: &mut self.waiters, index, outcome })
    }

    /// Admits nothing more. Whoever waits is refused as `closed`, through [`next_settled`](Self::next_settled).
    ///
    /// O(lanes). The first reason given stays, but for [`Closed::Scope`]: closed as that, the state still admits what
    /// comes under a lease.
    pub fn close(&mut self, closed: Closed) {
        if self.closed.is_some_and(|what| what != Closed::Scope || closed == what) {
            return;
        }
        self.closed = Some(closed);
        for index in 0..self.lanes.len() {
            self.withdraw(index);
        }
    }

    /// [Closes](Self::close) as [`Closed::Scope`], to what comes under a lease too. O(lanes).
    pub fn close_to_leases(&mut self) {
        self.close(Closed::Scope);
        self.leases_over = true;
        if self.closed == Some(Closed::Scope) {
            (0..self.lanes.len()).for_each(|index| self.withdraw(index));
        }
    }

    /// Admits nothing more in this lane, for good. What it had reserved is open to the others.
    ///
    /// O(lanes). The first reason given stays, that of the whole state included.
    pub fn close_lane(&mut self, lane: LaneId, closed: Closed, now: impl FnOnce() -> Tick) {
        let index = lane.0 as usize;
        if !self.is_open(index) {
            return;
        }
        self.lanes[index].closed = Some(closed);
        self.withdraw(index);
        self.recompute_ceilings();
        self.settle_with(now);
    }

    /// Changes capacity and lanes; all or nothing. Permits that are out stay valid. Waiters that can never be granted
    /// any more are refused as too large, through [`next_settled`](Self::next_settled).
    ///
    /// O(lanes), and O(waiters) in lanes whose largest possible weight went down.
    ///
    /// # Errors
    ///
    /// What [`BuildError`] lists; nothing has changed then.
    pub fn resize(
        &mut self,
        capacity: u64,
        lanes: Vec<LaneConfig>,
        now: impl FnOnce() -> Tick,
    ) -> Result<(), BuildError> {
        assert_eq!(lanes.len(), self.lanes.len(), "lanes are neither added nor removed");
        validate(capacity, &lanes)?;
        let now = self.read(now);
        // whose time is up leaves as such, not as too large
        self.settle_due(now);
        self.room.resize(capacity);
        for (lane, config) in self.lanes.iter_mut().zip(lanes) {
            lane.config = config;
        }
        let before: Vec<u64> = self.lanes.iter().map(|lane| lane.ceiling).collect();
        self.recompute_ceilings();
        for (index, before) in before.into_iter().enumerate() {
            if self.lanes[index].ceiling < before {
                self.refuse_too_large(index);
            }
            self.refresh(index);
            self.refresh_timeout(index);
        }
        self.settle_due(now);
        Ok(())
    }

    // ---- groups ----

    /// Opens a group. It lives until it is [let go](Self::let_go) and nothing in it is left.
    pub fn open_group(&mut self, owner: Arc<dyn GroupOwner>, deadline: Tick) -> GroupId {
        self.groups.open(owner, deadline)
    }

    /// Admits nothing more in this group, but for what comes under a lease, unless `leased` closes it to that too. Who
    /// waits in it is refused as [`Closed::Scope`], through [`next_settled`](Self::next_settled), and who stood behind
    /// them and fits is granted: [`advance`](Self::advance) first, so that nobody is whose time is up.
    ///
    /// O(1), and for each waiter that is told O(log lanes).
    pub fn close_group(&mut self, group: GroupId, leased: bool) {
        let closing = if leased { Closing::Closed } else { Closing::Draining };
        self.groups.close(group, closing);
        if self.groups.get(group).is_some_and(|group| group.first_refused() != NIL) {
            self.refusing_groups.push(group);
        }
    }

    /// Makes the group's deadline earlier, for those who wait too; calls `tell` with each of them whose deadline that
    /// changes. A later one changes nothing.
    ///
    /// O(waiters of the group x log(waiters)).
    pub fn tighten_group(&mut self, group: GroupId, deadline: Tick, mut tell: impl FnMut(&W)) {
        let Some(it) = self.groups.get_mut(group).filter(|it| deadline < it.deadline) else {
            return;
        };
        it.deadline = deadline;
        for queue in it.queues {
            let mut next = queue.head;
            while next != NIL {
                let key = self.waiters.key(next);
                let after = List::<GROUP>::after(&self.waiters, next);
                let slot = &mut self.waiters[next];
                next = after;
                if deadline < slot.deadline {
                    self.due.tighten(slot.deadline, deadline, key);
                    slot.deadline = deadline;
                    slot.waiter.as_ref().map(&mut tell);
                }
            }
        }
        let waiters = &self.waiters;
        self.due.sweep(|deadline, key| has_deadline(waiters, deadline, key));
    }

    /// What runs in the group was asked to stop, and what starts in it is to be; work under a lease only if `leased` says
    /// so.
    pub fn ask_group(&mut self, group: GroupId, leased: bool) {
        if let Some(group) = self.groups.get_mut(group) {
            let [plain, under_lease] = &mut group.asked;
            *plain = true;
            *under_lease |= leased;
        }
    }

    /// Whether what starts in the group, under a lease or not, is to be asked to stop.
    #[inline]
    pub fn is_asked(&self, group: GroupId, leased: bool) -> bool {
        self.groups.get(group).is_some_and(|group| group.asked[usize::from(leased)])
    }

    /// Nobody will enter the group any more.
    pub fn let_go(&mut self, group: GroupId) {
        self.groups.let_go(group);
    }

    /// Counts something in the group that is neither a waiter nor a permit, such as a refused job that has not ended.
    pub fn join(&mut self, group: GroupId) {
        self.groups.join(group);
    }

    /// Ends what [`join`](Self::join) counted.
    pub fn leave(&mut self, group: GroupId) {
        self.groups.leave(group);
    }

    /// What is in a group.
    pub fn group_stats(&self, group: GroupId) -> GroupStats {
        self.groups.stats(group)
    }

    /// What waits in a group. O(waiters of the group).
    pub fn waiting_in(&self, group: GroupId) -> impl Iterator<Item = (LaneId, Tick, &W)> {
        let queues = self.groups.get(group).map_or([List::new(); 2], |group| group.queues);
        queues
            .into_iter()
            .flat_map(move |queue| {
                let mut next = queue.head;
                std::iter::from_fn(move || {
                    let slot = (next != NIL).then(|| &self.waiters[next])?;
                    next = List::<GROUP>::after(&self.waiters, next);
                    Some(slot)
                })
            })
            .filter_map(|slot| slot.waiter.as_ref().map(|it| (LaneId(slot.lane), slot.since, it)))
    }

    /// Whether [`next_told`](Self::next_told) may have something.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.groups.has_news()
    }

    /// What the owner of a group is to be told. The owner of the lock calls this until `None`, once nothing more is
    /// settled, and tells outside the lock.
    #[inline]
    pub fn next_told(&mut self) -> Option<Told> {
        self.groups.next_told()
    }

    /// Puts a waiter last among those of its group and its class.
    #[inline]
    fn link(&mut self, index: u32, request: &Request) {
        if let Some(group) = request.group.and_then(|group| self.groups.get_mut(group)) {
            group.waiting += 1;
            group.queues[usize::from(request.leased)].push(&mut self.waiters, index);
        }
        self.classes.push(&mut self.waiters, request.class, index);
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let Slot { group, class, leased, .. } = self.waiters[index];
        self.classes.remove(&mut self.waiters, class, index);
        if let Some(group) = group {
            let waiters = &mut self.waiters;
            self.groups.change(group, |group| {
                group.waiting -= 1;
                group.queues[usize::from(leased)].unlink(waiters, index);
            });
        }
    }

    /// How many wait under each class, and since when the first of them does. O(classes).
    pub fn classes(&self) -> impl Iterator<Item = (usize, Option<Tick>)> {
        self.classes.iter(&self.waiters)
    }

    /// The configurations of all lanes, to change some and give them to [`resize`](Self::resize).
    pub fn configs(&self) -> Vec<LaneConfig> {
        self.lanes.iter().map(|lane| lane.config.clone()).collect()
    }

    /// Counts a refusal of this request that was decided outside, for its group too.
    pub fn count_refused(&mut self, request: &Request, cause: Cause) {
        self.count_refusal(request.lane, cause);
        if let (Cause::Closed(Closed::Scope), Some(group)) = (cause, request.group) {
            self.groups.count_refusal(group);
        }
    }

    /// Counts a refusal that was decided outside.
    pub fn count_refusal(&mut self, lane: LaneId, cause: Cause) {
        self.lanes[lane.0 as usize].refused.count(cause);
    }

    /// The public error for a refusal of an acquire.
    pub fn acquire_error(&self, request: &Request, cause: Cause) -> AcquireError {
        cause.acquire_error(Arc::clone(&self.config(request.lane).name), request.weight)
    }

    /// The public error for an attempt that was refused, or would have had to wait.
    pub fn try_acquire_error(&self, request: &Request, cause: Cause) -> TryAcquireError {
        cause.try_acquire_error(Arc::clone(&self.config(request.lane).name), request.weight)
    }

    /// One consistent copy of every figure.
    ///
    /// O(lanes). Waiters whose time is up by `now` are settled first, so that they are not shown as waiting.
    pub fn stats(&mut self, now: Tick) -> BudgetStats {
        self.advance(now);
        BudgetStats {
            capacity: self.room.capacity(),
            available: self.room.free(),
            deficit: self.room.deficit(),
            closed: self.closed,
            lanes: self.lanes.iter().map(|lane| self.lane_stats(lane)).collect(),
        }
    }

    fn lane_stats(&self, lane: &Lane) -> LaneStats {
        let head = lane.queue.head;
        LaneStats {
            name: Arc::clone(&lane.config.name),
            running: lane.running,
            borrowed: lane.running.saturating_sub(lane.config.reserved),
            waiting: lane.waiting,
            oldest_wait: (head != NIL).then(|| self.latest.since(self.waiters[head].since)),
            peak: lane.peak,
            admitted: lane.admitted,
            refused: lane.refused,
            closed: lane.closed,
        }
    }

    /// A part of those who wait, for a copy in steps: lane, since when, and what waits, of `count` places from the one
    /// numbered `at`, in no order; and where the next part begins. Who waits throughout is seen once. O(count).
    pub fn queued_from(
        &self,
        at: usize,
        count: usize,
    ) -> (Option<usize>, impl Iterator<Item = (LaneId, Tick, &W)>) {
        let (next, part) = self.waiters.part(at, count);
        (next, part.filter_map(Slot::waiting))
    }

    // ---- what the public calls are made of ----

    #[inline]
    fn take(&mut self, index: usize, weight: u64) {
        self.room.take(weight);
        let lane = &mut self.lanes[index];
        lane.running += weight;
        lane.peak = lane.peak.max(lane.running);
        lane.admitted += 1;
        self.rebalance(index);
    }

    /// What ran in a lane changed: with a queue its head may stand elsewhere now, and what it keeps has changed.
    #[inline]
    fn rebalance(&mut self, index: usize) {
        let lane = &self.lanes[index];
        if !lane.queue.is_empty() || lane.config.kept > 0 {
            self.refresh(index);
        }
    }

    /// The lane's head is another one than before.
    fn new_head(&mut self, index: usize) {
        self.board.new_head(index);
        self.refresh(index);
        self.refresh_timeout(index);
    }

    /// Recomputes where a lane stands and what it withholds, after anything these depend on changed.
    fn refresh(&mut self, index: usize) {
        let lane = &self.lanes[index];
        let open = self.is_open(index);
        let kept = if open { lane.config.kept.saturating_sub(lane.running) } else { 0 };
        let (mut row, mut protected) = (Row::OUT, kept);
        if open && !lane.queue.is_empty() {
            let head = &self.waiters[lane.queue.head];
            let standing = lane.standing_of(head.weight);
            let need = match standing {
                Standing::Out | Standing::Kept => head.weight,
                Standing::Reserved | Standing::Borrowing => head.weight - kept,
            };
            if matches!(standing, Standing::Kept | Standing::Reserved) {
                protected = lane.config.reserved - lane.running;
            }
            if standing != Standing::Out {
                row = Row::new(standing, head.arrival, need);
            }
        }
        let withheld = Withheld { kept, protected };
        self.room.withhold(lane.withheld, withheld);
        self.lanes[index].withheld = withheld;
        self.board.set(index, row);
    }

    /// Recomputes when the lane's queue timeout is due, after its head or its configuration changed.
    fn refresh_timeout(&mut self, index: usize) {
        let lane = &self.lanes[index];
        let due = match lane.config.queue_timeout {
            Some(span) if !lane.queue.is_empty() && self.is_open(index) => {
                self.waiters[lane.queue.head].since.after(span)
            }
            _ => Tick::NEVER,
        };
        self.due.set_timeout(index, due);
    }

    #[inline]
    fn settle_with(&mut self, now: impl FnOnce() -> Tick) {
        if self.waiting == 0 {
            return;
        }
        if self.due.is_any() {
            let now = self.read(now);
            self.settle_due(now);
        } else {
            self.settle_fitting();
        }
    }

    /// Refuses whose time is up, then grants whoever fits.
    fn settle_due(&mut self, now: Tick) {
        if self.waiting == 0 {
            return;
        }
        if self.due.may_time_out(now) {
            self.settle_timeouts(now);
        }
        while let Some(index) = self.pop_due(now) {
            self.settle(index, Outcome::Refused(Cause::Deadline));
        }
        self.settle_fitting();
    }

    /// Refuses whoever met a queue timeout. O(lanes), once per moment that was the next one: heads that leave in time
    /// never raise that moment, so it is reached at most about once per queue timeout.
    #[cold]
    fn settle_timeouts(&mut self, now: Tick) {
        let mut least = Tick::NEVER;
        for lane in 0..self.lanes.len() {
            let mut due = self.due.timeout(lane);
            // a clock may show "never", at which nobody's time is up
            while due <= now && due != Tick::NEVER {
                self.settle(self.lanes[lane].queue.head, Outcome::Refused(Cause::Deadline));
                due = self.due.timeout(lane);
            }
            least = least.min(due);
        }
        self.due.raise_timeouts(least);
    }

    #[inline]
    fn pop_due(&mut self, now: Tick) -> Option<u32> {
        let State { due, waiters, lanes, closed, .. } = self;
        // who is refused as closed, and only has not been told, is not refused as late
        let key = due.pop(now, |key| {
            waiters.get(key).is_some_and(|slot| {
                slot.place == Place::Waiting && lanes[slot.lane as usize].is_open(*closed)
            })
        })?;
        Some(key.index)
    }

    fn settle_fitting(&mut self) {
        while self.waiting > 0 {
            let Some(lane) = self.next_lane() else { break };
            let head = self.lanes[lane].queue.head;
            let outcome = if self.is_refused(head) {
                Outcome::Refused(Cause::Closed(Closed::Scope))
            } else {
                Outcome::Granted
            };
            self.settle(head, outcome);
        }
    }

    /// Whether a waiter's scope was closed, and it has only not been told.
    #[inline]
    fn is_refused(&self, index: u32) -> bool {
        let slot = &self.waiters[index];
        let group = slot.group.and_then(|group| self.groups.get(group));
        let closed = self.closed == Some(Closed::Scope) && !self.admits(slot.leased);
        closed || group.is_some_and(|group| group.refuses(slot.leased))
    }

    #[inline]
    fn next_lane(&mut self) -> Option<usize> {
        let free = self.room.free();
        if free == 0 {
            return None;
        }
        let (lane, row) = self.board.next(free, self.room.unkept(), self.room.slack())?;
        (row.standing != Standing::Borrowing || self.board.pass(row.arrival)).then_some(lane)
    }

    /// Moves a waiter from its queue to the settled.
    fn settle(&mut self, index: u32, outcome: Outcome) {
        let slot = &self.waiters[index];
        let (lane, weight, group) = (slot.lane, slot.weight, slot.group);
        match outcome {
            // before the queue moves on, so that its next head is judged by what runs then
            Outcome::Granted => {
                self.take_for_head(lane as usize, weight);
                if let Some(group) = group {
                    self.groups.take(group, weight);
                }
            }
            Outcome::Refused(cause) => {
                self.count_refusal(LaneId(lane), cause);
                if let (Cause::Closed(Closed::Scope), Some(group)) = (cause, group) {
                    self.groups.count_refusal(group);
                }
            }
        }
        self.unqueue(index);
        self.waiters[index].place = Place::Settled(outcome);
        self.settled.push(&mut self.waiters, index);
    }

    /// Like `take`, but leaves the refresh to the change of head that follows.
    #[inline]
    fn take_for_head(&mut self, index: usize, weight: u64) {
        self.room.take(weight);
        let lane = &mut self.lanes[index];
        lane.running += weight;
        lane.peak = lane.peak.max(lane.running);
        lane.admitted += 1;
    }

    /// Takes a waiter out of its queue and out of every count.
    fn unqueue(&mut self, index: u32) {
        let Slot { leased, deadline, .. } = self.waiters[index];
        let lane_index = self.waiters[index].lane as usize;
        let waiters = &self.waiters;
        self.due.remove(deadline, |deadline, key| has_deadline(waiters, deadline, key));
        let lane = &mut self.lanes[lane_index];
        let was_head = lane.queue.head == index;
        if self.spared == index {
            self.spared = List::<QUEUE>::before(&self.waiters, index);
        }
        lane.queue.unlink(&mut self.waiters, index);
        lane.waiting -= 1;
        lane.leased -= usize::from(leased);
        self.unlink(index);
        self.waiting -= 1;
        if was_head {
            self.new_head(lane_index);
        }
        if self.waiting == 0 {
            // nobody comes by to raise it when it is reached
            self.due.raise_timeouts(Tick::NEVER);
        }
    }

    /// Frees a slot that is settled, announced or not.
    fn forget(&mut self, index: u32) -> Option<W> {
        if matches!(self.waiters[index].place, Place::Settled(_)) {
            self.settled.unlink(&mut self.waiters, index);
        }
        self.waiters.remove(index)
    }

    /// A lane takes no more part; its waiters are refused one by one as they are announced.
    fn withdraw(&mut self, index: usize) {
        self.refresh(index);
        self.refresh_timeout(index);
        if !self.lanes[index].queue.is_empty() {
            self.refusing.push(index as u32);
        }
        self.spared = NIL;
    }

    /// Settles one waiter of a closed lane or group. One at a time, so that closing a long queue never holds the lock for
    /// long.
    fn settle_refused(&mut self) -> bool {
        while let Some(&index) = self.refusing.last() {
            let lane = &self.lanes[index as usize];
            let closed = lane.closed.or(self.closed);
            let mut next = match self.spared {
                NIL => lane.queue.head,
                spared => List::<QUEUE>::after(&self.waiters, spared),
            };
            while closed == Some(Closed::Scope) && next != NIL && !self.is_refused(next) {
                self.spared = next;
                next = List::<QUEUE>::after(&self.waiters, next);
            }
            if let Some(closed) = closed
                && next != NIL
            {
                self.settle(next, Outcome::Refused(Cause::Closed(closed)));
                return true;
            }
            self.refusing.pop();
            self.spared = NIL;
            // some of the refused may have stood before somebody under a lease who fits
            if self.refusing.is_empty() && self.settle_behind() {
                return true;
            }
        }
        while let Some(&group) = self.refusing_groups.last() {
            let next = self.groups.get(group).map_or(NIL, Group::first_refused);
            if next != NIL {
                self.settle(next, Outcome::Refused(Cause::Closed(Closed::Scope)));
                return true;
            }
            self.refusing_groups.pop();
            if self.refusing_groups.is_empty() && self.settle_behind() {
                return true;
            }
        }
        false
    }

    /// Grants whoever fits now that the refused have left. Only then, so that it is the earliest who does. Says whether
    /// there was somebody.
    fn settle_behind(&mut self) -> bool {
        self.settle_fitting();
        !self.settled.is_empty()
    }

    fn recompute_ceilings(&mut self) {
        let mut configs = self.configs();
        for (config, lane) in configs.iter_mut().zip(&self.lanes) {
            if lane.closed.is_some() {
                config.kept = 0;
            }
        }
        for (lane, ceiling) in
            self.lanes.iter_mut().zip(effective_limits(self.room.capacity(), &configs))
        {
            lane.ceiling = ceiling;
        }
    }

    fn refuse_too_large(&mut self, lane: usize) {
        if !self.is_open(lane) {
            return;
        }
        let limit = self.lanes[lane].ceiling;
        let mut index = self.lanes[lane].queue.head;
        while index != NIL {
            let next = List::<QUEUE>::after(&self.waiters, index);
            let weight = self.waiters[index].weight;
            if weight > limit {
                self.settle(index, Outcome::Refused(Cause::TooLarge { limit }));
            }
            index = next;
        }
    }
}

/// Whether the waiter under `key` is there, and its deadline is this one.
fn has_deadline<W>(waiters: &Slab<W>, deadline: Tick, key: Key) -> bool {
    let slot = waiters.get(key);
    slot.is_some_and(|slot| slot.place == Place::Waiting && slot.deadline == deadline)
}
