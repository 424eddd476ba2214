//! The life of processes: first sight, fork, exec, exit.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_get_current_task,
        bpf_ktime_get_boot_ns, bpf_probe_read_kernel_buf, bpf_probe_read_kernel_str_bytes,
    },
};
use gputrace_ebpf::{
    ACTIVITIES, ActivityCount, CLASS_OTHER, CONTROL_ACTIVE, ExitRecord, KIND_EXIT, KIND_PROCESS,
    LossCause, PROCESS_EXECUTED, PROCESS_FIRST_CALL, PROCESS_FORKED, ProcessRecord, ProcessState,
};

use crate::{
    call,
    loss::{LostCall, lost},
    maps::{CONTROL, PROCESSES, TARGETS, THREADS},
    offsets::{
        CGROUP_KN, CRED_UID, CSS_CGROUP, CSS_SET_CGROUP, FOLLOW_FORKS, KERNFS_NAME, ONLY_TARGETS,
        PID_LEVEL, PID_NUMBERS, SIGNAL_LIVE, TASK_CGROUPS, TASK_COMM, TASK_CRED, TASK_EXIT_CODE,
        TASK_GROUP_LEADER, TASK_PID, TASK_REAL_PARENT, TASK_SIGNAL, TASK_THREAD_PID, UPID_NR,
        UPID_SIZE,
    },
    ring,
    task::{Kernel, process_start, read_pointer, read_u32, tgid},
};

const NOTHING: LostCall = LostCall {
    class: CLASS_OTHER,
    bytes: 0,
};

/// Every probe is in place, and this process is one to be traced.
#[inline(always)]
pub fn is_traced(tgid: u32) -> bool {
    if CONTROL.get(CONTROL_ACTIVE).copied().unwrap_or(0) == 0 {
        return false;
    }
    // SAFETY: only the key's presence matters.
    ONLY_TARGETS.load() == 0 || unsafe { TARGETS.get(tgid) }.is_some()
}

#[inline(always)]
pub fn current_task() -> Kernel {
    // SAFETY: no argument is needed.
    unsafe { bpf_get_current_task() as Kernel }
}

/// The current process, which makes a probed call: entered into the table, and reported, at its
/// first. `None` where the table is full.
#[inline(always)]
pub fn current(tgid: u32) -> Option<*mut ProcessState> {
    if let Some(process) = PROCESSES.get_ptr_mut(tgid) {
        return Some(process);
    }
    first_call(tgid);
    PROCESSES.get_ptr_mut(tgid)
}

#[inline(never)]
fn first_call(tgid: u32) -> u32 {
    let task = current_task();
    let start_ns = process_start(task);
    if !enter(tgid, start_ns) {
        return 0;
    }
    report(task, PROCESS_FIRST_CALL);
    0
}

/// Enters a process into the table. `false` if it is there already or there is no room.
#[inline(always)]
fn enter(tgid: u32, start_ns: u64) -> bool {
    const NO_ACTIVITY: ActivityCount = ActivityCount {
        count: 0,
        failed: 0,
        latest_ns: 0,
    };
    let process = ProcessState {
        start_ns,
        episode: 0,
        spent: 0,
        activity: [NO_ACTIVITY; ACTIVITIES],
    };
    match PROCESSES.insert(tgid, process, u64::from(BPF_NOEXIST)) {
        Ok(()) => true,
        Err(error) => {
            const EEXIST: i32 = -17;
            if error != EEXIST {
                lost(tgid, start_ns, LossCause::ProcessTableFull, NOTHING);
            }
            false
        }
    }
}

/// Reports who the process of `task` is. The record is built in the ring: it is too big for the
/// stack.
#[inline(never)]
fn report(task: Kernel, reason: u32) -> u32 {
    let leader = read_pointer(task, TASK_GROUP_LEADER.load());
    let Some(mut entry) = ring::reserve::<ProcessRecord>() else {
        lost(
            tgid(task),
            process_start(task),
            LossCause::LifecycleLost,
            NOTHING,
        );
        return 0;
    };
    let record = entry.as_mut_ptr();
    let parent = read_pointer(leader, TASK_REAL_PARENT.load());
    let cred = read_pointer(leader, TASK_CRED.load());
    let pid = read_pointer(leader, TASK_THREAD_PID.load());
    let level = read_u32(pid, PID_LEVEL.load());
    let upid = pid
        .wrapping_add(PID_NUMBERS.load() as usize)
        .wrapping_add((level as usize).wrapping_mul(UPID_SIZE.load() as usize));
    // SAFETY: `record` is reserved memory of the right size; every field is written.
    unsafe {
        (*record).kind = KIND_PROCESS;
        (*record).reason = reason;
        (*record).time_ns = bpf_ktime_get_boot_ns();
        (*record).start_ns = process_start(leader);
        (*record).parent_start_ns = process_start(parent);
        // A forked child starts in its parent's cgroup, and the parent is the current task.
        (*record).cgroup_id = bpf_get_current_cgroup_id();
        (*record).tgid = tgid(leader);
        (*record).parent_tgid = tgid(parent);
        (*record).namespace_pid = read_u32(upid, UPID_NR.load());
        (*record).namespace_level = level;
        (*record).uid = read_u32(cred, CRED_UID.load());
        let current = (bpf_get_current_pid_tgid() >> 32) as u32;
        (*record).verified = u32::from((*record).tgid == current);
        (*record).comm = [0; 16];
        let _ = bpf_probe_read_kernel_buf(
            leader.wrapping_add(TASK_COMM.load() as usize),
            &mut (*record).comm,
        );
        (*record).cgroup_name[0] = 0;
        let _ = bpf_probe_read_kernel_str_bytes(cgroup_name(leader), &mut (*record).cgroup_name);
    }
    ring::submit_now(entry);
    0
}

#[inline(always)]
fn cgroup_name(task: Kernel) -> Kernel {
    let set = read_pointer(task, TASK_CGROUPS.load());
    let mut cgroup = read_pointer(set, CSS_SET_CGROUP.load());
    if CSS_CGROUP.load() != u32::MAX {
        cgroup = read_pointer(cgroup, CSS_CGROUP.load());
    }
    read_pointer(read_pointer(cgroup, CGROUP_KN.load()), KERNFS_NAME.load())
}

/// A task was created: a thread, or a process.
#[inline(always)]
pub fn forked(parent: Kernel, child: Kernel) {
    let child_tgid = tgid(child);
    if child_tgid != read_u32(child, TASK_PID.load()) {
        return; // a thread
    }
    follow(tgid(parent), child, child_tgid);
    // SAFETY: only the key's presence matters.
    if unsafe { PROCESSES.get(tgid(parent)) }.is_none() {
        return;
    }
    if enter(child_tgid, process_start(child)) {
        report(child, PROCESS_FORKED);
    }
}

/// What a target forks is a target, where that was asked for.
#[inline(always)]
fn follow(parent: u32, child: Kernel, child_tgid: u32) {
    // SAFETY: only the key's presence matters.
    if FOLLOW_FORKS.load() == 0 || unsafe { TARGETS.get(parent) }.is_none() {
        return;
    }
    if TARGETS.insert(child_tgid, 1, 0).is_err() {
        let cause = LossCause::LifecycleLost;
        lost(child_tgid, process_start(child), cause, NOTHING);
    }
}

/// The last thread of a process is exiting.
#[inline(always)]
fn is_last_thread(task: Kernel) -> bool {
    // The count of live threads is taken down before the tracepoint; the last one finds 0.
    let signal = read_pointer(task, TASK_SIGNAL.load());
    read_u32(signal, SIGNAL_LIVE.load()) == 0
}

/// A process executed a new image: its other threads are gone, its leader has the tgid as PID.
#[inline(always)]
pub fn executed(task: Kernel, old_pid: u32) {
    let tgid = tgid(task);
    // SAFETY: only the key's presence matters.
    if unsafe { PROCESSES.get(tgid) }.is_none() {
        return;
    }
    let group = u64::from(tgid) << 32;
    let _ = THREADS.remove(group | u64::from(tgid));
    let _ = THREADS.remove(group | u64::from(old_pid));
    report(task, PROCESS_EXECUTED);
}

/// A thread is exiting: `task`, which is the current one.
#[inline(always)]
pub fn thread_exits(task: Kernel) {
    let id = bpf_get_current_pid_tgid();
    let tgid = (id >> 32) as u32;
    if THREADS.get_ptr(id).is_some() {
        call::never_returned(id);
        let _ = THREADS.remove(id);
    }
    // A number that is used again is not that of a target any more.
    // SAFETY: only the key's presence matters.
    if ONLY_TARGETS.load() != 0 && unsafe { TARGETS.get(tgid) }.is_some() && is_last_thread(task) {
        let _ = TARGETS.remove(tgid);
    }
    let Some(process) = PROCESSES.get_ptr(tgid) else {
        return;
    };
    if !is_last_thread(task) {
        return;
    }
    // SAFETY: a map value.
    let (start_ns, activity) = unsafe { ((*process).start_ns, (*process).activity) };
    // Two last threads may both find 0: only one removes the entry and reports.
    if PROCESSES.remove(tgid).is_err() {
        return;
    }
    let Some(mut entry) = ring::reserve::<ExitRecord>() else {
        lost(tgid, start_ns, LossCause::LifecycleLost, NOTHING);
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: `record` is reserved memory of the right size; every field is written.
    unsafe {
        (*record).kind = KIND_EXIT;
        (*record).tgid = tgid;
        (*record).time_ns = bpf_ktime_get_boot_ns();
        (*record).start_ns = start_ns;
        (*record).status = read_u32(task, TASK_EXIT_CODE.load());
        (*record).padding = 0;
        (*record).activity = activity;
    }
    ring::submit_now(entry);
}
