//! Events: places in streams, and when they were passed.

use crate::code::Code;
use crate::misuse::MisuseKind;
use crate::state::{Call, State};
use crate::timeline::Point;
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    flags: u32,
    /// Of its latest record.
    point: Option<Point>,
    mark: u64,
    passed: Option<Instant>,
}

/// Of an event that keeps no time.
const NO_TIMING: u32 = 2;

impl State {
    /// Notes when events were passed.
    pub(crate) fn note_marks(&mut self) {
        for mark in self.timeline.fetch_reached() {
            if let Some(event) = self.marks.remove(&mark).and_then(|it| self.events.get_mut(&it))
                && event.mark == mark
            {
                event.passed = Some(Instant::now());
            }
        }
    }
}

impl Call {
    pub(crate) fn create_event(&mut self, flags: u32) -> Result<u64, Code> {
        let context = self.current()?;
        if flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let number = self.number();
        let event = Event { context, flags, point: None, mark: 0, passed: None };
        self.events.insert(number, event);
        Ok(number)
    }

    fn event(&mut self, handle: usize) -> Result<&mut Event, Code> {
        self.current()?;
        let Some(context) = self.events.get(&(handle as u64)).map(|it| it.context) else {
            let detail = format!("{handle:#x} is no event, or was destroyed");
            return Err(self.found(MisuseKind::BadHandle, Code::INVALID_HANDLE, detail));
        };
        self.check_context(context)?;
        self.events.get_mut(&(handle as u64)).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn destroy_event(&mut self, handle: usize) -> Result<(), Code> {
        let mark = self.event(handle)?.mark;
        self.marks.remove(&mark);
        self.events.remove(&(handle as u64));
        Ok(())
    }

    pub(crate) fn record_event(&mut self, handle: usize, stream: usize) -> Result<(), Code> {
        let context = self.event(handle)?.context;
        let (stream, of_stream) = self.look_up(stream)?;
        if context != of_stream {
            let detail = format!(
                "event {handle:#x} is of context {context:#x}, its stream of {of_stream:#x}"
            );
            return Err(self.found(MisuseKind::WrongContext, Code::INVALID_HANDLE, detail));
        }
        self.order(stream, context);
        let mark = self.number();
        let point = self.timeline.mark(stream, mark);
        let event = self.event(handle)?;
        event.point = point;
        event.passed = None;
        let old = std::mem::replace(&mut event.mark, mark);
        self.marks.remove(&old);
        self.marks.insert(mark, handle as u64);
        self.note_marks();
        Ok(())
    }

    /// An event that was never recorded is passed.
    pub(crate) fn query_event(&mut self, handle: usize) -> Result<(), Code> {
        let Some(point) = self.event(handle)?.point.clone() else { return Ok(()) };
        if !self.timeline.has_passed(&point) {
            return Err(Code::NOT_READY);
        }
        self.see(&point);
        Ok(())
    }

    pub(crate) fn synchronize_event(&mut self, handle: usize) -> Result<(), Code> {
        let event = self.event(handle)?;
        let context = event.context;
        match event.point.clone() {
            Some(point) => self.wait_for(context, &point),
            None => Ok(()),
        }
    }

    /// What the stream is given from now on waits for the event, also one of another context.
    pub(crate) fn wait_event(&mut self, stream: usize, event: usize) -> Result<(), Code> {
        let point = self.event(event)?.point.clone();
        let (stream, context) = self.look_up(stream)?;
        self.order(stream, context);
        if let Some(point) = point {
            self.timeline.wait(stream, &point);
        }
        Ok(())
    }

    /// In milliseconds.
    pub(crate) fn elapsed(&mut self, start: usize, end: usize) -> Result<f32, Code> {
        let mut times = [None; 2];
        for (time, handle) in times.iter_mut().zip([start, end]) {
            let event = self.event(handle)?;
            if event.flags & NO_TIMING != 0 {
                return Err(Code::INVALID_HANDLE);
            }
            let Some(point) = event.point.clone() else { return Err(Code::INVALID_HANDLE) };
            let passed = event.passed;
            if !self.timeline.has_passed(&point) {
                return Err(Code::NOT_READY);
            }
            *time = passed;
        }
        let [Some(start), Some(end)] = times else { return Err(Code::NOT_READY) };
        let (sign, time) = match end.checked_duration_since(start) {
            Some(time) => (1.0, time),
            None => (-1.0, start.duration_since(end)),
        };
        Ok(sign * time.as_secs_f32() * 1e3)
    }
}
