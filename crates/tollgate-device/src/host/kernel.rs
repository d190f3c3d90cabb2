//! Kernels: closures over typed views of device memory.

use super::memory::Block;
use super::order::Touch;
use crate::backend::Cause;
use bytemuck::Pod;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Work for a host device: a closure, with the memory that it uses.
///
/// ```
/// use tollgate_device::backend::Backend;
/// use tollgate_device::host::{HostDevice, HostKernel};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = HostDevice::builder().build()?;
/// device.bind()?;
/// let stream = device.create_stream(0)?;
/// let x = device.allocate(&stream, 400)?;
/// let y = device.allocate(&stream, 400)?;
///
/// let ones = HostKernel::new("ones", (x.write::<f32>(), y.write::<f32>()), |(x, y)| {
///     x.fill(1.0);
///     y.fill(1.0);
/// });
/// device.launch(&stream, ones)?;
///
/// let a = 2.0;
/// // the first half alone
/// let memory = (x.read::<f32>().part(0..50), y.write::<f32>().part(0..50));
/// let saxpy = HostKernel::new("saxpy", memory, move |(x, y)| {
///     y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
/// });
/// device.launch(&stream, saxpy)?;
///
/// let check = HostKernel::new("check", (y.read::<f32>(),), |(y,)| {
///     assert_eq!((y[49], y[50]), (3.0, 1.0));
/// });
/// device.launch(&stream, check)?;
/// device.synchronize_stream(&stream)?;
/// # Ok(())
/// # }
/// ```
///
/// A panic in the closure is a sticky fault of the device, with the panic's message. The closure may block, as a kernel may
/// run long; it occupies one of the device's engine threads meanwhile. It may not call the device: such a call fails with
/// [`Cause::DriverThread`]. One that captures a [`HostDevice`](super::HostDevice) keeps that device until it has run.
///
/// Kernels of two streams that use parts of the same memory take turns, unless all of them only read it.
#[must_use = "a kernel does nothing unless it is launched"]
pub struct HostKernel {
    pub(super) name: Cow<'static, str>,
    pub(super) requests: Vec<Request>,
    body: Box<Body>,
}

/// Says whether the parts were what the arguments are views of.
type Body = dyn for<'a> FnOnce(Vec<Part<'a>>) -> bool + Send;

impl HostKernel {
    /// A kernel that gets views of `memory`: a tuple of up to eight [`read`](super::HostMemory::read) and
    /// [`write`](super::HostMemory::write). What does not fit the memory is found by the launch.
    pub fn new<A, F>(name: impl Into<Cow<'static, str>>, memory: A, body: F) -> Self
    where
        A: Arguments,
        F: for<'a> FnOnce(A::Views<'a>) + Send + 'static,
    {
        HostKernel {
            name: name.into(),
            requests: memory.requests(),
            body: Box::new(move |parts| {
                let Some(views) = A::views(parts) else { return false };
                body(views);
                true
            }),
        }
    }

    /// What faults call it by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is wrong with what it uses, whatever else is going on.
    pub(super) fn check(&self) -> Result<(), Cause> {
        for request in &self.requests {
            request.check()?;
        }
        match Plan::of(&self.requests) {
            Ok(_) => Ok(()),
            Err(memory) => Err(Cause::Overlap { memory }),
        }
    }

    /// Runs it on this thread. The caller contains its panics.
    pub(super) fn run(self) -> Result<(), String> {
        let HostKernel { name, requests, body } = self;
        let plan = Plan::of(&requests).map_err(|memory| format!("memory #{memory} overlaps"))?;
        for share in &plan.shares {
            share.block.touch()?;
        }
        // in the order of the blocks' numbers: see `memory::copy`
        let mut guards = Vec::with_capacity(plan.shares.len());
        for share in &plan.shares {
            guards.push(if share.write {
                Guard::Write(share.block.store.write())
            } else {
                Guard::Read(share.block.store.read())
            });
        }
        let mut parts: Vec<Option<Part<'_>>> = requests.iter().map(|_| None).collect();
        for (share, guard) in plan.shares.iter().zip(&mut guards) {
            share.deal(guard, &requests, &mut parts)?;
        }
        if body(parts.into_iter().map(Option::unwrap_or_default).collect()) {
            Ok(())
        } else {
            Err(format!("kernel {name:?} did not get the memory that its launch had checked"))
        }
    }
}

enum Guard<'a> {
    Read(std::sync::RwLockReadGuard<'a, super::memory::Store>),
    Write(std::sync::RwLockWriteGuard<'a, super::memory::Store>),
}

/// How the memory of a kernel is shared out among its arguments.
struct Plan<'r> {
    /// One per block, in the order of their numbers.
    shares: Vec<Share<'r>>,
}

struct Share<'r> {
    block: &'r Block,
    write: bool,
    /// Bytes that no other cluster has, in order; each with the requests that lie in it.
    clusters: Vec<(Range<usize>, Vec<usize>)>,
}

impl<'r> Plan<'r> {
    /// Or the number of the memory of which two requests want the same bytes, and not both to read them.
    fn of(requests: &'r [Request]) -> Result<Self, u64> {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&at| (requests[at].block.number, requests[at].range.start));
        let mut shares: Vec<Share<'r>> = Vec::new();
        for at in order {
            let request = &requests[at];
            let block: &'r Block = &request.block;
            let range = request.range.clone();
            // what uses no bytes needs none to be there: nothing orders it before a free
            if range.is_empty() {
                continue;
            }
            if shares.last().is_none_or(|share| !std::ptr::eq(share.block, block)) {
                shares.push(Share { block, write: false, clusters: Vec::new() });
            }
            let Some(share) = shares.last_mut() else { continue };
            share.write |= request.write;
            match share.clusters.last_mut() {
                Some((cluster, members)) if range.start < cluster.end => {
                    if request.write || members.iter().any(|&member| requests[member].write) {
                        return Err(block.number);
                    }
                    cluster.end = cluster.end.max(range.end);
                    members.push(at);
                }
                _ => share.clusters.push((range, vec![at])),
            }
        }
        Ok(Plan { shares })
    }
}

impl Share<'_> {
    fn deal<'a>(
        &self,
        guard: &'a mut Guard<'_>,
        requests: &[Request],
        parts: &mut [Option<Part<'a>>],
    ) -> Result<(), String> {
        match guard {
            Guard::Read(store) => {
                let bytes = store.bytes(self.block.bytes).ok_or_else(|| self.block.gone())?;
                for (_, members) in &self.clusters {
                    for &at in members {
                        parts[at] = Some(Part::Shared(&bytes[requests[at].range.clone()]));
                    }
                }
            }
            Guard::Write(store) => {
                let mut rest =
                    store.bytes_mut(self.block.bytes).ok_or_else(|| self.block.gone())?;
                let mut base = 0;
                for (cluster, members) in &self.clusters {
                    let (_, tail) = rest.split_at_mut(cluster.start - base);
                    let (bytes, tail) = tail.split_at_mut(cluster.len());
                    rest = tail;
                    base = cluster.end;
                    match members[..] {
                        [at] if requests[at].write => parts[at] = Some(Part::Exclusive(bytes)),
                        _ => {
                            let bytes: &'a [u8] = bytes;
                            for &at in members {
                                let Range { start, end } = requests[at].range;
                                let within = start - cluster.start..end - cluster.start;
                                parts[at] = Some(Part::Shared(&bytes[within]));
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for HostKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostKernel")
            .field("name", &self.name)
            .field("memory", &self.requests)
            .finish_non_exhaustive()
    }
}

/// Bytes that a kernel uses, and what it takes them for.
#[derive(Clone)]
#[expect(unnameable_types, reason = "hidden: what arguments and kernels say to each other")]
pub struct Request {
    pub(super) block: Arc<Block>,
    /// In bytes; whether the memory has them is checked by the launch.
    range: Range<usize>,
    write: bool,
    element: usize,
    align: usize,
}

impl Request {
    fn all<T: Pod>(block: Arc<Block>, write: bool) -> Self {
        let range = 0..block.bytes;
        Request { block, range, write, element: size_of::<T>(), align: align_of::<T>() }
    }

    fn part(&mut self, elements: Range<usize>) {
        // an end that no memory reaches is out of range, and not wrapped into it
        let Range { start, end } = elements;
        self.range = start.saturating_mul(self.element)..end.saturating_mul(self.element);
    }

    pub(super) fn touch(&self) -> Touch {
        Touch { start: self.range.start, end: self.range.end, write: self.write }
    }

    fn check(&self) -> Result<(), Cause> {
        let Request { block, range, element, align, .. } = self;
        check_range(range.clone(), block.bytes)?;
        // a type of no size has no whole number of elements anywhere
        if range.len().checked_rem(*element) != Some(0) || range.start % align != 0 {
            return Err(Cause::Misaligned {
                offset: range.start,
                bytes: range.len(),
                size: *element,
                align: *align,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("memory", &self.block.number)
            .field("range", &self.range)
            .field("write", &self.write)
            .finish_non_exhaustive()
    }
}

/// Whether memory of `size` bytes has these.
pub(super) fn check_range(range: Range<usize>, size: usize) -> Result<(), Cause> {
    if range.start <= range.end && range.end <= size {
        return Ok(());
    }
    Err(Cause::OutOfRange { offset: range.start, bytes: range.len(), size })
}

/// Bytes of a kernel's memory while it runs.
#[derive(Debug)]
#[expect(unnameable_types, reason = "hidden: what kernels and arguments say to each other")]
pub enum Part<'a> {
    /// Others may read them at the same time.
    Shared(&'a [u8]),
    /// Nobody else has them.
    Exclusive(&'a mut [u8]),
}

impl Default for Part<'_> {
    fn default() -> Self {
        Part::Shared(&[])
    }
}

/// Memory that a kernel reads as elements of type `T`: a `&[T]`.
pub struct Read<T> {
    request: Request,
    element: PhantomData<fn() -> T>,
}

/// Memory that a kernel reads and writes as elements of type `T`: a `&mut [T]`.
pub struct Write<T> {
    request: Request,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> Read<T> {
    pub(super) fn all(block: Arc<Block>) -> Self {
        Read { request: Request::all::<T>(block, false), element: PhantomData }
    }

    /// Only these elements.
    #[must_use]
    pub fn part(mut self, elements: Range<usize>) -> Self {
        self.request.part(elements);
        self
    }
}

impl<T: Pod> Write<T> {
    pub(super) fn all(block: Arc<Block>) -> Self {
        Write { request: Request::all::<T>(block, true), element: PhantomData }
    }

    /// Only these elements.
    #[must_use]
    pub fn part(mut self, elements: Range<usize>) -> Self {
        self.request.part(elements);
        self
    }
}

impl<T> fmt::Debug for Read<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.request, f)
    }
}

impl<T> fmt::Debug for Write<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.request, f)
    }
}

/// One of a kernel's arguments: [`Read`] or [`Write`].
pub trait Argument: sealed::Sealed + Send + 'static {
    /// What the closure gets for it.
    type View<'a>;
    #[doc(hidden)]
    fn request(self) -> Request;
    /// `None` when the bytes are not what the launch has checked.
    #[doc(hidden)]
    fn view(part: Part<'_>) -> Option<Self::View<'_>>;
}

impl<T: Pod + Send + Sync> Argument for Read<T> {
    type View<'a> = &'a [T];
    fn request(self) -> Request {
        self.request
    }
    fn view(part: Part<'_>) -> Option<&[T]> {
        match part {
            // of what is empty no alignment is asked
            Part::Shared([]) => Some(&[]),
            Part::Shared(bytes) => bytemuck::try_cast_slice(bytes).ok(),
            Part::Exclusive(_) => None,
        }
    }
}

impl<T: Pod + Send + Sync> Argument for Write<T> {
    type View<'a> = &'a mut [T];
    fn request(self) -> Request {
        self.request
    }
    fn view(part: Part<'_>) -> Option<&mut [T]> {
        match part {
            Part::Exclusive(bytes) => bytemuck::try_cast_slice_mut(bytes).ok(),
            Part::Shared(bytes) => bytes.is_empty().then(Default::default),
        }
    }
}

/// The arguments of a kernel: a tuple of up to eight [`Read`] and [`Write`].
pub trait Arguments: sealed::Sealed + Send + 'static {
    /// What the closure gets: a tuple of as many slices.
    type Views<'a>;
    #[doc(hidden)]
    fn requests(self) -> Vec<Request>;
    #[doc(hidden)]
    fn views(parts: Vec<Part<'_>>) -> Option<Self::Views<'_>>;
}

mod sealed {
    #[expect(unnameable_types, reason = "which keeps the traits from being implemented elsewhere")]
    pub trait Sealed {}
    impl<T> Sealed for super::Read<T> {}
    impl<T> Sealed for super::Write<T> {}
}

macro_rules! arguments {
    ($($name:ident)*) => {
        impl<$($name: Argument),*> sealed::Sealed for ($($name,)*) {}

        impl<$($name: Argument),*> Arguments for ($($name,)*) {
            type Views<'a> = ($($name::View<'a>,)*);

            #[allow(non_snake_case, reason = "a type's name is its value's")]
            fn requests(self) -> Vec<Request> {
                let ($($name,)*) = self;
                vec![$($name.request()),*]
            }

            #[allow(unused_mut, unused_variables, clippy::unused_unit, reason = "there may be no argument")]
            fn views(parts: Vec<Part<'_>>) -> Option<Self::Views<'_>> {
                let mut parts = parts.into_iter();
                Some(($($name::view(parts.next()?)?,)*))
            }
        }
    };
}

arguments!();
arguments!(A);
arguments!(A B);
arguments!(A B C);
arguments!(A B C D);
arguments!(A B C D E);
arguments!(A B C D E F);
arguments!(A B C D E F G);
arguments!(A B C D E F G H);
