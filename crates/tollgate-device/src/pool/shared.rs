//! One pool per device and process.

use super::error::SharedError;
use super::{
    DevicePool, DevicePoolBuilder, Owner, core::Core, submit::Link, supervisor::Supervisor,
};
use crate::backend::{Backend, DeviceUuid};
use crate::sync::plain::Mutex;
use std::any::{Any, TypeId};
use std::sync::{Arc, LazyLock, Weak};

/// Which device, as its driver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceSelector {
    /// By its number, which a filter of visible devices can change between two runs.
    Ordinal(u32),
    /// By what stays the same.
    Uuid(DeviceUuid),
}

impl From<u32> for DeviceSelector {
    fn from(ordinal: u32) -> Self {
        DeviceSelector::Ordinal(ordinal)
    }
}

impl From<DeviceUuid> for DeviceSelector {
    fn from(uuid: DeviceUuid) -> Self {
        DeviceSelector::Uuid(uuid)
    }
}

struct Entry {
    /// Whose devices: two drivers may number theirs alike.
    driver: TypeId,
    ordinal: u32,
    uuid: DeviceUuid,
    workers: u32,
    owner: Weak<dyn Any + Send + Sync>,
    core: Weak<Core>,
    supervisor: Arc<Supervisor>,
}

impl Entry {
    /// The pool, while it has a handle and is open.
    fn pool<B: Backend>(&self) -> Option<DevicePool<B>> {
        let owner = self.owner.upgrade()?.downcast::<Owner<B>>().ok()?;
        let open = !owner.core.look(|inner| inner.is_closed());
        let link = Link { core: Arc::clone(&owner.core), bound: None };
        open.then_some(DevicePool { owner, link })
    }

    /// Its threads have ended.
    fn is_over(&self) -> bool {
        self.core.upgrade().is_none_or(|core| core.look(|inner| inner.has_ended()))
    }
}

static POOLS: LazyLock<Mutex<Vec<Entry>>> = LazyLock::new(Mutex::default);

impl<B: Backend> DevicePoolBuilder<B> {
    /// The process-wide pool of the device: the one that there is, or else a new one, which stays for as long as somebody has a
    /// handle. What this builder says counts for a new one only.
    ///
    /// Devices are the same when their UUIDs are. One call at a time builds, others wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`SharedError`]: the pool has another width; or the former pool was closed, or lost its last handle, and its threads
    /// have not ended, which is worth another try.
    pub fn shared(self) -> Result<DevicePool<B>, SharedError> {
        let (driver, device) = (TypeId::of::<B>(), self.backend.info().clone());
        let asked = self.profile.workers();
        let mut pools = POOLS.lock();
        let known = pools.iter().position(|it| it.driver == driver && it.uuid == device.uuid);
        if let Some(at) = known {
            let entry = &pools[at];
            match entry.pool::<B>() {
                Some(pool) if entry.workers == asked => return Ok(pool),
                Some(_) => {
                    let existing = entry.workers;
                    return Err(SharedError::Width { uuid: device.uuid, existing, asked });
                }
                None if entry.is_over() => {
                    let entry = pools.swap_remove(at);
                    // it is about to end, if it has not
                    let _ = entry.supervisor.join();
                }
                None => return Err(SharedError::Ending { uuid: device.uuid }),
            }
        }
        let pool = self.build()?;
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&pool.owner) as _;
        pools.push(Entry {
            driver,
            ordinal: device.ordinal,
            uuid: device.uuid,
            workers: asked,
            owner: Arc::downgrade(&owner),
            core: Arc::downgrade(&pool.owner.core),
            supervisor: Arc::clone(&pool.owner.supervisor),
        });
        Ok(pool)
    }
}

impl<B: Backend> DevicePool<B> {
    /// The [shared](DevicePoolBuilder::shared) pool of a device, if there is one and it is open.
    #[must_use]
    pub fn find(device: impl Into<DeviceSelector>) -> Option<DevicePool<B>> {
        let device = device.into();
        let pools = POOLS.lock();
        let of_this = |it: &&Entry| {
            it.driver == TypeId::of::<B>()
                && match device {
                    DeviceSelector::Ordinal(ordinal) => it.ordinal == ordinal,
                    DeviceSelector::Uuid(uuid) => it.uuid == uuid,
                }
        };
        pools.iter().filter(of_this).find_map(Entry::pool)
    }
}
