//! Behaviour that a scenario injects: calls that fail, calls that take long.

use crate::result::{Code, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use gputrace_test_rig::config::Faults;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Nobody has said anything yet.
const UNSET: u64 = u64::MAX;

/// What is injected into one kind of call.
pub struct Injection {
    fail_every: AtomicU64,
    fail_code: AtomicU64,
    delay_us: AtomicU64,
    /// Calls since `fail_every` was set.
    calls: AtomicU64,
    default_code: Code,
}

/// Into allocation calls.
pub static ALLOC: Injection = Injection::none(OUT_OF_MEMORY);
/// Into calls that free.
pub static FREE: Injection = Injection::none(INVALID_VALUE);

impl Injection {
    const fn none(default_code: Code) -> Self {
        Self {
            fail_every: AtomicU64::new(UNSET),
            fail_code: AtomicU64::new(UNSET),
            delay_us: AtomicU64::new(UNSET),
            calls: AtomicU64::new(0),
            default_code,
        }
    }

    /// Lets the call wait or fail if it is its turn.
    pub fn strike(&self) -> Result<(), Code> {
        let delay = self.delay_us.load(Relaxed);
        if delay != 0 && delay != UNSET {
            std::thread::sleep(Duration::from_micros(delay));
        }
        let every = self.fail_every.load(Relaxed);
        if every != 0
            && every != UNSET
            && (self.calls.fetch_add(1, Relaxed) + 1).is_multiple_of(every)
        {
            return Err(self.code());
        }
        Ok(())
    }

    fn code(&self) -> Code {
        match c_int::try_from(self.fail_code.load(Relaxed)) {
            Ok(SUCCESS) | Err(_) => self.default_code,
            Ok(code) => code,
        }
    }

    fn set_fail_every(&self, every: u64) {
        self.calls.store(0, Relaxed);
        self.fail_every.store(every, Relaxed);
    }
}

/// Takes over what the rig's settings say for every process, where this one has not been told
/// otherwise already.
pub fn begin(faults: &Faults) {
    for (knob, value) in [
        (&ALLOC.fail_every, faults.alloc_fail_every),
        (&ALLOC.fail_code, faults.alloc_fail_code),
        (&ALLOC.delay_us, faults.alloc_delay_us),
        (&FREE.fail_every, faults.free_fail_every),
        (&FREE.fail_code, faults.free_fail_code),
        (&FREE.delay_us, faults.free_delay_us),
    ] {
        // An error means that it is set, and stays.
        let _ = knob.compare_exchange(UNSET, value, Relaxed, Relaxed);
    }
}

/// Changes what is injected into this process's calls from now on; the keys are the fields of
/// `[faults]` in `rig.toml`. Not part of the driver API.
///
/// # Safety
/// `key` must be null or a terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gputrace_rig_set(key: *const c_char, value: u64) -> c_int {
    if key.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    match unsafe { CStr::from_ptr(key) }.to_bytes() {
        b"alloc_fail_every" => ALLOC.set_fail_every(value),
        b"alloc_fail_code" => ALLOC.fail_code.store(value, Relaxed),
        b"alloc_delay_us" => ALLOC.delay_us.store(value, Relaxed),
        b"free_fail_every" => FREE.set_fail_every(value),
        b"free_fail_code" => FREE.fail_code.store(value, Relaxed),
        b"free_delay_us" => FREE.delay_us.store(value, Relaxed),
        _ => return INVALID_VALUE,
    }
    SUCCESS
}
