//! The driver in this process: not initialised, ready, or of no use after a fork.

use crate::context::Contexts;
use crate::memory::Memory;
use crate::result::{Code, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, SUCCESS, code, give};
use crate::trampoline::{STATE, TORN_DOWN};
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::device::{Client, DeviceError, Devices};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Mutex, PoisonError};

/// The CUDA version that is claimed: 12.4, as driver 550 does.
const VERSION: c_int = 12040;

/// Everything that exists once `cuInit` has succeeded. Never freed: the real driver's memory too
/// goes with the process's open files.
pub struct Driver {
    /// The open devices.
    pub client: Client,
    /// The contexts of the process.
    pub contexts: Contexts,
    /// The allocations of the process.
    pub memory: Memory,
}

static READY: AtomicPtr<Driver> = AtomicPtr::new(ptr::null_mut());
static INITIALISING: Mutex<()> = Mutex::new(());
/// Initialisation was begun in this process or in the one that it was forked from.
static BEGUN: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

/// The driver.
///
/// # Errors
/// [`NOT_INITIALIZED`] before `cuInit`, and for ever in a child that was forked after it.
pub fn driver() -> Result<&'static Driver, Code> {
    // SAFETY: null, or a box that was leaked by `init`.
    unsafe { READY.load(Acquire).as_ref() }.ok_or(NOT_INITIALIZED)
}

/// `cuInit`.
pub unsafe extern "C" fn init(flags: c_uint) -> Code {
    if flags != 0 {
        return INVALID_VALUE;
    }
    if FORKED.load(Acquire) {
        return NOT_INITIALIZED;
    }
    let _once = INITIALISING.lock().unwrap_or_else(PoisonError::into_inner);
    if driver().is_ok() {
        return SUCCESS;
    }
    if !BEGUN.swap(true, Relaxed) {
        // SAFETY: the handler only stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
    match open() {
        Ok(driver) => {
            crate::faults::begin(&driver.client.devices().config().faults);
            READY.store(Box::into_raw(Box::new(driver)), Release);
            SUCCESS
        }
        Err(error) => {
            // A rig that is set up wrongly must not look like a scenario's outcome.
            eprintln!("fake libcuda: {error}");
            NO_DEVICE
        }
    }
}

fn open() -> Result<Driver, DeviceError> {
    let devices = Devices::open(Rig::from_environment()?)?;
    let contexts = Contexts::new(devices.count());
    Ok(Driver {
        client: Client::open(&devices)?,
        contexts,
        memory: Memory::new(),
    })
}

/// In a forked child the driver is of no use, while the child keeps the open files.
extern "C" fn after_fork() {
    FORKED.store(true, Release);
    READY.store(ptr::null_mut(), Release);
}

/// `cuDriverGetVersion`; works without `cuInit`, as the real one.
pub unsafe extern "C" fn version(version: *mut c_int) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(unsafe { give(version, VERSION) })
}

extern "C" fn tear_down() {
    STATE.store(TORN_DOWN, Release);
}

/// When the process ends, or the library is unloaded.
#[used]
#[unsafe(link_section = ".fini_array")]
static TEAR_DOWN: extern "C" fn() = tear_down;
