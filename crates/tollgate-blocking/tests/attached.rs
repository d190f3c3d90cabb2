//! Pools that belong to a scope as a whole: when the scope may be closed.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Instant;
use support::*;
use tollgate_blocking::admission::time::OnTime;
use tollgate_blocking::admission::{ManualTime, NoTimer, TimeSource};
use tollgate_blocking::{BlockingPool, Deadline, Dedicated, LanePolicy, Scope};

/// A pool that has ended before its scope is closed does not keep the scope from closing.
#[test]
fn a_scope_closes_whose_pool_was_shut_down_before() {
    let owned = Owned::new();
    let scope = Scope::root("store");
    let pool = owned.builder(1).lane(LanePolicy::new("io")).scope(&scope).build().unwrap();
    pool.executor("io").unwrap().submit(|| ()).unwrap().join().unwrap();
    shut_down(&pool);
    let report = must_end("the shutdown of the scope", {
        let scope = scope.clone();
        move || block_on(scope.shutdown(Deadline::never()))
    });
    assert!(report.complete, "{report}");
    drop(pool);
}

/// A clock at whose readings somebody looks at a pool, as another thread might at that moment.
#[derive(Debug, Clone)]
struct Watched {
    time: ManualTime,
    pool: Arc<Mutex<Option<BlockingPool>>>,
}

impl TimeSource for Watched {
    fn now(&self) -> Instant {
        let pool = self.pool.lock().unwrap().take();
        if let Some(pool) = pool {
            let _ = pool.stats();
            *self.pool.lock().unwrap() = Some(pool);
        }
        self.time.now()
    }
    fn prepare(&self) -> Result<(), NoTimer> {
        Ok(())
    }
    fn call_at(&self, _at: Instant, _target: std::sync::Weak<dyn OnTime>) {}
}

/// A pool that is quiet in a draining scope, and whose lease lets something in, is quiet only when its threads have ended,
/// whoever looks at it on the way in.
#[test]
fn a_scope_is_not_closed_before_the_threads_of_its_pool_have_ended_after_work_under_a_lease() {
    let owned = Owned::new();
    let watched = Watched { time: ManualTime::new(), pool: Arc::default() };
    let scope = Scope::root_by("store", Arc::new(watched.clone()));
    let stop = Gate::new();
    let stopping = Mutex::new(Some(stop.closure()));
    let pool = owned
        .builder(1)
        .lane(LanePolicy::new("io"))
        .scope(&scope)
        .on_thread_stop(move || {
            let stopping = stopping.lock().unwrap().take();
            stopping.into_iter().for_each(|wait| wait());
        })
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    let lease = scope.drain_lease(1, Deadline::never()).unwrap();
    scope.close();
    *watched.pool.lock().unwrap() = Some(pool.clone());
    // an acquire asks the scope for the time between the news and its arrival
    let permit = block_on(io.job("flush").lease(&lease).acquire()).unwrap();
    *watched.pool.lock().unwrap() = None;
    permit.spawn(|| ()).unwrap().join().unwrap();
    drop(lease);
    stop.wait_started();
    assert!(!scope.report().complete, "a thread of the pool has not ended");
    stop.open();
    must_end("the scope", {
        let scope = scope.clone();
        move || block_on(scope.drained())
    });
    assert_eq!(pool.stats().threads.alive, 0);
}

#[test]
fn captures_that_panic_when_a_dedicated_thread_is_refused_harm_nobody() {
    let runtime = runtime();
    let scope = Scope::root("store");
    scope.close();
    let captures = Bomb;
    let thread = Dedicated::new(runtime.handle().clone(), "compactor").scope(&scope);
    let refused = thread.spawn(move || drop(captures));
    assert!(refused.is_err(), "the scope is closed");
}

#[test]
fn the_lease_of_another_scope_lets_nothing_into_a_pool_whose_scope_is_closed() {
    let owned = Owned::new();
    let root = Scope::root("service");
    let (store, other) = (root.child("store").unwrap(), root.child("other").unwrap());
    let pool = owned.builder(1).lane(LanePolicy::new("io")).scope(&store).build().unwrap();
    let io = pool.executor("io").unwrap();
    let lease = other.drain_lease(3, Deadline::never()).unwrap();
    store.close();
    block_on(store.drained());
    let job = || io.job("late").scope(&other).lease(&lease);
    let error = job().submit(|| ()).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    assert!(block_on(job().acquire()).is_err());
    assert!(job().try_acquire().is_err());
    assert!(store.report().complete);
    assert_eq!(lease.remaining(), 3, "what never started gave its allowance back");
}
