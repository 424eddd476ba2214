//! `gputrace run -- CMD`: the command's status, its signals, its output, and what is seen of it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use libtest_mimic::{Completion, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::discovery::{Bench, bench_or_ignored, process};
use crate::scenarios::check_line;
use crate::{client, named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "run",
        &[
            ("the_status_is_that_of_the_command", status),
            ("what_cannot_be_probed_is_not_started", not_started),
            ("the_first_call_is_seen", first_call),
            ("descendants_are_traced_and_strangers_are_not", descendants),
            ("sigterm_is_passed_on", passed_on),
            ("ctrl_c_ends_the_command_first", interrupted),
            ("perf_events_work_as_well", perf_events),
        ],
    )
}

/// A `gputrace run` of the rig's clients.
fn run(bench: &Bench, args: &[&OsStr]) -> Result<Command, Failed> {
    let mut command = Command::new(&programs::paths()?.gputrace);
    command
        .args(["run", "--no-nvml"])
        .args(args)
        .env_remove("GPUTRACE_LIBCUDA")
        .stdin(Stdio::null());
    client::environment(&mut command, bench.layout.rig().folder());
    Ok(command)
}

/// The same with words, and to its end.
fn output(bench: &Bench, args: &[&str]) -> Result<Output, Failed> {
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    Ok(run(bench, &args)?.output()?)
}

fn expect_status(what: &str, output: &Output, code: i32) -> Result<(), Failed> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    require(output.status.code() == Some(code), || {
        format!("{what}: {}, not {code}\n{stderr}", output.status)
    })?;
    require(!stderr.contains("panicked"), || format!("{what}: {stderr}"))
}

/// The report in a file of NDJSON, every line of it valid.
fn report(file: &Path) -> Result<Value, Failed> {
    let text = fs::read_to_string(file)?;
    for line in text.lines() {
        check_line(line)?;
    }
    let last: Value = serde_json::from_str(text.lines().last().ok_or("no report")?)?;
    require(last["type"] == "report", || last["type"].to_string())?;
    Ok(last)
}

fn status() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    for (words, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 37"], 37),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["/nowhere/at/all"], 127),
        (&["no-such-command-anywhere"], 127),
        (&["/etc/passwd"], 126),
        (&["/"], 126),
    ] {
        let output = output(&bench, &[&["--"], words].concat())?;
        expect_status(&words.join(" "), &output, code)?;
        let is_report = String::from_utf8_lossy(&output.stdout).starts_with("gputrace: ");
        // There is nothing to report of a command that was not started.
        require(is_report != matches!(code, 126 | 127), || {
            format!("{words:?}: {}", String::from_utf8_lossy(&output.stdout))
        })?;
    }
    // Its output is its own.
    let file = bench.folder.path().join("report.txt");
    let name = file.to_string_lossy();
    let output = output(
        &bench,
        &["-o", &name, "sh", "-c", "echo hello; echo there >&2"],
    )?;
    expect_status("echo", &output, 0)?;
    require(output.stdout == b"hello\n", || {
        String::from_utf8_lossy(&output.stdout).into_owned()
    })?;
    require(
        String::from_utf8_lossy(&output.stderr).contains("there\n"),
        || String::from_utf8_lossy(&output.stderr).into_owned(),
    )?;
    let text = fs::read_to_string(&file)?;
    require(text.contains("the command has ended"), || text.clone())?;
    Ok(Completion::Completed)
}

fn not_started() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let mark = bench.folder.path().join("mark");
    let mark_name = mark.to_string_lossy();
    let nowhere = "/nowhere/libcuda.so.1";
    for flags in [
        &["--libcuda", nowhere][..],
        &["--no-such-flag"],
        &["-p", "1"],
        &["-o", "/nowhere/report"],
        &["--ring-size", "3"],
    ] {
        let output = output(&bench, &[flags, &["--", "touch", &mark_name]].concat())?;
        expect_status(&flags.join(" "), &output, 125)?;
        require(!mark.exists(), || {
            format!("{flags:?}: the command was started")
        })?;
        require(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            || format!("{flags:?}: nothing is said"),
        )?;
    }
    Ok(Completion::Completed)
}

/// Runs clients with NDJSON to a file.
fn traced(bench: &Bench, flags: &[&str], words: &[&OsStr]) -> Result<(Output, Value), Failed> {
    let file = bench.folder.path().join("report.json");
    let mut args = vec![OsStr::new("--json"), OsStr::new("-o"), file.as_os_str()];
    args.extend(flags.iter().map(OsStr::new));
    args.push(OsStr::new("--"));
    args.extend(words);
    let library = bench.copy("library")?;
    let folder = library.parent().ok_or("no folder")?;
    let output = run(bench, &args)?.env("LD_LIBRARY_PATH", folder).output()?;
    Ok((output, report(&file)?))
}

fn first_call() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let itself = std::env::current_exe()?;
    let words = ["pid", "load libcuda.so.1", "alloc 1048576 20", "exit 5"].map(OsStr::new);
    let command = [&[itself.as_os_str()][..], &words].concat();
    let (output, report) = traced(&bench, &[], &command)?;
    expect_status("a client", &output, 5)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let pid: u64 = stdout.lines().next().ok_or("no PID")?.parse()?;
    seen_whole(&report, pid)?;
    require(report["coverage"]["targets"][0]["tgid"] == pid, || {
        report["coverage"]["targets"].to_string()
    })?;
    Ok(Completion::Completed)
}

/// Twenty allocations of a MiB, from the first on.
fn seen_whole(report: &Value, pid: u64) -> Result<(), Failed> {
    let found = process(report, pid).ok_or_else(|| format!("{pid} is not in the report"))?;
    let allocated = &found["memory"]["allocated"];
    require(
        allocated["count"] == 20 && allocated["bytes"] == 20 << 20,
        || format!("it was seen with {allocated}"),
    )?;
    require(found["contexts"]["created"] == 1, || {
        found["contexts"].to_string()
    })?;
    require(found["closing"]["before_tracing"]["value"] == 0, || {
        found["closing"].to_string()
    })?;
    let late = &report["coverage"]["late_processes"];
    require(late.as_array().is_some_and(Vec::is_empty), || {
        late.to_string()
    })
}

fn descendants() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let itself = std::env::current_exe()?;
    // A grandchild in the background, a child, and the shell itself in the end.
    let client = "\"$0\" pid 'load libcuda.so.1' 'alloc 1048576 20'";
    let script = format!("({client}; true) & wait; {client}; exec {client}");
    let words = [
        OsStr::new("sh"),
        OsStr::new("-c"),
        OsStr::new(&script),
        itself.as_os_str(),
    ];
    // A stranger with the same copy.
    let library = bench.layout.libcuda();
    let mut stranger =
        crate::tracer::Program::start(&mut client::command(bench.layout.rig().folder())?)?;
    stranger.tell(&format!("load {}", library.display()))?;
    stranger.line()?;
    stranger.tell("alloc 4096 1")?;
    stranger.line()?;
    let (output, report) = traced(&bench, &[], &words)?;
    expect_status("a shell", &output, 0)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let pids = stdout.lines().filter(|line| line.len() < 9);
    let pids: Vec<u64> = pids.filter_map(|line| line.parse().ok()).collect();
    require(pids.len() == 3, || stdout.to_string())?;
    for pid in &pids {
        seen_whole(&report, *pid)?;
    }
    let processes = report["processes"].as_array().map_or(0, Vec::len);
    require(processes == 3, || {
        format!("{processes} processes are reported")
    })?;
    Ok(Completion::Completed)
}

/// Starts a shell script under gputrace in a process group of its own, and waits for its mark.
fn script(bench: &Bench, name: &str, script: &str) -> Result<Child, Failed> {
    let mark = bench.folder.path().join(name);
    let words = [
        "--",
        "sh",
        "-c",
        script,
        mark.to_str().ok_or("an odd path")?,
    ];
    let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
    let child = run(bench, &words)?
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    while !mark.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(child)
}

fn passed_on() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let child = script(
        &bench,
        "first",
        "trap 'exit 9' TERM; : > \"$0\"; while :; do sleep 0.05; done",
    )?;
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
    let output = child.wait_with_output()?;
    expect_status("a shell that catches SIGTERM", &output, 9)?;
    require(output.stdout.starts_with(b"gputrace: "), || {
        "no report".to_owned()
    })?;
    let child = script(&bench, "second", ": > \"$0\"; exec sleep 1000")?;
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
    let output = child.wait_with_output()?;
    expect_status("a sleep that does not", &output, 128 + 15)?;
    Ok(Completion::Completed)
}

fn interrupted() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let child = script(
        &bench,
        "ready",
        "trap 'sleep 0.3; echo bye; exit 3' INT; : > \"$0\"; while :; do sleep 0.05; done",
    )?;
    // As the terminal does: to the whole group.
    kill(Pid::from_raw(-i32::try_from(child.id())?), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    expect_status("a shell that catches SIGINT", &output, 3)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    // It has had its time, and the report comes after it.
    require(
        stdout.starts_with("bye\n") && stdout.contains("gputrace: "),
        || stdout.to_string(),
    )?;
    Ok(Completion::Completed)
}

fn perf_events() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let itself = std::env::current_exe()?;
    let words = ["pid", "load libcuda.so.1", "alloc 1048576 20"].map(OsStr::new);
    let command = [&[itself.as_os_str()][..], &words].concat();
    let (output, report) = traced(&bench, &["--attach", "perf-event"], &command)?;
    expect_status("a client", &output, 0)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    seen_whole(&report, stdout.lines().next().ok_or("no PID")?.parse()?)?;
    Ok(Completion::Completed)
}
