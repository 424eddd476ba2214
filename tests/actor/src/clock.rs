//! Times of `CLOCK_BOOTTIME`, the clock of a tracer's events, and waiting for them.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Nanoseconds since the machine was booted.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a pointer to a local; this clock exists on every kernel of this century.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Waits until [`now`] is at least `deadline`, and ends the process if the runner goes away
/// meanwhile: a scenario that was given up must not go on for minutes.
pub fn wait_until(deadline: u64, runner: BorrowedFd<'_>) {
    loop {
        let left = deadline.saturating_sub(now());
        if runner_is_gone(left, runner) {
            std::process::exit(1);
        }
        if now() >= deadline {
            return;
        }
    }
}

fn runner_is_gone(nanoseconds: u64, runner: BorrowedFd<'_>) -> bool {
    let timeout = libc::timespec {
        tv_sec: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
        // Below a thousand million.
        tv_nsec: i64::try_from(nanoseconds % 1_000_000_000).unwrap_or(0),
    };
    let mut poll = libc::pollfd {
        fd: runner.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: pointers to locals, one of each, and no signal mask.
    let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
    ready > 0 && poll.revents != 0
}
