//! Who uses which bytes, and whether an order exists between two uses. Pure, like the timeline.
//!
//! On a real device two streams that use the same bytes with no event between them usually give the right result, and
//! sometimes not. Here the order is looked for, not waited for: the clocks of the [timeline](super::timeline) say whether
//! an event, or the host, puts one use before the other. So a missing event is found at the call, each time.

/// Some bytes of some memory, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) write: bool,
}

impl Touch {
    /// Two that use the same bytes must be in some order, unless both only read.
    fn conflicts(self, other: Touch) -> bool {
        // no bytes are nobody's
        let common = self.start.max(other.start) < self.end.min(other.end);
        common && (self.write || other.write)
    }

    /// Whatever conflicts with `other` conflicts with this one.
    fn includes(self, other: Touch) -> bool {
        self.start <= other.start && other.end <= self.end && (self.write || !other.write)
    }
}

/// The uses of a piece of memory that later ones must be in some order with.
#[derive(Debug, Default)]
pub(crate) struct Uses(Vec<Use>);

#[derive(Clone, Copy, Debug)]
struct Use {
    stream: u64,
    position: u64,
    touch: Touch,
}

impl Uses {
    /// A stream whose use is in no order with a new one; `before` says what is ordered before that.
    pub(crate) fn conflict(
        &self,
        touch: Touch,
        mut before: impl FnMut(u64, u64) -> bool,
    ) -> Option<u64> {
        let mut uses = self.0.iter();
        let unordered = |it: &&Use| it.touch.conflicts(touch) && !before(it.stream, it.position);
        uses.find(unordered).map(|it| it.stream)
    }

    /// Adds a use that has no conflict; `seen` says what the host has seen pass.
    pub(crate) fn add(
        &mut self,
        stream: u64,
        position: u64,
        touch: Touch,
        seen: impl Fn(u64, u64) -> bool,
    ) {
        self.0.retain(|it| {
            // whatever comes later is ordered after what the host has seen
            let over = seen(it.stream, it.position);
            // whatever is ordered after the new one is ordered after all it had to be ordered after, and whatever is not
            // conflicts with the new one first
            let behind = touch.write || it.stream == stream;
            let settled = over || (behind && touch.includes(it.touch));
            !settled
        });
        self.0.push(Use { stream, position, touch });
    }
}
