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
    /// What the handles share, while there is one. To be looked at, and dropped, outside the lock: it may be the last, and
    /// its end calls code of users.
    fn owner<B: Backend>(&self) -> Option<Arc<Owner<B>>> {
        self.owner.upgrade()?.downcast::<Owner<B>>().ok()
    }

    /// Its threads have ended, but for what is left to do for the one that is to be joined. What keeps the pool goes to
    /// `cores`, to be dropped outside the lock as well.
    fn is_over(&self, cores: &mut Vec<Arc<Core>>) -> bool {
        let Some(core) = self.core.upgrade() else { return true };
        let over = core.look(|inner| inner.has_ended());
        cores.push(core);
        over
    }
}

/// The pool, if it is open.
fn pool<B>(owner: Arc<Owner<B>>) -> Option<DevicePool<B>> {
    if owner.core.look(|inner| inner.is_closed()) {
        return None;
    }
    let link = Link { core: Arc::clone(&owner.core), bound: None };
    Some(DevicePool { owner, link })
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
        // before the lock, and so dropped after it: whatever has code of users
        let _given = (self.backend.clone(), self.time.clone(), self.exit.clone());
        let (mut owners, mut cores) = (Vec::new(), Vec::new());
        let mut pools = POOLS.lock();
        let is_this = |it: &Entry| it.driver == driver && it.uuid == device.uuid;
        while let Some(at) = pools.iter().position(is_this) {
            let entry = &pools[at];
            let owner = entry.owner::<B>();
            owners.extend(owner.clone());
            match owner.map(pool) {
                Some(Some(pool)) => {
                    let existing = entry.workers;
                    drop(pools);
                    return match existing == asked {
                        true => Ok(pool),
                        false => Err(SharedError::Width { uuid: device.uuid, existing, asked }),
                    };
                }
                Some(None) | None if entry.is_over(&mut cores) => {
                    let entry = pools.swap_remove(at);
                    drop(pools);
                    // it is about to end, if it has not: it calls wakers of users, which may ask for a pool
                    let _ = entry.supervisor.join();
                    pools = POOLS.lock();
                }
                Some(None) | None => return Err(SharedError::Ending { uuid: device.uuid }),
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
        let of_this = |it: &&Entry| {
            it.driver == TypeId::of::<B>()
                && match device {
                    DeviceSelector::Ordinal(ordinal) => it.ordinal == ordinal,
                    DeviceSelector::Uuid(uuid) => it.uuid == uuid,
                }
        };
        let owners: Vec<_> = POOLS.lock().iter().filter(of_this).filter_map(Entry::owner).collect();
        owners.into_iter().find_map(pool)
    }
}
