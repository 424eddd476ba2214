//! How a tracing gputrace ends, in every way in which it can.

use std::fs::File;
use std::io::{BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gputrace_test_rig::config::{Config, RIG};
use gputrace_test_rig::scenario::{Layout, Need};
use libtest_mimic::{Completion, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::command::refused;
use crate::remains::{Code, Remains, processes_with};
use crate::tracer::next_line;
use crate::{named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "tracing",
        &[
            ("a_closed_pipe_ends_it_quietly", closed_pipe),
            ("a_full_disk_is_told_with_exit_code_2", full_disk),
            ("a_full_disk_is_told_by_the_table_as_well", full_disk_table),
            ("the_duration_ends_it_with_a_report", duration),
            ("sigterm_ends_it_with_a_report", sigterm),
            ("sigusr1_asks_for_a_snapshot", sigusr1),
            ("kill_9_leaves_nothing_behind", kill_9),
            ("a_second_one_works_beside_the_first", beside),
        ],
    )
}

/// A condition that takes longer than this will not come true.
const LIMIT: Duration = Duration::from_secs(60);

/// A rig for one test.
pub struct Bench {
    layout: Layout,
    // Holds the rig; dropped after it.
    folder: tempfile::TempDir,
}

/// Sets up a rig, or says why this machine cannot trace.
pub fn bench() -> Result<Result<Bench, Completion>, Failed> {
    if let Some(reason) = Need::Uprobes.missing() {
        return Ok(Err(Completion::ignored_with(reason)));
    }
    let folder = tempfile::tempdir()?;
    let layout = Layout::new(
        folder.path(),
        &Config::with_gpus(1, 24 << 30),
        programs::paths()?,
    )?;
    Ok(Ok(Bench { layout, folder }))
}

impl Bench {
    pub fn command(&self, args: &[&str]) -> Result<Command, Failed> {
        let mut command = Command::new(&programs::paths()?.gputrace);
        command
            .args(args)
            .arg("--libcuda")
            .arg(self.layout.libcuda())
            .arg("--nvml")
            .arg(self.layout.libnvml())
            .env(RIG, self.layout.rig().folder())
            .stdin(Stdio::null());
        Ok(command)
    }

    /// A place for a file.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Starts it and waits until its probes are in place.
    pub fn start(&self, args: &[&str]) -> Result<Running, Failed> {
        let mut child = self
            .command(args)?
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().map(BufReader::new);
        let mut running = Running { child, stdout };
        let first = running.line()?;
        require(first["type"] == "start", || {
            format!("the first line is {first}")
        })?;
        Ok(running)
    }
}

/// A gputrace; killed when it is dropped.
pub struct Running {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Running {
    pub fn signal(&self, signal: Signal) -> Result<(), Failed> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// The next line of its output, valid by the schema.
    fn line(&mut self) -> Result<Value, Failed> {
        next_line(&mut self.child, self.stdout.as_mut())
    }

    /// The last line of its output.
    fn last_line(&mut self) -> Result<Value, Failed> {
        let mut last = self.line()?;
        while last["type"] != "report" {
            last = self.line()?;
        }
        require(self.line().is_err(), || {
            "something follows the report".to_owned()
        })?;
        Ok(last)
    }

    /// Closes the reading end of its output.
    pub fn close(&mut self) {
        self.stdout = None;
    }

    /// Ends it so that it can do nothing any more.
    pub fn kill(&mut self) -> Result<(), Failed> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for its end; tells its exit code and what it wrote on standard error.
    pub fn end(&mut self) -> Result<(Option<i32>, String), Failed> {
        self.stdout = None;
        let status = self.child.wait()?;
        let mut stderr = String::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut stderr)?;
        }
        Ok((status.code(), stderr))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails where it has ended and its status was taken, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<Duration, Failed> {
    let began = Instant::now();
    while !holds() {
        require(began.elapsed() < LIMIT, || {
            format!("waited too long for {what}")
        })?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(began.elapsed())
}

/// The machine's answer where it cannot run a test, in the middle of a function.
macro_rules! bench_or_ignore {
    () => {
        match bench()? {
            Ok(bench) => bench,
            Err(ignored) => return Ok(ignored),
        }
    };
}

fn closed_pipe() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    // As `gputrace --json | head -1`: once while lines come, once while none is due.
    for interval in ["50ms", "1h"] {
        let mut running = bench.start(&["--json", "--interval", interval])?;
        let (code, stderr) = running.end()?;
        require(code == Some(0) && stderr.is_empty(), || {
            format!("{code:?}: {stderr}")
        })?;
    }
    Ok(Completion::Completed)
}

fn full(bench: &Bench, args: &[&str]) -> Result<Output, Failed> {
    let full = File::options().write(true).open("/dev/full")?;
    Ok(bench
        .command(args)?
        .stdout(full)
        .stderr(Stdio::piped())
        .output()?)
}

fn full_disk() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    refused(
        "--json",
        &full(&bench, &["--json", "--duration", "10s"])?,
        &["space"],
    )?;
    Ok(Completion::Completed)
}

fn full_disk_table() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    refused(
        "--leaks",
        &full(&bench, &["--leaks", "--duration", "1s"])?,
        &["space"],
    )?;
    Ok(Completion::Completed)
}

fn duration() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let mut running = bench.start(&["--json", "--duration", "300ms"])?;
    let report = running.last_line()?;
    require(report["ended_by"] == "duration", || {
        report["ended_by"].to_string()
    })?;
    let (code, stderr) = running.end()?;
    require(code == Some(0) && stderr.is_empty(), || {
        format!("{code:?}: {stderr}")
    })?;
    Ok(Completion::Completed)
}

fn sigterm() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let mut running = bench.start(&["--json", "--interval", "1h"])?;
    let began = Instant::now();
    running.signal(Signal::SIGTERM)?;
    let report = running.last_line()?;
    require(report["ended_by"] == "signal", || {
        report["ended_by"].to_string()
    })?;
    let (code, stderr) = running.end()?;
    eprintln!(
        "     it ended {:.2} s after SIGTERM",
        began.elapsed().as_secs_f64()
    );
    require(code == Some(0) && !stderr.contains("panicked"), || {
        format!("{code:?}: {stderr}")
    })?;
    Ok(Completion::Completed)
}

fn sigusr1() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let mut running = bench.start(&["--json", "--interval", "1h"])?;
    for _ in 0..2 {
        running.signal(Signal::SIGUSR1)?;
        let line = running.line()?;
        require(line["type"] == "snapshot", || line["type"].to_string())?;
    }
    Ok(Completion::Completed)
}

fn kill_9() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let before = Remains::now();
    let code = Code::of(&bench.layout.libcuda(), c"cuMemAlloc_v2")?;
    let original = code.bytes();
    let marker = format!("{RIG}={}", bench.layout.rig().folder().display());

    let mut running = bench.start(&["--json", "--interval", "50ms"])?;
    let line = running.line()?;
    require(line["type"] == "snapshot", || line["type"].to_string())?;
    require(code.bytes() != original, || {
        "no probe is set in a running process".to_owned()
    })?;
    require(!processes_with(&marker).is_empty(), || {
        "no process carries the mark".to_owned()
    })?;

    running.child.kill()?;
    running.child.wait()?;
    let waited = until("the breakpoints to go", || code.bytes() == original)?;
    eprintln!(
        "     its probes were gone {:.2} s after its end",
        waited.as_secs_f64()
    );
    until("its children to go", || processes_with(&marker).is_empty())?;
    let after = Remains::now();
    require(after == before, || {
        format!("before: {before:?}\nafter: {after:?}")
    })?;
    Ok(Completion::Completed)
}

fn beside() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let code = Code::of(&bench.layout.libcuda(), c"cuMemFree_v2")?;
    let original = code.bytes();
    let mut first = bench.start(&["--json", "--interval", "100ms"])?;
    let mut second = bench.start(&["--json", "--interval", "100ms"])?;
    first.signal(Signal::SIGINT)?;
    first.last_line()?;
    require(first.end()?.0 == Some(0), || {
        "the first one failed".to_owned()
    })?;
    // The end of one takes nothing from the other.
    second.line()?;
    require(code.bytes() != original, || {
        "the second one has lost its probes".to_owned()
    })?;
    second.signal(Signal::SIGINT)?;
    second.last_line()?;
    require(second.end()?.0 == Some(0), || {
        "the second one failed".to_owned()
    })?;
    until("the breakpoints to go", || code.bytes() == original)?;
    Ok(Completion::Completed)
}
