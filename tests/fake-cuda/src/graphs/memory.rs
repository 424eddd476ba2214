//! The memory that graphs allocate.

use super::*;

/// `cuDeviceGraphMemTrim`.
pub unsafe extern "C" fn trim(device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        let driver = driver()?;
        driver.graphs.trim(driver, gpu);
        Ok(())
    }))
}

/// `cuDeviceGetGraphMemAttribute`.
pub unsafe extern "C" fn attribute(device: c_int, attribute: c_uint, to: *mut c_void) -> Code {
    code(device::index(device).and_then(|gpu| {
        let pool = driver()?.graphs.memory()[gpu];
        let value = match attribute {
            0 => pool.used,
            1 => pool.used_most,
            2 => pool.reserved,
            3 => pool.reserved_most,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller of the driver API vouches for its pointer, to 64 bits.
        unsafe { give(to.cast::<u64>(), value) }
    }))
}

/// `cuDeviceSetGraphMemAttribute`: takes the two highest values back.
pub unsafe extern "C" fn set_attribute(
    device: c_int,
    attribute: c_uint,
    _from: *const c_void,
) -> Code {
    code(device::index(device).and_then(|gpu| {
        let pool = &mut driver()?.graphs.memory()[gpu];
        match attribute {
            1 => pool.used_most = pool.used,
            3 => pool.reserved_most = pool.reserved,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }))
}
