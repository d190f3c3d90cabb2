//! For tests: a pool without a runtime, whose jobs run where the test has them run, and what must be true of it.

use super::core::{Bind, Core, Parts, PoolId, Spawn};
use super::events::{EventKind, Outcome};
use super::profile::DeviceProfile;
use super::snapshot::DeviceSnapshot;
use super::submit::Link;
use super::tracker::Tracker;
use crate::backend::{Bell, DeviceInfo, DeviceUuid, DriverError, PriorityRange};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tollgate_admission::time::OnTime;
use tollgate_admission::{NoTimer, TimeSource};

/// Time that stands still.
#[derive(Debug)]
struct Still(Instant);

impl TimeSource for Still {
    fn now(&self) -> Instant {
        self.0
    }

    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }

    fn call_at(&self, _at: Instant, _target: Weak<dyn OnTime>) {}
}

/// Says whether a thread can be bound.
pub(super) type Binds = Box<dyn Fn() -> Result<(), DriverError> + Send + Sync>;

struct Bound(Binds);

impl Bind for Bound {
    fn bind(&self) -> Result<(), DriverError> {
        (self.0)()
    }
}

/// `events` is how many it holds for observers.
pub(super) fn core(
    profile: DeviceProfile,
    spawn: impl Spawn,
    binds: Binds,
    events: usize,
) -> Arc<Core> {
    let device = DeviceInfo {
        ordinal: 0,
        uuid: DeviceUuid(*b"tollgate by hand"),
        name: "by hand".to_owned(),
        total_memory: 1,
        priorities: PriorityRange { greatest: 0, least: 0 },
    };
    Core::new(Parts {
        id: PoolId::next(),
        capacities: profile.resolve(&device).expect("a profile that fits"),
        device,
        time: Arc::new(Still(Instant::now())),
        spawn: Box::new(spawn),
        bind: Box::new(Bound(binds)),
        tracker: Tracker::new(),
        events,
        bell: Bell::new(),
    })
    .expect("budgets that fit")
}

/// The way to it.
pub(super) fn link(core: &Arc<Core>) -> Link {
    Link { core: Arc::clone(core), bound: None }
}

/// Checks that this is all of a job's life, in order, and says how it ended.
#[track_caller]
pub(super) fn assert_whole(history: &[EventKind]) -> Outcome {
    let [EventKind::Enqueued, between @ .., EventKind::Ended(outcome)] = history else {
        panic!("it does not begin and end as it has to: {history:?}");
    };
    let (mut started, mut asked) = (0, 0);
    for event in between {
        match event {
            EventKind::Started { .. } => started += 1,
            EventKind::CancellationRequested => asked += 1,
            other => panic!("{other} is in the middle of {history:?}"),
        }
    }
    assert!(started <= 1 && asked <= 1, "something is there twice: {history:?}");
    match outcome {
        Outcome::Finished | Outcome::Panicked => assert_eq!(started, 1, "{history:?}"),
        Outcome::Cancelled => assert_eq!(asked, 1, "{history:?}"),
        Outcome::Failed => assert_eq!(started, 0, "{history:?}"),
        Outcome::Dropped => {}
    }
    *outcome
}

/// Checks that nobody has anything.
#[track_caller]
pub(super) fn assert_at_rest(core: &Core) {
    let snapshot = DeviceSnapshot::take(core);
    let DeviceSnapshot { queued, active, executing, ending, attempts, waiting, .. } = snapshot;
    assert_eq!((queued, active, executing, ending, attempts, waiting), (0, 0, 0, 0, 0, 0));
    for class in &snapshot.classes {
        assert_eq!(class.free, class.capacity, "permits of class {}", class.class);
    }
    let (seats, workers) = core.look(|it| (it.seats_in_use(), it.book.free_workers()));
    assert_eq!(seats, (0, 0, 0), "seats");
    assert_eq!(workers, core.capacities.workers as usize, "workers");
    let tracked = core.tracker.snapshot();
    assert_eq!((tracked.active, tracked.executing), (0, 0));
}
