//! The tree of owners as arithmetic: no lock, no clock, no waker, no token.
//!
//! # Invariants
//!
//! They hold after every public call:
//!
//! 1. Below a node that drains, every node drains.
//! 2. A node is *busy* when it holds something itself (a guard, a lease that may still be used or is in use, a member
//!    that has not said that it is idle since it was closed) or has a busy child. `busy_children` counts those children.
//! 3. A node that drains and is not busy is *quiet*, and stays so: nothing can be entered there, and what a lease lets in
//!    is counted before the lease itself goes.
//! 4. A node lives as long as it has a handle, a child, a member, or is busy.
//!
//! A guard that comes or goes costs O(1), and O(depth) when its node becomes busy or stops being so.

use crate::engine::Tick;
use crate::job::JobName;
use slab::Slab;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A guard: something that goes on in a node.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub(super) name: JobName,
    pub(super) since: Tick,
}

/// What a drain lease still allows.
#[derive(Debug)]
pub(super) struct Lease {
    /// Operations that may still begin.
    left: u64,
    /// Operations that have begun and not ended.
    pub(super) ops: Slab<Guard>,
    /// By its own deadline or its node's; as long as it is open, it is among the tree's `due` under this.
    pub(super) ends: Tick,
    /// Its owner has it, its time is not up, and it was not revoked.
    open: bool,
    /// It was open when its time was up.
    expired: bool,
}

impl Lease {
    /// How many operations may still begin at `now`.
    pub(super) fn allows(&self, now: Tick) -> u64 {
        if self.open && now < self.ends { self.left } else { 0 }
    }

    fn is_busy(&self) -> bool {
        (self.open && self.left > 0) || !self.ops.is_empty()
    }
}

/// Why an operation may not begin under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoOperation {
    Expired,
    Exhausted,
    Revoked,
}

/// A pool or budget with work of a node.
#[derive(Debug)]
struct Member<M> {
    member: M,
    /// It was closed, and has not said that it is idle.
    held: bool,
}

#[derive(Debug)]
struct Node<X, M> {
    name: Arc<str>,
    parent: Option<usize>,
    /// Its neighbours among its parent's children, and the first of its own.
    next: Option<usize>,
    prev: Option<usize>,
    child: Option<usize>,
    draining: bool,
    busy: bool,
    busy_children: usize,
    held: usize,
    busy_leases: usize,
    /// Somebody may still come by it.
    handle: bool,
    deadline: Tick,
    guards: Slab<Guard>,
    leases: Slab<Lease>,
    members: Slab<Member<M>>,
    /// Refused by members that are gone.
    refused: u64,
    /// Asked to stop, by this node or one below that is gone.
    asked: u64,
    extra: X,
}

impl<X, M> Node<X, M> {
    fn new(name: Arc<str>, parent: Option<usize>, deadline: Tick, extra: X) -> Self {
        Node {
            name,
            parent,
            next: None,
            prev: None,
            child: None,
            draining: false,
            busy: false,
            busy_children: 0,
            held: 0,
            busy_leases: 0,
            handle: true,
            deadline,
            guards: Slab::new(),
            leases: Slab::new(),
            members: Slab::new(),
            refused: 0,
            asked: 0,
            extra,
        }
    }

    fn is_busy(&self) -> bool {
        self.busy_children > 0 || self.held > 0 || self.busy_leases > 0 || !self.guards.is_empty()
    }
}

/// The tree. `X` goes with every node, `M` with every member; what they are is the owner's business.
///
/// What a call brought about is collected until the owner asks: nodes that became quiet by [`next_quiet`](Self::next_quiet),
/// nodes that are gone by [`next_gone`](Self::next_gone).
#[derive(Debug)]
pub(super) struct Tree<X, M> {
    nodes: Slab<Node<X, M>>,
    /// Open leases, by when they end: node, key.
    due: BTreeSet<(Tick, usize, usize)>,
    quiet: Vec<usize>,
    gone: Vec<X>,
}

/// The root's index.
pub(super) const ROOT: usize = 0;

impl<X, M: Clone> Tree<X, M> {
    /// A root with a handle.
    pub(super) fn new(name: Arc<str>, extra: X) -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node::new(name, None, Tick::NEVER, extra));
        Tree { nodes, due: BTreeSet::new(), quiet: Vec::new(), gone: Vec::new() }
    }

    /// Opens a child, with a handle. `None` when `parent` drains.
    pub(super) fn open(&mut self, parent: usize, name: Arc<str>, extra: X) -> Option<usize> {
        let above = &self.nodes[parent];
        if above.draining {
            return None;
        }
        let (deadline, sibling) = (above.deadline, above.child);
        let index = self.nodes.insert(Node::new(name, Some(parent), deadline, extra));
        self.nodes[index].next = sibling;
        if let Some(sibling) = sibling {
            self.nodes[sibling].prev = Some(index);
        }
        self.nodes[parent].child = Some(index);
        Some(index)
    }

    /// The handle is gone.
    pub(super) fn release(&mut self, node: usize) {
        self.nodes[node].handle = false;
        self.collect(node);
    }

    pub(super) fn name(&self, node: usize) -> &Arc<str> {
        &self.nodes[node].name
    }

    pub(super) fn parent(&self, node: usize) -> Option<usize> {
        self.nodes[node].parent
    }

    pub(super) fn extra(&self, node: usize) -> &X {
        &self.nodes[node].extra
    }

    pub(super) fn extra_mut(&mut self, node: usize) -> &mut X {
        &mut self.nodes[node].extra
    }

    pub(super) fn is_draining(&self, node: usize) -> bool {
        self.nodes[node].draining
    }

    /// Drains, and nothing in its subtree is left.
    pub(super) fn is_quiet(&self, node: usize) -> bool {
        self.nodes[node].draining && !self.nodes[node].busy
    }

    pub(super) fn deadline(&self, node: usize) -> Tick {
        self.nodes[node].deadline
    }

    /// A node that became quiet since it was last asked for.
    pub(super) fn next_quiet(&mut self) -> Option<usize> {
        while let Some(node) = self.quiet.pop() {
            if self.nodes.get(node).is_some_and(|it| it.draining && !it.busy) {
                return Some(node);
            }
        }
        None
    }

    /// What went with a node that is gone, to be dropped outside the lock.
    pub(super) fn next_gone(&mut self) -> Option<X> {
        self.gone.pop()
    }

    // ---- guards ----

    /// Something begins. `None` when the node drains.
    pub(super) fn enter(&mut self, node: usize, guard: Guard) -> Option<usize> {
        if self.nodes[node].draining {
            return None;
        }
        let key = self.nodes[node].guards.insert(guard);
        self.update(node);
        Some(key)
    }

    /// It has ended.
    pub(super) fn leave(&mut self, node: usize, guard: usize) {
        self.nodes[node].guards.remove(guard);
        self.update(node);
        self.collect(node);
    }

    // ---- members ----

    /// Registers a member. In a node that drains it counts as idle.
    pub(super) fn join(&mut self, node: usize, member: M) -> usize {
        self.nodes[node].members.insert(Member { member, held: false })
    }

    /// Changes a member's value.
    pub(super) fn change_member(&mut self, node: usize, key: usize, f: impl FnOnce(&mut M)) {
        f(&mut self.nodes[node].members[key].member);
    }

    /// A member that was closed has nothing left.
    pub(super) fn idle(&mut self, node: usize, key: usize) {
        let here = &mut self.nodes[node];
        if std::mem::take(&mut here.members[key].held) {
            here.held -= 1;
            self.update(node);
            self.collect(node);
        }
    }

    /// A member that said it was idle is not: a lease is about to let something in. Nothing happens to a quiet node, where
    /// no lease can.
    pub(super) fn busy(&mut self, node: usize, key: usize) {
        let here = &mut self.nodes[node];
        if here.draining && here.busy && !std::mem::replace(&mut here.members[key].held, true) {
            here.held += 1;
            self.update(node);
        }
    }

    /// A member is gone, and with it whatever it held.
    pub(super) fn part(&mut self, node: usize, key: usize, refused: u64) {
        let here = &mut self.nodes[node];
        let member = here.members.remove(key);
        here.held -= usize::from(member.held);
        here.refused += refused;
        self.update(node);
        self.collect(node);
    }

    // ---- leases ----

    /// A lease for `left` operations. `None` when the node drains.
    pub(super) fn lend(&mut self, node: usize, left: u64, deadline: Tick) -> Option<usize> {
        let here = &mut self.nodes[node];
        if here.draining {
            return None;
        }
        let ends = deadline.min(here.deadline);
        let lease = Lease { left, ops: Slab::new(), ends, open: true, expired: false };
        let key = here.leases.insert(lease);
        here.busy_leases += 1;
        self.due.insert((ends, node, key));
        self.update(node);
        Some(key)
    }

    /// Changes a lease and keeps what counts up to date.
    fn with_lease<R>(&mut self, node: usize, key: usize, f: impl FnOnce(&mut Lease) -> R) -> R {
        let here = &mut self.nodes[node];
        let lease = &mut here.leases[key];
        let before = lease.is_busy();
        let result = f(lease);
        if !lease.open {
            self.due.remove(&(lease.ends, node, key));
        }
        here.busy_leases += usize::from(lease.is_busy());
        here.busy_leases -= usize::from(before);
        self.update(node);
        result
    }

    pub(super) fn lease(&self, node: usize, key: usize) -> &Lease {
        &self.nodes[node].leases[key]
    }

    /// An operation begins under a lease.
    pub(super) fn begin(
        &mut self,
        node: usize,
        key: usize,
        guard: Guard,
    ) -> Result<usize, NoOperation> {
        self.with_lease(node, key, |lease| {
            if lease.expired || (lease.open && lease.ends <= guard.since) {
                return Err(NoOperation::Expired);
            }
            if !lease.open {
                return Err(NoOperation::Revoked);
            }
            if lease.left == 0 {
                return Err(NoOperation::Exhausted);
            }
            lease.left -= 1;
            Ok(lease.ops.insert(guard))
        })
    }

    /// An operation is over. One that was not started gives its allowance back.
    pub(super) fn end(&mut self, node: usize, key: usize, op: usize, started: bool) {
        self.with_lease(node, key, |lease| {
            lease.ops.remove(op);
            lease.left += u64::from(!started);
        });
    }

    /// When the next open lease ends.
    pub(super) fn next_expiry(&self) -> Tick {
        self.due.first().map_or(Tick::NEVER, |&(ends, ..)| ends)
    }

    /// Ends the leases whose time is up. Operations go on.
    pub(super) fn expire(&mut self, now: Tick) {
        while let Some(&(ends, node, key)) = self.due.first()
            && ends <= now
        {
            self.with_lease(node, key, |lease| {
                lease.open = false;
                lease.expired = true;
            });
        }
    }

    /// Ends a lease before its time. Operations go on.
    pub(super) fn revoke_one(&mut self, node: usize, key: usize) {
        self.with_lease(node, key, |lease| lease.open = false);
    }

    /// Forgets a lease without operations.
    pub(super) fn forget(&mut self, node: usize, key: usize) {
        self.revoke_one(node, key);
        self.nodes[node].leases.remove(key);
        self.collect(node);
    }

    // ---- the subtree ----

    /// Closes the subtree: nothing is entered any more. Returns all members in it, whether it was closed before or not.
    ///
    /// O(nodes in the subtree).
    pub(super) fn close(&mut self, node: usize) -> Vec<M> {
        let mut members = Vec::new();
        let subtree = self.subtree(node);
        for &node in &subtree {
            let here = &mut self.nodes[node];
            if !std::mem::replace(&mut here.draining, true) {
                for (_, member) in &mut here.members {
                    member.held = true;
                }
                here.held = here.members.len();
            }
            members.extend(here.members.iter().map(|(_, it)| it.member.clone()));
        }
        // children before their parents, so that each is judged once
        for &node in subtree.iter().rev() {
            self.update(node);
            if !self.nodes[node].busy {
                self.quiet.push(node);
            }
        }
        members
    }

    /// Takes away what leases in the subtree still allow. What has begun goes on.
    pub(super) fn revoke(&mut self, node: usize) {
        for node in self.subtree(node) {
            let keys: Vec<_> = self.nodes[node].leases.iter().map(|(key, _)| key).collect();
            for key in keys {
                self.revoke_one(node, key);
            }
        }
    }

    /// Tightens the deadline of the subtree. Returns the members of the nodes whose deadline changed.
    pub(super) fn tighten(&mut self, node: usize, deadline: Tick) -> Vec<M> {
        let mut members = Vec::new();
        for node in self.subtree(node) {
            let here = &mut self.nodes[node];
            if deadline >= here.deadline {
                continue;
            }
            here.deadline = deadline;
            members.extend(here.members.iter().map(|(_, it)| it.member.clone()));
            for (key, lease) in &mut here.leases {
                if deadline < lease.ends {
                    let open = self.due.remove(&(lease.ends, node, key));
                    lease.ends = deadline;
                    if open {
                        self.due.insert((deadline, node, key));
                    }
                }
            }
        }
        members
    }

    /// All nodes of the subtree, parents before their children.
    pub(super) fn subtree(&self, node: usize) -> Vec<usize> {
        let mut found = vec![node];
        let mut at = 0;
        while let Some(&node) = found.get(at) {
            at += 1;
            let mut child = self.nodes[node].child;
            while let Some(index) = child {
                found.push(index);
                child = self.nodes[index].next;
            }
        }
        found
    }

    /// Whether something may be left in the node itself. Of a member that was not closed only it itself knows.
    pub(super) fn holds_something(&self, node: usize) -> bool {
        let here = &self.nodes[node];
        let members = if here.draining { here.held > 0 } else { !here.members.is_empty() };
        members || here.busy_leases > 0 || !here.guards.is_empty()
    }

    pub(super) fn guards(&self, node: usize) -> impl Iterator<Item = &Guard> {
        self.nodes[node].guards.iter().map(|(_, guard)| guard)
    }

    pub(super) fn leases(&self, node: usize) -> impl Iterator<Item = &Lease> {
        self.nodes[node].leases.iter().map(|(_, lease)| lease)
    }

    pub(super) fn members(&self, node: usize) -> impl Iterator<Item = M> {
        self.nodes[node].members.iter().map(|(_, it)| it.member.clone())
    }

    /// Refused by members that are gone.
    pub(super) fn refused(&self, node: usize) -> u64 {
        self.nodes[node].refused
    }

    /// Counts what was asked to stop.
    pub(super) fn count_asked(&mut self, node: usize, count: u64) {
        self.nodes[node].asked += count;
    }

    /// How many were asked to stop, by this node or one below that is gone.
    pub(super) fn asked(&self, node: usize) -> u64 {
        self.nodes[node].asked
    }

    // ---- what the calls are made of ----

    /// What a node holds changed: brings it and those above it up to date.
    fn update(&mut self, node: usize) {
        let mut at = Some(node);
        while let Some(index) = at {
            let here = &mut self.nodes[index];
            let busy = here.is_busy();
            if busy == here.busy {
                return;
            }
            here.busy = busy;
            if !busy && here.draining {
                self.quiet.push(index);
            }
            at = self.nodes[index].parent;
            if let Some(parent) = at {
                let count = &mut self.nodes[parent].busy_children;
                *count = if busy { *count + 1 } else { *count - 1 };
            }
        }
    }

    /// Frees a node that nothing holds on to, and those above it that were there for it alone.
    fn collect(&mut self, node: usize) {
        let mut at = Some(node);
        while let Some(index) = at {
            let here = &self.nodes[index];
            let held = here.handle || here.child.is_some() || here.busy;
            if held || !here.members.is_empty() || !here.leases.is_empty() {
                return;
            }
            let node = self.nodes.remove(index);
            self.gone.push(node.extra);
            if let Some(next) = node.next {
                self.nodes[next].prev = node.prev;
            }
            if let Some(prev) = node.prev {
                self.nodes[prev].next = node.next;
            } else if let Some(parent) = node.parent {
                self.nodes[parent].child = node.next;
            }
            if let Some(parent) = node.parent {
                self.nodes[parent].refused += node.refused;
                self.nodes[parent].asked += node.asked;
            }
            at = node.parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;
    use std::collections::BTreeMap;

    /// A call, on something that is picked among what there is.
    #[derive(Clone, Debug)]
    enum Step {
        Open(Index),
        Release(Index),
        Enter(Index),
        Leave(Index),
        Join(Index),
        Idle(Index),
        Busy(Index),
        Part(Index, u64),
        Lend(Index, u64, u64),
        Begin(Index),
        End(Index, bool),
        /// The owner of a lease drops it.
        RevokeOne(Index),
        Forget(Index),
        Revoke(Index),
        Pass(u64),
        Expire,
        Close(Index),
        Tighten(Index, u64),
        CountAsked(Index, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let index = any::<Index>;
        let later = prop_oneof![1 => Just(u64::MAX), 3 => 0_u64..12];
        prop_oneof![
            6 => index().prop_map(Step::Open),
            5 => index().prop_map(Step::Release),
            5 => index().prop_map(Step::Enter),
            4 => index().prop_map(Step::Leave),
            3 => index().prop_map(Step::Join),
            4 => index().prop_map(Step::Idle),
            2 => index().prop_map(Step::Busy),
            2 => (index(), 0_u64..3).prop_map(|(at, refused)| Step::Part(at, refused)),
            5 => (index(), 0_u64..4, later.clone()).prop_map(|(at, left, span)| Step::Lend(at, left, span)),
            6 => index().prop_map(Step::Begin),
            4 => (index(), any::<bool>()).prop_map(|(at, started)| Step::End(at, started)),
            1 => index().prop_map(Step::RevokeOne),
            2 => index().prop_map(Step::Forget),
            1 => index().prop_map(Step::Revoke),
            2 => (1_u64..4).prop_map(Step::Pass),
            3 => Just(Step::Expire),
            2 => index().prop_map(Step::Close),
            2 => (index(), later).prop_map(|(at, span)| Step::Tighten(at, span)),
            1 => (index(), 0_u64..3).prop_map(|(at, count)| Step::CountAsked(at, count)),
        ]
    }

    struct ModelLease {
        left: u64,
        ops: Vec<usize>,
        ends: u64,
        open: bool,
        expired: bool,
    }

    impl ModelLease {
        fn is_busy(&self) -> bool {
            (self.open && self.left > 0) || !self.ops.is_empty()
        }
    }

    struct ModelNode {
        /// Where the tree keeps it.
        index: usize,
        parent: Option<usize>,
        draining: bool,
        handle: bool,
        deadline: u64,
        guards: Vec<usize>,
        leases: BTreeMap<usize, ModelLease>,
        /// By key: which it is, and whether it was closed and has not said that it is idle.
        members: BTreeMap<usize, (usize, bool)>,
        refused: u64,
        asked: u64,
    }

    /// The rules with lists and loops: nothing is kept that can be counted anew.
    struct Model {
        nodes: BTreeMap<usize, ModelNode>,
        opened: usize,
        joined: usize,
        clock: u64,
    }

    impl Model {
        fn new() -> Self {
            let mut model = Model { nodes: BTreeMap::new(), opened: 0, joined: 0, clock: 1 };
            model.add(None, ROOT);
            model
        }

        fn add(&mut self, parent: Option<usize>, index: usize) {
            let deadline = parent.map_or(u64::MAX, |parent| self.nodes[&parent].deadline);
            let node = ModelNode {
                index,
                parent,
                draining: false,
                handle: true,
                deadline,
                guards: Vec::new(),
                leases: BTreeMap::new(),
                members: BTreeMap::new(),
                refused: 0,
                asked: 0,
            };
            self.nodes.insert(self.opened, node);
            self.opened += 1;
        }

        fn children(&self, id: usize) -> Vec<usize> {
            let children = self.nodes.iter().filter(|(_, node)| node.parent == Some(id));
            children.map(|(&id, _)| id).collect()
        }

        fn subtree(&self, id: usize) -> Vec<usize> {
            let below = self.children(id).into_iter().flat_map(|child| self.subtree(child));
            std::iter::once(id).chain(below).collect()
        }

        fn is_busy(&self, id: usize) -> bool {
            let node = &self.nodes[&id];
            !node.guards.is_empty()
                || node.leases.values().any(ModelLease::is_busy)
                || node.members.values().any(|&(_, held)| held)
                || self.children(id).into_iter().any(|child| self.is_busy(child))
        }

        fn is_quiet(&self, id: usize) -> bool {
            self.nodes[&id].draining && !self.is_busy(id)
        }

        fn quiet(&self) -> Vec<usize> {
            self.nodes.keys().copied().filter(|&id| self.is_quiet(id)).collect()
        }

        /// Frees what nothing holds, and says what that was.
        fn collect(&mut self) -> Vec<usize> {
            let mut gone = Vec::new();
            while let Some(id) = self.nodes.keys().copied().find(|&id| {
                let node = &self.nodes[&id];
                !node.handle
                    && node.members.is_empty()
                    && node.leases.is_empty()
                    && self.children(id).is_empty()
                    && !self.is_busy(id)
            }) {
                let node = self.nodes.remove(&id).expect("it was found");
                if let Some(parent) = node.parent {
                    let parent = self.nodes.get_mut(&parent).expect("it had a child");
                    parent.refused += node.refused;
                    parent.asked += node.asked;
                }
                gone.push(id);
            }
            gone
        }

        fn handles(&self) -> Vec<usize> {
            self.nodes.iter().filter(|(_, node)| node.handle).map(|(&id, _)| id).collect()
        }

        /// Everything of some sort that nodes have: node, key.
        fn all(&self, keys: impl Fn(&ModelNode) -> Vec<usize>) -> Vec<(usize, usize)> {
            let nodes = self.nodes.iter();
            nodes.flat_map(|(&id, node)| keys(node).into_iter().map(move |key| (id, key))).collect()
        }

        fn leases(&self) -> Vec<(usize, usize)> {
            self.all(|node| node.leases.keys().copied().collect())
        }

        fn members(&self) -> Vec<(usize, usize)> {
            self.all(|node| node.members.keys().copied().collect())
        }

        fn node(&mut self, id: usize) -> &mut ModelNode {
            self.nodes.get_mut(&id).expect("it was picked among those there are")
        }

        fn members_of(&self, ids: &[usize]) -> Vec<usize> {
            let mut members: Vec<usize> =
                ids.iter().flat_map(|id| self.nodes[id].members.values().map(|it| it.0)).collect();
            members.sort_unstable();
            members
        }
    }

    fn pick<T: Copy>(among: &[T], index: &Index) -> Option<T> {
        (!among.is_empty()).then(|| *index.get(among))
    }

    fn name(id: usize) -> Arc<str> {
        format!("node {id}").into()
    }

    fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut items: Vec<T> = items.into_iter().collect();
        items.sort_unstable();
        items
    }

    /// Makes a call on both; `None` when there is nothing to make it on.
    fn apply(tree: &mut Tree<usize, usize>, model: &mut Model, step: &Step) -> Option<()> {
        let clock = model.clock;
        let after = |span: u64| if span == u64::MAX { span } else { clock + span };
        let guard = Guard { name: "guard".into(), since: Tick(clock) };
        match step {
            Step::Open(at) => {
                let parent = pick(&model.handles(), at)?;
                let (index, draining) = (model.nodes[&parent].index, model.nodes[&parent].draining);
                let opened = tree.open(index, name(model.opened), model.opened);
                assert_eq!(opened.is_none(), draining);
                if let Some(index) = opened {
                    model.add(Some(parent), index);
                }
            }
            Step::Release(at) => {
                let id = pick(&model.handles(), at)?;
                model.node(id).handle = false;
                tree.release(model.nodes[&id].index);
            }
            Step::Enter(at) => {
                let id = pick(&model.handles(), at)?;
                let node = model.node(id);
                let key = tree.enter(node.index, guard);
                assert_eq!(key.is_none(), node.draining);
                node.guards.extend(key);
            }
            Step::Leave(at) => {
                let (id, key) = pick(&model.all(|node| node.guards.clone()), at)?;
                let node = model.node(id);
                node.guards.retain(|&guard| guard != key);
                tree.leave(node.index, key);
            }
            Step::Join(at) => {
                let id = pick(&model.handles(), at)?;
                let member = model.joined;
                model.joined += 1;
                let node = model.node(id);
                node.members.insert(tree.join(node.index, member), (member, false));
            }
            Step::Idle(at) => {
                let (id, key) = pick(&model.members(), at)?;
                let node = model.node(id);
                node.members.get_mut(&key)?.1 = false;
                tree.idle(node.index, key);
            }
            Step::Busy(at) => {
                // only for who holds an operation
                let held = |node: &ModelNode| node.leases.values().any(|it| !it.ops.is_empty());
                let members = model.all(|node| {
                    if held(node) { node.members.keys().copied().collect() } else { Vec::new() }
                });
                let (id, key) = pick(&members, at)?;
                let node = model.node(id);
                if node.draining {
                    node.members.get_mut(&key)?.1 = true;
                }
                tree.busy(node.index, key);
            }
            Step::Part(at, refused) => {
                let (id, key) = pick(&model.members(), at)?;
                let node = model.node(id);
                node.members.remove(&key);
                node.refused += refused;
                tree.part(node.index, key, *refused);
            }
            Step::Lend(at, left, span) => {
                let id = pick(&model.handles(), at)?;
                let node = model.node(id);
                let key = tree.lend(node.index, 1 + left, Tick(after(*span)));
                assert_eq!(key.is_none(), node.draining);
                let ends = after(*span).min(node.deadline);
                let (left, ops) = (1 + left, Vec::new());
                let lease = ModelLease { left, ops, ends, open: true, expired: false };
                node.leases.extend(key.map(|key| (key, lease)));
            }
            Step::Begin(at) => {
                let (id, key) = pick(&model.leases(), at)?;
                let node = model.node(id);
                let lease = node.leases.get_mut(&key)?;
                let begun = tree.begin(node.index, key, guard);
                let expected = if lease.expired || (lease.open && lease.ends <= clock) {
                    Some(NoOperation::Expired)
                } else if !lease.open {
                    Some(NoOperation::Revoked)
                } else if lease.left == 0 {
                    Some(NoOperation::Exhausted)
                } else {
                    lease.left -= 1;
                    None
                };
                assert_eq!(begun.err(), expected);
                lease.ops.extend(begun);
            }
            Step::End(at, started) => {
                let ops: Vec<_> = model
                    .leases()
                    .into_iter()
                    .flat_map(|(id, key)| {
                        let ops = &model.nodes[&id].leases[&key].ops;
                        ops.iter().map(move |&op| (id, key, op))
                    })
                    .collect();
                let (id, key, op) = pick(&ops, at)?;
                let node = model.node(id);
                let lease = node.leases.get_mut(&key)?;
                lease.ops.retain(|&it| it != op);
                lease.left += u64::from(!started);
                tree.end(node.index, key, op, *started);
            }
            Step::RevokeOne(at) => {
                let (id, key) = pick(&model.leases(), at)?;
                let node = model.node(id);
                node.leases.get_mut(&key)?.open = false;
                tree.revoke_one(node.index, key);
            }
            Step::Forget(at) => {
                let mut leases = model.leases();
                leases.retain(|(id, key)| model.nodes[id].leases[key].ops.is_empty());
                let (id, key) = pick(&leases, at)?;
                let node = model.node(id);
                node.leases.remove(&key);
                tree.forget(node.index, key);
            }
            Step::Revoke(at) => {
                let id = pick(&model.handles(), at)?;
                for id in model.subtree(id) {
                    model.node(id).leases.values_mut().for_each(|lease| lease.open = false);
                }
                tree.revoke(model.nodes[&id].index);
            }
            Step::Pass(span) => model.clock += span,
            Step::Expire => {
                for lease in model.nodes.values_mut().flat_map(|node| node.leases.values_mut()) {
                    if lease.open && lease.ends <= clock {
                        (lease.open, lease.expired) = (false, true);
                    }
                }
                tree.expire(Tick(clock));
            }
            Step::Close(at) => {
                let id = pick(&model.handles(), at)?;
                let subtree = model.subtree(id);
                for &id in &subtree {
                    let node = model.node(id);
                    if !std::mem::replace(&mut node.draining, true) {
                        node.members.values_mut().for_each(|member| member.1 = true);
                    }
                }
                let members = tree.close(model.nodes[&id].index);
                assert_eq!(sorted(members), model.members_of(&subtree));
            }
            Step::Tighten(at, span) => {
                let id = pick(&model.handles(), at)?;
                let deadline = after(*span);
                let mut subtree = model.subtree(id);
                subtree.retain(|id| deadline < model.nodes[id].deadline);
                for &id in &subtree {
                    let node = model.node(id);
                    node.deadline = deadline;
                    for lease in node.leases.values_mut() {
                        lease.ends = lease.ends.min(deadline);
                    }
                }
                let members = tree.tighten(model.nodes[&id].index, Tick(deadline));
                assert_eq!(sorted(members), model.members_of(&subtree));
            }
            Step::CountAsked(at, count) => {
                let id = pick(&model.handles(), at)?;
                model.node(id).asked += count;
                tree.count_asked(model.nodes[&id].index, *count);
            }
        }
        Some(())
    }

    /// Both agree on every node, and every count is what can be counted.
    fn check(tree: &Tree<usize, usize>, model: &Model) {
        assert_eq!(tree.nodes.len(), model.nodes.len(), "nodes that live");
        let mut due = Vec::new();
        for (&id, expected) in &model.nodes {
            let index = expected.index;
            let node = &tree.nodes[index];
            assert_eq!((node.extra, &node.name), (id, &name(id)));
            assert_eq!(tree.parent(index), expected.parent.map(|it| model.nodes[&it].index));
            assert_eq!(
                (tree.is_draining(index), node.handle),
                (expected.draining, expected.handle)
            );
            assert_eq!(node.busy, model.is_busy(id), "node {id}");
            assert_eq!(tree.is_quiet(index), model.is_quiet(id));
            assert_eq!(tree.deadline(index), Tick(expected.deadline));
            assert_eq!(
                (tree.refused(index), tree.asked(index)),
                (expected.refused, expected.asked)
            );
            let children = model.children(id);
            let busy = children.iter().filter(|&&child| model.is_busy(child)).count();
            assert_eq!(node.busy_children, busy);
            let held = expected.members.values().filter(|it| it.1).count();
            assert_eq!((node.held, node.members.len()), (held, expected.members.len()));
            assert_eq!(tree.guards(index).count(), expected.guards.len());
            let busy = expected.leases.values().filter(|lease| lease.is_busy()).count();
            assert_eq!((node.busy_leases, node.leases.len()), (busy, expected.leases.len()));
            for (&key, lease) in &expected.leases {
                let found = tree.lease(index, key);
                assert_eq!((found.left, found.ops.len()), (lease.left, lease.ops.len()));
                assert_eq!((found.open, found.expired), (lease.open, lease.expired));
                assert_eq!(found.ends, Tick(lease.ends));
                let usable = lease.open && model.clock < lease.ends;
                assert_eq!(found.allows(Tick(model.clock)), if usable { lease.left } else { 0 });
                if lease.open {
                    due.push((found.ends, index, key));
                }
            }
            if expected.draining {
                assert!(children.iter().all(|child| model.nodes[child].draining));
            }
            check_walk(tree, model, id);
        }
        assert_eq!(sorted(tree.due.iter().copied()), sorted(due.iter().copied()));
        assert_eq!(tree.next_expiry(), due.iter().map(|it| it.0).min().unwrap_or(Tick::NEVER));
    }

    /// The subtree of a node: each node once, parents first.
    fn check_walk(tree: &Tree<usize, usize>, model: &Model, id: usize) {
        let subtree = model.subtree(id);
        let indices = |ids: Vec<usize>| sorted(ids.into_iter().map(|id| model.nodes[&id].index));
        let found = tree.subtree(model.nodes[&id].index);
        assert_eq!(sorted(found.iter().copied()), indices(subtree));
        for (at, &node) in found.iter().enumerate().skip(1) {
            let parent = tree.parent(node).expect("only the first may be the root");
            assert!(found[..at].contains(&parent), "a child comes before its parent");
        }
    }

    proptest! {
        /// ADM-14, ADM-15, ADM-16
        #[test]
        fn the_tree_agrees_with_a_naive_model(steps in proptest::collection::vec(step(), 1..120)) {
            let mut tree: Tree<usize, usize> = Tree::new(name(0), 0);
            let mut model = Model::new();
            let mut quiet = Vec::new();
            for step in &steps {
                if apply(&mut tree, &mut model, step).is_none() {
                    continue;
                }
                for id in &quiet {
                    prop_assert!(model.is_quiet(*id), "quiet was not for good: {id}");
                }
                let now_quiet = model.quiet();
                let fresh: Vec<usize> =
                    now_quiet.iter().copied().filter(|id| !quiet.contains(id)).collect();
                let gone = model.collect();
                // those that became quiet are told, unless they are gone; nobody else who is not quiet
                let told: Vec<usize> = std::iter::from_fn(|| {
                    let node = tree.next_quiet()?;
                    Some(*tree.extra(node))
                })
                .collect();
                for id in fresh.iter().filter(|id| !gone.contains(id)) {
                    prop_assert!(told.contains(id), "{id} was not told after {step:?}");
                }
                prop_assert!(told.iter().all(|id| model.nodes.contains_key(id) && model.is_quiet(*id)));
                let freed: Vec<usize> = std::iter::from_fn(|| tree.next_gone()).collect();
                prop_assert_eq!(sorted(freed), sorted(gone));
                check(&tree, &model);
                quiet = model.quiet();
            }
        }
    }
}
