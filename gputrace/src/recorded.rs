//! `gputrace report`: the report of a recording.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read, Write},
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    analysis::{Filter, report},
    cli::ReportFlags,
    event::Event,
    identity::{escape_at_most, escape_path},
    ledger::{Ledger, Limits},
    recording::{ReadError, Reader, Replay, harmless},
    render::{
        self, ndjson,
        table::{self, Table},
        terminal,
    },
    report::{RecordingReport, Report},
    units::Bytes,
};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// It cannot be opened.
    #[error("{path} cannot be opened: {source}")]
    Open {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: ReadError,
    },
    /// A user that the recording does not name.
    #[error("the recording has no user named '{0}'; a number works as well")]
    NoUser(String),
    /// The output cannot be written.
    #[error("the output could not be written: {0}")]
    Output(#[from] io::Error),
}

/// Size from which on a reader is told how far it is.
const SHOW_PROGRESS_FROM: u64 = 64 << 20;
/// How often.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Prints the report, and on stderr what of the file could not be read.
///
/// # Errors
/// [`RecordedError`].
pub fn run(flags: &ReportFlags) -> Result<Report, RecordedError> {
    let path = escape_path(&flags.file);
    let (input, size) = open(&flags.file).map_err(|source| RecordedError::Open {
        path: path.clone(),
        source,
    })?;
    let mut reader = Reader::new(input).map_err(|source| RecordedError::Read { path, source })?;
    let thresholds = flags.thresholds.over(reader.header().thresholds);
    let limits = limits(flags, reader.header().limits);

    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut failed = None;
    let mut progress = Progress::new(size);
    let replay = Replay::run(&mut reader, limits, |event, position| {
        progress.show(position);
        if flags.events {
            failed = print_event(&mut stdout, event).err();
        }
        if failed.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    progress.clear();
    if let Some(error) = failed {
        return Err(error.into());
    }

    let filter = filter(flags, &replay.ledger)?;
    let mut report = report(
        &replay.ledger,
        &filter,
        thresholds,
        replay.as_of,
        Some(replay.ended_by),
    );
    report.recording = replay.recording_report();
    // Only a report with text that is no JSON would fail, and there is none.
    let report = harmless(report).map_err(io::Error::from)?;
    if let Some(missing) = &report.recording {
        tell(missing);
    }
    if flags.json {
        ndjson::report(&mut stdout, &report)?;
    } else {
        let style: table::Style = terminal::style(flags.color, 120);
        write!(
            stdout,
            "{}",
            Table {
                report: &report,
                style
            }
        )?;
        stdout.flush()?;
    }
    Ok(report)
}

fn print_event(to: &mut impl Write, event: Event) -> io::Result<()> {
    ndjson::event(to, harmless(event).map_err(io::Error::from)?)
}

/// The file, or stdin for `-`; and its size, where it has one.
fn open(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin().lock()), None));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let size = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(file), size))
}

/// Those of the recording, as far as they cost no more memory than gputrace uses by itself.
fn limits(flags: &ReportFlags, recorded: Limits) -> Limits {
    let most = Limits::default();
    Limits {
        live_allocations: flags
            .max_live
            .unwrap_or(recorded.live_allocations.min(most.live_allocations)),
        ended_processes: recorded.ended_processes.min(most.ended_processes),
        processes: recorded.processes.min(most.processes),
        sites_per_process: recorded.sites_per_process.min(most.sites_per_process),
        stacks: recorded.stacks.min(most.stacks),
        ..recorded
    }
}

fn filter(flags: &ReportFlags, ledger: &Ledger) -> Result<Filter, RecordedError> {
    let uid = match flags.filter.user.as_deref() {
        None => None,
        // Users are those of the machine that was traced.
        Some(user) => Some(
            ledger
                .user_named(user)
                .or_else(|| user.parse().ok())
                .ok_or_else(|| RecordedError::NoUser(escape_at_most(user.as_bytes(), 128)))?,
        ),
    };
    Ok(flags.filter.resolve(uid, flags.json))
}

/// Says on stderr what is missing.
fn tell(missing: &RecordingReport) {
    let mut stderr = io::stderr().lock();
    for line in render::recording::lines(missing) {
        // Nobody to tell if stderr is closed.
        let _ = writeln!(stderr, "gputrace: {line}");
    }
}

/// How far reading is, for somebody who waits at a terminal.
struct Progress {
    size: Option<u64>,
    next: Instant,
    events: u32,
    shown: bool,
}

impl Progress {
    fn new(size: Option<u64>) -> Self {
        Self {
            size: size.filter(|&size| size >= SHOW_PROGRESS_FROM && io::stderr().is_terminal()),
            next: Instant::now() + PROGRESS_EVERY,
            events: 0,
            shown: false,
        }
    }

    fn show(&mut self, position: u64) {
        let Some(size) = self.size else { return };
        self.events = self.events.wrapping_add(1);
        // The clock costs about as much as an event.
        if !self.events.is_multiple_of(4096) || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + PROGRESS_EVERY;
        self.shown = true;
        let percent = position.saturating_mul(100) / size.max(1);
        let _ = write!(
            io::stderr(),
            "\rreading: {percent} % of {}\x1b[K",
            Bytes(size)
        );
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
