//! Which pool a device has, and what a pool is set to.

use super::*;

fn give_pool(to: *mut u64, device: c_int, choose: fn(OfDevice) -> u64) -> Result<(), Code> {
    let gpu = device::index(device)?;
    let pool = choose(driver()?.pools.of_device(gpu));
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, pool) }
}

/// `cuDeviceGetDefaultMemPool`.
pub unsafe extern "C" fn default_pool(to: *mut u64, device: c_int) -> Code {
    code(give_pool(to, device, |pools| pools.default))
}

/// `cuDeviceGetMemPool`.
pub unsafe extern "C" fn current_pool(to: *mut u64, device: c_int) -> Code {
    code(give_pool(to, device, |pools| pools.current))
}

/// `cuDeviceSetMemPool`.
pub unsafe extern "C" fn set_pool(device: c_int, pool: u64) -> Code {
    code(device::index(device).and_then(|gpu| {
        let driver = driver()?;
        let of_pool = driver.pools.with(pool, |found| Ok(found.gpu))?;
        if of_pool != gpu {
            return Err(INVALID_VALUE);
        }
        let mut devices = driver
            .pools
            .devices
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        devices[gpu].current = pool;
        Ok(())
    }))
}

/// `cuMemPoolGetAttribute`.
pub unsafe extern "C" fn attribute(pool: u64, attribute: c_uint, to: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        driver.pools.with(pool, |found| {
            let value = match attribute {
                1..=3 => {
                    let value = found.reuse[attribute as usize - 1];
                    // SAFETY: the caller of the driver API vouches for its pointer, to an int.
                    return unsafe { give(to.cast::<c_int>(), value) };
                }
                4 => found.threshold,
                5 => found.reserved(),
                6 => found.reserved_most,
                7 => found.used,
                8 => found.used_most,
                _ => return Err(INVALID_VALUE),
            };
            // SAFETY: as above, to 64 bits.
            unsafe { give(to.cast::<u64>(), value) }
        })
    }))
}

/// `cuMemPoolSetAttribute`.
pub unsafe extern "C" fn set_attribute(pool: u64, attribute: c_uint, from: *const c_void) -> Code {
    code(driver().and_then(|driver| {
        driver.pools.with(pool, |found| {
            if let 1..=3 = attribute {
                // SAFETY: the caller of the driver API vouches for its pointer, to an int.
                found.reuse[attribute as usize - 1] = unsafe { take(from.cast::<c_int>())? };
                return Ok(());
            }
            // SAFETY: as above, to 64 bits.
            let value = unsafe { take(from.cast::<u64>())? };
            match (attribute, value) {
                (4, threshold) => {
                    found.threshold = threshold;
                    found.trim(driver, threshold);
                }
                (6, 0) => found.reserved_most = found.reserved(),
                (8, 0) => found.used_most = found.used,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    }))
}

/// `cuMemPoolSetAccess`.
pub unsafe extern "C" fn set_access(pool: u64, map: *const c_void, count: usize) -> Code {
    code(driver().and_then(|driver| {
        driver.pools.with(pool, |_| {
            if map.is_null() && count > 0 {
                return Err(INVALID_VALUE);
            }
            Ok(())
        })
    }))
}

/// `cuMemPoolGetAccess`.
pub unsafe extern "C" fn access(to: *mut c_uint, pool: u64, location: *const Location) -> Code {
    const READ_AND_WRITE: c_uint = 3;
    code(driver().and_then(|driver| {
        driver.pools.with(pool, |found| {
            // SAFETY: the caller of the driver API vouches for its pointer.
            let location = unsafe { take(location)? };
            let is_own = usize::try_from(location.id) == Ok(found.gpu);
            // SAFETY: as above.
            unsafe { give(to, if is_own { READ_AND_WRITE } else { 0 }) }
        })
    }))
}
