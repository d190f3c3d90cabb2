//! Contexts: primary and others, which one a thread has, what becomes of one that fails.

use crate::code::Code;
use crate::engine::Task;
use crate::misuse::MisuseKind;
use crate::state::{Call, State, driver};
use crate::thread;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::thread::ThreadId;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    primary: bool,
    /// Of a primary one.
    retains: u32,
    /// Neither destroyed nor, for a primary one, without anybody who has retained it.
    pub(crate) alive: bool,
    pub(crate) flags: u32,
    /// It has failed: all its calls do.
    broken: Option<Code>,
    /// The stream that its null handle means.
    pub(crate) legacy: u64,
    /// The streams that each thread has of its own.
    pub(crate) own: HashMap<ThreadId, u64>,
    pub(crate) limits: BTreeMap<u32, usize>,
    pub(crate) cache: u32,
    pub(crate) banks: u32,
    pub(crate) peers: BTreeSet<u64>,
    /// Pieces of its work that run.
    pub(crate) running: usize,
}

impl State {
    fn open_context(&mut self, device: usize, primary: bool) -> u64 {
        let number = self.number();
        let limits = [(0, 1024), (1, 1 << 20), (2, 8 << 20), (3, 2), (4, 2048), (5, 128)];
        let context = Context {
            device,
            primary,
            retains: 0,
            alive: false,
            flags: 0,
            broken: None,
            legacy: 0,
            own: HashMap::new(),
            limits: limits.into(),
            cache: 0,
            banks: 0,
            peers: BTreeSet::new(),
            running: 0,
        };
        self.contexts.insert(number, context);
        number
    }

    /// Of a device that has none yet. It is not alive.
    pub(crate) fn open_primary(&mut self, device: usize) -> u64 {
        self.open_context(device, true)
    }

    fn enliven(&mut self, number: u64) {
        let legacy = self.number();
        if let Some(context) = self.contexts.get_mut(&number) {
            context.alive = true;
            context.legacy = legacy;
            self.timeline.open(legacy, context.device, 0, false);
        }
    }

    /// All its streams, also those that have no handle.
    pub(crate) fn streams_of(&self, number: u64) -> Vec<u64> {
        let Some(context) = self.contexts.get(&number) else { return Vec::new() };
        let named = self.streams.iter().filter(|(_, it)| it.context == number).map(|(&it, _)| it);
        let own = context.own.values().copied();
        named.chain(own).chain(context.alive.then_some(context.legacy)).collect()
    }

    /// The context fails: all its calls from now on do, and nothing that has not begun will be done.
    pub(crate) fn break_context(&mut self, number: u64, code: Code) {
        let Some(context) = self.contexts.get_mut(&number) else { return };
        if context.broken.is_some() || !context.alive {
            return;
        }
        context.broken = Some(code);
        let left = self.stop_work(number);
        let despite = self.setup().plan.despite;
        self.crew.orphans.extend(left.into_iter().filter_map(|it| it.orphan(code, despite)));
        driver().work.notify_all();
        driver().tell();
    }

    /// Takes all work that has not begun.
    fn stop_work(&mut self, number: u64) -> Vec<Task> {
        let streams = self.streams_of(number);
        streams.into_iter().flat_map(|it| self.timeline.abort(it)).collect()
    }

    /// The device is gone.
    pub(crate) fn lose(&mut self, device: usize, code: Code) {
        if let Some(it) = self.devices.get_mut(device) {
            it.lost.get_or_insert(code);
        }
        let of_device = self.contexts.iter().filter(|(_, it)| it.device == device);
        for number in of_device.map(|(&it, _)| it).collect::<Vec<_>>() {
            self.break_context(number, code);
            if let Some(context) = self.contexts.get_mut(&number) {
                context.broken = Some(code);
            }
        }
    }
}

impl Call {
    /// Whether the context is there and well.
    pub(crate) fn check_context(&mut self, number: u64) -> Result<(), Code> {
        self.check_alive(number)?;
        self.contexts.get(&number).and_then(|it| it.broken).map_or(Ok(()), Err)
    }

    /// Whether the context is there, well or not.
    fn check_alive(&mut self, number: u64) -> Result<(), Code> {
        match self.contexts.get(&number) {
            Some(context) if context.alive => Ok(()),
            Some(context) => {
                let what =
                    if context.primary { "has no user, or was reset" } else { "is destroyed" };
                let detail = format!("context {number:#x} {what}");
                Err(self.found(MisuseKind::DeadContext, Code::CONTEXT_IS_DESTROYED, detail))
            }
            None => {
                let detail = format!("{number:#x} is no context");
                Err(self.found(MisuseKind::BadHandle, Code::INVALID_CONTEXT, detail))
            }
        }
    }

    /// The thread's context, which is there and well.
    pub(crate) fn current(&mut self) -> Result<u64, Code> {
        let number = self.bound()?;
        self.check_context(number)?;
        Ok(number)
    }

    /// The thread's context, also one that has failed.
    fn bound(&mut self) -> Result<u64, Code> {
        let Some(number) = thread::current() else {
            let detail = "the thread has no current context".to_owned();
            return Err(self.found(MisuseKind::NoContext, Code::INVALID_CONTEXT, detail));
        };
        if !self.contexts.contains_key(&number) {
            let detail = format!("context {number:#x} is of a simulation that has ended");
            return Err(self.found(MisuseKind::DeadContext, Code::INVALID_CONTEXT, detail));
        }
        self.check_alive(number)?;
        Ok(number)
    }

    /// The thread's context, to read or change.
    pub(crate) fn context(&mut self) -> Result<&mut Context, Code> {
        let number = self.current()?;
        self.contexts.get_mut(&number).ok_or(Code::INVALID_CONTEXT)
    }

    pub(crate) fn create_context(&mut self, flags: u32, device: i32) -> Result<u64, Code> {
        let device = self.device(device)?;
        let number = self.open_context(device, false);
        self.enliven(number);
        if let Some(context) = self.contexts.get_mut(&number) {
            context.flags = flags;
        }
        thread::push(number);
        Ok(number)
    }

    pub(crate) fn destroy_context(&mut self, number: u64) -> Result<(), Code> {
        self.check_alive(number)?;
        if self.contexts.get(&number).is_some_and(|it| it.primary) {
            let detail =
                format!("context {number:#x} is primary, so it is released, not destroyed");
            return Err(self.found(MisuseKind::BadHandle, Code::INVALID_CONTEXT, detail));
        }
        self.clear_context(number)?;
        if thread::current() == Some(number) {
            thread::pop();
        }
        Ok(())
    }

    fn primary(&mut self, device: i32) -> Result<(u64, &mut Context), Code> {
        let device = self.device(device)?;
        let number = self.devices.get(device).map_or(0, |it| it.primary);
        let context = self.contexts.get_mut(&number).ok_or(Code::INVALID_DEVICE)?;
        Ok((number, context))
    }

    pub(crate) fn retain_primary(&mut self, device: i32) -> Result<u64, Code> {
        let (number, context) = self.primary(device)?;
        if let Some(code) = context.broken {
            return Err(code);
        }
        context.retains += 1;
        if !context.alive {
            self.enliven(number);
        }
        Ok(number)
    }

    pub(crate) fn release_primary(&mut self, device: i32) -> Result<(), Code> {
        let (number, context) = self.primary(device)?;
        let Some(left) = context.retains.checked_sub(1) else {
            let detail = format!("the primary context of device {device} has no user");
            return Err(self.found(MisuseKind::DeadContext, Code::INVALID_CONTEXT, detail));
        };
        context.retains = left;
        if left == 0 { self.clear_context(number) } else { Ok(()) }
    }

    pub(crate) fn reset_primary(&mut self, device: i32) -> Result<(), Code> {
        let (number, context) = self.primary(device)?;
        context.retains = 0;
        if context.alive { self.clear_context(number) } else { Ok(()) }
    }

    pub(crate) fn set_primary_flags(&mut self, device: i32, flags: u32) -> Result<(), Code> {
        self.primary(device)?.1.flags = flags;
        Ok(())
    }

    /// Flags, and whether it is alive.
    pub(crate) fn primary_state(&mut self, device: i32) -> Result<(u32, bool), Code> {
        let (_, context) = self.primary(device)?;
        Ok((context.flags, context.alive))
    }

    /// Ends a context: its work stops, and all that it has goes.
    fn clear_context(&mut self, number: u64) -> Result<(), Code> {
        let left = self.stop_work(number);
        drop(left);
        let streams = self.streams_of(number);
        if let Some(context) = self.contexts.get_mut(&number) {
            context.alive = false;
            context.own.clear();
            context.peers.clear();
        }
        driver().tell();
        // what runs may use its memory
        while self.contexts.get(&number).is_some_and(|it| it.running > 0) {
            self.wait()?;
        }
        for stream in streams {
            self.timeline.close(stream);
        }
        self.streams.retain(|_, it| it.context != number);
        self.events.retain(|_, it| it.context != number);
        let State { marks, events, .. } = &mut **self;
        marks.retain(|_, event| events.contains_key(event));
        self.modules.retain(|_, it| it.context != number);
        self.functions.retain(|_, it| it.context != number);
        let blocks = self.blocks.iter().filter(|(_, it)| it.context == number);
        for address in blocks.map(|(&it, _)| it).collect::<Vec<_>>() {
            self.forget_block(address);
        }
        let stays_broken = self.setup().plan.broken_reset;
        if let Some(context) = self.contexts.get_mut(&number)
            && !stays_broken
        {
            context.broken = None;
        }
        Ok(())
    }

    /// `None` leaves the thread without one.
    pub(crate) fn set_current(&mut self, context: Option<u64>) -> Result<(), Code> {
        if let Some(number) = context {
            self.check_alive(number)?;
        }
        thread::set_current(context);
        Ok(())
    }

    pub(crate) fn push_context(&mut self, number: u64) -> Result<(), Code> {
        self.check_alive(number)?;
        thread::push(number);
        Ok(())
    }

    pub(crate) fn pop_context(&mut self) -> Result<u64, Code> {
        self.bound()?;
        thread::pop().ok_or(Code::INVALID_CONTEXT)
    }

    /// Waits for all streams of the thread's context.
    pub(crate) fn synchronize_context(&mut self) -> Result<(), Code> {
        let context = self.current()?;
        let streams = self.streams_of(context);
        let points: Vec<_> = streams.into_iter().filter_map(|it| self.timeline.point(it)).collect();
        points.iter().try_for_each(|it| self.wait_for(context, it))
    }

    /// Lets the thread's context use memory of another one.
    pub(crate) fn change_peer(&mut self, peer: u64, on: bool) -> Result<(), Code> {
        self.check_alive(peer)?;
        let device = self.contexts.get(&peer).map(|it| it.device);
        let context = self.context()?;
        if device == Some(context.device) {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        match (on, if on { context.peers.insert(peer) } else { context.peers.remove(&peer) }) {
            (_, true) => Ok(()),
            (true, false) => Err(Code::PEER_ACCESS_ALREADY_ENABLED),
            (false, false) => Err(Code::PEER_ACCESS_NOT_ENABLED),
        }
    }
}
