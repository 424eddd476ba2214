//! What there is to know about a function or a kernel.

use super::*;

/// `cuKernelGetFunction`, `cuFuncGetModule`, `cuKernelGetLibrary`: what belongs to a function.
fn of_function(to: *mut u64, function: u64, choose: fn(u64, &Function) -> u64) -> Result<(), Code> {
    let found = driver()?
        .modules
        .functions
        .get(function)
        .ok_or(INVALID_HANDLE)?;
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, choose(function, &found)) }
}

/// `cuKernelGetFunction`: itself.
pub unsafe extern "C" fn kernel_function(to: *mut u64, kernel: u64) -> Code {
    code(of_function(to, kernel, |handle, _| handle))
}

/// `cuFuncGetModule` and `cuKernelGetLibrary`.
pub unsafe extern "C" fn code_of(to: *mut u64, function: u64) -> Code {
    code(of_function(to, function, |_, function| function.code))
}

/// `cuFuncGetName` and `cuKernelGetName`.
pub unsafe extern "C" fn name(to: *mut *const c_char, function: u64) -> Code {
    code(driver().and_then(|driver| {
        let functions = driver.modules.functions.lock();
        let function = functions.get(function).ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller of the driver API vouches for its pointer. The name lives as long as
        // the function does.
        unsafe { give(to, function.name.as_ptr()) }
    }))
}

/// `cuFuncGetAttribute`.
pub unsafe extern "C" fn attribute(to: *mut c_int, attribute: c_uint, function: u64) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        let value = match attribute {
            // Threads of a block, registers, and versions of code and machine.
            0 => 1024,
            4 => 32,
            5 | 6 => 90,
            // Dynamic shared memory.
            8 => 48 << 10,
            1..=15 => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, value) }
    }))
}

/// `cuKernelGetAttribute`: the device comes last.
pub unsafe extern "C" fn kernel_attribute(
    to: *mut c_int,
    attribute_of: c_uint,
    kernel: u64,
    _device: c_int,
) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { attribute(to, attribute_of, kernel) }
}

/// Calls on a function that change nothing that could be seen.
pub unsafe extern "C" fn accept(function: u64) -> Code {
    code(driver().and_then(|driver| {
        if driver.modules.has_function(function) {
            Ok(())
        } else {
            Err(INVALID_HANDLE)
        }
    }))
}

/// `cuKernelSetAttribute`: the kernel comes third.
pub unsafe extern "C" fn accept_third(_: c_uint, _: c_int, function: u64) -> Code {
    // SAFETY: looks a handle up.
    unsafe { accept(function) }
}

/// `cuFuncIsLoaded`.
pub unsafe extern "C" fn is_loaded(to: *mut c_uint, function: u64) -> Code {
    const LOADED: c_uint = 1;
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, LOADED) }
    }))
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor` and `...WithFlags`.
pub unsafe extern "C" fn active_blocks(to: *mut c_int, function: u64, block: c_int) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        if !(1..=1024).contains(&block) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, 2048 / block) }
    }))
}

/// `cuOccupancyMaxPotentialBlockSize` and `...WithFlags`.
pub unsafe extern "C" fn potential_block_size(
    grid: *mut c_int,
    block: *mut c_int,
    function: u64,
) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointers.
        unsafe {
            give(
                grid,
                2 * c_int::try_from(crate::device::PROCESSORS).unwrap_or(1),
            )?;
            give(block, 1024)
        }
    }))
}

/// `cuOccupancyAvailableDynamicSMemPerBlock`.
pub unsafe extern "C" fn available_shared(to: *mut usize, function: u64) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, 48 << 10) }
    }))
}
