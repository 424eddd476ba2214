//! Memory pools, from which memory is allocated in the order of a stream.
//!
//! A pool keeps what is freed up to its release threshold. The real one gives the rest back when the
//! stream is synchronised; this one at once.

mod settings;
mod sharing;

pub use settings::*;
pub use sharing::*;

use crate::device;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::ipc::{MemHandle, share_of};
use crate::memory::{Block, Origin};
use crate::objects::{Kind, Objects};
use crate::result::{
    Code, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, code, give, take,
};
use crate::vmm::{FILE_DESCRIPTOR, Location, export_descriptor, read_descriptor};
use gputrace_test_rig::device::Share;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

/// `CUmemPoolProps`, as far as it is looked at.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    security: u64,
    max_size: u64,
    reserved: [u8; 56],
}

const _: () = assert!(size_of::<Properties>() == 88);

#[derive(Debug, Clone)]
struct Pool {
    gpu: usize,
    handle_types: c_uint,
    /// Of another process: only its pointers can be imported.
    imported: bool,
    /// Destroyed by the program while something of it was allocated.
    destroyed: bool,
    used: u64,
    /// Freed, and kept.
    cached: u64,
    used_most: u64,
    reserved_most: u64,
    threshold: u64,
    /// The three attributes that say how memory may be reused.
    reuse: [c_int; 3],
}

impl Pool {
    fn new(gpu: usize, handle_types: c_uint) -> Self {
        Self {
            gpu,
            handle_types,
            imported: false,
            destroyed: false,
            used: 0,
            cached: 0,
            used_most: 0,
            reserved_most: 0,
            threshold: 0,
            reuse: [1; 3],
        }
    }

    /// Gives back what is cached beyond so many reserved bytes.
    fn trim(&mut self, driver: &Driver, keep: u64) {
        let kept = keep.saturating_sub(self.used).min(self.cached);
        driver.client.free(self.gpu, self.cached - kept);
        self.cached = kept;
    }

    fn reserved(&self) -> u64 {
        self.used + self.cached
    }
}

#[derive(Clone, Copy, Default)]
struct OfDevice {
    default: u64,
    current: u64,
}

/// The pools of this process.
pub struct Pools {
    pools: Objects<Pool>,
    devices: Mutex<Vec<OfDevice>>,
}

impl Pools {
    /// The default pool of each device.
    pub fn new(devices: usize) -> Self {
        let pools = Objects::new(Kind::Pool);
        let of_devices = (0..devices)
            .map(|gpu| {
                let default = pools.insert(Pool::new(gpu, 0));
                OfDevice {
                    default,
                    current: default,
                }
            })
            .collect();
        Self {
            pools,
            devices: Mutex::new(of_devices),
        }
    }

    fn of_device(&self, gpu: usize) -> OfDevice {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get(gpu).copied().unwrap_or_default()
    }

    /// The pool that a device's memory comes from at the moment.
    pub fn current(&self, gpu: usize) -> u64 {
        self.of_device(gpu).current
    }

    /// Takes back what came from a pool; `share`: it was exported, so that others may still hold it.
    pub fn give_back(&self, driver: &Driver, pool: u64, block: Block, share: Option<Share>) {
        let mut pools = self.pools.lock();
        let Some(found) = pools.get_mut(pool) else {
            return;
        };
        found.used = found.used.saturating_sub(block.bytes);
        match share {
            Some(share) => driver.shares.leave(&driver.client, share),
            None => found.cached += block.bytes,
        }
        let keep = if found.destroyed { 0 } else { found.threshold };
        found.trim(driver, keep);
        if found.destroyed && found.used == 0 {
            pools.remove(pool);
        }
    }

    /// Gives back whatever the pools of a device keep.
    pub fn trim_all(&self, driver: &Driver, gpu: usize) {
        let mut pools = self.pools.lock();
        let of_device: Vec<_> = pools
            .iter()
            .filter(|(_, pool)| pool.gpu == gpu)
            .map(|(handle, _)| handle)
            .collect();
        for handle in of_device {
            if let Some(pool) = pools.get_mut(handle) {
                pool.trim(driver, 0);
            }
        }
    }

    fn with<R>(
        &self,
        handle: u64,
        action: impl FnOnce(&mut Pool) -> Result<R, Code>,
    ) -> Result<R, Code> {
        let mut pools = self.pools.lock();
        let pool = pools.get_mut(handle).filter(|pool| !pool.destroyed);
        action(pool.ok_or(INVALID_VALUE)?)
    }
}

/// Memory from a pool. It belongs to no context.
pub fn allocate(driver: &Driver, pool: u64, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let gpu = driver.pools.with(pool, |found| {
        if found.imported {
            return Err(INVALID_VALUE);
        }
        let reused = bytes.min(found.cached);
        driver
            .client
            .allocate(found.gpu, bytes - reused)
            .map_err(|_no_room| OUT_OF_MEMORY)?;
        found.cached -= reused;
        found.used += bytes;
        found.used_most = found.used_most.max(found.used);
        found.reserved_most = found.reserved_most.max(found.reserved());
        Ok(found.gpu)
    })?;
    let block = Block {
        bytes,
        context: None,
        gpu,
        origin: Origin::Pool(pool),
        share: None,
    };
    let address = match driver.memory.take_address(bytes) {
        Ok(address) => address,
        Err(code) => {
            driver.pools.give_back(driver, pool, block, None);
            return Err(code);
        }
    };
    driver.place(address, block)?;
    Ok(address)
}

/// `cuMemPoolCreate`.
pub unsafe extern "C" fn create(to: *mut u64, properties: *const Properties) -> Code {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`.
    const PINNED: c_uint = 1;
    const DEVICE: c_uint = 1;
    code(driver().and_then(|driver| {
        strike(Family::Pool)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let properties = unsafe { take(properties)? };
        if to.is_null() || properties.kind != PINNED {
            return Err(INVALID_VALUE);
        }
        if properties.location.kind != DEVICE {
            return Err(NOT_SUPPORTED);
        }
        let gpu = device::index(properties.location.id).map_err(|_| INVALID_DEVICE)?;
        let pool = driver
            .pools
            .pools
            .insert(Pool::new(gpu, properties.handle_types));
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, pool) }
    }))
}

/// `cuMemPoolDestroy`: what is allocated from it stays until it is freed.
pub unsafe extern "C" fn destroy(pool: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let pools = &driver.pools;
        {
            let mut devices = pools.devices.lock().unwrap_or_else(PoisonError::into_inner);
            if devices.iter().any(|device| device.default == pool) {
                return Err(INVALID_VALUE);
            }
            for device in devices.iter_mut().filter(|device| device.current == pool) {
                device.current = device.default;
            }
        }
        let is_empty = pools.with(pool, |found| {
            found.trim(driver, 0);
            found.destroyed = true;
            Ok(found.used == 0)
        })?;
        if is_empty {
            pools.pools.remove(pool);
        }
        Ok(())
    }))
}

/// `cuMemPoolTrimTo`.
pub unsafe extern "C" fn trim(pool: u64, keep: usize) -> Code {
    code(driver().and_then(|driver| {
        driver.pools.with(pool, |found| {
            found.trim(driver, keep as u64);
            Ok(())
        })
    }))
}

impl Properties {
    /// The number of the device.
    pub fn device(&self) -> c_int {
        self.location.id
    }
}
