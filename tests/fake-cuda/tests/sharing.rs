//! Memory that several processes hold. A test binary of its own, since its processes are forked, and
//! what forks must not have initialised the driver.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{CONTEXT, Cuda, call, cuda};
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::device::{Devices, Holder};
use gputrace_test_rig::functions;
use std::ffi::{c_int, c_uint, c_void};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

#[repr(C)]
#[derive(Clone, Copy)]
struct MemHandle([u8; 64]);

functions! {
    struct Functions {
        get_handle = "cuIpcGetMemHandle": fn(*mut MemHandle, u64);
        open = "cuIpcOpenMemHandle_v2": fn(*mut u64, MemHandle, c_uint);
        open_v1 = "cuIpcOpenMemHandle": fn(*mut u64, MemHandle, c_uint);
        close = "cuIpcCloseMemHandle": fn(u64);
        create = "cuMemCreate": fn(*mut u64, usize, *const [u32; 8], u64);
        release = "cuMemRelease": fn(u64);
        export = "cuMemExportToShareableHandle": fn(*mut c_int, u64, c_uint, u64);
        import = "cuMemImportFromShareableHandle": fn(*mut u64, *mut c_void, c_uint);
        pool_create = "cuMemPoolCreate": fn(*mut u64, *const [u32; 22]);
        pool_export = "cuMemPoolExportToShareableHandle": fn(*mut c_int, u64, c_uint, u64);
        pool_import = "cuMemPoolImportFromShareableHandle": fn(*mut u64, *mut c_void, c_uint, u64);
        pool_export_pointer = "cuMemPoolExportPointer": fn(*mut MemHandle, u64);
        pool_import_pointer = "cuMemPoolImportPointer": fn(*mut u64, u64, *const MemHandle);
        alloc_from_pool = "cuMemAllocFromPoolAsync": fn(*mut u64, usize, u64, u64);
        free_async = "cuMemFreeAsync": fn(u64, u64);
    }
}

/// A process with a context on device 0, which does one thing after another when it is told to.
struct Process {
    pid: libc::pid_t,
    line: UnixStream,
}

/// What such a process has.
struct Inside {
    cuda: &'static Cuda,
    functions: Functions,
    line: UnixStream,
}

impl Process {
    fn start(cuda: &'static Cuda, body: impl FnOnce(&mut Inside)) -> Self {
        let (line, inside) = UnixStream::pair().unwrap();
        // SAFETY: the child runs `body`, which calls the library, and ends without unwinding; glibc
        // keeps its heap usable across a fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(line);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                assert_eq!(call!(cuda.init, 0), 0);
                cuda.create(0);
                let functions = Functions::load(|name| cuda.find(name)).unwrap();
                body(&mut Inside {
                    cuda,
                    functions,
                    line: inside,
                });
            }));
            // SAFETY: ends the child without the test harness's tear-down.
            unsafe { libc::_exit(c_int::from(done.is_err())) };
        }
        Self { pid, line }
    }

    /// Lets it go on until it pauses again; what is said goes in, what it says comes out.
    fn step(&mut self, say: &[u8; 64]) -> [u8; 64] {
        self.line.write_all(say).unwrap();
        self.hear()
    }

    fn hear(&mut self) -> [u8; 64] {
        let mut said = [0; 64];
        self.line.read_exact(&mut said).unwrap();
        said
    }

    fn kill(self) {
        // SAFETY: a child of this process that nobody has waited for; drop waits.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Waits for its end; it must have done all it had to do.
    fn finish(mut self) {
        self.line.write_all(&[0; 64]).unwrap();
        let mut status = 0;
        // SAFETY: a child of this process that nobody has waited for.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!((waited, status), (self.pid, 0));
        self.pid = 0;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.pid > 0 {
            // SAFETY: a child of this process that nobody has waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

impl Inside {
    /// Says something and waits to be told to go on.
    fn pause(&mut self, say: &[u8; 64]) -> [u8; 64] {
        self.line.write_all(say).unwrap();
        let mut told = [0; 64];
        self.line.read_exact(&mut told).unwrap();
        told
    }
}

fn number(value: c_int) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(&value.to_ne_bytes());
    bytes
}

fn to_number(bytes: &[u8; 64]) -> c_int {
    c_int::from_ne_bytes(bytes[..4].try_into().unwrap())
}

const NOTHING: &[u8; 64] = &[0; 64];
const MIB: u64 = 1 << 20;

fn devices() -> Arc<Devices> {
    Devices::open(Rig::from_environment().unwrap()).unwrap()
}

/// Bytes of allocations by process, as the management library would see them.
fn held_by(devices: &Devices, process: &Process) -> u64 {
    let tgid = u32::try_from(process.pid).unwrap();
    let of_process = |holder: &&Holder| holder.tgid == tgid;
    devices
        .holders(0)
        .iter()
        .filter(of_process)
        .map(|holder| holder.allocation_bytes)
        .sum()
}

/// What a process has open of a file of another one, as if it had been sent.
fn fetch(from: &Process, descriptor: c_int) -> c_int {
    // SAFETY: system calls with plain numbers.
    let fetched = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, from.pid, 0);
        let fetched = libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0);
        libc::close(c_int::try_from(process).unwrap());
        fetched
    };
    c_int::try_from(fetched).unwrap()
}

fn close(descriptor: c_int) {
    // SAFETY: fetched, and nobody else's.
    unsafe { libc::close(descriptor) };
}

fn by_value(descriptor: c_int) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(descriptor).unwrap())
}

#[test]
fn freed_memory_stays_while_another_process_has_it_open() {
    let (_turn, cuda) = cuda();
    let devices = devices();
    let contexts = 2 * CONTEXT as u64;
    let mut owner = Process::start(cuda, |inside| {
        let pointer = inside.cuda.alloc(640 << 20).unwrap();
        let kept = inside.cuda.alloc(1 << 20).unwrap();
        let mut handle = MemHandle([0; 64]);
        let get = inside.functions.get_handle;
        assert_eq!(
            call!(get, &raw mut handle, kept + 1),
            0,
            "of an address inside"
        );
        assert_eq!(call!(get, &raw mut handle, 77), 1);
        assert_eq!(call!(get, &raw mut handle, pointer), 0);
        let mut own = 0;
        assert_eq!(
            call!(inside.functions.open, &raw mut own, handle, 1),
            201,
            "its own"
        );
        inside.pause(&handle.0);
        assert_eq!(inside.cuda.free(pointer), 0);
        assert_eq!(inside.cuda.free(pointer), 1);
        inside.pause(NOTHING);
        assert_eq!(inside.cuda.free(kept), 0);
    });
    let handle = owner.hear();
    let mut opener = Process::start(cuda, |inside| {
        let handle = MemHandle(inside.pause(NOTHING));
        let (mut first, mut again) = (0, 0);
        let f = inside.functions;
        assert_eq!(call!(f.open, &raw mut first, MemHandle([1; 64]), 1), 1);
        assert_eq!(
            call!(f.open, &raw mut first, handle, 2),
            1,
            "an unknown flag"
        );
        assert_eq!(call!(f.open, &raw mut first, handle, 1), 0);
        assert_eq!(call!(f.open_v1, &raw mut again, handle, 1), 0);
        assert_eq!(first, again, "opened twice");
        assert_eq!(inside.cuda.free(first), 1, "not to be freed");
        inside.pause(NOTHING);
        assert_eq!(call!(f.close, first), 0);
        inside.pause(NOTHING);
        assert_eq!(call!(f.close, first), 0);
        assert_eq!(call!(f.close, first), 1);
        assert_eq!(call!(f.open, &raw mut first, handle, 1), 1, "it is gone");
        inside.pause(NOTHING);
    });
    opener.hear();
    opener.step(&handle);
    assert_eq!(
        devices.used(0),
        contexts + 641 * MIB,
        "opening takes nothing"
    );
    assert_eq!(held_by(&devices, &owner), 641 * MIB);
    assert_eq!(held_by(&devices, &opener), 0);
    owner.step(NOTHING);
    assert_eq!(devices.used(0), contexts + 641 * MIB, "freed, but open");
    assert_eq!(held_by(&devices, &owner), MIB);
    assert_eq!(held_by(&devices, &opener), 640 * MIB);
    opener.step(NOTHING);
    assert_eq!(held_by(&devices, &opener), 640 * MIB, "open once more");
    opener.step(NOTHING);
    assert_eq!(devices.used(0), contexts + MIB);
    owner.finish();
    opener.finish();
    assert_eq!(devices.used(0), 0);
}

#[test]
fn memory_of_a_dead_owner_lives_until_the_opener_dies() {
    let (_turn, cuda) = cuda();
    let devices = devices();
    let mut owner = Process::start(cuda, |inside| {
        let pointer = inside.cuda.alloc(64 << 20).unwrap();
        let mut handle = MemHandle([0; 64]);
        assert_eq!(
            call!(inside.functions.get_handle, &raw mut handle, pointer),
            0
        );
        inside.pause(&handle.0);
    });
    let handle = owner.hear();
    let mut openers: Vec<_> = (0..2)
        .map(|_| {
            let mut opener = Process::start(cuda, |inside| {
                let handle = MemHandle(inside.pause(NOTHING));
                let mut pointer = 0;
                assert_eq!(call!(inside.functions.open, &raw mut pointer, handle, 1), 0);
                inside.pause(NOTHING);
            });
            opener.hear();
            opener.step(&handle);
            opener
        })
        .collect();
    owner.kill();
    assert_eq!(devices.used(0), 2 * CONTEXT as u64 + 64 * MIB);
    let by_opener: Vec<_> = openers.iter().map(|o| held_by(&devices, o)).collect();
    assert_eq!(by_opener.iter().sum::<u64>(), 64 * MIB, "once in all");
    let charged = by_opener.iter().position(|bytes| *bytes > 0).unwrap();
    openers.swap_remove(charged).kill();
    assert_eq!(
        held_by(&devices, &openers[0]),
        64 * MIB,
        "the other one has it now"
    );
    openers.remove(0).kill();
    assert_eq!(devices.used(0), 0);
}

#[test]
fn an_exported_descriptor_keeps_memory_wherever_it_is_open() {
    let (_turn, cuda) = cuda();
    let devices = devices();
    let properties: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
    let mut owner = Process::start(cuda, |inside| {
        let (mut handle, mut descriptor) = (0, -1);
        let f = inside.functions;
        assert_eq!(
            call!(
                f.create,
                &raw mut handle,
                64 << 20,
                &raw const properties,
                0
            ),
            0
        );
        assert_eq!(call!(f.export, &raw mut descriptor, handle, 1, 0), 0);
        inside.pause(&number(descriptor));
        assert_eq!(call!(f.release, handle), 0);
        inside.pause(NOTHING);
    });
    let descriptor = to_number(&owner.hear());
    let here = fetch(&owner, descriptor);
    assert_eq!(held_by(&devices, &owner), 64 * MIB);
    owner.step(NOTHING);
    assert_eq!(held_by(&devices, &owner), 0, "released");
    owner.finish();
    assert_eq!(devices.used(0), 64 * MIB, "in use, and of no process");
    assert_eq!(devices.holders(0), []);
    let mut importer = Process::start(cuda, |inside| {
        let mut handle = 0;
        let f = inside.functions;
        assert_eq!(call!(f.import, &raw mut handle, by_value(here), 1), 0);
        close(here);
        inside.pause(NOTHING);
        assert_eq!(call!(f.release, handle), 0);
        inside.pause(NOTHING);
    });
    importer.hear();
    assert_eq!(held_by(&devices, &importer), 64 * MIB);
    close(here);
    assert_eq!(devices.used(0), CONTEXT as u64 + 64 * MIB);
    importer.step(NOTHING);
    assert_eq!(devices.used(0), CONTEXT as u64);
    importer.finish();
}

#[test]
fn pointers_of_a_pool_are_imported_one_by_one() {
    let (_turn, cuda) = cuda();
    let devices = devices();
    let mut properties = [0_u32; 22];
    properties[..4].copy_from_slice(&[1, 1, 1, 0]);
    let mut owner = Process::start(cuda, |inside| {
        let (mut pool, mut descriptor, mut pointer) = (0, -1, 0);
        let f = inside.functions;
        assert_eq!(
            call!(f.pool_create, &raw mut pool, &raw const properties),
            0
        );
        assert_eq!(call!(f.pool_export, &raw mut descriptor, pool, 1, 0), 0);
        assert_eq!(
            call!(f.alloc_from_pool, &raw mut pointer, 32 << 20, pool, 0),
            0
        );
        let mut data = MemHandle([0; 64]);
        assert_eq!(call!(f.pool_export_pointer, &raw mut data, pointer), 0);
        inside.pause(&number(descriptor));
        inside.pause(&data.0);
        assert_eq!(call!(f.free_async, pointer, 0), 0);
        inside.pause(NOTHING);
    });
    let descriptor = to_number(&owner.hear());
    let here = fetch(&owner, descriptor);
    let data = owner.step(NOTHING);
    let mut importer = Process::start(cuda, |inside| {
        let data = MemHandle(inside.pause(NOTHING));
        let (mut pool, mut pointer) = (0, 0);
        let f = inside.functions;
        assert_eq!(call!(f.pool_import, &raw mut pool, by_value(here), 1, 0), 0);
        assert_eq!(
            call!(
                f.pool_import_pointer,
                &raw mut pointer,
                pool,
                &raw const data
            ),
            0
        );
        let mut other = 0;
        assert_eq!(
            call!(f.alloc_from_pool, &raw mut other, 1, pool, 0),
            1,
            "not ours"
        );
        inside.pause(NOTHING);
        assert_eq!(call!(f.free_async, pointer, 0), 0);
        assert_eq!(call!(f.free_async, pointer, 0), 1);
        inside.pause(NOTHING);
    });
    importer.hear();
    importer.step(&data);
    assert_eq!(held_by(&devices, &owner), 32 * MIB);
    owner.step(NOTHING);
    assert_eq!(held_by(&devices, &owner), 0);
    assert_eq!(held_by(&devices, &importer), 32 * MIB);
    importer.step(NOTHING);
    assert_eq!(devices.used(0), 2 * CONTEXT as u64);
    close(here);
    owner.finish();
    importer.finish();
}
