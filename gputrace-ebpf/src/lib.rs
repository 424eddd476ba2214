//! Wire types: what the eBPF programs write and user space reads, and the reverse.
//!
//! Every type is `#[repr(C)]` with explicit padding and no invalid bit pattern, so that both sides
//! see the same bytes whatever compiled them; the tests pin size and offsets. Times are nanoseconds
//! of `CLOCK_BOOTTIME`, PIDs are those of the initial PID namespace.
#![no_std]

mod records;
mod tables;

pub use records::*;
pub use tables::*;
