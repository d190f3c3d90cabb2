//! The timeline against a naive model.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Submit(usize),
    Record(usize),
    Wait(usize, usize),
    Stall(usize, bool),
    Take,
    Finish(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let at = 0usize..32;
    let call = prop_oneof![
        6 => at.clone().prop_map(Call::Submit),
        3 => at.clone().prop_map(Call::Record),
        3 => (at.clone(), at.clone()).prop_map(|(to, event)| Call::Wait(to, event)),
        1 => (at.clone(), any::<bool>()).prop_map(|(at, on)| Call::Stall(at, on)),
        6 => Just(Call::Take),
        6 => at.prop_map(Call::Finish),
    ];
    proptest::collection::vec(call, 1..100)
}

/// A step: which others must be done first, and whether somebody has to do it.
struct Node {
    stream: usize,
    after: Vec<usize>,
    work: bool,
    taken: bool,
    done: bool,
}

const STREAMS: usize = 4;

/// Every step in one list, looked through from the start each time.
#[derive(Default)]
struct Model {
    steps: Vec<Node>,
    last: [Option<usize>; STREAMS],
    stalled: [bool; STREAMS],
}

impl Model {
    fn push(&mut self, stream: usize, work: bool, after: Option<usize>) -> usize {
        let after = self.last[stream].into_iter().chain(after).collect();
        self.steps.push(Node { stream, after, work, taken: false, done: false });
        self.last[stream] = Some(self.steps.len() - 1);
        self.steps.len() - 1
    }

    fn free(&self, at: usize) -> bool {
        let step = &self.steps[at];
        let after = step.after.iter().all(|&other| self.steps[other].done);
        !step.taken && !step.done && !self.stalled[step.stream] && after
    }

    /// Steps that nobody has to do are over as soon as they can be.
    fn settle(&mut self) {
        while let Some(at) = (0..self.steps.len()).find(|&at| !self.steps[at].work && self.free(at))
        {
            self.steps[at].done = true;
        }
    }

    fn runnable(&self) -> Vec<usize> {
        let work = |&at: &usize| self.steps[at].work && self.free(at);
        (0..self.steps.len()).filter(work).collect()
    }
}

proptest! {
    /// Work is taken in the order of its stream and after what its stream waited for, and whatever can be done is there
    /// to be taken.
    #[test]
    fn the_timeline_agrees_with_a_naive_model(calls in calls()) {
        let mut line: Timeline<usize> = Timeline::default();
        for stream in 0..STREAMS {
            line.open(stream as u64, 0, 0, false);
        }
        let mut model = Model::default();
        let mut events: Vec<(Point, usize)> = Vec::new();
        let mut running: Vec<usize> = Vec::new();
        for call in calls {
            match call {
                Call::Submit(at) => {
                    let step = model.push(at % STREAMS, true, None);
                    line.submit((at % STREAMS) as u64, step);
                }
                Call::Record(at) => {
                    let step = model.push(at % STREAMS, false, None);
                    let point = line.mark((at % STREAMS) as u64, step as u64);
                    events.extend(point.map(|it| (it, step)));
                }
                Call::Wait(at, event) => if !events.is_empty() {
                    let (point, step) = &events[event % events.len()];
                    if model.steps[*step].stream != at % STREAMS {
                        model.push(at % STREAMS, false, Some(*step));
                    }
                    line.wait((at % STREAMS) as u64, point);
                },
                Call::Stall(at, on) => {
                    model.stalled[at % STREAMS] = on;
                    line.stall((at % STREAMS) as u64, on);
                }
                Call::Take => match line.take(0) {
                    None => prop_assert!(model.runnable().is_empty()),
                    Some((stream, step)) => {
                        prop_assert!(model.runnable().contains(&step), "{} was taken too early", step);
                        prop_assert_eq!(model.steps[step].stream as u64, stream);
                        model.steps[step].taken = true;
                        running.push(step);
                    }
                },
                Call::Finish(at) => if !running.is_empty() {
                    let step = running.swap_remove(at % running.len());
                    model.steps[step].done = true;
                    line.finish(model.steps[step].stream as u64);
                },
            }
            model.settle();
            prop_assert_eq!(line.ready(0), model.runnable().len());
            for (point, step) in &events {
                prop_assert_eq!(line.has_passed(point), model.steps[*step].done);
            }
        }
    }
}
