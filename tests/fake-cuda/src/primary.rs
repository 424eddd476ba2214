//! The primary context of each device, which all parts of a program share.

use crate::context::{Context, Use, lock};
use crate::device;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::memory::Origin;
use crate::result::{Code, INVALID_CONTEXT, INVALID_VALUE, code, give};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

/// Of one device.
#[derive(Default)]
pub struct Primary(Mutex<State>);

#[derive(Default)]
struct State {
    /// While it is retained.
    context: Option<Context>,
    retained: u64,
    flags: c_uint,
}

impl Primary {
    /// Whether it is this context.
    pub fn is(&self, context: Context) -> bool {
        lock(&self.0).context == Some(context)
    }
}

impl Driver {
    /// Retains the primary context of a GPU.
    pub fn retain_primary(&self, gpu: usize) -> Result<Context, Code> {
        let mut primary = lock(&self.contexts.primary[gpu].0);
        let context = match primary.context {
            Some(context) => context,
            None => self.create(gpu, primary.flags, Use::Own)?,
        };
        primary.context = Some(context);
        primary.retained += 1;
        Ok(context)
    }

    /// Releases it; the last release ends it.
    pub fn release_primary(&self, gpu: usize) -> Result<(), Code> {
        let mut primary = lock(&self.contexts.primary[gpu].0);
        let context = primary.context.ok_or(INVALID_CONTEXT)?;
        primary.retained -= 1;
        if primary.retained == 0 {
            primary.context = None;
            self.end_primary(gpu, context)?;
        }
        Ok(())
    }

    /// With it goes what is the device's rather than a context's: the memory of its pools.
    fn end_primary(&self, gpu: usize, context: Context) -> Result<(), Code> {
        self.destroy(context)?;
        self.memory.free_where(self, |block| {
            block.gpu == gpu && matches!(block.origin, Origin::Pool(_))
        });
        self.pools.trim_all(self, gpu);
        self.graphs.trim(self, gpu);
        Ok(())
    }
}

/// `cuDevicePrimaryCtxRetain`.
pub unsafe extern "C" fn retain(to: *mut *mut c_void, device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        strike(Family::Ctx)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let context = driver()?.retain_primary(gpu)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, context.handle()) }
    }))
}

/// `cuDevicePrimaryCtxRelease` and `_v2`.
pub unsafe extern "C" fn release(device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| driver()?.release_primary(gpu)))
}

/// `cuDevicePrimaryCtxReset` and `_v2`: ends it whoever retains it.
pub unsafe extern "C" fn reset(device: c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        let driver = driver()?;
        let mut primary = lock(&driver.contexts.primary[gpu].0);
        let Some(context) = primary.context.take() else {
            return Ok(());
        };
        primary.retained = 0;
        driver.end_primary(gpu, context)
    }))
}

/// `cuDevicePrimaryCtxSetFlags` and `_v2`.
pub unsafe extern "C" fn set_flags(device: c_int, flags: c_uint) -> Code {
    code(device::index(device).and_then(|gpu| {
        lock(&driver()?.contexts.primary[gpu].0).flags = flags;
        Ok(())
    }))
}

/// `cuDevicePrimaryCtxGetState`.
pub unsafe extern "C" fn state(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Code {
    code(device::index(device).and_then(|gpu| {
        let primary = lock(&driver()?.contexts.primary[gpu].0);
        // SAFETY: the caller of the driver API vouches for its pointers.
        unsafe {
            give(flags, primary.flags)?;
            give(active, c_int::from(primary.context.is_some()))
        }
    }))
}
