//! `cuGetProcAddress`: names and versions to the addresses of exported trampolines.
//!
//! As in the real library, the answer always is the address of an exported symbol, `cuInit` need not
//! have been called, and a name with a version suffix of its own is not found.

use crate::exports;
use crate::result::{Code, INVALID_VALUE, NOT_FOUND, SUCCESS, code, give};
use crate::trampoline::Export;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

const FOUND: c_uint = 0;
const SYMBOL_NOT_FOUND: c_uint = 1;
const VERSION_NOT_SUFFICIENT: c_uint = 2;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`. The other flag says what is the case anyway.
const PER_THREAD: u64 = 2;
const FLAGS: u64 = 3;

/// The newest symbol of that name which the version has; where there is one for threads with a
/// default stream of their own, `flags` choose.
fn look_up(name: &[u8], version: c_int, flags: u64) -> Result<&'static Export, c_uint> {
    let mut named = exports::all()
        .filter(|export| export.base.as_bytes() == name)
        .peekable();
    if named.peek().is_none() {
        return Err(SYMBOL_NOT_FOUND);
    }
    let wanted = flags & PER_THREAD != 0;
    named
        .filter(|export| export.since <= version)
        .filter(|export| wanted || !export.is_per_thread())
        .max_by_key(|export| (export.since, export.is_per_thread()))
        .ok_or(VERSION_NOT_SUFFICIENT)
}

/// # Safety
/// `symbol` must be null or a terminated string, `pointer` null or valid for a write.
unsafe fn give_address(
    symbol: *const c_char,
    pointer: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> Result<c_uint, Code> {
    if symbol.is_null() || flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(symbol) };
    let (address, status) = match look_up(name.to_bytes(), version, flags) {
        Ok(export) => ((export.address)(), FOUND),
        Err(status) => (0, status),
    };
    // SAFETY: the caller's promise.
    unsafe { give(pointer, std::ptr::with_exposed_provenance(address))? };
    Ok(status)
}

/// `cuGetProcAddress`: what is not found is an error.
pub unsafe extern "C" fn get(
    symbol: *const c_char,
    pointer: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointers.
    match unsafe { give_address(symbol, pointer, version, flags) } {
        Ok(FOUND) => SUCCESS,
        Ok(_) => NOT_FOUND,
        Err(code) => code,
    }
}

/// `cuGetProcAddress_v2`: what is not found is a status, which may be left out.
pub unsafe extern "C" fn get_v2(
    symbol: *const c_char,
    pointer: *mut *const c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointers.
    let found = match unsafe { give_address(symbol, pointer, version, flags) } {
        Ok(found) => found,
        Err(code) => return code,
    };
    if status.is_null() {
        return SUCCESS;
    }
    // SAFETY: as above.
    code(unsafe { give(status, found) })
}
