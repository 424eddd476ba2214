//! A process of the scenario: signals, its end, and what `/proc` says about it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

/// A reference to a process that stays right when the PID is used again.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens a reference to a living process, or to one whose status has not been taken.
    ///
    /// # Errors
    /// There is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: the call takes two integers and returns a new file descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the descriptor was just made by the kernel for us and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process is gone, or may not be signalled.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open for as long as `self` lives, and a null siginfo means that
        // the kernel fills in its own.
        let sent =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal as i32, no_info, 0) };
        if sent == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Whether the process has ended; a zombie has.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(ready) if ready > 0)
    }
}

/// The start time of a process in clock ticks since boot; `None` when it is gone.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name stands in parentheses and may itself hold spaces and parentheses.
    let (_, after) = stat.rsplit_once(')')?;
    // Field 22 of the file; the state after the name is field 3.
    after.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Whether a thread is in a system call that waits for time to pass.
#[must_use]
pub fn sleeps(tgid: u32, tid: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{tgid}/task/{tid}/syscall")) else {
        return false;
    };
    let number: Option<i64> = text.split(' ').next().and_then(|first| first.parse().ok());
    number.is_some_and(|n| n == libc::SYS_nanosleep || n == libc::SYS_clock_nanosleep)
}

/// Resident memory in bytes.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The number of entries in a folder of `/proc/PID`, such as `fd` or `task`.
#[must_use]
pub fn entries(pid: u32, folder: &str) -> Option<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/{folder}")).ok()?;
    u64::try_from(entries.count()).ok()
}

/// This moment in nanoseconds of the boot clock, the clock of everything that gputrace reports.
#[must_use]
pub fn boot_nanos() -> u64 {
    let now =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    // The boot clock exists on every supported kernel and never goes below zero.
    now.ok()
        .and_then(|now| u64::try_from(now.as_nanos()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described() {
        let pid = std::process::id();
        assert!(start_ticks(pid).is_some());
        assert!(resident_bytes(pid).unwrap() > 0);
        assert!(entries(pid, "fd").unwrap() > 0);
        assert!(!sleeps(pid, pid) || entries(pid, "task").unwrap() > 1);
        assert!(boot_nanos() > 0);
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        assert!(!pidfd.has_ended());
        pidfd.signal(Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        assert!(pidfd.has_ended());
        assert!(pidfd.signal(Signal::SIGKILL).is_err());
    }
}
