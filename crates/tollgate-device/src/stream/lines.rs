//! What is to be done once streams have come to a point, as arithmetic: one line of steps per stream, done in order.

use slab::Slab;
use std::collections::VecDeque;

/// Names a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineKey(usize);

/// A point in a stream's work, and what is to be done once the device has passed it. `M` is how the point is known; a step
/// may stand in its line before it is.
#[derive(Debug)]
struct Step<M, W> {
    mark: Option<M>,
    what: W,
}

#[derive(Debug)]
struct Line<S, M, W> {
    stream: S,
    steps: VecDeque<Step<M, W>>,
    /// Steps at the front that have a mark.
    marked: usize,
}

/// All lines. `S` is what a stream is, `M` what a mark, and `W` what is to be done.
#[derive(Debug)]
pub(super) struct Lines<S, M, W> {
    lines: Slab<Line<S, M, W>>,
    steps: usize,
}

impl<S: Clone, M: Clone, W> Lines<S, M, W> {
    pub(super) fn new() -> Self {
        Lines { lines: Slab::new(), steps: 0 }
    }

    /// How many steps there are in all lines.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// A line for a stream.
    pub(super) fn open(&mut self, stream: S) -> LineKey {
        LineKey(self.lines.insert(Line { stream, steps: VecDeque::new(), marked: 0 }))
    }

    /// Puts a step at the end of a line. One that has a mark and comes after one without waits for that one.
    pub(super) fn push(&mut self, key: LineKey, mark: Option<M>, what: W) {
        let line = &mut self.lines[key.0];
        if mark.is_some() && line.marked == line.steps.len() {
            line.marked += 1;
        }
        line.steps.push_back(Step { mark, what });
        self.steps += 1;
    }

    /// Lines whose first step without a mark could be given one: the stream, as it is.
    pub(super) fn unmarked(&self) -> Vec<(LineKey, S)> {
        let lines = self.lines.iter().filter(|(_, line)| line.marked < line.steps.len());
        lines.map(|(key, line)| (LineKey(key), line.stream.clone())).collect()
    }

    /// The first step without a mark has this one. Steps behind it that have theirs are marked too.
    pub(super) fn mark(&mut self, key: LineKey, mark: M) {
        let line = &mut self.lines[key.0];
        if let Some(step) = line.steps.get_mut(line.marked) {
            step.mark = Some(mark);
        }
        while line.steps.get(line.marked).is_some_and(|step| step.mark.is_some()) {
            line.marked += 1;
        }
    }

    /// For each line that has marks: how many of its steps are done when this mark has passed, and the mark. It is the last
    /// of those at the front for which `likely` holds; without one, the first, if all are to be asked for.
    pub(super) fn candidates(
        &self,
        all: bool,
        likely: impl Fn(&M) -> bool,
    ) -> Vec<(LineKey, usize, M)> {
        let candidate = |(key, line): (usize, &Line<S, M, W>)| {
            let marks = line.steps.iter().take(line.marked).map_while(|step| step.mark.as_ref());
            let likely = marks.clone().take_while(|mark| likely(mark)).count();
            let count = if likely == 0 && all { 1 } else { likely };
            let mark = marks.clone().nth(count.checked_sub(1)?)?;
            Some((LineKey(key), count, mark.clone()))
        };
        self.lines.iter().filter_map(candidate).collect()
    }

    /// The first `count` steps of the line are done.
    pub(super) fn pass(&mut self, key: LineKey, count: usize) -> Vec<(Option<M>, W)> {
        let line = &mut self.lines[key.0];
        let count = count.min(line.steps.len());
        line.marked = line.marked.saturating_sub(count);
        self.steps -= count;
        line.steps.drain(..count).map(|step| (step.mark, step.what)).collect()
    }

    /// No step of the line will be done.
    pub(super) fn fail(&mut self, key: LineKey) -> Vec<(Option<M>, W)> {
        let count = self.lines[key.0].steps.len();
        self.pass(key, count)
    }

    /// All lines.
    pub(super) fn keys(&self) -> Vec<LineKey> {
        self.lines.iter().map(|(key, _)| LineKey(key)).collect()
    }

    /// Whether the line has no steps.
    pub(super) fn is_clear(&self, key: LineKey) -> bool {
        self.lines[key.0].steps.is_empty()
    }

    /// The line is no more. It has no steps.
    pub(super) fn close(&mut self, key: LineKey) -> S {
        let line = self.lines.remove(key.0);
        debug_assert!(line.steps.is_empty());
        line.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> (Lines<char, u32, &'static str>, LineKey) {
        let mut lines = Lines::new();
        let key = lines.open('a');
        (lines, key)
    }

    #[test]
    fn steps_of_a_line_are_done_in_order_however_they_are_marked() {
        let (mut lines, key) = lines();
        lines.push(key, Some(1), "first");
        lines.push(key, None, "second");
        lines.push(key, Some(3), "third");
        assert_eq!(lines.candidates(true, |_| true), [(key, 1, 1)], "the second is not marked");
        lines.mark(key, 2);
        assert_eq!(lines.candidates(false, |_| true), [(key, 3, 3)]);
        let done: Vec<_> = lines.pass(key, 3).into_iter().map(|(_, what)| what).collect();
        assert_eq!(done, ["first", "second", "third"]);
        assert_eq!((lines.steps(), lines.close(key)), (0, 'a'));
    }

    #[test]
    fn without_a_hint_only_the_first_step_is_asked_for_and_only_when_all_are() {
        let (mut lines, key) = lines();
        lines.push(key, Some(1), "first");
        lines.push(key, Some(2), "second");
        assert_eq!(lines.candidates(false, |_| false), []);
        assert_eq!(lines.candidates(true, |_| false), [(key, 1, 1)]);
        // a hint for a later one is none for those before it
        assert_eq!(lines.candidates(false, |&mark| mark == 2), []);
    }

    #[test]
    fn a_line_with_nothing_in_it_is_asked_for_nothing() {
        let (lines, _) = lines();
        assert_eq!(lines.candidates(true, |_| true), []);
        assert_eq!(lines.unmarked(), []);
    }
}
