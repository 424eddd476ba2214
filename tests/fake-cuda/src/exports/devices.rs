//! Initialisation, results, addresses of functions, devices.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{activity, attributes, device, driver, graphs, green, pools, procaddr, result};
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
    /// Tables of functions that are not public.
    cuGetExportTable() => activity::no_table, "cuGetExportTable", 3000;

    /// The number of devices.
    cuDeviceGetCount(count: *mut c_int) => device::count, "cuDeviceGetCount", 2000;
    /// The device with this ordinal.
    cuDeviceGet(device: *mut c_int, ordinal: c_int) => device::get, "cuDeviceGet", 2000;
    /// The name of a device.
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) => device::name, "cuDeviceGetName", 2000;
    /// The bytes of memory on a device.
    cuDeviceTotalMem(bytes: *mut c_uint, device: c_int) => device::total_memory_v1, "cuDeviceTotalMem", 2000;
    /// The bytes of memory on a device.
    cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) => device::total_memory, "cuDeviceTotalMem", 3020;
    /// The UUID of a device.
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) => device::uuid, "cuDeviceGetUuid", 9020;
    /// The UUID of a device or of a part of one.
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) => device::uuid, "cuDeviceGetUuid", 11040;
    /// A property of a device.
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int)
        => attributes::attribute, "cuDeviceGetAttribute", 2000;
    /// The version of what a device can do.
    cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int)
        => attributes::capability, "cuDeviceComputeCapability", 2000;
    /// Some properties of a device.
    cuDeviceGetProperties(properties: *mut attributes::Properties, device: c_int)
        => attributes::properties, "cuDeviceGetProperties", 2000;
    /// Whether a context can be given a part of a device.
    cuDeviceGetExecAffinitySupport(support: *mut c_int, kind: c_uint, device: c_int)
        => attributes::no_affinity, "cuDeviceGetExecAffinitySupport", 11040;
    /// The widest texture over linear memory.
    cuDeviceGetTexture1DLinearMaxWidth(width: *mut usize)
        => attributes::linear_texture_width, "cuDeviceGetTexture1DLinearMaxWidth", 11010;
    /// The identifier that another system has for a device.
    cuDeviceGetLuid() => activity::not_supported, "cuDeviceGetLuid", 10000;
    /// The PCI address of a device.
    cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int)
        => device::pci_bus_id, "cuDeviceGetPCIBusId", 4010;
    /// The device with a PCI address.
    cuDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char)
        => device::by_pci_bus_id, "cuDeviceGetByPCIBusId", 4010;
    /// Whether a device can use the memory of another one.
    cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int)
        => device::can_access_peer, "cuDeviceCanAccessPeer", 4000;
    /// A property of the connection of two devices.
    cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, device: c_int, peer: c_int)
        => device::peer_attribute, "cuDeviceGetP2PAttribute", 8000;
    /// The processors of a device.
    cuDeviceGetDevResource(device: c_int, resource: *mut green::Resource, kind: c_uint)
        => green::of_device, "cuDeviceGetDevResource", 12040;
    /// The pool that a device begins with.
    cuDeviceGetDefaultMemPool(pool: *mut u64, device: c_int) => pools::default_pool, "cuDeviceGetDefaultMemPool", 11020;
    /// The pool from which a device's memory comes.
    cuDeviceGetMemPool(pool: *mut u64, device: c_int) => pools::current_pool, "cuDeviceGetMemPool", 11020;
    /// Chooses that pool.
    cuDeviceSetMemPool(device: c_int, pool: u64) => pools::set_pool, "cuDeviceSetMemPool", 11020;
    /// Gives unused memory of graphs back to the device.
    cuDeviceGraphMemTrim(device: c_int) => graphs::trim, "cuDeviceGraphMemTrim", 11040;
    /// How much memory graphs use.
    cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: *mut c_void)
        => graphs::attribute, "cuDeviceGetGraphMemAttribute", 11040;
    /// Takes highest values back.
    cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_uint, value: *const c_void)
        => graphs::set_attribute, "cuDeviceSetGraphMemAttribute", 11040;

    /// A profiler's.
    cuProfilerInitialize() => activity::accept, "cuProfilerInitialize", 4000;
    /// A profiler's.
    cuProfilerStart() => activity::accept, "cuProfilerStart", 4000;
    /// A profiler's.
    cuProfilerStop() => activity::accept, "cuProfilerStop", 4000;
}
