use super::control::HostControl;
use super::core::{Core, Entered, Job, Owner};
use super::faults::FaultPlan;
use super::kernel::{HostKernel, check_range};
use super::memory::{Block, HostMemory, HostPinned, Store, copy, fill};
use super::order::Touch;
use super::timeline::Point;
use super::{HostEvent, HostStream, binding};
use crate::backend::{
    Backend, Cause, DeviceInfo, DeviceUuid, DriverError, MemoryInfo, Operation, PriorityRange,
    Signal,
};
use crate::exit::{self, AtExit, ExitPolicy, register};
use crate::sync::plain::{Mutex, RwLock};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How many engine threads a device has unless it is told otherwise.
pub const DEFAULT_ENGINES: usize = 4;

/// Most engine threads that a device may have.
pub const MAX_ENGINES: usize = 256;

/// A device on the CPU. The [module](super) says what it does.
///
/// Clones are the same device. When the last one is dropped, on any thread, the streams finish what they were given, but
/// for what a [fault plan](FaultPlan) stalls, which is dropped; then the threads end. Streams, events and memory do not
/// keep the device, and may be dropped later.
#[derive(Clone)]
pub struct HostDevice {
    owner: Arc<Owner>,
}

/// What a [`HostDevice`] is to be like.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct HostBuilder {
    info: DeviceInfo,
    pinned: u64,
    engines: usize,
    check_order: bool,
    plan: FaultPlan,
    exit: ExitPolicy,
}

/// Why a device could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostBuildError {
    /// A number of engine threads that no device has.
    #[error("a device has 1 to {most} engine threads, not {asked}")]
    Engines {
        /// What was asked for.
        asked: usize,
        /// Most that there may be.
        most: usize,
    },
    /// Priorities of which the greatest goes after the least.
    #[error(
        "the greatest priority, {greatest}, goes after the least, {least}: lower numbers go first"
    )]
    Priorities {
        /// What was given as the greatest.
        greatest: i32,
        /// What was given as the least.
        least: i32,
    },
    /// A device without memory.
    #[error("a device has at least 1 byte of memory")]
    NoMemory,
    /// The system refused a thread.
    #[error("engine thread {number} of {engines} could not be started")]
    Thread {
        /// Which one, from 1.
        number: usize,
        /// How many there were to be.
        engines: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl HostBuilder {
    /// The device's number, 0 unless it is given. Two devices may have the same one; they are not the same device.
    pub fn ordinal(mut self, ordinal: u32) -> Self {
        self.info.ordinal = ordinal;
        self
    }

    /// What the device is known by. Unless it is given, no other device of the process has it.
    pub fn uuid(mut self, uuid: DeviceUuid) -> Self {
        self.info.uuid = uuid;
        self
    }

    /// What the device is called, and its threads after it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.info.name = name.into();
        self
    }

    /// Bytes of device memory, 1 GiB unless given. The host pays for memory only when something is written to it or read.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.info.total_memory = bytes;
        self
    }

    /// Bytes of pinned memory that there may be, 1 GiB unless given.
    pub fn pinned_memory(mut self, bytes: u64) -> Self {
        self.pinned = bytes;
        self
    }

    /// Which priorities streams may have, -5 (first) to 0 (last) unless given. When more streams have something to do than
    /// there are engine threads, those of the greater priority go first.
    pub fn priorities(mut self, greatest: i32, least: i32) -> Self {
        self.info.priorities = PriorityRange { greatest, least };
        self
    }

    /// How many threads do the work, [`DEFAULT_ENGINES`] unless given: so many pieces of work can overlap. Streams that are
    /// stalled, or wait for an event, take none.
    pub fn engines(mut self, engines: usize) -> Self {
        self.engines = engines;
        self
    }

    /// Whether uses of memory that no event orders are refused with [`Cause::Unordered`]; they are, unless this says no.
    pub fn check_order(mut self, check: bool) -> Self {
        self.check_order = check;
        self
    }

    /// What is to go wrong.
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.plan = plan;
        self
    }

    /// What is done about it when the process exits, after the pools that use it: work that has not begun is dropped, and
    /// what has begun is waited for, for 5 seconds unless this says otherwise. A kernel that never ends is then left running.
    pub fn exit(mut self, policy: ExitPolicy) -> Self {
        self.exit = policy;
        self
    }

    /// Builds the device and starts its threads.
    ///
    /// # Errors
    ///
    /// When the numbers don't fit together, or the system refuses a thread; none is left then.
    pub fn build(self) -> Result<HostDevice, HostBuildError> {
        let HostBuilder { info, pinned, engines, check_order, plan, exit } = self;
        if !(1..=MAX_ENGINES).contains(&engines) {
            return Err(HostBuildError::Engines { asked: engines, most: MAX_ENGINES });
        }
        let PriorityRange { greatest, least } = info.priorities;
        if greatest > least {
            return Err(HostBuildError::Priorities { greatest, least });
        }
        if info.total_memory == 0 {
            return Err(HostBuildError::NoMemory);
        }
        let limits = (info.total_memory, pinned);
        let core = Arc::new(Core::new(next_id(), info, limits, check_order, plan));
        let owner = Arc::new(Owner { core });
        for number in 1..=engines {
            if let Err(source) = owner.core.start_engine(number) {
                let core = Arc::clone(&owner.core);
                drop(owner);
                // those that were started have nothing to do
                let _ = core.wait_ended(Duration::MAX);
                return Err(HostBuildError::Thread { number, engines, source });
            }
        }
        register::<HostDevice>(Arc::new(HostAtExit {
            core: Arc::downgrade(&owner.core),
            policy: exit,
        }));
        Ok(HostDevice { owner })
    }
}

/// The device at the exit of the process.
struct HostAtExit {
    core: Weak<Core>,
    policy: ExitPolicy,
}

impl AtExit for HostAtExit {
    fn rank(&self) -> u8 {
        exit::DEVICES
    }

    fn begin(&self) {
        if let Some(core) = self.core.upgrade() {
            core.stop_for_good();
        }
    }

    fn wait(&self, since: Instant) {
        let Some(core) = self.core.upgrade() else { return };
        let left = self.policy.span().map(|span| span.saturating_sub(since.elapsed()));
        if !core.wait_ended(left.unwrap_or(Duration::MAX)) {
            let DeviceInfo { name, ordinal, .. } = &core.info;
            let left = core.stats().running;
            self.policy
                .report(&format_args!("{left} pieces of work of host device {ordinal} {name:?}"));
        }
    }

    fn is_over(&self) -> bool {
        self.core.strong_count() == 0
    }
}

/// Never the same twice in a process.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // nothing is ordered by it
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl HostDevice {
    /// A device with 1 GiB of memory that works, unless it is told otherwise.
    pub fn builder() -> HostBuilder {
        let mut uuid = *b"tollgate\0\0\0\0\0\0\0\0";
        uuid[8..].copy_from_slice(&next_id().to_be_bytes());
        HostBuilder {
            info: DeviceInfo {
                ordinal: 0,
                uuid: DeviceUuid(uuid),
                name: "host".to_owned(),
                total_memory: 1 << 30,
                priorities: PriorityRange { greatest: -5, least: 0 },
            },
            pinned: 1 << 30,
            engines: DEFAULT_ENGINES,
            check_order: true,
            plan: FaultPlan::new(),
            exit: ExitPolicy::within(Duration::from_secs(5)),
        }
    }

    /// What a test needs beside a driver: figures, faults, stalls, the end. It does not keep the device.
    #[must_use]
    pub fn control(&self) -> HostControl {
        HostControl::new(Arc::clone(&self.owner.core))
    }

    fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    fn own(&self, core: &Core, generation: u64, entered: &Entered<'_>) -> Result<(), Cause> {
        if core.id != self.core().id {
            return Err(Cause::OtherDevice { device: core.info.ordinal });
        }
        if generation != entered.state.generation {
            return Err(Cause::BeforeReset);
        }
        Ok(())
    }

    fn own_stream(&self, stream: &HostStream, entered: &Entered<'_>) -> Result<(), Cause> {
        self.own(&stream.core, stream.generation, entered)
    }

    fn own_block(&self, block: &Block, entered: &Entered<'_>) -> Result<(), Cause> {
        self.own(&block.core, block.generation, entered)
    }

    fn own_event(&self, event: &HostEvent, entered: &Entered<'_>) -> Result<(), Cause> {
        self.own(&event.core, event.generation, entered)
    }

    fn refuse<T>(&self, operation: Operation, result: Result<T, Cause>) -> Result<T, DriverError> {
        result.map_err(|cause| self.core().error(operation, cause))
    }

    /// Submits work that uses these bytes of these blocks. Nothing is submitted when there is none to use.
    fn submit(
        &self,
        operation: Operation,
        stream: &HostStream,
        blocks: &[(&Block, Touch)],
        check: impl FnOnce() -> Result<(), Cause>,
        job: impl FnOnce() -> Job,
    ) -> Result<(), DriverError> {
        // declared before the lock is taken: what is left of it is dropped after the unlock
        let mut job = Some(job());
        let entered = self.core().enter(operation)?;
        let checked = self
            .own_stream(stream, &entered)
            .and_then(|()| blocks.iter().try_for_each(|(block, _)| self.own_block(block, &entered)))
            .and_then(|()| check());
        self.refuse(operation, checked)?;
        let uses: Vec<_> = blocks.iter().map(|&(block, touch)| (block.number, touch)).collect();
        self.core().submit(entered, operation, stream.number, &uses, &mut job)
    }

    fn copy(
        &self,
        operation: Operation,
        stream: &HostStream,
        (source, range): (&Arc<Block>, Range<usize>),
        (target, offset): (&Arc<Block>, usize),
    ) -> Result<(), DriverError> {
        let end = offset.saturating_add(range.len());
        let reads = Touch { start: range.start, end: range.end, write: false };
        let writes = Touch { start: offset, end, write: true };
        let same = Arc::ptr_eq(source, target);
        let check = || {
            check_range(range.clone(), source.bytes)?;
            check_range(offset..end, target.bytes)?;
            if same && offset < range.end && range.start < end {
                return Err(Cause::Overlap { memory: source.number });
            }
            Ok(())
        };
        let job = || {
            let (source, target, range) = (Arc::clone(source), Arc::clone(target), range.clone());
            Job::Run("copy".into(), Box::new(move || copy(&source, range, &target, offset)))
        };
        self.submit(operation, stream, &[(source, reads), (target, writes)], check, job)
    }
}

impl Backend for HostDevice {
    type Stream = HostStream;
    type Event = HostEvent;
    type Memory = HostMemory;
    type Pinned = HostPinned;
    type Kernel = HostKernel;

    fn info(&self) -> &DeviceInfo {
        &self.core().info
    }

    fn bind(&self) -> Result<(), DriverError> {
        self.core().bind()
    }

    fn unbind(&self) {
        if binding::bound().is_some_and(|bound| bound.device == self.core().id) {
            binding::bind(None);
        }
    }

    fn is_bound(&self) -> bool {
        let generation = self.core().peek().generation;
        binding::bound() == Some(self.core().binding_of(generation))
    }

    fn create_stream(&self, priority: i32) -> Result<HostStream, DriverError> {
        let operation = Operation::CreateStream;
        let mut entered = self.core().enter(operation)?;
        let range = self.info().priorities;
        if !range.contains(priority) {
            return self.refuse(operation, Err(Cause::Priority { asked: priority, range }));
        }
        let generation = entered.state.generation;
        let number = entered.state.open_stream(priority);
        Ok(HostStream { core: Arc::clone(self.core()), generation, number, priority })
    }

    fn query_stream(&self, stream: &HostStream) -> Result<bool, DriverError> {
        let operation = Operation::QueryStream;
        let mut entered = self.core().enter(operation)?;
        self.refuse(operation, self.own_stream(stream, &entered))?;
        let point = entered.state.timeline.point(stream.number);
        Ok(query(&mut entered, point.as_ref()))
    }

    fn synchronize_stream(&self, stream: &HostStream) -> Result<(), DriverError> {
        let operation = Operation::SynchronizeStream;
        let mut entered = self.core().enter(operation)?;
        self.refuse(operation, self.own_stream(stream, &entered))?;
        match entered.state.timeline.point(stream.number) {
            Some(point) => self.core().wait_for(entered.state, operation, &point),
            None => Ok(()),
        }
    }

    fn create_event(&self) -> Result<HostEvent, DriverError> {
        let entered = self.core().enter(Operation::CreateEvent)?;
        let generation = entered.state.generation;
        Ok(HostEvent { core: Arc::clone(self.core()), generation, point: Mutex::default() })
    }

    fn record(&self, event: &HostEvent, stream: &HostStream) -> Result<(), DriverError> {
        let operation = Operation::Record;
        let mut entered = self.core().enter(operation)?;
        let owned =
            self.own_stream(stream, &entered).and_then(|()| self.own_event(event, &entered));
        self.refuse(operation, owned)?;
        *event.point.lock() = entered.state.timeline.point(stream.number);
        Ok(())
    }

    fn query_event(&self, event: &HostEvent) -> Result<bool, DriverError> {
        let operation = Operation::QueryEvent;
        let mut entered = self.core().enter(operation)?;
        self.refuse(operation, self.own_event(event, &entered))?;
        Ok(query(&mut entered, event.point.lock().as_ref()))
    }

    fn wait_event(&self, stream: &HostStream, event: &HostEvent) -> Result<(), DriverError> {
        let operation = Operation::WaitEvent;
        let mut entered = self.core().enter(operation)?;
        let owned =
            self.own_stream(stream, &entered).and_then(|()| self.own_event(event, &entered));
        self.refuse(operation, owned)?;
        if let Some(point) = &*event.point.lock() {
            entered.state.timeline.wait(stream.number, point);
        }
        Ok(())
    }

    fn synchronize_event(&self, event: &HostEvent) -> Result<(), DriverError> {
        let operation = Operation::SynchronizeEvent;
        let entered = self.core().enter(operation)?;
        self.refuse(operation, self.own_event(event, &entered))?;
        let point = event.point.lock().clone();
        match point {
            Some(point) => self.core().wait_for(entered.state, operation, &point),
            None => Ok(()),
        }
    }

    fn notify(&self, stream: &HostStream, signal: &Signal) -> Result<(), DriverError> {
        let job = || Job::Notify(Some(signal.clone()));
        self.submit(Operation::Notify, stream, &[], || Ok(()), job)
    }

    fn allocate(&self, stream: &HostStream, bytes: usize) -> Result<HostMemory, DriverError> {
        let operation = Operation::Allocate;
        let mut entered = self.core().enter(operation)?;
        self.refuse(operation, self.own_stream(stream, &entered))?;
        let number = entered.state.list(bytes, Some(stream.number));
        let number = self.refuse(operation, number)?;
        let block = self.block(number, entered.state.generation, bytes, Store::Untouched);
        Ok(HostMemory { block })
    }

    fn free(&self, stream: &HostStream, memory: HostMemory) -> Result<(), DriverError> {
        let block = memory.block;
        let whole = Touch { start: 0, end: block.bytes, write: true };
        let job = || {
            let block = Arc::clone(&block);
            let free = move || {
                block.free();
                Ok(())
            };
            Job::Run("free".into(), Box::new(free))
        };
        self.submit(Operation::Free, stream, &[(&block, whole)], || Ok(()), job)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<HostPinned, DriverError> {
        let operation = Operation::AllocatePinned;
        let mut entered = self.core().enter(operation)?;
        let number = entered.state.list(bytes, None);
        let number = self.refuse(operation, number)?;
        let (generation, before) = (entered.state.generation, entered.state.pinned);
        drop(entered);
        // gives the bytes back when there are none to be had
        let mut block = self.block(number, generation, bytes, Store::Untouched);
        let store = Store::zeroed(bytes).ok_or(Cause::OutOfMemory {
            asked: bytes as u64,
            in_use: before.in_use - bytes as u64,
            limit: before.limit,
        });
        let store = self.refuse(operation, store)?;
        if let Some(block) = Arc::get_mut(&mut block) {
            *block.store.get_mut() = store;
        }
        Ok(HostPinned { block })
    }

    fn pinned_bytes<'a>(&self, pinned: &'a mut HostPinned) -> Result<&'a mut [u8], DriverError> {
        let operation = Operation::PinnedBytes;
        let generation = self.core().peek().generation;
        let cause = if pinned.block.core.id != self.core().id {
            Cause::OtherDevice { device: pinned.block.core.info.ordinal }
        } else if pinned.block.generation != generation {
            Cause::BeforeReset
        } else {
            // a copy that has not passed has a share of the block
            let block = Arc::get_mut(&mut pinned.block);
            let bytes = block.and_then(|block| block.store.get_mut().bytes_mut(block.bytes));
            return self.refuse(operation, bytes.ok_or(Cause::InFlight));
        };
        self.refuse(operation, Err(cause))
    }

    fn copy_to_device(
        &self,
        stream: &HostStream,
        source: &HostPinned,
        range: Range<usize>,
        target: &HostMemory,
        offset: usize,
    ) -> Result<(), DriverError> {
        let (source, target) = ((&source.block, range), (&target.block, offset));
        self.copy(Operation::CopyToDevice, stream, source, target)
    }

    fn copy_to_host(
        &self,
        stream: &HostStream,
        source: &HostMemory,
        range: Range<usize>,
        target: &HostPinned,
        offset: usize,
    ) -> Result<(), DriverError> {
        let (source, target) = ((&source.block, range), (&target.block, offset));
        self.copy(Operation::CopyToHost, stream, source, target)
    }

    fn copy_on_device(
        &self,
        stream: &HostStream,
        source: &HostMemory,
        range: Range<usize>,
        target: &HostMemory,
        offset: usize,
    ) -> Result<(), DriverError> {
        let (source, target) = ((&source.block, range), (&target.block, offset));
        self.copy(Operation::CopyOnDevice, stream, source, target)
    }

    fn fill(
        &self,
        stream: &HostStream,
        memory: &HostMemory,
        range: Range<usize>,
        value: u8,
    ) -> Result<(), DriverError> {
        let block = &memory.block;
        let touch = Touch { start: range.start, end: range.end, write: true };
        let check = || check_range(range.clone(), block.bytes);
        let job = || {
            let (block, range) = (Arc::clone(block), range.clone());
            let fill = move || fill(&block, range, value);
            Job::Run("fill".into(), Box::new(fill))
        };
        self.submit(Operation::Fill, stream, &[(block, touch)], check, job)
    }

    fn launch(&self, stream: &HostStream, kernel: HostKernel) -> Result<(), DriverError> {
        let requests = kernel.requests.clone();
        let blocks: Vec<_> = requests.iter().map(|r| (&*r.block, r.touch())).collect();
        let checked = kernel.check();
        let job = || Job::Run(kernel.name.clone(), Box::new(move || kernel.run()));
        self.submit(Operation::Launch, stream, &blocks, || checked, job)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let entered = self.core().enter(Operation::MemoryInfo)?;
        let memory = entered.state.device;
        Ok(MemoryInfo { free: memory.limit - memory.in_use, total: memory.limit })
    }

    fn reset(&self) -> Result<(), DriverError> {
        self.core().reset()
    }
}

impl HostDevice {
    fn block(&self, number: u64, generation: u64, bytes: usize, store: Store) -> Arc<Block> {
        let core = Arc::clone(self.core());
        Arc::new(Block { number, core, generation, bytes, store: RwLock::new(store) })
    }
}

/// Whether the point has passed; the host has seen it then.
fn query(entered: &mut Entered<'_>, point: Option<&Point>) -> bool {
    let timeline = &mut entered.state.timeline;
    let passed = point.is_none_or(|point| timeline.has_passed(point));
    if let Some(point) = point
        && passed
    {
        timeline.see(point);
    }
    passed
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDevice").field("info", self.info()).finish_non_exhaustive()
    }
}
