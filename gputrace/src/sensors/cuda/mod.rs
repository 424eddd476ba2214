//! The user-space side of the CUDA driver: where copies of `libcuda.so` are, which functions they
//! have, and where in those functions a probe costs least.

pub mod discovery;
pub mod elf;
pub mod loader;
pub mod maps;
pub mod placement;
