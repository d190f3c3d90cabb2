//! Initialisation, versions, codes.

use crate::code::Code;
use crate::device::Device;
use crate::raw::{self, Out};
use crate::sim;
use crate::state::{Call, Life, driver};
use std::ffi::c_char;
use std::sync::Once;

static AT_EXIT: Once = Once::new();

api! {
    fn cuInit(flags: u32) |it| init(it, flags);
}

fn init(it: &mut Call, flags: u32) -> Result<(), Code> {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if it.life == Life::Up {
        return Ok(());
    }
    let visible = it.setup().visible.clone();
    let visible = visible.or_else(|| std::env::var("CUDA_VISIBLE_DEVICES").ok());
    let devices = Device::all(it.setup(), visible.as_deref());
    if devices.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    it.devices = devices;
    for at in 0..it.devices.len() {
        let (primary, pool) = (it.open_primary(at), it.open_pool(at, 0, true));
        if let Some(device) = it.devices.get_mut(at) {
            device.primary = primary;
            device.default_pool = pool;
            device.pool = pool;
        }
    }
    it.life = Life::Up;
    // whoever registers later is called before the driver goes
    AT_EXIT.call_once(|| raw::at_exit(sim::deinitialize));
    Ok(())
}

// what needs no driver that is initialised

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Code {
    let set = version.set(driver().peek().setup().driver_version);
    set.err().unwrap_or(Code::SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, out: Out<*const c_char>) -> Code {
    let name = code.name().ok_or(Code::INVALID_VALUE);
    name.and_then(|it| out.set(it.as_ptr())).err().unwrap_or(Code::SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Code, out: Out<*const c_char>) -> Code {
    let text = code.text().ok_or(Code::INVALID_VALUE);
    text.and_then(|it| out.set(it.as_ptr())).err().unwrap_or(Code::SUCCESS)
}
