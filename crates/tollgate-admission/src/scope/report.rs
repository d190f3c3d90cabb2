use super::tree::{Guard, Lease, Tree};
use super::{Extra, PhaseTimes, Registered, Scope};
use crate::engine::Tick;
use crate::job::{JobInfo, JobName, JobStates};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where a scope stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ScopePhase {
    /// Work can be entered.
    Open,
    /// Nothing can be entered any more, and something is left in the subtree.
    Draining,
    /// Nothing is left, for good.
    Closed,
}

impl ScopePhase {
    pub(super) fn of(draining: bool, quiet: bool) -> Self {
        match (draining, quiet) {
            (false, _) => ScopePhase::Open,
            (true, false) => ScopePhase::Draining,
            (true, true) => ScopePhase::Closed,
        }
    }
}

impl fmt::Display for ScopePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScopePhase::Open => "open",
            ScopePhase::Draining => "draining",
            ScopePhase::Closed => "closed",
        })
    }
}

/// What is left of a scope's subtree, and what became of the rest.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ScopeReport {
    /// The scope's name.
    pub scope: Arc<str>,
    /// The scope is closed, and nothing is left in its subtree. It stays so.
    pub complete: bool,
    /// The nodes that have something left themselves, parents before their children.
    pub nodes: Vec<NodeReport>,
    /// Acquires and jobs that were refused because a scope of the subtree was closed, so far.
    pub refused: u64,
    /// Jobs that were asked to stop while they ran, so far.
    pub cancelled: u64,
    /// How long the shutdown took that this is about; zero if it is about none.
    pub took: PhaseTimes,
}

/// What is left of one node.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeReport {
    /// The names from the root to this node, with a slash between them.
    pub path: String,
    /// Where it stands.
    pub phase: ScopePhase,
    /// Guards and tasks.
    pub guards: Vec<GuardReport>,
    /// Leases that can be used, or have operations that go on.
    pub leases: Vec<LeaseReport>,
    /// Budgets and pools with work of this node.
    pub members: Vec<MemberReport>,
}

/// Something that was entered and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GuardReport {
    /// What it is called.
    pub name: JobName,
    /// How long it has been there.
    pub age: Duration,
}

/// A drain lease.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeaseReport {
    /// Operations that may still begin.
    pub remaining: u64,
    /// Time until it ends; `None` is for ever.
    pub expires_in: Option<Duration>,
    /// Operations that have begun and not ended.
    pub operations: Vec<GuardReport>,
}

/// A budget or pool with work of a scope.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemberReport {
    /// The lane's name, or the pool's.
    pub name: Arc<str>,
    /// Acquires and jobs that wait for a permit.
    pub waiting: usize,
    /// Permits that are out, by weight, those of jobs included.
    pub permits: u64,
    /// Jobs that were refused or given up, and whose captures are not gone.
    pub ending: u64,
    /// Threads that are there for this scope alone and have not ended.
    pub threads: usize,
    /// The jobs by state.
    pub states: JobStates,
    /// The jobs.
    pub jobs: Vec<JobInfo>,
}

/// What is left at this moment.
pub(super) fn take(scope: &Scope, took: PhaseTimes) -> ScopeReport {
    let owners = scope.owners();
    let now = owners.now();
    // under one hold of the lock: everything but what the members have
    let (mut report, members, base) = owners.with(|tree| {
        let root = scope.node.index;
        let subtree = tree.subtree(root);
        let mut members: Vec<(usize, Registered)> = Vec::new();
        let mut reports = Vec::new();
        for &node in subtree.iter().filter(|&&node| tree.holds_something(node)) {
            let at = reports.len();
            members.extend(tree.members(node).map(|member| (at, member)));
            let guards: Vec<_> = tree.guards(node).map(|it| GuardReport::new(it, now)).collect();
            let leases: Vec<_> =
                tree.leases(node).filter_map(|it| LeaseReport::new(it, now)).collect();
            let own = members.last().is_some_and(|&(of, _)| of == at);
            if guards.is_empty() && leases.is_empty() && !own {
                // busy on account of its children only; a path costs its length
                continue;
            }
            reports.push(NodeReport {
                path: path(tree, node),
                phase: ScopePhase::of(tree.is_draining(node), tree.is_quiet(node)),
                guards,
                leases,
                members: Vec::new(),
            });
        }
        let refused = subtree.iter().map(|&node| tree.refused(node)).sum();
        let cancelled = subtree.iter().map(|&node| tree.asked(node)).sum();
        let all: Vec<Registered> = subtree.iter().flat_map(|&node| tree.members(node)).collect();
        let report = ScopeReport {
            scope: Arc::clone(tree.name(root)),
            complete: tree.is_quiet(root),
            nodes: reports,
            refused,
            cancelled,
            took,
        };
        (report, members, all)
    });
    // each member under a lock of its own
    report.refused +=
        base.iter().filter_map(|it| it.call(|member, group| member.refused(group))).sum::<u64>();
    for (at, registered) in members {
        let Some(it) = registered.call(|member, group| member.remaining(group)) else { continue };
        let member = MemberReport {
            name: registered.name,
            waiting: it.waiting,
            permits: it.permits,
            ending: it.ending,
            threads: it.threads,
            states: it.jobs.iter().map(|job| job.state).collect(),
            jobs: it.jobs,
        };
        if !member.is_empty() {
            report.nodes[at].members.push(member);
        }
    }
    report.nodes.retain(|node| !node.is_empty());
    report
}

fn path(tree: &Tree<Extra, Registered>, node: usize) -> String {
    let mut names = vec![Arc::clone(tree.name(node))];
    let mut at = node;
    while let Some(parent) = tree.parent(at) {
        names.push(Arc::clone(tree.name(parent)));
        at = parent;
    }
    names.reverse();
    /// Of a path that is longer, the middle is left out: a report is to be read.
    const LONGEST: usize = 32;
    if names.len() > LONGEST {
        let left_out = names.len() - LONGEST;
        names.splice(
            LONGEST / 2..LONGEST / 2 + left_out,
            [format!("... {left_out} more ...").into()],
        );
    }
    names.join("/")
}

impl NodeReport {
    fn is_empty(&self) -> bool {
        self.guards.is_empty() && self.leases.is_empty() && self.members.is_empty()
    }
}

impl MemberReport {
    fn is_empty(&self) -> bool {
        let MemberReport { waiting, permits, ending, threads, jobs, .. } = self;
        (*waiting, *permits, *ending, *threads) == (0, 0, 0, 0) && jobs.is_empty()
    }
}

impl GuardReport {
    fn new(guard: &Guard, now: Tick) -> Self {
        GuardReport { name: guard.name.clone(), age: now.since(guard.since) }
    }
}

impl LeaseReport {
    fn new(lease: &Lease, now: Tick) -> Option<Self> {
        let remaining = lease.allows(now);
        let operations: Vec<_> =
            lease.ops.iter().map(|(_, it)| GuardReport::new(it, now)).collect();
        let expires_in = (lease.ends != Tick::NEVER).then(|| lease.ends.since(now));
        (remaining > 0 || !operations.is_empty()).then_some(LeaseReport {
            remaining,
            expires_in,
            operations,
        })
    }
}

impl fmt::Display for ScopeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScopeReport { scope, complete, nodes, refused, cancelled, took } = self;
        let total = took.total();
        if *complete {
            write!(f, "scope {scope:?} is closed, after {total:?}")?;
        } else {
            write!(f, "scope {scope:?} is not closed after {total:?}")?;
        }
        write!(f, "; {refused} refused, {cancelled} asked to stop")?;
        nodes.iter().try_for_each(|node| write!(f, "\n{node}"))
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeReport { path, phase, guards, leases, members } = self;
        write!(f, "  {path:?} ({phase})")?;
        guards.iter().try_for_each(|guard| write!(f, "\n    {guard}"))?;
        leases.iter().try_for_each(|lease| write!(f, "\n    {lease}"))?;
        members.iter().try_for_each(|member| write!(f, "\n    {member}"))
    }
}

impl fmt::Display for GuardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, for {:?}", self.name, self.age)
    }
}

impl fmt::Display for LeaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaseReport { remaining, expires_in, operations } = self;
        write!(f, "a drain lease for {remaining} more operations")?;
        if let Some(span) = expires_in {
            write!(f, ", which ends in {span:?}")?;
        }
        operations.iter().try_for_each(|operation| write!(f, "\n      {operation}"))
    }
}

impl fmt::Display for MemberReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemberReport { name, waiting, permits, ending, threads, states, jobs } = self;
        write!(f, "{name:?}: {waiting} waiting, {permits} permits out")?;
        if *ending > 0 {
            write!(f, ", {ending} refused or given up whose captures are not gone")?;
        }
        if *threads > 0 {
            write!(f, ", {threads} threads")?;
        }
        if !jobs.is_empty() {
            write!(f, ", {states}")?;
        }
        jobs.iter().try_for_each(|job| write!(f, "\n      {job}"))
    }
}
