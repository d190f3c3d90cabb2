//! Contexts.

use crate::code::Code;
use crate::device::PRIORITIES;
use crate::misuse::MisuseKind;
use crate::raw::Out;
use crate::state::Call;
use crate::thread;

api! {
    fn cuCtxCreate_v2(out: Out<usize>, flags: u32, device: i32) |it| {
        it.answer(out, |it| it.create_context(flags, device))
    };
    fn cuCtxDestroy_v2(context: usize) |it| it.destroy_context(context as u64);
    fn cuCtxSetCurrent(context: usize) |it| it.set_current((context != 0).then_some(context as u64));
    fn cuCtxPushCurrent_v2(context: usize) |it| it.push_context(context as u64);
    fn cuCtxPopCurrent_v2(out: Out<usize>) |it| {
        let popped = it.pop_context()?;
        out.set_if_asked(handle(popped));
        Ok(())
    };
    fn cuCtxGetCurrent(out: Out<usize>) |it| it.answer(out, |_| Ok(thread::current().unwrap_or(0)));
    fn cuCtxGetDevice(out: Out<i32>) |it| it.answer(out, |it| Ok(it.context()?.device));
    fn cuCtxGetFlags(out: Out<u32>) |it| it.answer(out, |it| Ok(it.context()?.flags));
    fn cuCtxGetApiVersion(context: usize, out: Out<u32>) |it| it.answer(out, |it| {
        if context == 0 {
            it.current()?;
        } else {
            it.check_context(context as u64)?;
        }
        Ok(3020_u32)
    });
    fn cuCtxSynchronize() |it| it.synchronize_context();

    fn cuCtxGetLimit(out: Out<usize>, limit: u32) |it| it.answer(out, |it| {
        it.context()?.limits.get(&limit).copied().ok_or(Code::UNSUPPORTED_LIMIT)
    });
    fn cuCtxSetLimit(limit: u32, value: usize) |it| {
        let own = it.context()?.limits.get_mut(&limit).ok_or(Code::UNSUPPORTED_LIMIT)?;
        *own = value;
        Ok(())
    };
    fn cuCtxGetCacheConfig(out: Out<u32>) |it| it.answer(out, |it| Ok(it.context()?.cache));
    fn cuCtxSetCacheConfig(config: u32) |it| {
        it.context()?.cache = config;
        Ok(())
    };
    fn cuCtxGetSharedMemConfig(out: Out<u32>) |it| it.answer(out, |it| Ok(it.context()?.banks));
    fn cuCtxSetSharedMemConfig(config: u32) |it| {
        it.context()?.banks = config;
        Ok(())
    };
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |it| {
        it.current()?;
        least.set_if_asked(PRIORITIES.0);
        greatest.set_if_asked(PRIORITIES.1);
        Ok(())
    };
    fn cuCtxResetPersistingL2Cache() |it| it.current().map(drop);
    fn cuCtxEnablePeerAccess(peer: usize, flags: u32) |it| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        it.change_peer(peer as u64, true)
    };
    fn cuCtxDisablePeerAccess(peer: usize) |it| it.change_peer(peer as u64, false);

    /// The older way to hold on to a context, which a primary one never had.
    fn cuCtxAttach(_out: Out<usize>, _flags: u32) |it| Err(no_longer(it));
    fn cuCtxDetach(_context: usize) |it| Err(no_longer(it));
}

fn handle(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn no_longer(it: &mut Call) -> Code {
    let detail = "contexts are not counted by attaching to them any more".to_owned();
    it.found(MisuseKind::BadHandle, Code::NOT_SUPPORTED, detail)
}
