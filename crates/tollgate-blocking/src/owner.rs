//! The runtime that owns a pool, and how the pool learns that it is gone.

#[cfg(not(tollgate_loom))]
mod imp {
    use std::sync::{OnceLock, Weak};
    use tokio::runtime::{EnterGuard, Handle};
    use tokio::sync::oneshot;

    /// A runtime's handle, and a task on it whose end tells that the runtime ended.
    ///
    /// The handle alone would not do: that of a runtime which is gone still enters, and silently drops what it spawns.
    #[derive(Debug)]
    pub(crate) struct Owner {
        handle: Handle,
        /// Dropped with the pool, which ends the task.
        alive: OnceLock<oneshot::Sender<()>>,
    }

    /// Somebody who wants to know that the runtime is gone.
    pub(crate) trait OnGone: Send + Sync + 'static {
        fn runtime_is_gone(&self);
    }

    /// Tells when it is dropped, unless it was disarmed: a runtime that shuts down drops its tasks.
    struct Sentinel<T: OnGone>(Option<Weak<T>>);

    impl<T: OnGone> Drop for Sentinel<T> {
        fn drop(&mut self) {
            if let Some(target) = self.0.take().and_then(|target| target.upgrade()) {
                target.runtime_is_gone();
            }
        }
    }

    impl Owner {
        pub(crate) fn new(handle: Handle) -> Self {
            Owner { handle, alive: OnceLock::new() }
        }

        /// Starts the task that tells `target` when the runtime is gone; if it is gone already, at once.
        pub(crate) fn watch<T: OnGone>(&self, target: Weak<T>) {
            let (alive, released) = oneshot::channel();
            let sentinel = Sentinel(Some(target));
            drop(self.handle.spawn(async move {
                let mut sentinel = sentinel;
                // ends when the pool is dropped: there is nobody to tell then
                let _ = released.await;
                sentinel.0 = None;
            }));
            let _ = self.alive.set(alive);
        }

        /// Makes the runtime the current one on this thread.
        pub(crate) fn enter(&self) -> EnterGuard<'_> {
            self.handle.enter()
        }
    }
}

#[cfg(tollgate_loom)]
mod imp {
    /// Under loom there is no runtime: its context is tied to threads of the system.
    #[derive(Debug)]
    pub(crate) struct Owner;

    pub(crate) trait OnGone: Send + Sync + 'static {
        #[expect(dead_code, reason = "there is no runtime to go")]
        fn runtime_is_gone(&self);
    }

    impl Owner {
        pub(crate) fn watch<T: OnGone>(&self, _target: std::sync::Weak<T>) {}
        pub(crate) fn enter(&self) {}
    }
}

pub(crate) use imp::{OnGone, Owner};
