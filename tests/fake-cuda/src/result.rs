//! The driver API's result codes (`CUresult`), as far as this library gives them.

use std::ffi::{CStr, c_char, c_int};

/// A result code; [`SUCCESS`] is 0.
pub type Code = c_int;

macro_rules! results {
    ($($constant:ident = $code:literal, $name:literal, $text:literal;)*) => {
        $(
            #[allow(dead_code, reason = "some have a name only for `cuGetErrorName`")]
            pub const $constant: Code = $code;
        )*

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
    PROFILER_DISABLED = 5, c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled while using external profiling tool";
    DEVICE_UNAVAILABLE = 46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_IMAGE = 200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    MAP_FAILED = 205, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed";
    UNMAP_FAILED = 206, c"CUDA_ERROR_UNMAP_FAILED", c"unmapping of buffer object failed";
    NO_BINARY_FOR_GPU = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device";
    ECC_UNCORRECTABLE = 214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered";
    PEER_ACCESS_UNSUPPORTED = 217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices";
    FILE_NOT_FOUND = 301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    ILLEGAL_STATE = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", c"cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    NOT_PERMITTED = 800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    SYSTEM_NOT_READY = 802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
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

/// Reads through a caller's pointer.
///
/// # Errors
/// [`INVALID_VALUE`] for a null pointer.
///
/// # Safety
/// A pointer that is not null must be valid for the read.
pub unsafe fn take<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise; C gives no alignment guarantee that we would rely on.
    Ok(unsafe { from.read_unaligned() })
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
