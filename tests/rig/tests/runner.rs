//! The scenario runner against stand-ins for the actor and for gputrace: both are this program,
//! started again. What is tested is the runner alone, above all that nothing wrong passes.

#![expect(
    clippy::unwrap_used,
    reason = "a stand-in that cannot go on fails its test, which is all it is for"
)]

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use gputrace_test_rig::protocol::{Command, Connection, Failure, Hello, Message, Results};
use gputrace_test_rig::scenario::{self, Options, Outcome, Paths};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    if args.iter().any(|arg| arg == "--rig") {
        return play_actor(&args);
    }
    if args.iter().any(|arg| arg == "--libcuda") {
        return play_gputrace(&args);
    }
    let trials = CASES
        .iter()
        .map(|case| Trial::test(case.name, move || case.run().map_err(Failed::from)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A scenario and how it must end.
struct Case {
    name: &'static str,
    /// Everything but the header.
    text: &'static str,
    /// Parts of the outcome's text, in this order.
    says: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        name: "what_is_as_expected_passes",
        text: r#"
            steps = [
              { start = "P" },
              { mark = "before" },
              { as = "P", do = "alloc", bytes = "4 MiB", count = 3 },
              { query = "after", expect = [
                { process = "P", path = "memory.live.bytes", equals = "12 MiB" },
                { process = "P", path = "memory.live.bytes", equals = { tally = "P", of = "allocated_bytes" } },
                { process = "P", path = "verdict.kind", not = "leak" },
                { path = "boot_ns", at_least = { mark = "before" } },
              ] },
              { signal = "KILL", to = "P" },
              { query = "at the end", expect = [{ process = "P", absent = true }] },
              { gputrace = "end", expect = [{ path = "type", equals = "report" }] },
            ]"#,
        says: &["passed", "gputrace ended"],
    },
    Case {
        name: "a_wrong_number_fails_with_its_place",
        text: r#"
            steps = [
              { start = "P" },
              { as = "P", do = "alloc", bytes = "4 MiB" },
              { query = "q", at_most = "1s", expect = [{ process = "P", path = "memory.live.bytes", equals = "5 MiB" }] },
            ]"#,
        says: &[
            "FAILED: step 3 (line 6)",
            "waited",
            "memory.live.bytes = 5242880",
            "found 4194304",
            "kept: ",
        ],
    },
    Case {
        name: "what_must_not_be_fails_at_once",
        text: r#"
            time_limit = "5s"
            steps = [
              { start = "P" },
              { as = "P", do = "alloc", bytes = "1 GiB" },
              { query = "q", at_most = "60 min", expect = [{ process = "P", path = "verdict.kind", not = "leak" }] },
            ]"#,
        says: &["FAILED: step 3", "the query \"q\":", "found \"leak\""],
    },
    Case {
        name: "a_lasting_expectation_counts_in_every_snapshot",
        text: r#"
            always = [{ process = "P", path = "verdict.kind", not = "leak" }]
            steps = [
              { start = "P" },
              { as = "P", do = "alloc", bytes = "1 GiB" },
              { pause = "30s" },
            ]"#,
        says: &["FAILED: step 3", "must always hold", "not \"leak\""],
    },
    Case {
        name: "a_condition_is_waited_for",
        text: r#"
            steps = [
              { start = "P" },
              { as = "P", do = "loop", iterations = 1, background = true, body = [{ do = "alloc", bytes = "7 MiB" }] },
              { query = "q", until = [{ process = "P", path = "memory.live.bytes", equals = "7 MiB" }] },
              { wait = "P" },
              { query = "r", expect = [{ process = "P", sum = "memory.live.bytes", equals = { tally = "P", of = "allocated_bytes" } }] },
            ]"#,
        says: &["passed"],
    },
    Case {
        name: "a_process_that_ends_by_itself_fails",
        text: r#"
            steps = [{ start = "P" }, { as = "P", do = "set_title", title = "die" }, { pause = "30s" }]"#,
        says: &["FAILED: step", "P: "],
    },
    Case {
        name: "a_command_that_fails_is_told",
        text: r#"
            steps = [{ start = "P" }, { as = "P", do = "synchronize" }]"#,
        says: &["FAILED: step 2", "P: the step in line 3: no such thing"],
    },
    Case {
        name: "a_busy_thread_is_not_sent_more",
        text: r#"
            steps = [
              { start = "P" },
              { as = "P", do = "sleep", for = "10s", background = true },
              { as = "P", do = "init" },
            ]"#,
        says: &["FAILED: step 3", "still busy with the step in line 5"],
    },
    Case {
        name: "a_stalled_gputrace_answers_nothing_and_then_again",
        text: r#"
            steps = [
              { gputrace = "stall" },
              { pause = "300ms" },
              { gputrace = "resume" },
              { gputrace = "stall", for = "300ms" },
              { query = "q", expect = [{ path = "losses.events", equals = 0 }] },
            ]"#,
        says: &["passed"],
    },
    Case {
        name: "a_stalled_gputrace_is_a_time_out",
        text: r#"
            steps = [
              { gputrace = "stall" },
              { query = "q", at_most = "500ms", expect = [{ path = "losses.events", equals = 0 }] },
            ]"#,
        says: &["FAILED: step 2", "for a snapshot for the query \"q\""],
    },
    Case {
        name: "the_time_limit_holds",
        text: r#"
            time_limit = "1s"
            steps = [{ pause = "60 min" }]"#,
        says: &["FAILED: step 1", "for time to pass"],
    },
    Case {
        name: "a_broken_rule_fails_without_any_expectation",
        text: r#"
            gputrace = { args = ["--break=negative"] }
            steps = [{ pause = "10s" }]"#,
        says: &["FAILED", "broke a rule", ".given_up is negative"],
    },
    Case {
        name: "a_gputrace_that_ends_too_early_fails",
        text: r#"
            gputrace = { args = ["--break=end"] }
            steps = [{ pause = "10s" }]"#,
        says: &[
            "FAILED",
            "gputrace ended although nothing told it to",
            "it wrote:",
            "cannot go on",
        ],
    },
    Case {
        name: "a_bad_exit_code_fails",
        text: r#"
            gputrace = { args = ["--break=code"] }
            steps = []"#,
        says: &["FAILED", "gputrace ended with exit status: 2"],
    },
    Case {
        name: "a_bad_exit_code_can_be_expected",
        text: r#"
            gputrace = { args = ["--break=code"] }
            steps = [{ gputrace = "end", expect = [{ gputrace = "exit_code", equals = 2 }] }]"#,
        says: &["passed"],
    },
    Case {
        name: "a_missing_last_report_fails",
        text: r#"
            gputrace = { args = ["--break=silent"] }
            steps = []"#,
        says: &["FAILED", "ended without a last report"],
    },
    Case {
        name: "pids_reach_a_second_gputrace",
        text: r#"
            gputrace = { start = false }
            steps = [
              { start = "P" },
              { gputrace = "start", name = "second", args = ["-p", "{P}"] },
              { query = "q", of = "second", expect = [{ path = "args", contains = { pid = "P" } }] },
              { gputrace = "kill", name = "second" },
            ]"#,
        says: &["passed"],
    },
    Case {
        name: "output_for_people_can_be_looked_at",
        text: r#"
            gputrace = { ready_text = "tracing" }
            steps = [
              { gputrace = "end", expect = [
                { gputrace = "stdout", contains = "nothing leaks" },
                { gputrace = "stderr", lacks = "panicked" } ] },
            ]"#,
        says: &["passed"],
    },
    Case {
        name: "memory_is_measured",
        text: r#"
            steps = [
              { measure = "rss", name = "before" },
              { query = "q", expect = [
                { gputrace = "rss", at_most = { measured = "before", times = 10 }, at_least = 1 } ] },
            ]"#,
        says: &["passed"],
    },
    Case {
        name: "an_exit_code_of_a_process_is_compared",
        text: r#"
            steps = [
              { start = "P" },
              { as = "P", do = "exit_process", code = 3 },
              { wait = "P", for = "exit", code = 4 },
            ]"#,
        says: &["FAILED: step 3", "exit status: 3, not with code 4"],
    },
    Case {
        name: "an_unreadable_file_is_invalid",
        text: "steps = [{ start = 1 }]",
        says: &[
            "INVALID",
            "line 3: step 1: expected a string, found an integer",
        ],
    },
];

impl Case {
    fn run(&self) -> Result<(), String> {
        let this = env::current_exe().map_err(|error| error.to_string())?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("case.toml");
        let text = format!("title = \"{}\"\n{}", self.name, self.text.trim_start());
        let text = text.replace("gputrace = { ", "needs = []\ngputrace = { ");
        let text = if text.contains("needs") {
            text
        } else {
            text.replacen('\n', "\nneeds = []\n", 1)
        };
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let paths = Paths {
            gputrace: this.clone(),
            actor: this,
            // Nobody loads them here; any file will do.
            libcuda: file.clone(),
            libcudart: file.clone(),
            libnvml: file.clone(),
        };
        let options = Options {
            folder: folder.path().to_owned(),
            ..Options::new(paths)
        };
        let outcome = scenario::run_file(&file, &options);
        let said = outcome.to_string();
        let mut rest = said.as_str();
        for part in self.says {
            let Some(at) = rest.find(part) else {
                return Err(format!("\"{part}\" is missing in: {said}"));
            };
            rest = &rest[at + part.len()..];
        }
        let left = fs::read_dir(folder.path())
            .map_err(|error| error.to_string())?
            .count();
        match outcome {
            Outcome::Passed(_) if left != 1 => Err("a run that passed left its folder".to_owned()),
            _ => Ok(()),
        }
    }
}

/// An actor that counts and answers, and does nothing else.
fn play_actor(args: &[String]) -> ExitCode {
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag).unwrap();
        args[at + 1].clone()
    };
    let (rig, name) = (PathBuf::from(value("--rig")), value("--name"));
    let pid = std::process::id();
    let mut runner = Connection::new(UnixStream::connect(rig.join("control")).unwrap());
    let hello = Hello {
        actor: name.clone(),
        thread: 0,
        tgid: pid,
        tid: pid,
        parent: 0,
    };
    runner.send(&Message::Hello(hello)).unwrap();
    let mut live = 0;
    while let Ok(Some(command)) = runner.receive::<Command>() {
        let mut results = Results::default();
        let answer = match &command {
            Command::Synchronize { .. } => Message::Failed(Failure {
                message: "no such thing".to_owned(),
                results,
            }),
            Command::ExitProcess { code } => {
                runner.send(&Message::Done(results)).unwrap();
                return ExitCode::from(*code);
            }
            Command::SetTitle { title } if title == "die" => return ExitCode::FAILURE,
            Command::Sleep { duration } => {
                std::thread::sleep(Duration::from_nanos(*duration));
                Message::Done(results)
            }
            other => {
                for bytes in allocations(other) {
                    results.allocations.add(0, bytes);
                    live += bytes;
                }
                Message::Done(results)
            }
        };
        // Written whole and then renamed, so that a reader never sees half of it.
        let (new, file) = (
            rig.join(format!("{name}.new")),
            rig.join(format!("{name}.process")),
        );
        fs::write(&new, json!({ "pid": pid, "live": live }).to_string()).unwrap();
        fs::rename(&new, &file).unwrap();
        runner.send(&answer).unwrap();
    }
    ExitCode::SUCCESS
}

fn allocations(command: &Command) -> Vec<u64> {
    match command {
        Command::Alloc(alloc) => vec![alloc.bytes; usize::try_from(alloc.count).unwrap()],
        Command::Loop(body) => body
            .body
            .iter()
            .flat_map(|step| allocations(&step.command))
            .collect(),
        _ => Vec::new(),
    }
}

/// A gputrace that reports what the actors wrote down, and calls a gibibyte a leak.
fn play_gputrace(args: &[String]) -> ExitCode {
    use nix::sys::signal::{SigSet, Signal};
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.thread_block().unwrap();
    if !has("--json") {
        eprintln!("tracing");
        signals.wait().unwrap();
        println!("nothing leaks");
        return ExitCode::SUCCESS;
    }
    let line = |kind: &str| {
        let mut line = report(args);
        line["type"] = json!(kind);
        if has("--break=negative") {
            line["given_up"] = json!(-1);
        }
        println!("{line}");
    };
    println!("{}", json!({ "schema": "gputrace/1", "type": "start" }));
    if has("--break=end") {
        eprintln!("cannot go on");
        return ExitCode::from(2);
    }
    while !interrupted(&signals, Duration::from_millis(50)) {
        line("snapshot");
    }
    if !has("--break=silent") {
        line("report");
    }
    ExitCode::from(if has("--break=code") { 2 } else { 0 })
}

/// Waits for one of the signals; whether one came.
fn interrupted(signals: &nix::sys::signal::SigSet, at_most: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(at_most.subsec_nanos()),
    };
    // SAFETY: the set and the time live through the call, and no information is asked for.
    unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &raw const time) >= 0 }
}

fn report(args: &[String]) -> Value {
    let rig = PathBuf::from(env::var_os("GPUTRACE_RIG").unwrap());
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    let boot = Duration::from(now).as_nanos();
    let processes: Vec<Value> = fs::read_dir(rig)
        .unwrap()
        .filter_map(|entry| process(&entry.unwrap().path()))
        .collect();
    json!({
        "schema": "gputrace/1",
        "boot_ns": boot.to_string(),
        "args": args.iter().map(|arg| arg.parse().map_or(json!(arg), |n: u64| json!(n))).collect::<Vec<_>>(),
        "losses": { "events": 0, "first": null, "last": null, "causes": {} },
        "devices": { "not_available": "a stand-in has none" },
        "processes": processes,
    })
}

fn process(file: &Path) -> Option<Value> {
    file.extension().filter(|ending| *ending == "process")?;
    let known: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", known["pid"])).ok()?;
    let ticks = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .to_owned();
    let live = known["live"].as_u64()?;
    let amount = json!({ "count": 1, "bytes": live });
    let kind = if live >= 1 << 30 { "leak" } else { "balanced" };
    Some(json!({
        "tgid": known["pid"], "start_ticks": ticks, "losses": null, "sites": [],
        "memory": { "live": amount, "allocated": amount, "freed": { "count": 0, "bytes": 0 } },
        "verdict": { "kind": kind, "reason": "so it seems", "rule": "none" },
    }))
}
