//! How long the report of a large recording takes, and how much memory: on an idle machine, and with
//! a loop that never rests on every core.

use std::{
    fs::File,
    mem,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::workspace::{self, Workspace};

/// Events of the recording.
const EVENTS: u64 = 10_000_000;
/// What is wanted on busy cores.
const TIME: Duration = Duration::from_secs(10);
/// And at most this many bytes.
const MEMORY: u64 = 1 << 30;

/// What one report took.
struct Taken {
    time: Duration,
    /// Most bytes that were resident.
    memory: u64,
}

/// Makes a recording and measures its report; whether it is as quick and small as is wanted.
pub fn run(workspace: &Workspace) -> anyhow::Result<bool> {
    let mut cargo = workspace.cargo();
    cargo.args([
        "build",
        "--release",
        "--package=gputrace",
        "--example=make-recording",
    ]);
    workspace::check(&mut cargo)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("large.gputrace");
    let mut make = Command::new(workspace.programs().join("examples/make-recording"));
    workspace::check(make.arg(&file).arg(EVENTS.to_string()))?;
    let size = file.metadata()?.len();

    let gputrace = workspace.programs().join("gputrace");
    let idle = measure(&gputrace, &file)?;
    let cores = thread::available_parallelism()?.get();
    let busy = on_busy_cores(cores, || measure(&gputrace, &file))?;
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let each = size as f64 / EVENTS as f64;
    println!(
        "\ngputrace report, {EVENTS} events in {} MiB ({each:.1} bytes each):\n",
        size >> 20
    );
    for (what, taken) in [
        ("idle cores".to_owned(), &idle),
        (format!("{cores} busy cores"), &busy),
    ] {
        println!(
            "{what:<14} {:>6.2} s {:>6} MiB",
            taken.time.as_secs_f64(),
            taken.memory >> 20
        );
    }
    let met = busy.time <= TIME && busy.memory <= MEMORY;
    println!(
        "at most {} s and {} MiB are wanted: {}",
        TIME.as_secs(),
        MEMORY >> 20,
        if met { "met" } else { "NOT met" }
    );
    Ok(met)
}

/// Does something while a thread for each core does nothing but use it.
fn on_busy_cores<T>(cores: usize, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn measure(gputrace: &Path, file: &Path) -> anyhow::Result<Taken> {
    let began = Instant::now();
    let child = Command::new(gputrace)
        .arg("report")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(File::create("/dev/null")?)
        .spawn()?;
    let pid = i32::try_from(child.id()).context("no PID")?;
    let mut status = 0;
    // SAFETY: all fields are numbers, for which 0 is a value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: both pointers are to what the call writes. Nobody else waits for this child.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    let time = began.elapsed();
    if waited != pid || status != 0 {
        bail!("gputrace report ended with the wait status {status}");
    }
    Ok(Taken {
        time,
        memory: u64::try_from(usage.ru_maxrss)? << 10,
    })
}
