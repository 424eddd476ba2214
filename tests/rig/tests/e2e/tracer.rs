//! A tracing gputrace as a test uses it: started, asked for snapshots, and ended with its report.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::scenarios::check_line;
use crate::{programs, require};

/// How long a figure may take to appear in a snapshot: an answer takes no longer.
const ANSWER: Duration = Duration::from_secs(10);

/// A gputrace whose probes are in place; killed when it is dropped.
pub struct Tracer {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The first line.
    pub start: Value,
    /// The events so far.
    pub events: Vec<Value>,
}

impl Tracer {
    /// Starts it, with NDJSON of snapshots on request only, and waits until its probes are in place.
    pub fn start(args: &[&str], env: &[(&str, &Path)]) -> Result<Self, Failed> {
        let mut command = Command::new(&programs::paths()?.gputrace);
        command
            .args(["--json", "--interval", "1h"])
            .args(args)
            .env_remove("GPUTRACE_LIBCUDA")
            .env_remove("GPUTRACE_NVML")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut tracer = Self {
            child,
            output: BufReader::new(output),
            start: Value::Null,
            events: Vec::new(),
        };
        tracer.start = tracer.next()?;
        require(tracer.start["type"] == "start", || {
            format!("the first line is {}", tracer.start)
        })?;
        Ok(tracer)
    }

    /// Asks for snapshots until one is as wanted; `wrong` says in which way it is not. Returns it.
    pub fn snapshot(&mut self, wrong: impl Fn(&Value) -> Option<String>) -> Result<Value, Failed> {
        let began = Instant::now();
        loop {
            self.signal(Signal::SIGUSR1)?;
            let snapshot = self.until("snapshot")?;
            let Some(wrong) = wrong(&snapshot) else {
                return Ok(snapshot);
            };
            require(began.elapsed() < ANSWER, || {
                format!("after {} s: {wrong}\n{snapshot}", ANSWER.as_secs())
            })?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as Ctrl-C does, and returns its report; `events` holds every event then.
    pub fn finish(&mut self) -> Result<Value, Failed> {
        self.signal(Signal::SIGINT)?;
        let report = self.until("report")?;
        let status = self.child.wait()?;
        require(status.success(), || format!("gputrace ended with {status}"))?;
        Ok(report)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failed> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// The next line of this type. Events on the way are kept.
    fn until(&mut self, wanted: &str) -> Result<Value, Failed> {
        loop {
            let line = self.next()?;
            if line["type"] == wanted {
                return Ok(line);
            }
            match line["type"].as_str() {
                Some("event") => self.events.push(line),
                Some("snapshot") => {}
                other => {
                    return Err(Failed::from(format!(
                        "a line of type {other:?} instead of {wanted}"
                    )));
                }
            }
        }
    }

    /// The next line of its output, valid by the schema.
    fn next(&mut self) -> Result<Value, Failed> {
        next_line(&mut self.child, Some(&mut self.output))
    }
}

/// The next line of a gputrace's output, valid by the schema.
pub fn next_line(
    child: &mut Child,
    output: Option<&mut BufReader<ChildStdout>>,
) -> Result<Value, Failed> {
    let mut line = String::new();
    let read = match output {
        Some(output) => output.read_line(&mut line)?,
        None => 0,
    };
    if read == 0 {
        let mut stderr = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            pipe.read_to_string(&mut stderr)?;
        }
        return Err(Failed::from(format!("the output has ended: {stderr}")));
    }
    check_line(&line)?;
    Ok(serde_json::from_str(&line)?)
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // Fails where it has ended and its status was taken, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that says something on a line of its output and ends with its input; killed when it is
/// dropped.
pub struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it.
    pub fn start(command: &mut Command) -> Result<Self, Failed> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Self {
            child,
            output: BufReader::new(output),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says, without its end.
    pub fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(Failed::from(format!("the program ended with {status}")));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Tells it something, on a line of its input.
    pub fn tell(&mut self, line: &str) -> Result<(), Failed> {
        use std::io::Write as _;
        let input = self.child.stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    /// Ends its input and waits for it to end well.
    pub fn end(&mut self) -> Result<(), Failed> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        require(status.success(), || {
            format!("the program ended with {status}")
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails where it has ended and its status was taken, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
