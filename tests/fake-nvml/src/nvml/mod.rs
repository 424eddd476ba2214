//! What the library does. Shared by the present-day library and the old one, which differ only in
//! what they export; each defines the `DRIVER_VERSION` that it claims.

pub mod device;
pub mod hostility;
pub mod memory;
pub mod processes;
pub mod system;

use std::ffi::{c_char, c_int, c_uint};

/// A result code (`nvmlReturn_t`).
pub type Code = c_int;

pub const SUCCESS: Code = 0;
pub const UNINITIALIZED: Code = 1;
pub const INVALID_ARGUMENT: Code = 2;
pub const INSUFFICIENT_SIZE: Code = 7;
pub const DRIVER_NOT_LOADED: Code = 9;
pub const ARGUMENT_VERSION_MISMATCH: Code = 25;

/// Makes the exported functions: `symbol(arguments) => implementation`. Each is hostile when told to.
macro_rules! exports {
    ($(
        $(#[$doc:meta])*
        $symbol:ident($($argument:ident: $type:ty),*) => $implementation:path;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As NVML says: pointers must be valid for what it writes.
            #[allow(non_snake_case)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> Code {
                if let Some(code) = $crate::nvml::hostility::strike(stringify!($symbol)) {
                    return code;
                }
                // SAFETY: the caller's promise.
                let result = unsafe { $implementation($($argument),*) };
                result.err().unwrap_or($crate::nvml::SUCCESS)
            }
        )*
    };
}
pub(crate) use exports;

/// Writes through a caller's pointer.
///
/// # Safety
/// A pointer that is not null must be valid for the write.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a terminated text into a caller's buffer.
///
/// # Safety
/// A pointer that is not null must be valid for `length` bytes.
unsafe fn give_text(to: *mut c_char, length: c_uint, text: &str) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller's promise; text and terminator fit.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}
