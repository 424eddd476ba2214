//! The probes of a run: put in before it begins, added to while it goes on, taken out at its end.

use std::{
    io::{self, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, RawFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::{sync::oneshot, time::timeout};

use super::{TraceError, spawn, system};
use crate::{
    cli::Trace,
    clock::Moment,
    engine::{Command, Control},
    event::{Coverage, Event, NotProbed, Pid},
    identity::procfs::Procfs,
    sensors::{
        attacher::{AttachError, Attacher, Scope},
        bpf::{self, Programs, Reader, Release},
        cuda::discovery::has_mapped,
    },
    units::counted,
};

/// Longest wait for a search that is under way when tracing ends.
const ATTACHER_LIMIT: Duration = Duration::from_millis(500);

/// What tracing begins with.
pub struct Probed {
    pub attacher: Attacher,
    pub reader: Reader,
    pub began: Moment,
    pub coverage: Coverage,
}

/// Loads the programs, finds libcuda and puts the probes in.
pub fn probe(flags: &Trace, targets: &[Pid], descendants: bool) -> Result<Probed, TraceError> {
    let explicit = flags.sources.libcuda.clone();
    let named = !explicit.is_empty();
    let (take_stacks, stacks) = stacks(flags);
    let pids: Vec<u32> = targets.iter().map(|pid| pid.tgid).collect();
    let programs = Programs::load(bpf::Settings {
        targets: pids.clone(),
        follow: descendants,
        stacks: take_stacks,
        activity: !flags.probing.no_activity,
        ring_bytes: flags.probing.ring_size,
        method: flags.probing.attach,
    })?;
    let scope = if descendants {
        Scope {
            explicit,
            directories: library_path(),
            processes: Vec::new(),
        }
    } else {
        Scope {
            explicit,
            directories: Vec::new(),
            processes: pids.clone(),
        }
    };
    let mut attacher = Attacher::new(programs, scope)?;
    let first = attacher.attach_first().map_err(|error| match error {
        AttachError::Bpf(error) => error.into(),
        AttachError::Refused(mut copies) if named && !copies.is_empty() => {
            let NotProbed { path, reason, .. } = copies.swap_remove(0);
            TraceError::Library { path, reason }
        }
        AttachError::Refused(not_probed) => TraceError::NoLibrary { not_probed },
    })?;
    if first.libraries.is_empty() {
        // Nobody to tell if stderr is closed.
        let _ = writeln!(
            io::stderr(),
            "gputrace: there is no copy of libcuda yet; one will be probed as soon as a process \
             maps it"
        );
    }
    if !descendants {
        say_without_libcuda(&pids);
    }
    let (reader, began) = attacher.start()?;
    let coverage = Coverage {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: Release::running().map_or_else(|| "unknown".to_owned(), |r| r.to_string()),
        method: attacher.method().to_owned(),
        stacks,
        activity_not_counted: attacher.counts_activity().err().map(str::to_owned),
        targets: targets.to_vec(),
        command: descendants,
        discovery: attacher.discovery(),
        libraries: first.libraries,
        not_probed: first.not_probed,
        late_processes: Vec::new(),
    };
    Ok(Probed {
        attacher,
        reader,
        began,
        coverage,
    })
}

/// The directories of `LD_LIBRARY_PATH`, where the loader of the command will look first.
fn library_path() -> Vec<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect()
}

/// Says which of the processes has no libcuda: there is nothing to see of it.
fn say_without_libcuda(pids: &[u32]) {
    let procfs = Procfs::default();
    for &pid in pids {
        if has_mapped(&procfs, pid) == Ok(false) {
            // Nobody to tell if stderr is closed.
            let _ = writeln!(
                io::stderr(),
                "gputrace: process {pid} has no libcuda mapped: there is nothing to see of it \
                 unless it loads one"
            );
        }
    }
}

/// Whether user stacks are taken, and in words.
fn stacks(flags: &Trace) -> (bool, String) {
    let refused = Release::running().and_then(Release::refuses_user_stacks);
    match refused {
        _ if flags.probing.no_stacks => (false, "not taken: --no-stacks".to_owned()),
        Some(reason) if !flags.probing.force_stacks => (false, format!("not taken: {reason}")),
        _ => (true, "taken at each allocation".to_owned()),
    }
}

/// The thread that probes copies of libcuda which are mapped while tracing.
pub struct Libraries {
    attacher: oneshot::Receiver<Attacher>,
    stop: Arc<EventFd>,
    perf_events: Arc<AtomicUsize>,
}

impl Libraries {
    /// Starts it. What it finds goes to the engine, and unless it is to be quiet to stderr.
    ///
    /// # Errors
    /// Where no thread or descriptor can be had.
    pub fn follow(
        mut attacher: Attacher,
        control: Control,
        quiet: bool,
    ) -> Result<Self, TraceError> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| system("no event descriptor")(io::Error::from(errno)))?;
        let stop = Arc::new(stop);
        let told = Arc::clone(&stop);
        let perf_events = attacher.perf_events();
        let attacher = spawn("libraries", move || {
            attacher.follow(told.as_fd(), |event| {
                if !quiet {
                    say_late(&event);
                }
                control.send(Command::Event(Box::new(event)));
            });
            attacher
        })?;
        Ok(Self {
            attacher,
            stop,
            perf_events,
        })
    }

    /// Takes the probes out. A search that does not come to its end is left behind; the end of this
    /// process takes the probes out then.
    pub async fn take_out(self) {
        let _ = self.stop.write(1);
        match timeout(ATTACHER_LIMIT, self.attacher).await {
            Ok(Ok(attacher)) => detach(attacher),
            // It still has them; they are closed as this process ends.
            _ => std::mem::forget(Background::start(self.perf_events.load(Ordering::Relaxed))),
        }
    }
}

/// Says that a copy of libcuda was found while tracing.
fn say_late(event: &Event) {
    // Nobody to tell if stderr is closed.
    let _ = match event {
        Event::Library {
            library, processes, ..
        } => writeln!(
            io::stderr(),
            "gputrace: probing {} functions of {} as well{}",
            library.functions.len(),
            library.path,
            match processes.len() {
                0 => String::new(),
                n => format!("; {} had it mapped by then", counted(n as u64, "process")),
            }
        ),
        Event::NotProbed { copy, .. } => writeln!(
            io::stderr(),
            "gputrace: not probed: {}: {}",
            copy.path,
            copy.reason
        ),
        _ => Ok(()),
    };
}

/// Takes the probes out.
pub fn detach(attacher: Attacher) {
    let background = Background::start(attacher.perf_events().load(Ordering::Relaxed));
    // Quick, as long as the child has the same descriptors.
    drop(attacher);
    drop(background);
}

/// A child that has the descriptors of every perf event. Each takes the kernel about 0.1 s to take
/// out, and whoever closes it last has to wait for that: the child does, so that the prompt is back
/// at once. It ends when this is dropped, or when this process ends.
struct Background {
    _go: io::PipeWriter,
}

impl Background {
    /// Starts it, if there is anything that takes time.
    fn start(perf_events: usize) -> Option<Self> {
        if perf_events == 0 {
            return None;
        }
        let (wait, go) = io::pipe().ok()?;
        let (wait_fd, go_fd) = (wait.as_raw_fd(), go.as_raw_fd());
        // SAFETY: the child of a program with threads may only make system calls that are safe in a
        // signal handler, and that is all that `hold` does.
        match unsafe { libc::fork() } {
            0 => hold(wait_fd, go_fd),
            -1 => None,
            _child => {
                // Nobody to tell if stderr is closed.
                let _ = writeln!(
                    io::stderr(),
                    "gputrace: the kernel takes {perf_events} probes out in the background, in \
                     about {} s",
                    perf_events.div_ceil(10)
                );
                Some(Self { _go: go })
            }
        }
    }
}

/// In the child: waits until the other process has closed its descriptors, then ends.
fn hold(wait: RawFd, go: RawFd) -> ! {
    // Whoever reads the output is not to wait for this process; its own copy of the other end of
    // the pipe would keep it waiting for itself.
    for fd in [0, 1, 2, go] {
        // SAFETY: no pointers; nobody uses these descriptors here.
        unsafe { libc::close(fd) };
    }
    // A signal from the keyboard is not for this process any more.
    // SAFETY: no pointers.
    unsafe { libc::setsid() };
    let mut byte = 0u8;
    // SAFETY: the buffer has the one byte. Nothing is ever written: the call returns at the end of
    // the file, or by a signal, after which there is nothing better to do than to end.
    unsafe { libc::read(wait, (&raw mut byte).cast(), 1) };
    // SAFETY: no pointers. The kernel closes the perf events as this process ends.
    unsafe { libc::_exit(0) }
}
