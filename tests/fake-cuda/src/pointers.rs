//! What a pointer stands for: `cuPointerGetAttribute`.

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::memory::{Origin, range};
use crate::result::{Code, INVALID_VALUE, code, give};
use std::ffi::{c_int, c_uint, c_void};

/// Where memory is, as the API numbers it.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

struct Found {
    first: u64,
    bytes: u64,
    kind: c_uint,
    context: Option<Context>,
    gpu: usize,
    origin: Option<Origin>,
}

fn look_up(driver: &Driver, address: u64) -> Result<Found, Code> {
    if let Some((first, block)) = driver.memory.around(address) {
        return Ok(Found {
            first,
            bytes: block.bytes,
            kind: DEVICE,
            context: block.context,
            gpu: block.gpu,
            origin: Some(block.origin),
        });
    }
    let is_host = driver.host.around(address).is_some();
    let (first, bytes) = range(driver, address)?;
    Ok(Found {
        first,
        bytes,
        kind: if is_host { HOST } else { DEVICE },
        context: None,
        gpu: 0,
        origin: None,
    })
}

/// # Safety
/// `to` must be null or valid for a write of what the attribute is.
unsafe fn give_attribute(
    to: *mut c_void,
    attribute: c_uint,
    address: u64,
    found: &Found,
) -> Result<(), Code> {
    let handle = found.context.map_or(std::ptr::null_mut(), Context::handle);
    let is_managed = found.origin == Some(Origin::Managed);
    let flag = |value: bool| c_uint::from(value);
    // SAFETY: the caller's promise, for the type that the attribute has.
    unsafe {
        match attribute {
            1 => give(to.cast(), handle),
            2 => give(to.cast(), found.kind),
            3 => give(to.cast(), address),
            4 if found.kind == HOST || is_managed => give(to.cast(), address),
            6 | 15 => give(to.cast(), 0_u32),
            7 => give(to.cast(), found.first),
            8 => give(to.cast(), flag(is_managed)),
            9 => give(to.cast(), c_int::try_from(found.gpu).unwrap_or(c_int::MAX)),
            10 => give(to.cast(), flag(found.origin == Some(Origin::Device))),
            11 => give(to.cast(), found.first),
            12 => give(
                to.cast(),
                usize::try_from(found.bytes).unwrap_or(usize::MAX),
            ),
            13 => give(to.cast(), 1_u32),
            14 => give(to.cast(), 0_u64),
            16 => give(to.cast(), 3_u32),
            17 => match found.origin {
                Some(Origin::Pool(pool)) => give(to.cast(), pool),
                _ => give(to.cast(), 0_u64),
            },
            _ => Err(INVALID_VALUE),
        }
    }
}

/// `cuPointerGetAttribute`.
pub unsafe extern "C" fn attribute(to: *mut c_void, attribute: c_uint, address: u64) -> Code {
    code(driver().and_then(|driver| {
        let found = look_up(driver, address)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give_attribute(to, attribute, address, &found) }
    }))
}

/// Whether an attribute has 64 bits.
fn is_wide(attribute: c_uint) -> bool {
    matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 17)
}

/// `cuPointerGetAttributes`: of an unknown pointer, and where an attribute has no value, zeros.
pub unsafe extern "C" fn attributes(
    count: c_uint,
    attributes: *const c_uint,
    to: *const *mut c_void,
    address: u64,
) -> Code {
    code(driver().and_then(|driver| {
        if attributes.is_null() || to.is_null() {
            return Err(INVALID_VALUE);
        }
        let found = look_up(driver, address).ok();
        for place in 0..count as usize {
            // SAFETY: the caller vouches for as many of both as it says, and for each pointer.
            unsafe {
                let attribute = attributes.add(place).read_unaligned();
                let to = to.add(place).read_unaligned();
                let given = found
                    .as_ref()
                    .ok_or(INVALID_VALUE)
                    .and_then(|found| give_attribute(to, attribute, address, found));
                match given {
                    Ok(()) => {}
                    Err(_) if is_wide(attribute) => give(to.cast(), 0_u64)?,
                    Err(_) => give(to.cast(), 0_u32)?,
                }
            }
        }
        Ok(())
    }))
}
