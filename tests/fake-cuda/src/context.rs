//! Contexts: creation, destruction, and the primary context of each device.

use crate::current;
use crate::device;
use crate::driver::{Driver, driver};
use crate::result::{Code, INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, code, give};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
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
}

/// The contexts of this process.
pub struct Contexts {
    slots: Vec<Slot>,
    /// Slots without a context. Creation and destruction take this lock.
    unused: Mutex<Vec<u32>>,
    /// Of each device, its primary context and how often that is retained.
    primary: Vec<Mutex<Option<(Context, u64)>>>,
}

impl Contexts {
    /// None yet, for this many devices.
    pub fn new(devices: usize) -> Self {
        let slot = || Slot {
            life: AtomicU64::new(0),
            gpu: AtomicU64::new(0),
        };
        Self {
            slots: std::iter::repeat_with(slot).take(MAX_CONTEXTS).collect(),
            // The most recently destroyed one is reused first.
            unused: Mutex::new((0..4096).rev().collect()),
            primary: std::iter::repeat_with(|| Mutex::new(None))
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
}

impl Driver {
    fn create(&self, gpu: usize) -> Result<Context, Code> {
        let mut unused = lock(&self.contexts.unused);
        let number = *unused.last().ok_or(OUT_OF_MEMORY)?;
        self.client
            .open_context(gpu)
            .map_err(|_no_room| OUT_OF_MEMORY)?;
        unused.pop();
        let slot = &self.contexts.slots[number as usize];
        slot.gpu.store(gpu as u64, SeqCst);
        let life = slot.life.fetch_add(1, SeqCst) + 1;
        Ok(Context { slot: number, life })
    }

    fn destroy(&self, context: Context) -> Result<(), Code> {
        let mut unused = lock(&self.contexts.unused);
        let slot = &self.contexts.slots[context.slot as usize];
        let next = context.life + 1;
        slot.life
            .compare_exchange(context.life, next, SeqCst, SeqCst)
            .map_err(|_gone| INVALID_CONTEXT)?;
        // From here on no allocation of it can stay: whoever adds one looks whether it lives.
        self.memory.free_all(self, context);
        self.client.close_context(self.contexts.gpu(context));
        unused.push(context.slot);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuCtxCreate_v2`.
pub unsafe extern "C" fn create(to: *mut *mut c_void, _flags: c_uint, device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let driver = driver()?;
        let context = driver.create(gpu)?;
        if let Err(code) = current::push_context(context) {
            driver.destroy(context)?;
            return Err(code);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, context.handle()) }
    }))
}

/// `cuCtxDestroy_v2`.
pub unsafe extern "C" fn destroy(context: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        let context = driver.contexts.of_handle(context).ok_or(INVALID_CONTEXT)?;
        let is_primary =
            |primary: &Mutex<Option<(Context, u64)>>| lock(primary).is_some_and(|p| p.0 == context);
        if driver.contexts.primary.iter().any(is_primary) {
            return Err(INVALID_CONTEXT);
        }
        driver.destroy(context)?;
        current::forget_top(context);
        Ok(())
    }))
}

/// `cuDevicePrimaryCtxRetain`.
pub unsafe extern "C" fn retain_primary(to: *mut *mut c_void, device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let driver = driver()?;
        let mut primary = lock(&driver.contexts.primary[gpu]);
        let (context, retained) = match *primary {
            Some(existing) => existing,
            None => (driver.create(gpu)?, 0),
        };
        *primary = Some((context, retained + 1));
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, context.handle()) }
    }))
}

/// `cuDevicePrimaryCtxRelease_v2`.
pub unsafe extern "C" fn release_primary(device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        let driver = driver()?;
        let mut primary = lock(&driver.contexts.primary[gpu]);
        match *primary {
            None => Err(INVALID_CONTEXT),
            Some((context, 1)) => {
                *primary = None;
                driver.destroy(context)
            }
            Some((context, retained)) => {
                *primary = Some((context, retained - 1));
                Ok(())
            }
        }
    }))
}
