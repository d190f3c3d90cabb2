//! What jobs are called, and what reports say about them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Names a job within its pool. Given at acceptance, in order, never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobId(u64);

impl JobId {
    /// The id that is `number`.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        JobId(number)
    }

    /// The number itself, from 1.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What a job is called in reports: a literal costs nothing, an `Arc<str>` is shared, a `String` is moved.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JobName(Name);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Name {
    Static(&'static str),
    Shared(Arc<str>),
}

impl JobName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Static(name) => name,
            Name::Shared(name) => name,
        }
    }
}

impl From<&'static str> for JobName {
    fn from(name: &'static str) -> Self {
        JobName(Name::Static(name))
    }
}
impl From<Arc<str>> for JobName {
    fn from(name: Arc<str>) -> Self {
        JobName(Name::Shared(name))
    }
}
impl From<String> for JobName {
    fn from(name: String) -> Self {
        JobName(Name::Shared(name.into()))
    }
}
impl From<Cow<'static, str>> for JobName {
    fn from(name: Cow<'static, str>) -> Self {
        match name {
            Cow::Borrowed(name) => name.into(),
            Cow::Owned(name) => name.into(),
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
impl fmt::Debug for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What sort of work a job is. Reports count by it; scheduling does not look at it.
///
/// Three are named here because nearly everybody has them. Others are made by [`JobKind::new`]; kinds are equal when their
/// names are.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct JobKind(&'static str);

impl PartialEq for JobKind {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // nearly always one and the same constant
        std::ptr::eq(self.0, other.0) || self.0 == other.0
    }
}

impl std::hash::Hash for JobKind {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl JobKind {
    /// Waits for a disk or a peer, for a bounded time. The default.
    pub const SHORT_IO: JobKind = JobKind("short_io");
    /// Keeps a core busy.
    pub const CPU_BOUND: JobKind = JobKind("cpu_bound");

    /// Runs for as long as its service does. It belongs on a dedicated thread; a pool that lanes share refuses it.
    pub const LONG_RUNNING: JobKind = JobKind("long_running");

    /// A kind of your own.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        JobKind(name)
    }

    /// The kind's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl Default for JobKind {
    fn default() -> Self {
        JobKind::SHORT_IO
    }
}
impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}
impl fmt::Debug for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}
#[cfg(feature = "serde")]
impl serde::Serialize for JobKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}
#[cfg(feature = "serde")]
impl serde::Serialize for JobName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A job that is queued or running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct JobInfo {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// Its kind.
    pub kind: JobKind,
    /// Its lane.
    pub lane: Arc<str>,
    /// Where it stands.
    pub state: JobState,
    /// How long it has waited, or did before it started.
    pub waited: Duration,
    /// How long its closure has run.
    pub ran: Option<Duration>,
}

impl fmt::Display for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobInfo { id, name, kind, lane, state, waited, ran } = self;
        // names as text in quotes: what is in them is not to look like a report
        write!(f, "{id} {name:?} ({kind}, lane {lane:?}) {state}")?;
        match ran {
            Some(ran) => write!(f, ", for {ran:?}"),
            None => write!(f, ", waiting for {waited:?}"),
        }
    }
}

/// Where a job stands. Running means that its closure has started on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum JobState {
    /// Its closure has not started.
    Queued,
    /// Its closure runs.
    Running,
    /// Its closure runs, and whoever waited has left.
    Abandoned,
    /// Its closure runs, and whoever waited was told that the time is up.
    TimedOut,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Abandoned => "abandoned, still running",
            JobState::TimedOut => "timed out, still running",
        })
    }
}

/// How many jobs there are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct JobStates {
    /// Their closures have not started.
    pub queued: usize,
    /// Their closures run.
    pub running: usize,
    /// Their closures run, and whoever waited has left.
    pub abandoned: usize,
    /// Their closures run, and whoever waited was told that the time is up.
    pub timed_out: usize,
}

impl JobStates {
    /// Counts one more job in this state.
    pub fn count(&mut self, state: JobState) {
        *match state {
            JobState::Queued => &mut self.queued,
            JobState::Running => &mut self.running,
            JobState::Abandoned => &mut self.abandoned,
            JobState::TimedOut => &mut self.timed_out,
        } += 1;
    }

    /// All jobs.
    #[must_use]
    pub fn total(&self) -> usize {
        let JobStates { queued, running, abandoned, timed_out } = self;
        queued + running + abandoned + timed_out
    }
}

impl FromIterator<JobState> for JobStates {
    fn from_iter<I: IntoIterator<Item = JobState>>(states: I) -> Self {
        let mut counts = JobStates::default();
        states.into_iter().for_each(|state| counts.count(state));
        counts
    }
}

impl fmt::Display for JobStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobStates { queued, running, abandoned, timed_out } = self;
        write!(
            f,
            "{queued} queued, {running} running, {abandoned} abandoned, {timed_out} timed out"
        )
    }
}
