//! The tester's side, for programs that do not call Rust.

use crate::code::Code;
use crate::raw::Text;
use crate::sim;
use crate::state::driver;

/// A setup as a text: the machine before the driver is initialised, else the faults that come on top.
#[unsafe(no_mangle)]
extern "C" fn cudasim_setup(text: Text) -> Code {
    text.get().and_then(|it| sim::set_by_text(&it)).err().unwrap_or(Code::SUCCESS)
}

/// The stream begins nothing more, or goes on when `stalled` is 0.
#[unsafe(no_mangle)]
extern "C" fn cudasim_stall(stream: usize, stalled: i32) {
    sim::stall(stream, stalled != 0);
}

/// The primary context of a device fails.
#[unsafe(no_mangle)]
extern "C" fn cudasim_break(device: usize, code: Code) {
    sim::break_primary(device, code);
}

/// A device is gone.
#[unsafe(no_mangle)]
extern "C" fn cudasim_lose(device: usize, code: Code) {
    driver().peek().lose(device, code);
}

/// How many misuses were found.
#[unsafe(no_mangle)]
extern "C" fn cudasim_misuses() -> u64 {
    driver().peek().misuses.len() as u64
}
