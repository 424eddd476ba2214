//! Device memory of this process.
//!
//! Nothing is behind an address; it is only handed out, and never twice at one time. A freed address
//! is the first to be handed out again for its size, to whatever thread asks: that is what makes
//! the order of events matter to whoever traces them. The first addresses of two processes are the
//! same.

use crate::context::Context;
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults;
use crate::result::{CONTEXT_IS_DESTROYED, Code, INVALID_VALUE, OUT_OF_MEMORY, code, give};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sizes are rounded up to this, so that addresses are multiples of it.
const SMALL: u64 = 512;
/// From this size on, sizes and addresses are multiples of it.
const LARGE: u64 = 2 << 20;
/// Where addresses of small and of large allocations begin, and where all end.
const SMALL_FIRST: u64 = 0x7f10_0000_0000;
const LARGE_FIRST: u64 = 0x7f40_0000_0000;
const END: u64 = 0x7fff_0000_0000;

const SHARDS: usize = 64;

/// A live allocation.
#[derive(Clone, Copy)]
struct Block {
    /// As it was asked for, which is also what the device is charged.
    bytes: u64,
    context: Context,
    gpu: u32,
}

/// Spreads keys that are multiples of a power of two.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<Multiply>>;

/// One of the parts of a map, on a cache line of its own.
#[repr(align(64))]
struct Shard<V>(Mutex<Map<V>>);

impl<V> Shard<V> {
    fn all() -> Vec<Self> {
        std::iter::repeat_with(|| Self(Mutex::new(Map::default())))
            .take(SHARDS)
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Map<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shard<V>(shards: &[Shard<V>], key: u64) -> &Shard<V> {
    let mut hasher = Multiply::default();
    hasher.write_u64(key);
    // The upper bits, since the map inside goes by the lower ones; 6 of them always fit.
    &shards[usize::try_from(hasher.finish() >> 58).unwrap_or(0)]
}

/// The allocations of this process.
pub struct Memory {
    live: Vec<Shard<Block>>,
    /// By rounded size: addresses that were used and are free, the newest last.
    free: Vec<Shard<Vec<u64>>>,
    next_small: AtomicU64,
    next_large: AtomicU64,
}

impl Memory {
    /// None yet.
    pub fn new() -> Self {
        Self {
            live: Shard::all(),
            free: Shard::all(),
            next_small: AtomicU64::new(SMALL_FIRST),
            next_large: AtomicU64::new(LARGE_FIRST),
        }
    }

    fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(if bytes < LARGE { SMALL } else { LARGE })
    }

    fn take_address(&self, bytes: u64) -> Option<u64> {
        let size = Self::rounded(bytes);
        let reused = shard(&self.free, size)
            .lock()
            .get_mut(&size)
            .and_then(Vec::pop);
        if reused.is_some() {
            return reused;
        }
        let (next, end) = if size < LARGE {
            (&self.next_small, LARGE_FIRST)
        } else {
            (&self.next_large, END)
        };
        next.fetch_update(Relaxed, Relaxed, |first| {
            first.checked_add(size).filter(|after| *after <= end)
        })
        .ok()
    }

    fn give_address_back(&self, address: u64, bytes: u64) {
        let size = Self::rounded(bytes);
        shard(&self.free, size)
            .lock()
            .entry(size)
            .or_default()
            .push(address);
    }

    fn release(&self, driver: &Driver, address: u64, block: Block) {
        driver.client.free(block.gpu as usize, block.bytes);
        self.give_address_back(address, block.bytes);
    }

    /// Frees whatever belongs to a context that has just been destroyed.
    pub fn free_all(&self, driver: &Driver, context: Context) {
        for shard in &self.live {
            let gone: Vec<_> = shard
                .lock()
                .extract_if(|_, block| block.context == context)
                .collect();
            for (address, block) in gone {
                self.release(driver, address, block);
            }
        }
    }
}

impl Driver {
    fn allocate(&self, bytes: u64) -> Result<u64, Code> {
        let context = current::context()?;
        let gpu = self.contexts.gpu(context);
        self.client
            .allocate(gpu, bytes)
            .map_err(|_no_room| OUT_OF_MEMORY)?;
        let Some(address) = self.memory.take_address(bytes) else {
            self.client.free(gpu, bytes);
            return Err(OUT_OF_MEMORY);
        };
        let block = Block {
            bytes,
            context,
            gpu: u32::try_from(gpu).unwrap_or(0),
        };
        let place = shard(&self.memory.live, address);
        place.lock().insert(address, block);
        if !self.contexts.lives(context) {
            // Destroyed meanwhile: either its destruction has taken the block along (and another
            // context may have the address by now), or we do.
            let mut blocks = place.lock();
            if blocks.get(&address).is_some_and(|b| b.context == context) {
                blocks.remove(&address);
                drop(blocks);
                self.memory.release(self, address, block);
            }
            return Err(CONTEXT_IS_DESTROYED);
        }
        Ok(address)
    }
}

/// `cuMemAlloc_v2`.
pub unsafe extern "C" fn alloc(to: *mut u64, bytes: usize) -> Code {
    code(driver().and_then(|driver| {
        faults::ALLOC.strike()?;
        if to.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let address = driver.allocate(bytes as u64)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, address) }
    }))
}

/// `cuMemFree_v2`. Freeing null does nothing and succeeds.
pub unsafe extern "C" fn free(address: u64) -> Code {
    code(driver().and_then(|driver| {
        faults::FREE.strike()?;
        current::context()?;
        if address == 0 {
            return Ok(());
        }
        let block = shard(&driver.memory.live, address)
            .lock()
            .remove(&address)
            .ok_or(INVALID_VALUE)?;
        driver.memory.release(driver, address, block);
        Ok(())
    }))
}

/// `cuMemGetInfo_v2`.
pub unsafe extern "C" fn info(free: *mut usize, total: *mut usize) -> Code {
    code(driver().and_then(|driver| {
        let gpu = driver.contexts.gpu(current::context()?);
        let devices = driver.client.devices();
        let left = devices.capacity(gpu) - devices.used(gpu);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the caller of the driver API vouches for its pointers.
        unsafe {
            give(free, size(left))?;
            give(total, size(devices.config().gpu[gpu].total))
        }
    }))
}
