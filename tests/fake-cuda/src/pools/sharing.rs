//! Pools and their memory for other processes.

use super::*;

/// `cuMemPoolExportToShareableHandle`.
pub unsafe extern "C" fn export(
    to: *mut c_int,
    pool: u64,
    handle_type: c_uint,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        let gpu = driver.pools.with(pool, |found| {
            if found.imported || found.handle_types & handle_type == 0 {
                return Err(INVALID_VALUE);
            }
            Ok(found.gpu)
        })?;
        if to.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if handle_type != FILE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let descriptor = export_descriptor(driver, None, gpu as u64)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, descriptor) }
    }))
}

/// `cuMemPoolImportFromShareableHandle`: the descriptor comes in place of a pointer.
pub unsafe extern "C" fn import(
    to: *mut u64,
    exported: u64,
    handle_type: c_uint,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Pool)?;
        if to.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if handle_type != FILE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let (_, gpu) = read_descriptor(exported)?;
        let gpu = usize::try_from(gpu)
            .ok()
            .filter(|gpu| *gpu < driver.client.devices().count())
            .ok_or(INVALID_VALUE)?;
        let pool = driver.pools.pools.insert(Pool {
            imported: true,
            ..Pool::new(gpu, FILE_DESCRIPTOR)
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, pool) }
    }))
}

/// `cuMemPoolExportPointer`: of memory from a pool; the data has the size of an IPC handle.
pub unsafe extern "C" fn export_pointer(to: *mut MemHandle, address: u64) -> Code {
    code(driver().and_then(|driver| {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let share = share_of(driver, address, |origin| matches!(origin, Origin::Pool(_)))?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, MemHandle::new(share)) }
    }))
}

/// `cuMemPoolImportPointer`.
pub unsafe extern "C" fn import_pointer(to: *mut u64, pool: u64, data: *const MemHandle) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Ipc)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let share = unsafe { take(data)? }.share().ok_or(INVALID_VALUE)?;
        let gpu = driver.pools.with(pool, |found| {
            if found.imported {
                Ok(found.gpu)
            } else {
                Err(INVALID_VALUE)
            }
        })?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let shared = driver.client.devices().shared(share).ok_or(INVALID_VALUE)?;
        if !driver.shares.join(&driver.client, share) {
            return Err(INVALID_VALUE);
        }
        let address = match driver.memory.take_address(shared.bytes) {
            Ok(address) => address,
            Err(code) => {
                driver.shares.leave(&driver.client, share);
                return Err(code);
            }
        };
        let block = Block {
            bytes: shared.bytes,
            context: None,
            gpu,
            origin: Origin::Imported(share),
            share: None,
        };
        driver.place(address, block)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, address) }
    }))
}
