//! Constants that the loader sets before the programs are verified: offsets of kernel struct
//! members, read from the running kernel's BTF, and settings.

use aya_ebpf::Global;

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr;)*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub static $name: Global<$type> = Global::new($default);
    )* };
}

constants! {
    TASK_PID: u32 = 0;
    TASK_TGID: u32 = 0;
    TASK_GROUP_LEADER: u32 = 0;
    TASK_REAL_PARENT: u32 = 0;
    TASK_START_BOOTTIME: u32 = 0;
    TASK_CRED: u32 = 0;
    TASK_THREAD_PID: u32 = 0;
    TASK_CGROUPS: u32 = 0;
    TASK_SIGNAL: u32 = 0;
    TASK_EXIT_CODE: u32 = 0;
    TASK_COMM: u32 = 0;
    CRED_UID: u32 = 0;
    PID_LEVEL: u32 = 0;
    PID_NUMBERS: u32 = 0;
    UPID_NR: u32 = 0;
    UPID_SIZE: u32 = 16;
    SIGNAL_LIVE: u32 = 0;
    /// In `css_set`: the v2 cgroup, or the memory controller's css on v1.
    CSS_SET_CGROUP: u32 = 0;
    /// In `cgroup_subsys_state`; `u32::MAX` where `CSS_SET_CGROUP` already is a cgroup.
    CSS_CGROUP: u32 = u32::MAX;
    CGROUP_KN: u32 = 0;
    KERNFS_NAME: u32 = 0;
    /// 1: trace only the processes in `TARGETS`.
    ONLY_TARGETS: u32 = 0;
    /// 1: what a process in `TARGETS` forks becomes one.
    FOLLOW_FORKS: u32 = 0;
    /// 1: take user stacks.
    WANT_STACKS: u32 = 1;
    /// Backlog, in bytes, at which the reader is woken.
    WAKE_AT: u64 = 1 << 18;
    /// Backlog above which each process may add only its share.
    CONGESTED_AT: u64 = 1 << 23;
    /// That share, in events.
    SHARE: u64 = 1_024;
}
