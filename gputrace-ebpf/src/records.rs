//! Records in the ring buffer. Each begins with its kind.

use crate::{ACTIVITIES, ActivityCount};

/// A probed function returned, or its thread died inside it ([`CallRecord`]).
pub const KIND_CALL: u32 = 1;
/// A process was seen for the first time, was forked or executed a new image ([`ProcessRecord`]).
pub const KIND_PROCESS: u32 = 2;
/// The last thread of a process is exiting ([`ExitRecord`]).
pub const KIND_EXIT: u32 = 3;

/// No enclosing call: [`CallRecord::enclosing`] of an outermost call.
pub const NO_FUNCTION: u16 = u16::MAX;

/// The call succeeded, but what its first out-pointer points at could not be read.
pub const CALL_OUT0_UNREADABLE: u32 = 1 << 0;
/// The call succeeded, but what its second out-pointer points at could not be read.
pub const CALL_OUT1_UNREADABLE: u32 = 1 << 1;
/// The thread ended inside the call; there is no result.
pub const CALL_NEVER_RETURNED: u32 = 1 << 2;
/// What the function's input points at could not be read.
pub const CALL_INPUT_UNREADABLE: u32 = 1 << 3;

/// One call of a probed function. 136 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// [`KIND_CALL`].
    pub kind: u32,
    /// The function's row in the function table: the attach cookie.
    pub function: u16,
    /// The outermost probed function that this call happened in, or [`NO_FUNCTION`].
    pub enclosing: u16,
    /// When the function was entered.
    pub enter_ns: u64,
    /// When it returned, or when its thread died in it.
    pub exit_ns: u64,
    /// Start of the process: with `tgid`, its identity.
    pub start_ns: u64,
    /// Process.
    pub tgid: u32,
    /// Thread.
    pub tid: u32,
    /// The caller's cgroup in the v2 hierarchy (its inode number there).
    pub cgroup_id: u64,
    /// Where the function returns to: the direct caller.
    pub return_address: u64,
    /// The first six integer arguments, as registers held them, changed by the function's input
    /// (`INPUT_*`).
    pub args: [u64; 6],
    /// What the function's out-pointers pointed at on return, 0 unless it succeeded.
    pub out: [u64; 2],
    /// The function's result, a `CUresult`; 0 is success.
    pub result: i32,
    /// Key of the user stack in the stack map, negative where there is none.
    pub stack_id: i32,
    /// `CALL_*` bits.
    pub flags: u32,
    /// Always 0.
    pub padding: u32,
}

/// First call of a probed function in this process.
pub const PROCESS_FIRST_CALL: u32 = 1;
/// Forked from a process that gputrace knows.
pub const PROCESS_FORKED: u32 = 2;
/// A known process executed a new image.
pub const PROCESS_EXECUTED: u32 = 3;

/// Longest cgroup name kept; longer ones are cut.
pub const CGROUP_NAME_LEN: usize = 128;

/// Who a process is, read in the kernel while it surely exists. 208 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRecord {
    /// [`KIND_PROCESS`].
    pub kind: u32,
    /// `PROCESS_*`: why it is reported.
    pub reason: u32,
    /// When.
    pub time_ns: u64,
    /// Start of the process.
    pub start_ns: u64,
    /// Start of its parent.
    pub parent_start_ns: u64,
    /// cgroup id in the v2 hierarchy.
    pub cgroup_id: u64,
    /// Process.
    pub tgid: u32,
    /// Its parent.
    pub parent_tgid: u32,
    /// Its PID in its own PID namespace, 0 where it could not be read.
    pub namespace_pid: u32,
    /// User, as the initial user namespace counts them.
    pub uid: u32,
    /// Name of the innermost cgroup (v2, or the memory controller's on v1), NUL-terminated.
    pub cgroup_name: [u8; CGROUP_NAME_LEN],
    /// The kernel's 15-character name, NUL-terminated.
    pub comm: [u8; 16],
    /// Depth of its PID namespace; 0 is the initial one.
    pub namespace_level: u32,
    /// 1 if the tgid that was read through offsets is the one that the kernel's helper gives; 0
    /// also where that cannot be compared (a forked child).
    pub verified: u32,
}

/// End of a known process. 104 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRecord {
    /// [`KIND_EXIT`].
    pub kind: u32,
    /// Process.
    pub tgid: u32,
    /// When its last thread began to exit.
    pub time_ns: u64,
    /// Start of the process.
    pub start_ns: u64,
    /// Exit status as `wait(2)` encodes it: signal in the low 7 bits, code above 8.
    pub status: u32,
    /// Always 0.
    pub padding: u32,
    /// Its counted calls, by class.
    pub activity: [ActivityCount; ACTIVITIES],
}

/// A record read from ring-buffer bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// See [`CallRecord`].
    Call(CallRecord),
    /// See [`ProcessRecord`].
    Process(ProcessRecord),
    /// See [`ExitRecord`].
    Exit(ExitRecord),
}

impl Record {
    /// Reads one record. `None` if the kind is unknown or the bytes are too few: the programs and
    /// the reader then come from different builds.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let kind = u32::from_ne_bytes(*bytes.first_chunk::<4>()?);
        match kind {
            KIND_CALL => read(bytes).map(Self::Call),
            KIND_PROCESS => read(bytes).map(Self::Process),
            KIND_EXIT => read(bytes).map(Self::Exit),
            _ => None,
        }
    }
}

/// Types of which any bytes are a valid value.
///
/// # Safety
/// `repr(C)`, no padding, no invalid bit pattern.
unsafe trait Plain: Copy {}
// SAFETY: integers and arrays of them only; padding is explicit (see the layout tests).
unsafe impl Plain for CallRecord {}
// SAFETY: as above.
unsafe impl Plain for ProcessRecord {}
// SAFETY: as above.
unsafe impl Plain for ExitRecord {}

fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    (bytes.len() >= size_of::<T>()).then(|| {
        // SAFETY: the length was checked, any bytes are a valid T, and the read may be unaligned.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    })
}

#[cfg(test)]
mod tests {
    use core::mem::{align_of, offset_of, size_of};

    use super::*;

    #[test]
    fn layout_is_what_both_sides_expect() {
        assert_eq!(size_of::<CallRecord>(), 136);
        assert_eq!(offset_of!(CallRecord, enter_ns), 8);
        assert_eq!(offset_of!(CallRecord, args), 56);
        assert_eq!(offset_of!(CallRecord, out), 104);
        assert_eq!(offset_of!(CallRecord, result), 120);
        assert_eq!(size_of::<ProcessRecord>(), 208);
        assert_eq!(offset_of!(ProcessRecord, cgroup_name), 56);
        assert_eq!(offset_of!(ProcessRecord, comm), 184);
        assert_eq!(size_of::<ExitRecord>(), 104);
        for align in [
            align_of::<CallRecord>(),
            align_of::<ProcessRecord>(),
            align_of::<ExitRecord>(),
        ] {
            assert_eq!(align, 8);
        }
    }

    #[test]
    fn short_and_unknown_bytes_are_refused() {
        assert_eq!(Record::from_bytes(&[]), None);
        assert_eq!(Record::from_bytes(&[1, 0, 0, 0]), None);
        assert_eq!(Record::from_bytes(&[0xff; 256]), None);
        let mut exit = [0u8; 104];
        exit[0] = 3;
        assert!(matches!(Record::from_bytes(&exit), Some(Record::Exit(_))));
        assert_eq!(Record::from_bytes(&exit[..103]), None);
    }
}
