//! Contexts of every sort.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{context, current, green, primary};
use std::ffi::{c_int, c_uint, c_void};

exports! {
    /// Creates a context, which becomes the thread's current one.
    cuCtxCreate(context: *mut *mut c_void, flags: c_uint, device: c_int) => context::create, "cuCtxCreate", 2000;
    /// Creates a context, which becomes the thread's current one.
    cuCtxCreate_v2(context: *mut *mut c_void, flags: c_uint, device: c_int) => context::create, "cuCtxCreate", 3020;
    /// Creates a context for a part of a device.
    cuCtxCreate_v3(context: *mut *mut c_void, affinities: *const c_void, count: c_int, flags: c_uint, device: c_int)
        => context::create_v3, "cuCtxCreate", 11040;
    /// Creates a context with parameters.
    cuCtxCreate_v4(context: *mut *mut c_void, parameters: *const c_void, flags: c_uint, device: c_int)
        => context::create_v4, "cuCtxCreate", 12050;
    /// Destroys a context and frees its memory.
    cuCtxDestroy(context: *mut c_void) => context::destroy, "cuCtxDestroy", 2000;
    /// Destroys a context and frees its memory.
    cuCtxDestroy_v2(context: *mut c_void) => context::destroy, "cuCtxDestroy", 4000;
    /// Counts a use of the current context.
    cuCtxAttach(context: *mut *mut c_void, flags: c_uint) => context::attach, "cuCtxAttach", 2000;
    /// Counts a use less; the last one destroys it.
    cuCtxDetach(context: *mut c_void) => context::detach, "cuCtxDetach", 2000;

    /// Retains the primary context of a device.
    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int)
        => primary::retain, "cuDevicePrimaryCtxRetain", 7000;
    /// Releases the primary context of a device; the last release ends it.
    cuDevicePrimaryCtxRelease(device: c_int) => primary::release, "cuDevicePrimaryCtxRelease", 7000;
    /// Releases the primary context of a device; the last release ends it.
    cuDevicePrimaryCtxRelease_v2(device: c_int) => primary::release, "cuDevicePrimaryCtxRelease", 11000;
    /// Ends the primary context of a device.
    cuDevicePrimaryCtxReset(device: c_int) => primary::reset, "cuDevicePrimaryCtxReset", 7000;
    /// Ends the primary context of a device.
    cuDevicePrimaryCtxReset_v2(device: c_int) => primary::reset, "cuDevicePrimaryCtxReset", 11000;
    /// Says how the primary context is to be created.
    cuDevicePrimaryCtxSetFlags(device: c_int, flags: c_uint) => primary::set_flags, "cuDevicePrimaryCtxSetFlags", 7000;
    /// Says how the primary context is to be created.
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint)
        => primary::set_flags, "cuDevicePrimaryCtxSetFlags", 11000;
    /// Whether there is a primary context.
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int)
        => primary::state, "cuDevicePrimaryCtxGetState", 7000;

    /// Creates a green context.
    cuGreenCtxCreate(context: *mut u64, description: *const c_void, device: c_int, flags: c_uint)
        => green::create, "cuGreenCtxCreate", 12040;
    /// Destroys a green context.
    cuGreenCtxDestroy(context: u64) => green::destroy, "cuGreenCtxDestroy", 12040;
    /// The context that stands for a green context.
    cuCtxFromGreenCtx(context: *mut *mut c_void, green: u64) => green::context, "cuCtxFromGreenCtx", 12040;
    /// Remembers what a green context has to do.
    cuGreenCtxRecordEvent(context: u64) => green::accept, "cuGreenCtxRecordEvent", 12040;
    /// Lets a green context wait.
    cuGreenCtxWaitEvent(context: u64) => green::accept, "cuGreenCtxWaitEvent", 12040;
    /// Splits processors into groups.
    cuDevSmResourceSplitByCount(
        result: *mut green::Resource, groups: *mut c_uint, input: *const green::Resource,
        remaining: *mut green::Resource, flags: c_uint, least: c_uint
    ) => green::split, "cuDevSmResourceSplitByCount", 12040;
    /// Describes processors for a green context.
    cuDevResourceGenerateDesc(description: *mut *const c_void, resources: *const green::Resource, count: c_uint)
        => green::describe, "cuDevResourceGenerateDesc", 12040;

    /// Replaces the thread's current context.
    cuCtxSetCurrent(context: *mut c_void) => current::set, "cuCtxSetCurrent", 4000;
    /// The thread's current context.
    cuCtxGetCurrent(context: *mut *mut c_void) => current::get, "cuCtxGetCurrent", 4000;
    /// Makes a context current on top of the one before.
    cuCtxPushCurrent(context: *mut c_void) => current::push, "cuCtxPushCurrent", 2000;
    /// Makes a context current on top of the one before.
    cuCtxPushCurrent_v2(context: *mut c_void) => current::push, "cuCtxPushCurrent", 4000;
    /// Takes the current context off, so that the one below is current again.
    cuCtxPopCurrent(context: *mut *mut c_void) => current::pop, "cuCtxPopCurrent", 2000;
    /// Takes the current context off, so that the one below is current again.
    cuCtxPopCurrent_v2(context: *mut *mut c_void) => current::pop, "cuCtxPopCurrent", 4000;
    /// The device of the current context.
    cuCtxGetDevice(device: *mut c_int) => current::device, "cuCtxGetDevice", 2000;
    /// The device of a context.
    cuCtxGetDevice_v2(device: *mut c_int, context: *mut c_void) => current::device_of, "cuCtxGetDevice", 13000;
    /// Waits for the current context's work; there never is any.
    cuCtxSynchronize() => current::synchronize, "cuCtxSynchronize", 2000;
    /// The version of the API with which a context was created.
    cuCtxGetApiVersion(context: *mut c_void, version: *mut c_uint) => context::api_version, "cuCtxGetApiVersion", 3020;
    /// The number of a context.
    cuCtxGetId(context: *mut c_void, id: *mut u64) => context::id, "cuCtxGetId", 12000;
    /// The flags of the current context.
    cuCtxGetFlags(flags: *mut c_uint) => context::flags, "cuCtxGetFlags", 7000;
    /// Changes the flags of the current context.
    cuCtxSetFlags() => context::accept, "cuCtxSetFlags", 12010;
    /// A limit of the current context.
    cuCtxGetLimit(value: *mut usize, limit: c_uint) => context::limit, "cuCtxGetLimit", 3010;
    /// Changes a limit of the current context.
    cuCtxSetLimit() => context::accept, "cuCtxSetLimit", 3010;
    /// How the current context divides its memory.
    cuCtxGetCacheConfig(config: *mut c_uint) => context::give_zero, "cuCtxGetCacheConfig", 3020;
    /// Changes that.
    cuCtxSetCacheConfig() => context::accept, "cuCtxSetCacheConfig", 3020;
    /// How the current context's shared memory is arranged.
    cuCtxGetSharedMemConfig(config: *mut c_uint) => context::give_zero, "cuCtxGetSharedMemConfig", 4020;
    /// Changes that.
    cuCtxSetSharedMemConfig() => context::accept, "cuCtxSetSharedMemConfig", 4020;
    /// The range of priorities of streams.
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int)
        => context::priorities, "cuCtxGetStreamPriorityRange", 5050;
    /// Forgets what was to stay in the cache.
    cuCtxResetPersistingL2Cache() => context::accept, "cuCtxResetPersistingL2Cache", 11000;
    /// Lets the current context use another one's memory.
    cuCtxEnablePeerAccess() => context::accept, "cuCtxEnablePeerAccess", 4000;
    /// Ends that.
    cuCtxDisablePeerAccess() => context::accept, "cuCtxDisablePeerAccess", 4000;
    /// Remembers what the current context has to do.
    cuCtxRecordEvent() => context::accept, "cuCtxRecordEvent", 12050;
    /// Lets the current context wait.
    cuCtxWaitEvent() => context::accept, "cuCtxWaitEvent", 12050;
}
