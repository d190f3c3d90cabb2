//! Those who wait, by their classes.

use super::slab::{CLASS, List, NIL, Slab};
use super::tick::Tick;

/// How many wait under each class, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Classes {
    classes: Vec<Class>,
}

#[derive(Clone, Copy, Debug)]
struct Class {
    waiting: usize,
    queue: List<CLASS>,
}

impl Classes {
    /// Puts a waiter last among those of its class.
    #[inline]
    pub(super) fn push<W>(&mut self, waiters: &mut Slab<W>, class: u16, index: u32) {
        let class = usize::from(class);
        if class >= self.classes.len() {
            self.classes.resize(class + 1, Class { waiting: 0, queue: List::new() });
        }
        let class = &mut self.classes[class];
        class.waiting += 1;
        class.queue.push(waiters, index);
    }

    /// Takes it out again.
    #[inline]
    pub(super) fn remove<W>(&mut self, waiters: &mut Slab<W>, class: u16, index: u32) {
        let class = &mut self.classes[usize::from(class)];
        class.waiting -= 1;
        class.queue.unlink(waiters, index);
    }

    /// How many wait under each class, and since when the first of them does.
    pub(super) fn iter<W>(&self, waiters: &Slab<W>) -> impl Iterator<Item = (usize, Option<Tick>)> {
        self.classes.iter().map(|class| {
            let head = class.queue.head;
            (class.waiting, (head != NIL).then(|| waiters[head].since))
        })
    }
}
