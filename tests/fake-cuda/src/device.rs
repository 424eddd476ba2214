//! `cuDevice*`: what the devices are. A device's number is its ordinal.

use crate::driver::driver;
use crate::result::{Code, INVALID_DEVICE, INVALID_VALUE, code, give};
use gputrace_test_rig::config::Gpu;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// Multiprocessors of each device, as many as an H100 has.
pub const PROCESSORS: c_uint = 132;

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
        // SAFETY: the caller vouches for `length` bytes.
        unsafe { give_string(name, length, &gpu.name) }
    }))
}

/// Writes as much of a text as fits, and ends it.
///
/// # Safety
/// `to` must be null or valid for `length` bytes.
unsafe fn give_string(to: *mut c_char, length: c_int, text: &str) -> Result<(), Code> {
    let room = usize::try_from(length).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the caller's promise; these and the terminator are no more.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        to.add(bytes.len()).write(0);
    }
    Ok(())
}

/// `cuDeviceTotalMem_v2`.
pub unsafe extern "C" fn total_memory(bytes: *mut usize, device: c_int) -> Code {
    code(settings(device).and_then(|(_, gpu)| {
        let total = usize::try_from(gpu.total).unwrap_or(usize::MAX);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(bytes, total) }
    }))
}

/// `cuDeviceTotalMem`, of the 32-bit API: what does not fit is the most that does.
pub unsafe extern "C" fn total_memory_v1(bytes: *mut c_uint, device: c_int) -> Code {
    code(settings(device).and_then(|(_, gpu)| {
        let total = c_uint::try_from(gpu.total).unwrap_or(c_uint::MAX);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(bytes, total) }
    }))
}

/// Number of the PCI bus of the first device; the others follow.
pub const FIRST_BUS: usize = 0x41;

/// `cuDeviceGetPCIBusId`.
pub unsafe extern "C" fn pci_bus_id(to: *mut c_char, length: c_int, device: c_int) -> Code {
    code(index(device).and_then(|index| {
        let id = format!("0000:{:02X}:00.0", FIRST_BUS + index);
        // SAFETY: the caller vouches for `length` bytes.
        unsafe { give_string(to, length, &id) }
    }))
}

/// `cuDeviceGetByPCIBusId`.
pub unsafe extern "C" fn by_pci_bus_id(to: *mut c_int, id: *const c_char) -> Code {
    code(driver().and_then(|driver| {
        if id.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its string.
        let id = unsafe { CStr::from_ptr(id) }.to_string_lossy();
        let bus = id.rsplit(':').nth(1).unwrap_or_default();
        let device = usize::from_str_radix(bus, 16)
            .ok()
            .and_then(|bus| bus.checked_sub(FIRST_BUS))
            .filter(|index| *index < driver.client.devices().count())
            .ok_or(INVALID_DEVICE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, c_int::try_from(device).unwrap_or(c_int::MAX)) }
    }))
}

/// `cuDeviceCanAccessPeer`: each other one's.
pub unsafe extern "C" fn can_access_peer(to: *mut c_int, device: c_int, peer: c_int) -> Code {
    code(index(device).and_then(|device| {
        let can = index(peer)? != device;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, c_int::from(can)) }
    }))
}

/// `cuDeviceGetP2PAttribute`: access and atomics are supported, all at the same rank.
pub unsafe extern "C" fn peer_attribute(
    to: *mut c_int,
    attribute: c_uint,
    device: c_int,
    peer: c_int,
) -> Code {
    code(index(device).and_then(|device| {
        if index(peer)? == device || !(1..=4).contains(&attribute) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, c_int::from(attribute > 1)) }
    }))
}

/// `cuDeviceGetUuid` and `_v2`.
pub unsafe extern "C" fn uuid(uuid: *mut [u8; 16], device: c_int) -> Code {
    code(settings(device).and_then(|(index, gpu)| {
        let bytes = gpu.uuid_bytes(index).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(uuid, bytes) }
    }))
}
