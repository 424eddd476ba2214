//! The runtime API allocates through the driver API, in the primary context of device 0.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use gputrace_test_rig::config::{Config, RIG, Rig};
use gputrace_test_rig::device::Devices;
use gputrace_test_rig::dynamic::Library;
use gputrace_test_rig::functions;
use std::path::PathBuf;

const TOTAL: usize = 16 << 30;
const CONTEXT: u64 = 300 << 20;

functions! {
    /// The runtime API.
    struct Runtime {
        malloc = "cudaMalloc": fn(*mut u64, usize);
        free = "cudaFree": fn(u64);
        mem_get_info = "cudaMemGetInfo": fn(*mut usize, *mut usize);
        last_error = "cudaGetLastError": fn();
    }
}

fn built(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

#[test]
fn it_needs_no_preparation_and_remembers_the_last_error() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new(folder.path());
    rig.store(&Config::with_gpus(1, TOTAL as u64)).unwrap();
    std::fs::create_dir(rig.libraries()).unwrap();
    let driver = rig.libraries().join("libcuda.so.1");
    std::os::unix::fs::symlink(built("libcuda.so"), driver).unwrap();
    // SAFETY: the only test, before it starts a thread.
    unsafe { std::env::set_var(RIG, folder.path()) };
    let devices = Devices::open(rig).unwrap();
    let library = Library::open(&built("libcudart.so"), 0).unwrap();
    let runtime = Runtime::load(|name| library.symbol(name)).unwrap();

    let (mut pointer, mut free, mut total) = (0, 0, 0);
    // SAFETY: functions of these types, with pointers to locals.
    unsafe {
        assert_eq!((runtime.malloc)(&raw mut pointer, 8 << 20), 0);
        assert_eq!(devices.used(0), CONTEXT + (8 << 20));
        assert_eq!((runtime.mem_get_info)(&raw mut free, &raw mut total), 0);
        assert_eq!((total, (total - free) as u64), (TOTAL, devices.used(0)));

        // On another thread: the same context.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!((runtime.free)(pointer), 0);
                assert_eq!((runtime.last_error)(), 0);
            });
        });
        assert_eq!(devices.used(0), CONTEXT);

        assert_eq!((runtime.malloc)(&raw mut pointer, TOTAL), 2);
        assert_eq!((runtime.free)(0), 0);
        assert_eq!((runtime.last_error)(), 2, "a success does not hide it");
        assert_eq!((runtime.last_error)(), 0, "asking forgets it");
        assert_eq!((runtime.free)(4096), 1);
        assert_eq!((runtime.last_error)(), 1);
    }
}
