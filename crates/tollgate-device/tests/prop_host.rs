//! The host device against a model that does every call at once.

mod support;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use support::{PATIENCE, bound};
use tollgate_device::backend::{Allocation, Backend, Cause};
use tollgate_device::host::{HostDevice, HostEvent, HostKernel, HostMemory, HostStream};

/// What a test does. Numbers name one of what there is at that time.
#[derive(Clone, Debug)]
enum Call {
    Stream(i32),
    Allocate {
        on: usize,
        bytes: usize,
    },
    Free {
        on: usize,
        memory: usize,
    },
    /// The handle goes, and nothing else.
    Drop {
        memory: usize,
    },
    Fill {
        on: usize,
        memory: usize,
        range: Range<usize>,
        value: u8,
    },
    Copy {
        on: usize,
        from: usize,
        to: usize,
        range: Range<usize>,
        offset: usize,
    },
    /// A kernel that says what it saw.
    Look {
        on: usize,
        memory: usize,
        range: Range<usize>,
    },
    /// A kernel that adds one memory to another.
    Add {
        on: usize,
        from: usize,
        to: usize,
    },
    Record {
        on: usize,
        event: usize,
    },
    Wait {
        on: usize,
        event: usize,
    },
    SynchronizeStream {
        on: usize,
    },
    SynchronizeEvent {
        event: usize,
    },
    Stall {
        on: usize,
    },
    Release {
        on: usize,
    },
}

const EVENTS: usize = 3;
const LIMIT: usize = 160;

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let at = || 0usize..8;
    let range = || (0usize..34, 0usize..34).prop_map(|(a, b)| a.min(b)..a.max(b));
    let call = prop_oneof![
        2 => (-5..=0).prop_map(Call::Stream),
        4 => (at(), 0usize..64).prop_map(|(on, bytes)| Call::Allocate { on, bytes }),
        2 => (at(), at()).prop_map(|(on, memory)| Call::Free { on, memory }),
        1 => at().prop_map(|memory| Call::Drop { memory }),
        6 => (at(), at(), range(), any::<u8>())
            .prop_map(|(on, memory, range, value)| Call::Fill { on, memory, range, value }),
        3 => (at(), at(), at(), range(), 0usize..34)
            .prop_map(|(on, from, to, range, offset)| Call::Copy { on, from, to, range, offset }),
        4 => (at(), at(), range()).prop_map(|(on, memory, range)| Call::Look { on, memory, range }),
        2 => (at(), at(), at()).prop_map(|(on, from, to)| Call::Add { on, from, to }),
        6 => (at(), 0..EVENTS).prop_map(|(on, event)| Call::Record { on, event }),
        6 => (at(), 0..EVENTS).prop_map(|(on, event)| Call::Wait { on, event }),
        1 => at().prop_map(|on| Call::SynchronizeStream { on }),
        1 => (0..EVENTS).prop_map(|event| Call::SynchronizeEvent { event }),
        2 => at().prop_map(|on| Call::Stall { on }),
        2 => at().prop_map(|on| Call::Release { on }),
    ];
    proptest::collection::vec(call, 1..60)
}

/// What was done, by number, and what is certainly before it.
type Before = BTreeSet<usize>;

#[derive(Default)]
struct Model {
    /// Pieces of work so far.
    works: usize,
    /// What the next work of each stream is after.
    streams: Vec<Before>,
    events: [Before; EVENTS],
    seen: Before,
    memories: Vec<Modelled>,
}

struct Modelled {
    number: u64,
    /// `None` where nobody has written.
    bytes: Vec<Option<u8>>,
    uses: Vec<(usize, usize, Range<usize>, bool)>,
    freed: bool,
}

#[derive(Debug, PartialEq)]
enum Refused {
    Freed(u64),
    /// By any stream: which of several is named is not promised.
    Unordered(u64),
    OutOfRange,
    Overlap(u64),
}

impl Refused {
    fn of(cause: &Cause) -> Refused {
        match *cause {
            Cause::Freed { memory } => Refused::Freed(memory),
            Cause::Unordered { memory, .. } => Refused::Unordered(memory),
            Cause::OutOfRange { .. } => Refused::OutOfRange,
            Cause::Overlap { memory } => Refused::Overlap(memory),
            ref other => panic!("not expected: {other}"),
        }
    }
}

impl Model {
    fn after(&self, on: usize) -> Before {
        self.streams[on].union(&self.seen).copied().collect()
    }

    /// Work on a stream that uses these, in this order of checks.
    fn work(&mut self, on: usize, uses: &[(usize, Range<usize>, bool)]) -> Result<(), Refused> {
        let before = self.after(on);
        for (memory, range, write) in uses {
            let it = &self.memories[*memory];
            if it.freed {
                return Err(Refused::Freed(it.number));
            }
            let apart = |(work, _, other, wrote): &&(usize, usize, Range<usize>, bool)| {
                let common = range.start.max(other.start) < range.end.min(other.end);
                common && (*write || *wrote) && !before.contains(work)
            };
            if it.uses.iter().any(|used| apart(&used)) {
                return Err(Refused::Unordered(it.number));
            }
        }
        let work = self.push(on);
        for (memory, range, write) in uses {
            self.memories[*memory].uses.push((work, on, range.clone(), *write));
        }
        Ok(())
    }

    fn push(&mut self, on: usize) -> usize {
        let work = self.works;
        self.works += 1;
        self.streams[on] = self.after(on);
        self.streams[on].insert(work);
        work
    }

    fn in_range(&self, memory: usize, range: &Range<usize>) -> Result<(), Refused> {
        let fits = range.end <= self.memories[memory].bytes.len();
        if fits { Ok(()) } else { Err(Refused::OutOfRange) }
    }
}

/// The device, and what the test has of it.
struct Real {
    device: HostDevice,
    streams: Vec<HostStream>,
    events: Vec<HostEvent>,
    memories: Vec<Option<HostMemory>>,
    stalled: BTreeSet<u64>,
}

impl Real {
    fn release_all(&mut self) {
        for stream in std::mem::take(&mut self.stalled) {
            self.device.control().release(stream);
        }
    }
}

/// What a kernel saw, and what it should have.
type Seen = Arc<Mutex<Vec<(Vec<u8>, Vec<Option<u8>>)>>>;

fn same(seen: &[u8], expected: &[Option<u8>]) -> bool {
    seen.len() == expected.len()
        && seen.iter().zip(expected).all(|(seen, expected)| expected.is_none_or(|e| e == *seen))
}

/// The number of cases is the environment's.
fn config() -> ProptestConfig {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/prop_host.txt");
    let persistence = FileFailurePersistence::Direct(file);
    ProptestConfig { failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// DEV-2: what is refused is exactly what no event or wait orders, and whatever is not refused does what it would
    /// have done at the call, however streams stall and threads run; every byte is given back.
    #[test]
    fn a_device_does_what_a_model_does_that_does_every_call_at_once(
        calls in calls(),
        engines in 1usize..4,
    ) {
        let device = bound(HostDevice::builder().engines(engines).memory(LIMIT as u64));
        let control = device.control();
        let events = (0..EVENTS).map(|_| device.create_event().unwrap()).collect();
        let mut real = Real { device: device.clone(), streams: vec![], events, memories: vec![], stalled: BTreeSet::new() };
        let mut model = Model::default();
        let seen: Seen = Arc::default();
        for call in calls {
            if real.streams.is_empty() {
                real.streams.push(device.create_stream(0).unwrap());
                model.streams.push(Before::new());
            }
            let stream = |on: usize| on % real.streams.len();
            // of those that still have a handle
            let have: Vec<usize> = (0..real.memories.len()).filter(|&at| real.memories[at].is_some()).collect();
            let memory = |at: usize| (!have.is_empty()).then(|| have[at % have.len()]);
            let handle = |at: usize| real.memories[at].clone().unwrap();
            match call {
                Call::Stream(priority) => if real.streams.len() < 5 {
                    real.streams.push(device.create_stream(priority).unwrap());
                    model.streams.push(Before::new());
                },
                Call::Allocate { on, bytes } => {
                    let on = stream(on);
                    match device.allocate(&real.streams[on], bytes) {
                        Ok(memory) => {
                            let work = model.push(on);
                            let used = vec![(work, on, 0..bytes, true)];
                            let number = memory.number();
                            model.memories.push(Modelled { number, bytes: vec![None; bytes], uses: used, freed: false });
                            real.memories.push(Some(memory));
                        }
                        Err(error) if bytes == 0 => prop_assert_eq!(error.cause(), &Cause::ZeroBytes),
                        Err(error) => {
                            let Cause::OutOfMemory { asked, in_use, limit } = *error.cause() else {
                                panic!("not expected: {error}")
                            };
                            prop_assert_eq!((asked, limit), (bytes as u64, LIMIT as u64));
                            prop_assert!(in_use + asked > limit, "{in_use} + {asked} fit {limit}");
                            // wait for what was freed, and then it must be known to the byte
                            real.release_all();
                            for stream in &real.streams {
                                device.synchronize_stream(stream).unwrap();
                            }
                            for order in &model.streams {
                                model.seen.extend(order);
                            }
                            let live: usize = (0..real.memories.len())
                                .filter(|&at| real.memories[at].is_some() && !model.memories[at].freed)
                                .map(|at| model.memories[at].bytes.len()).sum();
                            prop_assert_eq!(control.stats().memory.in_use, live as u64);
                        }
                    }
                }
                Call::Free { on, memory: at } => if let Some(at) = memory(at) {
                    let on = stream(on);
                    let whole = 0..model.memories[at].bytes.len();
                    let expected = model.work(on, &[(at, whole, true)]);
                    let result = device.free(&real.streams[on], handle(at));
                    prop_assert_eq!(result.map_err(|e| Refused::of(e.cause())), expected.map(|()| model.memories[at].freed = true));
                },
                Call::Drop { memory: at } => if let Some(at) = memory(at) {
                    real.memories[at] = None;
                },
                Call::Fill { on, memory: at, range, value } => if let Some(at) = memory(at) {
                    let on = stream(on);
                    let expected = model.in_range(at, &range)
                        .and_then(|()| model.work(on, &[(at, range.clone(), true)]))
                        .map(|()| model.memories[at].bytes[range.clone()].fill(Some(value)));
                    let result = device.fill(&real.streams[on], &handle(at), range, value);
                    prop_assert_eq!(result.map_err(|e| Refused::of(e.cause())), expected);
                },
                Call::Copy { on, from, to, range, offset } => if let (Some(from), Some(to)) = (memory(from), memory(to)) {
                    let on = stream(on);
                    let place = offset..offset + range.len();
                    let overlap = from == to && place.start.max(range.start) < place.end.min(range.end);
                    let expected = model.in_range(from, &range)
                        .and_then(|()| model.in_range(to, &place))
                        .and_then(|()| if overlap { Err(Refused::Overlap(model.memories[to].number)) } else { Ok(()) })
                        .and_then(|()| model.work(on, &[(from, range.clone(), false), (to, place.clone(), true)]))
                        .map(|()| {
                            let bytes = model.memories[from].bytes[range.clone()].to_vec();
                            model.memories[to].bytes[place].copy_from_slice(&bytes);
                        });
                    let result = device.copy_on_device(&real.streams[on], &handle(from), range, &handle(to), offset);
                    prop_assert_eq!(result.map_err(|e| Refused::of(e.cause())), expected);
                },
                Call::Look { on, memory: at, range } => if let Some(at) = memory(at) {
                    let on = stream(on);
                    let expected = model.in_range(at, &range)
                        .and_then(|()| model.work(on, &[(at, range.clone(), false)]));
                    let should = expected.is_ok().then(|| model.memories[at].bytes[range.clone()].to_vec());
                    let seen = Arc::clone(&seen);
                    let look = HostKernel::new("look", (handle(at).read::<u8>().part(range),), move |(bytes,)| {
                        seen.lock().unwrap().push((bytes.to_vec(), should.unwrap()));
                    });
                    let result = device.launch(&real.streams[on], look);
                    prop_assert_eq!(result.map_err(|e| Refused::of(e.cause())), expected);
                },
                Call::Add { on, from, to } => if let (Some(from), Some(to)) = (memory(from), memory(to)) {
                    let on = stream(on);
                    let all = |at: usize| 0..model.memories[at].bytes.len();
                    let uses = [(from, all(from), false), (to, all(to), true)];
                    let expected = if from == to { Err(Refused::Overlap(model.memories[to].number)) } else { Ok(()) }
                        .and_then(|()| model.work(on, &uses))
                        .map(|()| {
                            let ones = model.memories[from].bytes.clone();
                            for (sum, one) in model.memories[to].bytes.iter_mut().zip(ones) {
                                *sum = sum.zip(one).map(|(sum, one)| sum.wrapping_add(one));
                            }
                        });
                    let add = HostKernel::new("add", (handle(from).read::<u8>(), handle(to).write::<u8>()), |(ones, sums)| {
                        sums.iter_mut().zip(ones).for_each(|(sum, one)| *sum = sum.wrapping_add(*one));
                    });
                    let result = device.launch(&real.streams[on], add);
                    prop_assert_eq!(result.map_err(|e| Refused::of(e.cause())), expected);
                },
                Call::Record { on, event } => {
                    let on = stream(on);
                    model.events[event] = model.after(on);
                    device.record(&real.events[event], &real.streams[on]).unwrap();
                }
                Call::Wait { on, event } => {
                    let on = stream(on);
                    let before = model.events[event].clone();
                    model.streams[on].extend(before);
                    device.wait_event(&real.streams[on], &real.events[event]).unwrap();
                }
                Call::SynchronizeStream { on } => {
                    let on = stream(on);
                    real.release_all();
                    device.synchronize_stream(&real.streams[on]).unwrap();
                    model.seen = model.after(on);
                }
                Call::SynchronizeEvent { event } => {
                    real.release_all();
                    device.synchronize_event(&real.events[event]).unwrap();
                    let before = model.events[event].clone();
                    model.seen.extend(before);
                }
                Call::Stall { on } => {
                    let number = real.streams[stream(on)].number();
                    real.stalled.insert(number);
                    control.stall(number);
                }
                Call::Release { on } => {
                    let number = real.streams[stream(on)].number();
                    real.stalled.remove(&number);
                    control.release(number);
                }
            }
        }

        real.release_all();
        for stream in &real.streams {
            device.synchronize_stream(stream).unwrap();
        }
        for (seen, expected) in seen.lock().unwrap().iter() {
            prop_assert!(same(seen, expected), "saw {seen:?}, not {expected:?}");
        }
        let mut live = 0;
        for (memory, modelled) in real.memories.iter().zip(&model.memories) {
            let Some(memory) = memory else { continue };
            if modelled.freed {
                continue;
            }
            live += memory.bytes();
            let mut pinned = device.allocate_pinned(memory.bytes()).unwrap();
            device.copy_to_host(&real.streams[0], memory, 0..memory.bytes(), &pinned, 0).unwrap();
            device.synchronize_stream(&real.streams[0]).unwrap();
            let bytes = device.pinned_bytes(&mut pinned).unwrap();
            prop_assert!(same(bytes, &modelled.bytes), "holds {bytes:?}, not {:?}", modelled.bytes);
        }
        prop_assert_eq!(control.stats().memory.in_use, live as u64);
        drop((real, device));
        prop_assert!(control.wait_ended(PATIENCE));
        let stats = control.stats();
        prop_assert_eq!((stats.memory.in_use, stats.memory.allocations, stats.queued), (0, 0, 0));
        prop_assert!(stats.memory.peak <= LIMIT as u64);
    }
}
