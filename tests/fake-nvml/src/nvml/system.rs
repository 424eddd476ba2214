//! Initialisation, versions and error texts.

use super::{
    ARGUMENT_VERSION_MISMATCH, Code, DRIVER_NOT_LOADED, INSUFFICIENT_SIZE, INVALID_ARGUMENT,
    SUCCESS, UNINITIALIZED, give_text,
};
use crate::DRIVER_VERSION;
use gputrace_test_rig::config::{ConfigError, Rig};
use gputrace_test_rig::device::{DeviceError, Devices};
use std::ffi::{CStr, c_char, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often the library is initialised, and the devices since the first time.
struct State {
    initialised: u32,
    devices: Option<Arc<Devices>>,
}

static STATE: Mutex<State> = Mutex::new(State {
    initialised: 0,
    devices: None,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices of the rig.
///
/// # Errors
/// [`UNINITIALIZED`]
pub fn devices() -> Result<Arc<Devices>, Code> {
    state().devices.clone().ok_or(UNINITIALIZED)
}

/// `nvmlInit_v2`. Without a rig there is no driver.
///
/// # Safety
/// None needed; unsafe like the others.
pub unsafe fn init() -> Result<(), Code> {
    let mut state = state();
    if state.devices.is_none() {
        let open = || -> Result<_, DeviceError> { Devices::open(Rig::from_environment()?) };
        state.devices = Some(open().map_err(|error| {
            if !matches!(error, DeviceError::Config(ConfigError::NoRig)) {
                eprintln!("fake libnvidia-ml: {error}");
            }
            DRIVER_NOT_LOADED
        })?);
    }
    state.initialised += 1;
    Ok(())
}

/// `nvmlInitWithFlags`
///
/// # Safety
/// None needed; unsafe like the others.
pub unsafe fn init_with_flags(_flags: c_uint) -> Result<(), Code> {
    // SAFETY: needs none.
    unsafe { init() }
}

/// `nvmlShutdown`
///
/// # Safety
/// None needed; unsafe like the others.
pub unsafe fn shutdown() -> Result<(), Code> {
    let mut state = state();
    state.initialised = state.initialised.checked_sub(1).ok_or(UNINITIALIZED)?;
    if state.initialised == 0 {
        state.devices = None;
    }
    Ok(())
}

/// `nvmlSystemGetDriverVersion`
///
/// # Safety
/// `text` must be null or valid for `length` bytes.
pub unsafe fn driver_version(text: *mut c_char, length: c_uint) -> Result<(), Code> {
    devices()?;
    // SAFETY: the caller's promise.
    unsafe { give_text(text, length, DRIVER_VERSION) }
}

/// `nvmlSystemGetNVMLVersion`
///
/// # Safety
/// `text` must be null or valid for `length` bytes.
pub unsafe fn library_version(text: *mut c_char, length: c_uint) -> Result<(), Code> {
    devices()?;
    // SAFETY: the caller's promise.
    unsafe { give_text(text, length, &format!("12.{DRIVER_VERSION}")) }
}

/// `nvmlErrorString`
pub fn error_string(code: Code) -> &'static CStr {
    match code {
        SUCCESS => c"The operation was successful",
        UNINITIALIZED => c"NVML was not first initialized with nvmlInit()",
        INVALID_ARGUMENT => c"A supplied argument is invalid",
        INSUFFICIENT_SIZE => c"An input argument is not large enough",
        DRIVER_NOT_LOADED => c"NVIDIA driver is not loaded",
        ARGUMENT_VERSION_MISMATCH => c"The provided version is invalid/unsupported",
        _ => c"An internal driver error occurred",
    }
}
