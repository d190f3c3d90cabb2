//! Which devices there are and what goes wrong, said from Rust or as a text.

use crate::code::Code;
use crate::faults::{Calls, Failure, Plan, plain_name};

/// The machine that is simulated, and what goes wrong on it.
///
/// The same can be said as a text, for programs that cannot call this: see [`parse`](Setup::parse).
///
/// ```
/// use tollgate_cudasim::{Code, Setup};
///
/// let by_calls = Setup::new().devices(2).fail("cuMemAlloc", 3, Code::OUT_OF_MEMORY);
/// let by_text = Setup::parse("devices=2; fail=cuMemAlloc#3:2").unwrap();
/// assert_eq!(format!("{by_calls:?}"), format!("{by_text:?}"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a setup does nothing unless a simulation starts with it"]
pub struct Setup {
    pub(crate) devices: usize,
    /// Of these, the last ones that are instances of a device that was divided.
    pub(crate) instances: usize,
    /// Of each device, in bytes.
    pub(crate) memory: u64,
    /// How many pieces of work run on a device at once.
    pub(crate) engines: usize,
    pub(crate) driver_version: i32,
    /// In place of `CUDA_VISIBLE_DEVICES`.
    pub(crate) visible: Option<String>,
    pub(crate) abort_on_misuse: bool,
    pub(crate) plan: Plan,
}

/// A text that says no setup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no setup of the simulated driver: {entry:?} in {text:?}")]
pub struct ParseSetupError {
    /// What could not be read.
    pub entry: String,
    /// What it is a part of.
    pub text: String,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            devices: 1,
            instances: 0,
            memory: 1 << 30,
            engines: 16,
            driver_version: 12_040,
            visible: None,
            abort_on_misuse: false,
            plan: Plan::default(),
        }
    }
}

impl Setup {
    /// One device of 1 GiB, and nothing goes wrong.
    pub fn new() -> Self {
        Setup::default()
    }

    /// How many devices there are.
    pub fn devices(mut self, devices: usize) -> Self {
        self.devices = devices;
        self
    }

    /// How many of the devices, the last ones, are instances of a divided device: their UUIDs begin with `MIG-`.
    pub fn instances(mut self, instances: usize) -> Self {
        self.instances = instances;
        self
    }

    /// How much memory each device has, in bytes.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// How many pieces of work run on a device at once, at least 1.
    pub fn engines(mut self, engines: usize) -> Self {
        self.engines = engines.max(1);
        self
    }

    /// What the driver calls its version: 12040 is 12.4.
    pub fn driver_version(mut self, version: i32) -> Self {
        self.driver_version = version;
        self
    }

    /// Which devices a program sees, and in which order, as `CUDA_VISIBLE_DEVICES` would say it.
    pub fn visible(mut self, devices: impl Into<String>) -> Self {
        self.visible = Some(devices.into());
        self
    }

    /// A misuse ends the process at once, where a debugger or a test's log shows whose it is.
    pub fn abort_on_misuse(mut self) -> Self {
        self.abort_on_misuse = true;
        self
    }

    fn failure(mut self, call: &str, calls: impl Into<Calls>, failure: Failure) -> Self {
        self.plan.failures.push((plain_name(call).to_owned(), calls.into(), failure));
        self
    }

    /// These calls of the function fail with the code and have no effect. Functions are named as the driver names them, with
    /// or without `_v2`; the calls of each are counted from 1.
    pub fn fail(self, call: &str, calls: impl Into<Calls>, code: Code) -> Self {
        self.failure(call, calls, Failure::Plain(code))
    }

    /// From these calls on, every call of the context fails with the code.
    pub fn fail_sticky(self, call: &str, calls: impl Into<Calls>, code: Code) -> Self {
        self.failure(call, calls, Failure::Sticky(code))
    }

    /// The calls work, and their context fails with the code when it comes to the work.
    pub fn fail_later(self, call: &str, calls: impl Into<Calls>, code: Code) -> Self {
        self.failure(call, calls, Failure::StickyLater(code))
    }

    /// The device is gone at these calls, which fail with the code; so does everything later, resets included.
    pub fn lose_device(self, call: &str, calls: impl Into<Calls>, code: Code) -> Self {
        self.failure(call, calls, Failure::Lost(code))
    }

    /// These streams, counted from 1 as they are created, do nothing until they are released.
    pub fn stall_streams(mut self, streams: impl Into<Calls>) -> Self {
        self.plan.stalled.push(streams.into());
        self
    }

    /// These host functions, counted from 1 as they are submitted, are never called, although their streams pass them.
    pub fn never_call(mut self, functions: impl Into<Calls>) -> Self {
        self.plan.silent.push(functions.into());
        self
    }

    /// When a context fails, its host functions are called as if all were well.
    pub fn call_despite_faults(mut self) -> Self {
        self.plan.despite = true;
        self
    }

    /// A reset of a context that has failed says that it worked, and the context fails as before.
    pub fn broken_reset(mut self) -> Self {
        self.plan.broken_reset = true;
        self
    }

    /// Reads a setup: entries that are separated by `;` or blanks.
    ///
    /// | entry | |
    /// | --- | --- |
    /// | `devices=2`, `instances=1`, `memory=64m`, `engines=4`, `driver=12040`, `visible=1,0` | the machine |
    /// | `fail=CALL#N:CODE` | [`fail`](Setup::fail); `N` is `3`, `3..`, `3..5` (both included) or `*` |
    /// | `sticky=CALL#N:CODE`, `later=CALL#N:CODE`, `lose=CALL#N:CODE` | [`fail_sticky`](Setup::fail_sticky), [`fail_later`](Setup::fail_later), [`lose_device`](Setup::lose_device) |
    /// | `stall=N`, `silent=N` | [`stall_streams`](Setup::stall_streams), [`never_call`](Setup::never_call) |
    /// | `despite`, `broken-reset`, `abort` | [`call_despite_faults`](Setup::call_despite_faults), [`broken_reset`](Setup::broken_reset), [`abort_on_misuse`](Setup::abort_on_misuse) |
    ///
    /// # Errors
    /// The entry that cannot be read.
    pub fn parse(text: &str) -> Result<Self, ParseSetupError> {
        let mut setup = Setup::new();
        for entry in text.split([';', ' ', '\n', '\t']).filter(|it| !it.is_empty()) {
            setup = setup.entry(entry).ok_or_else(|| ParseSetupError {
                entry: entry.to_owned(),
                text: text.to_owned(),
            })?;
        }
        Ok(setup)
    }

    fn entry(self, entry: &str) -> Option<Self> {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        Some(match key {
            "devices" => self.devices(value.parse().ok()?),
            "instances" => self.instances(value.parse().ok()?),
            "memory" => self.memory(bytes(value)?),
            "engines" => self.engines(value.parse().ok()?),
            "driver" => self.driver_version(value.parse().ok()?),
            "visible" => self.visible(value),
            "stall" => self.stall_streams(Calls::parse(value)?),
            "silent" => self.never_call(Calls::parse(value)?),
            "despite" => self.call_despite_faults(),
            "broken-reset" => self.broken_reset(),
            "abort" => self.abort_on_misuse(),
            "fail" | "sticky" | "later" | "lose" => {
                let (call, rest) = value.split_once('#')?;
                let (calls, code) = rest.split_once(':')?;
                let (calls, code) = (Calls::parse(calls)?, Code(code.parse().ok()?));
                match key {
                    "fail" => self.fail(call, calls, code),
                    "sticky" => self.fail_sticky(call, calls, code),
                    "later" => self.fail_later(call, calls, code),
                    _ => self.lose_device(call, calls, code),
                }
            }
            _ => return None,
        })
    }
}

/// `4096`, `64k`, `64m`, `2g`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
