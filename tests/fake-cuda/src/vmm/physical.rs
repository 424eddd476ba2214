//! Physical memory: what `cuMemCreate` takes, and the objects that stand for some.

use super::*;

/// `cuMemCreate`.
pub unsafe extern "C" fn create(
    to: *mut u64,
    size: usize,
    properties: *const Properties,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let properties = unsafe { take(properties)? };
        let bytes = size as u64;
        if to.is_null() || flags != 0 || properties.kind != PINNED || !is_granular(bytes) {
            return Err(INVALID_VALUE);
        }
        let place = place(driver, properties.location)?;
        if let Place::Gpu(gpu) = place {
            driver
                .client
                .allocate(gpu, bytes)
                .map_err(|_no_room| OUT_OF_MEMORY)?;
        }
        let handle = driver.vmm.lock().physical.insert(Physical {
            bytes,
            place,
            handle_types: properties.handle_types,
            handles: 1,
            mappings: 0,
            share: None,
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}

/// `cuMulticastCreate`: the object has no memory of its own.
pub unsafe extern "C" fn multicast_create(to: *mut u64, properties: *const Multicast) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let properties = unsafe { take(properties)? };
        if to.is_null() || properties.devices == 0 || !is_granular(properties.size) {
            return Err(INVALID_VALUE);
        }
        let handle = driver.vmm.lock().physical.insert(Physical {
            bytes: properties.size,
            place: Place::Multicast,
            handle_types: c_uint::try_from(properties.handle_types).unwrap_or(0),
            handles: 1,
            mappings: 0,
            share: None,
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}

/// `cuMulticastAddDevice`, `cuMulticastBindMem`, `cuMulticastBindAddr`, `cuMulticastUnbind`.
pub unsafe extern "C" fn multicast_change(handle: u64) -> Code {
    code(driver().and_then(|driver| {
        let place = driver.vmm.lock().valid(handle)?.place;
        if place == Place::Multicast {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }))
}

/// `cuMemRelease`.
pub unsafe extern "C" fn release(handle: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut state = driver.vmm.lock();
        state.valid(handle)?.handles -= 1;
        state.settle(driver, handle);
        Ok(())
    }))
}

/// `cuMemRetainAllocationHandle`: the handle of what is mapped at an address, once more.
pub unsafe extern "C" fn retain(to: *mut u64, address: u64) -> Code {
    code(driver().and_then(|driver| {
        let mut state = driver.vmm.lock();
        let (_, mapping) =
            State::containing(&state.mapped, address, |m| m.size).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, mapping.handle)? };
        // Mapped memory exists, also where its handle had been released.
        if let Some(physical) = state.physical.get_mut(mapping.handle) {
            physical.handles += 1;
        }
        Ok(())
    }))
}

/// `cuMemGetAllocationGranularity` and `cuMulticastGetGranularity`.
pub unsafe extern "C" fn granularity(
    to: *mut usize,
    properties: *const c_void,
    _option: c_uint,
) -> Code {
    code(driver().and_then(|_| {
        if properties.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, usize::try_from(GRANULARITY).unwrap_or(usize::MAX)) }
    }))
}

/// `cuMemGetAllocationPropertiesFromHandle`.
pub unsafe extern "C" fn properties(to: *mut Properties, handle: u64) -> Code {
    code(driver().and_then(|driver| {
        let physical = *driver.vmm.lock().valid(handle)?;
        let location = match physical.place {
            Place::Gpu(gpu) => Location {
                kind: DEVICE,
                id: c_int::try_from(gpu).unwrap_or(c_int::MAX),
            },
            Place::Host | Place::Multicast => Location {
                kind: *HOST.start(),
                id: 0,
            },
        };
        let properties = Properties {
            kind: PINNED,
            handle_types: physical.handle_types,
            location,
            meta_data: 0,
            flags: 0,
        };
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, properties) }
    }))
}
