//! What a device is.

use super::{Code, INVALID_ARGUMENT, give, give_text};
use crate::nvml::system::devices;
use gputrace_test_rig::device::Devices;
use std::ffi::{c_char, c_uint};
use std::sync::Arc;

/// An `nvmlDevice_t`: opaque, made of the index.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Handle(usize);

const FIRST: usize = 0x10_0000;
const STRIDE: usize = 0x1000;

/// The devices and the index of this one.
///
/// # Errors
/// [`INVALID_ARGUMENT`] if the handle is none, [`UNINITIALIZED`](super::UNINITIALIZED)
pub fn of(handle: Handle) -> Result<(Arc<Devices>, usize), Code> {
    let devices = devices()?;
    let offset = handle.0.wrapping_sub(FIRST);
    let index = offset / STRIDE;
    if !offset.is_multiple_of(STRIDE) || index >= devices.count() {
        return Err(INVALID_ARGUMENT);
    }
    Ok((devices, index))
}

fn number(value: usize) -> c_uint {
    c_uint::try_from(value).unwrap_or(c_uint::MAX)
}

/// `nvmlDeviceGetCount_v2`
///
/// # Safety
/// `to` must be null or valid for a write.
pub unsafe fn count(to: *mut c_uint) -> Result<(), Code> {
    let count = devices()?.count();
    // SAFETY: the caller's promise.
    unsafe { give(to, number(count)) }
}

/// `nvmlDeviceGetHandleByIndex_v2`
///
/// # Safety
/// `to` must be null or valid for a write.
pub unsafe fn by_index(index: c_uint, to: *mut Handle) -> Result<(), Code> {
    let index = index as usize;
    if index >= devices()?.count() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's promise.
    unsafe { give(to, Handle(FIRST + index * STRIDE)) }
}

/// `nvmlDeviceGetName`
///
/// # Safety
/// `text` must be null or valid for `length` bytes.
pub unsafe fn name(device: Handle, text: *mut c_char, length: c_uint) -> Result<(), Code> {
    let (devices, index) = of(device)?;
    // SAFETY: the caller's promise.
    unsafe { give_text(text, length, &devices.config().gpu[index].name) }
}

/// `nvmlDeviceGetUUID`
///
/// # Safety
/// `text` must be null or valid for `length` bytes.
pub unsafe fn uuid(device: Handle, text: *mut c_char, length: c_uint) -> Result<(), Code> {
    let (devices, index) = of(device)?;
    // SAFETY: the caller's promise.
    unsafe { give_text(text, length, &devices.config().gpu[index].uuid(index)) }
}

/// `nvmlDeviceGetMinorNumber`
///
/// # Safety
/// `to` must be null or valid for a write.
pub unsafe fn minor_number(device: Handle, to: *mut c_uint) -> Result<(), Code> {
    let (_, index) = of(device)?;
    // SAFETY: the caller's promise.
    unsafe { give(to, number(index)) }
}

/// `nvmlPciInfo_t`
#[repr(C)]
pub struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

/// The bus of the first device; each has one of its own.
const FIRST_BUS: c_uint = 0x10;

/// `nvmlDeviceGetPciInfo_v3`
///
/// # Safety
/// `to` must be null or valid for a write.
pub unsafe fn pci_info(device: Handle, to: *mut PciInfo) -> Result<(), Code> {
    let (_, index) = of(device)?;
    let bus = FIRST_BUS + number(index);
    let info = PciInfo {
        bus_id_legacy: padded(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pci_device_id: 0x2330_10de,
        pci_subsystem_id: 0x16c1_10de,
        bus_id: padded(&format!("00000000:{bus:02X}:00.0")),
    };
    // SAFETY: the caller's promise.
    unsafe { give(to, info) }
}

/// A text that is shorter than its field, followed by zeros.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from;
    }
    bytes
}
