//! How much memory a device has, and how much is used.

use super::device::{Handle, of};
use super::{ARGUMENT_VERSION_MISMATCH, Code, INVALID_ARGUMENT, give, hostility};
use std::ffi::c_uint;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`, in bytes.
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

const _: () = assert!(size_of::<MemoryV2>() == 40);

/// The size in the lower bits, 2 in the highest byte.
const VERSION_2: c_uint = 40 | 2 << 24;

fn figures(device: Handle) -> Result<MemoryV2, Code> {
    let (devices, index) = of(device)?;
    let gpu = &devices.config().gpu[index];
    let used = devices.used(index);
    if hostility::nonsense() {
        return Ok(MemoryV2 {
            version: VERSION_2,
            total: gpu.total,
            reserved: u64::MAX,
            free: gpu.total * 3,
            used: gpu.total * 2,
        });
    }
    Ok(MemoryV2 {
        version: VERSION_2,
        total: gpu.total,
        reserved: gpu.reserved,
        free: gpu.total - gpu.reserved - used,
        used,
    })
}

/// `nvmlDeviceGetMemoryInfo`: what the driver reserves counts as used.
///
/// # Safety
/// `to` must be null or valid for a write.
pub unsafe fn info(device: Handle, to: *mut Memory) -> Result<(), Code> {
    let figures = figures(device)?;
    let memory = Memory {
        total: figures.total,
        free: figures.free,
        used: figures.used.saturating_add(figures.reserved),
    };
    // SAFETY: the caller's promise.
    unsafe { give(to, memory) }
}

/// `nvmlDeviceGetMemoryInfo_v2`
///
/// # Safety
/// `to` must be null or valid for a read and a write.
#[allow(dead_code, reason = "the old library does not export it")]
pub unsafe fn info_v2(device: Handle, to: *mut MemoryV2) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    let Some(asked) = (unsafe { to.as_ref() }) else {
        return Err(INVALID_ARGUMENT);
    };
    if asked.version != VERSION_2 {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    // SAFETY: the caller's promise.
    unsafe { give(to, figures(device)?) }
}
