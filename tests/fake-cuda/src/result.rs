//! The driver API's result codes (`CUresult`), as far as this library gives them.

use std::ffi::{CStr, c_char, c_int};

/// A result code; [`SUCCESS`] is 0.
pub type Code = c_int;

macro_rules! results {
    ($($constant:ident = $code:literal, $name:literal, $text:literal;)*) => {
        $(pub const $constant: Code = $code;)*

        fn describe(code: Code) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                $($code => Some(($name, $text)),)*
                _ => None,
            }
        }
    };
}

results! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    DEINITIALIZED = 4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
}

/// A result as the code that goes out.
pub fn code(result: Result<(), Code>) -> Code {
    match result {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// Writes through a caller's pointer.
///
/// # Errors
/// [`INVALID_VALUE`] for a null pointer.
///
/// # Safety
/// A pointer that is not null must be valid for the write.
pub unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise; C gives no alignment guarantee that we would rely on.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// `cuGetErrorName`.
pub unsafe extern "C" fn error_name(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give_text(describe(error).map(|texts| texts.0), text) }
}

/// `cuGetErrorString`.
pub unsafe extern "C" fn error_string(error: Code, text: *mut *const c_char) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give_text(describe(error).map(|texts| texts.1), text) }
}

/// # Safety
/// As for [`give`].
unsafe fn give_text(found: Option<&'static CStr>, to: *mut *const c_char) -> Code {
    let text = found.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the caller's promise.
    match unsafe { give(to, text) } {
        Ok(()) if found.is_none() => INVALID_VALUE,
        other => code(other),
    }
}
