//! Counting what did not reach user space.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{bindings::BPF_NOEXIST, helpers::bpf_ktime_get_boot_ns};
use gputrace_ebpf::{CLASS_ALLOCATE, CLASS_FREE, LossCause, LossKey, Losses};

use crate::maps::{LOSSES, LOST};

/// Adds to a counter that other CPUs, and other threads on this one, add to as well.
///
/// # Safety
/// `counter` points into a map value.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, n: u64) {
    // SAFETY: aligned, valid and only ever accessed atomically. The old value is not used: that
    // form of the instruction is older (and cheaper) than the one that fetches.
    let _ = unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, n) };
}

/// A lost call: what it was, as far as it is known.
#[derive(Clone, Copy)]
pub struct LostCall {
    /// `CLASS_*`; `CLASS_OTHER` unless the call succeeded.
    pub class: u8,
    pub bytes: u64,
}

/// Counts one loss of the process.
#[inline(never)]
pub fn count(tgid: u32, start_ns: u64, cause: u32, class: u32, bytes: u64) -> u32 {
    if let Some(total) = LOST.get_ptr_mut(cause) {
        // SAFETY: a map value.
        unsafe { add(total, 1) };
    }
    let key = LossKey {
        start_ns,
        tgid,
        padding: 0,
    };
    let row = match LOSSES.get_ptr_mut(key) {
        Some(row) => Some(row),
        None => {
            let _ = LOSSES.insert(key, Losses::default(), u64::from(BPF_NOEXIST));
            LOSSES.get_ptr_mut(key).or_else(|| {
                LOSSES.get_ptr_mut(LossKey {
                    start_ns: 0,
                    tgid: 0,
                    padding: 0,
                })
            })
        }
    };
    let Some(row) = row else { return 0 };
    // SAFETY: no argument is needed.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    // SAFETY: `row` is a map value; `cause` is masked to the array's size, a power of two.
    unsafe {
        if (*row).first_ns == 0 {
            (*row).first_ns = now;
        }
        (*row).last_ns = now;
        let causes = (&raw mut (*row).causes).cast::<u64>();
        add(causes.add((cause & 7) as usize), 1);
        if class == u32::from(CLASS_ALLOCATE) {
            add(&raw mut (*row).allocations, 1);
            add(&raw mut (*row).allocation_bytes, bytes);
        } else if class == u32::from(CLASS_FREE) {
            add(&raw mut (*row).frees, 1);
        }
    }
    0
}

/// Counts one loss of the process.
#[inline(always)]
pub fn lost(tgid: u32, start_ns: u64, cause: LossCause, call: LostCall) {
    count(
        tgid,
        start_ns,
        cause as u32,
        u32::from(call.class),
        call.bytes,
    );
}
