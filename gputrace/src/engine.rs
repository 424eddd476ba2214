//! Live tracing: one thread that reads the ring buffer, keeps the ledger and builds reports.
//!
//! It never waits for a terminal, a pipe, the driver or a symbol table: what it has to say goes
//! into a bounded channel, what others find out comes to it as events.

use std::{
    collections::HashSet,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, SyncSender, TrySendError},
    },
    time::{Duration, Instant},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

use crate::{
    analysis::{Filter, Thresholds, report},
    clock::{self, Moment},
    event::{BootTime, Coverage, Event, Exit, ExitSource, Pid, Sighting, StackId},
    heap,
    identity::procfs::{Procfs, ProcfsError},
    ledger::{Ledger, Limits},
    recording::Recorder,
    report::{EndedBy, Report},
    sensors::bpf::{BpfError, Reader, Translator},
    symbols::Request,
};

/// Records taken from the ring buffer at once.
const BATCH: usize = 8192;
/// Longest time between two looks at the ring buffer: what waits below the wake-up mark.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the ledger is told that time has passed, and losses are read.
const TICK_EVERY: Duration = Duration::from_millis(250);
/// How often processes are looked for in /proc, in case the kernel's exit event was lost.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for a target that has ended to be gone: one that is stuck in the driver stays.
const GONE_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait at the end for names that are being looked up.
const NAMES_LIMIT: Duration = Duration::from_millis(400);

/// What the engine is to do.
#[derive(Debug)]
pub struct Settings {
    /// What to show.
    pub filter: Filter,
    /// Durations that decide verdicts.
    pub thresholds: Thresholds,
    /// Bounds on memory.
    pub limits: Limits,
    /// Say so when all of these have ended; none: never.
    pub targets: Vec<Pid>,
    /// Where to say it.
    pub targets_ended: Option<oneshot::Sender<()>>,
    /// Send events as well.
    pub send_events: bool,
    /// Keeps every event in a file.
    pub recorder: Option<Recorder>,
}

/// What is asked of the engine.
#[derive(Debug)]
pub enum Command {
    /// Something that another sensor says.
    Event(Box<Event>),
    /// Send a snapshot, in which everything is that happened before this moment.
    Snapshot {
        /// The moment; the device layer's answer that came before is not older.
        asked: BootTime,
    },
    /// Send the last report and end.
    Stop(EndedBy),
}

/// What the engine says.
#[derive(Debug)]
pub enum Output {
    /// Things that happened, in the order in which the ledger took them in.
    Events(Vec<Event>),
    /// So many events were left out since the last time.
    EventsLeftOut(u64),
    /// How things stand.
    Snapshot(Box<Report>),
    /// How things stood at the end: the last output.
    Report(Box<Report>),
}

/// Asks the engine for things; can be cloned.
#[derive(Clone, Debug)]
pub struct Control {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
    report_is_made: Arc<AtomicBool>,
}

impl Control {
    /// A control, and what the engine needs of it.
    ///
    /// # Errors
    /// Where the system has no descriptor left.
    pub fn new() -> Result<(Self, Inbox), nix::Error> {
        let (commands, receiver) = std::sync::mpsc::channel();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let report_is_made = Arc::new(AtomicBool::new(false));
        let control = Self {
            commands,
            wake: Arc::clone(&wake),
            report_is_made: Arc::clone(&report_is_made),
        };
        Ok((
            control,
            Inbox {
                receiver,
                wake,
                report_is_made,
            },
        ))
    }

    /// Whether the last report is on its way to the output, or waits for room there.
    #[must_use]
    pub fn report_is_made(&self) -> bool {
        self.report_is_made.load(Ordering::Acquire)
    }

    /// Sends a command. One that comes after the end is dropped.
    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            // A full counter wakes as well.
            let _ = self.wake.write(1);
        }
    }
}

/// The engine's end of a [`Control`].
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Command>,
    wake: Arc<EventFd>,
    report_is_made: Arc<AtomicBool>,
}

/// Live tracing.
pub struct Engine {
    reader: Reader,
    translator: Translator,
    ledger: Ledger,
    procfs: Procfs,
    settings: Settings,
    inbox: Inbox,
    output: SyncSender<Output>,
    symbols: Option<Sender<Request>>,
    pending_symbols: HashSet<StackId>,
    users: HashSet<u32>,
    pending: Vec<Event>,
    left_out: u64,
    /// When events last came faster than they were taken in; `None` once the heap was looked after.
    flooded: Option<Instant>,
    running_targets: HashSet<Pid>,
    /// When the last of them was found to have ended.
    targets_ended: Option<Instant>,
    alive: HashSet<Pid>,
}

impl Engine {
    /// An engine for programs that have been started.
    #[must_use]
    pub fn new(
        reader: Reader,
        began: Moment,
        settings: Settings,
        coverage: Coverage,
        inbox: Inbox,
        output: SyncSender<Output>,
        symbols: Sender<Request>,
    ) -> Self {
        let procfs = Procfs::default();
        let mut engine = Self {
            reader,
            translator: Translator::new(procfs.clone()),
            ledger: Ledger::new(settings.limits),
            procfs,
            running_targets: settings.targets.iter().copied().collect(),
            targets_ended: None,
            flooded: None,
            settings,
            inbox,
            output,
            symbols: Some(symbols),
            pending_symbols: HashSet::new(),
            users: HashSet::new(),
            pending: Vec::new(),
            left_out: 0,
            alive: HashSet::new(),
        };
        engine.take_in(Event::Started {
            at: began.boot,
            wall_ns: began.wall_ns,
            coverage,
        });
        engine
    }

    /// Traces until it is told to stop. Returns the reader: by then the report has been sent.
    ///
    /// # Errors
    /// Where the ring buffer cannot be read any more.
    pub fn run(mut self) -> Result<Reader, BpfError> {
        let began = Instant::now();
        let mut records = Vec::with_capacity(BATCH);
        let (mut next_tick, mut next_check) = (began, began + CHECK_EVERY);
        let ended_by = loop {
            self.reader.wait(self.inbox.wake.as_fd(), LOOK_EVERY)?;
            let mut wants_snapshot = None;
            let mut stop = None;
            // Commands first: what happened before one was sent is in the ring by now, and is
            // taken in below before the command is answered.
            let _ = self.inbox.wake.read();
            while let Ok(command) = self.inbox.receiver.try_recv() {
                match command {
                    Command::Event(event) => self.take_in(*event),
                    Command::Snapshot { asked } => wants_snapshot = Some(asked),
                    Command::Stop(by) => stop = Some(by),
                }
            }
            self.drain(&mut records)?;
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + TICK_EVERY;
                self.tick()?;
            }
            if now >= next_check {
                next_check = now + CHECK_EVERY;
                self.notice_missed_exits();
                // By then those who took events over, to record or print them, are done as well.
                if self
                    .flooded
                    .take_if(|at| now.duration_since(*at) >= CHECK_EVERY)
                    .is_some()
                {
                    heap::give_back();
                }
            }
            if let Some(by) = stop {
                break by;
            }
            self.tell_of_ended_targets(now);
            if let Some(asked) = wants_snapshot {
                self.take_in(Event::Tick { at: clock::now() });
                let snapshot = Box::new(self.report(asked, None));
                // A reader that is behind gets the next one.
                let _ = self.output.try_send(Output::Snapshot(snapshot));
            }
        };
        self.finish(&mut records, ended_by)?;
        Ok(self.reader)
    }

    /// Says when every target has ended, and is gone: the kernel tells of an end before it closes a
    /// process's files, and with them gives its memory on the GPU back.
    fn tell_of_ended_targets(&mut self, now: Instant) {
        let targets = &self.settings.targets;
        let is_told = self.settings.targets_ended.is_none();
        if is_told || targets.is_empty() || !self.running_targets.is_empty() {
            return;
        }
        let since = *self.targets_ended.get_or_insert(now);
        let are_gone = targets.iter().all(|&pid| self.is_gone(pid));
        if (are_gone || now.duration_since(since) > GONE_WITHIN)
            && let Some(tell) = self.settings.targets_ended.take()
        {
            // Nobody listens where the run is ending by another cause.
            let _ = tell.send(());
        }
    }

    fn finish(
        &mut self,
        records: &mut Vec<gputrace_ebpf::Record>,
        by: EndedBy,
    ) -> Result<(), BpfError> {
        self.drain(records)?;
        self.tick()?;
        let at = clock::now();
        self.symbols = None;
        self.wait_for_names();
        self.take_in(Event::Stopped { at, by });
        if let Some(recorder) = self.settings.recorder.take() {
            recorder.finish();
        }
        self.flush_events();
        let report = Box::new(self.report(at, Some(by)));
        self.inbox.report_is_made.store(true, Ordering::Release);
        // The writer may have gone: there is nobody to tell.
        let _ = self.output.send(Output::Report(report));
        Ok(())
    }

    fn wait_for_names(&mut self) {
        let deadline = Instant::now() + NAMES_LIMIT;
        while !self.pending_symbols.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inbox.receiver.recv_timeout(left) {
                Ok(Command::Event(event)) => self.take_in(*event),
                Ok(Command::Snapshot { .. } | Command::Stop(_)) => {}
                Err(_) => break,
            }
        }
    }

    /// Takes in what is in the ring buffer, at most as much as it holds twice: a flood must not
    /// keep everything else from being done.
    fn drain(&mut self, records: &mut Vec<gputrace_ebpf::Record>) -> Result<(), BpfError> {
        for _ in 0..32 {
            records.clear();
            let read = self.reader.drain(BATCH, records)?;
            let mut events = Vec::new();
            for record in &*records {
                self.translator
                    .translate(record, &self.reader, |event| events.push(event));
                for event in events.drain(..) {
                    self.take_in(event);
                }
            }
            self.flush_events();
            if read < BATCH {
                break;
            }
            self.flooded = Some(Instant::now());
        }
        Ok(())
    }

    fn take_in(&mut self, event: Event) {
        match &event {
            Event::Exit(exit) => {
                self.running_targets.remove(&exit.pid);
                self.alive.remove(&exit.pid);
            }
            Event::Process(seen) => {
                self.alive.insert(seen.pid);
                if seen.sighting != Sighting::Forked {
                    self.ask_for_user(seen.uid);
                }
            }
            Event::Stack { stack, pid, frames } => self.ask_for_symbols(*stack, *pid, frames),
            Event::Symbols { stack, .. } => {
                self.pending_symbols.remove(stack);
            }
            _ => {}
        }
        if let Some(recorder) = &mut self.settings.recorder {
            recorder.record(&event);
        }
        self.ledger.apply(&event);
        if self.settings.send_events {
            self.pending.push(event);
        }
    }

    /// Sends the events that have gathered; where the output is not read fast enough they are
    /// left out and counted.
    fn flush_events(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        if self.left_out > 0 {
            if self
                .output
                .try_send(Output::EventsLeftOut(self.left_out))
                .is_err()
            {
                self.left_out += self.pending.len() as u64;
                self.pending.clear();
                return;
            }
            self.left_out = 0;
        }
        let events = std::mem::take(&mut self.pending);
        if let Err(
            TrySendError::Full(Output::Events(events))
            | TrySendError::Disconnected(Output::Events(events)),
        ) = self.output.try_send(Output::Events(events))
        {
            self.left_out += events.len() as u64;
        }
    }

    fn tick(&mut self) -> Result<(), BpfError> {
        let unused = self.translator.take_unused();
        self.reader.forget_stacks(&unused);
        for loss in self.reader.new_losses()? {
            self.take_in(Translator::losses(loss));
        }
        for activity in self.reader.new_activity()? {
            self.take_in(Event::Activity(activity));
        }
        self.take_in(Event::Tick { at: clock::now() });
        if let Some(recorder) = &mut self.settings.recorder {
            recorder.tick();
        }
        Ok(())
    }

    /// The kernel's exit event may have been lost: a process that is gone from /proc has ended.
    fn notice_missed_exits(&mut self) {
        let at = clock::now();
        let gone: Vec<Pid> = self
            .alive
            .iter()
            .chain(&self.running_targets)
            .copied()
            .filter(|&pid| self.is_gone(pid))
            .collect();
        for pid in gone {
            self.translator.forget(pid);
            self.take_in(Event::Exit(Exit {
                pid,
                at,
                status: None,
                source: ExitSource::Procfs,
            }));
        }
    }

    fn is_gone(&self, pid: Pid) -> bool {
        match self.procfs.stat(pid.tgid) {
            // A leader that has exited is a zombie as long as other threads live.
            Ok(stat) => {
                stat.start_ticks != pid.start_ticks
                    || (matches!(stat.state, 'Z' | 'X') && stat.threads <= 1)
            }
            Err(ProcfsError::Gone { .. }) => true,
            Err(_) => false,
        }
    }

    fn ask_for_user(&mut self, uid: u32) {
        if self.users.insert(uid)
            && let Some(symbols) = &self.symbols
        {
            let _ = symbols.send(Request::User(uid));
        }
    }

    fn report(&self, as_of: BootTime, ended_by: Option<EndedBy>) -> Report {
        let settings = &self.settings;
        report(
            &self.ledger,
            &settings.filter,
            settings.thresholds,
            as_of,
            ended_by,
        )
    }

    /// Asks for the names of a stack's frames.
    fn ask_for_symbols(&mut self, stack: StackId, pid: Pid, frames: &[u64]) {
        let Some(symbols) = &self.symbols else { return };
        let request = Request::Stack {
            stack,
            pid,
            frames: frames.to_vec(),
            modules: self.ledger.modules(pid).to_vec(),
        };
        if symbols.send(request).is_ok() {
            self.pending_symbols.insert(stack);
        }
    }
}
