//! What uses memory rather than takes it: launches, copies, settings. Nothing is computed and nothing
//! is copied, since there is no device; the calls only look at their arguments.

use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{self, Family, strike};
use crate::result::{Code, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, code, take};
use crate::streams;
use std::ffi::{c_int, c_uint, c_void};

/// What every launch has to pass.
pub fn launching(driver: &Driver) -> Result<(), Code> {
    strike(Family::Launch)?;
    let gpu = driver.contexts.gpu(current::context()?);
    let needs = faults::launch_needs();
    if needs > 0 {
        let devices = driver.client.devices();
        if devices.capacity(gpu) - devices.used(gpu) < needs {
            return Err(OUT_OF_MEMORY);
        }
    }
    Ok(())
}

fn launched(function: u64, sizes: [c_uint; 6], stream: u64) -> Result<(), Code> {
    let driver = driver()?;
    launching(driver)?;
    if !driver.modules.has_function(function) {
        return Err(INVALID_HANDLE);
    }
    streams::check(driver, stream)?;
    if sizes.contains(&0) {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// `cuLaunchKernel`, and `cuLaunchCooperativeKernel`, which has one argument less at the end.
pub unsafe extern "C" fn launch(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared: c_uint,
    stream: u64,
) -> Code {
    let sizes = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
    code(launched(function, sizes, stream))
}

/// `CUlaunchConfig`, as far as it is looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    sizes: [c_uint; 6],
    shared: c_uint,
    stream: u64,
}

/// `cuLaunchKernelEx`.
pub unsafe extern "C" fn launch_config(config: *const Config, function: u64) -> Code {
    code(driver().and_then(|_| {
        // SAFETY: the caller of the driver API vouches for its pointer.
        let config = unsafe { take(config)? };
        launched(function, config.sizes, config.stream)
    }))
}

/// `cuLaunch`, of the first API.
pub unsafe extern "C" fn launch_one(function: u64) -> Code {
    code(launched(function, [1; 6], 0))
}

/// `cuLaunchGrid` and `cuLaunchGridAsync`, of the first API.
pub unsafe extern "C" fn launch_grid(function: u64, width: c_int, height: c_int) -> Code {
    let size = |value: c_int| c_uint::try_from(value).unwrap_or(0);
    code(launched(
        function,
        [size(width), size(height), 1, 1, 1, 1],
        0,
    ))
}

fn copying() -> Result<(), Code> {
    driver()?;
    strike(Family::Copy)?;
    current::context().map(drop)
}

/// Copies that begin with two addresses and the number of bytes.
pub unsafe extern "C" fn copy(to: u64, from: u64, bytes: usize) -> Code {
    code(copying().and_then(|()| {
        if bytes > 0 && (to == 0 || from == 0) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }))
}

/// Copies that begin with a pointer to their description, and whatever begins with an address that
/// may not be null: setting memory, prefetching it.
pub unsafe extern "C" fn copy_at(first: *const c_void) -> Code {
    code(copying().and_then(|()| {
        if first.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }))
}

/// Copies of whose arguments nothing is looked at.
pub unsafe extern "C" fn copy_any() -> Code {
    code(copying())
}

/// Advice about memory, which may be ignored.
pub unsafe extern "C" fn advise(address: u64) -> Code {
    code(driver().and_then(|_| {
        if address == 0 {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }))
}

/// Calls that only need an initialised driver, and change nothing that could be seen.
pub unsafe extern "C" fn accept() -> Code {
    code(driver().map(drop))
}

/// Calls for what there is none of here.
pub unsafe extern "C" fn not_supported() -> Code {
    code(driver().and(Err(crate::result::NOT_SUPPORTED)))
}

/// `cuGetExportTable`: there are none.
pub unsafe extern "C" fn no_table() -> Code {
    INVALID_VALUE
}
