//! Physical memory for other processes.

use super::*;

/// Makes a descriptor that keeps a share.
pub fn export_descriptor(driver: &Driver, share: Option<Share>, extra: u64) -> Result<c_int, Code> {
    driver
        .client
        .ticket(share, extra)
        .map(IntoRawFd::into_raw_fd)
        .map_err(|_none_left| OUT_OF_MEMORY)
}

/// What a descriptor of [`export_descriptor`] is for; it stays open.
pub fn read_descriptor(descriptor: u64) -> Result<(Option<Share>, u64), Code> {
    let descriptor = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
    if descriptor < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: only read from, and never closed here. If it is not open, the read fails.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    read_ticket(&file).map_err(|_no_ticket| INVALID_VALUE)
}

/// `cuMemExportToShareableHandle`.
pub unsafe extern "C" fn export(
    to: *mut c_int,
    handle: u64,
    handle_type: c_uint,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        let mut state = driver.vmm.lock();
        let physical = state.valid(handle)?;
        if to.is_null() || flags != 0 || physical.handle_types & handle_type == 0 {
            return Err(INVALID_VALUE);
        }
        if handle_type != FILE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        if physical.share.is_none()
            && let Place::Gpu(gpu) = physical.place
        {
            let share = driver
                .shares
                .make(&driver.client, gpu, physical.bytes)
                .ok_or(OUT_OF_MEMORY)?;
            physical.share = Some(share);
        }
        let descriptor = export_descriptor(driver, physical.share, physical.bytes)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, descriptor) }
    }))
}

/// `cuMemImportFromShareableHandle`: the handle that is imported comes in place of a pointer.
pub unsafe extern "C" fn import(to: *mut u64, exported: u64, handle_type: c_uint) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        if handle_type != FILE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let (share, bytes) = read_descriptor(exported)?;
        let place = match share {
            None => Place::Host,
            Some(share) => {
                let shared = driver.client.devices().shared(share).ok_or(INVALID_VALUE)?;
                if !driver.shares.join(&driver.client, share) {
                    return Err(INVALID_VALUE);
                }
                Place::Gpu(shared.gpu)
            }
        };
        let handle = driver.vmm.lock().physical.insert(Physical {
            bytes,
            place,
            handle_types: FILE_DESCRIPTOR,
            handles: 1,
            mappings: 0,
            share,
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}
