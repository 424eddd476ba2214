//! Reads of kernel structs through offsets found by the loader.

use aya_ebpf::helpers::bpf_probe_read_kernel;

use crate::offsets::{TASK_GROUP_LEADER, TASK_START_BOOTTIME, TASK_TGID};

/// A kernel address: of a `task_struct` or another struct.
pub type Kernel = *const u8;

#[inline(always)]
pub fn read_u32(base: Kernel, offset: u32) -> u32 {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<u32>()) }.unwrap_or(0)
}

#[inline(always)]
pub fn read_u64(base: Kernel, offset: u32) -> u64 {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<u64>()) }.unwrap_or(0)
}

#[inline(always)]
pub fn read_pointer(base: Kernel, offset: u32) -> Kernel {
    read_u64(base, offset) as Kernel
}

#[inline(always)]
pub fn tgid(task: Kernel) -> u32 {
    read_u32(task, TASK_TGID.load())
}

/// When the process of `task` started, in `CLOCK_BOOTTIME` nanoseconds: the leader's start.
#[inline(always)]
pub fn process_start(task: Kernel) -> u64 {
    let leader = read_pointer(task, TASK_GROUP_LEADER.load());
    read_u64(leader, TASK_START_BOOTTIME.load())
}
