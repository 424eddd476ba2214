//! A stand-in for NVIDIA's `libcuda.so.1`.
//!
//! It exports the driver API's own names, each behind a trampoline of the shape that the real
//! library has (see the module `trampoline`), so that a probe meets the same instructions. Behind
//! them is a small driver: devices with a capacity that all processes of a rig share, contexts with
//! a hidden cost and a stack per thread, memory of every kind whose addresses are reused at once, and
//! the result codes of the real one. What cannot be seen from outside is left out: nothing is computed
//! or copied. Nothing behind the trampolines calls a trampoline.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the trampolines are those of the x86-64 Linux library");

mod activity;
mod arrays;
mod attributes;
mod context;
mod current;
mod device;
mod driver;
mod exports;
mod faults;
mod graphs;
mod green;
mod host;
mod host_map;
mod ipc;
mod memory;
mod modules;
mod objects;
mod pointers;
mod pools;
mod primary;
mod procaddr;
mod result;
mod shares;
mod streams;
mod trampoline;
mod vmm;
