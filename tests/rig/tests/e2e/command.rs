//! What the command does when it is asked for something that cannot be done. None of these tests
//! sets a probe.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use libtest_mimic::{Completion, Failed, Trial};

use crate::{named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "command",
        &[
            ("a_bad_flag_is_refused_with_exit_code_2", bad_flags),
            ("no_request_is_refused_with_exit_code_2", no_request),
            ("a_pid_that_does_not_exist_is_named", no_such_pid),
            ("a_user_that_does_not_exist_is_named", no_such_user),
            ("a_library_that_cannot_be_probed_is_named", no_such_library),
            ("missing_rights_are_told_with_exit_code_2", missing_rights),
            ("doctor_starts_without_root", doctor),
            ("the_documented_schema_is_the_one_that_is_printed", schema),
            ("a_closed_pipe_ends_every_printer_quietly", closed_pipe),
            ("a_full_disk_is_told_by_every_printer", full_disk),
        ],
    )
}

/// Runs gputrace with no inherited settings of its own.
fn gputrace(args: &[&str]) -> Result<Output, Failed> {
    let mut command = Command::new(&programs::paths()?.gputrace);
    command
        .env_remove("GPUTRACE_LIBCUDA")
        .env_remove("GPUTRACE_NVML");
    Ok(command.args(args).output()?)
}

/// It ended with 2, said something about it on standard error, and nothing on standard output.
pub fn refused(what: &str, output: &Output, says: &[&str]) -> Result<(), Failed> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    require(output.status.code() == Some(2), || {
        format!("{what}: {}\n{stderr}", output.status)
    })?;
    require(output.stdout.is_empty(), || {
        format!("{what}: it printed something on stdout")
    })?;
    require(!stderr.contains("panicked"), || format!("{what}: {stderr}"))?;
    for part in says {
        require(stderr.contains(part), || {
            format!("{what}: \"{part}\" is missing in: {stderr}")
        })?;
    }
    Ok(())
}

fn bad_flags() -> Result<Completion, Failed> {
    for args in [
        &["--no-such-flag"][..],
        &["--leaks", "--interval", "soon"],
        &["--leaks", "--duration", "-3s"],
        &["--leaks", "-p", "0"],
        &["--leaks", "-p", "not-a-pid"],
        &["--leaks", "--min-size", "much"],
        &["--leaks", "--top", "-1"],
        &["--leaks", "--events"],
        &["--leaks", "no-such-command"],
    ] {
        refused(&args.join(" "), &gputrace(args)?, &["--help"])?;
    }
    Ok(Completion::Completed)
}

fn no_request() -> Result<Completion, Failed> {
    refused("no flags", &gputrace(&[])?, &["--leaks", "--json"])?;
    Ok(Completion::Completed)
}

fn no_such_pid() -> Result<Completion, Failed> {
    // PIDs are below pid_max, so this one is never used.
    let pid = fs::read_to_string("/proc/sys/kernel/pid_max")?;
    let output = gputrace(&["--leaks", "-p", pid.trim()])?;
    refused("a PID that does not exist", &output, &[pid.trim()])?;
    Ok(Completion::Completed)
}

fn no_such_user() -> Result<Completion, Failed> {
    let output = gputrace(&["--leaks", "--user", "no-such-user-here"])?;
    refused(
        "a user that does not exist",
        &output,
        &["no-such-user-here"],
    )?;
    Ok(Completion::Completed)
}

fn no_such_library() -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("libcuda.so.1");
    let missing = missing.to_string_lossy();
    let output = gputrace(&["--leaks", "--libcuda", &missing])?;
    refused("a library that is not there", &output, &[&missing])?;
    for (content, what) in [
        (&b""[..], "empty"),
        (b"\x7fELF", "cut off"),
        (b"#!/bin/sh\n", "a script"),
    ] {
        fs::write(&*missing, content)?;
        let output = gputrace(&["--leaks", "--libcuda", &missing])?;
        refused(what, &output, &[&missing])?;
    }
    Ok(Completion::Completed)
}

/// A command that is run without any rights, whoever runs the test.
pub fn unprivileged(args: &[&str]) -> Result<(tempfile::TempDir, Command), Failed> {
    /// The user nobody.
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    // The target folder may lie where nobody else may go.
    let program = folder.path().join("gputrace");
    fs::copy(&programs::paths()?.gputrace, &program)?;
    let library = folder.path().join("libcuda.so.1");
    fs::copy(&programs::paths()?.libcuda, &library)?;
    let mut command = Command::new(&program);
    command
        .args(args)
        .env("GPUTRACE_LIBCUDA", &library)
        .current_dir(folder.path());
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ok((folder, command))
}

fn missing_rights() -> Result<Completion, Failed> {
    for args in [&["--leaks"][..], &["--json"]] {
        let (_folder, mut command) = unprivileged(args)?;
        let output = command.output()?;
        refused("without rights", &output, &["root"])?;
    }
    Ok(Completion::Completed)
}

fn doctor() -> Result<Completion, Failed> {
    let (_folder, mut command) = unprivileged(&["doctor"])?;
    let output = command.output()?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    require(output.status.code().is_some_and(|code| code <= 2), || {
        format!("{}", output.status)
    })?;
    require(stdout.lines().count() > 5, || {
        format!("it says too little: {stdout}{stderr}")
    })?;
    require(!stderr.contains("panicked"), || stderr.to_string())?;
    let (_folder, mut command) = unprivileged(&["doctor", "--json"])?;
    let output = command.output()?;
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
    require(parsed.is_ok_and(|json| json.is_object()), || {
        format!(
            "not one JSON object: {}",
            String::from_utf8_lossy(&output.stdout)
        )
    })?;
    Ok(Completion::Completed)
}

fn schema() -> Result<Completion, Failed> {
    let printed = gputrace(&["schema"])?.stdout;
    let documented = fs::read(programs::root().join("docs/report.schema.json"))?;
    require(printed == documented, || {
        "docs/report.schema.json is not what 'gputrace schema' prints: write it anew".to_owned()
    })?;
    Ok(Completion::Completed)
}

/// Commands that print without tracing.
const PRINTERS: [&[&str]; 5] = [
    &["doctor"],
    &["doctor", "--json"],
    &["schema"],
    &["man"],
    &["completions", "bash"],
];

fn closed_pipe() -> Result<Completion, Failed> {
    for args in PRINTERS {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = Command::new(&programs::paths()?.gputrace);
        let output = command
            .args(args)
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        require(
            stderr.is_empty() && output.status.code().is_some_and(|code| code <= 2),
            || format!("{args:?}: {}\n{stderr}", output.status),
        )?;
    }
    Ok(Completion::Completed)
}

fn full_disk() -> Result<Completion, Failed> {
    for args in PRINTERS {
        let full = fs::File::options().write(true).open("/dev/full")?;
        let mut command = Command::new(&programs::paths()?.gputrace);
        let output = command
            .args(args)
            .stdout(full)
            .stderr(std::process::Stdio::piped())
            .output()?;
        refused(&format!("{args:?}"), &output, &["space"])?;
    }
    Ok(Completion::Completed)
}
