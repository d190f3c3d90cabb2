//! Owners: a tree of scopes that work is entered under, and that ends with everything below it.

mod lease;
mod report;
mod shutdown;
mod tree;

pub use lease::{DrainLease, LeaseRef, Operation};
pub use report::{GuardReport, LeaseReport, MemberReport, NodeReport, ScopePhase, ScopeReport};
pub use shutdown::{PhaseTimes, Shutdown};

use crate::deadline::Deadline;
use crate::engine::{Alarm, Engine, GroupId, GroupOwner, Tick, WakeList, WakerSet, contain};
use crate::error::{LeaseError, ScopeClosed};
use crate::job::{JobInfo, JobName};
use crate::sync::Mutex;
use crate::time::{OnTime, ThreadTimer, TimeSource};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio_util::sync::CancellationToken;
use tree::{Guard, Tree};

/// A node in a tree of owners. Clones are the same node.
///
/// Work is entered under a scope: by a [guard](Self::enter), by a [permit](crate::Lane::scoped), by a job, by an async
/// [task](Self::track). A scope is open, then draining, then closed. Closing one closes everything below it and nothing
/// else; it is closed when nothing is left in its subtree.
///
/// | need | use |
/// | --- | --- |
/// | a part that ends on its own | [`child`](Self::child) |
/// | count something | [`enter`](Self::enter), [`track`](Self::track) |
/// | bind work of a budget or a pool | [`Lane::scoped`](crate::Lane::scoped) |
/// | stop admission | [`close`](Self::close) |
/// | ask what runs to stop | [`cancel`](Self::cancel), [`token`](Self::token) |
/// | know when all has ended | [`drained`](Self::drained) |
/// | all of it, with a report | [`shutdown`](Self::shutdown) |
/// | finish something while it drains | [`drain_lease`](Self::drain_lease) |
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tollgate_admission::{Deadline, Scope};
///
/// let service = Scope::root("service");
/// let connection = service.child("connection 7")?;
/// let request = connection.enter("get")?;
/// // ... the request is served ...
/// drop(request);
///
/// let report = service.shutdown(Deadline::after(Duration::from_secs(5))).await;
/// assert!(report.complete, "{report}");
/// assert!(connection.enter("too late").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Scope {
    node: Arc<Node>,
}

/// One handle to a node of the tree, whatever holds it.
struct Node {
    owners: Arc<Owners>,
    index: usize,
    /// The same as in the tree. A token has locks of its own, which are held around wakers of the user when it is
    /// cancelled: so they are not taken under the tree's.
    token: Arc<CancellationToken>,
}

/// A tree, and what is around it.
struct Owners {
    inner: Mutex<Inner>,
    time: Arc<dyn TimeSource>,
    epoch: Instant,
    me: Weak<Owners>,
}

struct Inner {
    tree: Tree<Extra, Registered>,
    /// What the time source was asked for, to end leases.
    alarm: Alarm,
}

/// What goes with every node.
struct Extra {
    token: Arc<CancellationToken>,
    /// Those who wait for the node to be quiet.
    drained: WakerSet,
}

impl Extra {
    fn new(token: &Arc<CancellationToken>) -> Self {
        Extra { token: Arc::clone(token), drained: WakerSet::default() }
    }
}

/// A budget or pool that has work of a scope.
pub trait Member: Send + Sync {
    /// Admits nothing more for `group`, and refuses who waits in it; `leased` says that leases are over too. When this
    /// returns they have been told.
    fn close(&self, group: GroupId, leased: bool);

    /// Asks what runs in `group`, and what starts later, to stop; work under a lease only if `leased` says so. Returns how
    /// many were asked now.
    fn cancel(&self, group: GroupId, leased: bool) -> u64;

    /// Makes the deadline of everything in `group` earlier.
    fn tighten(&self, group: GroupId, deadline: Deadline);

    /// What is in `group`.
    fn remaining(&self, group: GroupId) -> Remaining;

    /// How many were refused in `group` so far because the scope was closed.
    fn refused(&self, group: GroupId) -> u64;
}

/// What a [`Member`] has of a scope's work.
#[derive(Clone, Debug, Default)]
pub struct Remaining {
    /// Acquires and jobs that wait for a permit.
    pub waiting: usize,
    /// Permits that are out, by weight, those of jobs included.
    pub permits: u64,
    /// Jobs that were refused or given up, and whose captures are not gone.
    pub ending: u64,
    /// Threads that are there for this scope alone and have not ended.
    pub threads: usize,
    /// The jobs, if it has any.
    pub jobs: Vec<JobInfo>,
}

/// A member as its scope knows it.
#[derive(Clone)]
struct Registered {
    member: Weak<dyn Member>,
    /// Unknown while it is being made.
    group: Option<GroupId>,
    name: Arc<str>,
}

impl Owners {
    fn now(&self) -> Tick {
        self.tick(Deadline::at(self.time.now()))
    }

    fn tick(&self, deadline: Deadline) -> Tick {
        Tick::from_deadline(deadline, self.epoch)
    }

    fn deadline(&self, tick: Tick) -> Deadline {
        tick.to_instant(self.epoch).map_or(Deadline::never(), Deadline::at)
    }

    /// Locks the tree, ends the leases whose time is up and calls `f`; unlocks; then wakes those whose scope has closed, and drops what went with nodes that
    /// are gone.
    fn with<R>(&self, f: impl FnOnce(&mut Tree<Extra, Registered>) -> R) -> R {
        let mut inner = self.inner.lock();
        let Inner { tree, alarm } = &mut *inner;
        if tree.next_expiry() != Tick::NEVER {
            // whether or not the timer has called
            tree.expire(self.now());
        }
        let result = f(tree);
        let mut wakes = WakeList::new();
        while let Some(node) = tree.next_quiet() {
            tree.extra_mut(node).drained.take_all(&mut wakes);
        }
        let gone: Vec<Extra> = std::iter::from_fn(|| tree.next_gone()).collect();
        let expiry = tree.next_expiry();
        let call = if expiry == Tick::NEVER { None } else { alarm.ask(expiry, self.now()) };
        drop(inner);
        if let Some(at) = call.and_then(|at| at.to_instant(self.epoch)) {
            // without a timer leases end with the first call after their time
            let _ = self.time.prepare();
            self.time.call_at(at, self.me.clone());
        }
        wakes.wake_all();
        drop(gone);
        result
    }
}

impl OnTime for Owners {
    fn on_time(self: Arc<Self>) {
        self.inner.lock().alarm.came();
        self.with(|_| ());
    }
}

impl Node {
    fn with<R>(&self, f: impl FnOnce(&mut Tree<Extra, Registered>, usize) -> R) -> R {
        self.owners.with(|tree| f(tree, self.index))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.with(Tree::release);
    }
}

impl Scope {
    /// The root of a tree of its own. Its time is kept by the timer that budgets share.
    #[must_use]
    pub fn root(name: impl Into<Arc<str>>) -> Self {
        Self::root_by(name, ThreadTimer::shared())
    }

    /// The root of a tree whose time is kept by `time`.
    #[must_use]
    pub fn root_by(name: impl Into<Arc<str>>, time: Arc<dyn TimeSource>) -> Self {
        let token = Arc::new(CancellationToken::new());
        let tree = Tree::new(name.into(), Extra::new(&token));
        let epoch = time.now();
        let inner = Mutex::new(Inner { tree, alarm: Alarm::new() });
        let owners = Arc::new_cyclic(|me| Owners { inner, time, epoch, me: me.clone() });
        Scope { node: Arc::new(Node { owners, index: tree::ROOT, token }) }
    }

    fn owners(&self) -> &Arc<Owners> {
        &self.node.owners
    }

    /// Whether this scope is `other` or below it. O(depth).
    #[must_use]
    pub fn is_within(&self, other: &Scope) -> bool {
        Arc::ptr_eq(self.owners(), other.owners())
            && self.node.with(|tree, node| {
                let mut above = std::iter::successors(Some(node), |&at| tree.parent(at));
                above.any(|at| at == other.node.index)
            })
    }

    fn closed(&self) -> ScopeClosed {
        ScopeClosed { scope: self.name() }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        self.node.with(|tree, node| Arc::clone(tree.name(node)))
    }

    /// A new scope below this one, with its deadline. O(1).
    ///
    /// It lives as long as somebody has it or something is in it; dropping the last handle closes nothing.
    ///
    /// # Errors
    ///
    /// [`ScopeClosed`] when this scope is not open.
    pub fn child(&self, name: impl Into<Arc<str>>) -> Result<Scope, ScopeClosed> {
        let name = name.into();
        // a cancellation reaches the token of a child that is opened meanwhile
        let token = Arc::new(self.node.token.child_token());
        let index = self.node.with(|tree, node| tree.open(node, name, Extra::new(&token)));
        let index = index.ok_or_else(|| self.closed())?;
        Ok(Scope { node: Arc::new(Node { owners: Arc::clone(self.owners()), index, token }) })
    }

    /// Counts something until the guard is dropped. O(1), and O(depth) for the first and the last.
    ///
    /// # Errors
    ///
    /// [`ScopeClosed`] when this scope is not open.
    pub fn enter(&self, name: impl Into<JobName>) -> Result<ScopeGuard, ScopeClosed> {
        let guard = Guard { name: name.into(), since: self.owners().now() };
        let key = self.node.with(|tree, node| tree.enter(node, guard));
        let key = key.ok_or_else(|| self.closed())?;
        Ok(ScopeGuard { scope: self.clone(), key })
    }

    /// Counts an async task: the scope is not closed before it has ended or was dropped. Whoever runs it is the caller's
    /// choice; it should watch the [`token`](Self::token) if it is to end early.
    ///
    /// ```
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let scope = tollgate_admission::Scope::root("service");
    /// let token = scope.token();
    /// let task = scope.track("accept", async move { token.cancelled().await })?;
    /// // tokio::spawn(task)
    /// scope.cancel();
    /// task.await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScopeClosed`] when this scope is not open.
    pub fn track<F: Future>(
        &self,
        name: impl Into<JobName>,
        future: F,
    ) -> Result<Tracked<F>, ScopeClosed> {
        let guard = self.enter(name)?;
        Ok(Tracked { future: Some(Box::pin(future)), guard: Some(guard) })
    }

    /// A token that is cancelled when this scope or one above it is. Cancelling it cancels no scope.
    ///
    /// Wakers of those who wait for tokens are called one after the other: one that panics may keep others that wait for
    /// tokens of the same scope from being woken.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.node.token.child_token()
    }

    /// Where it stands.
    #[must_use]
    pub fn phase(&self) -> ScopePhase {
        self.node.with(|tree, node| ScopePhase::of(tree.is_draining(node), tree.is_quiet(node)))
    }

    /// Whether work can still be entered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase() == ScopePhase::Open
    }

    /// The deadline of everything in the subtree: the earliest that was set here or above.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        let tick = self.node.with(|tree, node| tree.deadline(node));
        self.owners().deadline(tick)
    }

    /// Makes the deadline earlier, here and below, for waits and work that are under way too. A later one changes
    /// nothing. What waits past it is refused, what runs is told that its time is up, and what comes after is refused.
    ///
    /// O(nodes in the subtree and their work).
    pub fn tighten(&self, deadline: impl Into<Deadline>) {
        let deadline = deadline.into();
        let tick = self.owners().tick(deadline);
        for member in self.node.with(|tree, node| tree.tighten(node, tick)) {
            member.call(|member, group| member.tighten(group, deadline));
        }
    }

    /// Admits nothing more, here and below, and refuses what waits. When this returns, they have been told. What runs
    /// goes on, and what came under a [drain lease](Self::drain_lease) too. Closing again does nothing.
    ///
    /// O(nodes in the subtree and what waits in them).
    pub fn close(&self) {
        self.close_with(false);
    }

    fn close_with(&self, leased: bool) {
        let members = self.node.with(|tree, node| {
            if leased {
                tree.revoke(node);
            }
            tree.close(node)
        });
        for member in members {
            // one that is being made closes itself; one that is being dropped parts
            member.call(|member, group| member.close(group, leased));
        }
    }

    /// [Closes](Self::close) the scope, revokes leases, and asks everything in the subtree to stop: tokens are
    /// cancelled, those of jobs that run included. Parents and siblings go on.
    pub fn cancel(&self) {
        self.close_with(true);
        self.ask_to_stop(true);
    }

    /// Cancels the tokens in the subtree, and asks jobs to stop.
    fn ask_to_stop(&self, leased: bool) {
        let (tokens, members) = self.node.with(|tree, node| {
            let nodes = tree.subtree(node);
            let tokens: Vec<_> =
                nodes.iter().map(|&node| Arc::clone(&tree.extra(node).token)).collect();
            let members: Vec<_> = nodes.into_iter().flat_map(|node| tree.members(node)).collect();
            (tokens, members)
        });
        let asked =
            members.iter().filter_map(|it| it.call(|member, group| member.cancel(group, leased)));
        let asked: u64 = asked.sum();
        self.node.with(|tree, node| tree.count_asked(node, asked));
        // one by one, from below: who waits for one wakes by code of the user, which may panic
        for token in tokens.into_iter().rev() {
            contain(|| token.cancel());
        }
    }

    /// Resolves when the scope is closed and nothing is left in its subtree. Does not close it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it; it can be asked for again, any number of times.
    pub fn drained(&self) -> ScopeDrained {
        ScopeDrained { scope: self.clone(), place: None }
    }

    /// Ends the scope and everything below it, and reports.
    ///
    /// When first polled it [closes](Self::close) the scope and [tightens](Self::tighten) its deadline to this one. It asks
    /// what runs to stop, at once or at a [later mark](Shutdown::cancel_at), waits until nothing is left or `deadline` has
    /// passed, by the scope's clock, and reports. Nothing can slip in meanwhile. It can be asked for again, with a later
    /// deadline too, and tells the present truth then.
    ///
    /// # Cancel safety
    ///
    /// Dropping it before the first poll changes nothing; after that the scope is closed.
    pub fn shutdown(&self, deadline: impl Into<Deadline>) -> Shutdown {
        Shutdown::new(self.clone(), deadline.into())
    }

    /// What is left in the subtree at this moment. O(what is left).
    #[must_use]
    pub fn report(&self) -> ScopeReport {
        report::take(self, PhaseTimes::default())
    }

    /// The right to begin `operations` that go on until `deadline`, also while the scope drains: for the last flush of a
    /// store, say.
    ///
    /// The scope counts as busy while the lease can be used or an operation goes on. See [`DrainLease`].
    ///
    /// # Errors
    ///
    /// [`LeaseError`] when it would allow nothing, its time is up, or the scope is not open.
    pub fn drain_lease(
        &self,
        operations: u64,
        deadline: impl Into<Deadline>,
    ) -> Result<DrainLease, LeaseError> {
        DrainLease::new(self, operations, deadline.into())
    }
}

/// Scopes are equal when they are the same node.
impl PartialEq for Scope {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }
}

impl Eq for Scope {}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("name", &self.name()).field("phase", &self.phase()).finish()
    }
}

impl Registered {
    /// `None` when there is nobody to call.
    fn call<R>(&self, f: impl FnOnce(&dyn Member, GroupId) -> R) -> Option<R> {
        let (member, group) = (self.member.upgrade()?, self.group?);
        Some(f(&*member, group))
    }
}

/// Something that goes on in a [`Scope`], from [`Scope::enter`] until it is dropped, on any thread.
#[must_use = "a guard leaves its scope as soon as it is dropped"]
pub struct ScopeGuard {
    scope: Scope,
    key: usize,
}

impl ScopeGuard {
    /// The scope that it is in.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        self.scope.node.with(|tree, node| tree.leave(node, self.key));
    }
}

impl fmt::Debug for ScopeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeGuard").field("scope", &self.scope.name()).finish_non_exhaustive()
    }
}

/// The future of [`Scope::track`]. It leaves its scope when it has ended, before its output is seen, or is dropped.
///
/// # Panics
///
/// When it is polled after it has completed.
#[must_use = "futures do nothing unless awaited"]
pub struct Tracked<F> {
    // before the guard: what it captured is gone when the scope is left
    future: Option<Pin<Box<F>>>,
    guard: Option<ScopeGuard>,
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.future.as_mut().expect("a task was polled after it had completed");
        let output = std::task::ready!(future.as_mut().poll(cx));
        self.future = None;
        self.guard = None;
        Poll::Ready(output)
    }
}

impl<F> fmt::Debug for Tracked<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracked").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// The future of [`Scope::drained`].
#[must_use = "futures do nothing unless awaited"]
pub struct ScopeDrained {
    scope: Scope,
    place: Option<usize>,
}

impl Future for ScopeDrained {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // a waker's clone and drop are the user's code, hence not under the lock
        let mut fresh = Some(cx.waker().clone());
        let place = self.place;
        let (place, stale) = self.scope.node.with(|tree, node| {
            if tree.is_quiet(node) {
                return (None, None);
            }
            let fresh = fresh.take().expect("taken once");
            let (place, stale) = tree.extra_mut(node).drained.register(place, fresh);
            (Some(place), stale)
        });
        drop((stale, fresh));
        match place {
            None => Poll::Ready(()),
            Some(place) => {
                self.place = Some(place);
                Poll::Pending
            }
        }
    }
}

impl Drop for ScopeDrained {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let _waker =
                self.scope.node.with(|tree, node| tree.extra_mut(node).drained.remove(place));
        }
    }
}

impl fmt::Debug for ScopeDrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopeDrained").field("scope", &self.scope).finish()
    }
}

/// What ties a group of an engine's state to a scope. While it lives, work can be entered in the group.
pub struct Bound<E: Engine> {
    engine: Arc<E>,
    group: GroupId,
    scope: Scope,
}

impl<E: Engine> Bound<E> {
    /// Opens a group for `scope` in an engine. `name` is what reports call it. When the scope is not open, the group
    /// refuses everything.
    #[must_use]
    pub fn new(engine: &Arc<E>, scope: &Scope, name: Arc<str>) -> Self {
        let weak: Weak<E> = Arc::downgrade(engine);
        let membership = Membership::new(scope, weak, name);
        let membership = Arc::new(membership);
        let owner = Arc::clone(&membership) as Arc<dyn GroupOwner>;
        let group = engine.with(|state| state.open_group(owner, Tick::NEVER));
        membership.settle(group, &**engine);
        Bound { engine: Arc::clone(engine), group, scope: scope.clone() }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// The scope.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

impl<E: Engine> Drop for Bound<E> {
    fn drop(&mut self) {
        self.engine.with(|state| state.let_go(self.group));
    }
}

impl<E: Engine> fmt::Debug for Bound<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// A member's place in its scope, for whoever tells what becomes of the member.
pub struct Membership {
    scope: Scope,
    key: usize,
    /// The scope knows it no more, and its key may be another's. Looked at under the tree's lock: what was decided first,
    /// that it is idle, may be told after what was decided last, that it is gone.
    parted: AtomicBool,
    /// The number of the latest news.
    news: AtomicU64,
}

impl Membership {
    /// Registers a member, which is not known by a group yet. It holds up no scope that is not open: there, what it has
    /// comes under leases.
    pub fn new(scope: &Scope, member: Weak<dyn Member>, name: Arc<str>) -> Self {
        let registered = Registered { member, group: None, name };
        let key = scope.node.with(|tree, node| tree.join(node, registered));
        let (parted, news) = (AtomicBool::new(false), AtomicU64::new(0));
        Membership { scope: scope.clone(), key, parted, news }
    }

    fn part(&self, refused: u64) {
        self.scope.node.with(|tree, node| {
            // Relaxed: under the lock of the tree
            if !self.parted.swap(true, Ordering::Relaxed) {
                tree.part(node, self.key, refused);
            }
        });
    }

    /// Calls `f` unless it has parted.
    fn with(&self, f: impl FnOnce(&mut Tree<Extra, Registered>, usize)) {
        self.scope.node.with(|tree, node| {
            if !self.parted.load(Ordering::Relaxed) {
                f(tree, node);
            }
        });
    }

    /// The member goes by `group` from here on. It is closed at once if the scope was closed meanwhile, and gets the
    /// scope's deadline.
    pub fn settle(&self, group: GroupId, member: &dyn Member) {
        let (open, deadline) = self.scope.node.with(|tree, node| {
            tree.change_member(node, self.key, |it| it.group = Some(group));
            (!tree.is_draining(node), tree.deadline(node))
        });
        if deadline != Tick::NEVER {
            member.tighten(group, self.scope.owners().deadline(deadline));
        }
        if !open {
            member.close(group, false);
        }
    }

    /// The member said that it was idle, and may not be any more: a lease is about to let something in. `news` numbers what
    /// the member tells by [`quiet`](Self::quiet) and by this, from 1: it tells outside its own lock, and so maybe in
    /// another order, and what is overtaken by later news is no news.
    pub fn busy(&self, news: u64) {
        self.with(|tree, node| {
            if self.is_news(news) {
                tree.busy(node, self.key);
            }
        });
    }

    /// The member is closed, and has nothing left. For `news`, see [`busy`](Self::busy).
    pub fn quiet(&self, news: u64) {
        self.with(|tree, node| {
            if self.is_news(news) {
                tree.idle(node, self.key);
            }
        });
    }

    /// Under the lock of the tree.
    fn is_news(&self, news: u64) -> bool {
        // Relaxed: read and written under that lock
        self.news.fetch_max(news, Ordering::Relaxed) < news
    }
}

impl GroupOwner for Membership {
    fn idle(&self) {
        self.with(|tree, node| tree.idle(node, self.key));
    }

    fn gone(&self, refused: u64) {
        self.part(refused);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // its engine was dropped, with all its groups
        self.part(0);
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl<E: Engine> Member for E {
    fn close(&self, group: GroupId, leased: bool) {
        self.close_group(group, leased);
    }

    fn cancel(&self, group: GroupId, leased: bool) -> u64 {
        self.cancel_group(group, leased)
    }

    fn tighten(&self, group: GroupId, deadline: Deadline) {
        self.tighten_group(group, self.tick(deadline));
    }

    fn remaining(&self, group: GroupId) -> Remaining {
        let stats = self.with(|state| state.group_stats(group));
        Remaining {
            waiting: stats.waiting,
            permits: stats.out,
            ending: stats.ending,
            threads: 0,
            jobs: self.jobs_in(group),
        }
    }

    fn refused(&self, group: GroupId) -> u64 {
        self.with(|state| state.group_stats(group).refused)
    }
}
