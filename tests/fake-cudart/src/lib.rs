//! A stand-in for NVIDIA's `libcudart.so.12`, the runtime API.
//!
//! As the real one it has no memory of its own: each function calls the driver API's, which it finds
//! with `cuGetProcAddress` in whatever `libcuda.so.1` is loaded, and makes the primary context of
//! device 0 current on a thread that has none. Whoever traces the driver API therefore sees each
//! allocation once, and whoever traced both would see it twice.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the calling functions are written for x86-64 Linux");

mod driver;
mod error;

use driver::{Function, prepare};
use error::finish;
use std::ffi::{c_int, c_void};

/// A result code of the runtime API; those that this library gives are the driver API's numbers.
type Code = c_int;

/// Makes a function of the runtime API that calls the driver function of the same arguments.
///
/// It is written out so that a walk along frame pointers goes through it, and so that the driver's
/// caller is this function itself: optimised Rust promises neither.
macro_rules! forward {
    ($(
        $(#[$doc:meta])*
        $symbol:ident($($argument:ident: $type:ty),*) => $function:expr;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the runtime API says: pointers must be valid for what it writes.
            #[allow(non_snake_case)]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> Code {
                // Two arguments at most, kept on the stack, which stays aligned to 16 bytes.
                core::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "push rdi",
                    "push rsi",
                    "mov edi, {function}",
                    "call {prepare}",
                    "pop rsi",
                    "pop rdi",
                    "test rax, rax",
                    "jz 2f",
                    "call rax",
                    "mov edx, eax",
                    "2:",
                    "mov edi, edx",
                    "call {finish}",
                    "pop rbp",
                    "ret",
                    function = const $function as u32,
                    prepare = sym prepare,
                    finish = sym finish,
                )
            }
        )*
    };
}

forward! {
    /// Allocates device memory.
    cudaMalloc(pointer: *mut *mut c_void, bytes: usize) => Function::Alloc;
    /// Frees device memory.
    cudaFree(pointer: *mut c_void) => Function::Free;
    /// The free and all bytes of the current device.
    cudaMemGetInfo(free: *mut usize, total: *mut usize) => Function::MemGetInfo;
}
