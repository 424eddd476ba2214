//! Calls into NVML. Runs in the child process only; whatever goes wrong here (a crash included)
//! costs one sample.

use std::{
    ffi::{OsStr, c_char, c_uint},
    mem,
};

use nvml_wrapper::{
    Nvml,
    error::{NvmlError, nvml_sym, nvml_try},
};

use super::sample::{Device, MAX_ENTRIES, Process, ProcessKind, Sample};
use crate::evidence::Evidence;

/// The name that the dynamic loader knows on every machine with a driver. (`libnvidia-ml.so`
/// without the number comes with development packages only.)
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// Entries that a process list has room for at first.
const FIRST_CAPACITY: usize = 64;

/// `NVML_ERROR_INSUFFICIENT_SIZE`.
const INSUFFICIENT_SIZE: c_uint = 7;

/// An initialised NVML: the device files are open until it is dropped.
pub struct Library(Nvml);

impl Library {
    /// Loads the library and opens the driver.
    ///
    /// # Errors
    ///
    /// Why it cannot: no library, no driver, no permission.
    pub fn open(path: &OsStr) -> Result<Self, String> {
        let nvml = Nvml::builder()
            .lib_path(path)
            .init()
            .map_err(|error| match error {
                NvmlError::LibloadingError(error) => {
                    format!("the NVML library cannot be loaded: {error}")
                }
                error => format!("NVML cannot be initialised: {}", describe(&error)),
            })?;
        if nvml.lib().nvmlShutdown.is_err() {
            // Dropping it would call that function.
            mem::forget(nvml);
            return Err("the NVML library has no nvmlShutdown".to_owned());
        }
        Ok(Self(nvml))
    }

    /// Asks for everything.
    pub fn sample(&self) -> Sample {
        let devices = self
            .devices()
            .map_err(|reason| format!("NVML does not say which devices there are: {reason}"));
        Sample {
            driver_version: self.driver_version(),
            devices: devices.into(),
        }
    }

    fn devices(&self) -> Result<Vec<Device>, String> {
        let count = self.0.device_count().map_err(|error| describe(&error))?;
        if count as usize > MAX_ENTRIES {
            return Err(format!("it speaks of {count}"));
        }
        Ok((0..count).map(|index| self.device(index)).collect())
    }

    fn driver_version(&self) -> Evidence<String> {
        text(
            nvml_sym(self.0.lib().nvmlSystemGetDriverVersion.as_ref()),
            // SAFETY: the buffer has the length that is passed with it.
            |call, buffer, length| unsafe { call(buffer, length) },
        )
    }

    fn device(&self, index: u32) -> Device {
        let device = match self.0.device_by_index(index) {
            Ok(device) => device,
            Err(error) => return Device::unknown(index, &describe(&error)),
        };
        let lib = self.0.lib();
        // SAFETY: the handle is used while `device`, and so the library, is there.
        let handle = unsafe { device.handle() };
        let memory = self.memory(&device);
        let mut incomplete = Vec::new();
        let processes = self.processes(&device, &mut incomplete);
        Device {
            index,
            uuid: text(
                nvml_sym(lib.nvmlDeviceGetUUID.as_ref()),
                // SAFETY: the buffer has the length that is passed with it.
                |call, buffer, length| unsafe { call(handle, buffer, length) },
            ),
            name: text(
                nvml_sym(lib.nvmlDeviceGetName.as_ref()),
                // SAFETY: the buffer has the length that is passed with it.
                |call, buffer, length| unsafe { call(handle, buffer, length) },
            ),
            pci_bus_id: self.pci_bus_id(&device),
            minor: device
                .minor_number()
                .map_err(|error| describe(&error))
                .into(),
            total: memory.total,
            used: memory.used,
            reserved: memory.reserved,
            free: memory.free,
            used_includes_reserved: memory.used_includes_reserved,
            processes,
            processes_incomplete: incomplete,
        }
    }

    fn pci_bus_id(&self, device: &nvml_wrapper::Device<'_>) -> Evidence<String> {
        let read = || {
            let call = nvml_sym(self.0.lib().nvmlDeviceGetPciInfo_v3.as_ref())?;
            // SAFETY: the struct is plain numbers, for which zero is a value; the call fills it, and
            // its type is the one that the bindings give this version of the call.
            let info = unsafe {
                let mut info = mem::zeroed();
                nvml_try(call(device.handle(), &raw mut info))?;
                info
            };
            Ok(until_nul(&info.busId))
        };
        Evidence::from(read().map_err(|error| describe(&error)))
    }

    fn memory(&self, device: &nvml_wrapper::Device<'_>) -> Memory {
        match device.memory_info() {
            Ok(info) => Memory {
                total: Evidence::Value(info.total),
                used: Evidence::Value(info.used),
                reserved: Evidence::Value(info.reserved),
                free: Evidence::Value(info.free),
                used_includes_reserved: false,
            },
            Err(error) if is_missing(&error) => self.memory_v1(device),
            Err(error) => Memory::unknown(&error),
        }
    }

    /// The call of drivers before 510, which has no reserved memory of its own.
    fn memory_v1(&self, device: &nvml_wrapper::Device<'_>) -> Memory {
        let read = || {
            let call = nvml_sym(self.0.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
            // SAFETY: as in `pci_bus_id`.
            unsafe {
                let mut info = mem::zeroed();
                nvml_try(call(device.handle(), &raw mut info))?;
                Ok(info)
            }
        };
        match read() {
            Ok(info) => Memory {
                total: Evidence::Value(info.total),
                used: Evidence::Value(info.used),
                reserved: Evidence::not_available(
                    "this driver is too old to tell reserved from used memory",
                ),
                free: Evidence::Value(info.free),
                used_includes_reserved: true,
            },
            Err(error) => Memory::unknown(&error),
        }
    }

    /// The three process lists as one. Each of its calls exists in up to three versions; the newest
    /// that the library has is asked.
    fn processes(
        &self,
        device: &nvml_wrapper::Device<'_>,
        incomplete: &mut Vec<String>,
    ) -> Evidence<Vec<Process>> {
        let lib = self.0.lib();
        // SAFETY: as in `device`.
        let handle = unsafe { device.handle() };
        // A macro, since the calls differ in the type of their entries, which has no name here; the
        // entries of the oldest version have no instances.
        macro_rules! list {
            ($kind:expr, $v3:ident, $v2:ident, $v1:ident) => {
                list(nvml_sym(lib.$v3.as_ref()), handle, |entry| {
                    Process::new($kind, entry.pid, entry.usedGpuMemory)
                        .on(entry.gpuInstanceId, entry.computeInstanceId)
                })
                .or_else(|error| {
                    older(error, || {
                        list(nvml_sym(lib.$v2.as_ref()), handle, |entry| {
                            Process::new($kind, entry.pid, entry.usedGpuMemory)
                                .on(entry.gpuInstanceId, entry.computeInstanceId)
                        })
                    })
                })
                .or_else(|error| {
                    older(error, || {
                        list(nvml_sym(lib.$v1.as_ref()), handle, |entry| {
                            Process::new($kind, entry.pid, entry.usedGpuMemory)
                        })
                    })
                })
            };
        }
        let mut processes = match list!(
            ProcessKind::Compute,
            nvmlDeviceGetComputeRunningProcesses_v3,
            nvmlDeviceGetComputeRunningProcesses_v2,
            nvmlDeviceGetComputeRunningProcesses
        ) {
            Ok(processes) => processes,
            Err(error) => return Evidence::not_available(error.to_string()),
        };
        let mps = list!(
            ProcessKind::Mps,
            nvmlDeviceGetMPSComputeRunningProcesses_v3,
            nvmlDeviceGetMPSComputeRunningProcesses_v2,
            nvmlDeviceGetMPSComputeRunningProcesses
        );
        let graphics = list!(
            ProcessKind::Graphics,
            nvmlDeviceGetGraphicsRunningProcesses_v3,
            nvmlDeviceGetGraphicsRunningProcesses_v2,
            nvmlDeviceGetGraphicsRunningProcesses
        );
        for (name, list) in [("MPS", mps), ("graphics", graphics)] {
            match list {
                Ok(more) => processes.extend(more),
                // A device that cannot draw, a driver without the service: nothing is missing.
                Err(ListError::Nvml(NvmlError::NotSupported)) => {}
                Err(error) => incomplete.push(format!("no list of {name} processes: {error}")),
            }
        }
        Evidence::Value(processes)
    }
}

struct Memory {
    total: Evidence<u64>,
    used: Evidence<u64>,
    reserved: Evidence<u64>,
    free: Evidence<u64>,
    used_includes_reserved: bool,
}

impl Memory {
    fn unknown(error: &NvmlError) -> Self {
        let missing = || Evidence::not_available(describe(error));
        Self {
            total: missing(),
            used: missing(),
            reserved: missing(),
            free: missing(),
            used_includes_reserved: false,
        }
    }
}

impl Process {
    fn new(kind: ProcessKind, pid: c_uint, used: u64) -> Self {
        Self {
            pid,
            // NVML_VALUE_NOT_AVAILABLE
            used: if used == u64::MAX {
                Evidence::not_available("the driver does not say what the process uses")
            } else {
                Evidence::Value(used)
            },
            kind,
            gpu_instance: None,
            compute_instance: None,
        }
    }

    /// On the given parts of a split device; all ones where it is not split.
    fn on(mut self, gpu_instance: c_uint, compute_instance: c_uint) -> Self {
        let part = |instance| (instance != c_uint::MAX).then_some(instance);
        self.gpu_instance = part(gpu_instance);
        self.compute_instance = part(compute_instance);
        self
    }
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("{}", describe(.0))]
    Nvml(#[from] NvmlError),
    #[error("NVML speaks of {0} processes")]
    TooMany(c_uint),
    #[error("the list grows faster than it is read")]
    Growing,
}

/// Asks with the older call if the newer one is missing; any other error stands.
fn older<T>(error: ListError, ask: impl FnOnce() -> Result<T, ListError>) -> Result<T, ListError> {
    match error {
        ListError::Nvml(error) if is_missing(&error) => ask(),
        error => Err(error),
    }
}

/// The error for people. The wrapper's texts serve but for two: the text of the dynamic loader for
/// a call that the library does not have, and a misspelt one.
fn describe(error: &NvmlError) -> String {
    match error {
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            "this version of the driver does not offer it".to_owned()
        }
        NvmlError::GpuLost => "the GPU is lost: it does not answer on its bus".to_owned(),
        error => error.to_string(),
    }
}

/// Whether the error says that this version of a call does not exist: not in the library, or not
/// in the driver.
fn is_missing(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound
    )
}

/// Reads one list, with one version of its call.
fn list<D: Copy, T: Copy>(
    call: Result<&unsafe extern "C" fn(D, *mut c_uint, *mut T) -> c_uint, NvmlError>,
    device: D,
    convert: impl Fn(&T) -> Process,
) -> Result<Vec<Process>, ListError> {
    let call = call?;
    let mut capacity = FIRST_CAPACITY;
    // Processes may start while the list is read, but not for ever.
    for _ in 0..4 {
        // SAFETY: the entries of all versions are plain numbers, for which zero is a value.
        let mut entries: Vec<T> = vec![unsafe { mem::zeroed() }; capacity];
        let room = c_uint::try_from(capacity).unwrap_or(c_uint::MAX);
        let mut count = room;
        // SAFETY: the call writes at most `count` entries of its own type, for which there is room.
        let code = unsafe { call(device, &raw mut count, entries.as_mut_ptr()) };
        if code == INSUFFICIENT_SIZE && count > room {
            if count as usize > MAX_ENTRIES {
                return Err(ListError::TooMany(count));
            }
            capacity = count as usize + FIRST_CAPACITY;
            continue;
        }
        nvml_try(code)?;
        if count > room {
            return Err(ListError::TooMany(count));
        }
        return Ok(entries[..count as usize].iter().map(convert).collect());
    }
    Err(ListError::Growing)
}

/// Calls a function that fills a buffer with text.
fn text<F>(
    function: Result<F, NvmlError>,
    call: impl FnOnce(F, *mut c_char, c_uint) -> c_uint,
) -> Evidence<String> {
    /// More than any of NVML's `*_BUFFER_SIZE`.
    const LENGTH: u8 = 128;
    let read = || {
        let function = function?;
        let mut buffer: [c_char; LENGTH as usize] = [0; LENGTH as usize];
        nvml_try(call(function, buffer.as_mut_ptr(), LENGTH.into()))?;
        Ok(until_nul(&buffer))
    };
    Evidence::from(read().map_err(|error| describe(&error)))
}

/// The text up to the first NUL, if there is one. The parent makes it fit to be shown.
fn until_nul(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .map(|&c| c.cast_unsigned())
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry as NVML has it.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Entry {
        pid: c_uint,
        used: u64,
    }

    type Call = unsafe extern "C" fn(c_uint, *mut c_uint, *mut Entry) -> c_uint;

    /// A device is the number of its processes.
    unsafe extern "C" fn honest(device: c_uint, count: *mut c_uint, entries: *mut Entry) -> c_uint {
        // SAFETY: `list` passes a count and that many entries.
        unsafe {
            let room = *count;
            *count = device;
            if room < device {
                return INSUFFICIENT_SIZE;
            }
            for index in 0..device {
                let entry = Entry {
                    pid: index + 1,
                    used: u64::MAX - u64::from(index),
                };
                entries.add(index as usize).write(entry);
            }
        }
        0
    }

    unsafe extern "C" fn boasting(_: c_uint, count: *mut c_uint, _: *mut Entry) -> c_uint {
        // SAFETY: `list` passes a count.
        unsafe { *count += 1 };
        0
    }

    unsafe extern "C" fn growing(_: c_uint, count: *mut c_uint, _: *mut Entry) -> c_uint {
        // SAFETY: `list` passes a count.
        unsafe { *count += 1 };
        INSUFFICIENT_SIZE
    }

    unsafe extern "C" fn lost(_: c_uint, _: *mut c_uint, _: *mut Entry) -> c_uint {
        15
    }

    fn read(call: Call, device: c_uint) -> Result<Vec<Process>, ListError> {
        list(Ok(&call), device, |entry| {
            Process::new(ProcessKind::Compute, entry.pid, entry.used)
        })
    }

    #[test]
    fn a_list_of_any_length_is_read() {
        for count in [0, 1, 64, 65, 10_000] {
            assert_eq!(read(honest, count).unwrap().len(), count as usize);
        }
        let processes = read(honest, 2).unwrap();
        assert!(!processes[0].used.is_available());
        assert_eq!(processes[1].used, Evidence::Value(u64::MAX - 1));
    }

    #[test]
    fn a_list_that_cannot_be_true_is_an_error() {
        assert!(matches!(
            read(honest, c_uint::MAX),
            Err(ListError::TooMany(c_uint::MAX))
        ));
        assert!(matches!(read(boasting, 0), Err(ListError::TooMany(65))));
        assert!(matches!(read(growing, 0), Err(ListError::Growing)));
        let error = read(lost, 0).unwrap_err();
        assert!(error.to_string().contains("lost"));
    }

    #[test]
    fn only_a_missing_call_is_replaced_by_an_older_one() {
        let missing = || ListError::Nvml(NvmlError::FunctionNotFound);
        assert!(older(missing(), || Ok(1)).is_ok());
        assert!(older(ListError::Nvml(NvmlError::GpuLost), || Ok(1)).is_err());
        assert!(older(ListError::Growing, || Ok(1)).is_err());
    }

    #[test]
    fn parts_of_a_split_device() {
        let process = Process::new(ProcessKind::Compute, 7, 0).on(c_uint::MAX, 3);
        assert_eq!(process.gpu_instance, None);
        assert_eq!(process.compute_instance, Some(3));
    }

    #[test]
    fn text_ends_at_the_first_nul_or_with_the_buffer() {
        let chars = |text: &[u8]| text.iter().map(|b| b.cast_signed()).collect::<Vec<_>>();
        assert_eq!(until_nul(&chars(b"H100\0rest")), "H100");
        assert_eq!(until_nul(&chars(b"full")), "full");
        assert_eq!(until_nul(&chars(b"\xff")), "\u{fffd}");
    }

    #[test]
    fn a_library_that_is_none_is_a_reason() {
        for path in ["/nonexistent/libnvidia-ml.so.1", "/etc/passwd"] {
            let error = Library::open(OsStr::new(path)).err().unwrap();
            assert!(error.contains("cannot be loaded"), "{error}");
        }
    }
}
