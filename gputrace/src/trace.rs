//! A run of live tracing: sensors, engine, output and signals, put together.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::MetadataExt as _,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::sync_channel,
    },
    thread,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};

pub use crate::keep::Keep;
use crate::{
    analysis::{Filter, Thresholds},
    cli::Trace,
    clock::{self, Moment},
    engine::{Command, Control, Engine, Settings},
    event::{Coverage, Event, NotProbed, Pid},
    evidence::Evidence,
    identity::{
        self, UserError,
        procfs::{Procfs, ProcfsError},
    },
    keep::{KeepError, OpenFile},
    ledger::Limits,
    output::{Format, write_all},
    recording::Header,
    render::{ndjson, terminal},
    report::{EndedBy, Report, Start},
    sensors::{
        bpf::{self, BpfError, Probes, Programs, Reader, Release},
        libraries,
        nvml::NvmlClient,
    },
    symbols,
    text::rfc3339,
};

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
    /// The eBPF side.
    #[error(transparent)]
    Bpf(#[from] BpfError),
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

/// Longest wait for NVML while tracing goes on.
const NVML_LIMIT: Duration = Duration::from_secs(2);
/// And at the end, when somebody waits for the prompt.
const NVML_LAST_LIMIT: Duration = Duration::from_millis(400);
/// Default of `--interval` with `--json`.
const JSON_INTERVAL: Duration = Duration::from_secs(5);
/// Questions to the device layer that may wait.
const ASKS: usize = 4;
/// The report counts as unread if nothing of it could be written for this long.
const UNREAD_AFTER: Duration = Duration::from_millis(400);
/// A second signal within this time belongs to the first.
pub(crate) const SAME_SIGNAL: Duration = Duration::from_millis(200);
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

/// Runs.
///
/// # Errors
/// [`TraceError`]. Where tracing had begun, everything up to the error has been written.
pub async fn run(flags: &Trace, keep: Option<Keep>) -> Result<Ended, TraceError> {
    if !in_initial_pid_namespace() {
        return Err(TraceError::PidNamespace);
    }
    // Before anything takes time: a signal that comes early is answered once tracing runs.
    let mut signals = Signals::new().map_err(system("signals cannot be received"))?;
    let (filter, targets) = filter(flags)?;
    // Before it takes time: a file that cannot be made is told at once.
    let keep = keep.map(Keep::open).transpose()?;
    let (reader, began, coverage) = probe(flags, &targets)?;
    let format = format(flags);
    if let Err(error) = announce(format, began, &coverage, keep.as_ref()) {
        return pipe_or_error(error);
    }
    let (control, inbox) =
        Control::new().map_err(|errno| system("no event descriptor")(io::Error::from(errno)))?;
    let (outputs, to_write) = sync_channel(OUTPUTS);
    let mut settings = settings(flags, filter, targets);
    let mut kept = None;
    if let Some(keep) = keep {
        let header = Header::new(clock::moment(), settings.thresholds, settings.limits);
        let (recorder, recording) = keep.start(&header)?;
        settings.recorder = Some(recorder);
        kept = Some(recording);
    }
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
        raise_priority();
        engine.run()
    })?;
    let progress = Progress::default();
    let written = progress.clone();
    let writer = spawn("output", move || {
        let mut stdout = Counted {
            progress: written,
            to: io::stdout().lock(),
        };
        write_all(&to_write, format, &mut stdout)
    })?;
    let devices = DeviceLayer::start(flags, control.clone());
    let ended = drive(
        flags,
        &control,
        &mut signals,
        &devices,
        &progress,
        engine,
        writer,
        // Who records wants the file, whoever reads along.
        kept.is_none(),
    )
    .await;
    match kept {
        Some(kept) => {
            let told = kept.wait(&mut signals).await;
            let ended = ended?;
            told?;
            Ok(ended)
        }
        None => ended,
    }
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

/// The reader must get the processor when the ring buffer fills, however busy the host is. Without
/// the privilege it stays as it is.
fn raise_priority() {
    const URGENT: i32 = -20;
    // SAFETY: no pointers. 0 is the calling thread on Linux.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, URGENT) };
}

#[expect(clippy::too_many_arguments, reason = "what a run consists of")]
async fn drive(
    flags: &Trace,
    control: &Control,
    signals: &mut Signals,
    devices: &DeviceLayer,
    progress: &Progress,
    mut engine: oneshot::Receiver<EngineResult>,
    mut writer: oneshot::Receiver<WriterResult>,
    end_with_pipe: bool,
) -> Result<Ended, TraceError> {
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
                finish(engine, reader).await;
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
            () = closed.wait(), if end_with_pipe => return { drop(engine); Ok(Ended::PipeClosed) },
            asked = signals.next() => match (asked, stopping) {
                (Asked::End, None) => Some(EndedBy::Signal),
                (Asked::End, Some(since)) if since.elapsed() > SAME_SIGNAL => {
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

/// Bytes written so far.
type Progress = Arc<AtomicU64>;

/// A writer that counts what it has written.
struct Counted<W> {
    progress: Progress,
    to: W,
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
struct Unread {
    seen: Option<u64>,
}

impl Unread {
    /// Whether nothing was written since the last call.
    fn is_stuck(&mut self, progress: &Progress) -> bool {
        let now = progress.load(Ordering::Relaxed);
        self.seen.replace(now) == Some(now)
    }
}

/// Waits for the engine, then takes the probes out.
async fn finish(engine: oneshot::Receiver<EngineResult>, reader: Option<Reader>) {
    let reader = match reader {
        Some(reader) => Some(reader),
        None => engine.await.ok().and_then(Result::ok),
    };
    if let Some(reader) = reader {
        detach(reader);
    }
}

/// Takes the probes out. Each perf event takes the kernel about 0.1 s: a child that does nothing
/// else holds the last references, so that the prompt is back at once.
fn detach(reader: Reader) {
    let perf_events = reader.probes().perf_events();
    if perf_events == 0 {
        return drop(reader);
    }
    // SAFETY: the child of a program with threads may only make system calls that are safe in a
    // signal handler: it closes three descriptors and ends.
    match unsafe { libc::fork() } {
        0 => {
            for fd in 0..3 {
                // SAFETY: see above; nobody uses these descriptors in the child.
                unsafe { libc::close(fd) };
            }
            // SAFETY: see above. The kernel closes the perf events as the child ends.
            unsafe { libc::_exit(0) }
        }
        -1 => drop(reader),
        _child => {
            // Nobody to tell if stderr is closed.
            let _ = writeln!(
                io::stderr(),
                "gputrace: the kernel takes {perf_events} probes out in the background, in about \
                 {} s",
                perf_events.div_ceil(10)
            );
            // Its descriptors are closed as this process ends, as the child's are.
            std::mem::forget(reader);
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What is asked of the device layer.
enum Ask {
    /// A snapshot, with a fresh answer in it.
    Snapshot,
    /// An answer for the last report; tells when it is there.
    Last(oneshot::Sender<()>),
}

/// The device layer: a task of its own, since an answer may take its whole limit.
#[derive(Clone)]
struct DeviceLayer {
    asks: mpsc::Sender<Ask>,
}

impl DeviceLayer {
    /// Starts it, with a first question.
    fn start(flags: &Trace, control: Control) -> Self {
        let mut client = (!flags.sources.no_nvml).then(|| {
            NvmlClient::start(PathBuf::from("/proc/self/exe"), flags.sources.nvml.clone())
        });
        let (asks, mut inbox) = mpsc::channel(ASKS);
        tokio::spawn(async move {
            answer(&mut client, &control, NVML_LIMIT).await;
            while let Some(ask) = inbox.recv().await {
                let asked = clock::now();
                match ask {
                    Ask::Snapshot => {
                        answer(&mut client, &control, NVML_LIMIT).await;
                        control.send(Command::Snapshot { asked });
                    }
                    Ask::Last(done) => {
                        answer(&mut client, &control, NVML_LAST_LIMIT).await;
                        let _ = done.send(());
                    }
                }
            }
        });
        Self { asks }
    }

    /// Asks for a snapshot. While many are waiting already, another would say the same.
    fn snapshot(&self) {
        let _ = self.asks.try_send(Ask::Snapshot);
    }

    /// Waits for a last answer, but not for one that takes too long.
    async fn last(&self) {
        let (done, answered) = oneshot::channel();
        if self.asks.try_send(Ask::Last(done)).is_ok() {
            let _ = timeout(NVML_LAST_LIMIT, answered).await;
        }
    }
}

async fn answer(client: &mut Option<NvmlClient>, control: &Control, limit: Duration) {
    let sample = match client {
        Some(client) => client.sample(limit).await,
        None => Evidence::not_available("switched off by --no-nvml"),
    };
    control.send(Command::Event(Box::new(Event::Devices {
        at: clock::now(),
        sample,
    })));
}

fn filter(flags: &Trace) -> Result<(Filter, Vec<Pid>), TraceError> {
    let procfs = Procfs::default();
    let targets = flags
        .filter
        .pids
        .iter()
        .map(|&pid| match procfs.stat(pid) {
            Ok(stat) => Ok(Pid {
                tgid: pid,
                start_ticks: stat.start_ticks,
            }),
            Err(source) => Err(TraceError::NoProcess { pid, source }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let uid = flags
        .filter
        .user
        .as_deref()
        .map(identity::resolve_user)
        .transpose()?;
    Ok((flags.filter.resolve(uid, flags.json), targets))
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
        send_events: flags.events,
        recorder: None,
    }
}

/// Finds libcuda, loads the programs and puts the probes in.
fn probe(flags: &Trace, targets: &[Pid]) -> Result<(Reader, Moment, Coverage), TraceError> {
    let explicit = &flags.sources.libcuda;
    let mut found = libraries::find(explicit);
    if let Some(it) = found.not_probed.first().filter(|_| !explicit.is_empty()) {
        return Err(TraceError::Library {
            path: it.path.clone(),
            reason: it.reason.clone(),
        });
    }
    if found.targets.is_empty() {
        return Err(TraceError::NoLibrary {
            not_probed: found.not_probed,
        });
    }
    let (take_stacks, stacks) = stacks(flags);
    let mut programs = Programs::load(bpf::Settings {
        targets: targets.iter().map(|pid| pid.tgid).collect(),
        stacks: take_stacks,
        activity: !flags.probing.no_activity,
        ring_bytes: flags.probing.ring_size,
        method: flags.probing.attach,
    })?;
    let mut probes = Probes::default();
    let mut probed = Vec::new();
    for target in found.targets {
        match programs.attach(&mut probes, &target.found.attach_path(), &target.probes) {
            Ok(()) => probed.push(target.library),
            Err(error)
                if explicit.is_empty() && !matches!(error, BpfError::NotPermitted { .. }) =>
            {
                found.not_probed.push(NotProbed {
                    path: target.library.path,
                    reason: error.to_string(),
                });
            }
            Err(error) => return Err(error.into()),
        }
    }
    if probed.is_empty() {
        return Err(TraceError::NoLibrary {
            not_probed: found.not_probed,
        });
    }
    let coverage = Coverage {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: Release::running().map_or_else(|| "unknown".to_owned(), |r| r.to_string()),
        method: programs.method().label().to_owned(),
        stacks,
        activity_not_counted: programs.counts_activity().err().map(str::to_owned),
        targets: targets.to_vec(),
        libraries: probed,
        not_probed: found.not_probed,
    };
    let (reader, began) = programs.start(probes)?;
    Ok((reader, began, coverage))
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

fn format(flags: &Trace) -> Format {
    if flags.json {
        return Format::Ndjson;
    }
    if !flags.leaks {
        return Format::Silent;
    }
    Format::Table(terminal::style(flags.color, 120))
}

/// Says that tracing has begun: on stdout in JSON, on stderr otherwise.
fn announce(
    format: Format,
    began: Moment,
    coverage: &Coverage,
    keep: Option<&OpenFile>,
) -> io::Result<()> {
    match format {
        Format::Ndjson => {
            let start = Start {
                time: rfc3339(began.wall_ns),
                pid: std::process::id(),
                coverage: coverage.clone(),
            };
            ndjson::start(&mut io::stdout().lock(), &start)
        }
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
            let into = keep.map_or_else(String::new, |it| format!(" into {}", it.shown()));
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

fn pipe_or_error(error: io::Error) -> Result<Ended, TraceError> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Ok(Ended::PipeClosed)
    } else {
        Err(TraceError::Output(error))
    }
}

/// The signals that a run listens to.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    ask: Signal,
}

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The last report.
    End,
    /// A snapshot.
    Snapshot,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            ask: signal(SignalKind::user_defined1())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::End,
            _ = self.terminate.recv() => Asked::End,
            _ = self.hangup.recv() => Asked::End,
            _ = self.ask.recv() => Asked::Snapshot,
        }
    }
}

/// Tells when the reading end of stdout is closed; never, if stdout is no pipe.
struct Closed {
    receiver: Option<oneshot::Receiver<()>>,
}

impl Closed {
    async fn wait(&mut self) {
        if let Some(receiver) = &mut self.receiver
            && receiver.await.is_ok()
        {
            return;
        }
        self.receiver = None;
        std::future::pending::<()>().await;
    }
}

fn watch_stdout() -> Closed {
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
