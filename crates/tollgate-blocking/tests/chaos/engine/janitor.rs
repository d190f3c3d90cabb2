//! Where things go that another thread is to drop, or to wait for.

use crate::engine::books::{Faults, contained};
use crate::engine::tokens::Tally;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;

type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Message {
    Drop(Box<dyn Any + Send>),
    Await(Waiting),
    /// Something that is waited for has moved.
    Woken,
    /// Nothing more comes: to end once nothing is left.
    Stop,
}

/// The way to the janitor.
#[derive(Clone)]
pub(crate) struct Bin(Sender<Message>);

impl Bin {
    /// To be dropped, in some order.
    pub(crate) fn throw(&self, thing: impl Any + Send) {
        // without a janitor it is dropped here and now
        let _ = self.0.send(Message::Drop(Box::new(thing)));
    }

    /// To be polled to its end.
    pub(crate) fn leave(&self, future: impl Future<Output = ()> + Send + 'static) {
        let _ = self.0.send(Message::Await(Box::pin(future)));
    }
}

/// A thread that drops what was thrown away, permits included, and so must not wait for anything itself: others may wait
/// for what it holds.
pub(crate) struct Janitor {
    bin: Bin,
    pub(crate) tally: Arc<Tally>,
    thread: JoinHandle<()>,
}

impl Janitor {
    pub(crate) fn start() -> Self {
        let (sender, receiver) = channel();
        let (bin, tally) = (Bin(sender), Arc::new(Tally::default()));
        let body = {
            let (bin, tally) = (bin.clone(), Arc::clone(&tally));
            move || work(&receiver, &bin, &tally.faults)
        };
        Janitor { bin, tally, thread: std::thread::spawn(body) }
    }

    pub(crate) fn bin(&self) -> Bin {
        self.bin.clone()
    }

    /// Ends it, once everything that was left to it has ended.
    pub(crate) fn stop(self) {
        let _ = self.bin.0.send(Message::Stop);
        let _ = self.thread.join();
    }
}

struct Bell {
    bin: Bin,
    /// It was rung and not answered.
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            let _ = self.bin.0.send(Message::Woken);
        }
    }
}

fn work(receiver: &Receiver<Message>, bin: &Bin, faults: &Faults) {
    /// Things that are kept for a while, so that they are not dropped in the order in which they came.
    const KEPT: usize = 16;
    let bell = Arc::new(Bell { bin: bin.clone(), rung: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&bell));
    let mut kept: Vec<Box<dyn Any + Send>> = Vec::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    let (mut fresh, mut stopped) = (false, false);
    loop {
        let message = match receiver.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                // somebody may wait for any of these
                for thing in kept.drain(..) {
                    contained(faults, || drop(thing));
                }
                if std::mem::take(&mut fresh) {
                    bell.rung.store(false, Ordering::SeqCst);
                    let mut cx = Context::from_waker(&waker);
                    waiting.retain_mut(|future| {
                        let poll = contained(faults, || future.as_mut().poll(&mut cx));
                        poll == Some(Poll::Pending)
                    });
                }
                if stopped && waiting.is_empty() {
                    return;
                }
                let Ok(message) = receiver.recv() else { return };
                message
            }
        };
        match message {
            Message::Drop(thing) => {
                kept.push(thing);
                if kept.len() > KEPT {
                    let thing = kept.swap_remove(KEPT / 2);
                    contained(faults, || drop(thing));
                }
            }
            Message::Await(future) => {
                waiting.push(future);
                fresh = true;
            }
            Message::Woken => fresh = true,
            Message::Stop => stopped = true,
        }
    }
}
