//! The functions of the driver API that this library has. A further one is a row here.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{context, current, device, driver, memory, procaddr, result};
use std::ffi::{c_char, c_int, c_uint, c_void};

exports! {
    /// Initialises the driver for this process.
    cuInit(flags: c_uint) => driver::init, "cuInit", 2000;
    /// The CUDA version that the driver supports.
    cuDriverGetVersion(version: *mut c_int) => driver::version, "cuDriverGetVersion", 2020;
    /// The name of a result code.
    cuGetErrorName(error: Code, text: *mut *const c_char) => result::error_name, "cuGetErrorName", 6000;
    /// What a result code means.
    cuGetErrorString(error: Code, text: *mut *const c_char) => result::error_string, "cuGetErrorString", 6000;
    /// The address of a driver function by name and version.
    cuGetProcAddress(symbol: *const c_char, pointer: *mut *const c_void, version: c_int, flags: u64)
        => procaddr::get, "cuGetProcAddress", 11030;
    /// The address of a driver function by name and version, and why there is none.
    cuGetProcAddress_v2(symbol: *const c_char, pointer: *mut *const c_void, version: c_int, flags: u64, status: *mut c_uint)
        => procaddr::get_v2, "cuGetProcAddress", 12000;

    /// The number of devices.
    cuDeviceGetCount(count: *mut c_int) => device::count, "cuDeviceGetCount", 2000;
    /// The device with this ordinal.
    cuDeviceGet(device: *mut c_int, ordinal: c_int) => device::get, "cuDeviceGet", 2000;
    /// The name of a device.
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) => device::name, "cuDeviceGetName", 2000;
    /// The bytes of memory on a device.
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) => device::total_memory, "cuDeviceTotalMem", 3020;
    /// The UUID of a device.
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) => device::uuid, "cuDeviceGetUuid", 9020;

    /// Creates a context, which becomes the thread's current one.
    cuCtxCreate_v2(context: *mut *mut c_void, flags: c_uint, device: c_int) => context::create, "cuCtxCreate", 3020;
    /// Destroys a context and frees its memory.
    cuCtxDestroy_v2(context: *mut c_void) => context::destroy, "cuCtxDestroy", 4000;
    /// Retains the primary context of a device.
    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int)
        => context::retain_primary, "cuDevicePrimaryCtxRetain", 7000;
    /// Releases the primary context of a device; the last release destroys it.
    cuDevicePrimaryCtxRelease_v2(device: c_int) => context::release_primary, "cuDevicePrimaryCtxRelease", 11000;
    /// Replaces the thread's current context.
    cuCtxSetCurrent(context: *mut c_void) => current::set, "cuCtxSetCurrent", 4000;
    /// The thread's current context.
    cuCtxGetCurrent(context: *mut *mut c_void) => current::get, "cuCtxGetCurrent", 4000;
    /// Makes a context current on top of the one before.
    cuCtxPushCurrent_v2(context: *mut c_void) => current::push, "cuCtxPushCurrent", 4000;
    /// Takes the current context off, so that the one below is current again.
    cuCtxPopCurrent_v2(context: *mut *mut c_void) => current::pop, "cuCtxPopCurrent", 4000;
    /// The device of the current context.
    cuCtxGetDevice(device: *mut c_int) => current::device, "cuCtxGetDevice", 2000;
    /// Waits for the current context's work; there never is any.
    cuCtxSynchronize() => current::synchronize, "cuCtxSynchronize", 2000;

    /// Allocates memory on the device of the current context.
    cuMemAlloc_v2(pointer: *mut u64, bytes: usize) => memory::alloc, "cuMemAlloc", 3020;
    /// Frees memory.
    cuMemFree_v2(pointer: u64) => memory::free, "cuMemFree", 3020;
    /// The free and all bytes of the device of the current context.
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => memory::info, "cuMemGetInfo", 3020;
}
