//! The old library lacks the newer functions and answers through the older ones.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use gputrace_test_rig::config::{Config, RIG, Rig};
use gputrace_test_rig::device::{Client, Devices};
use gputrace_test_rig::dynamic::{Library, LoadError};
use gputrace_test_rig::functions;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::ffi::{c_uint, c_void};

functions! {
    /// What an old driver's users call.
    struct Functions {
        memory = "nvmlDeviceGetMemoryInfo": fn(*mut c_void, *mut [u64; 3]);
        processes = "nvmlDeviceGetComputeRunningProcesses":
            fn(*mut c_void, *mut c_uint, *mut [u64; 2]);
    }
}

#[test]
fn only_the_older_functions_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new(folder.path());
    let mut config = Config::with_gpus(1, 16 << 30);
    config.gpu[0].reserved = 1 << 30;
    rig.store(&config).unwrap();
    // SAFETY: the only test, before it starts a thread.
    unsafe { std::env::set_var(RIG, folder.path()) };
    let client = Client::open(&Devices::open(rig).unwrap()).unwrap();
    client.allocate(0, 5 << 20).unwrap();

    let path = std::env::current_exe()
        .unwrap()
        .with_file_name("libnvidia_ml_old.so");
    let nvml = Nvml::builder().lib_path(path.as_os_str()).init().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "470.256.02");
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(
        device.memory_info(),
        Err(NvmlError::FailedToLoadSymbol(_))
    ));
    let newest = device.running_compute_processes();
    assert!(matches!(newest, Err(NvmlError::FailedToLoadSymbol(_))));
    let older = device.running_compute_processes_v2().unwrap();
    assert_eq!(older[0].pid, std::process::id());

    let library = Library::open(&path, 0).unwrap();
    let functions = Functions::load::<LoadError>(|name| library.symbol(name)).unwrap();
    // SAFETY: the handle is the library's own.
    let handle = unsafe { device.handle() }.cast();
    let (mut memory, mut count, mut infos) = ([0; 3], 2, [[0; 2]; 2]);
    // SAFETY: the functions' own layouts, and room for two processes.
    unsafe {
        assert_eq!((functions.memory)(handle, &raw mut memory), 0);
        assert_eq!(
            (functions.processes)(handle, &raw mut count, infos.as_mut_ptr()),
            0
        );
    }
    let used = (1 << 30) + (5 << 20);
    assert_eq!(memory, [16 << 30, (16 << 30) - used, used]);
    assert_eq!(count, 1);
    assert_eq!(infos[0], [u64::from(std::process::id()), 5 << 20]);
}
