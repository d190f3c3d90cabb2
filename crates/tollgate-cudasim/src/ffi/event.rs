//! Events.

use crate::code::Code;
use crate::raw::Out;

api! {
    fn cuEventCreate(out: Out<usize>, flags: u32) |it| it.answer(out, |it| it.create_event(flags));
    fn cuEventDestroy_v2(event: usize) |it| it.destroy_event(event);
    fn cuEventRecord(event: usize, stream: usize) |it| it.record_event(event, stream);
    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: u32) |it| {
        if flags != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        it.record_event(event, stream)
    };
    fn cuEventQuery(event: usize) |it| it.query_event(event);
    fn cuEventSynchronize(event: usize) |it| it.synchronize_event(event);
    fn cuEventElapsedTime(out: Out<f32>, start: usize, end: usize) |it| {
        it.answer(out, |it| it.elapsed(start, end))
    };
}
