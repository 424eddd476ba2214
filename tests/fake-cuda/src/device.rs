//! `cuDevice*`: what the devices are. A device's number is its ordinal.

use crate::driver::driver;
use crate::result::{Code, INVALID_DEVICE, INVALID_VALUE, code, give};
use gputrace_test_rig::config::Gpu;
use std::ffi::{c_char, c_int};

/// The index of a device that exists.
///
/// # Errors
/// [`INVALID_DEVICE`] if it does not, or what [`driver`] gives.
pub fn index(device: c_int) -> Result<usize, Code> {
    let count = driver()?.client.devices().count();
    usize::try_from(device)
        .ok()
        .filter(|index| *index < count)
        .ok_or(INVALID_DEVICE)
}

fn settings(device: c_int) -> Result<(usize, &'static Gpu), Code> {
    let index = index(device)?;
    Ok((index, &driver()?.client.devices().config().gpu[index]))
}

/// `cuDeviceGetCount`.
pub unsafe extern "C" fn count(count: *mut c_int) -> Code {
    code(driver().and_then(|driver| {
        let devices = driver.client.devices().count();
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(count, c_int::try_from(devices).unwrap_or(c_int::MAX)) }
    }))
}

/// `cuDeviceGet`.
pub unsafe extern "C" fn get(device: *mut c_int, ordinal: c_int) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(index(ordinal).and_then(|_| unsafe { give(device, ordinal) }))
}

/// `cuDeviceGetName`.
pub unsafe extern "C" fn name(name: *mut c_char, length: c_int, device: c_int) -> Code {
    code(settings(device).and_then(|(_, gpu)| {
        let room = usize::try_from(length).unwrap_or(0);
        if name.is_null() || room == 0 {
            return Err(INVALID_VALUE);
        }
        let bytes = &gpu.name.as_bytes()[..gpu.name.len().min(room - 1)];
        // SAFETY: the caller vouches for `length` bytes; these and the terminator are no more.
        unsafe {
            name.cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            name.add(bytes.len()).write(0);
        }
        Ok(())
    }))
}

/// `cuDeviceTotalMem_v2`.
pub unsafe extern "C" fn total_memory(bytes: *mut usize, device: c_int) -> Code {
    code(settings(device).and_then(|(_, gpu)| {
        let total = usize::try_from(gpu.total).unwrap_or(usize::MAX);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(bytes, total) }
    }))
}

/// `cuDeviceGetUuid`.
pub unsafe extern "C" fn uuid(uuid: *mut [u8; 16], device: c_int) -> Code {
    code(settings(device).and_then(|(index, gpu)| {
        let bytes = gpu.uuid_bytes(index).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(uuid, bytes) }
    }))
}
