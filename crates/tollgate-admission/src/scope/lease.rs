use super::Scope;
use super::tree::{Guard, NoOperation};
use crate::deadline::Deadline;
use crate::engine::Cause;
use crate::error::{Closed, LeaseError};
use crate::job::JobName;
use std::fmt;
use std::sync::Arc;

/// The right to begin a number of operations, also while its scope drains, until a deadline.
///
/// It is given to an acquire or a job by reference. An operation takes one of the allowance as it asks for its permit,
/// and gives it back if it never starts. Lane limits and timeouts apply to it; it stands in its lane's queue in order of
/// arrival, also when the queue is full, and does not count towards that queue's bound: so it is not refused for want of
/// room, and neither passes nor displaces anybody. Nothing extends its deadline, nor the scope's, which counts as well.
///
/// Dropping it ends it: operations that have begun go on.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// # use tollgate_admission::{Budget, Deadline, LaneConfig, Scope};
/// # let budget = Budget::builder().capacity(2).lane(LaneConfig::new("disk")).build()?;
/// let store = Scope::root("store");
/// let disk = budget.lane("disk")?.scoped(&store);
/// let lease = store.drain_lease(1, Deadline::after(Duration::from_secs(3)))?;
///
/// store.close();
/// assert!(disk.try_acquire().is_err());
/// let permit = disk.acquire().lease(&lease).await?;
/// // ... flush ...
/// drop((permit, lease));
/// store.drained().await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a lease ends as soon as it is dropped"]
pub struct DrainLease {
    lease: LeaseRef,
}

struct Inner {
    scope: Scope,
    key: usize,
}

impl DrainLease {
    pub(super) fn new(
        scope: &Scope,
        operations: u64,
        deadline: Deadline,
    ) -> Result<Self, LeaseError> {
        if operations == 0 {
            return Err(LeaseError::NoOperations);
        }
        let owners = scope.owners();
        let tick = owners.tick(deadline);
        let now = owners.now();
        let key = scope.node.with(|tree, node| {
            if !tree.is_draining(node) && tick.min(tree.deadline(node)) <= now {
                return Err(LeaseError::Expired);
            }
            tree.lend(node, operations, tick)
                .ok_or_else(|| LeaseError::Closed { scope: Arc::clone(tree.name(node)) })
        })?;
        Ok(DrainLease { lease: LeaseRef { inner: Arc::new(Inner { scope: scope.clone(), key }) } })
    }

    /// The scope that it was taken from.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        self.lease.scope()
    }

    /// When it ends: by its own deadline or its scope's, whichever is earlier.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.lease.deadline()
    }

    /// How many operations may still begin.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        let Inner { scope, key } = &*self.lease.inner;
        let now = scope.owners().now();
        scope.node.with(|tree, node| tree.lease(node, *key).allows(now))
    }

    /// For an engine, to begin operations with.
    #[must_use]
    pub fn by_ref(&self) -> LeaseRef {
        self.lease.clone()
    }
}

impl Drop for DrainLease {
    fn drop(&mut self) {
        let Inner { scope, key } = &*self.lease.inner;
        scope.node.with(|tree, node| tree.revoke_one(node, *key));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // the last that knew the key
        self.scope.node.with(|tree, node| tree.forget(node, self.key));
    }
}

impl fmt::Debug for DrainLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrainLease")
            .field("scope", &self.scope().name())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A [`DrainLease`] as an acquire or a job remembers it. It keeps no lease from ending.
#[derive(Clone)]
pub struct LeaseRef {
    inner: Arc<Inner>,
}

impl LeaseRef {
    /// The scope that it was taken from.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    /// When it ends.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let Inner { scope, key } = &*self.inner;
        let tick = scope.node.with(|tree, node| tree.lease(node, *key).ends);
        scope.owners().deadline(tick)
    }

    /// Begins an operation.
    ///
    /// # Errors
    ///
    /// Why it may not begin.
    pub fn begin(&self, name: JobName) -> Result<Operation, Cause> {
        let guard = Guard { name, since: self.inner.scope.owners().now() };
        let begun =
            self.inner.scope.node.with(|tree, node| tree.begin(node, self.inner.key, guard));
        match begun {
            Ok(op) => Ok(Operation { lease: self.clone(), op, started: false }),
            Err(NoOperation::Expired) => Err(Cause::LeaseExpired),
            Err(NoOperation::Exhausted) => Err(Cause::LeaseExhausted),
            Err(NoOperation::Revoked) => Err(Cause::Closed(Closed::Scope)),
        }
    }
}

impl fmt::Debug for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRef").field("scope", &self.inner.scope.name()).finish_non_exhaustive()
    }
}

/// An operation under a lease: its scope is busy until this is dropped. One that was not [started](Self::start) then gives
/// its allowance back.
pub struct Operation {
    lease: LeaseRef,
    op: usize,
    started: bool,
}

impl Operation {
    /// What it was begun for has started.
    pub fn start(&mut self) {
        self.started = true;
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let lease = &self.lease.inner;
        lease.scope.node.with(|tree, node| tree.end(node, lease.key, self.op, self.started));
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("started", &self.started).finish_non_exhaustive()
    }
}
