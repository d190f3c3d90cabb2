//! The driver's names are there.
#![expect(unsafe_code, reason = "the driver API is a C API")]

use std::collections::BTreeSet;
use tollgate_cudasim::{Setup, Simulation};

include!(concat!(env!("OUT_DIR"), "/declared.rs"));

#[test]
fn every_symbol_that_cust_declares_is_exported() {
    assert_eq!(DECLARED.len(), 353);
    // linking has looked for each; that no two are one is left
    let addresses: BTreeSet<usize> = DECLARED.iter().map(|it| it.1 as usize).collect();
    assert!(addresses.len() > 300, "{}", addresses.len());
}

#[test]
fn what_is_not_simulated_says_that_it_is_not_supported() {
    let _sim = Simulation::start(Setup::new());
    // SAFETY: it answers without looking at arguments.
    let before = unsafe { cust::sys::cuGraphCreate(std::ptr::null_mut(), 0) };
    assert_eq!(before, cust::sys::cudaError_enum::CUDA_ERROR_NOT_INITIALIZED);
    cust::init(cust::CudaFlags::empty()).unwrap();
    // SAFETY: as above.
    let after = unsafe { cust::sys::cuGraphCreate(std::ptr::null_mut(), 0) };
    assert_eq!(after, cust::sys::cudaError_enum::CUDA_ERROR_NOT_SUPPORTED);
}
