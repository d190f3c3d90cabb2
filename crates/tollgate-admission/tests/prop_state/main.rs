//! The state machine under random sequences of calls, compared after each with a naive model of the rules.
//!
//! Waiters are announced lazily, as an engine may: some stay settled but untold, and those of a closed lane stay queued
//! until they are told, while other calls come in between.

mod model;

use model::{Ask, Fate, Model, NEVER, Numbers, Reply, configs, tick};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest::test_runner::{Config, FileFailurePersistence};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tollgate_admission::engine::{
    Attempt, Cause, Claim, Entered, GroupId, GroupOwner, GroupStats, Key, LaneId, Outcome, Request,
    State, Status, Tick,
};
use tollgate_admission::{BudgetStats, Closed, Refused};

#[derive(Clone, Debug)]
enum Transition {
    TryAcquire {
        ask: Ask,
    },
    /// The clock first shows its latest reading, then one that lies `back` before it.
    Enter {
        ask: Ask,
        back: u64,
    },
    Release {
        permit: u64,
    },
    Cancel {
        waiter: u64,
    },
    Refuse {
        waiter: u64,
    },
    Collect {
        waiter: u64,
    },
    /// Time passes, and nobody looks.
    Pass {
        span: u64,
    },
    Advance {
        back: u64,
    },
    Resize {
        capacity: u64,
        numbers: Vec<Numbers>,
    },
    CloseLane {
        lane: usize,
    },
    Close,
    /// For all but what comes under a lease; whoever is refused is told.
    CloseAsScope,
    OpenGroup {
        deadline: u64,
    },
    /// Whoever is refused is told.
    CloseGroup {
        group: usize,
        leased: bool,
    },
    TightenGroup {
        group: usize,
        deadline: u64,
    },
    LetGo {
        group: usize,
    },
    Join {
        group: usize,
    },
    Leave {
        group: usize,
    },
    Stats,
    /// Whoever is told leaves its place at once, or when it is collected.
    Announce {
        most: usize,
        take: bool,
    },
}

// ---- what is tried ----

/// With the second, sums that are not careful overflow.
const SCALES: [u64; 2] = [1, u64::MAX / 40];

fn scale_of(model: &Model) -> u64 {
    if model.capacity >= SCALES[1] { SCALES[1] } else { SCALES[0] }
}

/// A capacity and the numbers of `lanes` lanes that fit it.
fn numbers(lanes: usize, scale: u64) -> impl Strategy<Value = (u64, Vec<Numbers>)> {
    let lane = (
        prop_oneof![2 => Just(0_u64), 3 => 0_u64..6],
        prop_oneof![2 => Just(0_u64), 2 => 0_u64..6],
        prop_oneof![1 => Just(u64::MAX), 3 => 0_u64..12],
        prop_oneof![1 => Just(usize::MAX), 6 => 0_usize..7],
        prop_oneof![5 => Just(None), 1 => (0_u64..9).prop_map(Some)],
    );
    (1_u64..13, proptest::collection::vec(lane, lanes)).prop_map(move |(capacity, lanes)| {
        let mut unreserved = capacity;
        let lanes = lanes.into_iter().map(|(reserved, kept, over, max_waiting, queue_timeout)| {
            let reserved = reserved.min(unreserved);
            unreserved -= reserved;
            Numbers {
                reserved: reserved * scale,
                kept: kept.min(reserved) * scale,
                limit: match over {
                    u64::MAX => u64::MAX,
                    over => (reserved + over).max(1) * scale,
                },
                max_waiting,
                queue_timeout,
            }
        });
        let lanes = lanes.collect();
        (capacity * scale, lanes)
    })
}

fn deadline(clock: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => Just(NEVER),
        3 => (1_u64..12).prop_map(move |span| clock + span),
        1 => (0_u64..4).prop_map(move |span| clock.saturating_sub(span)),
    ]
}

fn request(model: &Model) -> impl Strategy<Value = Ask> + use<> {
    let (clock, scale) = (model.clock, scale_of(model));
    let weight = prop_oneof![
        20 => (1_u64..5).prop_map(move |weight| weight * scale),
        4 => (5_u64..16).prop_map(move |weight| weight * scale),
        1 => select(vec![0, 1, u64::MAX]),
    ];
    let mut groups = vec![None; 3];
    groups.extend(model.entered().into_iter().map(Some));
    let ask = (model.lanes(), weight, deadline(clock), select(groups), 0_u8..4);
    ask.prop_map(|(lane, weight, deadline, group, leased)| Ask {
        lane,
        weight,
        deadline,
        group,
        leased: leased == 0,
    })
}

/// Draws the calls, and makes them on the model.
struct Machine;

impl ReferenceStateMachine for Machine {
    type State = Model;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<Model> {
        let bypass = prop_oneof![4 => 0_u32..4, 1 => Just(u32::MAX)];
        // few and many lanes: the state keeps them differently
        let lanes = prop_oneof![4 => 1_usize..6, 1 => 9_usize..12];
        (lanes, select(SCALES.to_vec()), bypass)
            .prop_flat_map(|(lanes, scale, bypass)| (numbers(lanes, scale), Just(bypass)))
            .prop_map(|((capacity, numbers), bypass)| Model::new(capacity, numbers, bypass))
            .boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Transition> {
        let back = || prop_oneof![4 => Just(0_u64), 1 => 1_u64..20];
        let mut some = vec![
            (
                24,
                (request(model), back())
                    .prop_map(|(ask, back)| Transition::Enter { ask, back })
                    .boxed(),
            ),
            (6, request(model).prop_map(|ask| Transition::TryAcquire { ask }).boxed()),
            (6, (1_u64..5).prop_map(|span| Transition::Pass { span }).boxed()),
            (3, back().prop_map(|back| Transition::Advance { back }).boxed()),
            (
                2,
                numbers(model.numbers.len(), scale_of(model))
                    .prop_map(|(capacity, numbers)| Transition::Resize { capacity, numbers })
                    .boxed(),
            ),
            (1, model.lanes().prop_map(|lane| Transition::CloseLane { lane }).boxed()),
            (2, Just(Transition::Stats).boxed()),
            (
                12,
                (1_usize..6, any::<bool>())
                    .prop_map(|(most, take)| Transition::Announce { most, take })
                    .boxed(),
            ),
        ];
        if model.waiters.len() > 4 && model.clock > 20 {
            some.push((1, Just(Transition::Close).boxed()));
            some.push((1, Just(Transition::CloseAsScope).boxed()));
        }
        if model.groups.len() < 6 {
            let open =
                deadline(model.clock).prop_map(|deadline| Transition::OpenGroup { deadline });
            some.push((3, open.boxed()));
        }
        let groups = model.entered();
        if !groups.is_empty() {
            let group = || select(groups.clone());
            let close = (group(), 0_u8..3)
                .prop_map(|(group, leased)| Transition::CloseGroup { group, leased: leased == 0 });
            let tighten = (group(), deadline(model.clock))
                .prop_map(|(group, deadline)| Transition::TightenGroup { group, deadline });
            some.push((2, close.boxed()));
            some.push((2, tighten.boxed()));
            some.push((1, group().prop_map(|group| Transition::LetGo { group }).boxed()));
            some.push((1, group().prop_map(|group| Transition::Join { group }).boxed()));
        }
        let joined = (0..model.groups.len())
            .filter(|&group| model.groups[group].others > 0)
            .collect::<Vec<_>>();
        if !joined.is_empty() {
            some.push((2, select(joined).prop_map(|group| Transition::Leave { group }).boxed()));
        }
        let permits: Vec<u64> = model.held.iter().map(|held| held.id).collect();
        if !permits.is_empty() {
            some.push((
                18,
                select(permits).prop_map(|permit| Transition::Release { permit }).boxed(),
            ));
        }
        let all: Vec<u64> = model.waiters.iter().map(|w| w.id).collect();
        if !all.is_empty() {
            some.push((7, select(all).prop_map(|waiter| Transition::Cancel { waiter }).boxed()));
        }
        let waiting = model.waiters.iter().filter(|w| w.fate == Fate::Waiting).map(|w| w.id);
        let waiting: Vec<u64> = waiting.collect();
        if !waiting.is_empty() {
            some.push((
                1,
                select(waiting).prop_map(|waiter| Transition::Refuse { waiter }).boxed(),
            ));
        }
        let decided = model.waiters.iter().filter(|w| w.fate != Fate::Waiting).map(|w| w.id);
        let decided: Vec<u64> = decided.collect();
        if !decided.is_empty() {
            some.push((
                12,
                select(decided).prop_map(|waiter| Transition::Collect { waiter }).boxed(),
            ));
        }
        Union::new_weighted(some).boxed()
    }

    fn preconditions(model: &Model, transition: &Transition) -> bool {
        let fate = |id| model.waiters.iter().find(|w| w.id == id).map(|w| w.fate);
        match *transition {
            // shrinking may have left fewer lanes
            Transition::TryAcquire { ask } | Transition::Enter { ask, .. } => {
                let entered = |group| model.entered().contains(&group);
                model.lanes().contains(&ask.lane) && ask.group.is_none_or(entered)
            }
            Transition::CloseLane { lane } => model.lanes().contains(&lane),
            Transition::CloseGroup { group, .. }
            | Transition::TightenGroup { group, .. }
            | Transition::LetGo { group }
            | Transition::Join { group } => model.entered().contains(&group),
            Transition::Leave { group } => model.groups.get(group).is_some_and(|it| it.others > 0),
            Transition::Resize { ref numbers, .. } => numbers.len() == model.numbers.len(),
            Transition::Release { permit } => model.held.iter().any(|held| held.id == permit),
            Transition::Cancel { waiter } => fate(waiter).is_some(),
            Transition::Refuse { waiter } => fate(waiter) == Some(Fate::Waiting),
            Transition::Collect { waiter } => {
                fate(waiter).is_some_and(|fate| fate != Fate::Waiting)
            }
            _ => true,
        }
    }

    fn apply(mut model: Model, transition: &Transition) -> Model {
        model.reply = Reply::None;
        match *transition {
            Transition::TryAcquire { ref ask } => model.try_acquire(ask),
            Transition::Enter { ref ask, .. } => model.enter(ask),
            Transition::Release { permit } => model.release(permit),
            Transition::Cancel { waiter } => model.cancel(waiter),
            Transition::Refuse { waiter } => model.refuse(waiter, Cause::NoTimer),
            Transition::Collect { waiter } => model.collect(waiter),
            Transition::Pass { span } => model.clock += span,
            Transition::Advance { .. } | Transition::Stats => model.advance(),
            Transition::Resize { capacity, ref numbers } => {
                model.resize(capacity, numbers.clone());
            }
            Transition::CloseLane { lane } => model.close_lane(lane),
            Transition::Close => model.close(),
            Transition::CloseAsScope => model.close_as_scope(),
            Transition::OpenGroup { deadline } => model.open_group(deadline),
            Transition::CloseGroup { group, leased } => model.close_group(group, leased),
            Transition::TightenGroup { group, deadline } => {
                let changed = model.tighten_group(group, deadline);
                model.reply = Reply::Tightened(changed);
            }
            Transition::LetGo { group } => model.groups[group].let_go = true,
            Transition::Join { group } => model.groups[group].others += 1,
            Transition::Leave { group } => model.groups[group].others -= 1,
            Transition::Announce { .. } => {}
        }
        model
    }
}

// ---- the state under test, and its owner ----

#[derive(Clone, Copy, Debug)]
struct Mine {
    key: Key,
    claim: Claim,
    group: Option<usize>,
}

impl Mine {
    fn lane(&self) -> usize {
        self.claim.lane.0 as usize
    }
}

/// What the owner of a group was told.
#[derive(Debug, Default)]
struct Told(Mutex<(u32, Option<u64>)>);

impl GroupOwner for Told {
    fn idle(&self) {
        let mut told = self.0.lock().unwrap();
        assert_eq!(told.1, None, "it is gone");
        told.0 += 1;
    }
    fn gone(&self, refused: u64) {
        assert_eq!(self.0.lock().unwrap().1.replace(refused), None, "told twice");
    }
}

struct MyGroup {
    id: GroupId,
    told: Arc<Told>,
    /// How often it was told to be idle when it was looked at last.
    idle: u32,
}

/// The state, and what its owner has seen of it.
struct Owner {
    state: State<u64>,
    waiters: BTreeMap<u64, Mine>,
    permits: BTreeMap<u64, (Claim, Option<usize>)>,
    groups: Vec<MyGroup>,
    told: BTreeSet<u64>,
    /// Told, and out of their places.
    taken: BTreeMap<u64, Outcome>,
    last_id: u64,
    /// Per lane, the newest waiter that was told of its grant.
    last_granted: Vec<u64>,
    /// Per lane, the refusals that this owner saw happen.
    refused: Vec<Refused>,
    /// Per lane, waiters of a closed lane that left before they were told, so that no refusal happened.
    left_untold: Vec<u64>,
    before: Option<Seen>,
}

/// What an invariant compares a step with.
#[derive(Clone)]
struct Seen {
    out: u64,
    running: Vec<u64>,
    /// Idle capacity less what is kept idle: negative where a resize promised what is lent already.
    unkept: i128,
}

fn count(refused: &mut Refused, cause: Cause) {
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

fn lane_id(lane: usize) -> LaneId {
    LaneId(u32::try_from(lane).expect("few lanes"))
}

impl Owner {
    fn new(model: &Model) -> Self {
        let lanes = model.numbers.len();
        let state = State::new(model.capacity, configs(&model.numbers), model.max_bypass);
        Owner {
            state: state.expect("the numbers fit"),
            waiters: BTreeMap::new(),
            permits: BTreeMap::new(),
            groups: Vec::new(),
            told: BTreeSet::new(),
            taken: BTreeMap::new(),
            last_id: 0,
            last_granted: vec![0; lanes],
            refused: vec![Refused::default(); lanes],
            left_untold: vec![0; lanes],
            before: None,
        }
    }

    fn request(&self, ask: &Ask) -> Request {
        Request {
            deadline: tick(ask.deadline),
            group: ask.group.map(|group| self.groups[group].id),
            leased: ask.leased,
            ..Request::new(lane_id(ask.lane), ask.weight)
        }
    }

    fn grant(&mut self, ask: &Ask) {
        self.last_id += 1;
        let claim = self.request(ask).claim();
        self.permits.insert(self.last_id, (claim, ask.group));
    }

    fn enter(&mut self, ask: &Ask, now: Tick) -> Attempt {
        let (request, lane) = (&self.request(ask), ask.lane);
        let id = self.last_id + 1;
        match self.state.enter(request, id, || now) {
            Entered::Granted(back) => {
                assert_eq!(back, id);
                self.grant(ask);
                Attempt::Granted
            }
            Entered::Queued(key) => {
                self.last_id = id;
                self.waiters.insert(id, Mine { key, claim: request.claim(), group: ask.group });
                Attempt::Wait
            }
            Entered::Refused(cause, back) => {
                assert_eq!(back, id);
                count(&mut self.refused[lane], cause);
                Attempt::Refused(cause)
            }
        }
    }

    /// Whether the model has refused this waiter because its lane was closed.
    fn told_closed(&self, id: u64, model: &Model) -> bool {
        let fate = model.waiters.iter().find(|w| w.id == id).map(|w| w.fate);
        matches!(fate, Some(Fate::Refused(Cause::Closed(_))))
    }

    /// Whether this waiter's lane was closed and it has not been told.
    fn is_untold(&self, model_fate: Option<Fate>, key: Key) -> bool {
        matches!(model_fate, Some(Fate::Refused(Cause::Closed(_))))
            && self.state.status(key) == Status::Waiting
    }

    fn forget(&mut self, id: u64) -> Mine {
        self.told.remove(&id);
        self.waiters.remove(&id).expect("the id is of a waiter")
    }

    /// Where a waiter stands, in its place or out of it.
    fn status(&self, id: u64) -> Status {
        let status = self.state.status(self.waiters[&id].key);
        match self.taken.get(&id) {
            Some(&outcome) => {
                assert_eq!(status, Status::Gone, "a place was not freed");
                Status::Settled(outcome)
            }
            None => status,
        }
    }

    fn cancel(&mut self, id: u64, now: Tick) {
        let mine = self.forget(id);
        let (key, lane) = (mine.key, mine.lane());
        if let Some(outcome) = self.taken.remove(&id) {
            assert_eq!(self.state.cancel(key, || now), None, "an old key does nothing");
            match outcome {
                Outcome::Granted => self.state.release(&mine.claim, || now),
                Outcome::Refused(cause) => count(&mut self.refused[lane], cause),
            }
            return;
        }
        let before = self.state.status(key);
        // those of a scope are told at once
        let closed = self
            .state
            .closed_to(&Request::new(lane_id(lane), 1))
            .is_some_and(|it| it != Closed::Scope);
        // nothing is freed by one that was only not told yet, so the clock need not be read
        let untold = closed && before == Status::Waiting;
        let now = if untold { Tick::ZERO } else { now };
        assert_eq!(self.state.cancel(key, || now), Some(id), "cancel hands back what waited");
        assert_eq!(self.state.status(key), Status::Gone);
        assert_eq!(self.state.cancel(key, || now), None, "an old key does nothing");
        match before {
            Status::Settled(Outcome::Refused(cause)) => count(&mut self.refused[lane], cause),
            Status::Waiting if untold => self.left_untold[lane] += 1,
            Status::Waiting | Status::Settled(Outcome::Granted) => {}
            Status::Gone => panic!("a waiter was lost"),
        }
    }

    fn collect(&mut self, id: u64) {
        let key = self.waiters[&id].key;
        if self.status(id) == Status::Waiting {
            assert_eq!(self.state.collect(key), None, "whoever waits cannot be collected");
            self.announce(usize::MAX, false);
        }
        let mine = self.forget(id);
        let outcome = self.taken.remove(&id).unwrap_or_else(|| {
            let (outcome, waiter) = self.state.collect(key).expect("it is settled");
            assert_eq!(waiter, Some(id));
            outcome
        });
        assert_eq!(self.state.status(key), Status::Gone);
        assert_eq!(self.state.collect(key), None, "an old key does nothing");
        match outcome {
            Outcome::Granted => drop(self.permits.insert(id, (mine.claim, mine.group))),
            Outcome::Refused(cause) => count(&mut self.refused[mine.lane()], cause),
        }
    }

    fn announce(&mut self, most: usize, take: bool) {
        for _ in 0..most {
            let more = self.state.has_settled();
            let Some(mut settled) = self.state.announce() else {
                for &id in self.waiters.keys() {
                    let settled = matches!(self.status(id), Status::Settled(_));
                    assert_eq!(settled, self.told.contains(&id), "waiter {id}: told iff settled");
                }
                assert!(!self.state.has_settled());
                return;
            };
            assert!(more);
            let (key, outcome) = (settled.key(), settled.outcome());
            let id = *settled.waiter().expect("a settled waiter is there");
            assert_eq!(self.waiters[&id].key, key);
            assert!(self.told.insert(id), "waiter {id} was told twice");
            if take {
                assert_eq!(settled.take(), Some(id));
                self.taken.insert(id, outcome);
            }
            if outcome == Outcome::Granted {
                let last = &mut self.last_granted[self.waiters[&id].lane()];
                assert!(*last < id, "ADM-3: first come, first served within a lane");
                *last = id;
            }
        }
    }

    fn seen(&self, model: &Model) -> Seen {
        let mut running = vec![0; model.numbers.len()];
        for (claim, _) in self.permits.values() {
            running[claim.lane.0 as usize] += claim.weight;
        }
        for (&id, mine) in &self.waiters {
            if self.status(id) == Status::Settled(Outcome::Granted) {
                running[mine.lane()] += mine.claim.weight;
            }
        }
        let out: u64 = running.iter().sum();
        let kept_idle = model.lanes().filter(|&lane| model.closed_cause(lane).is_none());
        let kept_idle = kept_idle
            .map(|lane| i128::from(model.numbers[lane].kept.saturating_sub(running[lane])));
        let unkept = i128::from(model.capacity) - i128::from(out) - kept_idle.sum::<i128>();
        Seen { out, running, unkept }
    }

    fn check(&mut self, model: &Model, resized: bool) {
        self.check_fates(model);
        let now = self.seen(model);
        self.check_figures(model, &now);
        self.check_groups(model);
        check_nobody_is_forgotten(model, &now);
        if let Some(before) = self.before.replace(now.clone()) {
            check_step(model, &before, &now, resized);
        }
    }

    /// Everybody stands where the rules say, before any further call could put it right.
    fn check_fates(&self, model: &Model) {
        assert_eq!(self.waiters.len(), model.waiters.len());
        assert!(
            self.permits.keys().copied().eq(model
                .held
                .iter()
                .map(|held| held.id)
                .collect::<BTreeSet<_>>())
        );
        for waiter in &model.waiters {
            let key = self.waiters[&waiter.id].key;
            let status = self.status(waiter.id);
            let agrees = match waiter.fate {
                Fate::Waiting => status == Status::Waiting,
                Fate::Granted => status == Status::Settled(Outcome::Granted),
                Fate::Refused(cause) => {
                    status == Status::Settled(Outcome::Refused(cause))
                        || self.is_untold(Some(waiter.fate), key)
                }
            };
            assert!(agrees, "{waiter:?} is {status:?}");
            if !self.taken.contains_key(&waiter.id) {
                assert_eq!(self.state.since(key), Tick(waiter.since));
            }
            assert!(waiter.passed <= model.max_bypass, "ADM-5: {waiter:?} was passed too often");
        }
        let expiries = model.waiters.iter().filter(|w| w.fate == Fate::Waiting);
        if let Some(first) = expiries.map(|w| model.expiry(w)).min() {
            assert!(self.state.next_deadline() <= tick(first), "a timer would come too late");
        }
    }

    /// ADM-14: what is in each group, and what its owner was told.
    fn check_groups(&mut self, model: &Model) {
        while let Some(told) = self.state.next_told() {
            told.tell();
        }
        assert!(!self.state.has_news());
        assert_eq!(self.groups.len(), model.groups.len());
        for (group, expected) in model.groups.iter().enumerate() {
            let mine = &self.groups[group];
            let (idle, gone) = *mine.told.0.lock().unwrap();
            let in_group = self.waiters.iter().filter(|(_, it)| it.group == Some(group));
            let waiting: BTreeSet<u64> = in_group
                .clone()
                .filter(|(id, _)| self.status(**id) == Status::Waiting)
                .map(|(&id, _)| id)
                .collect();
            let granted = in_group
                .filter(|(id, _)| self.status(**id) == Status::Settled(Outcome::Granted))
                .map(|(_, mine)| mine.claim.weight);
            let held = self.permits.values().filter(|(_, it)| *it == Some(group));
            let out = held.map(|(claim, _)| claim.weight).chain(granted).sum::<u64>();
            let empty = waiting.is_empty() && out == 0 && expected.others == 0;
            let listed = self.state.waiting_in(mine.id).map(|(.., &id)| id).collect::<Vec<_>>();
            let stats = self.state.group_stats(mine.id);
            if empty && expected.let_go {
                assert_eq!(gone, Some(expected.refused), "its owner was told");
                assert_eq!((stats, listed.len()), (GroupStats::default(), 0), "and it is gone");
                continue;
            }
            assert_eq!(gone, None, "something holds it");
            let (waits, refused) = (waiting.len(), expected.refused);
            let ending = expected.others;
            assert_eq!(stats, GroupStats { waiting: waits, out, ending, refused });
            assert_eq!(listed.len(), waits);
            assert_eq!(BTreeSet::from_iter(listed), waiting);
            if empty && expected.closed > 0 {
                assert_eq!(idle, 1, "its owner was told once");
            } else {
                assert_eq!(idle, mine.idle, "it is open, or something is in it");
            }
            self.groups[group].idle = idle;
        }
    }

    /// ADM-2, ADM-9 and ADM-12, from one copy of the figures.
    fn check_figures(&mut self, model: &Model, now: &Seen) {
        let untold: Vec<&Mine> = self
            .waiters
            .iter()
            .filter(|(id, mine)| {
                let fate = model.waiters.iter().find(|w| w.id == **id).map(|w| w.fate);
                self.is_untold(fate, mine.key)
            })
            .map(|(_, mine)| mine)
            .collect();
        let untold_in = |lane| untold.iter().filter(|mine| mine.lane() == lane).count();
        let untold: Vec<usize> = model.lanes().map(untold_in).collect();
        assert_eq!(self.state.out(), now.out);
        let all_waiting = |lane| model.waiting(lane) + untold[lane];
        assert_eq!(self.state.waiting(), model.lanes().map(all_waiting).sum::<usize>());
        let queued =
            self.state.queued_from(0, usize::MAX).1.map(|(lane, _, &id)| (lane.0 as usize, id));
        let queued: BTreeSet<(usize, u64)> = queued.collect();
        assert_eq!(queued.len(), self.state.waiting(), "each of them is listed once");
        for (lane, id) in queued {
            assert_eq!(self.waiters[&id].lane(), lane);
            assert_eq!(self.state.status(self.waiters[&id].key), Status::Waiting);
        }
        // a reading from before every other moves no clock and settles nobody
        let stats = self.state.stats(Tick::ZERO);
        self.check_fates(model);
        let BudgetStats { capacity, available, deficit, closed, .. } = stats;
        assert_eq!(capacity, model.capacity);
        let (sum, all) = (i128::from(now.out) + i128::from(available), i128::from(capacity));
        assert_eq!(sum, all + i128::from(deficit), "ADM-2: permits out + available");
        assert_eq!(closed, model.closed);
        for (lane, stats) in stats.lanes.iter().enumerate() {
            let figures = &model.figures[lane];
            assert_eq!(stats.running, now.running[lane]);
            assert_eq!(stats.running, model.running(lane));
            let reserved = model.numbers[lane].reserved;
            assert_eq!(stats.borrowed, stats.running.saturating_sub(reserved));
            assert_eq!(stats.waiting, all_waiting(lane));
            assert_eq!(stats.peak, figures.peak);
            assert_eq!(stats.admitted, figures.admitted);
            assert_eq!(stats.closed, model.closed_lanes[lane].then_some(Closed::Lane));
            let not_yet = untold[lane] as u64 + self.left_untold[lane];
            let mut expected = figures.refused;
            expected.closed -= not_yet;
            assert_eq!(stats.refused, expected, "ADM-9: each refusal once, by cause");
            if model.closed_cause(lane).is_none() {
                assert_eq!(self.state.largest(lane_id(lane)), model.largest(lane));
            }
            // what the owner was told, and what is settled but not collected
            let mut seen = self.refused[lane];
            for (&id, _) in self.waiters.iter().filter(|(_, mine)| mine.lane() == lane) {
                if let Status::Settled(Outcome::Refused(cause)) = self.status(id) {
                    count(&mut seen, cause);
                }
            }
            assert_eq!(stats.refused, seen, "ADM-9: each refusal once, by cause");
        }
    }
}

/// ADM-4, ADM-5, ADM-6: nobody who could run is left waiting; with nothing running, some waiter runs.
fn check_nobody_is_forgotten(model: &Model, now: &Seen) {
    for lane in model.lanes() {
        let Some(head) = model.head(lane) else { continue };
        assert_eq!(model.closed_cause(lane), None, "a closed lane has no waiters");
        assert!(head.weight <= model.largest(lane), "ADM-6: {head:?} can never be granted");
        let below_limit = u128::from(now.running[lane]) + u128::from(head.weight)
            <= u128::from(model.numbers[lane].limit);
        if below_limit && model.fits(lane, head.weight) {
            let within = model.within_reservation(lane, head.weight);
            assert!(!within && !model.may_pass(head.id), "ADM-4: {head:?} fits and waits");
        }
    }
    if now.out == 0 {
        let waiting: usize = model.lanes().map(|lane| model.waiting(lane)).sum();
        assert_eq!(waiting, 0, "ADM-4: nothing runs and yet somebody waits");
    }
}

/// ADM-2 and ADM-4 over one step.
fn check_step(model: &Model, before: &Seen, now: &Seen, resized: bool) {
    for lane in model.lanes() {
        if now.running[lane] > before.running[lane] {
            let limit = model.numbers[lane].limit;
            // a resize grants under the old numbers first
            assert!(resized || now.running[lane] <= limit, "ADM-2: a lane grew past its limit");
        }
    }
    if now.out > before.out {
        assert!(resized || now.out <= model.capacity, "ADM-2: something was granted in a deficit");
    }
    // permits that return to a lane above what it keeps, or to a closed lane, are unkept
    let held_back = resized || now.unkept >= before.unkept.min(0);
    assert!(held_back, "ADM-4: what is kept was lent");
}

struct Comparison;

impl StateMachineTest for Comparison {
    type SystemUnderTest = Owner;
    type Reference = Machine;

    fn init_test(model: &Model) -> Owner {
        let mut owner = Owner::new(model);
        owner.check(model, true);
        owner
    }

    fn apply(mut owner: Owner, model: &Model, transition: Transition) -> Owner {
        let now = Tick(model.clock);
        let earlier = |back: u64| Tick(model.clock.saturating_sub(back));
        let mut reply = Reply::None;
        match transition {
            Transition::TryAcquire { ask } => {
                let request = owner.request(&ask);
                let attempt = owner.state.try_acquire(&request, || now);
                match attempt {
                    Attempt::Granted => owner.grant(&ask),
                    Attempt::Refused(cause) => count(&mut owner.refused[ask.lane], cause),
                    Attempt::Wait => {}
                }
                reply = Reply::Attempt(attempt);
            }
            Transition::Enter { ask, back } => {
                if back > 0 {
                    owner.state.advance(now);
                }
                reply = Reply::Entered(owner.enter(&ask, earlier(back)));
            }
            Transition::Release { permit } => {
                let (claim, _) = owner.permits.remove(&permit).expect("it is held");
                owner.state.release(&claim, || now);
            }
            Transition::Cancel { waiter } => owner.cancel(waiter, now),
            Transition::Refuse { waiter } => {
                let key = owner.waiters[&waiter].key;
                assert!(owner.state.refuse(key, Cause::NoTimer, || now));
                assert!(!owner.state.refuse(key, Cause::Busy, || now), "it was settled before");
            }
            Transition::Collect { waiter } => owner.collect(waiter),
            Transition::Pass { .. } => {}
            Transition::Advance { back } => {
                owner.state.advance(now);
                owner.state.advance(earlier(back));
            }
            Transition::Resize { capacity, ref numbers } => {
                let impossible = owner.state.resize(0, configs(numbers), || Tick(u64::MAX - 1));
                assert!(impossible.is_err(), "a resize that is refused changes nothing");
                owner.state.resize(capacity, configs(numbers), || now).expect("the numbers fit");
            }
            Transition::CloseLane { lane } => {
                owner.state.close_lane(lane_id(lane), Closed::Lane, || now);
            }
            Transition::Close => owner.state.close(Closed::Budget),
            Transition::CloseAsScope => {
                owner.state.advance(now);
                owner.state.close(Closed::Scope);
                owner.announce(usize::MAX, false);
            }
            Transition::OpenGroup { deadline } => {
                let told = Arc::new(Told::default());
                let group_owner = Arc::clone(&told) as Arc<dyn GroupOwner>;
                let id = owner.state.open_group(group_owner, tick(deadline));
                owner.groups.push(MyGroup { id, told, idle: 0 });
            }
            Transition::CloseGroup { group, leased } => {
                owner.state.advance(now);
                owner.state.close_group(owner.groups[group].id, leased);
                owner.announce(usize::MAX, false);
            }
            Transition::TightenGroup { group, deadline } => {
                let (id, mut changed) = (owner.groups[group].id, BTreeSet::new());
                owner.state.tighten_group(id, tick(deadline), |&id| {
                    assert!(changed.insert(id), "one was told of twice");
                });
                owner.state.advance(now);
                // who was refused with its lane and was not told yet may be among them
                changed.retain(|id| match &model.reply {
                    Reply::Tightened(expected) => {
                        expected.contains(id) || !owner.told_closed(*id, model)
                    }
                    _ => true,
                });
                reply = Reply::Tightened(changed.into_iter().collect());
            }
            Transition::LetGo { group } => owner.state.let_go(owner.groups[group].id),
            Transition::Join { group } => owner.state.join(owner.groups[group].id),
            Transition::Leave { group } => owner.state.leave(owner.groups[group].id),
            Transition::Stats => {
                let stats = owner.state.stats(now);
                for lane in model.lanes().filter(|&lane| model.closed_cause(lane).is_none()) {
                    let waited = model.head(lane).map(|head| now.since(Tick(head.since)));
                    assert_eq!(stats.lanes[lane].oldest_wait, waited);
                }
            }
            Transition::Announce { most, take } => owner.announce(most, take),
        }
        assert_eq!(reply, model.reply);
        owner.check(model, matches!(transition, Transition::Resize { .. }));
        owner
    }

    /// However it went: as permits come back everybody is told, and the whole capacity is free again.
    fn teardown(mut owner: Owner, model: Model) {
        let mut now = Tick(model.clock);
        loop {
            owner.announce(usize::MAX, true);
            for id in owner.told.clone() {
                owner.collect(id);
            }
            let Some((&permit, _)) = owner.permits.iter().next() else { break };
            let (claim, _) = owner.permits.remove(&permit).expect("it is held");
            now = Tick(now.0 + 1);
            owner.state.release(&claim, || now);
        }
        assert!(owner.waiters.is_empty(), "left behind: {:?}", owner.waiters);
        let stats = owner.state.stats(now);
        assert_eq!((owner.state.waiting(), stats.available), (0, stats.capacity));
        assert_eq!(owner.state.is_drained(), model.closed.is_some());
        for (group, expected) in owner.groups.iter().zip(&model.groups) {
            (0..expected.others).for_each(|_| owner.state.leave(group.id));
            owner.state.let_go(group.id);
        }
        while let Some(told) = owner.state.next_told() {
            told.tell();
        }
        for group in &owner.groups {
            assert!(group.told.0.lock().unwrap().1.is_some(), "a group was left behind");
        }
    }
}

fn config() -> Config {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/prop_state.txt");
    Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        ..Config::default()
    }
}

prop_state_machine! {
    #![proptest_config(config())]

    /// ADM-1, ADM-2, ADM-3, ADM-4, ADM-5, ADM-6, ADM-7, ADM-8, ADM-9, ADM-10, ADM-11, ADM-12, ADM-14, ADM-16
    #[test]
    fn the_state_agrees_with_a_naive_model(sequential 1..150 => Comparison);
}
