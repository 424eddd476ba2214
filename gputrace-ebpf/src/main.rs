//! The eBPF programs. They filter, copy and submit; meaning is given in user space.
//!
//! Programs of the uprobe kind may be preempted on current kernels, so nothing here keeps a
//! record in per-CPU memory: what belongs to a thread is keyed by the thread, what is shared is
//! counted with atomic adds, and records are built in place in the ring buffer.
#![no_std]
#![no_main]
// The BPF target has no compare-and-swap, and so `core` offers it no atomic add either; the
// instruction exists on every kernel.
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "atomic add, see above")]
#![allow(missing_docs, reason = "the program macros emit undocumented wrappers")]

mod call;
mod loss;
mod maps;
mod offsets;
mod process;
mod ring;
mod task;

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext as _,
    helpers::bpf_get_attach_cookie,
    macros::{raw_tracepoint, uprobe, uretprobe},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};
use seq_macro::seq;

/// Entry of any probed function; the attach cookie is its row in the function table.
#[uprobe]
pub fn call_enter(ctx: ProbeContext) -> u32 {
    // SAFETY: the context is the program's own.
    let function = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    call::enter(&ctx, function as u32);
    0
}

/// Return from any probed function.
#[uretprobe]
pub fn call_return(ctx: RetProbeContext) -> u32 {
    // SAFETY: the context is the program's own.
    let function = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    call::leave(&ctx, function as u32);
    0
}

/// Return from any function that is only counted.
#[uretprobe]
pub fn activity_return(ctx: RetProbeContext) -> u32 {
    // SAFETY: the context is the program's own.
    let function = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    call::count(&ctx, function as u32);
    0
}

/// One body for all copies of the entry program.
#[inline(never)]
fn enter_row(ctx: *mut c_void, row: u32) -> u32 {
    call::enter(&ProbeContext::new(ctx), row);
    0
}

/// One body for all copies of the return program.
#[inline(never)]
fn leave_row(ctx: *mut c_void, row: u32) -> u32 {
    call::leave(&RetProbeContext::new(ctx), row);
    0
}

// Kernels before 5.15 have no attach cookies: there each function gets its own copy of the two
// programs, with its row as a constant. As many as `PROGRAM_COPIES`.
seq!(N in 0..96 {
    /// Entry of the function in this row.
    #[uprobe]
    pub fn call_enter_~N(ctx: ProbeContext) -> u32 {
        enter_row(ctx.as_ptr(), N)
    }

    /// Return from the function in this row.
    #[uretprobe]
    pub fn call_return_~N(ctx: RetProbeContext) -> u32 {
        leave_row(ctx.as_ptr(), N)
    }
});

/// `sched_process_fork(parent task, child task)`; also fires for new threads.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    process::forked(ctx.arg(0), ctx.arg(1));
    0
}

/// `sched_process_exec(task, old pid, binprm)`.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    process::executed(ctx.arg(0), ctx.arg(1));
    0
}

/// `sched_process_exit(task)`: fires for each thread.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    process::thread_exits(ctx.arg(0));
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier accepts no program in which it could be.
    loop {}
}

/// The kernel offers the helpers used here to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
