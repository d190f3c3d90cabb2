//! What the host saw of each job, in order, for anybody who wants to follow.

use super::core::Core;
use super::kind::{Class, DeviceKind};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate_admission::engine::{WakeList, WakerSet};
use tollgate_admission::{JobId, JobName};

/// Something that became of a job. It says what the host saw, not when a device did what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceEvent {
    /// Counts the events of a pool that somebody observed, from 1, without a gap.
    pub number: u64,
    /// When, from the building of the pool. Never less than that of the event before.
    pub at: Duration,
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: JobName,
    /// Its kind.
    pub kind: DeviceKind,
    /// What it is charged to.
    pub class: Class,
    /// What became of it.
    pub what: EventKind,
}

impl fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceEvent { at, job, name, kind, class, what, .. } = self;
        write!(f, "{at:?} {job} {name:?} ({kind}, class {class}) {what}")
    }
}

/// What can become of a job. Of each there is one `Enqueued`, at most one `Started`, at most one `CancellationRequested`
/// and one `Ended`, in this order; a request may also come before the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum EventKind {
    /// It was accepted.
    Enqueued,
    /// It began.
    Started {
        /// The worker that it has until it ends; `None` for one on a thread for blocking jobs, and for one within a task that
        /// a job spawned while no seat was free.
        worker: Option<u32>,
    },
    /// Somebody wants it to end.
    CancellationRequested,
    /// It ended. Nothing comes after this.
    Ended(Outcome),
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventKind::Enqueued => f.write_str("enqueued"),
            EventKind::Started { worker: Some(worker) } => write!(f, "started on worker {worker}"),
            EventKind::Started { worker: None } => f.write_str("started without a worker"),
            EventKind::CancellationRequested => f.write_str("cancellation requested"),
            EventKind::Ended(outcome) => outcome.fmt(f),
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Outcome {
    /// It returned.
    Finished,
    /// It panicked.
    Panicked,
    /// It ended early since somebody had asked for that.
    Cancelled,
    /// It ended early since the device's runtime, or the thread that it was to run on, was no more.
    Dropped,
    /// It never began, since the device could not be bound.
    Failed,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::Finished => "finished",
            Outcome::Panicked => "panicked",
            Outcome::Cancelled => "cancelled",
            Outcome::Dropped => "dropped",
            Outcome::Failed => "failed",
        })
    }
}

/// The latest events of a pool. Under the pool's lock: a push is a write and takes no notice of who reads.
pub(crate) struct Ring {
    events: VecDeque<DeviceEvent>,
    capacity: usize,
    /// The number of the latest event.
    latest: u64,
    /// The time of the latest event.
    at: Duration,
    observers: usize,
    /// There is something that observers have not been woken for.
    news: bool,
    wakers: WakerSet,
}

impl Ring {
    pub(crate) fn new(capacity: usize) -> Self {
        let wakers = WakerSet::default();
        let (events, at) = (VecDeque::new(), Duration::ZERO);
        Ring { events, capacity, latest: 0, at, observers: 0, news: false, wakers }
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.observers > 0
    }

    /// The number is given here. Who has looked at the clock first may come later: the time is that of the event before then.
    pub(crate) fn push(&mut self, event: DeviceEvent) {
        self.latest += 1;
        self.at = self.at.max(event.at);
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        self.events.push_back(DeviceEvent { number: self.latest, at: self.at, ..event });
        self.news = true;
    }

    /// There is something that observers have not been woken for.
    pub(crate) fn has_news(&self) -> bool {
        self.news
    }

    /// Moves those who wait for events to `wakes`, if there are any events.
    pub(crate) fn wake(&mut self, wakes: &mut WakeList) {
        if std::mem::take(&mut self.news) {
            self.wakers.take_all(wakes);
        }
    }

    /// The pool has ended: there is news for all, though no event.
    pub(crate) fn finish(&mut self) {
        self.news = true;
    }

    fn join(&mut self) -> u64 {
        self.observers += 1;
        self.latest
    }

    fn part(&mut self) -> VecDeque<DeviceEvent> {
        self.observers -= 1;
        // to be dropped outside the lock
        if self.observers == 0 { std::mem::take(&mut self.events) } else { VecDeque::new() }
    }

    /// The first event after the one numbered `seen`, and how many between the two are gone.
    fn after(&self, seen: u64) -> Option<(u64, &DeviceEvent)> {
        let first = self.events.front()?.number;
        let missed = first.saturating_sub(seen + 1);
        let index = (seen + 1).saturating_sub(first);
        Some((missed, self.events.get(usize::try_from(index).ok()?)?))
    }
}

/// Somebody who keeps the ring being written.
struct Observer {
    core: Arc<Core>,
    seen: u64,
    missed: u64,
}

impl Observer {
    fn new(core: &Arc<Core>) -> Self {
        let seen = core.book(|book| book.events.join());
        Observer { core: Arc::clone(core), seen, missed: 0 }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _events = self.core.book(|book| book.events.part());
    }
}

/// Follows the events of a pool, from the moment when it was asked for.
///
/// The pool never waits for it: it holds the latest events up to a number, and who comes late misses some, and knows how
/// many. It ends when the pool has ended and the last event was seen.
pub struct EventStream {
    observer: Observer,
    place: Option<usize>,
}

impl EventStream {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        EventStream { observer: Observer::new(core), place: None }
    }

    /// How many events were gone before they could be seen, so far.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.observer.missed
    }

    /// The next event; `None` once the pool has ended and all was seen.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub fn recv(&mut self) -> NextEvent<'_> {
        NextEvent { stream: self }
    }

    /// The next event, if there is one now.
    pub fn try_recv(&mut self) -> Option<DeviceEvent> {
        let Observer { core, seen, missed } = &mut self.observer;
        let (gone, event) =
            core.book(|book| book.events.after(*seen).map(|(gone, event)| (gone, event.clone())))?;
        *missed += gone;
        *seen = event.number;
        Some(event)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<DeviceEvent>> {
        // a waker's clone and drop are user code, hence not under the lock
        let mut fresh: Option<Waker> = Some(cx.waker().clone());
        let Observer { core, seen, missed } = &mut self.observer;
        let (seen_so_far, place) = (*seen, self.place);
        enum Found {
            Event(u64, DeviceEvent),
            End,
            Wait(usize, Option<Waker>),
        }
        let found = core.look(|inner| match inner.book.events.after(seen_so_far) {
            Some((gone, event)) => Found::Event(gone, event.clone()),
            None if inner.has_ended() => Found::End,
            None => {
                let fresh = fresh.take().expect("taken once");
                let (place, stale) = inner.book.events.wakers.register(place, fresh);
                Found::Wait(place, stale)
            }
        });
        drop(fresh);
        match found {
            Found::Event(gone, event) => {
                *missed += gone;
                *seen = event.number;
                Poll::Ready(Some(event))
            }
            Found::End => Poll::Ready(None),
            Found::Wait(place, stale) => {
                drop(stale);
                self.place = Some(place);
                Poll::Pending
            }
        }
    }

    /// Writes each event as an event of `tracing`, at level debug under the target `tollgate::device`, until the pool has
    /// ended. A task to spawn.
    #[cfg(feature = "tracing")]
    pub async fn trace(mut self) {
        while let Some(event) = self.recv().await {
            let DeviceEvent { number, job, name, kind, class, what, .. } = &event;
            tracing::debug!(
                target: "tollgate::device",
                device = self.observer.core.device.ordinal,
                pool = self.observer.core.id.get(),
                number,
                job = job.get(),
                name = name.as_str(),
                kind = kind.as_str(),
                class = %class,
                missed = self.observer.missed,
                "{what}"
            );
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let _waker = self.observer.core.book(|book| book.events.wakers.remove(place));
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("seen", &self.observer.seen)
            .field("missed", &self.observer.missed)
            .finish_non_exhaustive()
    }
}

/// The future of [`EventStream::recv`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct NextEvent<'a> {
    stream: &'a mut EventStream,
}

impl Future for NextEvent<'_> {
    type Output = Option<DeviceEvent>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<DeviceEvent>> {
        self.stream.poll_next(cx)
    }
}

/// Keeps the latest events of a pool, to be looked at when something has gone wrong. It needs nobody to run it.
pub struct Recorder {
    observer: Observer,
}

/// What a [`Recorder`] has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Recording {
    /// The latest events since the recorder was made, the oldest first.
    pub events: Vec<DeviceEvent>,
    /// How many there were since then that are gone.
    pub missed: u64,
}

impl Recorder {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Recorder { observer: Observer::new(core) }
    }

    /// What there is now. O(events).
    #[must_use]
    pub fn recording(&self) -> Recording {
        let since = self.observer.seen;
        self.observer.core.book(|book| {
            let ring = &book.events;
            let events = ring.events.iter().filter(|event| event.number > since);
            let missed = ring.after(since).map_or(0, |(missed, _)| missed);
            Recording { events: events.cloned().collect(), missed }
        })
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("since", &self.observer.seen).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    fn event(at: Duration, what: EventKind) -> DeviceEvent {
        let (name, kind) = ("job".into(), DeviceKind::EXECUTION);
        DeviceEvent { number: 0, at, job: JobId::new(1), name, kind, class: kind.class(), what }
    }

    /// DEV-15
    #[test]
    fn events_are_in_the_order_of_their_times_whoever_looked_at_the_clock_first() {
        let mut ring = Ring::new(4);
        let second = Duration::from_secs(1);
        ring.push(event(second * 2, EventKind::CancellationRequested));
        ring.push(event(second, EventKind::Ended(Outcome::Cancelled)));
        ring.push(event(second * 3, EventKind::Enqueued));
        let seen: Vec<_> = ring.events.iter().map(|it| (it.number, it.at.as_secs())).collect();
        assert_eq!(seen, [(1, 2), (2, 2), (3, 3)]);
    }

    /// DEV-15
    #[test]
    fn an_event_can_be_read() {
        let say = |what| event(Duration::from_millis(5), what).to_string();
        let started = |worker| say(EventKind::Started { worker });
        assert_eq!(started(Some(3)), "5ms #1 \"job\" (execution, class root) started on worker 3");
        assert!(started(None).ends_with(" started without a worker"), "{}", started(None));
        assert!(say(EventKind::Ended(Outcome::Dropped)).ends_with(" dropped"));
    }
}
