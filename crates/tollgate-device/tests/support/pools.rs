//! What the tests of pools share: pools, doors that jobs stop at, waits that give up, and what must be left at the end.

use super::PATIENCE;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;
use tokio::sync::Semaphore;
use tollgate_device::admission::ManualTime;
use tollgate_device::admission::{Deadline, JobId};
use tollgate_device::host::HostDevice;
use tollgate_device::{
    Attempt, Class, DeviceEvent, DevicePool, DevicePoolBuilder, DeviceProfile, DeviceSnapshot,
    EventKind, EventStream, JobError, Outcome, Reason, Refused,
};

pub(crate) type Pool = DevicePool<HostDevice>;

pub(crate) fn builder(profile: DeviceProfile) -> DevicePoolBuilder<HostDevice> {
    let device = HostDevice::builder().name("gpu").build().expect("a host device");
    DevicePool::builder(device, profile)
}

pub(crate) fn pool(profile: DeviceProfile) -> Pool {
    builder(profile).build().expect("a pool")
}

/// A pool whose clock stands still unless the test moves it.
pub(crate) fn timed(profile: DeviceProfile) -> (Pool, ManualTime) {
    let time = ManualTime::new();
    let pool = builder(profile).time(Arc::new(time.clone())).build().expect("a pool");
    (pool, time)
}

/// So far from now, by that clock.
pub(crate) fn after(time: &ManualTime, span: std::time::Duration) -> Deadline {
    use tollgate_device::admission::TimeSource;
    Deadline::at(time.now() + span)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for the future on this thread, and fails instead of hanging.
#[track_caller]
pub(crate) fn get<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker: Waker = Arc::new(Unpark(std::thread::current())).into();
    let until = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "waited in vain");
        std::thread::park_timeout(left);
    }
}

/// One poll, by nobody who wants to be woken.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// One poll, which must not be the last.
#[track_caller]
pub(crate) fn start<F: Future + Unpin>(future: &mut F) {
    assert!(poll(future).is_pending(), "it had to wait, and did not");
}

/// Where jobs stop until the test lets them go on: async ones without their thread, others with it.
pub(crate) struct Door {
    way: Way,
    began: Receiver<()>,
}

#[derive(Clone)]
pub(crate) struct Way {
    open: Arc<Semaphore>,
    shut: Arc<(Mutex<bool>, Condvar)>,
    began: Sender<()>,
}

impl Way {
    /// Says that it has come, and waits.
    pub(crate) async fn pass(self) {
        let _ = self.began.send(());
        let _ = self.open.acquire().await;
    }

    /// Says that it has come, and keeps its thread waiting.
    pub(crate) fn block(self) {
        let _ = self.began.send(());
        let shut = self.shut.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_open, late) = self
            .shut
            .1
            .wait_timeout_while(shut, PATIENCE, |open| !*open)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!late.timed_out(), "a door stayed shut");
    }

    pub(crate) fn open(&self) {
        *self.shut.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shut.1.notify_all();
        self.open.close();
    }
}

impl Door {
    pub(crate) fn new() -> Self {
        let (send, began) = channel();
        let way = Way { open: Arc::new(Semaphore::new(0)), shut: Arc::default(), began: send };
        Door { way, began }
    }

    pub(crate) fn way(&self) -> Way {
        self.way.clone()
    }

    pub(crate) fn pass(&self) -> impl Future<Output = ()> + Send + 'static {
        self.way().pass()
    }

    /// Waits until one more has come.
    #[track_caller]
    pub(crate) fn wait(&self) {
        self.began.recv_timeout(PATIENCE).expect("nobody has come to the door");
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, count: usize) {
        (0..count).for_each(|_| self.wait());
    }

    pub(crate) fn has_come(&self) -> bool {
        self.began.try_recv().is_ok()
    }

    pub(crate) fn open(&self) {
        self.way.open();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // a test that failed leaves no thread behind
        self.open();
    }
}

/// Panics when it is dropped, with a payload that panics when it is dropped in its turn.
#[derive(Debug)]
pub(crate) struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::panic_any(Fuse);
        }
    }
}

pub(crate) struct Fuse;

impl Drop for Fuse {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a payload was dropped");
        }
    }
}

/// Calls a function when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A waker that counts its calls.
#[derive(Default)]
pub(crate) struct Rings(AtomicUsize);

impl Rings {
    pub(crate) fn new() -> (Arc<Rings>, Waker) {
        let rings = Arc::new(Rings::default());
        (Arc::clone(&rings), rings.into())
    }
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that calls `f`.
pub(crate) fn waker(f: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Call<F>(F);
    impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Arc::new(Call(f)).into()
}

#[track_caller]
pub(crate) fn refused<T>(result: Result<T, JobError>) -> Refused {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.refused().cloned().unwrap_or_else(|| panic!("not refused: {error}")),
    }
}

#[track_caller]
pub(crate) fn reason<T>(result: Result<T, JobError>) -> Reason {
    match result {
        Ok(_) => panic!("it has a result"),
        Err(error) => error.into_reason(),
    }
}

pub(crate) fn free(pool: &Pool, class: Class) -> u64 {
    pool.snapshot().class(class).expect("all classes are there").free
}

pub(crate) fn admit(pool: &Pool) -> Attempt {
    get(pool.admission()).expect("an attempt")
}

/// Nothing is counted, and every permit is back.
#[track_caller]
pub(crate) fn assert_idle(pool: &Pool) {
    let snapshot = pool.snapshot();
    let DeviceSnapshot { queued, active, executing, ending, attempts, waiting, .. } = snapshot;
    assert_eq!((queued, active, executing, ending, attempts, waiting), (0, 0, 0, 0, 0, 0));
    assert!(snapshot.classes.iter().all(|it| it.free == it.capacity), "{snapshot:?}");
    assert!(pool.jobs().is_empty());
}

/// Waits until nothing is counted any more: whoever has the result of a job that it was told of later may be early.
#[track_caller]
pub(crate) fn settles(pool: &Pool) {
    super::eventually("the pool is idle", || {
        let it = pool.snapshot();
        it.queued + it.active + it.ending + it.attempts == 0
    });
    assert_idle(pool);
}

/// Waits until the pool has ended, and requires that nothing is left of it.
#[track_caller]
pub(crate) fn shut_down(pool: &Pool) {
    let report = get(pool.shutdown(Deadline::after(PATIENCE)));
    assert!(report.complete, "{report}");
    assert!(report.jobs.is_empty() && report.runtime_gone, "{report}");
    assert_idle(pool);
}

/// What there is to read now.
pub(crate) fn read(events: &mut EventStream) -> Vec<DeviceEvent> {
    std::iter::from_fn(|| events.try_recv()).collect()
}

pub(crate) fn of(events: &[DeviceEvent], job: JobId) -> Vec<EventKind> {
    events.iter().filter(|event| event.job == job).map(|event| event.what).collect()
}

/// Each job's events, in the order in which the jobs were accepted.
pub(crate) fn by_job(events: &[DeviceEvent]) -> Vec<Vec<EventKind>> {
    let mut jobs: Vec<_> = events.iter().map(|event| event.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    jobs.into_iter().map(|job| of(events, job)).collect()
}

/// Whether these are the events of a job that has ended: each at most once, in order.
#[track_caller]
pub(crate) fn assert_lifecycle(events: &[EventKind]) {
    assert_eq!(events.first(), Some(&EventKind::Enqueued), "{events:?}");
    assert!(matches!(events.last(), Some(EventKind::Ended(_))), "{events:?}");
    let count = |which: fn(&EventKind) -> bool| events.iter().filter(|it| which(it)).count();
    assert_eq!(count(|it| matches!(it, EventKind::Enqueued)), 1, "{events:?}");
    assert_eq!(count(|it| matches!(it, EventKind::Ended(_))), 1, "{events:?}");
    assert!(count(|it| matches!(it, EventKind::Started { .. })) <= 1, "{events:?}");
    assert!(count(|it| matches!(it, EventKind::CancellationRequested)) <= 1, "{events:?}");
    let started = events.iter().any(|it| matches!(it, EventKind::Started { .. }));
    let needs = |outcome: &Outcome| matches!(outcome, Outcome::Finished | Outcome::Panicked);
    if let Some(EventKind::Ended(outcome)) = events.last() {
        assert!(started || !needs(outcome), "{events:?}");
    }
}

/// Calls the future's waker once, and is over at the next poll.
pub(crate) struct Yield(pub(crate) usize);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.0.checked_sub(1) {
            None => Poll::Ready(()),
            Some(left) => {
                self.0 = left;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}
