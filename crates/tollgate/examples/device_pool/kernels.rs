//! The kernels. A service that runs on another driver has them once more, for that one.

use std::ops::Range;

use tollgate::device::host::{HostDevice, HostKernel, HostMemory};
use tollgate::prelude::*;

/// Bytes of one [`Answer`](crate::columns::Answer) in device memory: two numbers of 8 bytes.
pub(crate) const ANSWER_BYTES: usize = 16;

/// What the queries need of a device beside what every driver has.
pub(crate) trait Kernels: Backend {
    /// Writes for each row of `part` whether its key is wanted: a byte that is 1 or 0.
    fn filter(
        keys: &Self::Memory,
        part: Range<usize>,
        wanted: Range<u32>,
        hits: &Self::Memory,
    ) -> Self::Kernel;

    /// Writes how many rows of `part` were hit, and the sum of their values.
    fn sum(
        values: &Self::Memory,
        part: Range<usize>,
        hits: &Self::Memory,
        partial: &Self::Memory,
    ) -> Self::Kernel;

    /// Adds `partial` to `total`.
    fn add(partial: &Self::Memory, total: &Self::Memory) -> Self::Kernel;
}

impl Kernels for HostDevice {
    fn filter(
        keys: &HostMemory,
        part: Range<usize>,
        wanted: Range<u32>,
        hits: &HostMemory,
    ) -> HostKernel {
        let memory = (keys.read::<u32>().part(part), hits.write::<u8>());
        HostKernel::new("filter", memory, move |(keys, hits)| {
            for (key, hit) in keys.iter().zip(hits) {
                *hit = u8::from(wanted.contains(key));
            }
        })
    }

    fn sum(
        values: &HostMemory,
        part: Range<usize>,
        hits: &HostMemory,
        partial: &HostMemory,
    ) -> HostKernel {
        let memory = (values.read::<u32>().part(part), hits.read::<u8>(), partial.write::<u64>());
        HostKernel::new("sum", memory, |(values, hits, partial)| {
            partial.fill(0);
            for (&value, &hit) in values.iter().zip(hits) {
                partial[0] += u64::from(hit);
                partial[1] += u64::from(hit) * u64::from(value);
            }
        })
    }

    fn add(partial: &HostMemory, total: &HostMemory) -> HostKernel {
        let memory = (partial.read::<u64>(), total.write::<u64>());
        HostKernel::new("add", memory, |(partial, total)| {
            total.iter_mut().zip(partial).for_each(|(total, partial)| *total += partial);
        })
    }
}
