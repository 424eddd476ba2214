//! The parent's side: asks the child process, and does without it when it does not answer.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, timeout_at},
};

use super::{
    protocol::{Outcome, Reply, Request},
    sample::Sample,
};
use crate::{evidence::Evidence, identity::escape_at_most};

/// The running program, even if its file was replaced meanwhile.
const SELF: &str = "/proc/self/exe";

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
                let sample = match outcome {
                    Outcome::Sample(sample) => sample.checked(),
                    Outcome::Failure(reason) => Err(escape_at_most(reason.as_bytes(), 512)),
                };
                Evidence::from(sample)
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
    let mut command = Command::new(&options.executable);
    if options.executable == Path::new(SELF) {
        // For people who look at the list of processes.
        command.arg0("gputrace");
    }
    command.args(&options.arguments);
    if let Some(library) = &options.library {
        command.arg("--library").arg(library);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // A Ctrl-C on the terminal is for gputrace, which then asks for a last sample.
        .process_group(0)
        .kill_on_drop(true);
    // SAFETY: between fork and exec only this one system call is made, which is safe there.
    unsafe {
        command.pre_exec(|| {
            // Whatever gputrace has open or was given open (its output, the rings, a caller's pipe)
            // would stay open in a child that is stuck. Kernels before 5.11 refuse the flag; there
            // only what gputrace was given itself stays.
            libc::syscall(
                libc::SYS_close_range,
                3u32,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            Ok(())
        });
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
mod tests {
    use super::*;

    /// Long enough that only a real hang reaches it.
    const LONG: Duration = Duration::from_secs(60);
    /// For what never answers.
    const SHORT: Duration = Duration::from_millis(50);

    /// A child that runs a shell script, with `$n` the number of the request just read by `ask`.
    fn client(script: &str) -> NvmlClient {
        let script = format!(
            "n=0; ask() {{ IFS= read -r line || exit 0; n=$((n+1)); }}
             answer() {{ printf '%s' '{{\"request\":'\"$n\"',\"sample\":{{\"driver_version\":{{\"value\":\"1.'\"$n\"'\"}},\"devices\":[]}}}}'; echo; }}
             {script}"
        );
        NvmlClient::new(NvmlOptions {
            executable: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".into(), script.into()],
            first_pause: Duration::ZERO,
            ..NvmlOptions::default()
        })
    }

    fn version(sample: &Evidence<Sample>) -> Option<&str> {
        sample.value()?.driver_version.value().map(String::as_str)
    }

    fn reason(sample: &Evidence<Sample>) -> &str {
        sample.reason().unwrap_or_else(|| panic!("{sample:?}"))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_child_answers_again_and_again() {
        let mut client = client("while ask; do answer; done");
        assert_eq!(client.child(), None);
        assert_eq!(version(&client.sample(LONG).await), Some("1.1"));
        let child = client.child();
        assert_eq!(version(&client.sample(LONG).await), Some("1.2"));
        assert_eq!(client.child(), child);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_slow_child_is_waited_for() {
        let mut client = client("ask; sleep 0.2; answer");
        assert_eq!(version(&client.sample(LONG).await), Some("1.1"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_reply_may_come_in_pieces() {
        let mut client = client(
            "ask; answer | while IFS= read -r l; do
            printf '%s' \"${l%??????}\"; sleep 0.1; echo \"${l#\"${l%??????}\"}\"; done; ask",
        );
        assert_eq!(version(&client.sample(LONG).await), Some("1.1"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_child_that_hangs_is_killed_and_replaced() {
        // `exec`, so that no second process of the shell holds the pipe.
        let mut client = client("ask; exec sleep 600");
        let sample = client.sample(SHORT).await;
        assert!(reason(&sample).contains("did not answer within 0.05 s"));
        assert_eq!(client.child(), None);
        // It ends by the signal; its status is taken by and by.
        while !client.abandoned.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            client.reap();
        }
        assert!(!client.sample(SHORT).await.is_available());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_failure_is_followed_by_a_pause() {
        let mut client = client("exit 3");
        client.options.first_pause = LONG;
        let sample = client.sample(LONG).await;
        assert!(reason(&sample).contains("exit status: 3"), "{sample:?}");
        // Now without a child.
        client.options.executable = PathBuf::from("/nonexistent");
        assert_eq!(client.sample(LONG).await, sample);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn pauses_grow_up_to_a_limit() {
        let mut client = client("exit 3");
        client.options.first_pause = Duration::from_secs(1);
        for _ in 0..40 {
            client.give_up(&Failure::Ended(String::new()));
        }
        let failed = client.failed.as_ref().unwrap();
        assert_eq!(failed.times, 40);
        assert!(failed.next <= Instant::now() + MAX_PAUSE);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_child_that_dies_is_named_with_its_signal_and_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let flag = directory.path().join("flag");
        let flag = flag.display();
        let mut client = client(&format!(
            "ask; if [ -e {flag} ]; then n=2; answer; else : > {flag}; kill -SEGV $$; fi"
        ));
        let sample = client.sample(LONG).await;
        assert!(reason(&sample).contains("signal: 11"), "{sample:?}");
        assert_eq!(version(&client.sample(LONG).await), Some("1.2"));
        assert!(client.failed.is_none());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn garbage_is_not_believed() {
        for script in [
            "echo hello",
            "echo '{}'",
            r#"printf '\377\376\n'"#,
            "n=7; answer",
            r#"echo '{"request":1,"sample":{"driver_version":{"value":1},"devices":[]}}'"#,
        ] {
            let mut client = client(&format!("ask; {script}; ask"));
            let sample = client.sample(LONG).await;
            assert!(!sample.is_available(), "{script}");
            assert_eq!(client.child(), None);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_reason_from_the_child_is_passed_on_and_keeps_it() {
        let mut client = client(
            r#"while ask; do echo '{"request":'"$n"',"failure":"no driver\u001b[2J"}'; done"#,
        );
        let sample = client.sample(LONG).await;
        assert_eq!(reason(&sample), r"no driver\x1b[2J");
        let child = client.child();
        assert!(child.is_some());
        client.sample(LONG).await;
        assert_eq!(client.child(), child);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_that_nobody_waited_for_is_passed_over() {
        let mut client = client("ask; ask; n=1; answer; n=2; answer; ask");
        assert!(
            timeout_at(Instant::now() + SHORT, client.sample(LONG))
                .await
                .is_err()
        );
        assert_eq!(version(&client.sample(LONG).await), Some("1.2"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_program_that_is_not_there_is_a_reason() {
        let mut client = client("");
        client.options.executable = PathBuf::from("/nonexistent/gputrace");
        let sample = client.sample(LONG).await;
        assert!(reason(&sample).contains("could not be started"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn stuck_children_are_not_joined_by_more() {
        let mut client = client("while ask; do answer; done");
        for _ in 0..MAX_STUCK {
            // Processes that do not end are to the client as if the driver kept them.
            let child = Command::new("sleep").arg("600").kill_on_drop(true).spawn();
            client.abandoned.push(child.unwrap());
        }
        let sample = client.sample(LONG).await;
        assert!(reason(&sample).contains("stuck in the driver"));
        client.abandoned.pop();
        assert!(client.sample(LONG).await.is_available());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_child_inherits_nothing_else() {
        // A file without close-on-exec, as a caller may have passed one to gputrace.
        let file = tempfile::tempfile().unwrap();
        let plain = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_DUPFD(3)).unwrap();
        let inherited = std::fs::read_link(format!("/proc/self/fd/{plain}")).unwrap();
        let mut client = client("ask; answer; ask");
        assert!(client.sample(LONG).await.is_available());
        let child = client.child().unwrap();
        for entry in std::fs::read_dir(format!("/proc/{child}/fd")).unwrap() {
            let entry = entry.unwrap();
            assert_ne!(std::fs::read_link(entry.path()).unwrap(), inherited);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_child_ends_with_the_client() {
        let mut client = client("while ask; do answer; done");
        client.sample(LONG).await;
        let child = client.child().unwrap();
        drop(client);
        let procfs = crate::identity::procfs::Procfs::default();
        while procfs.stat(child).is_ok_and(|stat| stat.state != 'Z') {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
