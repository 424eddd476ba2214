//! Modules and libraries of device code, and the functions in them.
//!
//! Loading one costs hidden memory. What is loaded is not looked at: every function that is asked for
//! is there.

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

/// `cuKernelGetFunction`, `cuFuncGetModule`, `cuKernelGetLibrary`: what belongs to a function.
fn of_function(to: *mut u64, function: u64, choose: fn(u64, &Function) -> u64) -> Result<(), Code> {
    let found = driver()?
        .modules
        .functions
        .get(function)
        .ok_or(INVALID_HANDLE)?;
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, choose(function, &found)) }
}

/// `cuKernelGetFunction`: itself.
pub unsafe extern "C" fn kernel_function(to: *mut u64, kernel: u64) -> Code {
    code(of_function(to, kernel, |handle, _| handle))
}

/// `cuFuncGetModule` and `cuKernelGetLibrary`.
pub unsafe extern "C" fn code_of(to: *mut u64, function: u64) -> Code {
    code(of_function(to, function, |_, function| function.code))
}

/// `cuFuncGetName` and `cuKernelGetName`.
pub unsafe extern "C" fn name(to: *mut *const c_char, function: u64) -> Code {
    code(driver().and_then(|driver| {
        let functions = driver.modules.functions.lock();
        let function = functions.get(function).ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller of the driver API vouches for its pointer. The name lives as long as
        // the function does.
        unsafe { give(to, function.name.as_ptr()) }
    }))
}

/// `cuFuncGetAttribute`.
pub unsafe extern "C" fn attribute(to: *mut c_int, attribute: c_uint, function: u64) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        let value = match attribute {
            // Threads of a block, registers, and versions of code and machine.
            0 => 1024,
            4 => 32,
            5 | 6 => 90,
            // Dynamic shared memory.
            8 => 48 << 10,
            1..=15 => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, value) }
    }))
}

/// `cuKernelGetAttribute`: the device comes last.
pub unsafe extern "C" fn kernel_attribute(
    to: *mut c_int,
    attribute_of: c_uint,
    kernel: u64,
    _device: c_int,
) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { attribute(to, attribute_of, kernel) }
}

/// Calls on a function that change nothing that could be seen.
pub unsafe extern "C" fn accept(function: u64) -> Code {
    code(driver().and_then(|driver| {
        if driver.modules.has_function(function) {
            Ok(())
        } else {
            Err(INVALID_HANDLE)
        }
    }))
}

/// `cuKernelSetAttribute`: the kernel comes third.
pub unsafe extern "C" fn accept_third(_: c_uint, _: c_int, function: u64) -> Code {
    // SAFETY: looks a handle up.
    unsafe { accept(function) }
}

/// `cuFuncIsLoaded`.
pub unsafe extern "C" fn is_loaded(to: *mut c_uint, function: u64) -> Code {
    const LOADED: c_uint = 1;
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, LOADED) }
    }))
}

/// `cuModuleGetFunctionCount` and `cuLibraryGetKernelCount`: nobody knows.
pub unsafe extern "C" fn count(to: *mut c_uint) -> Code {
    // SAFETY: the caller of the driver API vouches for its pointer.
    code(driver().and_then(|_| unsafe { give(to, 0) }))
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor` and `...WithFlags`.
pub unsafe extern "C" fn active_blocks(to: *mut c_int, function: u64, block: c_int) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        if !(1..=1024).contains(&block) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, 2048 / block) }
    }))
}

/// `cuOccupancyMaxPotentialBlockSize` and `...WithFlags`.
pub unsafe extern "C" fn potential_block_size(
    grid: *mut c_int,
    block: *mut c_int,
    function: u64,
) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointers.
        unsafe {
            give(
                grid,
                2 * c_int::try_from(crate::device::PROCESSORS).unwrap_or(1),
            )?;
            give(block, 1024)
        }
    }))
}

/// `cuOccupancyAvailableDynamicSMemPerBlock`.
pub unsafe extern "C" fn available_shared(to: *mut usize, function: u64) -> Code {
    code(driver().and_then(|driver| {
        if !driver.modules.has_function(function) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, 48 << 10) }
    }))
}
