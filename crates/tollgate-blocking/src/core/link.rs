//! How those that come and go with every job hold on to their pool, and to the scope that they come for.

use super::Core;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use tollgate_admission::Scope;
use tollgate_admission::engine::{Bound, GroupId};

/// The count in an `Arc<Core>` is one cache line for all cores: counting every job there costs more than many a job. So
/// each executor has a count of its own, for the jobs that come through it.
#[derive(Clone)]
pub(crate) struct Link(Held);

#[derive(Clone)]
enum Held {
    Executor(Arc<ExecutorsOwn>),
    Direct(Arc<Core>),
}

/// The core, behind an executor's own count, and the scope that the executor is for.
struct ExecutorsOwn {
    core: Arc<Core>,
    bound: Option<Arc<Bound<Core>>>,
}

impl Link {
    /// For one executor.
    pub(crate) fn for_executor(core: &Arc<Core>) -> Self {
        Link(Held::Executor(Arc::new(ExecutorsOwn { core: Arc::clone(core), bound: None })))
    }

    /// For one executor, whose jobs belong to a scope.
    pub(crate) fn for_scope(bound: Arc<Bound<Core>>) -> Self {
        let core = Arc::clone(bound.engine());
        Link(Held::Executor(Arc::new(ExecutorsOwn { core, bound: Some(bound) })))
    }

    /// For a job that comes through no executor.
    pub(crate) fn direct(core: Arc<Core>) -> Self {
        Link(Held::Direct(core))
    }

    /// Another one, with a count of its own.
    pub(crate) fn renewed(&self) -> Self {
        match self.bound() {
            Some(bound) => Link::for_scope(Arc::clone(bound)),
            None => Link::for_executor(self),
        }
    }

    #[inline]
    fn bound(&self) -> Option<&Arc<Bound<Core>>> {
        match &self.0 {
            Held::Executor(own) => own.bound.as_ref(),
            Held::Direct(_) => None,
        }
    }

    /// The group of the jobs that come this way: that of the scope they are bound to, else that of the whole pool.
    #[inline]
    pub(crate) fn group(&self) -> Option<GroupId> {
        match self.bound() {
            Some(bound) => Some(bound.group()),
            None => self.whole.get().map(|whole| whole.group),
        }
    }

    /// The scope of the jobs that come this way.
    pub(crate) fn scope(&self) -> Option<&Scope> {
        match self.bound() {
            Some(bound) => Some(bound.scope()),
            None => self.whole.get().map(|whole| &whole.scope),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("group", &self.group()).finish_non_exhaustive()
    }
}

impl Deref for Link {
    type Target = Arc<Core>;

    #[inline]
    fn deref(&self) -> &Arc<Core> {
        match &self.0 {
            Held::Executor(own) => &own.core,
            Held::Direct(core) => core,
        }
    }
}
