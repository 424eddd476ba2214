//! What a device can do: `cuDeviceGetAttribute`. The values are those of an H100.

use crate::device::{self, FIRST_BUS, PROCESSORS};
use crate::driver::driver;
use crate::result::{Code, INVALID_VALUE, code, give};
use std::ffi::{c_int, c_uint};

/// The last attribute that CUDA 12.5 knows.
const LAST: c_uint = 135;

/// 9.0.
const CAPABILITY: (c_int, c_int) = (9, 0);

fn value(attribute: c_uint, gpu: usize) -> c_int {
    let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    match attribute {
        // Threads of a block, its extent, and that of the grid.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Shared and constant memory, warp, pitch, registers, clock.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 => 64 << 10,
        13 => 1_980_000,
        14 => 512,
        16 => number(PROCESSORS as usize),
        // It overlaps, maps host memory, runs kernels at the same time.
        15 | 19 | 31 => 1,
        // Largest textures.
        21 | 22 => 131_072,
        23 => 65_536,
        24..=26 => 16_384,
        // PCI bus; device and domain are 0.
        33 => number(FIRST_BUS + gpu),
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        40 => 3,
        // Unified addressing.
        41 => 1,
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        // Priorities, caches in local and global memory.
        78..=80 => 1,
        81 => 228 << 10,
        82 => 64 << 10,
        // Managed memory, atomics, concurrent use, preemption, pageable memory, host pointers,
        // cooperative launches.
        83 | 89..=91 | 95 | 96 => 1,
        97 => 227 << 10,
        // Registering host memory, virtual memory, export by descriptor.
        99 | 102 | 103 => 1,
        106 => 32,
        // Pools, their export (a bit for descriptors).
        115 => 1,
        119 => 1,
        // IPC of legacy memory, clusters, multicast.
        120 | 132 => 1,
        _ => 0,
    }
}

/// `cuDeviceGetAttribute`.
pub unsafe extern "C" fn attribute(to: *mut c_int, attribute: c_uint, device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        if attribute == 0 || attribute > LAST {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, value(attribute, gpu)) }
    }))
}

/// `cuDeviceComputeCapability`.
pub unsafe extern "C" fn capability(major: *mut c_int, minor: *mut c_int, device: c_int) -> Code {
    code(device::index(device).and_then(|_| {
        // SAFETY: the caller of the driver API vouches for its pointers.
        unsafe {
            give(major, CAPABILITY.0)?;
            give(minor, CAPABILITY.1)
        }
    }))
}

/// `CUdevprop`, of the first API.
#[repr(C)]
pub struct Properties([c_int; 14]);

/// `cuDeviceGetProperties`.
pub unsafe extern "C" fn properties(to: *mut Properties, device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        let of = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, Properties(of.map(|attribute| value(attribute, gpu)))) }
    }))
}

/// `cuDeviceGetExecAffinitySupport`: none.
pub unsafe extern "C" fn no_affinity(to: *mut c_int, _kind: c_uint, device: c_int) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(device::index(device).and_then(|_| unsafe { give(to, 0) }))
}

/// `cuDeviceGetTexture1DLinearMaxWidth`.
pub unsafe extern "C" fn linear_texture_width(to: *mut usize) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(driver().and_then(|_| unsafe { give(to, 1 << 28) }))
}
