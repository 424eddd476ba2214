//! The stack of contexts of each thread; its top is the current one.

use crate::context::Context;
use crate::driver::driver;
use crate::faults::{Family, strike};
use crate::result::{CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_VALUE, code, give};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

/// How deep a stack can be.
const DEPTH: usize = 32;

struct Stack {
    depth: Cell<usize>,
    contexts: [Cell<Option<Context>>; DEPTH],
}

thread_local! {
    // Nothing to drop, so that a call while the thread ends is as good as any other.
    static STACK: Stack = const {
        Stack {
            depth: Cell::new(0),
            contexts: [const { Cell::new(None) }; DEPTH],
        }
    };
}

fn top() -> Option<Context> {
    STACK.with(|stack| match stack.depth.get() {
        0 => None,
        depth => stack.contexts[depth - 1].get(),
    })
}

/// The context in which this thread's calls act.
///
/// # Errors
/// [`INVALID_CONTEXT`] without one; [`CONTEXT_IS_DESTROYED`] if it is gone.
pub fn context() -> Result<Context, Code> {
    let context = top().ok_or(INVALID_CONTEXT)?;
    if driver()?.contexts.lives(context) {
        Ok(context)
    } else {
        Err(CONTEXT_IS_DESTROYED)
    }
}

/// Makes it this thread's current one.
pub fn push_context(context: Context) -> Result<(), Code> {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let place = stack.contexts.get(depth).ok_or(INVALID_VALUE)?;
        place.set(Some(context));
        stack.depth.set(depth + 1);
        Ok(())
    })
}

/// Takes it off if it is on top; elsewhere on a stack a destroyed context stays and is an error.
pub fn forget_top(context: Context) {
    if top() == Some(context) {
        STACK.with(|stack| stack.depth.set(stack.depth.get() - 1));
    }
}

/// `cuCtxSetCurrent`.
pub unsafe extern "C" fn set(handle: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        let context = if handle.is_null() {
            None
        } else {
            Some(driver.contexts.of_handle(handle).ok_or(INVALID_CONTEXT)?)
        };
        STACK.with(|stack| stack.depth.set(stack.depth.get().saturating_sub(1)));
        context.map_or(Ok(()), push_context)
    }))
}

/// `cuCtxGetCurrent`.
pub unsafe extern "C" fn get(to: *mut *mut c_void) -> Code {
    code(driver().and_then(|_| {
        let handle = top().map_or(std::ptr::null_mut(), Context::handle);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}

/// `cuCtxPushCurrent_v2`.
pub unsafe extern "C" fn push(handle: *mut c_void) -> Code {
    code(
        driver().and_then(|driver| {
            push_context(driver.contexts.of_handle(handle).ok_or(INVALID_CONTEXT)?)
        }),
    )
}

/// `cuCtxPopCurrent_v2`; the pointer may be null.
pub unsafe extern "C" fn pop(to: *mut *mut c_void) -> Code {
    code(driver().and_then(|_| {
        let context = top().ok_or(INVALID_CONTEXT)?;
        STACK.with(|stack| stack.depth.set(stack.depth.get() - 1));
        if !to.is_null() {
            // SAFETY: the caller of the driver API vouches for its pointer.
            unsafe { give(to, context.handle())? };
        }
        Ok(())
    }))
}

/// `cuCtxGetDevice`.
pub unsafe extern "C" fn device(to: *mut c_int) -> Code {
    code(driver().and_then(|driver| {
        let gpu = driver.contexts.gpu(context()?);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, c_int::try_from(gpu).unwrap_or(c_int::MAX)) }
    }))
}

/// `cuCtxGetDevice_v2`: of any context, or of the current one for null.
pub unsafe extern "C" fn device_of(to: *mut c_int, handle: *mut c_void) -> Code {
    code(driver().and_then(|driver| {
        let context = if handle.is_null() {
            context()?
        } else {
            driver.contexts.of_handle(handle).ok_or(INVALID_CONTEXT)?
        };
        let gpu = driver.contexts.gpu(context);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, c_int::try_from(gpu).unwrap_or(c_int::MAX)) }
    }))
}

/// `cuCtxSynchronize`.
pub unsafe extern "C" fn synchronize() -> Code {
    code(driver().and_then(|_| {
        strike(Family::Sync)?;
        context().map(drop)
    }))
}
