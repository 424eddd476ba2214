//! The clocks. Only sensors read them; the ledger's time is that of its events.

use nix::time::{ClockId, clock_gettime};

use crate::event::BootTime;

/// The present moment: boot clock, and nanoseconds since 1970.
#[must_use]
pub fn now() -> (BootTime, u64) {
    (
        BootTime(read(ClockId::CLOCK_BOOTTIME)),
        read(ClockId::CLOCK_REALTIME),
    )
}

fn read(clock: ClockId) -> u64 {
    // Both clocks exist on every Linux; 0 would only make times look wrong.
    clock_gettime(clock).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds * 1_000_000_000 + nanoseconds
    })
}
