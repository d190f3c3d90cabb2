use super::core::{Core, PoolId, lane};
use super::kind::Class;
use super::profile::Capacities;
use crate::backend::DeviceUuid;
use tollgate_admission::Refused;
use tollgate_admission::engine::Engine;

/// What goes on in a pool: one consistent copy, taken under one lock.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceSnapshot {
    /// The pool. Every pool has another, also one that is built anew for the same device.
    pub pool: PoolId,
    /// The device's ordinal.
    pub device: u32,
    /// The device's UUID.
    pub uuid: DeviceUuid,
    /// The device's name.
    pub name: String,
    /// Whether nothing more is accepted.
    pub closed: bool,
    /// What the profile came to.
    pub capacities: Capacities,
    /// Jobs that were accepted and have not started.
    pub queued: u64,
    /// Most that ever were queued at once.
    pub peak_queued: u64,
    /// Jobs that run.
    pub active: u64,
    /// Most that ever ran at once. Jobs that run within others are counted too, so it may be more than there are workers.
    pub peak_active: u64,
    /// Those of the active ones that are root jobs and execute.
    pub executing: u64,
    /// Most that ever did at once.
    pub peak_executing: u64,
    /// Jobs that have ended, and whose callback runs.
    pub ending: u64,
    /// Attempts that are not over, or have jobs that are not. One that was released counts until its other jobs have ended,
    /// its cleanup from then on as a job.
    pub attempts: u64,
    /// Most that there ever were at once.
    pub peak_attempts: u64,
    /// Attempts that wait to be admitted: for a root permit, as many as may, and with that for the permit of a cleanup, which
    /// the cleanups of earlier ones may still have.
    pub waiting: usize,
    /// The permits of each class.
    pub classes: Vec<ClassSnapshot>,
}

/// The permits of one class.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClassSnapshot {
    /// The class.
    pub class: Class,
    /// How many there are.
    pub capacity: u64,
    /// How many are free.
    pub free: u64,
    /// How many were given out so far, those included that somebody had just given up waiting for.
    pub admitted: u64,
    /// How many were refused so far, by cause. What was refused although the class had permits, for want of a slot of the
    /// attempt, a seat or the attempt's root permit, counts as busy.
    pub refused: Refused,
}

impl DeviceSnapshot {
    pub(crate) fn take(core: &Core) -> Self {
        let now = core.now();
        core.look(|inner| {
            let stats = inner.classes.stats(now);
            let counts = *inner.book.counts();
            let classes = [Class::Root, Class::Auxiliary, Class::Release];
            let classes = classes.into_iter().zip(&stats.lanes).map(|(class, stats)| {
                let capacity = inner.classes.largest(lane(class));
                ClassSnapshot {
                    class,
                    capacity,
                    free: capacity - stats.running,
                    admitted: stats.admitted,
                    refused: stats.refused,
                }
            });
            DeviceSnapshot {
                pool: core.id,
                device: core.device.ordinal,
                uuid: core.device.uuid,
                name: core.device.name.clone(),
                closed: inner.is_closed(),
                capacities: core.capacities,
                queued: counts.queued.now,
                peak_queued: counts.queued.peak,
                active: counts.active.now,
                peak_active: counts.active.peak,
                executing: counts.executing.now,
                peak_executing: counts.executing.peak,
                ending: counts.ending,
                attempts: counts.attempts.now,
                peak_attempts: counts.attempts.peak,
                waiting: stats.lanes.iter().map(|lane| lane.waiting).sum(),
                classes: classes.collect(),
            }
        })
    }

    /// The permits of a class.
    #[must_use]
    pub fn class(&self, class: Class) -> Option<&ClassSnapshot> {
        self.classes.iter().find(|it| it.class == class)
    }
}
