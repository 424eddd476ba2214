//! Entry and return of probed functions, paired by thread, stack pointer and function.

use aya_ebpf::{
    bindings::{BPF_F_USER_STACK, BPF_NOEXIST},
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns,
        bpf_probe_read_user,
    },
    maps::ring_buf::RingBufEntry,
    programs::{ProbeContext, RetProbeContext, tracing::StackIdContext},
};
use gputrace_ebpf::{
    ACTIVITIES, CALL_INPUT_UNREADABLE, CALL_NEVER_RETURNED, CALL_OUT0_UNREADABLE,
    CALL_OUT1_UNREADABLE, CLASS_ALLOCATE, CLASS_LAUNCH, CLASS_OTHER, CallRecord, FunctionSpec,
    INPUT_ARRAY_2D, INPUT_ARRAY_3D, INPUT_DIGEST, INPUT_LOCATION, INPUT_NONE, KIND_CALL, LossCause,
    NO_ARG, NO_FUNCTION, OUT_DIGEST, ProcessState, digest,
};

use crate::{
    loss::{LostCall, add, lost},
    maps::{FUNCTIONS, Frame, MAX_NESTING, NEW_THREAD, STACKS, THREADS, Thread},
    offsets::WANT_STACKS,
    process, ring,
};

const UNKNOWN: LostCall = LostCall {
    class: CLASS_OTHER,
    bytes: 0,
};
/// No stack was asked for.
const NO_STACK: i32 = -1;

#[inline(always)]
fn stack_pointer(regs: *const aya_ebpf::bindings::pt_regs) -> u64 {
    #[cfg(bpf_target_arch = "aarch64")]
    // SAFETY: the context's registers.
    return unsafe { (*regs).sp };
    #[cfg(not(bpf_target_arch = "aarch64"))]
    // SAFETY: the context's registers.
    return unsafe { (*regs).rsp };
}

/// The thread's state, made at its first probed call.
#[inline(always)]
fn thread(id: u64) -> Option<*mut Thread> {
    if let Some(thread) = THREADS.get_ptr_mut(id) {
        return Some(thread);
    }
    let _ = THREADS.insert(id, NEW_THREAD.get(0)?, u64::from(BPF_NOEXIST));
    THREADS.get_ptr_mut(id)
}

/// The frame at `index`, which is masked so that the verifier knows that it is in bounds.
#[inline(always)]
fn frame(thread: *mut Thread, index: u64) -> *mut Frame {
    // SAFETY: within the array.
    unsafe {
        (&raw mut (*thread).frames)
            .cast::<Frame>()
            .add(index as usize & (MAX_NESTING - 1))
    }
}

/// Drops frames that cannot return any more: the stack has been unwound past them.
#[inline(always)]
fn live_depth(thread: *mut Thread, sp: u64) -> u64 {
    // SAFETY: a map value of this thread only.
    let mut depth = unsafe { (*thread).depth };
    for _ in 0..MAX_NESTING {
        // SAFETY: as above.
        if depth == 0 || unsafe { (*frame(thread, depth - 1)).sp } > sp {
            break;
        }
        depth -= 1;
    }
    depth
}

/// Takes the user stack.
#[inline(always)]
fn stack_of(ctx: &impl StackIdContext, tgid: u32) -> i32 {
    match ctx.get_stackid(&STACKS, u64::from(BPF_F_USER_STACK)) {
        Ok(id) => id as i32,
        Err(error) => {
            // A stack that cannot be walked is none; one that found no place is a loss.
            const EFAULT: i32 = -14;
            if error != EFAULT {
                lose_entry(tgid, LossCause::StackLost as u32);
            }
            error
        }
    }
}

/// Keeps what the return needs.
#[inline(always)]
pub fn enter(ctx: &ProbeContext, function: u32) {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if !process::is_traced(tgid) {
        return;
    }
    let Some(spec) = FUNCTIONS.get(function) else {
        return;
    };
    let Some(thread) = thread(id) else {
        lose_entry(tgid, LossCause::ThreadTableFull as u32);
        return;
    };
    let sp = stack_pointer(ctx.regs);
    let depth = live_depth(thread, sp);
    if depth >= MAX_NESTING as u64 {
        lose_entry(tgid, LossCause::NestedTooDeep as u32);
        return;
    }
    let stack_id = if spec.stack != 0 && WANT_STACKS.load() != 0 {
        stack_of(ctx, tgid)
    } else {
        NO_STACK
    };
    let frame = frame(thread, depth);
    // SAFETY: a map value of this thread only.
    unsafe {
        (*frame).sp = sp;
        (*frame).args = [
            ctx.arg(0).unwrap_or(0),
            ctx.arg(1).unwrap_or(0),
            ctx.arg(2).unwrap_or(0),
            ctx.arg(3).unwrap_or(0),
            ctx.arg(4).unwrap_or(0),
            ctx.arg(5).unwrap_or(0),
        ];
        (*frame).flags = 0;
        (*frame).return_address = return_address(ctx, sp);
        (*frame).stack_id = stack_id;
        (*frame).function = function;
        (*thread).depth = depth + 1;
    }
    if spec.input != INPUT_NONE {
        read_input(frame, u32::from(spec.input), u32::from(spec.input_arg), sp);
    }
    // Last: what the probe itself takes is not part of the call.
    // SAFETY: as above.
    unsafe { (*frame).enter_ns = bpf_ktime_get_boot_ns() };
}

#[inline(always)]
fn return_address(ctx: &ProbeContext, sp: u64) -> u64 {
    #[cfg(bpf_target_arch = "aarch64")]
    // SAFETY: the context's registers; the link register holds it at entry.
    return unsafe { (*ctx.regs).regs[30] };
    #[cfg(not(bpf_target_arch = "aarch64"))]
    {
        let _ = ctx;
        // SAFETY: the helper checks the address. The probe sits before any push.
        unsafe { bpf_probe_read_user(sp as *const u64) }.unwrap_or(0)
    }
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of cuda.h, without its padding.
#[repr(C)]
#[derive(Clone, Copy)]
struct Array3d {
    extent: [u64; 3],
    format_and_channels: u64,
    flags: u32,
}

/// Reads what the function's input points at into the arguments.
#[inline(never)]
fn read_input(frame: *mut Frame, input: u32, arg: u32, sp: u64) -> u32 {
    // SAFETY: a map value of this thread only; indices are constants or masked into the first four;
    // the helpers check user addresses.
    let read = unsafe {
        let args = (&raw mut (*frame).args).cast::<u64>();
        match input as u8 {
            INPUT_LOCATION => {
                const LOCATION: u64 = 8;
                let slot = args.add(arg as usize & 3);
                bpf_probe_read_user((*slot).wrapping_add(LOCATION) as *const u64)
                    .map(|word| *slot = word)
            }
            INPUT_ARRAY_2D => bpf_probe_read_user((*args.add(1)) as *const [u64; 3]).map(|it| {
                *args.add(1) = it[0];
                *args.add(2) = it[1];
                *args.add(3) = 0;
                *args.add(4) = it[2];
            }),
            INPUT_ARRAY_3D => bpf_probe_read_user((*args.add(1)) as *const Array3d).map(|it| {
                *args.add(5) = *args.add(2);
                *args.add(1) = it.extent[0];
                *args.add(2) = it.extent[1];
                *args.add(3) = it.extent[2];
                *args.add(4) = it.format_and_channels | u64::from(it.flags) << 40;
            }),
            INPUT_DIGEST => read_digest(by_value(args, sp)).map(|it| *args.add(2) = it),
            _ => Ok(()),
        }
    };
    if read.is_err() {
        // SAFETY: as above.
        unsafe { (*frame).flags |= u64::from(CALL_INPUT_UNREADABLE) };
    }
    0
}

/// Where a structure of 64 bytes lies that is passed by value as the second argument.
///
/// # Safety
/// `args` points at the six arguments.
#[inline(always)]
unsafe fn by_value(args: *const u64, sp: u64) -> u64 {
    #[cfg(bpf_target_arch = "aarch64")]
    // SAFETY: promised by the caller. A pointer to a copy is passed.
    return unsafe { *args.add(1) };
    #[cfg(not(bpf_target_arch = "aarch64"))]
    {
        let _ = args;
        // On the stack, above the return address.
        sp.wrapping_add(8)
    }
}

/// Digest of 64 bytes of user memory.
#[inline(always)]
fn read_digest(address: u64) -> Result<u64, i32> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(address as *const [u64; 8]) }.map(|words| digest(&words))
}

#[inline(never)]
fn lose_entry(tgid: u32, cause: u32) -> u32 {
    let start_ns = match process::current(tgid) {
        // SAFETY: a map value.
        Some(process) => unsafe { (*process).start_ns },
        None => crate::task::process_start(process::current_task()),
    };
    crate::loss::count(tgid, start_ns, cause, u32::from(CLASS_OTHER), 0)
}

/// Reads an out-pointer of a call that succeeded.
#[inline(always)]
fn read_out(frame: *const Frame, arg: u8, unreadable: u32, flags: &mut u32) -> u64 {
    if arg == NO_ARG {
        return 0;
    }
    if arg == OUT_DIGEST {
        // SAFETY: a map value.
        let pointer = unsafe { (*frame).args[0] };
        return read_digest(pointer).unwrap_or_else(|_| {
            *flags |= unreadable;
            0
        });
    }
    // SAFETY: a map value; the index is masked into the first four of six.
    let pointer = unsafe {
        *(&raw const (*frame).args)
            .cast::<u64>()
            .add(arg as usize & 3)
    };
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(pointer as *const u64) }.unwrap_or_else(|_| {
        *flags |= unreadable;
        0
    })
}

/// Reports the call.
#[inline(always)]
pub fn leave(ctx: &RetProbeContext, function: u32) {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    // No frame: the call began before tracing did, or its entry was counted as lost.
    let Some(thread) = THREADS.get_ptr_mut(id) else {
        return;
    };
    let sp = stack_pointer(ctx.regs);
    // SAFETY: a map value of this thread only.
    let mut depth = unsafe { (*thread).depth };
    for _ in 0..MAX_NESTING {
        if depth == 0 {
            return;
        }
        // SAFETY: as above.
        let (frame_sp, frame_function) = unsafe {
            let frame = frame(thread, depth - 1);
            ((*frame).sp, (*frame).function)
        };
        if frame_sp > sp {
            return; // an outer call's frame: this call has none
        }
        depth -= 1;
        // A return leaves the stack pointer at most one word above where the call found it; what
        // lies deeper was left without returning.
        if frame_function == function && sp - frame_sp <= 8 {
            break;
        }
    }
    let frame = frame(thread, depth);
    // SAFETY: as above.
    unsafe {
        if (*frame).function != function {
            return;
        }
        (*thread).depth = depth;
    }
    let Some(spec) = FUNCTIONS.get(function) else {
        return;
    };
    let result = ctx.ret::<i32>();
    // SAFETY: as above.
    let mut flags = unsafe { (*frame).flags as u32 };
    let (mut out0, mut out1) = (0, 0);
    if result == 0 {
        out0 = read_out(frame, spec.out[0], CALL_OUT0_UNREADABLE, &mut flags);
        out1 = read_out(frame, spec.out[1], CALL_OUT1_UNREADABLE, &mut flags);
    }
    let Some(process) = process::current(tgid) else {
        lose_entry(tgid, LossCause::ProcessTableFull as u32);
        return;
    };
    let call = lost_call(spec, frame, result);
    // SAFETY: a map value.
    let start_ns = unsafe { (*process).start_ns };
    if flags & (CALL_OUT0_UNREADABLE | CALL_OUT1_UNREADABLE) != 0 && spec.class == CLASS_ALLOCATE {
        lost(tgid, start_ns, LossCause::PointerUnreadable, call);
    }
    match ring::reserve_shared::<CallRecord>(process) {
        Ok(mut entry) => {
            fill(&mut entry, process, thread, frame, id);
            let record = entry.as_mut_ptr();
            // SAFETY: reserved memory of the right size.
            unsafe {
                (*record).out = [out0, out1];
                (*record).result = result;
                (*record).flags = flags;
            }
            ring::submit(entry);
        }
        Err(cause) => lost(tgid, start_ns, cause, call),
    }
}

/// A call that is only counted has returned; one that failed is reported as well. There is no
/// entry: it would cost the program as much again.
#[inline(always)]
pub fn count(ctx: &RetProbeContext, function: u32) {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if !process::is_traced(tgid) {
        return;
    }
    let Some(spec) = FUNCTIONS.get(function) else {
        return;
    };
    let Some(process) = process::current(tgid) else {
        lose_entry(tgid, LossCause::ProcessTableFull as u32);
        return;
    };
    let activity = spec.class.wrapping_sub(CLASS_LAUNCH) as usize;
    if activity >= ACTIVITIES {
        return;
    }
    let result = ctx.ret::<i32>();
    // SAFETY: no argument is needed.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    // SAFETY: a map value, and the index was checked. Of two threads that write the time at once
    // either may be the later one, by less than this takes.
    unsafe {
        let counter = &raw mut (*process).activity[activity];
        if result == 0 {
            add(&raw mut (*counter).count, 1);
        } else {
            add(&raw mut (*counter).failed, 1);
        }
        (*counter).latest_ns = now;
    }
    if result != 0 {
        report_failed(ctx, process, function, result, now);
    }
}

#[inline(always)]
fn report_failed(
    ctx: &RetProbeContext,
    process: *mut ProcessState,
    function: u32,
    result: i32,
    now: u64,
) {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    let stack_id = if WANT_STACKS.load() == 0 {
        NO_STACK
    } else {
        stack_of(ctx, tgid)
    };
    match ring::reserve_shared::<CallRecord>(process) {
        Ok(mut entry) => {
            let record = entry.as_mut_ptr();
            // SAFETY: reserved memory of the right size; every field is written.
            unsafe {
                (*record).kind = KIND_CALL;
                (*record).function = function as u16;
                (*record).enclosing = NO_FUNCTION;
                (*record).enter_ns = now;
                (*record).exit_ns = now;
                (*record).start_ns = (*process).start_ns;
                (*record).tgid = tgid;
                (*record).tid = id as u32;
                (*record).cgroup_id = bpf_get_current_cgroup_id();
                (*record).return_address = 0;
                (*record).args = [0; 6];
                (*record).out = [0; 2];
                (*record).result = result;
                (*record).stack_id = stack_id;
                (*record).flags = 0;
                (*record).padding = 0;
            }
            ring::submit(entry);
        }
        Err(cause) => {
            // SAFETY: a map value.
            let start_ns = unsafe { (*process).start_ns };
            lost(tgid, start_ns, cause, UNKNOWN);
        }
    }
}

#[inline(always)]
fn lost_call(spec: &FunctionSpec, frame: *const Frame, result: i32) -> LostCall {
    if result != 0 {
        return UNKNOWN;
    }
    let bytes = if spec.bytes_arg == NO_ARG {
        0
    } else {
        // SAFETY: a map value; the index is masked into the first four of six.
        unsafe {
            *(&raw const (*frame).args)
                .cast::<u64>()
                .add(spec.bytes_arg as usize & 3)
        }
    };
    LostCall {
        class: spec.class,
        bytes,
    }
}

/// Everything but the results.
#[inline(always)]
fn fill(
    entry: &mut RingBufEntry<CallRecord>,
    process: *const ProcessState,
    thread: *mut Thread,
    frame: *const Frame,
    id: u64,
) {
    let record = entry.as_mut_ptr();
    // SAFETY: reserved memory of the right size, and map values of this thread.
    unsafe {
        (*record).kind = KIND_CALL;
        (*record).function = (*frame).function as u16;
        (*record).enclosing = if (*thread).depth == 0 {
            NO_FUNCTION
        } else {
            (*thread).frames[0].function as u16
        };
        (*record).enter_ns = (*frame).enter_ns;
        (*record).exit_ns = bpf_ktime_get_boot_ns();
        (*record).start_ns = (*process).start_ns;
        (*record).tgid = (id >> 32) as u32;
        (*record).tid = id as u32;
        (*record).cgroup_id = bpf_get_current_cgroup_id();
        (*record).return_address = (*frame).return_address;
        (*record).args = (*frame).args;
        (*record).stack_id = (*frame).stack_id;
        (*record).padding = 0;
    }
}

/// The thread ends inside a call: reports the outermost one, without a result.
#[inline(never)]
pub fn never_returned(id: u64) -> u32 {
    let tgid = (id >> 32) as u32;
    let Some(thread) = THREADS.get_ptr_mut(id) else {
        return 0;
    };
    // SAFETY: a map value of this thread only.
    if unsafe { (*thread).depth } == 0 {
        return 0;
    }
    // SAFETY: as above.
    unsafe { (*thread).depth = 0 };
    let Some(process) = process::current(tgid) else {
        return 0;
    };
    let Some(mut entry) = ring::reserve::<CallRecord>() else {
        // SAFETY: a map value.
        lost(
            tgid,
            unsafe { (*process).start_ns },
            LossCause::RingFull,
            UNKNOWN,
        );
        return 0;
    };
    fill(&mut entry, process, thread, frame(thread, 0), id);
    let record = entry.as_mut_ptr();
    // SAFETY: reserved memory of the right size.
    unsafe {
        (*record).out = [0; 2];
        (*record).result = 0;
        (*record).flags = CALL_NEVER_RETURNED;
    }
    ring::submit_now(entry);
    0
}
