//! Tables that the two sides share through maps.

/// Rows of the function table; attach cookies are below it.
pub const MAX_FUNCTIONS: u32 = 256;

/// Rows that have a copy of the entry and return programs of their own, for kernels without attach
/// cookies.
pub const PROGRAM_COPIES: u32 = 96;

/// No such argument: in [`FunctionSpec::out`], [`FunctionSpec::bytes_arg`] and
/// [`FunctionSpec::input_arg`].
pub const NO_ARG: u8 = u8::MAX;
/// In [`FunctionSpec::out`]: a digest of the 64 bytes that the first argument points at.
pub const OUT_DIGEST: u8 = u8::MAX - 1;

/// Success gives memory; counted with its bytes when its event is lost.
pub const CLASS_ALLOCATE: u8 = 1;
/// Success takes memory back; counted when its event is lost.
pub const CLASS_FREE: u8 = 2;
/// Counted in the kernel as a launch; only a failed call is an event, and it has no entry.
pub const CLASS_LAUNCH: u8 = 3;
/// The same for copies, fills and prefetches of memory.
pub const CLASS_COPY: u8 = 4;
/// The same for waiting for the GPU.
pub const CLASS_SYNCHRONIZE: u8 = 5;
/// Anything else.
pub const CLASS_OTHER: u8 = 0;

/// Nothing is read at entry.
pub const INPUT_NONE: u8 = 0;
/// The `u64` at offset 8 of what the argument points at takes the argument's place: the
/// `CUmemLocation` of `CUmemAllocationProp` and `CUmemPoolProps`.
pub const INPUT_LOCATION: u8 = 1;
/// Argument 1 points at a `CUDA_ARRAY_DESCRIPTOR`. Arguments 1 to 4 become width, height, 0 and
/// format with channels << 32.
pub const INPUT_ARRAY_2D: u8 = 2;
/// Argument 1 points at a `CUDA_ARRAY3D_DESCRIPTOR`. Argument 2 moves to 5, and arguments 1 to 4
/// become width, height, depth and format with channels << 32 and flags << 40.
pub const INPUT_ARRAY_3D: u8 = 3;
/// A digest of a 64-byte structure that is passed by value takes argument 2's place; the arguments
/// after it move up where the architecture passes it on the stack.
pub const INPUT_DIGEST: u8 = 4;

/// Digest of 64 bytes: FNV-1a over their eight words. Collisions do not matter for security: who
/// can make one can as well open the handle.
#[must_use]
pub fn digest(words: &[u64; 8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in words {
        hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        hash ^= hash >> 32;
    }
    hash
}

/// What the programs need to know about a probed function: one row a function.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// Arguments that point at a `u64` to be read when the function succeeded, [`NO_ARG`], or
    /// [`OUT_DIGEST`] as the first.
    pub out: [u8; 2],
    /// `CLASS_*`.
    pub class: u8,
    /// The argument that holds the requested bytes, or [`NO_ARG`].
    pub bytes_arg: u8,
    /// 1: take the user stack at entry.
    pub stack: u8,
    /// `INPUT_*`: what is read at entry.
    pub input: u8,
    /// The argument that it is about, or [`NO_ARG`].
    pub input_arg: u8,
    /// Always 0.
    pub padding: u8,
}

/// Calls that are only counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivityCount {
    /// Successful ones.
    pub count: u64,
    /// Failed ones.
    pub failed: u64,
    /// When the latest returned; 0 where there was none.
    pub latest_ns: u64,
}

/// Number of classes that are only counted.
pub const ACTIVITIES: usize = 3;

/// A process that has called a probed function, or was forked from one that had.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessState {
    /// Start of the process.
    pub start_ns: u64,
    /// The congestion of the ring buffer in which `spent` was counted.
    pub episode: u64,
    /// Events put into the ring since it began to fill up.
    pub spent: u64,
    /// By class, beginning with [`CLASS_LAUNCH`].
    pub activity: [ActivityCount; ACTIVITIES],
}

/// Slot of the control array: 0 until every probe is in place, then 1.
pub const CONTROL_ACTIVE: u32 = 0;
/// Slot that the reader counts up each time it has caught up with the ring buffer.
pub const CONTROL_EPISODE: u32 = 1;
/// Slots of the control array.
pub const CONTROL_SLOTS: u32 = 2;

/// Why an event did not reach user space.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// The ring buffer had no room.
    RingFull = 0,
    /// The ring buffer was filling up and this process had used its share of what was left.
    OverShare = 1,
    /// The table of threads was full at entry.
    ThreadTableFull = 2,
    /// Probed calls were nested deeper than is tracked.
    NestedTooDeep = 3,
    /// The event came, but the pointer that the function returned could not be read.
    PointerUnreadable = 4,
    /// The event came, but its stack could not be kept.
    StackLost = 5,
    /// The table of processes was full: identity is read later, from /proc.
    ProcessTableFull = 6,
    /// An event on the life of a process (first sight, fork, exec, exit) had no room.
    LifecycleLost = 7,
}

/// Number of causes.
pub const LOSS_CAUSES: usize = 8;

impl LossCause {
    /// Every cause, in the order of its number.
    pub const ALL: [Self; LOSS_CAUSES] = [
        Self::RingFull,
        Self::OverShare,
        Self::ThreadTableFull,
        Self::NestedTooDeep,
        Self::PointerUnreadable,
        Self::StackLost,
        Self::ProcessTableFull,
        Self::LifecycleLost,
    ];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::OverShare => "over_share",
            Self::ThreadTableFull => "thread_table_full",
            Self::NestedTooDeep => "nested_too_deep",
            Self::PointerUnreadable => "pointer_unreadable",
            Self::StackLost => "stack_lost",
            Self::ProcessTableFull => "process_table_full",
            Self::LifecycleLost => "lifecycle_lost",
        }
    }
}

/// Key of the loss table: a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossKey {
    /// Start of the process.
    pub start_ns: u64,
    /// Process; 0 with `start_ns` 0 collects what no row could be had for.
    pub tgid: u32,
    /// Always 0.
    pub padding: u32,
}

/// What was lost of one process, since the start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// First loss; 0 until there is one.
    pub first_ns: u64,
    /// Latest loss.
    pub last_ns: u64,
    /// Events, by [`LossCause`].
    pub causes: [u64; LOSS_CAUSES],
    /// Successful allocations among them.
    pub allocations: u64,
    /// Bytes that these asked for.
    pub allocation_bytes: u64,
    /// Successful frees among them.
    pub frees: u64,
}

#[cfg(test)]
mod tests {
    use core::mem::size_of;

    use super::*;

    #[test]
    fn layout_is_what_both_sides_expect() {
        assert_eq!(size_of::<FunctionSpec>(), 8);
        assert_eq!(size_of::<ProcessState>(), 96);
        assert_eq!(size_of::<LossKey>(), 16);
        assert_eq!(size_of::<Losses>(), 104);
    }

    #[test]
    fn causes_are_numbered_in_order() {
        for (i, cause) in LossCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, i);
        }
    }
}
