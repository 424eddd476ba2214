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

use aya_ebpf::{
    EbpfContext as _,
    helpers::bpf_get_attach_cookie,
    macros::{raw_tracepoint, uprobe, uretprobe},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};

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

/// Kernels before 5.15 have no attach cookies: there each function gets its own copy of the two
/// programs, with its row as a constant.
macro_rules! copies {
    ($($row:literal $enter:ident $leave:ident)*) => { $(
        #[doc = concat!("Entry of the function in row ", $row, ".")]
        #[uprobe]
        pub fn $enter(ctx: ProbeContext) -> u32 {
            call::enter(&ctx, $row);
            0
        }
        #[doc = concat!("Return from the function in row ", $row, ".")]
        #[uretprobe]
        pub fn $leave(ctx: RetProbeContext) -> u32 {
            call::leave(&ctx, $row);
            0
        }
    )* };
}

copies! {
    0 call_enter_0 call_return_0
    1 call_enter_1 call_return_1
    2 call_enter_2 call_return_2
    3 call_enter_3 call_return_3
    4 call_enter_4 call_return_4
    5 call_enter_5 call_return_5
    6 call_enter_6 call_return_6
    7 call_enter_7 call_return_7
}

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
