//! Maps. Sizes are defaults; the loader may change them.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, RingBuf, StackTrace},
};
use gputrace_ebpf::{
    CONTROL_SLOTS, FunctionSpec, LOSS_CAUSES, LossKey, Losses, MAX_FUNCTIONS, ProcessState,
};

/// Probed calls that a thread can be in at once. A power of two: an index is masked with it.
pub const MAX_NESTING: usize = 4;

/// A probed call that has not returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    /// Stack pointer at entry, by which frames that will never return are told.
    pub sp: u64,
    pub enter_ns: u64,
    pub args: [u64; 6],
    pub return_address: u64,
    pub stack_id: i32,
    pub function: u32,
    /// `CALL_*` bits that are known at entry.
    pub flags: u64,
}

/// The calls that a thread is in, outermost first.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    pub depth: u64,
    pub frames: [Frame; MAX_NESTING],
}

#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 24, 0);
/// Keyed by `pid_tgid`; an entry lives from a thread's first probed call to the thread's end.
#[map]
pub static THREADS: HashMap<u64, Thread> = HashMap::with_max_entries(16_384, 0);
/// Keyed by tgid.
#[map]
pub static PROCESSES: HashMap<u32, ProcessState> = HashMap::with_max_entries(16_384, 0);
/// Only these processes are traced, where the `ONLY_TARGETS` switch is set.
#[map]
pub static TARGETS: HashMap<u32, u8> = HashMap::with_max_entries(16_384, 0);
#[map]
pub static FUNCTIONS: Array<FunctionSpec> = Array::with_max_entries(MAX_FUNCTIONS, 0);
#[map]
pub static CONTROL: Array<u64> = Array::with_max_entries(CONTROL_SLOTS, 0);
#[map]
pub static STACKS: StackTrace = StackTrace::with_max_entries(8_192, 0);
/// Losses by process.
#[map]
pub static LOSSES: HashMap<LossKey, Losses> = HashMap::with_max_entries(4_096, 0);
/// All losses, by cause: tells the reader cheaply whether anything changed.
#[map]
pub static LOST: Array<u64> = Array::with_max_entries(LOSS_CAUSES as u32, 0);
/// A zeroed `Thread`, to insert from: it is too big for the stack.
#[map]
pub static NEW_THREAD: Array<Thread> = Array::with_max_entries(1, 0);
