//! One query as an attempt: admitted as a whole, set up, executed with auxiliary scans, cleaned up.

use std::ops::Range;
use std::sync::Arc;

use tollgate::device::backend::DriverError;
use tollgate::prelude::*;

use crate::columns::{Answer, Columns, Query};
use crate::kernels::{ANSWER_BYTES, Kernels};

/// The parts that a query's rows are scanned in, at the same time. A query's share of auxiliary
/// jobs must be as large.
pub(crate) const SCANS: usize = 3;

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error(transparent)]
    NotAdmitted(#[from] AdmitError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// What a query has on the device from its setup to its cleanup.
#[derive(Debug)]
pub(crate) struct Work<B: Backend> {
    device: B,
    stream: B::Stream,
    keys: B::Memory,
    values: B::Memory,
    total: B::Memory,
    /// Recorded when both columns are on the device.
    loaded: B::Event,
    scans: Vec<Scan<B>>,
}

/// One scan has a stream of its own, so scans overlap, and memory that no other one writes.
#[derive(Debug)]
struct Scan<B: Backend> {
    part: Range<usize>,
    stream: B::Stream,
    hits: B::Memory,
    partial: B::Memory,
    scanned: B::Event,
}

/// Answers the query on the device. `work` is left there for the cleanup, also when this is dropped
/// before its end.
pub(crate) async fn answer<B: Kernels>(
    attempt: &Attempt,
    device: &B,
    columns: &Arc<Columns>,
    query: &Query,
    work: &mut Option<Arc<Work<B>>>,
) -> Result<Answer, QueryError> {
    let (owned, rows) = (device.clone(), query.rows.len());
    let set_up = async move { Work::set_up(owned, rows) };
    let set_up = attempt.job("set up").kind(DeviceKind::SETUP).run(set_up).await??;
    let shared = work.insert(Arc::new(set_up));
    // The attempt's root permit is free again: the setup had it, now the execution does.
    let execution =
        execute(Arc::clone(shared), attempt.handle(), Arc::clone(columns), query.clone());
    attempt.job("execute").run(execution).await?
}

/// The root job. It has a worker from here to its end, so it may wait for the device.
async fn execute<B: Kernels>(
    work: Arc<Work<B>>,
    under: AttemptHandle,
    columns: Arc<Columns>,
    query: Query,
) -> Result<Answer, QueryError> {
    let auxiliary = |name: &'static str| under.job(name).kind(DeviceKind::AUXILIARY);

    // Blocking scans of the host's tables, both at once, on threads of their own.
    let (keys, values) = (Arc::clone(&work), Arc::clone(&work));
    let (of_keys, of_values) = (Arc::clone(&columns), columns);
    let (key_rows, value_rows) = (query.rows.clone(), query.rows);
    let keys = auxiliary("stage keys")
        .submit_blocking(move || keys.stage(&of_keys.keys[key_rows], &keys.keys))?;
    let values = auxiliary("stage values")
        .submit_blocking(move || values.stage(&of_values.values[value_rows], &values.values))?;
    // The device may read these until the end.
    let _staged = (keys.await??, values.await??);
    work.device.record(&work.loaded, &work.stream)?;

    // Async scans. Submitted from here they run right here, as parts of this job, and wait for no
    // worker; what they give the device overlaps.
    let scan = |number| {
        let (work, wanted) = (Arc::clone(&work), query.wanted.clone());
        auxiliary("scan").run(async move { work.scan(number, wanted) })
    };
    let scans: [_; SCANS] = std::array::from_fn(scan);
    let [first, second, third] = scans;
    let (first, second, third) = tokio::try_join!(first, second, third)?;
    first.and(second).and(third)?;
    Ok(work.merge()?)
}

impl<B: Kernels> Work<B> {
    fn set_up(device: B, rows: usize) -> Result<Self, DriverError> {
        let stream = device.create_stream(0)?;
        let keys = device.allocate(&stream, rows * size_of::<u32>())?;
        let values = device.allocate(&stream, rows * size_of::<u32>())?;
        let total = device.allocate(&stream, ANSWER_BYTES)?;
        let loaded = device.create_event()?;
        let scans = (0..SCANS).map(|scan| {
            let part = scan * rows / SCANS..(scan + 1) * rows / SCANS;
            let stream = device.create_stream(0)?;
            let hits = device.allocate(&stream, part.len())?;
            let partial = device.allocate(&stream, ANSWER_BYTES)?;
            Ok(Scan { part, stream, hits, partial, scanned: device.create_event()? })
        });
        let scans = scans.collect::<Result<_, DriverError>>()?;
        Ok(Self { stream, keys, values, total, loaded, scans, device })
    }

    /// Copies a part of a column to the device, by way of pinned memory.
    fn stage(&self, column: &[u32], target: &B::Memory) -> Result<B::Pinned, DriverError> {
        let device = &self.device;
        let bytes = size_of_val(column);
        let mut pinned = device.allocate_pinned(bytes)?;
        let places = device.pinned_bytes(&mut pinned)?.as_chunks_mut().0;
        places.iter_mut().zip(column).for_each(|(place, row)| *place = row.to_ne_bytes());
        device.copy_to_device(&self.stream, &pinned, 0..bytes, target, 0)?;
        Ok(pinned)
    }

    fn scan(&self, number: usize, wanted: Range<u32>) -> Result<(), DriverError> {
        let (device, Self { keys, values, .. }) = (&self.device, self);
        let Scan { part, stream, hits, partial, scanned } = &self.scans[number];
        device.wait_event(stream, &self.loaded)?;
        device.launch(stream, B::filter(keys, part.clone(), wanted, hits))?;
        device.launch(stream, B::sum(values, part.clone(), hits, partial))?;
        device.record(scanned, stream)
    }

    fn merge(&self) -> Result<Answer, DriverError> {
        let (device, Self { stream, total, .. }) = (&self.device, self);
        device.fill(stream, total, 0..ANSWER_BYTES, 0)?;
        for scan in &self.scans {
            device.wait_event(stream, &scan.scanned)?;
            device.launch(stream, B::add(&scan.partial, total))?;
        }
        let mut pinned = device.allocate_pinned(ANSWER_BYTES)?;
        device.copy_to_host(stream, total, 0..ANSWER_BYTES, &pinned, 0)?;
        device.synchronize_stream(stream)?;
        let numbers = device.pinned_bytes(&mut pinned)?.as_chunks().0;
        let number = |at: usize| u64::from_ne_bytes(numbers[at]);
        Ok(Answer { count: number(0), sum: number(1) })
    }

    /// The cleanup: when it has ended, the device has everything back.
    ///
    /// A query that was given up may have a job that is just ending, with a share of this. Then the
    /// last one drops the handles, which the device takes back when it has passed their work.
    pub(crate) fn clean_up(shared: Option<Arc<Self>>) -> Result<(), DriverError> {
        let Some(work) = shared.and_then(Arc::into_inner) else { return Ok(()) };
        let Self { device, stream, keys, values, total, scans, .. } = work;
        // What the host has seen pass comes before whatever it does next, on any stream.
        for of_scan in scans.iter().map(|scan| &scan.stream).chain([&stream]) {
            device.synchronize_stream(of_scan)?;
        }
        for memory in [keys, values, total] {
            device.free(&stream, memory)?;
        }
        for Scan { stream, hits, partial, .. } in scans {
            device.free(&stream, hits)?;
            device.free(&stream, partial)?;
            device.synchronize_stream(&stream)?;
        }
        device.synchronize_stream(&stream)
    }
}
