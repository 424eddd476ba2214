//! The clocks. Only sensors read them; the ledger's time is that of its events.

use nix::time::{ClockId, clock_gettime};

use crate::event::BootTime;

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Boot clock.
    pub boot: BootTime,
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
}

/// The present moment on both clocks.
#[must_use]
pub fn moment() -> Moment {
    Moment {
        boot: now(),
        wall_ns: read(ClockId::CLOCK_REALTIME),
    }
}

/// The present moment.
#[must_use]
pub fn now() -> BootTime {
    BootTime(read(ClockId::CLOCK_BOOTTIME))
}

fn read(clock: ClockId) -> u64 {
    // Both clocks exist on every Linux; 0 would only make times look wrong.
    clock_gettime(clock).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds * 1_000_000_000 + nanoseconds
    })
}
