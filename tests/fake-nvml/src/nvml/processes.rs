//! Which processes hold memory of a device.

use super::device::{Handle, of};
use super::{Code, INSUFFICIENT_SIZE, INVALID_ARGUMENT, give, hostility};
use std::collections::BTreeMap;
use std::ffi::c_uint;

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
pub struct ProcessV1 {
    pid: c_uint,
    /// In bytes.
    used_gpu_memory: u64,
}

/// `nvmlProcessInfo_v2_t`, also of the functions `_v3` since driver 535.
#[repr(C)]
pub struct Process {
    pid: c_uint,
    /// In bytes.
    used_gpu_memory: u64,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

const _: () = assert!(size_of::<ProcessV1>() == 16 && size_of::<Process>() == 24);

/// There are no GPU instances.
const NO_INSTANCE: c_uint = c_uint::MAX;

impl From<(u32, u64)> for ProcessV1 {
    fn from((pid, used_gpu_memory): (u32, u64)) -> Self {
        Self {
            pid,
            used_gpu_memory,
        }
    }
}

impl From<(u32, u64)> for Process {
    fn from((pid, used_gpu_memory): (u32, u64)) -> Self {
        Self {
            pid,
            used_gpu_memory,
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
        }
    }
}

/// Bytes by the process that opened the device for them, in the order of process IDs.
fn holders(device: Handle) -> Result<Vec<(u32, u64)>, Code> {
    let (devices, index) = of(device)?;
    if hostility::nonsense() {
        let total = devices.config().gpu[index].total;
        return Ok(vec![
            (0, total * 2),
            (c_uint::MAX, u64::MAX - 1),
            (1, u64::MAX),
            (1, 1),
            (1, total),
        ]);
    }
    let mut processes = BTreeMap::new();
    for holder in devices.holders(index) {
        *processes.entry(holder.tgid).or_default() +=
            holder.context_bytes + holder.allocation_bytes;
    }
    if hostility::hide_dead() {
        processes.retain(|tgid, _| std::path::Path::new(&format!("/proc/{tgid}")).exists());
    }
    Ok(processes.into_iter().collect())
}

/// Fills a caller's array, whose length comes in and whose use goes out through `count`.
///
/// # Safety
/// `count` must be null or valid, `infos` null or valid for as many writes as `count` says.
unsafe fn fill<T: From<(u32, u64)>>(
    list: Vec<(u32, u64)>,
    count: *mut c_uint,
    infos: *mut T,
) -> Result<(), Code> {
    /// More than any machine has processes, and yet an array that could be allocated.
    const ABSURD: c_uint = 40_000_000;
    // SAFETY: the caller's promise.
    let Some(room) = (unsafe { count.as_ref() }).copied() else {
        return Err(INVALID_ARGUMENT);
    };
    let nonsense = hostility::nonsense();
    let there = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
    if there > room {
        // SAFETY: the caller's promise.
        unsafe { give(count, if nonsense { ABSURD } else { there })? };
        return Err(INSUFFICIENT_SIZE);
    }
    if there > 0 && infos.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    for (place, process) in list.into_iter().enumerate() {
        // SAFETY: the caller's promise, and there is room.
        unsafe { infos.add(place).write(T::from(process)) };
    }
    // SAFETY: the caller's promise.
    unsafe { give(count, if nonsense { c_uint::MAX } else { there }) }
}

/// `nvmlDeviceGetComputeRunningProcesses`
///
/// # Safety
/// `count` must be null or valid, `infos` null or valid for as many writes as `count` says.
pub unsafe fn compute_v1(
    device: Handle,
    count: *mut c_uint,
    infos: *mut ProcessV1,
) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    unsafe { fill(holders(device)?, count, infos) }
}

/// `nvmlDeviceGetComputeRunningProcesses_v2` and `_v3`
///
/// # Safety
/// As [`compute_v1`].
pub unsafe fn compute(device: Handle, count: *mut c_uint, infos: *mut Process) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    unsafe { fill(holders(device)?, count, infos) }
}

/// Graphics and MPS processes, of which there are none.
///
/// # Safety
/// As [`compute_v1`].
pub unsafe fn none_v1(
    device: Handle,
    count: *mut c_uint,
    infos: *mut ProcessV1,
) -> Result<(), Code> {
    of(device)?;
    // SAFETY: the caller's promise.
    unsafe { fill(Vec::new(), count, infos) }
}

/// Graphics and MPS processes, of which there are none.
///
/// # Safety
/// As [`compute_v1`].
pub unsafe fn none(device: Handle, count: *mut c_uint, infos: *mut Process) -> Result<(), Code> {
    of(device)?;
    // SAFETY: the caller's promise.
    unsafe { fill(Vec::new(), count, infos) }
}
