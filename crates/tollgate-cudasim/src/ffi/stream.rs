//! Streams.

use crate::code::Code;
use crate::raw::{HostCall, HostFunction, Out, StreamFunction, UserData};
use crate::thread;

api! {
    fn cuStreamCreate(out: Out<usize>, flags: u32) |it| it.answer(out, |it| it.create_stream(flags, 0));
    fn cuStreamCreateWithPriority(out: Out<usize>, flags: u32, priority: i32) |it| {
        it.answer(out, |it| it.create_stream(flags, priority))
    };
    fn cuStreamDestroy_v2(stream: usize) |it| it.destroy_stream(stream);
    fn cuStreamGetFlags(stream: usize, out: Out<u32>) |it| {
        it.answer(out, |it| Ok(it.stream_traits(stream)?.0))
    };
    fn cuStreamGetPriority(stream: usize, out: Out<i32>) |it| {
        it.answer(out, |it| Ok(it.stream_traits(stream)?.1))
    };
    fn cuStreamGetCtx(stream: usize, out: Out<usize>) |it| it.answer(out, |it| Ok(it.look_up(stream)?.1));
    fn cuStreamQuery(stream: usize) |it| it.query_stream(stream);
    fn cuStreamSynchronize(stream: usize) |it| it.synchronize_stream(stream);
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) |it| {
        if flags != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        it.wait_event(stream, event)
    };
    fn cuLaunchHostFunc(stream: usize, function: HostFunction, data: UserData) |it| {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let stream = it.stream(stream)?;
        it.submit_host_call(stream, HostCall::Plain(function, data))
    };
    fn cuStreamAddCallback(stream: usize, function: StreamFunction, data: UserData, flags: u32) |it| {
        let function = function.filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        let number = it.stream(stream)?;
        it.submit_host_call(number, HostCall::OfStream(function, stream, data))
    };
    /// Nothing is ever captured.
    fn cuStreamIsCapturing(stream: usize, out: Out<u32>) |it| it.answer(out, |it| {
        it.look_up(stream)?;
        Ok(0_u32)
    });
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_it| {
        let new = mode.replaced()?;
        mode.set(thread::exchange_capture_mode(new))
    };
}
