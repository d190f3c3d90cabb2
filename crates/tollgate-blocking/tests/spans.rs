//! The submitter's span around the closure.
#![cfg(feature = "tracing")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;
use tollgate_blocking::{BlockingPool, Executor, LanePolicy, RunError};
use tracing::Span;
use tracing::span::Id;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// Writes down what happens to spans, and panics when it is told to.
#[derive(Clone, Default)]
struct Recorder {
    log: Log,
    panic_on: Arc<Mutex<Option<&'static str>>>,
}

impl Recorder {
    fn note<S>(&self, what: &'static str, id: &Id, cx: &Context<'_, S>)
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        let on = std::thread::current().name().unwrap_or_default().starts_with("tollgate");
        let place = if on { "worker" } else { "caller" };
        self.log.add(format!("{what} {} on {place}", cx.span(id).unwrap().name()));
        let panics = *self.panic_on.lock().unwrap() == Some(what);
        assert!(!panics, "this subscriber panics when it is told: {what}");
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_enter(&self, id: &Id, cx: Context<'_, S>) {
        self.note("enter", id, &cx);
    }
    fn on_exit(&self, id: &Id, cx: Context<'_, S>) {
        self.note("exit", id, &cx);
    }
    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        self.note("close", &id, &cx);
    }
}

struct Scene {
    pool: BlockingPool,
    io: Executor,
    recorder: Recorder,
    owned: Owned,
    _default: DefaultGuard,
}

fn scene(propagate: bool) -> Scene {
    let owned = Owned::new();
    let recorder = Recorder::default();
    let dispatch = tracing::Dispatch::new(Registry::default().with(recorder.clone()));
    let for_threads = dispatch.clone();
    let pool = owned
        .builder(1)
        .lane(LanePolicy::new("io").max_waiting(4))
        .propagate_spans(propagate)
        .on_thread_start(move || {
            // until the thread ends
            std::mem::forget(tracing::dispatcher::set_default(&for_threads));
        })
        .build()
        .unwrap();
    let io = pool.executor("io").unwrap();
    Scene { pool, io, recorder, owned, _default: tracing::dispatcher::set_default(&dispatch) }
}

fn current() -> Option<&'static str> {
    Span::current().metadata().map(tracing::Metadata::name)
}

/// BLK-14
#[test]
fn the_submitters_span_is_entered_around_the_closure_and_nothing_else() {
    let scene = scene(true);
    let run = tracing::info_span!("request").in_scope(|| scene.io.run(current));
    assert_eq!(block_on(run).unwrap(), Some("request"));
    let expected = [
        "enter request on caller",
        "exit request on caller",
        "enter request on worker",
        "exit request on worker",
        "close request on worker",
    ];
    assert_eq!(scene.recorder.log.get(), expected, "closed before the result is there");
    // it is left behind: the next job of the same thread has none
    assert_eq!(block_on(scene.io.run(current)).unwrap(), None);
}

/// BLK-14
#[test]
fn every_way_in_takes_the_span_along() {
    let scene = scene(true);
    let io = &scene.io;
    let _request = tracing::info_span!("request").entered();
    assert_eq!(block_on(io.job("x").run_with(|_| current())).unwrap(), Some("request"));
    assert_eq!(io.submit(current).unwrap().join().unwrap(), Some("request"));
    let permit = io.try_acquire().unwrap();
    assert_eq!(permit.spawn(current).unwrap().join().unwrap(), Some("request"));
    let inner = io.clone();
    let nested = move || {
        let _inner = tracing::info_span!("inner").entered();
        (block_on(inner.run(current)).unwrap(), current())
    };
    assert_eq!(block_on(io.run(nested)).unwrap(), (Some("inner"), Some("inner")));
}

/// BLK-14
#[test]
fn the_switch_turns_it_off() {
    let scene = scene(false);
    let request = tracing::info_span!("request");
    let run = request.in_scope(|| scene.io.run(current));
    assert_eq!(block_on(run).unwrap(), None);
    drop(request);
    let log = scene.recorder.log.get();
    assert!(log.iter().all(|entry| entry.ends_with("caller")), "{log:?}");
}

/// BLK-14, BLK-10
#[test]
fn a_span_is_left_when_the_closure_panics() {
    let scene = scene(true);
    let run = tracing::info_span!("request").in_scope(|| scene.io.run(|| panic!("on purpose")));
    assert!(matches!(block_on::<Result<(), _>>(run), Err(RunError::Panicked(_))));
    let log = scene.recorder.log.get();
    assert_eq!(log[3..], ["exit request on worker", "close request on worker"]);
    assert_eq!(block_on(scene.io.run(current)).unwrap(), None);
}

/// BLK-14, BLK-6
#[test]
fn a_job_that_never_starts_never_enters_its_span_and_lets_it_go() {
    let scene = scene(true);
    let gate = Gate::new();
    let running = scene.io.submit(gate.closure()).unwrap();
    gate.wait_started();
    let mut queued = tracing::info_span!("request").in_scope(|| scene.io.run(|| ()));
    start(&mut queued);
    drop(queued);
    let expected = ["enter request on caller", "exit request on caller", "close request on caller"];
    assert_eq!(scene.recorder.log.get(), expected);
    gate.open();
    running.join().unwrap();
}

/// Section 5
#[test]
fn a_subscriber_that_panics_fails_the_job_and_harms_no_worker() {
    let scene = scene(true);
    for on in ["enter", "exit", "close"] {
        let run = tracing::info_span!("request").in_scope(|| scene.io.run(|| 7));
        *scene.recorder.panic_on.lock().unwrap() = Some(on);
        let result = block_on(run);
        *scene.recorder.panic_on.lock().unwrap() = None;
        match result {
            Ok(7) => assert_eq!(on, "close"),
            Err(RunError::Panicked(_)) => assert_ne!(on, "close"),
            other => panic!("{other:?}"),
        }
        assert_eq!(available(&scene.pool), 1);
        assert_eq!(block_on(scene.io.run(|| 8)).unwrap(), 8);
        assert_eq!(scene.pool.stats().threads.peak, 1, "the worker lives");
    }
    scene.owned.time.advance(Duration::from_secs(1));
    shut_down(&scene.pool);
}
