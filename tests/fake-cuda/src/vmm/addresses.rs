//! Addresses, and what is mapped at them.

use super::*;

/// `cuMemMap`.
pub unsafe extern "C" fn map(
    address: u64,
    size: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        let (size, offset) = (size as u64, offset as u64);
        if flags != 0
            || !is_granular(size)
            || !offset.is_multiple_of(GRANULARITY)
            || !address.is_multiple_of(GRANULARITY)
        {
            return Err(INVALID_VALUE);
        }
        let mut state = driver.vmm.lock();
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        let (first, reserved) =
            State::containing(&state.reserved, address, |bytes| bytes).ok_or(INVALID_VALUE)?;
        let is_mapped = state
            .mapped
            .range(..end)
            .next_back()
            .is_some_and(|(at, mapping)| at + mapping.size > address);
        if end > first + reserved || is_mapped {
            return Err(INVALID_VALUE);
        }
        let physical = state.valid(handle)?;
        if offset
            .checked_add(size)
            .is_none_or(|end| end > physical.bytes)
        {
            return Err(INVALID_VALUE);
        }
        physical.mappings += 1;
        state.mapped.insert(address, Mapping { size, handle });
        Ok(())
    }))
}

/// `cuMemUnmap`.
pub unsafe extern "C" fn unmap(address: u64, size: usize) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut state = driver.vmm.lock();
        for at in state.mappings_of(address, size as u64)? {
            let Some(mapping) = state.mapped.remove(&at) else {
                continue;
            };
            if let Some(physical) = state.physical.get_mut(mapping.handle) {
                physical.mappings -= 1;
            }
            state.settle(driver, mapping.handle);
        }
        Ok(())
    }))
}

/// `cuMemSetAccess`.
pub unsafe extern "C" fn set_access(
    address: u64,
    size: usize,
    descriptions: *const c_void,
    count: usize,
) -> Code {
    code(driver().and_then(|driver| {
        if descriptions.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        driver
            .vmm
            .lock()
            .mappings_of(address, size as u64)
            .map(drop)
    }))
}

/// `cuMemGetAccess`: what is mapped may be read and written.
pub unsafe extern "C" fn access(to: *mut u64, location: *const Location, address: u64) -> Code {
    const READ_AND_WRITE: u64 = 3;
    code(driver().and_then(|driver| {
        if location.is_null() || driver.vmm.mapping_around(address).is_none() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, READ_AND_WRITE) }
    }))
}

/// `cuMemAddressReserve`.
pub unsafe extern "C" fn reserve(
    to: *mut u64,
    size: usize,
    alignment: usize,
    wanted: u64,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Reserve)?;
        let (size, alignment) = (size as u64, alignment as u64);
        let power = alignment == 0 || alignment.is_power_of_two();
        if to.is_null() || flags != 0 || size == 0 || !size.is_multiple_of(PAGE) || !power {
            return Err(INVALID_VALUE);
        }
        let mut state = driver.vmm.lock();
        let limit = match faults::address_space() {
            0 => ZONE.1 - ZONE.0,
            limit => limit,
        };
        if state
            .reserved_bytes
            .checked_add(size)
            .is_none_or(|all| all > limit)
        {
            return Err(OUT_OF_MEMORY);
        }
        let first = state
            .gap(size, alignment.max(GRANULARITY), wanted)
            .ok_or(OUT_OF_MEMORY)?;
        state.reserved.insert(first, size);
        state.reserved_bytes += size;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, first) }
    }))
}

/// `cuMemAddressFree`: one whole reservation in which nothing is mapped.
pub unsafe extern "C" fn free_addresses(address: u64, size: usize) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut state = driver.vmm.lock();
        let size = size as u64;
        let is_mapped = state
            .mapped
            .range(address..address.saturating_add(size))
            .next()
            .is_some();
        if state.reserved.get(&address) != Some(&size) || is_mapped {
            return Err(INVALID_VALUE);
        }
        state.reserved.remove(&address);
        state.reserved_bytes -= size;
        Ok(())
    }))
}
