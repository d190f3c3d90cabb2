//! What C callers hand over: places for answers, lists, names, memory of the host, functions to call. All that this crate
//! does with pointers is here.
//!
//! Nothing but a C call makes these values: their fields are private, and they have no constructor. So the functions that
//! take them are safe to call from Rust, where nobody has one, and each SAFETY comment below leans on the same promise: the
//! caller of a driver function gives it null, or what its manual asks for, valid for as long as its manual says.
#![expect(unsafe_code, reason = "the driver API is a C API")]

use crate::code::Code;
use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

/// A place for an answer.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn set(self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's promise: it can be written. Unaligned, since C casts what it likes.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// What is there before it is set: of a place that the manual calls both.
    pub(crate) fn replaced(self) -> Result<T, Code>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Where an answer that nobody asked for is none.
    pub(crate) fn set_if_asked(self, value: T) {
        let _ = self.set(value);
    }

    /// Several values, one after the other. The caller has said for how many there is room.
    pub(crate) fn fill(self, values: &[T]) -> Result<(), Code>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's promise: there is room for as many as it has said. Ours are none of its.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// A value, or some, to be read.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(&self) -> Result<T, Code> {
        self.at(0)
    }

    /// Of a list that has more than `index`.
    pub(crate) fn at(&self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's promise: it can be read, and the list is as long as it has said.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// A value whose type is said by another argument.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Untyped(*mut c_void);

impl Untyped {
    /// The type must be the one that the driver's manual names beside that argument.
    pub(crate) fn out<T: bytemuck::Pod>(self) -> Out<T> {
        Out(self.0.cast())
    }

    /// As for [`out`](Self::out).
    pub(crate) fn value<T: bytemuck::Pod>(self) -> In<T> {
        In(self.0.cast::<T>().cast_const())
    }
}

/// A text that ends with a NUL.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<String, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's promise: it is a C string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// The arguments of a kernel: pointers to values, as many and as large as the kernel declares.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Arguments(*const *const u8);

impl Arguments {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Copies the argument's bytes, since the caller's are gone when the kernel runs.
    pub(crate) fn copy(&self, index: usize, bytes: usize) -> Result<Vec<u8>, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's promise: there is a pointer for each parameter of the kernel.
        let value = unsafe { self.0.add(index).read_unaligned() };
        HostPointer(value.cast_mut()).read(bytes)
    }
}

/// Memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct HostPointer(*mut u8);

// SAFETY: an address. Whoever reads or writes there does so under the caller's promise, which a thread does not change.
unsafe impl Send for HostPointer {}
// SAFETY: as above.
unsafe impl Sync for HostPointer {}

impl HostPointer {
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    pub(crate) fn read(self, bytes: usize) -> Result<Vec<u8>, Code> {
        if self.0.is_null() && bytes > 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut copy = vec![0; bytes];
        if bytes > 0 {
            // SAFETY: not null, so the caller's promise: so many bytes can be read until the copy has been made.
            unsafe { std::ptr::copy_nonoverlapping(self.0, copy.as_mut_ptr(), bytes) };
        }
        Ok(copy)
    }

    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), Code> {
        if self.0.is_null() && !bytes.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        if !bytes.is_empty() {
            // SAFETY: not null, so the caller's promise: so many bytes can be written until the copy has been made.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
        }
        Ok(())
    }

    /// Further on in the same memory.
    pub(crate) fn add(self, bytes: usize) -> HostPointer {
        HostPointer(self.0.wrapping_add(bytes))
    }
}

/// Memory of the host that this crate owns: pinned, or managed. Its users have its address, so nobody here makes a
/// reference to its bytes.
#[derive(Debug)]
pub(crate) struct HostBlock {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory as a `Box` would; what is done with the bytes is under the caller's promise.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // a page, as the driver's
        let layout = Layout::from_size_align(bytes.max(1), 4096).ok()?;
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(HostBlock { start, layout })
    }

    pub(crate) fn pointer(&self) -> HostPointer {
        HostPointer(self.start.as_ptr())
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: it comes from `alloc_zeroed` with this layout, and goes once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// What a caller gives and gets back, unread.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct UserData(*mut c_void);

// SAFETY: never looked at. The caller wants it on the thread that its function is called on.
unsafe impl Send for UserData {}

/// A function of the host that a stream calls.
pub(crate) type HostFunction = Option<unsafe extern "C" fn(UserData)>;
/// The older kind.
pub(crate) type StreamFunction = Option<unsafe extern "C" fn(usize, Code, UserData)>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum HostCall {
    Plain(unsafe extern "C" fn(UserData), UserData),
    /// Told how its stream, given as a handle, fares.
    OfStream(unsafe extern "C" fn(usize, Code, UserData), usize, UserData),
}

impl HostCall {
    pub(crate) fn call(self, status: Code) {
        match self {
            // SAFETY: the caller's promise: it may be called once, on any thread, with what came with it.
            HostCall::Plain(function, data) => unsafe { function(data) },
            // SAFETY: as above.
            HostCall::OfStream(function, stream, data) => unsafe { function(stream, status, data) },
        }
    }
}

/// Says how much dynamic shared memory a block of this size needs.
pub(crate) type SharedBytes = Option<unsafe extern "C" fn(i32) -> usize>;

pub(crate) fn shared_bytes(function: SharedBytes, block: i32) -> Option<usize> {
    // SAFETY: the caller's promise: it can be called with a size of a block, and touches nothing of ours.
    function.map(|function| unsafe { function(block) })
}

/// Has `deinitialize` called when the process exits, before whatever was registered earlier.
pub(crate) fn at_exit(deinitialize: extern "C" fn()) {
    // SAFETY: a function of the C calling convention without arguments that lives as long as the process does. One that
    // panics aborts. Where the system refuses, the process ends as it would without a driver.
    let _ = unsafe { libc::atexit(deinitialize) };
}
