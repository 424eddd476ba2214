//! What the ledger may grow to, and what is given up there.

use borsh::{BorshDeserialize, BorshSerialize};

/// Bounds on what is kept. What is given up is counted and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Limits {
    /// Live allocations kept one by one, over all processes (at most 96 bytes each). Further ones
    /// are counted in the process's totals, but their frees cannot be matched: the verdicts on
    /// that process become uncertain.
    pub live_allocations: usize,
    /// Ended processes whose account is kept; the one that ended first is given up.
    pub ended_processes: usize,
    /// Processes in all. Calls of further ones are counted, not attributed.
    pub processes: usize,
    /// Call sites kept apart in one process; the calls of further ones share one account.
    pub sites_per_process: usize,
    /// Stacks over all processes, of at most [`Limits::FRAMES`] frames each.
    pub stacks: usize,
    /// Replaced allocations, over all processes, that await a free which is on its way; after
    /// this many nanoseconds it is taken for lost.
    pub await_free_ns: u64,
}

impl Limits {
    /// Frames of a stack; the kernel walks no more than 127.
    pub const FRAMES: usize = 128;
    /// Mappings of a process: the kernel's own limit, unless it was raised.
    pub const MODULES: usize = 65_536;
    /// Names of users.
    pub const USERS: usize = 65_536;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            live_allocations: 8 << 20,
            ended_processes: 1024,
            processes: 16_384,
            sites_per_process: 8192,
            stacks: 1 << 18,
            await_free_ns: 60_000_000_000,
        }
    }
}
