//! `/proc/PID`: what the kernel says about a process.
//!
//! The parsers (in [`parse`]) are pure and take bytes; [`Procfs`] reads the files, from a root that
//! tests can choose. Every read is bounded. `cmdline` and `maps` may block on a task that is stuck
//! in the kernel; callers that cannot wait wrap them in [`within`](super::within).

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

pub mod parse;

pub use parse::{Cgroup, CgroupLine, Malformed, Stat, Status};

use super::escape::{escape_at_most, escape_path};

/// Most bytes read of a command line. It may be 2 MiB and more; nobody reads that.
pub const MAX_CMDLINE: usize = 4096;

/// Most bytes read of any other small file of `/proc/PID`. `status` has 1.5 KiB, and a cgroup path
/// is at most 4 KiB for each of a dozen hierarchies.
const MAX_SMALL_FILE: usize = 128 * 1024;

/// Longest command name shown. The kernel's own has 15 bytes, but kernel workers have longer ones.
const MAX_COMM_CHARS: usize = 64;

/// A file of `/proc/PID` gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProcfsError {
    /// The process is gone (or was never there).
    #[error("process {pid} is gone")]
    Gone {
        /// Its tgid.
        pid: u32,
    },
    /// The file could not be read.
    #[error("{}: {source}", escape_path(.path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The file says something that this version does not understand.
    #[error("{}: {source}", escape_path(.path))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Malformed,
    },
}

/// What a process is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The kernel's name of the thread-group leader, escaped; at most 15 bytes, so often cut.
    pub comm: String,
    /// The command line, escaped, with quotes where an argument has spaces; `None` where the process has none (a
    /// kernel thread, a zombie, or a process that overwrote it).
    pub command: Option<String>,
}

/// The `proc` file system at some place.
#[derive(Clone, Debug)]
pub struct Procfs {
    root: PathBuf,
}

impl Default for Procfs {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Procfs {
    /// A `proc` file system mounted (or imitated) at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file of a process.
    pub fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(file)
    }

    /// The tgids of all processes, in no particular order.
    ///
    /// # Errors
    ///
    /// [`ProcfsError::Unreadable`] if the root cannot be listed.
    pub fn pids(&self) -> Result<Vec<u32>, ProcfsError> {
        let unreadable = |source| ProcfsError::Unreadable {
            path: self.root.clone(),
            source,
        };
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    /// `/proc/PID/stat`.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`], as for every reader here.
    pub fn stat(&self, pid: u32) -> Result<Stat, ProcfsError> {
        self.parsed(pid, "stat", parse::stat)
    }

    /// `/proc/PID/status`.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`], as for every reader here.
    pub fn status(&self, pid: u32) -> Result<Status, ProcfsError> {
        self.parsed(pid, "status", parse::status)
    }

    /// `/proc/PID/cgroup`.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`], as for every reader here.
    pub fn cgroup(&self, pid: u32) -> Result<Cgroup, ProcfsError> {
        self.parsed(pid, "cgroup", parse::cgroup)
    }

    /// `/proc/PID/comm` as it is, without the line end.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`], as for every reader here.
    pub fn comm(&self, pid: u32) -> Result<Vec<u8>, ProcfsError> {
        let mut comm = self.read(pid, "comm", MAX_SMALL_FILE)?;
        if comm.last() == Some(&b'\n') {
            comm.pop();
        }
        Ok(comm)
    }

    /// `/proc/PID/cmdline` as it is: arguments that each end in a NUL, the first [`MAX_CMDLINE`]
    /// bytes of them. Empty for kernel threads and zombies. May block on a stuck process.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`], as for every reader here.
    pub fn cmdline(&self, pid: u32) -> Result<Vec<u8>, ProcfsError> {
        self.read(pid, "cmdline", MAX_CMDLINE)
    }

    /// The names of a process, fit to be shown. May block on a stuck process.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`], as for every reader here.
    pub fn names(&self, pid: u32) -> Result<Names, ProcfsError> {
        Ok(Names {
            comm: escape_at_most(&self.comm(pid)?, MAX_COMM_CHARS),
            command: parse::command(&self.cmdline(pid)?),
        })
    }

    /// Runs `read` and makes sure that all it read was about one and the same process: a PID that
    /// was given to another process meanwhile counts as gone. Returns the process's [`Stat`] with
    /// what `read` found; with `start_ticks`, only for the process that started then.
    ///
    /// # Errors
    ///
    /// [`ProcfsError`] of `read`, or [`ProcfsError::Gone`].
    pub fn same_process<T>(
        &self,
        pid: u32,
        start_ticks: Option<u64>,
        read: impl FnOnce(&Self) -> Result<T, ProcfsError>,
    ) -> Result<(Stat, T), ProcfsError> {
        let before = self.stat(pid)?;
        if start_ticks.is_some_and(|ticks| ticks != before.start_ticks) {
            return Err(ProcfsError::Gone { pid });
        }
        let found = read(self)?;
        let after = self.stat(pid)?;
        if before.start_ticks != after.start_ticks {
            return Err(ProcfsError::Gone { pid });
        }
        Ok((after, found))
    }

    fn parsed<T>(
        &self,
        pid: u32,
        file: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, ProcfsError> {
        let bytes = self.read(pid, file, MAX_SMALL_FILE)?;
        if bytes.is_empty() {
            // The process ended between the opening and the reading.
            return Err(ProcfsError::Gone { pid });
        }
        parse(&bytes).map_err(|source| ProcfsError::Malformed {
            path: self.path(pid, file),
            source,
        })
    }

    fn read(&self, pid: u32, file: &str, limit: usize) -> Result<Vec<u8>, ProcfsError> {
        let path = self.path(pid, file);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(limit as u64).read_to_end(&mut bytes))
            .map_err(|source| {
                if is_gone(&source) {
                    ProcfsError::Gone { pid }
                } else {
                    ProcfsError::Unreadable { path, source }
                }
            })?;
        Ok(bytes)
    }
}

/// Whether an error of a file in `/proc/PID` means that the process ended: before the opening
/// (`ENOENT`) or between opening and reading (`ESRCH`).
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Procfs) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let procfs = Procfs::at(root.path());
        (root, procfs)
    }

    const STAT: &[u8] = b"42 (worker) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 1234 1 1\n";

    #[test]
    fn reads_a_fixture() {
        let (_root, procfs) = fixture(&[
            ("42/stat", STAT),
            ("42/comm", b"worker\n"),
            ("42/cmdline", b"/opt/worker\0--name\0a b\0"),
            ("42/cgroup", b"0::/system.slice/x.service\n"),
            ("self/comm", b"not a number\n"),
        ]);
        assert_eq!(procfs.pids().unwrap(), [42]);
        let names = procfs.names(42).unwrap();
        assert_eq!(names.comm, "worker");
        assert_eq!(names.command.as_deref(), Some("/opt/worker --name 'a b'"));
        let (stat, cgroup) = procfs
            .same_process(42, Some(1234), |procfs| procfs.cgroup(42))
            .unwrap();
        assert_eq!((stat.parent, stat.threads), (7, 9));
        assert_eq!(cgroup.path(), Some("/system.slice/x.service"));
        assert!(matches!(
            procfs.same_process(42, Some(1), |_| Ok(())),
            Err(ProcfsError::Gone { pid: 42 })
        ));
    }

    #[test]
    fn a_missing_process_is_gone_and_garbage_is_malformed() {
        let (_root, procfs) = fixture(&[("42/stat", b"garbage"), ("43/stat", b"")]);
        assert!(matches!(procfs.stat(1), Err(ProcfsError::Gone { pid: 1 })));
        assert!(matches!(procfs.stat(43), Err(ProcfsError::Gone { .. })));
        let error = procfs.stat(42).unwrap_err();
        assert!(matches!(error, ProcfsError::Malformed { .. }));
        assert!(error.to_string().contains("42/stat"));
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let long = vec![b'x'; 3 * MAX_CMDLINE];
        let (_root, procfs) = fixture(&[("42/cmdline", &long)]);
        assert_eq!(procfs.cmdline(42).unwrap().len(), MAX_CMDLINE);
    }

    #[test]
    fn reads_this_process_on_the_live_kernel() {
        let procfs = Procfs::default();
        let pid = std::process::id();
        let (stat, status) = procfs
            .same_process(pid, None, |procfs| procfs.status(pid))
            .unwrap();
        assert_eq!((stat.pid, status.tgid), (pid, pid));
        assert_eq!(status.parent, std::os::unix::process::parent_id());
        assert_eq!(status.uid, nix::unistd::getuid().as_raw());
        assert_eq!(status.namespace_pids.first(), Some(&pid));
        assert!(stat.threads >= 1 && stat.start_ticks > 0);
        assert!(procfs.names(pid).unwrap().command.is_some());
        assert!(procfs.pids().unwrap().contains(&pid));
        procfs.cgroup(pid).unwrap();
    }
}
