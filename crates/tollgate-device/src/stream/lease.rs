use super::engine::{Engine, Held, Mark, Waiter, What};
use super::lines::LineKey;
use super::{DEFAULT_SPIN, DEFAULT_STREAMS, DEFAULT_WATCHDOG};
use crate::backend::{Backend, Cause, DriverError, ErrorClass, Operation};
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tollgate_admission::{
    Acquire, AcquireError, Budget, DEFAULT_MAX_WAITING, Deadline, LaneConfig, Permit,
    TryAcquireError,
};

const LANE: &str = "streams";

/// A bounded number of a device's streams. Clones share it.
///
/// When the last clone is dropped nobody gets a stream any more. What is on lease goes on, and what is parked is looked after
/// until the device has passed it. One thread does that, and tells those who wait; it starts when there is something to look
/// for, and ends after the last.
///
/// Streams are kept for the next lease, by priority. Giving one out, and taking one back whose work has passed, is O(log
/// priorities) and one call of the driver each.
///
/// ```
/// use std::time::Duration;
/// use tollgate_device::backend::Backend;
/// use tollgate_device::host::HostDevice;
/// use tollgate_device::stream::{StreamLeaseError, StreamPool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = HostDevice::builder().build()?;
/// device.bind()?;
/// let streams = StreamPool::builder(device).streams(1).watchdog(Duration::from_millis(1)).build()?;
/// let lease = streams.try_lease(-5)?;
/// assert!(matches!(streams.try_lease(-5), Err(StreamLeaseError::Busy(_))));
/// assert_eq!((streams.stats().capacity, streams.stats().leased), (1, 1));
/// # drop(lease);
/// # Ok(())
/// # }
/// ```
pub struct StreamPool<B: Backend> {
    owner: Arc<Owner<B>>,
}

struct Owner<B: Backend>(Arc<Engine<B>>);

impl<B: Backend> Drop for Owner<B> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<B: Backend> Clone for StreamPool<B> {
    fn clone(&self) -> Self {
        StreamPool { owner: Arc::clone(&self.owner) }
    }
}

/// What a [`StreamPool`] is to be like.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct StreamPoolBuilder<B> {
    backend: B,
    streams: u32,
    max_waiting: usize,
    spin: Duration,
    watchdog: Duration,
}

/// Why there is no pool of streams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamPoolError {
    /// Nobody could ever get one.
    #[error("a pool has at least 1 stream, not 0")]
    NoStreams,
    /// The device would be asked without a pause.
    #[error("the watchdog's period is 0")]
    NoPeriod,
}

impl<B: Backend> StreamPoolBuilder<B> {
    /// How many streams there may be, of all priorities together; [`DEFAULT_STREAMS`] unless given. Those that are parked
    /// count.
    pub fn streams(mut self, streams: u32) -> Self {
        self.streams = streams;
        self
    }

    /// How many may wait for one; [`DEFAULT_MAX_WAITING`] unless given, and 0 is none.
    pub fn max_waiting(mut self, leases: usize) -> Self {
        self.max_waiting = leases;
        self
    }

    /// How long a [`Completion`] asks the device again and again when it is first polled, before it waits to be told;
    /// [`DEFAULT_SPIN`] unless given. The thread that polls does nothing else meanwhile; zero asks once.
    pub fn spin(mut self, span: Duration) -> Self {
        self.spin = span;
        self
    }

    /// How long the driver may stay silent before the device is asked; [`DEFAULT_WATCHDOG`] unless given. No completion, and
    /// no fault, is told later than about this after it came about, whatever the driver does. Costs nothing while nobody
    /// waits.
    pub fn watchdog(mut self, period: Duration) -> Self {
        self.watchdog = period;
        self
    }

    /// Builds the pool. Streams are created when they are wanted, and the thread that looks after them starts then.
    ///
    /// # Errors
    ///
    /// [`StreamPoolError`].
    pub fn build(self) -> Result<StreamPool<B>, StreamPoolError> {
        let StreamPoolBuilder { backend, streams, max_waiting, spin, watchdog } = self;
        if watchdog.is_zero() {
            return Err(StreamPoolError::NoPeriod);
        }
        let lane = LaneConfig::new(LANE).max_waiting(max_waiting);
        let budget = Budget::builder().capacity(u64::from(streams)).lane(lane).build();
        // a lane without reservations fits every capacity but none
        let budget = budget.map_err(|_| StreamPoolError::NoStreams)?;
        let lane = budget.lane(LANE).map_err(|_| StreamPoolError::NoStreams)?;
        let engine = Engine::new(backend, budget, lane, spin, watchdog);
        Ok(StreamPool { owner: Arc::new(Owner(engine)) })
    }
}

impl<B: Backend> StreamPool<B> {
    /// Starts a description of a pool of a device's streams.
    pub fn builder(backend: B) -> StreamPoolBuilder<B> {
        StreamPoolBuilder {
            backend,
            streams: DEFAULT_STREAMS,
            max_waiting: DEFAULT_MAX_WAITING,
            spin: DEFAULT_SPIN,
            watchdog: DEFAULT_WATCHDOG,
        }
    }

    fn engine(&self) -> &Arc<Engine<B>> {
        &self.owner.0
    }

    /// A stream of this priority, when it is this caller's turn. Lower numbers go first on the device; who waits here is
    /// served in order of arrival, whatever the priority.
    pub fn lease(&self, priority: i32) -> LeaseStream<B> {
        let acquire = self.engine().lane.acquire();
        LeaseStream { engine: Arc::clone(self.engine()), priority, acquire }
    }

    /// A stream of this priority, if one can be had without waiting.
    ///
    /// # Errors
    ///
    /// As for [`lease`](Self::lease), and [`StreamLeaseError::Busy`].
    pub fn try_lease(&self, priority: i32) -> Result<StreamLease<B>, StreamLeaseError> {
        let engine = self.engine();
        check(engine, priority)?;
        let permit = engine.lane.try_acquire().map_err(StreamLeaseError::Busy)?;
        StreamLease::new(engine, priority, permit)
    }

    /// All figures. Those of the bound and those of the streams are read one after the other.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        self.engine().stats()
    }
}

/// A priority that the device does not have is refused before anybody waits.
fn check<B: Backend>(engine: &Engine<B>, priority: i32) -> Result<(), StreamLeaseError> {
    let device = engine.backend.info();
    let range = device.priorities;
    if range.contains(priority) {
        return Ok(());
    }
    let cause = Cause::Priority { asked: priority, range };
    Err(StreamLeaseError::Driver(DriverError::new(device.ordinal, Operation::CreateStream, cause)))
}

impl<B: Backend> fmt::Debug for StreamPool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPool").field("stats", &self.stats()).finish()
    }
}

/// What goes on in a [`StreamPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamStats {
    /// How many streams there may be.
    pub capacity: u64,
    /// How many there are.
    pub streams: u64,
    /// Those that are on lease.
    pub leased: u64,
    /// Those whose lease is over, and whose work the device has not passed.
    pub parked: u64,
    /// What parked streams hold, and what leases gave up, that the device has not passed.
    pub held: u64,
    /// Points that somebody or something waits for.
    pub pending: u64,
    /// Who waits for a stream.
    pub waiting: usize,
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamLeaseError {
    /// It was not this caller's turn in time, or never will be.
    #[error(transparent)]
    Refused(AcquireError),
    /// It would have had to wait.
    #[error(transparent)]
    Busy(TryAcquireError),
    /// The driver refused: the device has no such priority, the thread is not bound to it, or it is broken.
    #[error(transparent)]
    Driver(DriverError),
}

/// The future of [`StreamPool::lease`].
///
/// # Errors
///
/// [`StreamLeaseError`]: the device has no such priority, as many wait as may, the deadline passed, the pool is gone, or the
/// driver failed. It has to be polled on a thread to which the device is bound, since it may create the stream.
///
/// # Cancel safety
///
/// Dropping it gives up its place.
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "futures do nothing unless awaited"]
pub struct LeaseStream<B: Backend> {
    engine: Arc<Engine<B>>,
    priority: i32,
    acquire: Acquire,
}

impl<B: Backend> LeaseStream<B> {
    /// Until when it may wait; the earliest one given counts. Without effect once it was polled.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.acquire = self.acquire.until(deadline);
        self
    }
}

impl<B: Backend> Future for LeaseStream<B> {
    type Output = Result<StreamLease<B>, StreamLeaseError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        check(&self.engine, self.priority)?;
        let permit = std::task::ready!(Pin::new(&mut self.acquire).poll(cx));
        let permit = permit.map_err(StreamLeaseError::Refused)?;
        Poll::Ready(StreamLease::new(&self.engine, self.priority, permit))
    }
}

impl<B: Backend> fmt::Debug for LeaseStream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStream").field("priority", &self.priority).finish_non_exhaustive()
    }
}

/// A stream for a while. It can be used wherever the backend wants its stream.
///
/// What its work uses is to be kept until the device has passed it: [`hold`](Self::hold) does that.
///
/// Dropping it, on any thread and in the middle of its work, gives the stream back once the device has passed the work; it is
/// parked until then, with what it holds. It does not wait for the device. After a fault what it holds is dropped, and the
/// stream is not used again.
///
/// ```
/// use tollgate_device::backend::Backend;
/// use tollgate_device::host::{HostDevice, HostKernel};
/// use tollgate_device::stream::StreamPool;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = HostDevice::builder().build()?;
/// device.bind()?;
/// let streams = StreamPool::builder(device.clone()).build()?;
/// let mut lease = streams.try_lease(0)?;
/// let (scratch, result) = (device.allocate(&lease, 64)?, device.allocate(&lease, 8)?);
/// device.launch(&lease, HostKernel::new("first", (scratch.write::<u8>(),), |(bytes,)| bytes.fill(1)))?;
/// // dropped when the device has come to this point
/// lease.retire(scratch);
/// device.launch(&lease, HostKernel::new("second", (result.write::<u8>(),), |(bytes,)| bytes.fill(2)))?;
/// // dropped when the device has done all that the lease gave it
/// lease.hold(result);
/// drop(lease);
/// # Ok(())
/// # }
/// ```
pub struct StreamLease<B: Backend> {
    engine: Arc<Engine<B>>,
    stream: Arc<B::Stream>,
    line: LineKey,
    priority: i32,
    held: Vec<Held>,
    permit: Option<Permit>,
}

impl<B: Backend> StreamLease<B> {
    fn new(
        engine: &Arc<Engine<B>>,
        priority: i32,
        permit: Permit,
    ) -> Result<Self, StreamLeaseError> {
        let (stream, line) = engine.take(priority).map_err(StreamLeaseError::Driver)?;
        Ok(StreamLease {
            engine: Arc::clone(engine),
            stream,
            line,
            priority,
            held: Vec::new(),
            permit: Some(permit),
        })
    }

    /// The priority, as it was asked for.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Keeps something for as long as the lease lasts, and then until the device has passed the work.
    pub fn hold(&mut self, held: impl Send + 'static) {
        self.held.push(Box::new(held));
    }

    /// Drops something once the device has passed what the stream was given so far, or has failed. On a thread to which the
    /// device is not bound, what the stream is given at the same time may count as well.
    pub fn retire(&self, held: impl Send + 'static) {
        // a mark that can't be made now is made later, when the stream has been given more
        let mark = self.engine.mark(&self.stream).unwrap_or_default();
        self.engine.then(self.line, mark, What::Drop(Box::new(held)));
    }

    /// Resolves when the device has passed what the stream was given so far. It may be dropped or awaited later than the lease.
    ///
    /// On a thread to which the device is not bound, what the stream is given at the same time may be waited for as well.
    pub fn completion(&self) -> Completion<B> {
        let waiter = Waiter::new();
        let engine = Arc::clone(&self.engine);
        let mark = match engine.mark(&self.stream) {
            Ok(mark) => {
                engine.then(self.line, mark.clone(), What::Tell(Arc::clone(&waiter)));
                mark
            }
            Err(error) => {
                waiter.settle(Err(error));
                None
            }
        };
        Completion { engine, waiter, mark }
    }
}

impl<B: Backend> Deref for StreamLease<B> {
    type Target = B::Stream;

    fn deref(&self) -> &B::Stream {
        &self.stream
    }
}

impl<B: Backend> Drop for StreamLease<B> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let (held, priority) = (std::mem::take(&mut self.held), self.priority);
        let engine = &self.engine;
        // nearly always: the work was awaited
        let passed = engine.is_clear(self.line)
            && engine.backend.is_bound()
            && matches!(engine.backend.query_stream(&self.stream), Ok(true));
        if passed {
            drop(held);
            engine.free(self.line, priority, permit);
        } else {
            engine.then(self.line, None, What::Free { held, permit, priority });
        }
    }
}

impl<B: Backend> fmt::Debug for StreamLease<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLease")
            .field("stream", &self.stream)
            .field("priority", &self.priority)
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

/// The future of [`StreamLease::completion`]: that the device has passed a point. It takes no thread while it waits, and any
/// executor may poll it. On its first poll it asks the device for as long as [`spin`](StreamPoolBuilder::spin) says, which
/// blocks; polled after it has resolved it says the same again.
///
/// ```
/// use tollgate_device::backend::{Backend, ErrorClass};
/// use tollgate_device::host::{HostDevice, HostKernel};
/// use tollgate_device::stream::StreamPool;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rt = tokio::runtime::Builder::new_current_thread().build()?;
/// # rt.block_on(async {
/// let device = HostDevice::builder().build()?;
/// device.bind()?;
/// let streams = StreamPool::builder(device.clone()).build()?;
/// let lease = streams.lease(0).await?;
/// device.launch(&lease, HostKernel::new("works", (), |()| {}))?;
/// lease.completion().await?;
///
/// device.launch(&lease, HostKernel::new("breaks", (), |()| panic!("out of bounds")))?;
/// let fault = lease.completion().await.unwrap_err();
/// assert_eq!(fault.class(), ErrorClass::Sticky);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// ```
///
/// # Errors
///
/// The device's fault, or its loss, also when the driver says nothing: about the [watchdog's
/// period](StreamPoolBuilder::watchdog) later at most. Success is never reported on the driver's word alone: the device was
/// asked.
///
/// # Cancel safety
///
/// Dropping it changes nothing about the work.
#[must_use = "futures do nothing unless awaited"]
pub struct Completion<B: Backend> {
    engine: Arc<Engine<B>>,
    waiter: Arc<Waiter>,
    /// Until it was first polled.
    mark: Option<Mark<B>>,
}

impl<B: Backend> Future for Completion<B> {
    type Output = Result<(), DriverError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(mark) = self.mark.take() {
            let (engine, started) = (&self.engine, Instant::now());
            loop {
                match engine.backend.query_event(&mark.event) {
                    Ok(true) => {
                        self.waiter.settle(Ok(()));
                        break;
                    }
                    // on a thread to which the device is not bound, or that was unbound by a reset
                    Err(error) if error.class() == ErrorClass::Request => break,
                    Err(error) => {
                        self.waiter.settle(Err(error));
                        break;
                    }
                    Ok(false) if started.elapsed() >= engine.spin => break,
                    Ok(false) => std::hint::spin_loop(),
                }
            }
        }
        self.waiter.poll(cx)
    }
}

impl<B: Backend> fmt::Debug for Completion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}
