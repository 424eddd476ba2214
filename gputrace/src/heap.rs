//! The heap after a flood.

/// Gives what is free on the heap back to the system: the allocator would keep what a flood of events
/// took.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers; any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0)
    };
}
