//! The functions that allocate and free by device pointers.

use super::{Block, Origin};
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::result::{Code, INVALID_VALUE, code, give};
use crate::{pools, streams};
use std::ffi::c_uint;

/// Rows of pitched memory begin at multiples of it.
const PITCH: u64 = 512;

/// `CU_MEM_ATTACH_GLOBAL`, `_HOST`, and what may not be the only one, `_SINGLE`.
const ATTACH_FLAGS: [c_uint; 2] = [1, 2];

/// Allocates and gives the address; takes it back if the caller's pointer is of no use.
fn allocated<T>(
    to: *mut T,
    allocate: impl FnOnce(&'static Driver) -> Result<T, Code>,
) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Alloc)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let address = allocate(driver)?;
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, address) }
}

/// Addresses of the low zone have 32 bits.
fn low(address: u64) -> u32 {
    u32::try_from(address).unwrap_or(0)
}

/// `cuMemAlloc_v2`.
pub unsafe extern "C" fn alloc(to: *mut u64, bytes: usize) -> Code {
    code(allocated(to, |driver| {
        driver.allocate(bytes as u64, Origin::Device, false)
    }))
}

/// `cuMemAlloc`, of the 32-bit API.
pub unsafe extern "C" fn alloc_v1(to: *mut u32, bytes: c_uint) -> Code {
    code(allocated(to, |driver| {
        driver
            .allocate(u64::from(bytes), Origin::Device, true)
            .map(low)
    }))
}

fn pitched(width: u64, height: u64, element: c_uint) -> Result<(u64, u64), Code> {
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(INVALID_VALUE);
    }
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
    Ok((pitch, pitch.checked_mul(height).ok_or(INVALID_VALUE)?))
}

/// `cuMemAllocPitch_v2`.
pub unsafe extern "C" fn alloc_pitch(
    to: *mut u64,
    pitch_to: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    code(allocated(to, |driver| {
        let (pitch, bytes) = pitched(width as u64, height as u64, element)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(pitch_to, usize::try_from(pitch).unwrap_or(usize::MAX))? };
        driver.allocate(bytes, Origin::Device, false)
    }))
}

/// `cuMemAllocPitch`, of the 32-bit API.
pub unsafe extern "C" fn alloc_pitch_v1(
    to: *mut u32,
    pitch_to: *mut u32,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> Code {
    code(allocated(to, |driver| {
        let (pitch, bytes) = pitched(u64::from(width), u64::from(height), element)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(pitch_to, low(pitch))? };
        driver.allocate(bytes, Origin::Device, true).map(low)
    }))
}

/// `cuMemAllocManaged`.
pub unsafe extern "C" fn alloc_managed(to: *mut u64, bytes: usize, flags: c_uint) -> Code {
    code(allocated(to, |driver| {
        if !ATTACH_FLAGS.contains(&flags) {
            return Err(INVALID_VALUE);
        }
        driver.allocate(bytes as u64, Origin::Managed, false)
    }))
}

/// `cuMemAllocAsync`: from the pool that the stream's device has at the moment.
pub unsafe extern "C" fn alloc_async(to: *mut u64, bytes: usize, stream: u64) -> Code {
    code(allocated(to, |driver| {
        streams::check(driver, stream)?;
        let gpu = driver.contexts.gpu(current::context()?);
        pools::allocate(driver, driver.pools.current(gpu), bytes as u64)
    }))
}

/// `cuMemAllocFromPoolAsync`.
pub unsafe extern "C" fn alloc_from_pool(
    to: *mut u64,
    bytes: usize,
    pool: u64,
    stream: u64,
) -> Code {
    code(allocated(to, |driver| {
        streams::check(driver, stream)?;
        current::context()?;
        pools::allocate(driver, pool, bytes as u64)
    }))
}

fn freed(address: u64, condition: impl FnOnce(&Block) -> bool) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Free)?;
    current::context()?;
    if address == 0 {
        return Ok(());
    }
    match driver.release_at(address, condition) {
        // What is mapped of external memory is freed as other memory is.
        Err(INVALID_VALUE) if driver.ipc.free_buffer(driver, address) => Ok(()),
        other => other,
    }
}

/// `cuMemFree_v2`. Freeing null does nothing and succeeds.
pub unsafe extern "C" fn free(address: u64) -> Code {
    code(freed(address, |_| true))
}

/// `cuMemFree`, of the 32-bit API.
pub unsafe extern "C" fn free_v1(address: u32) -> Code {
    code(freed(u64::from(address), |_| true))
}

/// `cuMemFreeAsync`: of what came from a pool or a graph.
pub unsafe extern "C" fn free_async(address: u64, stream: u64) -> Code {
    code(driver().and_then(|driver| {
        streams::check(driver, stream)?;
        freed(address, |block| {
            matches!(
                block.origin,
                Origin::Pool(_) | Origin::Imported(_) | Origin::Graph
            )
        })
    }))
}

/// The free and all bytes of the current context's device.
fn room() -> Result<(u64, u64), Code> {
    let driver = driver()?;
    let gpu = driver.contexts.gpu(current::context()?);
    let devices = driver.client.devices();
    let left = devices.capacity(gpu) - devices.used(gpu);
    Ok((left, devices.config().gpu[gpu].total))
}

/// `cuMemGetInfo_v2`.
pub unsafe extern "C" fn info(free: *mut usize, total: *mut usize) -> Code {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: the caller of the driver API vouches for its pointers.
    code(room().and_then(|(left, all)| unsafe {
        give(free, size(left))?;
        give(total, size(all))
    }))
}

/// `cuMemGetInfo`, of the 32-bit API: what does not fit is the most that does.
pub unsafe extern "C" fn info_v1(free: *mut u32, total: *mut u32) -> Code {
    let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    // SAFETY: the caller of the driver API vouches for its pointers.
    code(room().and_then(|(left, all)| unsafe {
        give(free, size(left))?;
        give(total, size(all))
    }))
}

/// The range of memory, of whatever kind, in which an address lies.
pub fn range(driver: &Driver, address: u64) -> Result<(u64, u64), Code> {
    if let Some((base, block)) = driver.memory.around(address) {
        return Ok((base, block.bytes));
    }
    driver
        .vmm
        .mapping_around(address)
        .or_else(|| driver.ipc.around(address))
        .or_else(|| driver.host.around(address))
        .ok_or(INVALID_VALUE)
}

/// `cuMemGetAddressRange_v2`; either pointer may be null.
pub unsafe extern "C" fn address_range(base: *mut u64, size: *mut usize, address: u64) -> Code {
    code(driver().and_then(|driver| {
        let (first, bytes) = range(driver, address)?;
        if !base.is_null() {
            // SAFETY: the caller of the driver API vouches for its pointer.
            unsafe { give(base, first)? };
        }
        if !size.is_null() {
            // SAFETY: as above.
            unsafe { give(size, usize::try_from(bytes).unwrap_or(usize::MAX))? };
        }
        Ok(())
    }))
}
