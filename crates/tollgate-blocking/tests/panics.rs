//! Closures that panic.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;
use tollgate_blocking::{Panic, RunError};

fn panic_of<T: std::fmt::Debug>(result: Result<T, RunError>) -> Panic {
    match result {
        Err(RunError::Panicked(panic)) => panic,
        other => panic!("{other:?}"),
    }
}

/// BLK-10, A17
#[test]
fn a_panic_reaches_the_waiter_with_its_message_and_payload_whatever_it_is() {
    #[derive(Debug, PartialEq)]
    struct Custom(u32);
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);

    let error = block_on(io.run(|| -> () { panic!("a literal") })).unwrap_err();
    assert_eq!(error.to_string(), "the job panicked: a literal");
    let panic = panic_of::<()>(Err(error));
    assert_eq!(panic.message(), Some("a literal"));
    assert_eq!(panic.into_payload().downcast_ref(), Some(&"a literal"));

    let panic =
        panic_of(block_on(io.run(|| -> () { panic!("number {}", std::hint::black_box(7)) })));
    assert_eq!(panic.message(), Some("number 7"));
    assert_eq!(*panic.into_payload().downcast::<String>().unwrap(), "number 7");

    let panic = panic_of(block_on(io.run(|| -> () { std::panic::panic_any(Custom(7)) })));
    assert_eq!(panic.message(), None);
    assert_eq!(panic.to_string(), "with a value that is not text");
    assert_eq!(*panic.into_payload().downcast::<Custom>().unwrap(), Custom(7));

    let counts = counts(&pool, "io");
    assert_eq!((counts.panicked, counts.finished, counts.started), (3, 0, 3));
    assert_eq!(pool.stats().lanes[0].panicked.count(), 3);
    // the worker lives
    let name = io.run(|| std::thread::current().name().map(str::to_owned));
    assert_eq!(block_on(name).unwrap().as_deref(), Some("tollgate-0"));
    assert_eq!(pool.stats().threads.peak, 1);
}

/// BLK-10
#[test]
fn a_panic_can_be_passed_on() {
    let owned = Owned::new();
    let (_pool, io) = owned.pool(1, 0);
    let panic = panic_of(io.submit(|| -> () { panic!("pass it on") }).unwrap().join());
    let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panic.resume()));
    let Err(payload) = passed;
    assert_eq!(payload.downcast_ref(), Some(&"pass it on"));
}

/// BLK-10
#[test]
fn errors_can_be_sent_and_shared_and_kept() {
    fn check<T: Send + Sync + std::error::Error + 'static>() {}
    check::<RunError>();
    check::<tollgate_blocking::SubmitError>();
    check::<tollgate_blocking::BuildError>();
    check::<tollgate_blocking::Cancelled>();
}

/// BLK-10
#[test]
fn what_a_panicking_closure_captured_is_dropped_once() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let captured = Arc::new(());
    let kept = Arc::clone(&captured);
    let ticket = io
        .submit(move || {
            let _kept = &kept;
            panic!("on purpose")
        })
        .unwrap();
    let _: Panic = panic_of::<()>(ticket.join());
    assert_eq!(Arc::strong_count(&captured), 1);
    assert_eq!(available(&pool), 1);
}

/// BLK-10
#[test]
fn a_panic_that_nobody_waits_for_is_counted_all_the_same() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    let gate = Gate::new();
    let closure = gate.closure();
    let mut run = io.run(move || -> () {
        closure();
        panic!("to nobody")
    });
    start(&mut run);
    gate.wait_started();
    drop(run);
    gate.open();
    eventually("the permit returns", || available(&pool) == 1);
    let counts = counts(&pool, "io");
    assert_eq!((counts.panicked, counts.abandoned, counts.finished), (1, 1, 0));
}

/// BLK-10, A17
#[test]
fn many_panics_cost_no_thread() {
    let owned = Owned::new();
    let (pool, io) = owned.pool(2, 0);
    for _ in 0..500 {
        let _: Panic = panic_of(block_on(io.run(|| -> () { std::panic::panic_any(7_u8) })));
    }
    let stats = pool.stats();
    assert_eq!(stats.lanes[0].counts.panicked, 500);
    assert!(stats.threads.peak <= 2);
    shut_down(&pool);
}

/// What a destructor panics with goes as well, and does not pile up.
#[test]
fn what_a_destructor_of_captures_panicked_with_is_dropped() {
    struct Payload(Arc<AtomicUsize>);
    impl Drop for Payload {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let owned = Owned::new();
    let (pool, io) = owned.pool(1, 0);
    pool.close();
    let payload = Arc::clone(&dropped);
    let captures = OnDrop(move || std::panic::panic_any(Payload(Arc::clone(&payload))));
    let refused = io.submit(move || drop(captures));
    assert!(refused.is_err(), "the pool is closed");
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}
