//! A run of live tracing: sensors, engine, output and signals, put together.

mod devices;
mod libraries;
mod signals;
mod stdout;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    process::ExitStatus,
    sync::mpsc::sync_channel,
    thread,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};

pub use crate::keep::Keep;
use crate::{
    analysis::{Filter, Thresholds},
    cli::Trace,
    clock,
    engine::{Command, Control, Engine, Settings},
    event::{NotProbed, Pid},
    identity::{
        self, UserError,
        procfs::{Procfs, ProcfsError},
    },
    keep::{KeepError, Kept},
    launch::{Held, Running},
    ledger::Limits,
    output::write_all,
    priority,
    recording::Header,
    report::{EndedBy, Report},
    sensors::bpf::{BpfError, Reader},
    symbols,
};
use devices::DeviceLayer;
use libraries::{Libraries, Probed, detach, probe};
use signals::pass_on;
pub(crate) use signals::{Asked, SAME_SIGNAL, Signals};
use stdout::{Counted, Progress, Unread, announce, format, watch_stdout};

/// What kept a run from being done.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel counts PIDs otherwise than /proc does here.
    #[error(
        "this is a PID namespace of its own, and the kernel reports PIDs of the host's: run \
             gputrace on the host, or in a container with the host's PID namespace (--pid=host, \
             hostPID: true)"
    )]
    PidNamespace,
    /// A process that was asked for is not there.
    #[error("there is no process {pid}: {source}")]
    NoProcess {
        /// Its PID.
        pid: u32,
        /// What /proc said.
        source: ProcfsError,
    },
    /// A user that was asked for is not there.
    #[error(transparent)]
    NoUser(#[from] UserError),
    /// No copy of libcuda can be probed.
    #[error("no copy of libcuda.so can be probed{}\nGive its path with --libcuda, or start a CUDA \
             program first; 'gputrace doctor' shows where gputrace looks", listed(.not_probed))]
    NoLibrary {
        /// The ones that were found.
        not_probed: Vec<NotProbed>,
    },
    /// A copy that was asked for cannot be probed.
    #[error("{path} cannot be probed: {reason}")]
    Library {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
    /// The command of `run` cannot be executed.
    #[error("{command}: {source}")]
    Command {
        /// Its name.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The eBPF side.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The file for the output cannot be made.
    #[error("{} could not be made: {source}", identity::escape_path(.path))]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("the output could not be written: {0}")]
    Output(#[source] io::Error),
    /// The system refused something that a run needs.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The thread that traces ended by itself: a defect.
    #[error("the tracing thread ended unexpectedly; please report this")]
    Engine,
    /// The report is there, but the reader of the output does not take it.
    #[error("the output is not being read: the report could not be written")]
    Unread,
    /// The recording.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// Ctrl-C twice.
    #[error("interrupted again before the report was written")]
    Impatient,
}

fn listed(not_probed: &[NotProbed]) -> String {
    not_probed
        .iter()
        .map(|it| format!("\n  {}: {}", it.path, it.reason))
        .collect()
}

fn system(what: &'static str) -> impl Fn(io::Error) -> TraceError {
    move |source| TraceError::System { what, source }
}

/// Default of `--interval` with `--json`.
const JSON_INTERVAL: Duration = Duration::from_secs(5);
/// The report counts as unread if nothing of it could be written for this long.
const UNREAD_AFTER: Duration = Duration::from_millis(400);
/// Outputs that may wait to be written.
const OUTPUTS: usize = 64;

/// How a run ended well.
#[derive(Debug)]
pub enum Ended {
    /// With a report.
    Report(Box<Report>),
    /// Nobody reads the output any more.
    PipeClosed,
}

/// What a run is for, beside its flags.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// A command to be started and traced with its descendants; none: what runs anyway is traced.
    pub command: Vec<OsString>,
    /// Where the output goes; `None`: to stdout.
    pub output: Option<PathBuf>,
    /// Whether to report as a table where the flags do not ask for JSON.
    pub report: bool,
    /// Where to keep what happens.
    pub keep: Option<Keep>,
}

/// Runs. Returns how the command ended as well, if there is one.
///
/// # Errors
/// [`TraceError`]. Where tracing had begun, everything up to the error has been written; where the
/// command had been started, it has ended.
pub async fn run(flags: &Trace, job: Job) -> Result<(Ended, Option<ExitStatus>), TraceError> {
    if !in_initial_pid_namespace() {
        return Err(TraceError::PidNamespace);
    }
    if job.command.is_empty() {
        // Before anything takes time: a signal that comes early is answered once tracing runs.
        let mut signals = Signals::new(false).map_err(system("signals cannot be received"))?;
        let ended = trace(flags, job, None, &mut None, &mut signals).await?;
        return Ok((ended, None));
    }
    // Before signals are caught: until it runs, it is ended by them as gputrace itself is.
    let held = Held::new(&job.command).map_err(system("the command cannot be started"))?;
    let mut signals = Signals::new(true).map_err(system("signals cannot be received"))?;
    let mut running = None;
    let ended = trace(flags, job, Some(held), &mut running, &mut signals).await;
    let Some(mut running) = running else {
        return Err(ended.err().unwrap_or(TraceError::Engine));
    };
    // Tracing may be over before the command is.
    let status = loop {
        tokio::select! {
            status = running.wait() => break status,
            asked = signals.next() => pass_on(&running, asked),
        }
    };
    let status = status.map_err(system("the command's status is lost"))?;
    Ok((ended?, Some(status)))
}

/// Traces. A command that is held is let go once the probes are in place, and is then in `running`.
async fn trace(
    flags: &Trace,
    job: Job,
    held: Option<Held>,
    running: &mut Option<Running>,
    signals: &mut Signals,
) -> Result<Ended, TraceError> {
    let (filter, mut targets) = filter(flags)?;
    if let Some(held) = &held {
        targets = vec![process(held.pid())?];
    }
    // Before it takes time: a file that cannot be made is told at once.
    let keep = job.keep.map(Keep::open).transpose()?;
    let (mut to, is_file): (Box<dyn Write + Send>, _) = match &job.output {
        Some(path) => (
            Box::new(File::create(path).map_err(|source| TraceError::Create {
                path: path.clone(),
                source,
            })?),
            true,
        ),
        None => (Box::new(io::stdout()), false),
    };
    let is_command = held.is_some();
    let Probed {
        attacher,
        reader,
        began,
        coverage,
    } = probe(flags, &targets, is_command)?;
    let mut settings = settings(flags, filter, targets);
    let (tell, targets_ended) = oneshot::channel();
    settings.targets_ended = Some(tell);
    let mut kept = None;
    if let Some(keep) = keep {
        let header = Header::new(clock::moment(), settings.thresholds, settings.limits);
        let (recorder, recording) = keep.start(&header)?;
        settings.recorder = Some(recorder);
        kept = Some(recording);
    }
    if let Some(held) = held {
        match held.release().await {
            Ok(command) => *running = Some(command),
            Err(source) => {
                detach(attacher);
                let name = job.command.first().map(|name| name.as_encoded_bytes());
                return Err(TraceError::Command {
                    command: identity::escape(name.unwrap_or_default()),
                    source,
                });
            }
        }
    }
    let format = format(flags, job.report, is_file);
    let announced = announce(format, &mut to, is_command, began, &coverage, kept.as_ref());
    if let Err(error) = announced {
        return pipe_or_error(error);
    }
    let (control, inbox) =
        Control::new().map_err(|errno| system("no event descriptor")(io::Error::from(errno)))?;
    let libraries = Libraries::follow(attacher, control.clone(), is_command || flags.json)?;
    let (outputs, to_write) = sync_channel(OUTPUTS);
    let engine = Engine::new(
        reader,
        began,
        settings,
        coverage,
        inbox,
        outputs,
        symbols::start(control.clone()),
    );
    let engine = spawn("engine", move || {
        priority::raise();
        engine.run()
    })?;
    let progress = Progress::default();
    let written = progress.clone();
    let writer = spawn("output", move || {
        let mut to = Counted {
            progress: written,
            to,
        };
        write_all(&to_write, format, &mut to)
    })?;
    let devices = DeviceLayer::start(flags, control.clone());
    let run = Run {
        flags,
        control: &control,
        devices: &devices,
        progress: &progress,
        libraries,
        // A command is not left alone for want of a reader, and who records wants the file.
        ends_with_pipe: !is_command && !is_file && kept.is_none(),
        targets_ended: Some(targets_ended),
    };
    let ended = run.drive(signals, running, engine, writer).await;
    written_as_well(kept, ended, signals).await
}

/// Waits for the recording, if there is one.
async fn written_as_well(
    kept: Option<Kept>,
    ended: Result<Ended, TraceError>,
    signals: &mut Signals,
) -> Result<Ended, TraceError> {
    let Some(kept) = kept else { return ended };
    let told = kept.wait(signals).await;
    let ended = ended?;
    told?;
    Ok(ended)
}

/// Whether PIDs here are those of the kernel. The initial namespace always has this inode number
/// (`PROC_PID_INIT_INO` in linux/proc_ns.h).
fn in_initial_pid_namespace() -> bool {
    const INITIAL: u64 = 0xEFFF_FFFC;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|it| it.ino() == INITIAL)
}

type EngineResult = Result<Reader, BpfError>;
type WriterResult = io::Result<Option<Box<Report>>>;

/// Starts a thread; its result comes through the channel, which closes if it panics.
fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, TraceError> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // The receiver is gone where the run has ended by another cause.
            let _ = sender.send(work());
        })
        .map_err(system("a thread cannot be started"))?;
    Ok(receiver)
}

/// A run, once everything has been started.
struct Run<'a> {
    flags: &'a Trace,
    control: &'a Control,
    devices: &'a DeviceLayer,
    progress: &'a Progress,
    libraries: Libraries,
    ends_with_pipe: bool,
    targets_ended: Option<oneshot::Receiver<()>>,
}

impl Run<'_> {
    async fn drive(
        self,
        signals: &mut Signals,
        command: &mut Option<Running>,
        mut engine: oneshot::Receiver<EngineResult>,
        mut writer: oneshot::Receiver<WriterResult>,
    ) -> Result<Ended, TraceError> {
        let Self {
            flags,
            control,
            devices,
            progress,
            libraries,
            ends_with_pipe,
            mut targets_ended,
        } = self;
        let mut deadline = flags
            .duration
            .and_then(|duration| Instant::now().checked_add(duration));
        let every = flags.interval.or(flags.json.then_some(JSON_INTERVAL));
        let mut ticks = interval(
            every
                .unwrap_or(JSON_INTERVAL)
                .max(Duration::from_millis(10)),
        );
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await; // the first one is due at once
        let mut closed = watch_stdout();
        let mut stopping: Option<Instant> = None;
        let mut unread = Unread::default();
        let mut reader = None;
        loop {
            let stop = tokio::select! {
                written = &mut writer => {
                    // Already on its way, unless the output has failed.
                    control.send(Command::Stop(EndedBy::Signal));
                    finish(engine, reader, libraries).await;
                    return match written.map_err(|_| TraceError::Engine)? {
                        Ok(Some(report)) => Ok(Ended::Report(report)),
                        Ok(None) => Err(TraceError::Engine),
                        Err(error) => pipe_or_error(error),
                    };
                }
                result = &mut engine, if reader.is_none() => {
                    // The report is on its way to the writer.
                    reader = Some(result.map_err(|_| TraceError::Engine)??);
                    None
                }
                () = closed.wait(), if ends_with_pipe => return { drop(engine); Ok(Ended::PipeClosed) },
                _ = ended(command), if stopping.is_none() => Some(EndedBy::TargetsEnded),
                () = told(&mut targets_ended), if stopping.is_none() => Some(EndedBy::TargetsEnded),
                asked = signals.next() => match (asked, stopping) {
                    (Asked::End(_), None) => match command {
                        Some(command) => {
                            pass_on(command, asked);
                            None
                        }
                        None => Some(EndedBy::Signal),
                    },
                    (Asked::End(_), Some(since)) if since.elapsed() > SAME_SIGNAL => {
                        return Err(TraceError::Impatient);
                    }
                    (Asked::Snapshot, None) => {
                        devices.snapshot();
                        None
                    }
                    _ => None,
                },
                () = at(deadline), if stopping.is_none() => Some(EndedBy::Duration),
                _ = ticks.tick(), if stopping.is_none() && every.is_some() => {
                    devices.snapshot();
                    None
                }
                // While a report is being made nothing is written, and nothing is wrong.
                () = sleep(UNREAD_AFTER), if stopping.is_some() => {
                    if control.report_is_made() && unread.is_stuck(progress) {
                        return Err(TraceError::Unread);
                    }
                    None
                }
            };
            if let Some(by) = stop {
                stopping = Some(Instant::now());
                deadline = None;
                devices.last().await;
                control.send(Command::Stop(by));
            }
        }
    }
}

/// Waits for the end of the command of `run`, if there is one.
async fn ended(command: &mut Option<Running>) {
    match command {
        // Its status, or why there is none, is asked for once more at the end.
        Some(command) => drop(command.wait().await),
        None => std::future::pending().await,
    }
}

/// Waits to be told, for ever if nobody is left who could.
async fn told(receiver: &mut Option<oneshot::Receiver<()>>) {
    if let Some(waiting) = receiver {
        let result = waiting.await;
        *receiver = None;
        if result.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Waits for the engine, then takes the probes out.
async fn finish(
    engine: oneshot::Receiver<EngineResult>,
    reader: Option<Reader>,
    libraries: Libraries,
) {
    if reader.is_none() {
        let _ = engine.await;
    }
    libraries.take_out().await;
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn filter(flags: &Trace) -> Result<(Filter, Vec<Pid>), TraceError> {
    let targets = flags
        .filter
        .pids
        .iter()
        .map(|&pid| process(pid))
        .collect::<Result<Vec<_>, _>>()?;
    let uid = flags
        .filter
        .user
        .as_deref()
        .map(identity::resolve_user)
        .transpose()?;
    Ok((flags.filter.resolve(uid, flags.json), targets))
}

/// A process that runs.
fn process(pid: u32) -> Result<Pid, TraceError> {
    match Procfs::default().stat(pid) {
        Ok(stat) => Ok(Pid {
            tgid: pid,
            start_ticks: stat.start_ticks,
        }),
        Err(source) => Err(TraceError::NoProcess { pid, source }),
    }
}

fn settings(flags: &Trace, filter: Filter, targets: Vec<Pid>) -> Settings {
    Settings {
        filter,
        thresholds: flags.thresholds.over(Thresholds::default()),
        limits: Limits {
            live_allocations: flags.probing.max_live,
            ..Limits::default()
        },
        targets,
        targets_ended: None,
        send_events: flags.events,
        recorder: None,
    }
}

fn pipe_or_error(error: io::Error) -> Result<Ended, TraceError> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Ok(Ended::PipeClosed)
    } else {
        Err(TraceError::Output(error))
    }
}
