//! The rig's libraries and the functions in them, loaded when they are first needed.

use crate::functions::{self, Named};
use crate::sites::{self, Function};
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::dynamic::{Library, LoadError};
use gputrace_test_rig::functions;
use gputrace_test_rig::protocol::Via;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

/// A `CUcontext`.
pub type Handle = *mut c_void;

functions! {
    /// The driver's functions that have nothing to do with call sites.
    pub struct Driver {
        /// `cuInit`
        init = "cuInit": fn(c_uint);
        /// `cuCtxGetCurrent`
        ctx_get_current = "cuCtxGetCurrent": fn(*mut Handle);
        /// `cuGetProcAddress_v2`
        get_proc_address = "cuGetProcAddress_v2":
            fn(*const c_char, *mut Handle, c_int, u64, *mut c_uint);
        /// The rig's own; not in a real driver.
        rig_set = "gputrace_rig_set": fn(*const c_char, u64);
    }
}

type Loaded<T> = OnceLock<Result<T, LoadError>>;
/// A function, how it is reached, and whether it is the `_ptsz` form.
type Key = (&'static str, Via, bool);

/// The libraries of a rig.
pub struct Cuda {
    rig: Rig,
    library: Loaded<Library>,
    runtime: Loaded<Library>,
    driver: Loaded<Driver>,
    found: Mutex<HashMap<Key, Function>>,
}

impl Cuda {
    /// Nothing is loaded yet.
    pub fn new(rig: Rig) -> Self {
        Self {
            rig,
            library: OnceLock::new(),
            runtime: OnceLock::new(),
            driver: OnceLock::new(),
            found: Mutex::default(),
        }
    }

    fn open<'l>(&self, loaded: &'l Loaded<Library>, name: &str) -> Result<&'l Library, LoadError> {
        let path = || self.rig.libraries().join(name);
        loaded
            .get_or_init(|| Library::open(&path(), libc::RTLD_GLOBAL))
            .as_ref()
            .map_err(Clone::clone)
    }

    fn library(&self) -> Result<&Library, LoadError> {
        self.open(&self.library, "libcuda.so.1")
    }

    fn runtime(&self) -> Result<&Library, LoadError> {
        // The driver first, so that the runtime finds the rig's.
        self.library()?;
        self.open(&self.runtime, "libcudart.so")
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

    /// A function, reached in this way; with `ptsz` the form for the per-thread stream, where it
    /// has one.
    pub fn find(&self, named: &Named, via: Via, ptsz: bool) -> Result<Function, LoadError> {
        let ptsz = ptsz && named.per_thread;
        let key = (named.symbol, via, ptsz);
        let lock = || self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = lock().get(&key) {
            return Ok(*function);
        }
        let address = match via {
            Via::Driver => {
                let ending = if ptsz { "_ptsz" } else { "" };
                self.library()?
                    .symbol(&format!("{}{ending}", named.symbol))?
            }
            Via::Procaddr => self.by_name(named, if ptsz { PER_THREAD } else { 0 })?,
            Via::Runtime => self.runtime()?.symbol(named.runtime)?,
        };
        let function = Function::at(address);
        lock().insert(key, function);
        Ok(function)
    }

    fn by_name(&self, named: &Named, flags: u64) -> Result<NonNull<c_void>, LoadError> {
        let driver = self.driver()?;
        let missing = || LoadError::Symbol {
            path: PathBuf::from("cuGetProcAddress"),
            symbol: named.base.to_owned(),
        };
        let terminated = CString::new(named.base).map_err(|_| missing())?;
        let (mut address, mut status) = (std::ptr::null_mut(), 0);
        // SAFETY: a terminated name and pointers to locals.
        let code = unsafe {
            (driver.get_proc_address)(
                terminated.as_ptr(),
                &raw mut address,
                named.version,
                flags,
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
        let function = self.find(&functions::CTX_SET_CURRENT, Via::Driver, false)?;
        Ok(sites::give_back(function, &[context as u64]))
    }

    /// Sets injected behaviour of the driver in this process.
    pub fn rig_set(&self, key: &str, value: u64) -> Result<c_int, LoadError> {
        let key = CString::new(key).unwrap_or_default();
        // SAFETY: a terminated string.
        Ok(unsafe { (self.driver()?.rig_set)(key.as_ptr(), value) })
    }
}
