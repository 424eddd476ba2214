//! The library as seen through the crate that gputrace itself uses to talk to NVML.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use gputrace_test_rig::config::{Config, RIG, Rig};
use gputrace_test_rig::device::{Client, Devices};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const TOTAL: u64 = 16 << 30;
const RESERVED: u64 = 200 << 20;
const CONTEXT: u64 = 300 << 20;

/// A rig of its own for a test, and the only one at a time: the environment names it.
struct Fixture {
    devices: Arc<Devices>,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Fixture {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_gpus(2, TOTAL);
        config.gpu[0].reserved = RESERVED;
        let rig = Rig::new(folder.path());
        rig.store(&config).unwrap();
        set(RIG, folder.path().to_str().unwrap());
        Self {
            devices: Devices::open(rig).unwrap(),
            _folder: folder,
            _turn: turn,
        }
    }
}

fn set(key: &str, value: &str) {
    // SAFETY: one test at a time, and nothing else in this process uses the environment meanwhile.
    unsafe { std::env::set_var(key, value) };
}

fn nvml() -> Result<Nvml, NvmlError> {
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libnvidia_ml.so");
    Nvml::builder().lib_path(library.as_os_str()).init()
}

fn bytes(processes: &[ProcessInfo]) -> Vec<(u32, u64)> {
    processes
        .iter()
        .map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => (process.pid, bytes),
            UsedGpuMemory::Unavailable => (process.pid, u64::MAX),
        })
        .collect()
}

#[test]
fn devices_are_those_of_the_rig() {
    let _fixture = Fixture::new();
    let nvml = nvml().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "550.163.01");
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert!(matches!(
        nvml.device_by_index(2),
        Err(NvmlError::InvalidArg)
    ));
    let device = nvml.device_by_index(1).unwrap();
    assert_eq!(device.name().unwrap(), "Fake H100");
    assert!(device.uuid().unwrap().starts_with("GPU-"));
    assert_eq!(device.minor_number().unwrap(), 1);
    assert_eq!(device.pci_info().unwrap().bus_id, "00000000:11:00.0");
}

#[test]
fn memory_and_processes_are_what_the_clients_hold() {
    let fixture = Fixture::new();
    let nvml = nvml().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(bytes(&device.running_compute_processes().unwrap()), []);

    let client = Client::open(&fixture.devices).unwrap();
    assert_eq!(bytes(&device.running_compute_processes().unwrap()), []);
    client.open_context(0).unwrap();
    client.allocate(0, 5 << 20).unwrap();
    let held = CONTEXT + (5 << 20);
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.reserved), (TOTAL, RESERVED));
    assert_eq!((memory.used, memory.free), (held, TOTAL - RESERVED - held));
    let expected = [(std::process::id(), held)];
    assert_eq!(
        bytes(&device.running_compute_processes().unwrap()),
        expected
    );
    assert_eq!(
        bytes(&device.running_compute_processes_v2().unwrap()),
        expected
    );
    assert_eq!(bytes(&device.running_graphics_processes().unwrap()), []);
    assert_eq!(bytes(&device.mps_running_compute_processes().unwrap()), []);
    let other = nvml.device_by_index(1).unwrap();
    assert_eq!(bytes(&other.running_compute_processes().unwrap()), []);

    drop(client);
    assert_eq!(device.memory_info().unwrap().used, 0, "it reaps first");
}

#[test]
fn memory_of_a_dead_opener_is_still_its_own_unless_hidden() {
    let fixture = Fixture::new();
    let nvml = nvml().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    // The child opens the devices and ends; its own child keeps the open file.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the children take no lock of this process: there is one test at a time.
    let opener = unsafe { libc::fork() };
    if opener == 0 {
        drop(ours);
        let client = Client::open(&fixture.devices).unwrap();
        client.allocate(0, 1 << 30).unwrap();
        // SAFETY: as above; both end without unwinding.
        unsafe {
            if libc::fork() == 0 {
                // Until the test is over: its end of the pair is closed.
                let mut word = [0];
                std::io::Read::read(&mut &theirs, &mut word).unwrap();
                libc::_exit(0);
            }
            libc::_exit(0);
        }
    }
    // SAFETY: the child of above.
    unsafe { libc::waitpid(opener, std::ptr::null_mut(), 0) };
    let pid = u32::try_from(opener).unwrap();
    let listed = || bytes(&device.running_compute_processes().unwrap());
    assert_eq!(listed(), [(pid, 1 << 30)]);
    set("FAKE_NVML_DEAD", "hidden");
    assert_eq!(listed(), []);
    set("FAKE_NVML_DEAD", "");
    assert_eq!(device.memory_info().unwrap().used, 1 << 30);
    drop(ours);
    while device.memory_info().unwrap().used != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn without_a_rig_there_is_no_driver() {
    let _fixture = Fixture::new();
    set(RIG, "");
    assert!(matches!(nvml(), Err(NvmlError::DriverNotLoaded)));
}

#[test]
fn it_fails_when_told_to() {
    let _fixture = Fixture::new();
    let nvml = nvml().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    set(
        "FAKE_NVML_ERROR",
        "nvmlDeviceGetUUID:15,nvmlDeviceGetComputeRunningProcesses_v3:3",
    );
    let uuid = device.uuid();
    let processes = device.running_compute_processes();
    let older = device.running_compute_processes_v2();
    set("FAKE_NVML_ERROR", "");
    assert!(matches!(uuid, Err(NvmlError::GpuLost)));
    assert!(matches!(processes, Err(NvmlError::NotSupported)));
    assert_eq!(bytes(&older.unwrap()), []);
}

#[test]
fn it_talks_nonsense_when_told_to() {
    let _fixture = Fixture::new();
    let nvml = nvml().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    set("FAKE_NVML_NONSENSE", "1");
    let memory = device.memory_info();
    let processes = device.running_compute_processes_count();
    set("FAKE_NVML_NONSENSE", "");
    assert!(memory.unwrap().used > TOTAL);
    assert!(processes.unwrap() > 1_000_000);
}

#[test]
fn it_hangs_when_told_to() {
    let _fixture = Fixture::new();
    let nvml = nvml().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    // SAFETY: the child makes one call and ends without unwinding; there is one test at a time.
    let child = unsafe { libc::fork() };
    if child == 0 {
        set("FAKE_NVML_HANG", "nvmlDeviceGetName");
        let _ = device.name();
        // SAFETY: ends the child without the test harness's tear-down.
        unsafe { libc::_exit(0) };
    }
    let stat = format!("/proc/{child}/stat");
    let state = || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    };
    while !matches!(state(), 'S' | 'Z') {
        std::thread::yield_now();
    }
    let mut status = 0;
    // SAFETY: the child of above, which nobody else waits for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    assert!(libc::WIFSIGNALED(status), "the call came back");
}
