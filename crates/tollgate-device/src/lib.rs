//! Devices for services on tokio: the seam between a pool and a driver, and a device that needs no GPU.
//!
//! | need | use |
//! | --- | --- |
//! | write code that runs on any driver | [`backend::Backend`] |
//! | test a GPU service on a machine without a GPU | [`host`] |
//! | make a device fail, at the call or long after it | [`host::FaultPlan`], [`host::HostControl`] |
//!
//! The pool itself is not here yet. `docs/device.md` in the repository says what is.
//!
//! # Features
//!
//! `serde`: figures can be serialised.

pub mod backend;
pub mod host;
mod sync;
