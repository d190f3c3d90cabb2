//! Polling by hand, for what is measured without an executor in between.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Polls once, with a waker that wakes nobody.
pub fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// What a future that need not wait resolves to.
///
/// # Panics
///
/// When it has to wait.
pub fn ready<F: Future>(future: Pin<&mut F>) -> F::Output {
    match poll_once(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future has to wait"),
    }
}

/// Queues a future that has to wait: polls it once.
///
/// # Panics
///
/// When it does not have to wait.
pub fn queued<F: Future>(mut future: Pin<Box<F>>) -> Pin<Box<F>> {
    assert!(poll_once(future.as_mut()).is_pending(), "the future need not wait");
    future
}
