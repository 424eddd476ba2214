//! The tracers that are compared: gputrace and an equivalent bpftrace script.

use std::{
    collections::BTreeMap,
    fmt,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tempfile::NamedTempFile;

/// How the measured program is traced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tracer {
    None,
    Gputrace { stacks: bool },
    Bpftrace,
}

impl fmt::Display for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "no probes",
            Self::Gputrace { stacks: false } => "gputrace, without stacks",
            Self::Gputrace { stacks: true } => "gputrace, with stacks",
            Self::Bpftrace => "bpftrace",
        })
    }
}

/// A tracer whose probes are in place.
pub struct Running {
    tracer: Tracer,
    child: Child,
    output: BufReader<ChildStdout>,
    /// What it says on standard error, for the case that it fails.
    errors: NamedTempFile,
}

/// What a tracer says that it saw of the measured program.
pub struct Seen {
    pub allocations: u64,
    pub frees: u64,
    /// Refused calls, by function.
    pub failures: BTreeMap<String, u64>,
    /// Events that it knows it lost.
    pub lost: u64,
}

/// The same work as gputrace's pairing: arguments kept by thread from entry to return, and only what
/// succeeded is added up by process.
fn bpftrace_script(library: &Path) -> String {
    let library = library.display();
    format!(
        "uprobe:{library}:cuMemAlloc_v2 {{ @address[tid] = arg0; @size[tid] = arg1; }}
         uretprobe:{library}:cuMemAlloc_v2 /@address[tid]/ {{
             if (retval == 0) {{ @allocations[pid] = count(); @bytes[pid] = sum(@size[tid]); }}
             delete(@address[tid]); delete(@size[tid]);
         }}
         uprobe:{library}:cuMemFree_v2 {{ @freed[tid] = arg0; }}
         uretprobe:{library}:cuMemFree_v2 /@freed[tid]/ {{
             if (retval == 0) {{ @frees[pid] = count(); }}
             delete(@freed[tid]);
         }}
         interval:ms:200 {{ printf(\"ready\\n\"); }}
         END {{ clear(@address); clear(@size); clear(@freed); }}"
    )
}

impl Running {
    /// Starts it and waits until it says that it is ready. `None` for no tracer.
    pub fn start(
        tracer: Tracer,
        gputrace: &Path,
        library: &Path,
        pid: u32,
    ) -> anyhow::Result<Option<Self>> {
        let (mut command, ready) = match tracer {
            Tracer::None => return Ok(None),
            Tracer::Gputrace { stacks } => {
                let mut command = Command::new(gputrace);
                command.args(["--json", "--no-nvml", "--interval=3600s", "--libcuda"]);
                command.arg(library).arg("-p").arg(pid.to_string());
                if !stacks {
                    command.arg("--no-stacks");
                }
                (command, "\"type\":\"start\"")
            }
            Tracer::Bpftrace => {
                let mut command = Command::new("bpftrace");
                command.args(["-B", "line", "-e", &bpftrace_script(library)]);
                (command, "ready")
            }
        };
        let errors = NamedTempFile::new()?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors.reopen()?)
            .spawn()
            .context("cannot be started")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut running = Self {
            tracer,
            child,
            output,
            errors,
        };
        let mut line = String::new();
        while !line.contains(ready) {
            line.clear();
            if running.output.read_line(&mut line)? == 0 {
                bail!("ended before it was ready\n{}", running.errors());
            }
        }
        Ok(Some(running))
    }

    /// Ends it as a user would, and reads what it saw of the program.
    pub fn stop(mut self, pid: u32) -> anyhow::Result<Seen> {
        let id = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: kill takes any numbers; the child is ours and not waited for yet.
        unsafe { libc::kill(id, libc::SIGINT) };
        let lines: Vec<String> = self.output.by_ref().lines().collect::<Result<_, _>>()?;
        // Not its exit status: bpftrace complains where it cannot undo what it did not do.
        self.child.wait()?;
        let seen = match self.tracer {
            Tracer::Bpftrace => Some(Seen {
                allocations: map_entry(&lines, "allocations", pid),
                frees: map_entry(&lines, "frees", pid),
                failures: BTreeMap::new(),
                lost: 0,
            }),
            _ => lines.last().and_then(|report| gputrace_seen(report, pid)),
        };
        seen.with_context(|| format!("did not tell what it saw\n{}", self.errors()))
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.errors.path()).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value in bpftrace's `@name[pid]: value`, 0 where there is none.
fn map_entry(lines: &[String], name: &str, pid: u32) -> u64 {
    let key = format!("@{name}[{pid}]: ");
    let value = lines.iter().find_map(|line| line.strip_prefix(&key));
    value.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
}

fn gputrace_seen(report: &str, pid: u32) -> Option<Seen> {
    let report: Value = serde_json::from_str(report).ok()?;
    let process = report["processes"]
        .as_array()?
        .iter()
        .find(|p| p["tgid"] == pid)?;
    let count = |what: &str| process["memory"][what]["count"].as_u64();
    let mut failures = BTreeMap::new();
    for failure in process["failures"].as_array().into_iter().flatten() {
        let function = failure["function"].as_str()?.to_owned();
        *failures.entry(function).or_default() += failure["count"].as_u64()?;
    }
    Some(Seen {
        allocations: count("allocated")?,
        frees: count("freed")?,
        failures,
        lost: report["losses"]["events"].as_u64()?,
    })
}
