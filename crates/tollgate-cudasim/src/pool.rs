//! Memory pools: what they have, keep and may have.

use crate::code::Code;
use crate::misuse::MisuseKind;
use crate::state::{Call, State};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

impl Level {
    fn set(&mut self, now: u64) {
        self.now = now;
        self.high = self.high.max(now);
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Of a device, which cannot be destroyed.
    default: bool,
    /// The most that it may have in use. 0 for no limit.
    limit: u64,
    /// What it keeps when the host sees that something is done.
    pub(crate) threshold: u64,
    pub(crate) used: Level,
    /// Used, or kept.
    pub(crate) reserved: Level,
    /// The three kinds of reuse, which are said and make no difference.
    pub(crate) reuse: [i32; 3],
    /// Destroyed: it goes when nothing of it is in use.
    closed: bool,
}

impl State {
    pub(crate) fn open_pool(&mut self, device: usize, limit: u64, default: bool) -> u64 {
        let number = self.number();
        let pool = Pool {
            device,
            default,
            limit,
            threshold: 0,
            used: Level::default(),
            reserved: Level::default(),
            reuse: [1; 3],
            closed: false,
        };
        self.pools.insert(number, pool);
        number
    }

    /// What pools keep unused is taken before there is nothing left.
    fn make_room(&mut self, device: usize, bytes: u64) {
        if self.free_bytes(device) < bytes {
            for number in self.pools.keys().copied().collect::<Vec<_>>() {
                if self.pools.get(&number).is_some_and(|it| it.device == device) {
                    self.trim_pool(number, 0);
                }
            }
        }
    }

    /// Bytes of the device.
    pub(crate) fn take_bytes(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        self.make_room(device, bytes);
        if self.free_bytes(device) < bytes {
            return Err(Code::OUT_OF_MEMORY);
        }
        if let Some(it) = self.devices.get_mut(device) {
            it.used += bytes;
        }
        Ok(())
    }

    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |it| it.memory - it.used)
    }

    pub(crate) fn give_back(&mut self, number: u64, bytes: u64) {
        let Some(pool) = self.pools.get_mut(&number) else { return };
        pool.used.now -= bytes;
        if pool.closed && pool.used.now == 0 {
            self.trim_pool(number, 0);
            self.pools.remove(&number);
        }
    }

    /// Gives back to the device what the pool neither uses nor is to keep.
    pub(crate) fn trim_pool(&mut self, number: u64, keep: u64) {
        let Some(pool) = self.pools.get_mut(&number) else { return };
        let left = pool.reserved.now.min(pool.used.now.max(keep));
        let freed = pool.reserved.now - left;
        pool.reserved.now = left;
        let device = pool.device;
        if let Some(device) = self.devices.get_mut(device) {
            device.used -= freed;
        }
    }

    /// The host has seen something done, which is when pools give back what they do not keep.
    pub(crate) fn trim_pools(&mut self) {
        for number in self.pools.keys().copied().collect::<Vec<_>>() {
            let keep = self.pools.get(&number).map_or(0, |it| it.threshold);
            self.trim_pool(number, keep);
        }
    }
}

impl Call {
    pub(crate) fn pool(&mut self, number: usize) -> Result<&mut Pool, Code> {
        let open = self.pools.get(&(number as u64)).is_some_and(|it| !it.closed);
        if !open {
            let detail = format!("{number:#x} is no memory pool, or was destroyed");
            return Err(self.found(MisuseKind::BadHandle, Code::INVALID_VALUE, detail));
        }
        self.pools.get_mut(&(number as u64)).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn take_from_pool(
        &mut self,
        number: u64,
        device: usize,
        bytes: u64,
    ) -> Result<(), Code> {
        let pool = self.pool(usize::try_from(number).unwrap_or(0))?;
        if pool.device != device {
            return Err(Code::INVALID_VALUE);
        }
        let used = pool.used.now.saturating_add(bytes);
        if pool.limit > 0 && used > pool.limit {
            return Err(Code::OUT_OF_MEMORY);
        }
        let missing = used.saturating_sub(pool.reserved.now);
        self.make_room(device, missing);
        // which may have taken what this one kept
        let pool = self.pool(usize::try_from(number).unwrap_or(0))?;
        let missing = used.saturating_sub(pool.reserved.now);
        self.take_bytes(device, missing)?;
        let pool = self.pool(usize::try_from(number).unwrap_or(0))?;
        pool.reserved.set(pool.reserved.now + missing);
        pool.used.set(used);
        Ok(())
    }

    pub(crate) fn destroy_pool(&mut self, number: usize) -> Result<(), Code> {
        let pool = self.pool(number)?;
        if pool.default {
            return Err(Code::INVALID_VALUE);
        }
        pool.closed = true;
        let device = pool.device;
        if let Some(device) = self.devices.get_mut(device)
            && device.pool == number as u64
        {
            device.pool = device.default_pool;
        }
        // gone at once when nothing of it is in use
        self.give_back(number as u64, 0);
        Ok(())
    }
}
