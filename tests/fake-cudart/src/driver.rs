//! The driver library below, and the context that the runtime uses.

use crate::Code;
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::dynamic::{Library, LoadError};
use gputrace_test_rig::functions;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The CUDA version whose functions are asked for.
const VERSION: c_int = 12040;
const INITIALIZATION_ERROR: Code = 3;
const SHARED_OBJECT_INIT_FAILED: Code = 303;

type Handle = *mut c_void;

functions! {
    /// What the runtime calls in the driver, by the names that `cuGetProcAddress` knows.
    struct Driver {
        init = "cuInit": fn(c_uint);
        ctx_get_current = "cuCtxGetCurrent": fn(*mut Handle);
        ctx_set_current = "cuCtxSetCurrent": fn(Handle);
        primary_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
        mem_alloc = "cuMemAlloc": fn(*mut u64, usize);
        mem_free = "cuMemFree": fn(u64);
        mem_get_info = "cuMemGetInfo": fn(*mut usize, *mut usize);
    }
}

functions! {
    /// Where everything else is found.
    struct Entrance {
        get_proc_address = "cuGetProcAddress_v2":
            fn(*const c_char, *mut Handle, c_int, u64, *mut c_uint);
    }
}

/// A driver function that the runtime's functions forward to.
#[repr(u32)]
pub enum Function {
    /// `cuMemAlloc`
    Alloc,
    /// `cuMemFree`
    Free,
    /// `cuMemGetInfo`
    MemGetInfo,
}

/// The driver function to call, or none and the result to give instead.
#[repr(C)]
pub struct Prepared {
    address: *const c_void,
    code: u64,
}

/// Sees to it that the driver can be called on this thread. `function` is a [`Function`].
pub extern "C" fn prepare(function: u32) -> Prepared {
    const ALLOC: u32 = Function::Alloc as u32;
    const FREE: u32 = Function::Free as u32;
    match ready() {
        Ok(driver) => Prepared {
            address: match function {
                ALLOC => driver.mem_alloc as *const c_void,
                FREE => driver.mem_free as *const c_void,
                _ => driver.mem_get_info as *const c_void,
            },
            code: 0,
        },
        Err(code) => Prepared {
            address: ptr::null(),
            code: u64::from(code.unsigned_abs()),
        },
    }
}

/// The driver, with a context that is current on this thread.
fn ready() -> Result<&'static Driver, Code> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let driver = DRIVER
        .get_or_init(|| match load() {
            Ok(driver) => Some(driver),
            Err(error) => {
                eprintln!("fake libcudart: {error}");
                None
            }
        })
        .as_ref()
        .ok_or(SHARED_OBJECT_INIT_FAILED)?;
    let mut current = ptr::null_mut();
    // SAFETY: driver functions of these types, with pointers to a local.
    unsafe {
        let mut code = (driver.ctx_get_current)(&raw mut current);
        if code == INITIALIZATION_ERROR {
            check((driver.init)(0))?;
            code = (driver.ctx_get_current)(&raw mut current);
        }
        check(code)?;
        if current.is_null() {
            check((driver.ctx_set_current)(primary(driver)?))?;
        }
    }
    Ok(driver)
}

/// The primary context of device 0, which the runtime retains once and never releases.
fn primary(driver: &Driver) -> Result<Handle, Code> {
    static PRIMARY: Mutex<Option<usize>> = Mutex::new(None);
    let mut primary = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(address) = *primary {
        return Ok(ptr::with_exposed_provenance_mut(address));
    }
    let mut context = ptr::null_mut();
    // SAFETY: a driver function of this type, with a pointer to a local.
    check(unsafe { (driver.primary_retain)(&raw mut context, 0) })?;
    *primary = Some(context.expose_provenance());
    Ok(context)
}

fn check(code: Code) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

fn load() -> Result<Driver, LoadError> {
    let name = Path::new("libcuda.so.1");
    // The one that the program has, else that of the rig, else that of the system.
    let library = Library::open(name, libc::RTLD_NOLOAD)
        .or_else(|error| match Rig::from_environment() {
            Ok(rig) => Library::open(&rig.libraries().join(name), libc::RTLD_GLOBAL),
            Err(_no_rig) => Err(error),
        })
        .or_else(|_| Library::open(name, libc::RTLD_GLOBAL))?;
    let entrance = Entrance::load(|symbol| library.symbol(symbol))?;
    Driver::load(|symbol| {
        let missing = || LoadError::Symbol {
            path: name.to_owned(),
            symbol: symbol.to_owned(),
        };
        let terminated = CString::new(symbol).map_err(|_| missing())?;
        let (mut address, mut status) = (ptr::null_mut(), 0);
        // SAFETY: a terminated name and pointers to locals.
        let code = unsafe {
            (entrance.get_proc_address)(
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
    })
}
