//! Recordings of real runs: the report of each is what the run itself printed at its end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use libtest_mimic::{Completion, Failed, Trial};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::command::{refused, unprivileged};
use crate::tracing::{Bench, bench, until};
use crate::{named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "recordings",
        &[
            ("the_table_is_the_same", table),
            ("a_file_is_not_overwritten_unasked", overwrite),
            ("a_file_is_for_its_owner_only", owner_only),
            ("nothing_is_left_where_tracing_cannot_begin", no_remains),
            ("a_full_disk_is_told_before_tracing", full_disk),
            ("after_kill_9_it_gives_what_there_is", kill_9),
            ("a_closed_pipe_does_not_end_it", closed_pipe),
            ("what_is_no_recording_is_refused", no_recording),
        ],
    )
}

/// Flags of a trace that shape what is shown, and so are those of a report. Each takes a value.
const SHOWN: [&str; 6] = [
    "-p",
    "--comm",
    "--user",
    "--min-size",
    "--older-than",
    "--top",
];

fn report(file: &Path, args: &[&str]) -> Result<Output, Failed> {
    Ok(Command::new(&programs::paths()?.gputrace)
        .arg("report")
        .arg(file)
        .args(args)
        .stdin(Stdio::null())
        .output()?)
}

/// Compares the last report that each gputrace of a scenario printed with that of its recording.
pub fn check(folder: &Path) -> Result<(), Failed> {
    for rig in fs::read_dir(folder)? {
        for entry in fs::read_dir(rig?.path())? {
            let path = entry?.path();
            let is_output = path.extension().is_some_and(|it| it == "stdout");
            // What is for people is not recorded.
            if is_output && fs::read(&path)?.starts_with(b"{") {
                check_one(&path.with_extension("gputrace"))?;
            }
        }
    }
    Ok(())
}

fn check_one(recording: &Path) -> Result<(), Failed> {
    let arguments = fs::read_to_string(recording.with_extension("args"))?;
    let mut args = vec!["--json"];
    let mut lines = arguments.lines();
    while let Some(argument) = lines.next() {
        if SHOWN.contains(&argument) {
            args.push(argument);
            args.extend(lines.next());
        }
    }
    let output = report(recording, &args)?;
    let printed = fs::read(recording.with_extension("stdout"))?;
    let last = printed
        .split_inclusive(|&byte| byte == b'\n')
        .next_back()
        .unwrap_or_default();
    require(output.status.code() == Some(0), || {
        format!("{}: {output:?}", recording.display())
    })?;
    // One that was killed printed no report, and has none that could be compared.
    let is_report = |line: &[u8]| line.windows(15).any(|it| it == br#""type":"report""#);
    let same = output.stdout == last || states_what_was_not_written(&output.stdout);
    require(!is_report(last) || same, || {
        format!(
            "{}: the report of the recording is not that of the trace:\n{}\n{}",
            recording.display(),
            String::from_utf8_lossy(last),
            String::from_utf8_lossy(&output.stdout)
        )
    })
}

/// A flood on a busy machine may come faster than the disk takes it. Then the two reports differ, and
/// that of the recording says so.
fn states_what_was_not_written(report: &[u8]) -> bool {
    serde_json::from_slice::<Value>(report)
        .is_ok_and(|it| it["losses"]["causes"]["not_recorded"].as_u64() > Some(0))
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

/// A recording of a short run without processes, and what it printed.
fn recorded(bench: &Bench, file: &Path, args: &[&str]) -> Result<Output, Failed> {
    let file = file.to_string_lossy();
    let mut all = vec!["record", "-o", &file, "--duration", "300ms"];
    all.extend(args);
    Ok(bench.command(&all)?.output()?)
}

fn table() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let file = bench.file("table.gputrace");
    let live = recorded(&bench, &file, &["--leaks"])?;
    let stderr = String::from_utf8_lossy(&live.stderr);
    require(
        live.status.success() && stderr.contains("gputrace: recorded "),
        || format!("{}: {stderr}", live.status),
    )?;
    let later = report(&file, &[])?;
    require(
        later.stderr.is_empty() && !later.stdout.is_empty() && later.stdout == live.stdout,
        || format!("{live:?}\n{later:?}"),
    )?;
    // Without a request for a report none is printed, and the recording is as good.
    let silent = recorded(&bench, &bench.file("silent.gputrace"), &[])?;
    require(silent.status.success() && silent.stdout.is_empty(), || {
        format!("{silent:?}")
    })?;
    let later = report(&bench.file("silent.gputrace"), &["--json"])?;
    require(later.status.success() && later.stderr.is_empty(), || {
        format!("{later:?}")
    })?;
    Ok(Completion::Completed)
}

fn overwrite() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let file = bench.file("there.gputrace");
    fs::write(&file, "precious")?;
    refused(
        "a file that is there",
        &recorded(&bench, &file, &[])?,
        &["there.gputrace", "--force"],
    )?;
    require(fs::read(&file)? == b"precious", || "it was changed".into())?;
    let forced = recorded(&bench, &file, &["--force"])?;
    require(forced.status.success(), || format!("{forced:?}"))?;
    require(report(&file, &[])?.status.success(), || {
        "it is no recording".to_owned()
    })?;
    // Root must not follow what somebody else has put there.
    let link = bench.file("link.gputrace");
    std::os::unix::fs::symlink(&file, &link)?;
    refused(
        "a link",
        &recorded(&bench, &link, &["--force"])?,
        &["link.gputrace"],
    )?;
    Ok(Completion::Completed)
}

fn owner_only() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let (new, old) = (bench.file("new.gputrace"), bench.file("old.gputrace"));
    fs::write(&old, "")?;
    fs::set_permissions(&old, fs::Permissions::from_mode(0o644))?;
    for file in [new, old] {
        recorded(&bench, &file, &["--force"])?;
        let mode = fs::metadata(&file)?.permissions().mode();
        require(mode & 0o777 == 0o600, || format!("{mode:o}"))?;
    }
    Ok(Completion::Completed)
}

fn no_remains() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let file = bench.file("none.gputrace");
    let path = file.to_string_lossy();
    let output = Command::new(&programs::paths()?.gputrace)
        .args(["record", "-o", &path, "--libcuda", "/dev/null"])
        .output()?;
    refused("no library", &output, &["/dev/null"])?;
    require(!file.exists(), || "an empty file is left".to_owned())?;
    Ok(Completion::Completed)
}

fn full_disk() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let output = recorded(&bench, Path::new("/dev/full"), &[])?;
    refused("/dev/full", &output, &["/dev/full", "space"])?;
    Ok(Completion::Completed)
}

fn kill_9() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let file = bench.file("killed.gputrace");
    let path = file.to_string_lossy();
    let mut running = bench.start(&["record", "-o", &path, "--json", "--interval", "1h"])?;
    let size = || fs::metadata(&file).map_or(0, |it| it.len());
    let header = size();
    until("a block to be written", || size() > header)?;
    running.kill()?;
    let output = report(&file, &["--json"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    require(
        output.status.success() && stderr.contains("breaks off"),
        || format!("{}: {stderr}", output.status),
    )?;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    require(
        json["ended_by"] == "recording_breaks_off"
            && json["recording"]["breaks_off_at"].is_string(),
        || json.to_string(),
    )?;
    Ok(Completion::Completed)
}

fn closed_pipe() -> Result<Completion, Failed> {
    let bench = bench_or_ignore!();
    let file = bench.file("pipe.gputrace");
    let path = file.to_string_lossy();
    let mut running = bench.start(&["record", "-o", &path, "--json", "--interval", "1h"])?;
    running.close();
    running.signal(Signal::SIGINT)?;
    let (code, stderr) = running.end()?;
    require(code == Some(0) && stderr.contains("recorded"), || {
        format!("{code:?}: {stderr}")
    })?;
    let output = report(&file, &[])?;
    require(output.status.success() && output.stderr.is_empty(), || {
        format!("{output:?}")
    })?;
    Ok(Completion::Completed)
}

fn no_recording() -> Result<Completion, Failed> {
    for (file, says) in [
        ("/dev/null", "empty"),
        ("/proc/self/status", "not a recording"),
        ("/nonexistent", "No such file"),
        ("/", "directory"),
    ] {
        // Neither root nor a GPU is needed for any answer.
        let (_folder, mut command) = unprivileged(&["report", file])?;
        command.arg0("gputrace");
        refused(file, &command.output()?, &[file, says])?;
    }
    Ok(Completion::Completed)
}
