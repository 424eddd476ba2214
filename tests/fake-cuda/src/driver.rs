//! The driver in this process: not initialised, ready, or of no use after a fork.

use crate::arrays::Arrays;
use crate::context::{Context, Contexts};
use crate::graphs::Graphs;
use crate::green::Greens;
use crate::host::Host;
use crate::ipc::Ipc;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::pools::Pools;
use crate::result::{Code, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, SUCCESS, code, give};
use crate::shares::Shares;
use crate::streams::Streams;
use crate::trampoline::{STATE, TORN_DOWN};
use crate::vmm::Vmm;
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::device::{Client, DeviceError, Devices};
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Mutex, PoisonError};

/// The CUDA version that is claimed: 12.5, as driver 555 does.
pub const VERSION: c_int = 12050;

/// Everything that exists once `cuInit` has succeeded. Never freed: the real driver's memory too
/// goes with the process's open files.
pub struct Driver {
    /// The open devices.
    pub client: Client,
    /// The contexts of the process.
    pub contexts: Contexts,
    /// Its allocations.
    pub memory: Memory,
    /// Its physical memory and addresses, managed apart.
    pub vmm: Vmm,
    /// Its page-locked host memory.
    pub host: Host,
    /// Its arrays.
    pub arrays: Arrays,
    /// What it shares with others.
    pub shares: Shares,
    /// What it has opened of others.
    pub ipc: Ipc,
    /// Its memory pools.
    pub pools: Pools,
    /// Its streams and events.
    pub streams: Streams,
    /// Its modules, libraries and their functions.
    pub modules: Modules,
    /// Its graphs.
    pub graphs: Graphs,
    /// Its green contexts.
    pub greens: Greens,
}

impl Driver {
    /// Frees whatever belongs to a context that has just been destroyed.
    pub fn free_all_of(&self, context: Context) {
        self.memory
            .free_where(self, |block| block.context == Some(context));
        self.host.free_all_of(context);
        self.arrays.free_all_of(self, context);
        self.ipc.free_all_of(self, context);
        self.modules.free_all_of(self, context);
        self.streams.free_all_of(context);
    }
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
        vmm: Vmm::new(),
        host: Host::new(),
        arrays: Arrays::new(),
        shares: Shares::new(),
        ipc: Ipc::new(),
        pools: Pools::new(devices.count()),
        streams: Streams::new(),
        modules: Modules::new(),
        graphs: Graphs::new(),
        greens: Greens::new(),
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
