//! Modules and libraries of device code, and the functions in them.
//!
//! Loading one costs hidden memory. What is loaded is not looked at: every function that is asked for
//! is there.

mod functions;
mod libraries;

pub use functions::*;
pub use libraries::*;

use crate::context::Context;
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::objects::{Kind, Objects, OfContext};
use crate::result::{
    CONTEXT_IS_DESTROYED, Code, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND,
    OUT_OF_MEMORY, code, give,
};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Debug, Clone, Copy)]
struct Module {
    context: Context,
    gpu: usize,
    bytes: u64,
    /// The library whose code it is, which has the memory.
    library: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Library {
    gpu: usize,
    bytes: u64,
}

#[derive(Debug, Clone)]
struct Function {
    /// Handle of the module or library.
    code: u64,
    name: CString,
}

impl OfContext for Module {
    fn context(&self) -> Option<Context> {
        Some(self.context)
    }
}

/// What this process has loaded.
pub struct Modules {
    modules: Objects<Module>,
    libraries: Objects<Library>,
    functions: Objects<Function>,
}

impl Modules {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            modules: Objects::new(Kind::Module),
            libraries: Objects::new(Kind::Library),
            functions: Objects::new(Kind::Function),
        }
    }

    /// Unloads what belongs to a context that has just been destroyed.
    pub fn free_all_of(&self, driver: &Driver, context: Context) {
        for module in self.modules.extract_of(context) {
            driver.client.unhide(module.gpu, module.bytes);
        }
        let modules = self.modules.lock();
        let libraries = self.libraries.lock();
        self.functions.lock().extract(|function| {
            modules.get(function.code).is_none() && libraries.get(function.code).is_none()
        });
    }

    /// Whether it is a function that can be launched.
    pub fn has_function(&self, function: u64) -> bool {
        self.functions.has(function)
    }

    fn forget_functions(&self, code: u64) {
        self.functions
            .lock()
            .extract(|function| function.code == code);
    }

    /// The same handle for the same name, as the real driver has it.
    fn function(&self, code: u64, name: &CStr) -> u64 {
        let mut functions = self.functions.lock();
        let known = functions
            .iter()
            .find(|(_, function)| function.code == code && function.name.as_c_str() == name)
            .map(|(handle, _)| handle);
        known.unwrap_or_else(|| {
            functions.insert(Function {
                code,
                name: name.to_owned(),
            })
        })
    }
}

fn charged(driver: &Driver, gpu: usize) -> Result<u64, Code> {
    let bytes = driver.client.devices().config().costs.module;
    driver
        .client
        .hide(gpu, bytes)
        .map_err(|_no_room| OUT_OF_MEMORY)?;
    Ok(bytes)
}

/// Whether there is such a file.
///
/// # Safety
/// `name` must be null or a terminated string.
unsafe fn check_file(name: *const c_char) -> Result<(), Code> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if Path::new(OsStr::from_bytes(name.to_bytes())).is_file() {
        Ok(())
    } else {
        Err(FILE_NOT_FOUND)
    }
}

fn check_image(image: *const c_void) -> Result<(), Code> {
    if image.is_null() {
        Err(INVALID_VALUE)
    } else {
        Ok(())
    }
}

fn loaded(to: *mut u64, check: impl FnOnce() -> Result<(), Code>) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Module)?;
    let context = current::context()?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    check()?;
    let gpu = driver.contexts.gpu(context);
    let bytes = charged(driver, gpu)?;
    let module = driver.modules.modules.insert(Module {
        context,
        gpu,
        bytes,
        library: None,
    });
    if !driver.contexts.lives(context) {
        driver.modules.free_all_of(driver, context);
        return Err(CONTEXT_IS_DESTROYED);
    }
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, module) }
}

/// `cuModuleLoad`.
pub unsafe extern "C" fn load(to: *mut u64, name: *const c_char) -> Code {
    // SAFETY: the caller of the driver API vouches for its string.
    code(loaded(to, || unsafe { check_file(name) }))
}

/// `cuModuleLoadData`, `cuModuleLoadFatBinary`, and `cuModuleLoadDataEx`, whose options come after.
pub unsafe extern "C" fn load_data(to: *mut u64, image: *const c_void) -> Code {
    code(loaded(to, || check_image(image)))
}

/// `cuModuleUnload`.
pub unsafe extern "C" fn unload(module: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut modules = driver.modules.modules.lock();
        let found = *modules.get(module).ok_or(INVALID_HANDLE)?;
        if found.library.is_some() {
            return Err(INVALID_HANDLE);
        }
        modules.remove(module);
        drop(modules);
        driver.modules.forget_functions(module);
        driver.client.unhide(found.gpu, found.bytes);
        Ok(())
    }))
}

/// # Safety
/// `name` must be null or a terminated string, `to` null or valid for a write.
unsafe fn give_function(to: *mut u64, owner: u64, name: *const c_char) -> Result<(), Code> {
    if to.is_null() || name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if name.is_empty() {
        return Err(NOT_FOUND);
    }
    let function = driver()?.modules.function(owner, name);
    // SAFETY: the caller's promise.
    unsafe { give(to, function) }
}

/// `cuModuleGetFunction`.
pub unsafe extern "C" fn get_function(to: *mut u64, module: u64, name: *const c_char) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.modules.has(module) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointers.
        unsafe { give_function(to, module, name) }
    }))
}

/// Asks a module or a library for a variable, of which there are none: `cuModuleGetGlobal`,
/// `cuLibraryGetGlobal`, `cuLibraryGetManaged`, `cuModuleGetTexRef`, `cuModuleGetSurfRef`.
pub unsafe extern "C" fn no_variable() -> Code {
    code(driver().and(Err(NOT_FOUND)))
}

/// `cuModuleGetLoadingMode`.
pub unsafe extern "C" fn loading_mode(to: *mut c_uint) -> Code {
    const EAGER: c_uint = 1;
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(driver().and_then(|_| unsafe { give(to, EAGER) }))
}

/// `cuModuleGetFunctionCount` and `cuLibraryGetKernelCount`: nobody knows.
pub unsafe extern "C" fn count(to: *mut c_uint) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(driver().and_then(|_| unsafe { give(to, 0) }))
}
