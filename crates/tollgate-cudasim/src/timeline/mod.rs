//! Streams as arithmetic: who may run, who waits for whom, who is ordered after whom. No locks, threads, clocks or memory.
//!
//! Steps are counted: the first that a stream was given has position 1, and a stream has *passed* a position once all steps up
//! to it are done. An event is a stream and a position, so waiting for one is a comparison. Streams of all devices are in
//! one timeline, so that one can wait for another's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far each stream had come: everything up to there is ordered before whoever has the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clock(BTreeMap<u64, u64>);

impl Clock {
    /// Says whether that was news.
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

    fn covers(&self, stream: u64, position: u64) -> bool {
        position <= self.0.get(&stream).copied().unwrap_or(0)
    }
}

/// A place in a stream's steps, and all that is ordered before it.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) stream: u64,
    pub(crate) position: u64,
    clock: Clock,
}

/// The streams of a driver. `W` is work.
#[derive(Debug)]
pub(crate) struct Timeline<W> {
    streams: BTreeMap<u64, Stream<W>>,
    /// Streams that went before the host had seen all they did, with their last position. Everything of a stream that is
    /// neither here nor there is ordered before everything, so clocks do not grow with the streams that ever were.
    unseen: BTreeMap<u64, u64>,
    /// Streams whose head may run, by device: by priority, then by who could first.
    ready: BTreeMap<usize, BTreeSet<(i32, u64, u64)>>,
    turn: u64,
    /// What the host has seen pass: whatever is submitted later is ordered after it.
    seen: Clock,
    /// Changes with `seen`.
    sights: u64,
    /// Marks that streams have passed and nobody has fetched.
    reached: Vec<u64>,
}

#[derive(Debug)]
struct Stream<W> {
    device: usize,
    priority: i32,
    queue: VecDeque<Step<W>>,
    /// The position of the last step that it was given.
    submitted: u64,
    /// The position up to which all is done.
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
    /// What its next step is ordered after.
    clock: Clock,
    /// The `sights` that are in `clock`.
    sights: u64,
}

#[derive(Debug)]
enum Step<W> {
    Work(W),
    /// Nothing goes on until the stream has passed the position.
    Wait(u64, u64),
    /// Nothing but a place whose passing is told.
    Mark(u64),
}

impl<W> Default for Timeline<W> {
    fn default() -> Self {
        Timeline::new()
    }
}

impl<W> Timeline<W> {
    pub(crate) const fn new() -> Self {
        Timeline {
            streams: BTreeMap::new(),
            unseen: BTreeMap::new(),
            ready: BTreeMap::new(),
            turn: 0,
            seen: Clock(BTreeMap::new()),
            sights: 0,
            reached: Vec::new(),
        }
    }

    /// A stream with this number, which must be new. Lower priorities go first.
    pub(crate) fn open(&mut self, number: u64, device: usize, priority: i32, stalled: bool) {
        let stream = Stream {
            device,
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
        let old = self.streams.insert(number, stream);
        debug_assert!(old.is_none(), "stream {number} is opened twice");
    }

    /// The stream's handle is gone. What it was given is still done.
    pub(crate) fn close(&mut self, stream: u64) {
        if let Some(it) = self.streams.get_mut(&stream) {
            it.closed = true;
            self.settle(stream);
        }
    }

    pub(crate) fn stall(&mut self, stream: u64, stalled: bool) {
        if let Some(it) = self.streams.get_mut(&stream) {
            it.stalled = stalled;
            self.settle(stream);
        }
    }

    /// Orders what the host has seen before the stream's next step.
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

    /// Whether this position of another stream is ordered before the stream's next step.
    pub(crate) fn is_before(&mut self, stream: u64, other: u64, position: u64) -> bool {
        self.catch_up(stream);
        let clock = self.streams.get(&stream).map(|it| &it.clock);
        !self.remembers(other) || clock.is_some_and(|clock| clock.covers(other, position))
    }

    /// Whether the host has seen this position pass.
    pub(crate) fn is_seen(&self, stream: u64, position: u64) -> bool {
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

    /// Gives the stream work, and says at which position it is.
    pub(crate) fn submit(&mut self, stream: u64, work: W) -> u64 {
        self.catch_up(stream);
        self.push(stream, Step::Work(work))
    }

    /// A place of the stream; [`fetch_reached`](Self::fetch_reached) says when it has passed it.
    pub(crate) fn mark(&mut self, stream: u64, mark: u64) -> Option<Point> {
        self.catch_up(stream);
        self.push(stream, Step::Mark(mark));
        self.point(stream)
    }

    /// Marks that were passed, in that order, since it was asked last.
    pub(crate) fn fetch_reached(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.reached)
    }

    /// What the stream is given from now on waits for the point.
    pub(crate) fn wait(&mut self, stream: u64, point: &Point) {
        self.catch_up(stream);
        if let Some(it) = self.streams.get_mut(&stream) {
            it.clock.join(&point.clock);
            // the stream's own work is in order anyway
            if point.stream != stream {
                self.push(stream, Step::Wait(point.stream, point.position));
            }
        }
    }

    /// Waits for all that the other stream has been given, unless that is done.
    pub(crate) fn join(&mut self, stream: u64, other: u64) {
        let Some(point) = self.point(other) else { return };
        if !self.has_passed(&point) {
            self.wait(stream, &point);
        } else if let Some(it) = self.streams.get_mut(&stream) {
            // nothing to wait for, and in order all the same
            it.clock.join(&point.clock);
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
    pub(crate) fn point(&mut self, stream: u64) -> Option<Point> {
        self.catch_up(stream);
        let it = self.streams.get(&stream)?;
        Some(Point { stream, position: it.submitted, clock: it.clock.clone() })
    }

    pub(crate) fn has_passed(&self, point: &Point) -> bool {
        self.is_past(point.stream, point.position)
    }

    /// A stream that is not there has passed everything.
    pub(crate) fn is_past(&self, stream: u64, position: u64) -> bool {
        self.streams.get(&stream).is_none_or(|it| it.passed >= position)
    }

    /// Whether the stream has nothing left to do.
    #[cfg(test)]
    pub(crate) fn is_idle(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_none_or(|it| it.passed >= it.submitted)
    }

    /// The host has seen that the point has passed.
    pub(crate) fn see(&mut self, point: &Point) {
        let mut seen = std::mem::take(&mut self.seen);
        if seen.join(&point.clock) {
            self.sights += 1;
            self.unseen.retain(|&stream, &mut last| !seen.covers(stream, last));
            seen.0.retain(|&stream, _| self.remembers(stream));
        }
        self.seen = seen;
    }

    /// Takes the device's next work out of its stream.
    pub(crate) fn take(&mut self, device: usize) -> Option<(u64, W)> {
        let (_, _, stream) = self.ready.get_mut(&device)?.pop_first()?;
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

    /// The work that was taken from this stream is done.
    pub(crate) fn finish(&mut self, stream: u64) {
        if let Some(it) = self.streams.get_mut(&stream) {
            debug_assert!(it.busy, "stream {stream} finished what it had not begun");
            it.busy = false;
            // an abort has let it pass already
            it.passed = it.submitted.min(it.passed + 1);
            self.settle(stream);
        }
    }

    /// Takes all work out of the stream that has not begun, and lets whoever waits for it go on: why it will never be done
    /// is known elsewhere. Marks that were not reached never are.
    pub(crate) fn abort(&mut self, stream: u64) -> Vec<W> {
        let Some(it) = self.streams.get_mut(&stream) else { return Vec::new() };
        let works = it.queue.drain(..).filter_map(|step| match step {
            Step::Work(work) => Some(work),
            Step::Wait(..) | Step::Mark(_) => None,
        });
        let works = works.collect();
        it.passed = it.submitted;
        self.settle(stream);
        works
    }

    /// Brings the stream, and all that wait for it, to where they can go.
    fn settle(&mut self, first: u64) {
        let mut look = vec![first];
        while let Some(stream) = look.pop() {
            self.pass_steps(stream);
            let Some(it) = self.streams.get_mut(&stream) else { continue };
            while let Some(&(position, waiter)) = it.waiting.first()
                && position <= it.passed
            {
                it.waiting.pop_first();
                look.push(waiter);
            }
            let runs = !it.busy && !it.stalled && matches!(it.queue.front(), Some(Step::Work(_)));
            let ready = self.ready.entry(it.device).or_default();
            match (runs, it.key) {
                (true, None) => {
                    self.turn += 1;
                    let key = (it.priority, self.turn, stream);
                    it.key = Some(key);
                    ready.insert(key);
                }
                (false, Some(key)) => {
                    it.key = None;
                    ready.remove(&key);
                }
                _ => {}
            }
            if it.closed && !it.busy && it.queue.is_empty() {
                self.remove(stream);
            }
        }
    }

    /// Passes what is at the stream's head and nobody has to do.
    fn pass_steps(&mut self, stream: u64) {
        while let Some(it) = self.streams.get(&stream)
            && !it.busy
            && !it.stalled
        {
            match it.queue.front() {
                Some(&Step::Mark(mark)) => self.reached.push(mark),
                Some(&Step::Wait(other, position)) if !self.is_past(other, position) => {
                    if let Some(other) = self.streams.get_mut(&other) {
                        other.waiting.insert((position, stream));
                    }
                    return;
                }
                Some(Step::Wait(..)) => {}
                Some(Step::Work(_)) | None => return,
            }
            if let Some(it) = self.streams.get_mut(&stream) {
                it.queue.pop_front();
                it.passed += 1;
            }
        }
    }

    /// How many streams of the device could run something now.
    pub(crate) fn ready(&self, device: usize) -> usize {
        self.ready.get(&device).map_or(0, BTreeSet::len)
    }

    /// How many streams there are, those included whose handles are gone and whose work is not done.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> usize {
        self.streams.len()
    }
}

#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;
