//! A stand-in for NVIDIA's `libcuda.so.1`.
//!
//! It exports the driver API's own names, each behind a trampoline of the shape that the real
//! library has (see the module `trampoline`), so that a probe meets the same instructions. Behind
//! them is a small driver: devices with a capacity that all processes of a rig share, contexts with
//! a hidden cost and a stack per thread, memory whose addresses are reused at once, and the result
//! codes of the real one. Nothing behind the trampolines calls a trampoline.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the trampolines are those of the x86-64 Linux library");

mod context;
mod current;
mod device;
mod driver;
mod exports;
mod faults;
mod memory;
mod procaddr;
mod result;
mod trampoline;
