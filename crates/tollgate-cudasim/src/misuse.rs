//! What no program may do to a driver, and this one does not tolerate.

use crate::code::Code;
use std::fmt;

/// How the driver was misused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MisuseKind {
    /// The thread has no current context.
    NoContext,
    /// The thread's current context, or the one that was named, was destroyed or reset.
    DeadContext,
    /// What was named belongs to another context than the current one.
    WrongContext,
    /// A handle of nothing, of something else, or of what was destroyed.
    BadHandle,
    /// An address at which there is no memory: freed, or never allocated.
    BadAddress,
    /// Bytes beyond the end of what was allocated.
    OutOfRange,
    /// Memory was freed, or a module unloaded, while a stream may still use it: nobody has seen that it is done.
    Unfinished,
    /// Two streams use the same bytes with neither an event nor the host between them.
    Unordered,
    /// A host function called the driver.
    InHostFunction,
}

/// A misuse that was found. The call that it was found in failed and did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misuse {
    /// How.
    pub kind: MisuseKind,
    /// In which function of the driver.
    pub call: &'static str,
    /// What the call was told.
    pub code: Code,
    /// What exactly.
    pub detail: String,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misuse { kind, call, code, detail } = self;
        write!(f, "{call}: {detail} ({kind:?}, answered with {code:?})")
    }
}
