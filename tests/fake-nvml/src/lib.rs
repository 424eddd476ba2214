//! A stand-in for NVIDIA's `libnvidia-ml.so.1` as driver 550 has it.
//!
//! It tells what the devices of a rig really hold. What it leaves out is what nobody in this project
//! asks for; how it can be made to misbehave says the module `hostility`.

mod nvml;

use nvml::{Code, device, memory, processes, system};
use std::ffi::{c_char, c_uint};

nvml::exports! {
    /// Initialises the library.
    nvmlInit() => system::init;
    /// Initialises the library.
    nvmlInit_v2() => system::init;
    /// Initialises the library; no flag makes a difference.
    nvmlInitWithFlags(flags: c_uint) => system::init_with_flags;
    /// Undoes one initialisation.
    nvmlShutdown() => system::shutdown;
    /// Version of the driver.
    nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) => system::driver_version;
    /// Version of this library.
    nvmlSystemGetNVMLVersion(text: *mut c_char, length: c_uint) => system::library_version;

    /// The number of devices.
    nvmlDeviceGetCount(count: *mut c_uint) => device::count;
    /// The number of devices.
    nvmlDeviceGetCount_v2(count: *mut c_uint) => device::count;
    /// The device with this index.
    nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut device::Handle) => device::by_index;
    /// The device with this index.
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut device::Handle) => device::by_index;
    /// The name of a device.
    nvmlDeviceGetName(device: device::Handle, text: *mut c_char, length: c_uint) => device::name;
    /// The UUID of a device.
    nvmlDeviceGetUUID(device: device::Handle, text: *mut c_char, length: c_uint) => device::uuid;
    /// The N of `/dev/nvidiaN`.
    nvmlDeviceGetMinorNumber(device: device::Handle, number: *mut c_uint) => device::minor_number;
    /// Where on the PCI bus a device is.
    nvmlDeviceGetPciInfo_v3(device: device::Handle, info: *mut device::PciInfo) => device::pci_info;

    /// Memory of a device; what the driver reserves counts as used.
    nvmlDeviceGetMemoryInfo(device: device::Handle, info: *mut memory::Memory) => memory::info;
    /// Memory of a device, with what the driver reserves apart.
    nvmlDeviceGetMemoryInfo_v2(device: device::Handle, info: *mut memory::MemoryV2) => memory::info_v2;

    /// Processes with a compute context.
    nvmlDeviceGetComputeRunningProcesses(device: device::Handle, count: *mut c_uint, infos: *mut processes::ProcessV1)
        => processes::compute_v1;
    /// Processes with a compute context.
    nvmlDeviceGetComputeRunningProcesses_v2(device: device::Handle, count: *mut c_uint, infos: *mut processes::Process)
        => processes::compute;
    /// Processes with a compute context.
    nvmlDeviceGetComputeRunningProcesses_v3(device: device::Handle, count: *mut c_uint, infos: *mut processes::Process)
        => processes::compute;
    /// Processes with a graphics context.
    nvmlDeviceGetGraphicsRunningProcesses(device: device::Handle, count: *mut c_uint, infos: *mut processes::ProcessV1)
        => processes::none_v1;
    /// Processes with a graphics context.
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: device::Handle, count: *mut c_uint, infos: *mut processes::Process)
        => processes::none;
    /// Processes with a graphics context.
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: device::Handle, count: *mut c_uint, infos: *mut processes::Process)
        => processes::none;
    /// Processes with a compute context through the Multi-Process Service.
    nvmlDeviceGetMPSComputeRunningProcesses(device: device::Handle, count: *mut c_uint, infos: *mut processes::ProcessV1)
        => processes::none_v1;
    /// Processes with a compute context through the Multi-Process Service.
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: device::Handle, count: *mut c_uint, infos: *mut processes::Process)
        => processes::none;
    /// Processes with a compute context through the Multi-Process Service.
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: device::Handle, count: *mut c_uint, infos: *mut processes::Process)
        => processes::none;
}

/// What a result code means.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    system::error_string(code).as_ptr()
}

/// Version of the driver that this library belongs to.
const DRIVER_VERSION: &str = "550.163.01";
