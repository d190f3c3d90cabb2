//! Streams as arithmetic: who may run, who waits for whom, who is ordered after whom. No locks, threads or memory.
//!
//! Work is counted: the first piece that a stream was given has position 1, and a stream has *passed* a position once all
//! work up to it is done. An event is a stream and a position, so recording one costs nothing and waiting for one is a
//! comparison.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far each stream had come, by number: everything up to there is ordered before whoever has the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(BTreeMap<u64, u64>);

impl Clock {
    /// Orders what `other` is ordered after before this one as well. Says whether that was news.
    fn join(&mut self, other: &Clock) -> bool {
        let mut news = false;
        for (&stream, &position) in &other.0 {
            news |= self.reach(stream, position);
        }
        news
    }

    fn reach(&mut self, stream: u64, position: u64) -> bool {
        let mine = self.0.entry(stream).or_default();
        let news = *mine < position;
        *mine = position.max(*mine);
        news
    }

    /// Whether this position of this stream is ordered before.
    fn covers(&self, stream: u64, position: u64) -> bool {
        position <= self.0.get(&stream).copied().unwrap_or(0)
    }
}

/// A place in a stream's work, and all that is ordered before it: the stream's own position is in the clock too.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) stream: u64,
    pub(super) position: u64,
    clock: Clock,
}

/// The streams of a device. `W` is work.
#[derive(Debug)]
pub(super) struct Timeline<W> {
    streams: BTreeMap<u64, Stream<W>>,
    /// Streams that went before the host had seen all they did, with their last position. Of all others that are not there
    /// any more, everything is ordered before everything: clocks forget them, so they do not grow with the streams that
    /// ever were.
    unseen: BTreeMap<u64, u64>,
    /// Streams whose head may run, by priority, then by who could first.
    ready: BTreeSet<(i32, u64, u64)>,
    /// Of the next stream. Numbers are never used again.
    next: u64,
    /// Orders what becomes ready.
    turn: u64,
    /// What the host has seen pass: whatever is submitted later is ordered after it.
    seen: Clock,
    /// Changes with `seen`.
    sights: u64,
}

#[derive(Debug)]
struct Stream<W> {
    priority: i32,
    queue: VecDeque<Step<W>>,
    /// The position of the last work that it was given.
    submitted: u64,
    /// The position up to which all work is done.
    passed: u64,
    /// Its head is out, being done.
    busy: bool,
    stalled: bool,
    /// Its handle is gone: it goes when it has nothing left to do.
    closed: bool,
    /// Under which key it is in `ready`.
    key: Option<(i32, u64, u64)>,
    /// Streams whose heads wait for this one, by the position that they wait for.
    waiting: BTreeSet<(u64, u64)>,
    /// What its next work is ordered after.
    clock: Clock,
    /// The `sights` that are in `clock`.
    sights: u64,
}

#[derive(Debug)]
enum Step<W> {
    Work(W),
    /// Nothing goes on until the stream has passed the position.
    Wait(u64, u64),
}

impl<W> Timeline<W> {
    /// No streams. The first one that is opened has this number.
    pub(super) fn from_number(next: u64) -> Self {
        Timeline {
            streams: BTreeMap::new(),
            unseen: BTreeMap::new(),
            ready: BTreeSet::new(),
            next,
            turn: 0,
            seen: Clock::default(),
            sights: 0,
        }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    pub(super) fn open(&mut self, priority: i32, stalled: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        let stream = Stream {
            priority,
            queue: VecDeque::new(),
            submitted: 0,
            passed: 0,
            busy: false,
            stalled,
            closed: false,
            key: None,
            waiting: BTreeSet::new(),
            clock: Clock::default(),
            sights: 0,
        };
        self.streams.insert(number, stream);
        number
    }

    /// The stream's handle is gone. What it was given is still done.
    pub(super) fn close(&mut self, stream: u64) {
        if let Some(it) = self.streams.get_mut(&stream) {
            it.closed = true;
            self.settle(stream);
        }
    }

    pub(super) fn stall(&mut self, stream: u64, stalled: bool) {
        if let Some(it) = self.streams.get_mut(&stream) {
            it.stalled = stalled;
            self.settle(stream);
        }
    }

    /// Orders what the host has seen before the stream's next work.
    fn catch_up(&mut self, stream: u64) {
        if let Some(it) = self.streams.get_mut(&stream)
            && it.sights != self.sights
        {
            it.sights = self.sights;
            let mut clock = std::mem::take(&mut it.clock);
            clock.join(&self.seen);
            clock.0.retain(|&other, _| self.remembers(other));
            if let Some(it) = self.streams.get_mut(&stream) {
                it.clock = clock;
            }
        }
    }

    /// Whether clocks say anything of the stream.
    fn remembers(&self, stream: u64) -> bool {
        self.streams.contains_key(&stream) || self.unseen.contains_key(&stream)
    }

    /// Whether this position of another stream is ordered before the stream's next work.
    pub(super) fn is_before(&mut self, stream: u64, other: u64, position: u64) -> bool {
        self.catch_up(stream);
        let clock = self.streams.get(&stream).map(|it| &it.clock);
        !self.remembers(other) || clock.is_some_and(|clock| clock.covers(other, position))
    }

    /// Whether the host has seen this position pass.
    pub(super) fn is_seen(&self, stream: u64, position: u64) -> bool {
        !self.remembers(stream) || self.seen.covers(stream, position)
    }

    /// The stream has nothing left to do, and nobody has it.
    fn remove(&mut self, stream: u64) {
        if let Some(it) = self.streams.remove(&stream)
            && !self.seen.covers(stream, it.submitted)
        {
            self.unseen.insert(stream, it.submitted);
        }
    }

    /// Gives the stream work, and says at which position it is. The stream must be open.
    pub(super) fn submit(&mut self, stream: u64, work: W) -> u64 {
        self.catch_up(stream);
        self.push(stream, Step::Work(work))
    }

    /// A position of its own that there is nothing to do at.
    pub(super) fn mark(&mut self, stream: u64) -> u64 {
        self.catch_up(stream);
        // a wait that is over before it begins
        self.push(stream, Step::Wait(stream, 0))
    }

    /// What the stream is given from now on waits for the point.
    pub(super) fn wait(&mut self, stream: u64, point: &Point) {
        self.catch_up(stream);
        if let Some(it) = self.streams.get_mut(&stream) {
            it.clock.join(&point.clock);
            // the stream's own work is in order anyway
            if point.stream != stream {
                self.push(stream, Step::Wait(point.stream, point.position));
            }
        }
    }

    fn push(&mut self, stream: u64, step: Step<W>) -> u64 {
        let Some(it) = self.streams.get_mut(&stream) else {
            debug_assert!(false, "stream {stream} is not open");
            return 0;
        };
        it.queue.push_back(step);
        it.submitted += 1;
        let position = it.submitted;
        it.clock.reach(stream, position);
        self.settle(stream);
        position
    }

    /// Where the stream is once it has done all that it was given.
    pub(super) fn point(&mut self, stream: u64) -> Option<Point> {
        self.catch_up(stream);
        let it = self.streams.get(&stream)?;
        Some(Point { stream, position: it.submitted, clock: it.clock.clone() })
    }

    pub(super) fn has_passed(&self, point: &Point) -> bool {
        self.is_past(point.stream, point.position)
    }

    fn is_past(&self, stream: u64, position: u64) -> bool {
        // a stream goes only when it has done everything
        self.streams.get(&stream).is_none_or(|it| it.passed >= position)
    }

    /// The host has seen that the point has passed.
    pub(super) fn see(&mut self, point: &Point) {
        let mut seen = std::mem::take(&mut self.seen);
        if seen.join(&point.clock) {
            self.sights += 1;
            self.unseen.retain(|&stream, &mut last| !seen.covers(stream, last));
            seen.0.retain(|&stream, _| self.remembers(stream));
        }
        self.seen = seen;
    }

    /// Takes the next work to be done out of its stream.
    pub(super) fn take(&mut self) -> Option<(u64, W)> {
        let (_, _, stream) = self.ready.pop_first()?;
        let it = self.streams.get_mut(&stream)?;
        it.key = None;
        match it.queue.pop_front() {
            Some(Step::Work(work)) => {
                it.busy = true;
                Some((stream, work))
            }
            step => {
                debug_assert!(false, "stream {stream} was ready with {}", it.queue.len());
                it.queue.extend(step);
                None
            }
        }
    }

    /// The work that was taken from this stream failed: it is out, and never passes.
    pub(super) fn give_up(&mut self, stream: u64) {
        if let Some(it) = self.streams.get_mut(&stream) {
            it.busy = false;
            if it.closed && it.queue.is_empty() {
                self.remove(stream);
            }
        }
    }

    /// The work that was taken from this stream is done.
    pub(super) fn finish(&mut self, stream: u64) {
        if let Some(it) = self.streams.get_mut(&stream) {
            debug_assert!(it.busy, "stream {stream} finished what it had not begun");
            it.busy = false;
            it.passed += 1;
            self.settle(stream);
        }
    }

    /// Brings the stream, and all that wait for it, to where they can go.
    fn settle(&mut self, first: u64) {
        let mut look = vec![first];
        while let Some(stream) = look.pop() {
            self.pass_waits(stream);
            let Some(it) = self.streams.get_mut(&stream) else { continue };
            while let Some(&(position, waiter)) = it.waiting.first()
                && position <= it.passed
            {
                it.waiting.pop_first();
                look.push(waiter);
            }
            let runs = !it.busy && !it.stalled && matches!(it.queue.front(), Some(Step::Work(_)));
            match (runs, it.key) {
                (true, None) => {
                    self.turn += 1;
                    let key = (it.priority, self.turn, stream);
                    it.key = Some(key);
                    self.ready.insert(key);
                }
                (false, Some(key)) => {
                    it.key = None;
                    self.ready.remove(&key);
                }
                _ => {}
            }
            if it.closed && !it.busy && it.queue.is_empty() {
                self.remove(stream);
            }
        }
    }

    /// Passes the waits at the stream's head that are over. Nobody does them, so nobody would report their end.
    fn pass_waits(&mut self, stream: u64) {
        while let Some(it) = self.streams.get(&stream)
            && !it.busy
            && !it.stalled
            && let Some(&Step::Wait(other, position)) = it.queue.front()
        {
            if self.is_past(other, position) {
                if let Some(it) = self.streams.get_mut(&stream) {
                    it.queue.pop_front();
                    it.passed += 1;
                }
            } else {
                if let Some(other) = self.streams.get_mut(&other) {
                    other.waiting.insert((position, stream));
                }
                return;
            }
        }
    }

    /// Takes all work out that has not begun, in the order of each stream. After that nothing is to be submitted, and no
    /// point is worth asking for: whoever clears has a reason that comes first.
    pub(super) fn clear(&mut self) -> Vec<W> {
        let mut works = Vec::new();
        self.ready.clear();
        self.streams.retain(|_, it| {
            it.key = None;
            it.waiting.clear();
            works.extend(it.queue.drain(..).filter_map(|step| match step {
                Step::Work(work) => Some(work),
                Step::Wait(..) => None,
            }));
            !it.closed || it.busy
        });
        works
    }

    /// How many streams could run something now.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// How many streams there are, those included whose handles are gone and whose work is not done.
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// How many pieces of work have not begun. Waits for events are not counted.
    pub(super) fn queued(&self) -> usize {
        let works = |it: &Stream<W>| it.queue.iter().filter(|s| matches!(s, Step::Work(_))).count();
        self.streams.values().map(works).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Call {
        Open(i32),
        Submit(usize),
        Mark(usize),
        Record(usize),
        Wait(usize, usize),
        Stall(usize, bool),
        Close(usize),
        See(usize),
        Take,
        Finish(usize),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let at = 0usize..64;
        let call = prop_oneof![
            1 => (-2..=0).prop_map(Call::Open),
            6 => at.clone().prop_map(Call::Submit),
            1 => at.clone().prop_map(Call::Mark),
            3 => at.clone().prop_map(Call::Record),
            3 => (at.clone(), at.clone()).prop_map(|(to, event)| Call::Wait(to, event)),
            1 => (at.clone(), any::<bool>()).prop_map(|(at, on)| Call::Stall(at, on)),
            1 => at.clone().prop_map(Call::Close),
            2 => at.clone().prop_map(Call::See),
            6 => Just(Call::Take),
            6 => at.prop_map(Call::Finish),
        ];
        proptest::collection::vec(call, 1..120)
    }

    /// What a step of a stream is, for the model.
    struct Step {
        stream: usize,
        /// Steps that must be done before: the one before it in its stream, and those it waits for.
        after: Vec<usize>,
        /// Steps that are ordered before it, by whatever way.
        before: BTreeSet<usize>,
        work: bool,
        taken: bool,
        done: bool,
    }

    /// Every step in one list, looked through from the start each time.
    #[derive(Default)]
    struct Model {
        steps: Vec<Step>,
        streams: Vec<Lane>,
        /// The last step of a stream when it was recorded, with all that is before.
        events: Vec<(usize, Option<usize>)>,
        seen: BTreeSet<usize>,
    }

    struct Lane {
        number: u64,
        priority: i32,
        steps: Vec<usize>,
        stalled: bool,
        closed: bool,
        /// Waited for, in addition, by the next step.
        order: BTreeSet<usize>,
    }

    impl Model {
        fn push(&mut self, stream: usize, work: bool, after: Option<usize>) -> usize {
            let index = self.steps.len();
            let lane = &mut self.streams[stream];
            let last = lane.steps.last().copied();
            let mut before: BTreeSet<usize> = std::mem::take(&mut lane.order);
            before.extend(&self.seen);
            if let Some(last) = last {
                before.extend(&self.steps[last].before);
                before.insert(last);
            }
            lane.steps.push(index);
            let after = last.into_iter().chain(after).collect();
            self.steps.push(Step { stream, after, before, work, taken: false, done: false });
            index
        }

        fn free(&self, index: usize) -> bool {
            let step = &self.steps[index];
            !step.taken
                && !step.done
                && !self.streams[step.stream].stalled
                && step.after.iter().all(|&other| self.steps[other].done)
        }

        /// Waits are over as soon as they can be.
        fn settle(&mut self) {
            while let Some(index) =
                (0..self.steps.len()).find(|&index| !self.steps[index].work && self.free(index))
            {
                self.steps[index].done = true;
            }
        }

        fn runnable(&self) -> Vec<usize> {
            (0..self.steps.len()).filter(|&at| self.steps[at].work && self.free(at)).collect()
        }
    }

    /// DEV-2
    #[test]
    fn clocks_forget_streams_that_are_gone_and_were_seen_to_pass() {
        let mut line: Timeline<()> = Timeline::from_number(1);
        let stays = line.open(0, false);
        for round in 0..100 {
            let passing = line.open(0, false);
            line.submit(passing, ());
            let point = line.point(passing).unwrap();
            line.wait(stays, &point);
            assert!(line.take().is_some());
            line.finish(passing);
            // those of odd rounds go before they are seen
            if round % 2 == 1 {
                line.close(passing);
                assert_eq!(line.unseen.len(), 1);
                assert!(!line.is_seen(passing, 1));
            }
            line.see(&point);
            line.close(passing);
            assert!(line.is_seen(passing, 1) && line.is_before(stays, passing, 1));
        }
        line.submit(stays, ());
        assert!(line.unseen.is_empty());
        assert!(line.seen.0.len() <= 1, "{:?}", line.seen);
        assert!(line.streams[&stays].clock.0.len() <= 1, "{:?}", line.streams[&stays].clock);
    }

    proptest! {
        /// DEV-2: work is taken in the order of its stream and after what its stream waited for, the greatest priority
        /// first; whatever can be done is there to be taken; and clocks say exactly what is ordered before.
        #[test]
        fn the_timeline_agrees_with_a_naive_model(calls in calls()) {
            let mut line: Timeline<usize> = Timeline::from_number(1);
            let mut model = Model::default();
            let mut events: Vec<Point> = Vec::new();
            let mut running: Vec<usize> = Vec::new();
            for call in calls {
                let lanes: Vec<usize> =
                    (0..model.streams.len()).filter(|&at| !model.streams[at].closed).collect();
                let pick = |at: usize| (!lanes.is_empty()).then(|| lanes[at % lanes.len()]);
                match call {
                    Call::Open(priority) => {
                        let number = line.open(priority, false);
                        let lane = Lane { number, priority, steps: vec![], stalled: false, closed: false, order: BTreeSet::new() };
                        model.streams.push(lane);
                    }
                    Call::Submit(at) => if let Some(at) = pick(at) {
                        let step = model.push(at, true, None);
                        let position = line.submit(model.streams[at].number, step);
                        prop_assert_eq!(position, model.streams[at].steps.len() as u64);
                    },
                    Call::Mark(at) => if let Some(at) = pick(at) {
                        model.push(at, false, None);
                        line.mark(model.streams[at].number);
                    },
                    Call::Record(at) => if let Some(at) = pick(at) {
                        let lane = &model.streams[at];
                        model.events.push((at, lane.steps.last().copied()));
                        events.extend(line.point(lane.number));
                    },
                    Call::Wait(at, event) => if let Some(at) = pick(at) && !events.is_empty() {
                        let event = event % events.len();
                        let (from, last) = model.events[event];
                        if let Some(last) = last && from != at {
                            let before = model.steps[last].before.clone();
                            model.streams[at].order.extend(before);
                            model.streams[at].order.insert(last);
                            model.push(at, false, Some(last));
                        } else if from != at {
                            model.push(at, false, None);
                        }
                        line.wait(model.streams[at].number, &events[event]);
                    },
                    Call::Stall(at, on) => if let Some(at) = pick(at) {
                        model.streams[at].stalled = on;
                        line.stall(model.streams[at].number, on);
                    },
                    Call::Close(at) => if let Some(at) = pick(at) && !model.streams[at].stalled {
                        model.streams[at].closed = true;
                        line.close(model.streams[at].number);
                    },
                    Call::See(at) => if !events.is_empty() {
                        let at = at % events.len();
                        if line.has_passed(&events[at]) {
                            line.see(&events[at]);
                            if let Some(last) = model.events[at].1 {
                                let before = model.steps[last].before.clone();
                                model.seen.extend(before);
                                model.seen.insert(last);
                            }
                        }
                    },
                    Call::Take => {
                        let can = model.runnable();
                        match line.take() {
                            None => prop_assert!(can.is_empty(), "{can:?} could be done"),
                            Some((stream, step)) => {
                                prop_assert!(can.contains(&step), "{step} was taken too early");
                                let lane = |step: usize| &model.streams[model.steps[step].stream];
                                prop_assert_eq!(lane(step).number, stream);
                                let best = can.iter().map(|&step| lane(step).priority).min();
                                prop_assert_eq!(Some(lane(step).priority), best);
                                model.steps[step].taken = true;
                                running.push(step);
                            }
                        }
                    }
                    Call::Finish(at) => if !running.is_empty() {
                        let step = running.swap_remove(at % running.len());
                        model.steps[step].done = true;
                        line.finish(model.streams[model.steps[step].stream].number);
                    },
                }
                model.settle();
                prop_assert_eq!(line.ready(), model.runnable().len());
                for (point, (_, last)) in events.iter().zip(&model.events) {
                    prop_assert_eq!(line.has_passed(point), last.is_none_or(|last| model.steps[last].done));
                }
                // what the next work of each stream would be ordered after
                for lane in model.streams.iter().filter(|lane| !lane.closed) {
                    let mut before: BTreeSet<usize> = lane.order.union(&model.seen).copied().collect();
                    if let Some(&last) = lane.steps.last() {
                        before.extend(&model.steps[last].before);
                        before.insert(last);
                    }
                    for other in &model.streams {
                        for (position, step) in (1..).zip(&other.steps) {
                            prop_assert_eq!(line.is_before(lane.number, other.number, position), before.contains(step));
                        }
                    }
                }
            }
        }
    }
}
