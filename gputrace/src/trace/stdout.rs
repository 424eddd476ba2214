//! The output of a run: how it looks, how far it has come, and whether anybody still reads it.

use std::{
    io::{self, Write},
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::{
    cli::{Color, Trace},
    clock::Moment,
    event::Coverage,
    keep::Kept,
    output::Format,
    render::{ndjson, terminal},
    report::Start,
    text::rfc3339,
};

/// Bytes written so far.
pub type Progress = Arc<AtomicU64>;

/// A writer that counts what it has written.
pub struct Counted<W> {
    /// Counts.
    pub progress: Progress,
    /// Writes.
    pub to: W,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.progress.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Tells whether the output stands still.
#[derive(Default)]
pub struct Unread {
    seen: Option<u64>,
}

impl Unread {
    /// Whether nothing was written since the last call.
    pub fn is_stuck(&mut self, progress: &Progress) -> bool {
        let now = progress.load(Ordering::Relaxed);
        self.seen.replace(now) == Some(now)
    }
}

/// How the output looks; not at all, where nobody asked for a report.
pub fn format(flags: &Trace, report: bool, is_file: bool) -> Format {
    if flags.json {
        return Format::Ndjson;
    }
    if !report {
        return Format::Silent;
    }
    let color = match flags.color {
        Color::Auto if is_file => Color::Never,
        color => color,
    };
    Format::Table(terminal::style(color, 120))
}

/// Says that tracing has begun: on the output in JSON, on stderr otherwise, but not between the
/// lines of a command.
pub fn announce(
    format: Format,
    to: &mut impl Write,
    is_command: bool,
    began: Moment,
    coverage: &Coverage,
    kept: Option<&Kept>,
) -> io::Result<()> {
    match format {
        Format::Ndjson => {
            let start = Start {
                time: rfc3339(began.wall_ns),
                pid: std::process::id(),
                coverage: coverage.clone(),
            };
            ndjson::start(to, &start)
        }
        _ if is_command => Ok(()),
        Format::Table(_) | Format::Silent => {
            for library in &coverage.libraries {
                let slow = library.functions.iter().filter(|f| !f.emulated).count();
                let slow = if slow > 0 {
                    format!(", {slow} of them single-stepped")
                } else {
                    String::new()
                };
                // Nobody to tell if stderr is closed.
                let _ = writeln!(
                    io::stderr(),
                    "gputrace: probing {} functions of {} ({}{slow})",
                    library.functions.len(),
                    library.path,
                    coverage.method,
                );
            }
            let into = kept.map_or_else(String::new, |it| format!(" into {}", it.shown()));
            let reports = match format {
                Format::Silent => "",
                _ => " and reports",
            };
            let _ = writeln!(
                io::stderr(),
                "gputrace: tracing{into}; Ctrl-C stops{reports}"
            );
            Ok(())
        }
    }
}

/// Tells when the reading end of stdout is closed; never, if stdout is no pipe.
pub struct Closed {
    receiver: Option<oneshot::Receiver<()>>,
}

impl Closed {
    /// Waits until it is.
    pub async fn wait(&mut self) {
        if let Some(receiver) = &mut self.receiver
            && receiver.await.is_ok()
        {
            return;
        }
        self.receiver = None;
        std::future::pending::<()>().await;
    }
}

/// Begins to watch.
pub fn watch_stdout() -> Closed {
    let (sender, receiver) = oneshot::channel();
    let watch = move || {
        // SAFETY: stdout stays open as long as the process lives.
        let stdout = unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) };
        loop {
            // Only errors are waited for: POLLERR is what a pipe without readers gives.
            let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return,
                Ok(_) => {
                    if fds[0]
                        .revents()
                        .is_some_and(|it| it.contains(PollFlags::POLLERR))
                    {
                        let _ = sender.send(());
                    }
                    return;
                }
            }
        }
    };
    // Without the thread a closed pipe is noticed when the next line is written.
    let _ = thread::Builder::new()
        .name("stdout".to_owned())
        .spawn(watch);
    Closed {
        receiver: Some(receiver),
    }
}
