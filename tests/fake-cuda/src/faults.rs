//! Behaviour that a scenario injects: calls that fail, calls that take long, limits.

use crate::result::{Code, INVALID_VALUE, SUCCESS};
use gputrace_test_rig::faults::{Faults, Key};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub use gputrace_test_rig::faults::Family;

/// Nobody has said anything yet.
const UNSET: u64 = u64::MAX;

/// A setting that is 0 unless somebody said otherwise.
struct Knob(AtomicU64);

impl Knob {
    const fn new() -> Self {
        Self(AtomicU64::new(UNSET))
    }

    fn get(&self) -> u64 {
        match self.0.load(Relaxed) {
            UNSET => 0,
            value => value,
        }
    }

    fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Leaves alone what has been set already.
    fn begin(&self, value: u64) {
        let _ = self.0.compare_exchange(UNSET, value, Relaxed, Relaxed);
    }
}

/// What is injected into one family of calls.
struct Injection {
    fail_every: Knob,
    fail_after: Knob,
    fail_code: Knob,
    delay_us: Knob,
    /// Calls since `fail_every` and since `fail_after` was set.
    calls_every: AtomicU64,
    calls_after: AtomicU64,
}

static INJECTIONS: [Injection; Family::ALL.len()] = [const {
    Injection {
        fail_every: Knob::new(),
        fail_after: Knob::new(),
        fail_code: Knob::new(),
        delay_us: Knob::new(),
        calls_every: AtomicU64::new(0),
        calls_after: AtomicU64::new(0),
    }
}; Family::ALL.len()];

static ADDRESS_SPACE: Knob = Knob::new();
static LAUNCH_NEEDS: Knob = Knob::new();

fn of(family: Family) -> &'static Injection {
    &INJECTIONS[family as usize]
}

/// Lets a call of this family wait or fail if it is its turn.
///
/// # Errors
/// The result that is to be given.
pub fn strike(family: Family) -> Result<(), Code> {
    let injection = of(family);
    let delay = injection.delay_us.get();
    if delay != 0 {
        std::thread::sleep(Duration::from_micros(delay));
    }
    let (every, after) = (injection.fail_every.get(), injection.fail_after.get());
    let its_turn =
        every != 0 && (injection.calls_every.fetch_add(1, Relaxed) + 1).is_multiple_of(every);
    let too_late = after != 0 && injection.calls_after.fetch_add(1, Relaxed) >= after;
    if !its_turn && !too_late {
        return Ok(());
    }
    Err(match c_int::try_from(injection.fail_code.get()) {
        Ok(SUCCESS) | Err(_) => family.default_code(),
        Ok(code) => code,
    })
}

/// Bytes of addresses that this process may reserve; 0: no limit of its own.
pub fn address_space() -> u64 {
    ADDRESS_SPACE.get()
}

/// Bytes that must be free on the device for a launch.
pub fn launch_needs() -> u64 {
    LAUNCH_NEEDS.get()
}

fn knob(key: Key) -> &'static Knob {
    match key {
        Key::FailEvery(family) => &of(family).fail_every,
        Key::FailAfter(family) => &of(family).fail_after,
        Key::FailCode(family) => &of(family).fail_code,
        Key::DelayUs(family) => &of(family).delay_us,
        Key::AddressSpace => &ADDRESS_SPACE,
        Key::LaunchNeeds => &LAUNCH_NEEDS,
    }
}

/// Takes over what the rig's settings say for every process, where this one has not been told
/// otherwise already.
pub fn begin(faults: &Faults) {
    for (key, value) in faults.iter() {
        knob(key).begin(value);
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
    let name = unsafe { CStr::from_ptr(key) };
    let Some(key) = name.to_str().ok().and_then(Key::named) else {
        return INVALID_VALUE;
    };
    match key {
        Key::FailEvery(family) => of(family).calls_every.store(0, Relaxed),
        Key::FailAfter(family) => of(family).calls_after.store(0, Relaxed),
        _ => {}
    }
    knob(key).set(value);
    SUCCESS
}
