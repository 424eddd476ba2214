//! The command line as people and scripts meet it: through the program itself.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn gputrace(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputrace"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        // What the user has set must not decide a test.
        .env_remove("GPUTRACE_LIBCUDA")
        .env_remove("GPUTRACE_NVML")
        .env_remove("GPUTRACE_LOG")
        .env("NO_COLOR", "1");
    command
}

fn run(arguments: &[&str]) -> Output {
    gputrace(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// It could not be done: status 2, a reason on stderr, nothing on stdout.
#[track_caller]
fn assert_refused(arguments: &[&str], reasons: &[&str]) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    for reason in reasons {
        assert!(
            stderr(&output).contains(reason),
            "{arguments:?}: no '{reason}' in: {}",
            stderr(&output)
        );
    }
}

/// It was done: status 0, nothing on stderr.
#[track_caller]
fn done(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    assert_eq!(stderr(&output), "", "{arguments:?}");
    stdout(&output).to_owned()
}

#[test]
fn help_has_examples_and_exit_codes() {
    for flag in ["--help", "-h"] {
        let help = done(&[flag]);
        for text in [
            "Examples:",
            "sudo gputrace --leaks -p 4242",
            "gputrace doctor",
            "Exit status: 0 done",
            "--leak-after",
        ] {
            assert!(help.contains(text), "{flag}: no '{text}' in {help}");
        }
        assert!(!help.contains("nvml-child"), "{flag}");
    }
    assert!(done(&["doctor", "--help"]).contains("Exit status: 0 it can be traced, 2 it cannot"));
    assert!(done(&["--version"]).starts_with("gputrace "));
}

#[test]
fn what_is_not_understood_is_refused_with_a_hint() {
    assert_refused(&["--leak"], &["unexpected argument '--leak'", "--leaks"]);
    assert_refused(&["docter"], &["docter", "--help"]);
    assert_refused(
        &["--leaks", "--duration", "soon"],
        &["'soon' is not a duration", "30s"],
    );
    assert_refused(
        &["--leaks", "--min-size", "big"],
        &["'big' is not a size", "16M"],
    );
    assert_refused(&["--leaks", "--ring-size", "3M"], &["power of two"]);
    assert_refused(&["--leaks", "--events"], &["--json"]);
    assert_refused(
        &["--json", "--no-nvml", "--nvml", "/x"],
        &["--no-nvml", "--nvml"],
    );
    assert_refused(&["completions", "tcl"], &["tcl", "bash"]);
}

#[test]
fn without_anything_to_show_it_says_what_there_is() {
    assert_refused(&[], &["--leaks", "--json", "--help"]);
    assert_refused(&["--duration", "1s"], &["--leaks", "--json"]);
}

#[test]
fn targets_must_be_there() {
    assert_refused(&["--leaks", "-p", "0"], &["'0'", "PID"]);
    assert_refused(&["--leaks", "-p", "-1"], &["-1"]);
    assert_refused(&["--leaks", "-p", "4294967295"], &["no process 4294967295"]);
    assert_refused(&["--leaks", "-p", "4294967296"], &["4294967296"]);
    assert_refused(
        &["--leaks", "--user", "no such user \u{1b}[31m"],
        &[r"no user named 'no such user \x1b[31m'"],
    );
}

#[test]
fn a_library_that_cannot_be_probed_is_refused_by_its_name() {
    let nothing = "/nonexistent/libcuda.so.1";
    assert_refused(
        &["--leaks", "--libcuda", nothing],
        &[nothing, "No such file"],
    );
    assert_refused(
        &["--json", "--libcuda", "/dev/null"],
        &["/dev/null", "not a regular file"],
    );
    let shell = "/bin/sh";
    assert_refused(
        &["--json", "--libcuda", shell],
        &[shell, "cannot be probed"],
    );
}

#[test]
fn man_page_completions_and_schema_come_from_the_same_definition() {
    let man = done(&["man"]);
    assert!(
        man.contains(".TH gputrace 1") && man.contains(r"\-\-leaks"),
        "{man}"
    );
    let man = done(&["man", "run"]);
    assert!(man.contains(".TH gputrace-run 1"), "{man}");
    for (shell, text) in [
        ("bash", "complete -F _gputrace"),
        ("zsh", "#compdef gputrace"),
        ("fish", "complete -c gputrace"),
    ] {
        let script = done(&["completions", shell]);
        assert!(script.contains(text), "{shell}: {script}");
        assert!(script.contains("older-than"), "{shell}");
    }
    let schema: Value = serde_json::from_str(&done(&["schema"])).unwrap();
    assert!(
        schema["$schema"]
            .as_str()
            .unwrap()
            .contains("json-schema.org")
    );
}

const CHECKS: [&str; 15] = [
    "kernel",
    "btf",
    "privileges",
    "pid namespace",
    "lockdown",
    "sysctls",
    "programs",
    "probes",
    "uprobe events",
    "kprobes",
    "user stacks",
    "preemption",
    "driver",
    "libcuda",
    "nvml",
];

/// The text and the JSON of a doctor, which must agree.
#[track_caller]
fn assert_doctor(mut text: Command, mut json: Command) {
    let output = text.output().unwrap();
    let code = output.status.code().unwrap();
    assert!(code == 0 || code == 2, "{output:?}");
    assert_eq!(stderr(&output), "");
    for check in CHECKS {
        let line = stdout(&output).lines().find(|line| {
            line.get(9..).is_some_and(|rest| {
                rest.starts_with(check) && line.starts_with(char::is_alphabetic)
            })
        });
        assert!(line.is_some(), "no {check} in {}", stdout(&output));
    }

    let output = json.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let answer: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(answer["can_trace"], code == 0);
    let names = answer["checks"].as_array().unwrap().iter();
    let names: Vec<String> = names
        .map(|check| check["name"].as_str().unwrap().replace('_', " "))
        .collect();
    assert_eq!(names, CHECKS);
    let schema: Value = serde_json::from_str(&gputrace::schema::text().unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    if let Err(error) = validator.validate(&answer) {
        panic!("{error}: {answer:#}");
    }
}

#[test]
fn the_doctor_answers_this_user() {
    assert_doctor(gputrace(&["doctor"]), gputrace(&["doctor", "--json"]));
}

#[test]
fn the_doctor_answers_an_unprivileged_user() {
    const NOBODY: u32 = 65_534;
    let as_nobody = |arguments| {
        let mut command = gputrace(arguments);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        command
    };
    match as_nobody(&["--version"]).output() {
        Ok(output) if output.status.success() => {}
        other => {
            eprintln!("skipped: cannot run the program as another user ({other:?})");
            return;
        }
    }
    assert_doctor(as_nobody(&["doctor"]), as_nobody(&["doctor", "--json"]));
    let output = as_nobody(&["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains("sudo"), "{output:?}");
}

#[test]
fn the_doctor_looks_at_the_named_library() {
    let nothing = "/nonexistent/libcuda.so.1";
    let output = run(&["doctor", "--no-nvml", "--libcuda", nothing]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).contains(nothing), "{output:?}");
    assert!(stdout(&output).contains("because of:"), "{output:?}");
}

#[test]
fn colour_is_there_when_it_is_asked_for() {
    let output = run(&["doctor", "--no-nvml", "--color", "always"]);
    assert!(stdout(&output).contains("\x1b[32m"));
    let output = run(&["doctor", "--no-nvml"]);
    assert!(!stdout(&output).contains('\x1b'));
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    for arguments in [
        &["schema"][..],
        &["man"],
        &["completions", "zsh"],
        &["--help"],
    ] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = gputrace(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
    for arguments in [&["doctor"][..], &["doctor", "--json"]] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = gputrace(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert!(!stderr(&output).contains("panicked"), "{output:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    for arguments in [&["schema"][..], &["man"], &["doctor", "--no-nvml"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = gputrace(arguments)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains("No space left"), "{output:?}");
    }
}

#[test]
fn the_process_that_asks_nvml_ends_with_its_input() {
    let mut child = gputrace(&["nvml-child", "--library", "/nonexistent.so"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"request\":1}\n").unwrap();
    // Its answer is read before the input ends: it ends without finishing what it does.
    let mut line = String::new();
    let answers = child.stdout.take().unwrap();
    io::BufRead::read_line(&mut io::BufReader::new(answers), &mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["request"], 1);
    assert!(
        answer["failure"]
            .as_str()
            .unwrap()
            .contains("/nonexistent.so")
    );
    drop(input);
    assert!(child.wait().unwrap().success());
}
