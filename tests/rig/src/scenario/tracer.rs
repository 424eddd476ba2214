//! The gputrace process under test: its start, its NDJSON output, and its end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use serde_json::Value as Json;

use super::expression::Scalar;
use super::hub::Hub;
use super::invariants::Invariants;
use super::number::Number;
use super::process::{self, Pidfd};

/// What gputrace has said so far.
#[derive(Debug, Default)]
pub struct Heard {
    /// The line that says that the probes are in place.
    pub start: Option<Arc<Json>>,
    /// The youngest snapshot.
    pub snapshot: Option<Arc<Json>>,
    /// The last report.
    pub report: Option<Arc<Json>>,
    /// Snapshots and reports that nobody has compared with the lasting expectations yet.
    pub fresh: VecDeque<Arc<Json>>,
    /// Lines of type `event`.
    pub events: u64,
    /// What was wrong with a line, whatever the scenario asks for.
    pub violations: Vec<String>,
    /// Output for people.
    pub text: String,
    /// The output has ended.
    pub ended: bool,
}

/// A running or ended gputrace.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    pidfd: Pidfd,
    status: Option<ExitStatus>,
    /// It may end without that being a failure.
    pub may_end: bool,
    stderr: PathBuf,
    ready_text: Option<String>,
    heard: Arc<Mutex<Heard>>,
}

impl Tracer {
    /// Starts it. What it prints is kept in `NAME.stdout` and `NAME.stderr` of `folder`. With a
    /// `ready_text` its output is not NDJSON but for people.
    ///
    /// # Errors
    /// The program cannot be started or the files cannot be made.
    pub fn start(
        mut command: Command,
        folder: &Path,
        name: &str,
        ready_text: Option<String>,
        hub: Arc<Hub>,
    ) -> io::Result<Self> {
        let stderr = folder.join(format!("{name}.stderr"));
        let copy = File::create(folder.join(format!("{name}.stdout")))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&stderr)?)
            .spawn()?;
        let pidfd = Pidfd::open(child.id())?;
        let heard = Arc::<Mutex<Heard>>::default();
        if let Some(output) = child.stdout.take() {
            let heard = Arc::clone(&heard);
            let is_text = ready_text.is_some();
            std::thread::Builder::new()
                .name("scenario gputrace".to_owned())
                .spawn(move || listen(output, copy, is_text, &heard, &hub))?;
        }
        Ok(Self {
            child,
            pidfd,
            status: None,
            may_end: false,
            stderr,
            ready_text,
            heard,
        })
    }

    /// Its PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether its output is for people.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.ready_text.is_some()
    }

    /// Whether its probes are in place.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.ready_text {
            Some(text) => self.stderr().contains(text),
            None => self.heard().start.is_some(),
        }
    }

    /// What it has said so far, for as long as the guard lives.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.pidfd.signal(signal)
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// What it has written on standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// One of its own properties, for expectations and measurements.
    ///
    /// # Errors
    /// There is no such property, or it cannot be read at this time.
    pub fn property(&self, name: &str) -> Result<Scalar, String> {
        let pid = self.pid();
        let running = |value: Option<u64>| {
            value
                .map(|value| Scalar::Number(Number::Whole(i128::from(value))))
                .ok_or_else(|| format!("gputrace's {name} cannot be read: it is not running"))
        };
        match name {
            "rss" => running(process::resident_bytes(pid)),
            "open_files" => running(process::entries(pid, "fd")),
            "threads" => running(process::entries(pid, "task")),
            "events" => running(Some(self.heard().events)),
            "stdout" => Ok(Scalar::Text(self.heard().text.clone())),
            "stderr" => Ok(Scalar::Text(self.stderr())),
            "exit_code" => match self.status.map(|status| (status, status.code())) {
                None => Err("gputrace has not ended".to_owned()),
                Some((_, Some(code))) => Ok(Scalar::Number(Number::Whole(i128::from(code)))),
                Some((status, None)) => Ok(Scalar::Text(status.to_string())),
            },
            _ => Err(format!(
                "gputrace has no property \"{name}\"; it has rss, open_files, threads, events, \
                 stdout, stderr, exit_code"
            )),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // It has already ended where this fails, and its status is taken next.
            let _ = self.pidfd.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(output: ChildStdout, mut copy: File, is_text: bool, heard: &Mutex<Heard>, hub: &Hub) {
    let mut invariants = Invariants::default();
    let mut lines = BufReader::new(output);
    let mut line = String::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        // The copy is for people who look into a failure; a full disk does not change the run.
        let _ = copy.write_all(line.as_bytes());
        if is_text {
            lock(heard).text.push_str(&line);
        } else {
            hear(&line, &mut invariants, &mut lock(heard));
        }
        hub.notify();
    }
    lock(heard).ended = true;
    hub.notify();
}

fn hear(line: &str, invariants: &mut Invariants, heard: &mut Heard) {
    let json: Json = match serde_json::from_str(line) {
        Ok(json) => json,
        Err(error) => {
            heard
                .violations
                .push(format!("a line is not JSON ({error}): {}", line.trim_end()));
            return;
        }
    };
    heard.violations.extend(invariants.check(&json));
    let kind = json["type"].as_str().unwrap_or_default().to_owned();
    let json = Arc::new(json);
    match kind.as_str() {
        "start" => heard.start = Some(json),
        "event" => heard.events += 1,
        "snapshot" => {
            heard.fresh.push_back(Arc::clone(&json));
            heard.snapshot = Some(json);
        }
        "report" => {
            heard.fresh.push_back(Arc::clone(&json));
            heard.report = Some(json);
        }
        // Already a violation.
        _ => {}
    }
}
