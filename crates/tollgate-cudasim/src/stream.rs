//! Streams: handles, the null stream's order, giving them work.

use crate::code::Code;
use crate::device::PRIORITIES;
use crate::engine::{Task, Work};
use crate::memory::Use;
use crate::misuse::MisuseKind;
use crate::raw::HostCall;
use crate::state::Call;
use crate::timeline::Point;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// Of a stream that takes no part in the order of the null stream.
pub(crate) const NON_BLOCKING: u32 = 1;

/// The handle of the null stream, beside null itself.
const LEGACY: usize = 1;
/// The handle of the thread's own stream.
const PER_THREAD: usize = 2;

impl Call {
    pub(crate) fn create_stream(&mut self, flags: u32, priority: i32) -> Result<u64, Code> {
        let context = self.current()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // as the driver does, without a word
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        let number = self.number();
        self.streams.insert(number, Stream { context, flags, priority });
        self.streams_created += 1;
        let count = self.streams_created;
        let stalled = self.setup().plan.is_stalled(count);
        let device = self.contexts.get(&context).map_or(0, |it| it.device);
        self.timeline.open(number, device, priority, stalled);
        Ok(number)
    }

    /// What it was given is still done.
    pub(crate) fn destroy_stream(&mut self, handle: usize) -> Result<(), Code> {
        self.current()?;
        let number = handle as u64;
        if self.streams.remove(&number).is_none() {
            return Err(self.no_stream(handle));
        }
        self.timeline.close(number);
        Ok(())
    }

    fn no_stream(&mut self, handle: usize) -> Code {
        let detail = format!("{handle:#x} is no stream, or was destroyed");
        self.found(MisuseKind::BadHandle, Code::INVALID_HANDLE, detail)
    }

    /// The stream's number and its context.
    pub(crate) fn look_up(&mut self, handle: usize) -> Result<(u64, u64), Code> {
        let current = self.current()?;
        match handle {
            0 | LEGACY => Ok((self.context()?.legacy, current)),
            PER_THREAD => {
                let thread = std::thread::current().id();
                if let Some(&own) = self.context()?.own.get(&thread) {
                    return Ok((own, current));
                }
                let number = self.number();
                let context = self.context()?;
                context.own.insert(thread, number);
                let device = context.device;
                self.timeline.open(number, device, 0, false);
                Ok((number, current))
            }
            _ => match self.streams.get(&(handle as u64)) {
                Some(stream) => {
                    let context = stream.context;
                    self.check_context(context)?;
                    Ok((handle as u64, context))
                }
                None => Err(self.no_stream(handle)),
            },
        }
    }

    /// A stream that may be given work: it is one of the thread's context.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<u64, Code> {
        let current = self.current()?;
        let (stream, context) = self.look_up(handle)?;
        if context != current {
            let detail = format!(
                "stream {handle:#x} is of context {context:#x}, and {current:#x} is current"
            );
            return Err(self.found(MisuseKind::WrongContext, Code::INVALID_HANDLE, detail));
        }
        Ok(stream)
    }

    /// Flags and priority.
    pub(crate) fn stream_traits(&mut self, handle: usize) -> Result<(u32, i32), Code> {
        let (number, _) = self.look_up(handle)?;
        Ok(self.streams.get(&number).map_or((0, 0), |it| (it.flags, it.priority)))
    }

    /// Work of the null stream comes after all that the blocking streams have, and theirs after its.
    pub(crate) fn order(&mut self, stream: u64, context: u64) {
        let Some(legacy) = self.contexts.get(&context).map(|it| it.legacy) else { return };
        let blocking = |call: &Call, it| {
            call.streams.get(&it).is_none_or(|stream| stream.flags & NON_BLOCKING == 0)
        };
        if stream == legacy {
            for other in self.streams_of(context) {
                if other != legacy && blocking(self, other) {
                    self.timeline.join(legacy, other);
                }
            }
        } else if blocking(self, stream) {
            self.timeline.join(stream, legacy);
        }
    }

    /// Gives the stream work that uses this memory, and says at which position it is.
    pub(crate) fn submit(&mut self, stream: u64, work: Work, uses: &[Use]) -> Result<u64, Code> {
        let context = self.current()?;
        self.order(stream, context);
        self.check_order(stream, uses)?;
        let silent = match &work {
            Work::Host(_) => {
                self.host_functions += 1;
                let count = self.host_functions;
                self.setup().plan.is_silent(count)
            }
            _ => false,
        };
        let work = if silent { Work::Nothing } else { work };
        let task = Task { context, work, doomed: self.doomed.take() };
        let position = self.timeline.submit(stream, task);
        self.add_uses(stream, position, uses);
        self.call_engines();
        Ok(position)
    }

    pub(crate) fn submit_host_call(&mut self, stream: u64, call: HostCall) -> Result<(), Code> {
        self.submit(stream, Work::Host(call), &[]).map(drop)
    }

    /// Where the stream is once it has done all that it was given.
    fn end_of(&mut self, handle: usize) -> Result<(u64, Point), Code> {
        let (stream, context) = self.look_up(handle)?;
        self.order(stream, context);
        let point = self.timeline.point(stream).ok_or(Code::INVALID_HANDLE)?;
        Ok((context, point))
    }

    pub(crate) fn query_stream(&mut self, handle: usize) -> Result<(), Code> {
        let (_, point) = self.end_of(handle)?;
        if !self.timeline.has_passed(&point) {
            return Err(Code::NOT_READY);
        }
        self.see(&point);
        Ok(())
    }

    pub(crate) fn synchronize_stream(&mut self, handle: usize) -> Result<(), Code> {
        let (context, point) = self.end_of(handle)?;
        self.wait_for(context, &point)
    }
}
