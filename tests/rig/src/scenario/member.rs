//! A process of the running scenario.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::Signal;

use super::failure::block;
use super::process::Pidfd;
use super::subject::Identity;
use super::tally::Workload;

/// A process that the scenario started, directly or by a fork.
#[derive(Debug)]
pub struct Member {
    /// Who it is.
    pub identity: Identity,
    /// Sums of its own calls.
    pub workload: Workload,
    /// It has been told to end, so its end is no failure.
    pub may_end: bool,
    /// It executes a new image, which ends its other threads.
    pub executes: bool,
    /// The highest number that one of its threads has had.
    pub highest: u32,
    /// Its exit status, where the runner is its parent and has taken it.
    pub status: Option<ExitStatus>,
    pidfd: Pidfd,
    child: Option<Child>,
    reap: bool,
    log: PathBuf,
}

impl Member {
    /// A process that has just become known.
    ///
    /// # Errors
    /// It is gone already.
    pub fn new(
        identity: Identity,
        child: Option<Child>,
        reap: bool,
        log: PathBuf,
    ) -> std::io::Result<Self> {
        Ok(Self {
            identity,
            workload: Workload::default(),
            may_end: false,
            executes: false,
            highest: 0,
            status: None,
            pidfd: Pidfd::open(identity.tgid)?,
            child,
            reap,
            log,
        })
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> std::io::Result<()> {
        self.pidfd.signal(signal)
    }

    /// Whether all of its threads have ended. Takes its status if that is the runner's part.
    pub fn ended(&mut self) -> bool {
        if self.status.is_some() {
            return true;
        }
        let ended = self.pidfd.has_ended();
        if ended
            && self.reap
            && let Some(child) = &mut self.child
        {
            self.status = child.try_wait().ok().flatten();
        }
        ended
    }

    /// Whether the runner is its parent.
    #[must_use]
    pub fn is_own_child(&self) -> bool {
        self.child.is_some()
    }

    /// The end of what it wrote, as a block below a message.
    #[must_use]
    pub fn log(&self) -> String {
        block(
            "it wrote",
            &std::fs::read_to_string(&self.log).unwrap_or_default(),
        )
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Fails where it has ended, which is what is wanted.
        let _ = self.pidfd.signal(Signal::SIGKILL);
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

/// Makes a program end when the runner does, however that ends.
pub fn end_with_runner(command: &mut Command) {
    // SAFETY: prctl(PR_SET_PDEATHSIG) is an async-signal-safe system call without memory effects,
    // which is all that may be done between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
}
