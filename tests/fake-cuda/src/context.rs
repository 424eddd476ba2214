//! Contexts: creation and destruction.

use crate::current;
use crate::device;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::primary::Primary;
use crate::result::{Code, INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, code, give};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// The largest number of contexts of a process at one time.
const MAX_CONTEXTS: usize = 4096;
/// Handles look like heap addresses, `STRIDE` bytes apart, and are reused as those are.
const FIRST: usize = 0x5610_0000_0000;
const STRIDE: usize = 0x1000;

/// A context at one time of its slot: a handle that was reused is another context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    slot: u32,
    life: u64,
}

impl Context {
    /// The handle that the application knows it by.
    pub fn handle(self) -> *mut c_void {
        std::ptr::without_provenance_mut(FIRST + self.slot as usize * STRIDE)
    }
}

/// `life` is odd while the slot has a context, and counts up when it comes and when it goes.
struct Slot {
    life: AtomicU64,
    gpu: AtomicU64,
    /// It is a green context's view, which costs nothing of its own.
    green: AtomicBool,
    /// `cuCtxAttach` less `cuCtxDetach`, from 1.
    uses: AtomicU64,
    flags: AtomicU64,
}

/// What a new context is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The program's own, or a device's primary one.
    Own,
    /// The view of a green context, which the primary context pays for.
    Green,
}

/// The contexts of this process.
pub struct Contexts {
    slots: Vec<Slot>,
    /// Slots without a context. Creation and destruction take this lock.
    unused: Mutex<Vec<u32>>,
    /// Of each device.
    pub primary: Vec<Primary>,
}

impl Contexts {
    /// None yet, for this many devices.
    pub fn new(devices: usize) -> Self {
        let slot = || Slot {
            life: AtomicU64::new(0),
            gpu: AtomicU64::new(0),
            green: AtomicBool::new(false),
            uses: AtomicU64::new(0),
            flags: AtomicU64::new(0),
        };
        Self {
            slots: std::iter::repeat_with(slot).take(MAX_CONTEXTS).collect(),
            // The most recently destroyed one is reused first.
            unused: Mutex::new((0..4096).rev().collect()),
            primary: std::iter::repeat_with(Primary::default)
                .take(devices)
                .collect(),
        }
    }

    /// The context with this handle, if it lives.
    pub fn of_handle(&self, handle: *mut c_void) -> Option<Context> {
        let offset = handle.addr().checked_sub(FIRST)?;
        if !offset.is_multiple_of(STRIDE) {
            return None;
        }
        let slot = u32::try_from(offset / STRIDE).ok()?;
        let life = self.slots.get(slot as usize)?.life.load(SeqCst);
        (life % 2 == 1).then_some(Context { slot, life })
    }

    /// Whether it has not been destroyed.
    pub fn lives(&self, context: Context) -> bool {
        self.slots[context.slot as usize].life.load(SeqCst) == context.life
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self, context: Context) -> usize {
        // It was a usize when it was stored.
        usize::try_from(self.slots[context.slot as usize].gpu.load(SeqCst)).unwrap_or(0)
    }

    /// The flags with which it was created.
    pub fn flags(&self, context: Context) -> c_uint {
        c_uint::try_from(self.slots[context.slot as usize].flags.load(SeqCst)).unwrap_or(0)
    }

    /// A number that no other context of the process ever has.
    pub fn id(context: Context) -> u64 {
        context.life / 2 * MAX_CONTEXTS as u64 + u64::from(context.slot) + 1
    }

    /// Counts a further use of it.
    pub fn attach(&self, context: Context) {
        self.slots[context.slot as usize].uses.fetch_add(1, SeqCst);
    }

    /// Counts a use less; true for the last one.
    pub fn detach(&self, context: Context) -> bool {
        self.slots[context.slot as usize].uses.fetch_sub(1, SeqCst) == 1
    }
}

impl Driver {
    /// Makes a context on a GPU and charges its hidden bytes.
    pub fn create(&self, gpu: usize, flags: c_uint, use_of_it: Use) -> Result<Context, Code> {
        let mut unused = lock(&self.contexts.unused);
        let number = *unused.last().ok_or(OUT_OF_MEMORY)?;
        if use_of_it == Use::Own {
            self.client
                .open_context(gpu)
                .map_err(|_no_room| OUT_OF_MEMORY)?;
        }
        unused.pop();
        let slot = &self.contexts.slots[number as usize];
        slot.gpu.store(gpu as u64, SeqCst);
        slot.green.store(use_of_it == Use::Green, SeqCst);
        slot.uses.store(1, SeqCst);
        slot.flags.store(u64::from(flags), SeqCst);
        let life = slot.life.fetch_add(1, SeqCst) + 1;
        Ok(Context { slot: number, life })
    }

    /// Destroys a context with all that belongs to it.
    pub fn destroy(&self, context: Context) -> Result<(), Code> {
        let mut unused = lock(&self.contexts.unused);
        let slot = &self.contexts.slots[context.slot as usize];
        let next = context.life + 1;
        slot.life
            .compare_exchange(context.life, next, SeqCst, SeqCst)
            .map_err(|_gone| INVALID_CONTEXT)?;
        // From here on nothing of it can stay: whoever adds something looks whether it lives.
        self.free_all_of(context);
        if !slot.green.load(SeqCst) {
            self.client.close_context(self.contexts.gpu(context));
        }
        unused.push(context.slot);
        Ok(())
    }
}

/// What a mutex protects, also after a panic of somebody else.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a context for the program and makes it current.
fn created(to: *mut *mut c_void, flags: c_uint, device: c_int) -> Result<(), Code> {
    let gpu = device::index(device)?;
    let driver = driver()?;
    strike(Family::Ctx)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let context = driver.create(gpu, flags, Use::Own)?;
    if let Err(code) = current::push_context(context) {
        driver.destroy(context)?;
        return Err(code);
    }
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, context.handle()) }
}

/// `cuCtxCreate` and `cuCtxCreate_v2`.
pub unsafe extern "C" fn create(to: *mut *mut c_void, flags: c_uint, device: c_int) -> Code {
    code(created(to, flags, device))
}

/// `cuCtxCreate_v3`: a list of restrictions comes second, which are of no consequence here.
pub unsafe extern "C" fn create_v3(
    to: *mut *mut c_void,
    affinities: *const c_void,
    count: c_int,
    flags: c_uint,
    device: c_int,
) -> Code {
    if count < 0 || (count > 0 && affinities.is_null()) {
        return code(driver().and(Err(INVALID_VALUE)));
    }
    code(created(to, flags, device))
}

/// `cuCtxCreate_v4`: parameters come second, or null.
pub unsafe extern "C" fn create_v4(
    to: *mut *mut c_void,
    _parameters: *const c_void,
    flags: c_uint,
    device: c_int,
) -> Code {
    code(created(to, flags, device))
}

/// Destroys a context that is the program's own.
fn destroy_own(driver: &Driver, context: Context) -> Result<(), Code> {
    if driver.contexts.primary.iter().any(|p| p.is(context)) {
        return Err(INVALID_CONTEXT);
    }
    driver.destroy(context)?;
    current::forget_top(context);
    Ok(())
}

/// `cuCtxDestroy` and `cuCtxDestroy_v2`.
pub unsafe extern "C" fn destroy(context: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        let context = driver.contexts.of_handle(context).ok_or(INVALID_CONTEXT)?;
        destroy_own(driver, context)
    }))
}

/// `cuCtxAttach`: the current context once more.
pub unsafe extern "C" fn attach(to: *mut *mut c_void, flags: c_uint) -> Code {
    code(driver().and_then(|driver| {
        let context = current::context()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, context.handle())? };
        driver.contexts.attach(context);
        Ok(())
    }))
}

/// `cuCtxDetach`: the last one destroys it.
pub unsafe extern "C" fn detach(context: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        let context = driver.contexts.of_handle(context).ok_or(INVALID_CONTEXT)?;
        if current::context()? != context {
            return Err(INVALID_CONTEXT);
        }
        if driver.contexts.detach(context) {
            destroy_own(driver, context)?;
        }
        Ok(())
    }))
}

/// The context with this handle, or the current one for null.
fn of_handle_or_current(driver: &Driver, handle: *mut c_void) -> Result<Context, Code> {
    if handle.is_null() {
        current::context()
    } else {
        driver.contexts.of_handle(handle).ok_or(INVALID_CONTEXT)
    }
}

/// `cuCtxGetApiVersion`.
pub unsafe extern "C" fn api_version(context: *mut c_void, version: *mut c_uint) -> Code {
    code(driver().and_then(|driver| {
        of_handle_or_current(driver, context)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(version, 3020) }
    }))
}

/// `cuCtxGetId`.
pub unsafe extern "C" fn id(context: *mut c_void, id: *mut u64) -> Code {
    code(driver().and_then(|driver| {
        let context = of_handle_or_current(driver, context)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(id, Contexts::id(context)) }
    }))
}

/// `cuCtxGetFlags`.
pub unsafe extern "C" fn flags(to: *mut c_uint) -> Code {
    code(driver().and_then(|driver| {
        let flags = driver.contexts.flags(current::context()?);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, flags) }
    }))
}

/// `cuCtxGetLimit`: every limit is what the real driver begins with.
pub unsafe extern "C" fn limit(to: *mut usize, limit: c_uint) -> Code {
    code(driver().and_then(|_| {
        current::context()?;
        let value = match limit {
            // Stack of a thread, of printf, of the heap on the device, depth, pending launches.
            0 => 1024,
            1 => 1 << 20,
            2 => 8 << 20,
            3 => 2,
            4 => 2048,
            5 => 128,
            6..=9 => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, value) }
    }))
}

/// Calls that only need a current context, and change nothing that could be seen.
pub unsafe extern "C" fn accept() -> Code {
    code(driver().and_then(|_| current::context().map(drop)))
}

/// Calls that give the number 0 and need a current context.
pub unsafe extern "C" fn give_zero(to: *mut c_uint) -> Code {
    code(driver().and_then(|_| {
        current::context()?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, 0) }
    }))
}

/// `cuCtxGetStreamPriorityRange`.
pub unsafe extern "C" fn priorities(least: *mut c_int, greatest: *mut c_int) -> Code {
    code(driver().and_then(|_| {
        current::context()?;
        for (to, value) in [(least, 0), (greatest, -5)] {
            if !to.is_null() {
                // SAFETY: the caller of the driver API vouches for its pointers.
                unsafe { give(to, value)? };
            }
        }
        Ok(())
    }))
}
