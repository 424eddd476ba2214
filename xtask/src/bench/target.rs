//! The measured program: one thread that allocates and frees, and says how long it took. It runs
//! before, during and after every tracer, so all of them are measured on the same process.
//!
//! It is xtask itself, started as `bench-target LIBRARY`; what it repeats is a pair.

use std::{
    ffi::{CStr, CString, OsStr, c_int, c_uint, c_void},
    mem,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::Instant,
};

use anyhow::bail;
use gputrace_test_rig::config::RIG;

use super::measured::Measured;

type Alloc = extern "C" fn(*mut u64, usize) -> c_int;
type Free = extern "C" fn(u64) -> c_int;

/// Bytes of each allocation.
pub const SIZE: usize = 1 << 20;

/// Starts it with this driver library in this rig.
pub fn start(library: &Path, rig: &Path) -> anyhow::Result<Measured> {
    Measured::start(
        [OsStr::new("bench-target"), library.as_ref()],
        &[(RIG, rig)],
    )
}

/// The program itself.
pub fn run(library: &Path) -> anyhow::Result<()> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string; the library's constructors are those of the test rig.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        bail!("{} cannot be loaded", library.display());
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle is a loaded library, the name a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if address.is_null() {
            Err(anyhow::anyhow!("no {name:?}"))
        } else {
            Ok(address)
        }
    };
    // SAFETY: these are the signatures that the CUDA driver API documents for the names.
    let (init, create, alloc, free) = unsafe {
        (
            mem::transmute::<*mut c_void, extern "C" fn(c_uint) -> c_int>(symbol(c"cuInit")?),
            mem::transmute::<*mut c_void, extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int>(
                symbol(c"cuCtxCreate_v2")?,
            ),
            mem::transmute::<*mut c_void, Alloc>(symbol(c"cuMemAlloc_v2")?),
            mem::transmute::<*mut c_void, Free>(symbol(c"cuMemFree_v2")?),
        )
    };
    let mut context = std::ptr::null_mut();
    let result = (init(0), create(&raw mut context, 0, 0));
    if result != (0, 0) {
        bail!("cuInit and cuCtxCreate_v2 gave {result:?}");
    }
    for line in std::io::stdin().lines() {
        let pairs = line?.trim().parse()?;
        let start = Instant::now();
        let failed = pairs_at_depth(alloc, free, pairs, SIZE);
        let nanoseconds = start.elapsed().as_nanos();
        if failed != 0 {
            bail!("{failed} calls of {pairs} pairs failed");
        }
        println!("{nanoseconds}");
    }
    Ok(())
}

/// How many frames lie above the measured loop, all with frame pointers, as in a program that is
/// built for profiling: what a stack costs depends on its depth.
const DEPTH: usize = 16;

fn pairs_at_depth(alloc: Alloc, free: Free, pairs: u64, size: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        assembly::pairs_at_depth(alloc, free, pairs, size, DEPTH)
    }
    // Other architectures keep frame pointers by default.
    #[cfg(not(target_arch = "x86_64"))]
    {
        #[inline(never)]
        fn descend(alloc: Alloc, free: Free, pairs: u64, size: usize, depth: usize) -> u64 {
            if depth > 0 {
                return std::hint::black_box(descend(alloc, free, pairs, size, depth - 1));
            }
            let mut failed = 0;
            for _ in 0..pairs {
                let mut address = 0;
                failed += u64::from(alloc(&raw mut address, size) != 0);
                failed += u64::from(free(address) != 0);
            }
            failed
        }
        descend(alloc, free, pairs, size, DEPTH)
    }
}

#[cfg(target_arch = "x86_64")]
mod assembly {
    use super::{Alloc, Free};
    use std::arch::naked_asm;

    /// Calls itself until `depth` is 0, then makes the pairs. Returns how many calls failed.
    #[unsafe(naked)]
    pub extern "C" fn pairs_at_depth(
        alloc: Alloc,
        free: Free,
        pairs: u64,
        size: usize,
        depth: usize,
    ) -> u64 {
        naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "test r8, r8",
            "jz 2f",
            "dec r8",
            "call {descend}",
            "pop rbp",
            "ret",
            // Four saved registers and a slot for the address keep the stack aligned to 16.
            "2: push rbx",
            "push r12",
            "push r13",
            "push r14",
            "push r15",
            "sub rsp, 24",
            "mov r12, rdi",
            "mov r13, rsi",
            "mov rbx, rdx",
            "mov r14, rcx",
            "xor r15d, r15d",
            "3: test rbx, rbx",
            "jz 4f",
            "dec rbx",
            "lea rdi, [rsp]",
            "mov rsi, r14",
            "call r12",
            "cmp eax, 1",
            "sbb r15, -1",
            "mov rdi, [rsp]",
            "call r13",
            "cmp eax, 1",
            "sbb r15, -1",
            "jmp 3b",
            "4: mov rax, r15",
            "add rsp, 24",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
            descend = sym pairs_at_depth,
        )
    }
}
