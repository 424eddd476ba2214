//! Libraries, which are of no context.

use super::*;

fn loaded_library(to: *mut u64, check: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Module)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    check()?;
    // It is of no context, but its code has to be on a device.
    let gpu = current::context().map_or(0, |context| driver.contexts.gpu(context));
    let bytes = charged(driver, gpu)?;
    let library = driver.modules.libraries.insert(Library { gpu, bytes });
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, library) }
}

/// `cuLibraryLoadData`; options come after.
pub unsafe extern "C" fn load_library(to: *mut u64, image: *const c_void) -> Code {
    code(loaded_library(to, || check_image(image)))
}

/// `cuLibraryLoadFromFile`; options come after.
pub unsafe extern "C" fn load_library_file(to: *mut u64, name: *const c_char) -> Code {
    // SAFETY: the caller of the driver API vouches for its string.
    code(loaded_library(to, || unsafe { check_file(name) }))
}

/// `cuLibraryUnload`.
pub unsafe extern "C" fn unload_library(library: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let modules = &driver.modules;
        let gone = modules.libraries.remove(library).ok_or(INVALID_HANDLE)?;
        modules
            .modules
            .lock()
            .extract(|module| module.library == Some(library));
        modules.forget_functions(library);
        driver.client.unhide(gone.gpu, gone.bytes);
        Ok(())
    }))
}

fn checked_library(library: u64) -> Result<&'static Driver, Code> {
    let driver = driver()?;
    if driver.modules.libraries.has(library) {
        Ok(driver)
    } else {
        Err(INVALID_HANDLE)
    }
}

/// `cuLibraryGetKernel`: a kernel can be launched as a function can.
pub unsafe extern "C" fn get_kernel(to: *mut u64, library: u64, name: *const c_char) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointers.
    code(checked_library(library).and_then(|_| unsafe { give_function(to, library, name) }))
}

/// `cuLibraryGetModule`: the library's code in the current context.
pub unsafe extern "C" fn library_module(to: *mut u64, library: u64) -> Code {
    code(checked_library(library).and_then(|driver| {
        let context = current::context()?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut modules = driver.modules.modules.lock();
        let known = modules
            .iter()
            .find(|(_, module)| module.library == Some(library) && module.context == context)
            .map(|(handle, _)| handle);
        let module = known.unwrap_or_else(|| {
            modules.insert(Module {
                context,
                gpu: driver.contexts.gpu(context),
                bytes: 0,
                library: Some(library),
            })
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, module) }
    }))
}
