//! The command of `gputrace run`: held before its first instruction until the probes are in place,
//! then let go, waited for, and passed the signals that were meant for it.

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, Command, ExitStatus},
    thread,
};

use nix::sys::signal::Signal;
use tokio::sync::oneshot;

/// A child that has been forked and waits before it executes the command.
#[derive(Debug)]
pub struct Held {
    pid: u32,
    pidfd: OwnedFd,
    go: io::PipeWriter,
    started: oneshot::Receiver<io::Result<()>>,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// The command, running.
#[derive(Debug)]
pub struct Running {
    pidfd: OwnedFd,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
    status: Option<ExitStatus>,
}

impl Held {
    /// Forks a child for the command, with this process's input, output, environment and group. It
    /// ends by itself if it is dropped, or if this process dies.
    ///
    /// # Errors
    /// Where there is no command, or no process or thread can be had.
    pub fn new(command: &[OsString]) -> io::Result<Self> {
        let [program, arguments @ ..] = command else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let (wait, go) = io::pipe()?;
        let (mut pid, tell) = io::pipe()?;
        let ours = go.as_raw_fd();
        let (wait_fd, tell_fd) = (wait.as_raw_fd(), tell.as_raw_fd());
        // SAFETY: the closure makes system calls only, which are safe after a fork, on descriptors
        // that are open in the child.
        unsafe { command.pre_exec(move || hold(ours, wait_fd, tell_fd)) };
        let (has_started, started) = oneshot::channel();
        let (has_ended, ended) = oneshot::channel();
        // `spawn` returns when the command has been executed, so another thread waits for that.
        thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || {
                let child = command.spawn();
                drop((wait, tell));
                match child {
                    Ok(child) => {
                        let _ = has_started.send(Ok(()));
                        let _ = has_ended.send(reap(child));
                    }
                    Err(error) => {
                        let _ = has_started.send(Err(error));
                    }
                }
            })?;
        let mut bytes = [0; 4];
        pid.read_exact(&mut bytes)?;
        let pid = u32::from_ne_bytes(bytes);
        Ok(Self {
            pid,
            pidfd: pidfd(pid)?,
            go,
            started,
            ended,
        })
    }

    /// Its PID, which is the command's.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it execute the command.
    ///
    /// # Errors
    /// Why the command cannot be executed.
    pub async fn release(mut self) -> io::Result<Running> {
        self.go.write_all(&[1])?;
        self.started
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Running {
            pidfd: self.pidfd,
            ended: self.ended,
            status: None,
        })
    }
}

/// In the child, before it executes the command: tells its PID and waits for a byte.
fn hold(ours: RawFd, wait: RawFd, tell: RawFd) -> io::Result<()> {
    // SAFETY: no pointers. The child's copy of the other end would keep the pipe open for ever.
    unsafe { libc::close(ours) };
    // SAFETY: no pointers.
    let pid = unsafe { libc::getpid() }.to_ne_bytes();
    // SAFETY: the buffer is as long as it says.
    if unsafe { libc::write(tell, pid.as_ptr().cast(), pid.len()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers. The reader notices if this process dies.
    unsafe { libc::close(tell) };
    let mut byte = 0u8;
    loop {
        // SAFETY: the buffer has the one byte.
        match unsafe { libc::read(wait, (&raw mut byte).cast(), 1) } {
            1 => return Ok(()),
            // gputrace has given up or is gone: the command is not started.
            0 => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

fn reap(mut child: Child) -> io::Result<ExitStatus> {
    child.wait()
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: two integers; the result is a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match RawFd::try_from(fd) {
        // SAFETY: a new descriptor that nobody else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Running {
    /// Waits for its end. Can be given up and called again.
    ///
    /// # Errors
    /// Where its status cannot be had.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        let status = (&mut self.ended)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        self.status = Some(status);
        Ok(status)
    }

    /// Sends it a signal. It may have ended.
    pub fn pass_on(&self, signal: Signal) {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and without info the kernel fills in its own. It leads to
        // this process or to none, whatever happens to the PID.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.pidfd.as_raw_fd(),
                signal as i32,
                no_info,
                0,
            )
        };
    }
}

/// Whether a signal from the keyboard reaches the command without help: it is in this process's
/// group, and that is the one which the terminal speaks to.
#[must_use]
pub fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty")
        .is_ok_and(|tty| nix::unistd::tcgetpgrp(&tty).is_ok_and(|it| it == nix::unistd::getpgrp()))
}

/// The exit status of a shell for a command that ended so.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    // An exit status has 8 bits, a signal 7.
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// The exit status of a shell for a command that could not be executed.
#[must_use]
pub fn exit_code_of_failure(error: &io::Error) -> u8 {
    const CANNOT_EXECUTE: u8 = 126;
    const NOT_FOUND: u8 = 127;
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_EXECUTE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    }

    #[test]
    fn nothing_is_executed_before_it_is_released() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let touch = command(&["touch", mark.to_str().unwrap()]);
        drop(Held::new(&touch).unwrap());
        let held = Held::new(&touch).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", held.pid())).unwrap();
        assert_ne!(name.trim(), "touch");
        assert!(!mark.exists());
        let status = runtime().block_on(async {
            let mut running = held.release().await.unwrap();
            running.wait().await.unwrap();
            running.wait().await.unwrap()
        });
        assert_eq!(exit_code(status), 0);
        assert!(mark.exists());
    }

    #[test]
    fn statuses_are_those_of_a_shell() {
        let run = |words: &[&str]| {
            let held = Held::new(&command(words)).unwrap();
            runtime().block_on(async {
                match held.release().await {
                    Ok(mut running) => exit_code(running.wait().await.unwrap()),
                    Err(error) => exit_code_of_failure(&error),
                }
            })
        };
        assert_eq!(run(&["sh", "-c", "exit 37"]), 37);
        assert_eq!(run(&["sh", "-c", "kill -KILL $$"]), 137);
        assert_eq!(run(&["/nowhere/at/all"]), 127);
        assert_eq!(run(&["/"]), 126);
        assert!(Held::new(&[]).is_err());
    }

    #[test]
    fn a_signal_is_passed_on() {
        let held = Held::new(&command(&["sleep", "1000"])).unwrap();
        let status = runtime().block_on(async {
            let mut running = held.release().await.unwrap();
            running.pass_on(Signal::SIGTERM);
            running.wait().await.unwrap()
        });
        assert_eq!(exit_code(status), 128 + 15);
    }
}
