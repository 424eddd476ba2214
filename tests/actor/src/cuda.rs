//! The rig's libraries and the functions in them, loaded when they are first needed.

use crate::sites::{AllocFunction, FreeFunction};
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::dynamic::{Library, LoadError};
use gputrace_test_rig::functions;
use gputrace_test_rig::protocol::Via;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The CUDA version for which `cuGetProcAddress` is asked.
const VERSION: c_int = 12040;

/// A `CUcontext`.
pub type Handle = *mut c_void;

functions! {
    /// The driver's functions that have nothing to do with call sites.
    pub struct Driver {
        /// `cuInit`
        init = "cuInit": fn(c_uint);
        /// `cuCtxCreate_v2`
        ctx_create = "cuCtxCreate_v2": fn(*mut Handle, c_uint, c_int);
        /// `cuCtxDestroy_v2`
        ctx_destroy = "cuCtxDestroy_v2": fn(Handle);
        /// `cuCtxSetCurrent`
        ctx_set_current = "cuCtxSetCurrent": fn(Handle);
        /// `cuCtxGetCurrent`
        ctx_get_current = "cuCtxGetCurrent": fn(*mut Handle);
        /// `cuCtxSynchronize`
        ctx_synchronize = "cuCtxSynchronize": fn();
        /// `cuDevicePrimaryCtxRetain`
        primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
        /// `cuDevicePrimaryCtxRelease_v2`
        primary_release = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
        /// `cuGetProcAddress_v2`
        get_proc_address = "cuGetProcAddress_v2":
            fn(*const c_char, *mut Handle, c_int, u64, *mut c_uint);
        /// The rig's own; not in a real driver.
        rig_set = "gputrace_rig_set": fn(*const c_char, u64);
    }
}

functions! {
    /// The driver's memory functions by their exported symbols.
    struct Exported {
        alloc = "cuMemAlloc_v2": fn(*mut u64, usize);
        free = "cuMemFree_v2": fn(u64);
        info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    }
}

functions! {
    /// The driver's memory functions by the names that `cuGetProcAddress` knows.
    struct ByName {
        alloc = "cuMemAlloc": fn(*mut u64, usize);
        free = "cuMemFree": fn(u64);
        info = "cuMemGetInfo": fn(*mut usize, *mut usize);
    }
}

functions! {
    /// The runtime's.
    struct Runtime {
        alloc = "cudaMalloc": fn(*mut u64, usize);
        free = "cudaFree": fn(u64);
        info = "cudaMemGetInfo": fn(*mut usize, *mut usize);
    }
}

/// The functions that allocate and free, reached in one of the ways.
#[derive(Clone, Copy)]
pub struct Memory {
    /// Allocates.
    pub alloc: AllocFunction,
    /// Frees.
    pub free: FreeFunction,
    /// Free and all bytes.
    pub info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
}

macro_rules! memory {
    ($functions:expr) => {{
        let functions = $functions;
        Memory {
            alloc: functions.alloc,
            free: functions.free,
            info: functions.info,
        }
    }};
}

type Loaded<T> = OnceLock<Result<T, LoadError>>;

/// The libraries of a rig.
pub struct Cuda {
    rig: Rig,
    library: Loaded<Library>,
    driver: Loaded<Driver>,
    /// In the order of [`Via`].
    memory: [Loaded<Memory>; 3],
}

impl Cuda {
    /// Nothing is loaded yet.
    pub fn new(rig: Rig) -> Self {
        Self {
            rig,
            library: OnceLock::new(),
            driver: OnceLock::new(),
            memory: [const { OnceLock::new() }; 3],
        }
    }

    fn library(&self) -> Result<&Library, LoadError> {
        let path = || self.rig.libraries().join("libcuda.so.1");
        let open = || Library::open(&path(), libc::RTLD_GLOBAL);
        self.library
            .get_or_init(open)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The driver's functions.
    pub fn driver(&self) -> Result<&Driver, LoadError> {
        self.driver
            .get_or_init(|| {
                let library = self.library()?;
                Driver::load(|name| library.symbol(name))
            })
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The memory functions, reached in this way.
    pub fn memory(&self, via: Via) -> Result<Memory, LoadError> {
        self.memory[via as usize]
            .get_or_init(|| match via {
                Via::Driver => {
                    let library = self.library()?;
                    Ok(memory!(Exported::load(|name| library.symbol(name))?))
                }
                Via::Procaddr => Ok(memory!(ByName::load(|name| self.by_name(name))?)),
                Via::Runtime => {
                    // The driver first, so that the runtime finds the rig's.
                    self.library()?;
                    let path = self.rig.libraries().join("libcudart.so");
                    let library = Library::open(&path, libc::RTLD_GLOBAL)?;
                    Ok(memory!(Runtime::load(|name| library.symbol(name))?))
                }
            })
            .clone()
    }

    fn by_name(&self, name: &str) -> Result<NonNull<c_void>, LoadError> {
        let driver = self.driver()?;
        let missing = || LoadError::Symbol {
            path: PathBuf::from("cuGetProcAddress"),
            symbol: name.to_owned(),
        };
        let terminated = CString::new(name).map_err(|_| missing())?;
        let (mut address, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: a terminated name and pointers to locals.
        let code = unsafe {
            (driver.get_proc_address)(
                terminated.as_ptr(),
                &raw mut address,
                VERSION,
                0,
                &raw mut status,
            )
        };
        NonNull::new(address)
            .filter(|_| code == 0 && status == 0)
            .ok_or_else(missing)
    }

    /// The context that is current on this thread, as a number; 0 without one.
    pub fn current(&self) -> Result<usize, LoadError> {
        let mut context = std::ptr::null_mut();
        // SAFETY: a pointer to a local. The result is of no interest: null stays null.
        unsafe { (self.driver()?.ctx_get_current)(&raw mut context) };
        Ok(context.expose_provenance())
    }

    /// Makes a context of [`Cuda::current`] current on this thread.
    pub fn set_current(&self, context: usize) -> Result<c_int, LoadError> {
        let handle = std::ptr::with_exposed_provenance_mut(context);
        // SAFETY: takes any value.
        Ok(unsafe { (self.driver()?.ctx_set_current)(handle) })
    }

    /// Sets injected behaviour of the driver in this process.
    pub fn rig_set(&self, key: &str, value: u64) -> Result<c_int, LoadError> {
        let key = CString::new(key).unwrap_or_default();
        // SAFETY: a terminated string.
        Ok(unsafe { (self.driver()?.rig_set)(key.as_ptr(), value) })
    }
}
