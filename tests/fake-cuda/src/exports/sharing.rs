//! Pools, and memory of other processes.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{activity, ipc, pools, vmm};
use std::ffi::{c_int, c_uint, c_void};

exports! {
    /// Creates a pool.
    cuMemPoolCreate(pool: *mut u64, properties: *const pools::Properties) => pools::create, "cuMemPoolCreate", 11020;
    /// Destroys a pool.
    cuMemPoolDestroy(pool: u64) => pools::destroy, "cuMemPoolDestroy", 11020;
    /// Gives back what a pool keeps.
    cuMemPoolTrimTo(pool: u64, keep: usize) => pools::trim, "cuMemPoolTrimTo", 11020;
    /// A property of a pool.
    cuMemPoolGetAttribute(pool: u64, attribute: c_uint, value: *mut c_void)
        => pools::attribute, "cuMemPoolGetAttribute", 11020;
    /// Changes a property of a pool.
    cuMemPoolSetAttribute(pool: u64, attribute: c_uint, value: *const c_void)
        => pools::set_attribute, "cuMemPoolSetAttribute", 11020;
    /// Who may use a pool's memory.
    cuMemPoolGetAccess(flags: *mut c_uint, pool: u64, location: *const vmm::Location)
        => pools::access, "cuMemPoolGetAccess", 11020;
    /// Says who may use a pool's memory.
    cuMemPoolSetAccess(pool: u64, map: *const c_void, count: usize) => pools::set_access, "cuMemPoolSetAccess", 11020;
    /// Exports a pool.
    cuMemPoolExportToShareableHandle(exported: *mut c_int, pool: u64, kind: c_uint, flags: u64)
        => pools::export, "cuMemPoolExportToShareableHandle", 11020;
    /// Imports a pool.
    cuMemPoolImportFromShareableHandle(pool: *mut u64, exported: u64, kind: c_uint, flags: u64)
        => pools::import, "cuMemPoolImportFromShareableHandle", 11020;
    /// Exports memory of a pool.
    cuMemPoolExportPointer(data: *mut ipc::MemHandle, pointer: u64)
        => pools::export_pointer, "cuMemPoolExportPointer", 11020;
    /// Imports memory of a pool.
    cuMemPoolImportPointer(pointer: *mut u64, pool: u64, data: *const ipc::MemHandle)
        => pools::import_pointer, "cuMemPoolImportPointer", 11020;

    /// Exports an allocation.
    cuIpcGetMemHandle(handle: *mut ipc::MemHandle, pointer: u64) => ipc::get_handle, "cuIpcGetMemHandle", 4010;
    /// Opens another process's allocation.
    cuIpcOpenMemHandle(pointer: *mut u64, handle: ipc::MemHandle, flags: c_uint) => ipc::open, "cuIpcOpenMemHandle", 4010;
    /// Opens another process's allocation.
    cuIpcOpenMemHandle_v2(pointer: *mut u64, handle: ipc::MemHandle, flags: c_uint)
        => ipc::open, "cuIpcOpenMemHandle", 11000;
    /// Closes another process's allocation.
    cuIpcCloseMemHandle(pointer: u64) => ipc::close, "cuIpcCloseMemHandle", 4010;
    /// Exports an event.
    cuIpcGetEventHandle() => activity::not_supported, "cuIpcGetEventHandle", 4010;
    /// Opens another process's event.
    cuIpcOpenEventHandle() => activity::not_supported, "cuIpcOpenEventHandle", 4010;

    /// Imports memory of another API.
    cuImportExternalMemory(memory: *mut u64, description: *const ipc::HandleDescription)
        => ipc::import_external, "cuImportExternalMemory", 10000;
    /// Maps memory of another API.
    cuExternalMemoryGetMappedBuffer(pointer: *mut u64, memory: u64, description: *const ipc::BufferDescription)
        => ipc::mapped_buffer, "cuExternalMemoryGetMappedBuffer", 10000;
    /// Maps memory of another API as an array.
    cuExternalMemoryGetMappedMipmappedArray()
        => activity::not_supported, "cuExternalMemoryGetMappedMipmappedArray", 10000;
    /// Gives memory of another API up.
    cuDestroyExternalMemory(memory: u64) => ipc::destroy_external, "cuDestroyExternalMemory", 10000;
    /// Imports a semaphore of another API.
    cuImportExternalSemaphore() => activity::not_supported, "cuImportExternalSemaphore", 10000;
}
