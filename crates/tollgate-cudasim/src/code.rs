//! The driver's result codes.

use std::ffi::CStr;
use std::fmt;

/// A result of the driver, as a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($number:literal $name:ident $symbol:literal $text:literal)*) => {
        #[expect(missing_docs, reason = "they are the driver's")]
        impl Code {
            $(pub const $name: Code = Code($number);)*
        }

        const NAMED: &[(u32, &CStr, &CStr)] = &[$(($number, $symbol, $text),)*];
    };
}

codes! {
    0 SUCCESS c"CUDA_SUCCESS" c"no error"
    1 INVALID_VALUE c"CUDA_ERROR_INVALID_VALUE" c"invalid argument"
    2 OUT_OF_MEMORY c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory"
    3 NOT_INITIALIZED c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error"
    4 DEINITIALIZED c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down"
    100 NO_DEVICE c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected"
    101 INVALID_DEVICE c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal"
    201 INVALID_CONTEXT c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context"
    214 ECC_UNCORRECTABLE c"CUDA_ERROR_ECC_UNCORRECTABLE" c"uncorrectable ECC error encountered"
    215 UNSUPPORTED_LIMIT c"CUDA_ERROR_UNSUPPORTED_LIMIT" c"limit is not supported on this architecture"
    217 PEER_ACCESS_UNSUPPORTED c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" c"peer access is not supported between these two devices"
    218 INVALID_PTX c"CUDA_ERROR_INVALID_PTX" c"a PTX JIT compilation failed"
    301 FILE_NOT_FOUND c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found"
    400 INVALID_HANDLE c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle"
    401 ILLEGAL_STATE c"CUDA_ERROR_ILLEGAL_STATE" c"the operation cannot be performed in the present state"
    500 NOT_FOUND c"CUDA_ERROR_NOT_FOUND" c"named symbol not found"
    600 NOT_READY c"CUDA_ERROR_NOT_READY" c"device not ready"
    700 ILLEGAL_ADDRESS c"CUDA_ERROR_ILLEGAL_ADDRESS" c"an illegal memory access was encountered"
    704 PEER_ACCESS_ALREADY_ENABLED c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" c"peer access is already enabled"
    705 PEER_ACCESS_NOT_ENABLED c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" c"peer access has not been enabled"
    709 CONTEXT_IS_DESTROYED c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed"
    710 ASSERT c"CUDA_ERROR_ASSERT" c"device-side assert triggered"
    712 HOST_MEMORY_ALREADY_REGISTERED c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" c"part or all of the requested memory range is already mapped"
    713 HOST_MEMORY_NOT_REGISTERED c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" c"pointer does not correspond to a registered memory region"
    719 LAUNCH_FAILED c"CUDA_ERROR_LAUNCH_FAILED" c"unspecified launch failure"
    800 NOT_PERMITTED c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted"
    801 NOT_SUPPORTED c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported"
    802 SYSTEM_NOT_READY c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not yet initialized"
    999 UNKNOWN c"CUDA_ERROR_UNKNOWN" c"unknown error"
}

impl Code {
    pub(crate) fn name(self) -> Option<&'static CStr> {
        NAMED.iter().find(|it| it.0 == self.0).map(|it| it.1)
    }

    pub(crate) fn text(self) -> Option<&'static CStr> {
        NAMED.iter().find(|it| it.0 == self.0).map(|it| it.2)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(&name.to_string_lossy()),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}
