//! The warning about jobs that took longer than their lane expects.
#![cfg(feature = "tracing")]

mod support;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;
use tollgate_blocking::{BlockingPool, BlockingPoolBuilder, LanePolicy};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

const SECOND: Duration = Duration::from_secs(1);

/// What a subscriber was told, as text.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>, Option<Arc<dyn Fn() + Send + Sync>>);

impl Warnings {
    /// A worker warns when the result is out.
    fn wait(&self, count: usize) {
        eventually("it is warned about", || self.0.lock().unwrap().len() >= count);
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Fields(String);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        let panics = fields.0.contains("bad subscriber");
        self.0.lock().unwrap().push(fields.0);
        if let Some(door) = &self.1 {
            door();
        }
        assert!(!panics, "this subscriber panics");
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A pool whose threads tell their warnings to what is returned.
fn warning_pool(owned: &Owned) -> (BlockingPool, Warnings) {
    let warnings = Warnings::default();
    let pool = warning_to(owned.builder(1), &warnings);
    (pool, warnings)
}

fn warning_to(builder: BlockingPoolBuilder, warnings: &Warnings) -> BlockingPool {
    let told = warnings.clone();
    let lane = LanePolicy::new("io").warn_after(SECOND);
    builder
        .lane(lane)
        .on_thread_start(move || {
            // until the thread ends
            std::mem::forget(tracing::subscriber::set_default(told.clone()));
        })
        .build()
        .unwrap()
}

/// BLK-3
#[test]
fn a_finished_job_that_took_longer_than_its_lane_expects_is_warned_about_once() {
    let owned = Owned::new();
    let (pool, warnings) = warning_pool(&owned);
    let io = pool.executor("io").unwrap();
    let slow = |name: &'static str, span: Duration, panics: bool| {
        let gate = Gate::new();
        let closure = gate.closure();
        let ticket = io
            .job(name)
            .submit(move || {
                closure();
                assert!(!panics, "on purpose");
            })
            .unwrap();
        gate.wait_started();
        owned.time.advance(span);
        gate.open();
        let _ = ticket.join();
    };
    slow("quick", SECOND, false);
    slow("slow", SECOND + Duration::from_millis(500), false);
    // one after the other, which may be told by two threads
    warnings.wait(1);
    slow("broken", 3 * SECOND, true);
    warnings.wait(2);
    let [slow_one, broken] = &warnings.0.lock().unwrap()[..] else { panic!("two warnings") };
    for part in ["WARN", "a job took longer", "name=\"slow\"", "lane=\"io\"", "ran_ms=1500"] {
        assert!(slow_one.contains(part), "{slow_one} lacks {part}");
    }
    assert!(slow_one.contains("panicked=false") && broken.contains("panicked=true"));
}

/// BLK-3, BLK-11
#[test]
fn inner_jobs_are_warned_about_too() {
    let owned = Owned::new();
    let (pool, warnings) = warning_pool(&owned);
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let (closure, inner) = (gate.closure(), io.clone());
    let ticket = io
        .job("outer")
        .submit(move || inner.job("inner").submit(closure).unwrap().join().unwrap())
        .unwrap();
    gate.wait_started();
    owned.time.advance(2 * SECOND);
    gate.open();
    ticket.join().unwrap();
    warnings.wait(2);
    let warnings = warnings.0.lock().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("inner") && warnings[1].contains("outer"), "{warnings:?}");
}

/// Section 5
#[test]
fn a_subscriber_that_panics_harms_no_worker() {
    let owned = Owned::new();
    let (pool, warnings) = warning_pool(&owned);
    let io = pool.executor("io").unwrap();
    let gate = Gate::new();
    let ticket = io.job("bad subscriber").submit(gate.closure()).unwrap();
    gate.wait_started();
    owned.time.advance(2 * SECOND);
    gate.open();
    ticket.join().unwrap();
    assert_eq!(io.submit(|| 7).unwrap().join().unwrap(), 7);
    warnings.wait(1);
    shut_down(&pool);
}

/// BLK-3
#[test]
fn a_worker_that_is_kept_by_its_warning_keeps_no_other_job() {
    let owned = Owned::new();
    let door = Gate::new();
    let keep = door.closure();
    let warnings = Warnings(Arc::default(), Some(Arc::new(move || keep.clone()())));
    let pool = warning_to(owned.builder(2), &warnings);
    let io = pool.executor("io").unwrap();
    let (gate, more) = (Gate::new(), Gate::new());
    let slow = io.submit(gate.closure()).unwrap();
    gate.wait_started();
    owned.time.advance(2 * SECOND);
    let other = io.submit(more.closure()).unwrap();
    more.wait_started();
    // waits for a permit, which the slow one is going to leave it
    let queued = io.submit(|| 7).unwrap();
    gate.open();
    slow.join().unwrap();
    door.wait_started();
    let late = io.submit(|| 8).unwrap();
    more.open();
    other.join().unwrap();
    assert_eq!(must_end("jobs beside a warning", move || queued.join()).unwrap(), 7);
    assert_eq!(must_end("jobs beside a warning", move || late.join()).unwrap(), 8);
    door.open();
}
