//! The built library, loaded as a program loads it.
#![allow(dead_code, reason = "no test uses all of it")]
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use gputrace_test_rig::config::{Config, RIG, Rig};
use gputrace_test_rig::dynamic::{Library, LoadError};
use gputrace_test_rig::functions;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ops::Deref;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub const TOTAL: usize = 16 << 30;
pub const CONTEXT: usize = 300 << 20;

/// Where cargo put the library: beside this test's executable.
pub fn library() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .with_file_name("libcuda.so")
}

pub type Pointer = *mut c_void;

functions! {
    /// The functions that the tests call.
    pub struct Functions {
        /// `cuInit`
        init = "cuInit": fn(c_uint);
        /// `cuDeviceGetCount`
        device_get_count = "cuDeviceGetCount": fn(*mut c_int);
        /// `cuDeviceGetName`
        device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
        /// `cuDeviceTotalMem_v2`
        device_total_mem = "cuDeviceTotalMem_v2": fn(*mut usize, c_int);
        /// `cuDeviceGetUuid`
        device_get_uuid = "cuDeviceGetUuid": fn(*mut [u8; 16], c_int);
        /// `cuCtxCreate_v2`
        ctx_create = "cuCtxCreate_v2": fn(*mut Pointer, c_uint, c_int);
        /// `cuCtxDestroy_v2`
        ctx_destroy = "cuCtxDestroy_v2": fn(Pointer);
        /// `cuCtxSetCurrent`
        ctx_set_current = "cuCtxSetCurrent": fn(Pointer);
        /// `cuCtxGetCurrent`
        ctx_get_current = "cuCtxGetCurrent": fn(*mut Pointer);
        /// `cuCtxPushCurrent_v2`
        ctx_push = "cuCtxPushCurrent_v2": fn(Pointer);
        /// `cuCtxPopCurrent_v2`
        ctx_pop = "cuCtxPopCurrent_v2": fn(*mut Pointer);
        /// `cuDevicePrimaryCtxRetain`
        primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut Pointer, c_int);
        /// `cuDevicePrimaryCtxRelease_v2`
        primary_release = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
        /// `cuMemAlloc_v2`
        mem_alloc = "cuMemAlloc_v2": fn(*mut u64, usize);
        /// `cuMemFree_v2`
        mem_free = "cuMemFree_v2": fn(u64);
        /// `cuMemGetInfo_v2`
        mem_get_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
        /// `cuGetProcAddress`
        get_proc_address = "cuGetProcAddress": fn(*const c_char, *mut Pointer, c_int, u64);
        /// `cuGetProcAddress_v2`
        get_proc_address_v2 = "cuGetProcAddress_v2":
            fn(*const c_char, *mut Pointer, c_int, u64, *mut c_uint);
        /// `gputrace_rig_set`
        rig_set = "gputrace_rig_set": fn(*const c_char, u64);
    }
}

/// Calls a function of the library.
#[allow(unused_macros, reason = "as above")]
macro_rules! call {
    ($function:expr $(, $argument:expr)* $(,)?) => {{
        let function = $function;
        // SAFETY: pointers are null, or of the test's own variables, as large as the function says.
        unsafe { function($($argument),*) }
    }};
}

#[allow(unused_imports, reason = "no test uses all of it")]
pub(crate) use call;

/// The loaded library.
pub struct Cuda {
    library: Library,
    functions: Functions,
}

impl Deref for Cuda {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Cuda {
    fn load() -> Self {
        let library = Library::open(&library(), 0).unwrap();
        let functions = Functions::load(|name| library.symbol(name)).unwrap();
        Self { library, functions }
    }

    /// For the `load` of functions of a test's own.
    pub fn find(&self, name: &str) -> Result<NonNull<c_void>, LoadError> {
        self.library.symbol(name)
    }

    pub fn symbol(&self, name: &str) -> Pointer {
        self.library.symbol(name).unwrap().as_ptr()
    }

    pub fn create(&self, device: c_int) -> Pointer {
        let mut context = std::ptr::null_mut();
        // SAFETY: valid for a write.
        assert_eq!(unsafe { (self.ctx_create)(&raw mut context, 0, device) }, 0);
        context
    }

    /// Makes it this thread's current context, from wherever it was created.
    pub fn make_current(&self, context: usize) {
        // SAFETY: takes any value.
        assert_eq!(unsafe { (self.ctx_set_current)(context as Pointer) }, 0);
    }

    pub fn destroy(&self, context: Pointer) {
        // SAFETY: takes any value.
        assert_eq!(unsafe { (self.ctx_destroy)(context) }, 0);
    }

    pub fn alloc(&self, bytes: usize) -> Result<u64, c_int> {
        let mut pointer = 0;
        // SAFETY: valid for a write.
        match unsafe { (self.mem_alloc)(&raw mut pointer, bytes) } {
            0 => Ok(pointer),
            code => Err(code),
        }
    }

    pub fn free(&self, pointer: u64) -> c_int {
        // SAFETY: takes any value.
        unsafe { (self.mem_free)(pointer) }
    }

    pub fn set(&self, key: &str, value: u64) {
        let key = CString::new(key).unwrap();
        // SAFETY: a terminated string.
        assert_eq!(unsafe { (self.rig_set)(key.as_ptr(), value) }, 0);
    }

    /// Bytes in use on the current context's device.
    pub fn used(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid for a write each.
        let code = unsafe { (self.mem_get_info)(&raw mut free, &raw mut total) };
        assert_eq!(code, 0);
        total - free
    }
}

/// The library on a fresh rig of two GPUs, one test at a time: they share the process's driver.
pub fn cuda() -> (MutexGuard<'static, ()>, &'static Cuda) {
    static ALONE: Mutex<()> = Mutex::new(());
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    let turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = CUDA.get_or_init(|| {
        // Not a temporary folder, since nothing of this process outlives the driver's use of it.
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Rig::new(&folder)
            .store(&Config::with_gpus(2, TOTAL as u64))
            .unwrap();
        // SAFETY: no other thread reads the environment: they all wait for this.
        unsafe { std::env::set_var(RIG, folder) };
        Cuda::load()
    });
    (turn, cuda)
}

/// The same, initialised.
pub fn ready() -> (MutexGuard<'static, ()>, &'static Cuda) {
    let (turn, cuda) = cuda();
    // SAFETY: takes any value.
    assert_eq!(unsafe { (cuda.init)(0) }, 0);
    (turn, cuda)
}

/// The exit code of a forked child that runs `body`; 99 if it did not end by itself.
pub fn in_child(body: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the child only runs `body`, which calls the library, and ends without unwinding.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = body();
        // SAFETY: ends the child without the test harness's tear-down.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a child of this process that nobody else waits for.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        99
    }
}
