//! Green contexts: parts of a device's processors, within its primary context.

use crate::context::{Context, Use};
use crate::device;
use crate::driver::driver;
use crate::faults::{Family, strike};
use crate::objects::{Kind, Objects};
use crate::result::{Code, INVALID_CONTEXT, INVALID_VALUE, code, give};
use std::ffi::{c_int, c_uint, c_void};

/// `CU_GREEN_CTX_DEFAULT_STREAM`, which must be given.
const DEFAULT_STREAM: c_uint = 1;

/// What a descriptor of resources points at. Its content is of no consequence here.
static RESOURCES: u64 = 0;

#[derive(Clone, Copy)]
struct Green {
    gpu: usize,
    view: Context,
}

/// The green contexts of this process.
pub struct Greens(Objects<Green>);

impl Greens {
    /// None yet.
    pub fn new() -> Self {
        Self(Objects::new(Kind::Green))
    }
}

/// `cuGreenCtxCreate`: retains the primary context for as long as it lives.
pub unsafe extern "C" fn create(
    to: *mut u64,
    description: *const c_void,
    device: c_int,
    flags: c_uint,
) -> Code {
    code(device::index(device).and_then(|gpu| {
        strike(Family::Ctx)?;
        let driver = driver()?;
        if to.is_null() || description.is_null() || flags != DEFAULT_STREAM {
            return Err(INVALID_VALUE);
        }
        driver.retain_primary(gpu)?;
        let view = match driver.create(gpu, flags, Use::Green) {
            Ok(view) => view,
            Err(code) => {
                driver.release_primary(gpu)?;
                return Err(code);
            }
        };
        let green = driver.greens.0.insert(Green { gpu, view });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, green) }
    }))
}

/// `cuGreenCtxDestroy`.
pub unsafe extern "C" fn destroy(green: u64) -> Code {
    code(driver().and_then(|driver| {
        let green = driver.greens.0.remove(green).ok_or(INVALID_CONTEXT)?;
        driver.destroy(green.view)?;
        // Already gone where the primary context was reset.
        let _ = driver.release_primary(green.gpu);
        Ok(())
    }))
}

/// `cuCtxFromGreenCtx`: a context to make current; it goes with the green context.
pub unsafe extern "C" fn context(to: *mut *mut c_void, green: u64) -> Code {
    code(driver().and_then(|driver| {
        let green = driver.greens.0.get(green).ok_or(INVALID_CONTEXT)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, green.view.handle()) }
    }))
}

/// Calls on a green context that change nothing that could be seen.
pub unsafe extern "C" fn accept(green: u64) -> Code {
    code(driver().and_then(|driver| {
        if driver.greens.0.has(green) {
            Ok(())
        } else {
            Err(INVALID_CONTEXT)
        }
    }))
}

/// `CUdevResource`: what it is, padding, and the number of processors first in the rest.
#[repr(C)]
pub struct Resource {
    kind: c_uint,
    internal: [u8; 92],
    processors: c_uint,
    rest: [u8; 44],
}

/// `CU_DEV_RESOURCE_TYPE_SM`.
const PROCESSORS: c_uint = 1;

fn resource(processors: c_uint) -> Resource {
    Resource {
        kind: PROCESSORS,
        internal: [0; 92],
        processors,
        rest: [0; 44],
    }
}

/// `cuDeviceGetDevResource`.
pub unsafe extern "C" fn of_device(device: c_int, to: *mut Resource, kind: c_uint) -> Code {
    code(device::index(device).and_then(|_| {
        if kind != PROCESSORS {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, resource(device::PROCESSORS)) }
    }))
}

/// `cuDevSmResourceSplitByCount`: groups of as many processors as are asked for.
pub unsafe extern "C" fn split(
    result: *mut Resource,
    groups: *mut c_uint,
    input: *const Resource,
    remaining: *mut Resource,
    _flags: c_uint,
    least: c_uint,
) -> Code {
    if groups.is_null() || input.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller of the driver API vouches for its pointers.
    let (wanted, processors) = unsafe { (groups.read_unaligned(), (*input).processors) };
    let size = least.max(8).next_multiple_of(8);
    let count = if result.is_null() {
        processors / size
    } else {
        wanted.min(processors / size)
    };
    for group in 0..if result.is_null() { 0 } else { count } {
        // SAFETY: the caller has room for the groups that it asks for.
        unsafe { result.add(group as usize).write_unaligned(resource(size)) };
    }
    if !remaining.is_null() {
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { remaining.write_unaligned(resource(processors - count * size)) };
    }
    // SAFETY: as above.
    code(unsafe { give(groups, count) })
}

/// `cuDevResourceGenerateDesc`.
pub unsafe extern "C" fn describe(
    to: *mut *const c_void,
    resources: *const Resource,
    count: c_uint,
) -> Code {
    if resources.is_null() || count == 0 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(unsafe { give(to, (&raw const RESOURCES).cast()) })
}
