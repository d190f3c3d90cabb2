//! The driver's functions as C calls them. They check what is null, and leave the rest to the modules that know.
//!
//! What the driver has and is not written here is made by the build script: it answers that it is not supported.
#![expect(unsafe_code, reason = "the driver's names are exported")]

use crate::code::Code;
use crate::raw::Out;
use crate::state::{self, Call};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Functions of the driver. The expression is what they do once the call may go on.
macro_rules! api {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$call:ident| $body:expr;)*) => {
        $(
            $(#[$doc])*
            // the name is the driver's, and no other crate of the program may have it
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> $crate::code::Code {
                $crate::state::call(stringify!($name), |$call| $body)
            }
        )*
    };
}

/// Functions of the driver that are not simulated. Their arguments are left where the caller put them.
macro_rules! stubs {
    ($($name:ident)*) => {
        $(
            // the name is the driver's, and no other crate of the program may have it
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> Code {
                unsupported(stringify!($name))
            }
        )*
    };
}

mod context;
mod control;
mod copy;
mod device;
mod event;
mod init;
mod memory;
mod module;
mod pool;
mod stream;

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

fn unsupported(name: &'static str) -> Code {
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        eprintln!("simulated CUDA driver: {name} is not supported");
    }
    state::call(name, |_| Err(Code::NOT_SUPPORTED))
}

impl Call {
    /// Does something whose answer goes to `out`. Nothing is done when there is no place for it.
    fn answer<T, U>(
        &mut self,
        out: Out<T>,
        value: impl FnOnce(&mut Call) -> Result<U, Code>,
    ) -> Result<(), Code>
    where
        T: TryFrom<U>,
    {
        if out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let value = value(self)?;
        out.set(T::try_from(value).map_err(|_| Code::INVALID_VALUE)?)
    }
}
