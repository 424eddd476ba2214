//! Memory by pointers, host memory, arrays, physical memory and addresses.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{activity, arrays, host, memory, pointers, vmm};
use std::ffi::{c_int, c_uint, c_void};

exports! {
    /// Allocates memory on the device of the current context.
    cuMemAlloc(pointer: *mut u32, bytes: c_uint) => memory::alloc_v1, "cuMemAlloc", 2000;
    /// Allocates memory on the device of the current context.
    cuMemAlloc_v2(pointer: *mut u64, bytes: usize) => memory::alloc, "cuMemAlloc", 3020;
    /// Allocates memory for rows.
    cuMemAllocPitch(pointer: *mut u32, pitch: *mut u32, width: c_uint, height: c_uint, element: c_uint)
        => memory::alloc_pitch_v1, "cuMemAllocPitch", 2000;
    /// Allocates memory for rows.
    cuMemAllocPitch_v2(pointer: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint)
        => memory::alloc_pitch, "cuMemAllocPitch", 3020;
    /// Allocates memory that the program may use as its own too.
    cuMemAllocManaged(pointer: *mut u64, bytes: usize, flags: c_uint) => memory::alloc_managed, "cuMemAllocManaged", 6000;
    /// Allocates memory in the order of a stream.
    cuMemAllocAsync(pointer: *mut u64, bytes: usize, stream: u64) => memory::alloc_async, "cuMemAllocAsync", 11020;
    /// Allocates memory in the order of a stream.
    cuMemAllocAsync_ptsz(pointer: *mut u64, bytes: usize, stream: u64) => memory::alloc_async, "cuMemAllocAsync", 11020;
    /// Allocates memory from a pool in the order of a stream.
    cuMemAllocFromPoolAsync(pointer: *mut u64, bytes: usize, pool: u64, stream: u64)
        => memory::alloc_from_pool, "cuMemAllocFromPoolAsync", 11020;
    /// Allocates memory from a pool in the order of a stream.
    cuMemAllocFromPoolAsync_ptsz(pointer: *mut u64, bytes: usize, pool: u64, stream: u64)
        => memory::alloc_from_pool, "cuMemAllocFromPoolAsync", 11020;
    /// Frees memory.
    cuMemFree(pointer: u32) => memory::free_v1, "cuMemFree", 2000;
    /// Frees memory.
    cuMemFree_v2(pointer: u64) => memory::free, "cuMemFree", 3020;
    /// Frees memory in the order of a stream.
    cuMemFreeAsync(pointer: u64, stream: u64) => memory::free_async, "cuMemFreeAsync", 11020;
    /// Frees memory in the order of a stream.
    cuMemFreeAsync_ptsz(pointer: u64, stream: u64) => memory::free_async, "cuMemFreeAsync", 11020;
    /// The free and all bytes of the device of the current context.
    cuMemGetInfo(free: *mut u32, total: *mut u32) => memory::info_v1, "cuMemGetInfo", 2000;
    /// The free and all bytes of the device of the current context.
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => memory::info, "cuMemGetInfo", 3020;
    /// The allocation in which an address lies.
    cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, pointer: u64)
        => memory::address_range, "cuMemGetAddressRange", 3020;
    /// A property of what a pointer stands for.
    cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, pointer: u64)
        => pointers::attribute, "cuPointerGetAttribute", 4000;
    /// Properties of what a pointer stands for.
    cuPointerGetAttributes(count: c_uint, attributes: *const c_uint, data: *const *mut c_void, pointer: u64)
        => pointers::attributes, "cuPointerGetAttributes", 7000;
    /// Changes a property of what a pointer stands for.
    cuPointerSetAttribute() => activity::accept, "cuPointerSetAttribute", 6000;

    /// Allocates page-locked host memory.
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) => host::alloc, "cuMemHostAlloc", 2020;
    /// Allocates page-locked host memory.
    cuMemAllocHost(pointer: *mut *mut c_void, bytes: c_uint) => host::alloc_plain_v1, "cuMemAllocHost", 2000;
    /// Allocates page-locked host memory.
    cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize) => host::alloc_plain, "cuMemAllocHost", 3020;
    /// Frees page-locked host memory.
    cuMemFreeHost(pointer: *mut c_void) => host::free, "cuMemFreeHost", 2000;
    /// Locks memory of the program.
    cuMemHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint) => host::register, "cuMemHostRegister", 4000;
    /// Locks memory of the program.
    cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint) => host::register, "cuMemHostRegister", 6050;
    /// Unlocks memory of the program.
    cuMemHostUnregister(pointer: *mut c_void) => host::unregister, "cuMemHostUnregister", 4000;
    /// The device's address of page-locked host memory.
    cuMemHostGetDevicePointer_v2(pointer: *mut u64, host: *mut c_void, flags: c_uint)
        => host::device_pointer, "cuMemHostGetDevicePointer", 3020;
    /// With which flags host memory was allocated.
    cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void) => host::flags, "cuMemHostGetFlags", 2030;

    /// Creates an array of one or two dimensions.
    cuArrayCreate(array: *mut u64, shape: *const arrays::Flat32) => arrays::create_v1, "cuArrayCreate", 2000;
    /// Creates an array of one or two dimensions.
    cuArrayCreate_v2(array: *mut u64, shape: *const arrays::Flat) => arrays::create, "cuArrayCreate", 3020;
    /// Creates an array of up to three dimensions.
    cuArray3DCreate(array: *mut u64, shape: *const arrays::Solid32) => arrays::create_3d_v1, "cuArray3DCreate", 2000;
    /// Creates an array of up to three dimensions.
    cuArray3DCreate_v2(array: *mut u64, shape: *const arrays::Solid) => arrays::create_3d, "cuArray3DCreate", 3020;
    /// Destroys an array.
    cuArrayDestroy(array: u64) => arrays::destroy, "cuArrayDestroy", 2000;
    /// The shape of an array.
    cuArrayGetDescriptor_v2(shape: *mut arrays::Flat, array: u64) => arrays::descriptor, "cuArrayGetDescriptor", 3020;
    /// The shape of an array.
    cuArray3DGetDescriptor_v2(shape: *mut arrays::Solid, array: u64)
        => arrays::descriptor_3d, "cuArray3DGetDescriptor", 3020;
    /// Creates an array of levels.
    cuMipmappedArrayCreate(array: *mut u64, shape: *const arrays::Solid, levels: c_uint)
        => arrays::create_mipmap, "cuMipmappedArrayCreate", 5000;
    /// Destroys an array of levels.
    cuMipmappedArrayDestroy(array: u64) => arrays::destroy_mipmap, "cuMipmappedArrayDestroy", 5000;
    /// A level of such an array.
    cuMipmappedArrayGetLevel(array: *mut u64, mipmap: u64, level: c_uint)
        => arrays::level, "cuMipmappedArrayGetLevel", 5000;

    /// Takes physical memory.
    cuMemCreate(handle: *mut u64, size: usize, properties: *const vmm::Properties, flags: u64)
        => vmm::create, "cuMemCreate", 10020;
    /// Gives up a reference to physical memory.
    cuMemRelease(handle: u64) => vmm::release, "cuMemRelease", 10020;
    /// A further reference to what is mapped at an address.
    cuMemRetainAllocationHandle(handle: *mut u64, address: u64) => vmm::retain, "cuMemRetainAllocationHandle", 11000;
    /// Maps physical memory.
    cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64) => vmm::map, "cuMemMap", 10020;
    /// Unmaps physical memory.
    cuMemUnmap(address: u64, size: usize) => vmm::unmap, "cuMemUnmap", 10020;
    /// Says who may use mapped memory.
    cuMemSetAccess(address: u64, size: usize, descriptions: *const c_void, count: usize)
        => vmm::set_access, "cuMemSetAccess", 10020;
    /// Who may use mapped memory.
    cuMemGetAccess(flags: *mut u64, location: *const vmm::Location, address: u64) => vmm::access, "cuMemGetAccess", 10020;
    /// Reserves addresses.
    cuMemAddressReserve(address: *mut u64, size: usize, alignment: usize, wanted: u64, flags: u64)
        => vmm::reserve, "cuMemAddressReserve", 10020;
    /// Gives addresses up.
    cuMemAddressFree(address: u64, size: usize) => vmm::free_addresses, "cuMemAddressFree", 10020;
    /// What sizes of physical memory are multiples of.
    cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const c_void, option: c_uint)
        => vmm::granularity, "cuMemGetAllocationGranularity", 10020;
    /// What physical memory was created as.
    cuMemGetAllocationPropertiesFromHandle(properties: *mut vmm::Properties, handle: u64)
        => vmm::properties, "cuMemGetAllocationPropertiesFromHandle", 10020;
    /// Exports physical memory.
    cuMemExportToShareableHandle(exported: *mut c_int, handle: u64, kind: c_uint, flags: u64)
        => vmm::export, "cuMemExportToShareableHandle", 10020;
    /// Imports physical memory.
    cuMemImportFromShareableHandle(handle: *mut u64, exported: u64, kind: c_uint)
        => vmm::import, "cuMemImportFromShareableHandle", 10020;
    /// A descriptor for a range of addresses.
    cuMemGetHandleForAddressRange() => activity::not_supported, "cuMemGetHandleForAddressRange", 11070;
    /// Maps physical memory into sparse arrays.
    cuMemMapArrayAsync() => activity::not_supported, "cuMemMapArrayAsync", 11010;
    /// Maps physical memory into sparse arrays.
    cuMemMapArrayAsync_ptsz() => activity::not_supported, "cuMemMapArrayAsync", 11010;

    /// Creates an object that stands for memory of several devices.
    cuMulticastCreate(handle: *mut u64, properties: *const vmm::Multicast)
        => vmm::multicast_create, "cuMulticastCreate", 12010;
    /// Adds a device to such an object.
    cuMulticastAddDevice(handle: u64) => vmm::multicast_change, "cuMulticastAddDevice", 12010;
    /// Adds memory to such an object.
    cuMulticastBindMem(handle: u64) => vmm::multicast_change, "cuMulticastBindMem", 12010;
    /// Adds mapped memory to such an object.
    cuMulticastBindAddr(handle: u64) => vmm::multicast_change, "cuMulticastBindAddr", 12010;
    /// Takes memory out of such an object.
    cuMulticastUnbind(handle: u64) => vmm::multicast_change, "cuMulticastUnbind", 12010;
    /// What sizes of such objects are multiples of.
    cuMulticastGetGranularity(granularity: *mut usize, properties: *const c_void, option: c_uint)
        => vmm::granularity, "cuMulticastGetGranularity", 12010;
}
