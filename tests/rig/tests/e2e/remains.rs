//! What a tracer can leave behind: pins, trace events, processes, and breakpoints in the code of
//! others.

use std::ffi::CStr;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;

/// Files through which the kernel shows what is set or pinned.
#[derive(Debug, PartialEq, Eq)]
pub struct Remains {
    /// Everything in the BPF file system.
    pins: Vec<PathBuf>,
    /// Probes that were set through the tracing file system.
    trace_events: Vec<String>,
}

impl Remains {
    /// What is there now.
    pub fn now() -> Self {
        let mut pins = Vec::new();
        walk(Path::new("/sys/fs/bpf"), &mut pins);
        pins.sort();
        let events = ["uprobe_events", "kprobe_events", "dynamic_events"];
        let folders = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        let trace_events = folders
            .iter()
            .flat_map(|folder| events.iter().map(move |name| Path::new(folder).join(name)))
            // Not there where tracefs is not mounted, and then nobody can have set one.
            .filter_map(|path| fs::read_to_string(path).ok())
            .collect();
        Self { pins, trace_events }
    }
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, found);
        }
        found.push(path);
    }
}

/// PIDs of the processes whose environment holds this text.
pub fn processes_with(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
    .collect()
}

/// The code of a function of a library that this process has loaded: where probes of the library's
/// file show as breakpoints.
pub struct Code {
    address: *const u8,
}

/// More than the trampoline of an exported function of the driver library.
const LENGTH: usize = 32;

impl Code {
    /// Loads the library for good and looks up the function.
    pub fn of(library: &Path, function: &CStr) -> Result<Self, Failed> {
        let path = CString::new(library.as_os_str().as_bytes())?;
        // SAFETY: the path is a C string. The library is the rig's own; its constructors do nothing
        // but what any program that links it runs.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Failed::from(format!(
                "{} cannot be loaded",
                library.display()
            )));
        }
        // SAFETY: the handle is that of an open library, the name is a C string.
        let address = unsafe { libc::dlsym(handle, function.as_ptr()) };
        if address.is_null() {
            return Err(Failed::from(format!(
                "{} has no {function:?}",
                library.display()
            )));
        }
        Ok(Self {
            address: address.cast(),
        })
    }

    /// The bytes as they are now.
    pub fn bytes(&self) -> [u8; LENGTH] {
        // SAFETY: the function's trampoline has at least this many bytes of readable code, and the
        // library is never unloaded. The kernel changes single bytes of it at any time, hence
        // volatile.
        std::array::from_fn(|i| unsafe { self.address.add(i).read_volatile() })
    }
}
