//! What identifies a job.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Names a job within its pool. Given at acceptance, in order, never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct JobId(pub(crate) u64);

impl JobId {
    /// The number itself, from 1.
    #[must_use]
    pub fn get(self) -> u64 {
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
/// Two are named here because nearly everybody has them. Others are made by [`JobKind::new`]; kinds are equal when their
/// names are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKind(&'static str);

impl JobKind {
    /// Waits for a disk or a peer, for a bounded time. The default.
    pub const SHORT_IO: JobKind = JobKind("short_io");
    /// Keeps a core busy.
    pub const CPU_BOUND: JobKind = JobKind("cpu_bound");

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
