//! Host memory that the device may use: allocated here, or registered by the program.

use crate::context::Context;
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::host_map;
use crate::result::{
    CONTEXT_IS_DESTROYED, Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED,
    INVALID_VALUE, OUT_OF_MEMORY, code, give,
};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone, Copy)]
struct Pinned {
    bytes: u64,
    context: Context,
    flags: c_uint,
    /// The program's own memory rather than the driver's.
    registered: bool,
}

/// The page-locked memory of this process, by address.
pub struct Host(Mutex<BTreeMap<u64, Pinned>>);

impl Host {
    /// None yet.
    pub fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Pinned>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn containing(ranges: &BTreeMap<u64, Pinned>, address: u64) -> Option<(u64, Pinned)> {
        let (first, range) = ranges.range(..=address).next_back()?;
        (address - first < range.bytes).then_some((*first, *range))
    }

    /// The range in which an address lies, and its size.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (first, range) = Self::containing(&self.lock(), address)?;
        Some((first, range.bytes))
    }

    /// Gives back what belongs to a context that has just been destroyed.
    pub fn free_all_of(&self, context: Context) {
        let mut ranges = self.lock();
        ranges.retain(|address, range| {
            if range.context != context {
                return true;
            }
            if !range.registered {
                host_map::unmap(*address, range.bytes);
            }
            false
        });
    }

    fn remove(&self, address: u64, registered: bool) -> Option<Pinned> {
        let mut ranges = self.lock();
        ranges
            .get(&address)
            .is_some_and(|range| range.registered == registered)
            .then(|| ranges.remove(&address))
            .flatten()
    }
}

fn address_of(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn pointer_to(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// Notes a range while its context lives.
fn noted(driver: &Driver, address: u64, pinned: Pinned) -> Result<(), Code> {
    let mut ranges = driver.host.lock();
    // Looked at under the lock that its destruction takes afterwards.
    if !driver.contexts.lives(pinned.context) {
        return Err(CONTEXT_IS_DESTROYED);
    }
    let end = address.checked_add(pinned.bytes).ok_or(INVALID_VALUE)?;
    let overlaps = ranges
        .range(..end)
        .next_back()
        .is_some_and(|(first, range)| first + range.bytes > address);
    if overlaps {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    ranges.insert(address, pinned);
    Ok(())
}

fn allocated(to: *mut *mut c_void, bytes: u64, flags: c_uint) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Host)?;
    let context = current::context()?;
    if to.is_null() || bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let address = host_map::map(bytes).ok_or(OUT_OF_MEMORY)?;
    let pinned = Pinned {
        bytes,
        context,
        flags,
        registered: false,
    };
    if let Err(code) = noted(driver, address, pinned) {
        host_map::unmap(address, bytes);
        return Err(code);
    }
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, pointer_to(address)) }
}

/// `cuMemHostAlloc`.
pub unsafe extern "C" fn alloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    code(allocated(to, bytes as u64, flags))
}

/// `cuMemAllocHost_v2`.
pub unsafe extern "C" fn alloc_plain(to: *mut *mut c_void, bytes: usize) -> Code {
    code(allocated(to, bytes as u64, 0))
}

/// `cuMemAllocHost`, of the 32-bit API.
pub unsafe extern "C" fn alloc_plain_v1(to: *mut *mut c_void, bytes: c_uint) -> Code {
    code(allocated(to, u64::from(bytes), 0))
}

/// `cuMemFreeHost`. Freeing null does nothing and succeeds.
pub unsafe extern "C" fn free(pointer: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        current::context()?;
        if pointer.is_null() {
            return Ok(());
        }
        let address = address_of(pointer);
        let pinned = driver.host.remove(address, false).ok_or(INVALID_VALUE)?;
        host_map::unmap(address, pinned.bytes);
        Ok(())
    }))
}

/// `cuMemHostRegister` and `_v2`.
pub unsafe extern "C" fn register(pointer: *mut c_void, bytes: usize, flags: c_uint) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Host)?;
        let context = current::context()?;
        if pointer.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let pinned = Pinned {
            bytes: bytes as u64,
            context,
            flags,
            registered: true,
        };
        noted(driver, address_of(pointer), pinned)
    }))
}

/// `cuMemHostUnregister`.
pub unsafe extern "C" fn unregister(pointer: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        current::context()?;
        if pointer.is_null() {
            return Err(INVALID_VALUE);
        }
        driver
            .host
            .remove(address_of(pointer), true)
            .map(drop)
            .ok_or(HOST_MEMORY_NOT_REGISTERED)
    }))
}

/// `cuMemHostGetDevicePointer_v2`: the same address.
pub unsafe extern "C" fn device_pointer(to: *mut u64, pointer: *mut c_void, flags: c_uint) -> Code {
    code(driver().and_then(|driver| {
        let address = address_of(pointer);
        if flags != 0 || driver.host.around(address).is_none() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, address) }
    }))
}

/// `cuMemHostGetFlags`.
pub unsafe extern "C" fn flags(to: *mut c_uint, pointer: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        let (_, pinned) =
            Host::containing(&driver.host.lock(), address_of(pointer)).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, pinned.flags) }
    }))
}
