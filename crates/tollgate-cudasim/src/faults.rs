//! What is to go wrong, and at which call.

use crate::code::Code;
use std::collections::BTreeMap;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// With this code. It has no effect.
    Plain(Code),
    /// With this code, and so does every later call of the context.
    Sticky(Code),
    /// It works, and the context fails with this code when it comes to the work: as most real faults do. A call that gives a
    /// stream no work fails at its end.
    StickyLater(Code),
    /// With this code, and so does every later call of the device, whatever is reset.
    Lost(Code),
}

/// Which calls of a function are meant, counted from 1: a number, or a range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    first: u64,
    /// Included.
    last: u64,
}

impl Calls {
    pub(crate) fn include(self, call: u64) -> bool {
        (self.first..=self.last).contains(&call)
    }

    /// `3`, `3..`, `3..5` (both included), `*`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Calls::from(..));
        }
        let Some((first, last)) = text.split_once("..") else {
            return text.parse::<u64>().ok().map(Calls::from);
        };
        let first = first.parse().ok()?;
        let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
        Some(Calls { first, last })
    }
}

impl From<u64> for Calls {
    fn from(call: u64) -> Self {
        Calls { first: call, last: call }
    }
}
impl From<RangeInclusive<u64>> for Calls {
    fn from(calls: RangeInclusive<u64>) -> Self {
        Calls { first: *calls.start(), last: *calls.end() }
    }
}
impl From<Range<u64>> for Calls {
    fn from(calls: Range<u64>) -> Self {
        match calls.end.checked_sub(1) {
            Some(last) => Calls { first: calls.start, last },
            None => Calls { first: 1, last: 0 },
        }
    }
}
impl From<RangeFrom<u64>> for Calls {
    fn from(calls: RangeFrom<u64>) -> Self {
        Calls { first: calls.start, last: u64::MAX }
    }
}
impl From<RangeFull> for Calls {
    fn from(_: RangeFull) -> Self {
        Calls { first: 0, last: u64::MAX }
    }
}

/// A function's name without the version of its arguments: `cuMemAlloc` for `cuMemAlloc_v2`.
pub(crate) fn plain_name(name: &str) -> &str {
    name.strip_suffix("_v2").or_else(|| name.strip_suffix("_v3")).unwrap_or(name)
}

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// By plain name. Of several that name a call, the first counts.
    pub(crate) failures: Vec<(String, Calls, Failure)>,
    /// Host functions that are never called, in the order in which they are submitted.
    pub(crate) silent: Vec<Calls>,
    /// Host functions are called although their context has failed, as if all were well.
    pub(crate) despite: bool,
    /// Streams that do nothing until they are released, in the order in which they are created.
    pub(crate) stalled: Vec<Calls>,
    /// A reset says that it worked, and the context fails as before.
    pub(crate) broken_reset: bool,
}

impl Plan {
    pub(crate) fn verdict(&self, plain: &str, call: u64) -> Option<Failure> {
        let named = self.failures.iter().find(|(n, calls, _)| n == plain && calls.include(call));
        named.map(|it| it.2)
    }

    pub(crate) fn is_silent(&self, call: u64) -> bool {
        self.silent.iter().any(|it| it.include(call))
    }

    pub(crate) fn is_stalled(&self, stream: u64) -> bool {
        self.stalled.iter().any(|it| it.include(stream))
    }

    /// Also what `other` says, which counts first.
    pub(crate) fn add(&mut self, other: Plan) {
        self.failures.splice(0..0, other.failures);
        self.silent.extend(other.silent);
        self.stalled.extend(other.stalled);
        self.despite |= other.despite;
        self.broken_reset |= other.broken_reset;
    }
}

/// How often each function was called, by plain name; what failed because of the plan is included.
#[derive(Debug, Default)]
pub(crate) struct Counts(pub(crate) BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn next(&mut self, plain: &'static str) -> u64 {
        let count = self.0.entry(plain).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn of(&self, name: &str) -> u64 {
        self.0.get(plain_name(name)).copied().unwrap_or(0)
    }
}
