//! The parent's side: asks the child process, and does without it when it does not answer.

use std::{ffi::OsString, io, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout},
    time::{Instant, timeout_at},
};

use super::{
    protocol::{Outcome, Reply, Request},
    sample::Sample,
};
use crate::{
    evidence::Evidence,
    identity::escape_at_most,
    sensors::child::{self, SELF},
};

/// Longest reply read. A sample of 16 devices with 1,000 processes has 2 MB.
const MAX_REPLY: usize = 64 << 20;

/// Most children that may be stuck in the driver at a time; a further one would only get stuck
/// beside them.
const MAX_STUCK: usize = 2;

/// Longest wait between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// How to run the child.
#[derive(Clone, Debug)]
pub struct NvmlOptions {
    /// The program that has [`child_main`](super::child_main); usually `/proc/self/exe`.
    pub executable: PathBuf,
    /// Its arguments, without the library.
    pub arguments: Vec<OsString>,
    /// The library to load instead of the one that the dynamic loader finds.
    pub library: Option<PathBuf>,
    /// Whether NVML stays open between samples. Quicker, but it then holds the device files all the
    /// time.
    pub keep_open: bool,
    /// How long to wait after a first failure before the child is started again; doubled with every
    /// further one, up to a minute.
    pub first_pause: Duration,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            executable: PathBuf::from(SELF),
            arguments: vec![OsString::from("nvml-child")],
            library: None,
            keep_open: false,
            first_pause: Duration::from_secs(1),
        }
    }
}

/// A way to ask NVML that always answers in time.
///
/// Needs a Tokio runtime with I/O and time. The child must be started (by the first
/// [`sample`](NvmlClient::sample)) from a thread that lives as long as the client, because the
/// kernel kills it when that thread ends.
#[derive(Debug)]
pub struct NvmlClient {
    options: NvmlOptions,
    running: Option<Running>,
    /// Children that were killed and have not ended yet: killed a moment ago, or stuck in the
    /// driver.
    abandoned: Vec<Child>,
    /// The last failure, until the next success.
    failed: Option<Failed>,
    last_request: u64,
}

#[derive(Debug)]
struct Running {
    child: Child,
    requests: ChildStdin,
    replies: ChildStdout,
    /// What was read of the next line.
    partial: Vec<u8>,
}

#[derive(Debug)]
struct Failed {
    reason: String,
    times: u32,
    next: Instant,
}

/// Why there was no reply.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("NVML did not answer within {} s; the driver may be stuck", .0.as_secs_f64())]
    Deadline(Duration),
    #[error("the process that asks NVML could not be started: {0}")]
    NotStarted(io::Error),
    #[error("the process that asks NVML ended{0}")]
    Ended(String),
    #[error("the process that asks NVML gave no proper answer: {0}")]
    Garbage(String),
    #[error("the pipe to the process that asks NVML failed: {0}")]
    Pipe(io::Error),
}

impl NvmlClient {
    /// A client that has not started its child yet.
    pub fn new(options: NvmlOptions) -> Self {
        Self {
            options,
            running: None,
            abandoned: Vec::new(),
            failed: None,
            last_request: 0,
        }
    }

    /// A client with the usual options, for a program that has
    /// [`child_main`](super::child_main) behind its argument `nvml-child`.
    pub fn start(executable: PathBuf, library: Option<PathBuf>) -> Self {
        Self::new(NvmlOptions {
            executable,
            library,
            ..NvmlOptions::default()
        })
    }

    /// Asks once, and waits for at most `deadline`. Without an answer by then, or if the child
    /// fails otherwise, the child is killed and not waited for; later calls start another one, after
    /// a pause that grows with the number of failures, until which they answer at once that the last
    /// one failed.
    ///
    /// A call that is dropped before it answers does no harm.
    pub async fn sample(&mut self, deadline: Duration) -> Evidence<Sample> {
        self.reap();
        if let Some(failed) = &self.failed
            && Instant::now() < failed.next
        {
            return Evidence::not_available(&*failed.reason);
        }
        if self.abandoned.len() >= MAX_STUCK {
            return Evidence::not_available(format!(
                "{} earlier questions to NVML are stuck in the driver",
                self.abandoned.len()
            ));
        }
        match self.ask(deadline).await {
            Ok(outcome) => {
                self.failed = None;
                match outcome {
                    Outcome::Sample(sample) => Evidence::Value(sample.checked()),
                    Outcome::Failure(reason) => {
                        Evidence::not_available(escape_at_most(reason.as_bytes(), 512))
                    }
                }
            }
            Err(failure) => self.give_up(&failure),
        }
    }

    /// The process number of the child, if one is running.
    pub fn child(&self) -> Option<u32> {
        self.running.as_ref().and_then(|running| running.child.id())
    }

    /// Takes the exit status of killed children that have ended by now.
    fn reap(&mut self) {
        self.abandoned
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    async fn ask(&mut self, limit: Duration) -> Result<Outcome, Failure> {
        let deadline = Instant::now() + limit;
        if self.running.is_none() {
            self.running = Some(start(&self.options).map_err(Failure::NotStarted)?);
        }
        let Some(running) = &mut self.running else {
            // It was just set.
            return Err(Failure::Ended(String::new()));
        };
        self.last_request += 1;
        let request = Request {
            request: self.last_request,
            keep_open: self.options.keep_open,
        };
        match timeout_at(deadline, running.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Deadline(limit)),
        }
    }

    /// Kills the child and remembers the failure.
    fn give_up(&mut self, failure: &Failure) -> Evidence<Sample> {
        if let Some(running) = self.running.take() {
            let mut child = running.child;
            // It may have ended by itself.
            let _ = child.start_kill();
            self.abandoned.push(child);
            self.reap();
        }
        let times = self.failed.as_ref().map_or(0, |failed| failed.times) + 1;
        let doubled = 2u32.saturating_pow(times - 1);
        let pause = self
            .options
            .first_pause
            .saturating_mul(doubled)
            .min(MAX_PAUSE);
        let reason = failure.to_string();
        self.failed = Some(Failed {
            reason: reason.clone(),
            times,
            next: Instant::now() + pause,
        });
        Evidence::NotAvailable(reason)
    }
}

fn start(options: &NvmlOptions) -> io::Result<Running> {
    let mut command = child::command(&options.executable);
    command.args(&options.arguments).stdin(Stdio::piped());
    if let Some(library) = &options.library {
        command.arg("--library").arg(library);
    }
    let mut child = command.spawn()?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(requests), Some(replies)) => Ok(Running {
            child,
            requests,
            replies,
            partial: Vec::new(),
        }),
        _ => Err(io::Error::other("no pipes")),
    }
}

impl Running {
    /// Sends a request and waits for its reply; replies to earlier requests, which nobody waited
    /// for, are passed over. What was read of a line stays if the call is dropped.
    async fn exchange(&mut self, request: Request) -> Result<Outcome, Failure> {
        let mut line = serde_json::to_vec(&request).map_err(|e| Failure::Garbage(e.to_string()))?;
        line.push(b'\n');
        // Shorter than what a pipe takes at once.
        if let Err(error) = self.requests.write_all(&line).await {
            return Err(match error.kind() {
                io::ErrorKind::BrokenPipe => self.ended().await,
                _ => Failure::Pipe(error),
            });
        }
        loop {
            let line = self.read_line().await?;
            let reply: Reply = serde_json::from_slice(&line).map_err(|error| {
                // Only the kind: the text of the error repeats parts of the line.
                Failure::Garbage(format!("{:?} error in its reply", error.classify()))
            })?;
            if reply.request == request.request {
                return Ok(reply.outcome);
            }
            if reply.request > request.request {
                return Err(Failure::Garbage("an answer to no question".to_owned()));
            }
        }
    }

    async fn read_line(&mut self) -> Result<Vec<u8>, Failure> {
        let mut searched = 0;
        loop {
            let fresh = &self.partial[searched..];
            if let Some(end) = fresh.iter().position(|&byte| byte == b'\n') {
                let rest = self.partial.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.partial, rest));
            }
            searched = self.partial.len();
            if searched > MAX_REPLY {
                return Err(Failure::Garbage("a line without end".to_owned()));
            }
            match self.replies.read_buf(&mut self.partial).await {
                Ok(0) => return Err(self.ended().await),
                Ok(_) => {}
                Err(error) => return Err(Failure::Pipe(error)),
            }
        }
    }

    /// How the child ended. It has closed its pipe, so that it is about to end, or in the driver.
    async fn ended(&mut self) -> Failure {
        let status = self.child.wait().await;
        Failure::Ended(status.map_or_else(|_| String::new(), |status| format!(" ({status})")))
    }
}

#[cfg(test)]
mod tests;
