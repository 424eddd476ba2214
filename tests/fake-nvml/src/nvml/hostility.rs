//! How the library misbehaves when the environment says so, for tests of whoever calls it.
//!
//! - `FAKE_NVML_HANG=function,...`: a call of it never comes back.
//! - `FAKE_NVML_ERROR=function:code,...`: a call of it does nothing and gives that code.
//! - `FAKE_NVML_NONSENSE=1`: process lists claim to be enormous and hold absurd entries; a device
//!   uses more memory than it has.
//! - `FAKE_NVML_DEAD=hidden`: memory whose opener is dead belongs to no process, instead of to a
//!   process that no longer exists.
//!
//! A function is named by its exported symbol. The environment is read at every call.

use super::Code;

/// The result that the environment wants instead of the call, if it does not want it to hang.
pub fn strike(symbol: &str) -> Option<Code> {
    let hangs = std::env::var("FAKE_NVML_HANG").unwrap_or_default();
    if hangs.split(',').any(|name| name == symbol) {
        loop {
            std::thread::park();
        }
    }
    let errors = std::env::var("FAKE_NVML_ERROR").unwrap_or_default();
    errors
        .split(',')
        .filter_map(|entry| entry.split_once(':'))
        .find(|(name, _)| *name == symbol)
        .and_then(|(_, code)| code.parse().ok())
}

/// Whether numbers shall be absurd.
pub fn nonsense() -> bool {
    std::env::var_os("FAKE_NVML_NONSENSE").is_some_and(|value| value == "1")
}

/// Whether processes that are dead shall be left out.
pub fn hide_dead() -> bool {
    std::env::var_os("FAKE_NVML_DEAD").is_some_and(|value| value == "hidden")
}
