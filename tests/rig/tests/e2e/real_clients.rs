//! Other people's ways to CUDA, each against the rig's library: NVIDIA's Python bindings, a Rust crate,
//! C programs, many threads, a library that is loaded late, a pool of forked processes. Every figure is
//! compared exactly.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gputrace_test_rig::config::{Config, RIG};
use gputrace_test_rig::real::Real;
use gputrace_test_rig::scenario::{Layout, Need};
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::{Value, json};

use crate::tracer::{Program, Tracer};
use crate::{named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "real_client",
        &[
            ("a_c_program_with_the_names_of_its_call_sites", c_program),
            ("the_same_program_stripped", stripped_program),
            ("64_threads_with_exact_sums", threads),
            ("cuda_bindings_of_nvidia", bindings),
            ("cudarc", cudarc),
            ("a_pool_of_forked_processes", pool),
            ("a_library_that_is_loaded_late", late),
        ],
    )
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A rig with one GPU for one test.
struct Bench {
    layout: Layout,
    // Holds the rig; dropped after it.
    folder: tempfile::TempDir,
}

/// What a test needs, or why it cannot run here.
macro_rules! or_ignore {
    ($have:expr) => {
        match $have {
            Ok(it) => it,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        }
    };
}

impl Bench {
    fn new() -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let layout = Layout::new(
            folder.path(),
            &Config::with_gpus(1, 24 << 30),
            programs::paths()?,
        )?;
        Ok(Self { layout, folder })
    }

    fn tracer(&self, args: &[&str]) -> Result<Tracer, Failed> {
        let (libcuda, libnvml) = (self.layout.libcuda(), self.layout.libnvml());
        let named = ["--libcuda", &libcuda.to_string_lossy()].map(str::to_owned);
        let nvml = ["--nvml", &libnvml.to_string_lossy()].map(str::to_owned);
        let mut all: Vec<&str> = nvml.iter().map(String::as_str).collect();
        // Without it every copy is looked for.
        if !args.contains(&EVERY_COPY) {
            all.extend(named.iter().map(String::as_str));
        }
        all.extend(args.iter().filter(|arg| **arg != EVERY_COPY));
        Tracer::start(&all, &[(RIG, self.layout.rig().folder())])
    }

    /// A command that finds the rig and, as the loader does, its libraries.
    fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, Failed> {
        let libraries = self.layout.libcuda();
        let libraries = libraries.parent().ok_or("no folder of libraries")?;
        let mut command = Command::new(program);
        command
            .env(RIG, self.layout.rig().folder())
            .env("LD_LIBRARY_PATH", libraries);
        Ok(command)
    }

    /// Starts a client under gputrace, waits until it is done and has these figures, and lets it end.
    /// Returns its PID and the last report.
    fn traced(
        &self,
        client: &mut Command,
        figures: &[(&str, Value)],
    ) -> Result<(u32, Value), Failed> {
        let mut tracer = self.tracer(&[])?;
        let mut client = Program::start(client)?;
        require(client.line()? == "done", || "not done".to_owned())?;
        let pid = client.pid();
        tracer.snapshot(|it| differs(it, pid, figures))?;
        client.end()?;
        Ok((pid, tracer.finish()?))
    }

    /// Compiles a client, linked against the rig's library where it is to be.
    fn compile(&self, source: &str, links: bool) -> Result<PathBuf, Failed> {
        let program = self.folder.path().join(source.replace(".c", ""));
        let sources = programs::root().join("tests/clients/c");
        let mut cc = Command::new("cc");
        // Frame pointers, since that is how a stack is walked.
        cc.args([
            "-std=c11",
            "-O1",
            "-fno-omit-frame-pointer",
            "-Wall",
            "-Werror",
            "-pthread",
        ])
        .arg("-o")
        .arg(&program)
        .arg(sources.join(source));
        if links {
            cc.arg(self.layout.libcuda());
        }
        run(cc.arg("-ldl"))?;
        Ok(program)
    }
}

/// Not an argument of gputrace's: do not name the rig's library.
const EVERY_COPY: &str = "every copy";

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Result<(), Failed> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    require(output.status.success(), || {
        format!(
            "{command:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn can_trace() -> Result<(), String> {
    Need::Uprobes.missing().map_or(Ok(()), Err)
}

fn can_compile() -> Result<(), String> {
    match Command::new("cc").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("no C compiler here: cc --version does not work".to_owned()),
    }
}

fn real() -> Real {
    // The folder that cargo gives to tests lies in the target folder.
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    Real::of(temporary.parent().unwrap_or(temporary))
}

/// A number of allocations and their bytes, as reports have it.
fn amount(count: u64, bytes: u64) -> Value {
    json!({"count": count, "bytes": bytes})
}

/// The process with this PID.
fn process(report: &Value, pid: u32) -> Option<&Value> {
    report["processes"]
        .as_array()?
        .iter()
        .find(|p| p["tgid"] == pid)
}

/// In which way a process's report is not as expected: pairs of a path in it and a value.
fn differs(report: &Value, pid: u32, expected: &[(&str, Value)]) -> Option<String> {
    let Some(process) = process(report, pid) else {
        return Some(format!("process {pid} is not in the report"));
    };
    if report["losses"]["events"] != 0 {
        return Some(format!("losses: {}", report["losses"]));
    }
    let wrong: Vec<String> = expected
        .iter()
        .filter_map(|(path, value)| {
            let pointer = format!("/{}", path.replace('.', "/"));
            // Kinds that did not occur are not there.
            let found = process.pointer(&pointer).unwrap_or(&Value::Null);
            (found != value).then(|| format!("{path} is {found}, expected {value}"))
        })
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("\n"))
}

/// What the calls in the function of this name did in one kind of memory: the sum over its sites, since
/// a compiler may write a call twice.
fn calls_in(report: &Value, pid: u32, name: &str, kind: &str, figure: &str) -> Value {
    let sites = process(report, pid).and_then(|p| p["sites"].as_array());
    let (mut count, mut bytes) = (0, 0);
    for site in sites.into_iter().flatten() {
        if site["kind"] == kind && site["frames"][0]["symbol"] == name {
            count += site[figure]["count"].as_u64().unwrap_or(0);
            bytes += site[figure]["bytes"].as_u64().unwrap_or(0);
        }
    }
    amount(count, bytes)
}

/// What `client.c` allocates.
fn figures_of_c() -> Vec<(&'static str, Value)> {
    let allocated = 4 * 32 * MIB + 300 * (3 * MIB + 5 * KIB) + 100 * MIB;
    let freed = 300 * (3 * MIB + 5 * KIB);
    vec![
        (
            "memory.kinds.device.allocated",
            amount(4 + 600 + 100, allocated),
        ),
        ("memory.kinds.device.freed", amount(600, freed)),
        ("memory.kinds.device.live", amount(104, 228 * MIB)),
        ("memory.kinds.device.failed_allocations", amount(1, 1 << 40)),
        ("memory.kinds.managed.allocated", amount(2, 16 * MIB)),
        ("memory.kinds.managed.live", amount(1, 8 * MIB)),
        ("memory.kinds.pinned_host.allocated", amount(2, 4 * MIB)),
        ("memory.kinds.pinned_host.live", amount(1, 2 * MIB)),
        ("memory.live", amount(105, 236 * MIB)),
        ("memory.unknown_frees", json!(0)),
        ("contexts.live", json!(1)),
    ]
}

fn c_program() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    or_ignore!(can_compile());
    let bench = Bench::new()?;
    let program = bench.compile("client.c", true)?;
    let (pid, report) = bench.traced(&mut bench.command(&program)?, &figures_of_c())?;
    for (name, kind, allocated, live_at_exit) in [
        (
            "load_weights",
            "device",
            amount(4, 128 * MIB),
            amount(4, 128 * MIB),
        ),
        (
            "fill_cache",
            "device",
            amount(100, 100 * MIB),
            amount(100, 100 * MIB),
        ),
        (
            "stage_input",
            "managed",
            amount(2, 16 * MIB),
            amount(1, 8 * MIB),
        ),
        (
            "stage_input",
            "pinned_host",
            amount(2, 4 * MIB),
            amount(1, 2 * MIB),
        ),
    ] {
        for (figure, expected) in [("allocated", allocated), ("live_at_exit", live_at_exit)] {
            let found = calls_in(&report, pid, name, kind, figure);
            require(found == expected, || {
                format!("{name}, {kind}: {figure} is {found}, expected {expected}\n{report}")
            })?;
        }
    }
    Ok(Completion::Completed)
}

fn stripped_program() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    or_ignore!(can_compile());
    let bench = Bench::new()?;
    let program = bench.compile("client.c", true)?;
    let mut strip = Command::new("strip");
    if strip.arg("--version").output().is_err() {
        return Ok(Completion::ignored_with("no strip here"));
    }
    run(Command::new("strip").arg(&program))?;
    let (pid, report) = bench.traced(&mut bench.command(&program)?, &figures_of_c())?;
    // The sites have no names, and are the same ones: by file and offset.
    let sites = process(&report, pid)
        .and_then(|p| p["sites"].as_array())
        .cloned()
        .unwrap_or_default();
    let largest = sites
        .iter()
        .find(|site| site["allocated"] == amount(100, 100 * MIB))
        .ok_or_else(|| format!("no site with the forgotten 100 MiB: {report}"))?;
    require(
        largest["site"]
            .as_str()
            .is_some_and(|it| it.contains("client")),
        || format!("the site does not name the program's file: {largest}"),
    )?;
    for name in ["fill_cache", "load_weights"] {
        require(!report.to_string().contains(name), || {
            format!("{name} in a stripped program")
        })?;
    }
    Ok(Completion::Completed)
}

fn threads() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    or_ignore!(can_compile());
    let bench = Bench::new()?;
    let program = bench.compile("threads.c", true)?;
    let (mut all, mut kept) = ((0, 0), (0, 0));
    for thread in 0..64 {
        for call in 0..500 {
            let bytes = (thread + 1) * 512 + call;
            all = (all.0 + 1, all.1 + bytes);
            if call % 50 == 0 {
                kept = (kept.0 + 1, kept.1 + bytes);
            }
        }
    }
    let figures = [
        ("memory.allocated", amount(all.0, all.1)),
        ("memory.freed", amount(all.0 - kept.0, all.1 - kept.1)),
        ("memory.live", amount(kept.0, kept.1)),
        ("memory.unknown_frees", json!(0)),
    ];
    bench.traced(&mut bench.command(&program)?, &figures)?;
    Ok(Completion::Completed)
}

fn bindings() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    let python = or_ignore!(real().have(real().python()));
    let bench = Bench::new()?;
    let mut command = bench.command(python)?;
    command.arg(programs::root().join("tests/clients/python/bindings.py"));
    // Of virtual memory two handles are left, of which one is mapped.
    let figures = [
        ("memory.kinds.device.allocated", amount(28, 76 * MIB)),
        ("memory.kinds.device.freed", amount(21, 57 * MIB)),
        ("memory.kinds.device.live", amount(7, 19 * MIB)),
        ("memory.kinds.device.failed_allocations", amount(1, 1 << 40)),
        ("memory.kinds.vmm.allocated", amount(5, 20 * MIB)),
        ("memory.kinds.vmm.freed", amount(3, 12 * MIB)),
        ("memory.kinds.vmm.live", amount(2, 8 * MIB)),
        ("memory.vmm.mapped", amount(1, 4 * MIB)),
        ("memory.vmm.unmapped", amount(1, 4 * MIB)),
        ("memory.kinds.addresses.allocated", amount(4, 16 * MIB)),
        ("memory.kinds.addresses.live", amount(1, 4 * MIB)),
        ("memory.kinds.pinned_host.allocated", amount(6, 6 * MIB)),
        ("memory.kinds.pinned_host.live", amount(2, 2 * MIB)),
        ("memory.kinds.managed.allocated", amount(3, 15 * KIB)),
        ("memory.kinds.managed.live", amount(2, 10 * KIB)),
        ("memory.live", amount(11, 27 * MIB + 10 * KIB)),
        ("contexts.live", json!(1)),
    ];
    let (pid, report) = bench.traced(&mut command, &figures)?;
    require(
        process(&report, pid).is_some_and(|p| p["memory"]["live"] == amount(0, 0)),
        || "something is left after its end".to_owned(),
    )?;
    Ok(Completion::Completed)
}

fn cudarc() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    let program = real().cudarc();
    let manifest = programs::root().join("tests/clients/cudarc/Cargo.toml");
    let cargo = |task: &[&str]| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(task).arg("--manifest-path").arg(&manifest);
        cargo
    };
    let there = cargo(&["fetch", "--locked", "--offline"]).output()?;
    if !there.status.success() {
        return Ok(Completion::ignored_with(real().why_not(&program)));
    }
    let target = program.ancestors().nth(2).ok_or("no folder")?;
    // Frame pointers, since that is how a stack is walked.
    run(cargo(&["build", "--release", "--locked", "--offline"])
        .env("RUSTFLAGS", "-Cforce-frame-pointers=yes")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .arg("--target-dir")
        .arg(target))?;

    let bench = Bench::new()?;
    // 64 x 1 and 10 x 2 MiB, 12 MiB kept, 5 KiB on a second stream, 6 MiB without a stream.
    let figures = [
        (
            "memory.kinds.device.allocated",
            amount(77, 102 * MIB + 5 * KIB),
        ),
        ("memory.kinds.device.freed", amount(66, 70 * MIB + 5 * KIB)),
        ("memory.kinds.device.live", amount(11, 32 * MIB)),
        ("memory.kinds.managed.allocated", amount(2, 12 * MIB)),
        ("memory.kinds.managed.live", amount(1, 4 * MIB)),
        ("memory.kinds.pinned_host.allocated", amount(2, 3 * MIB)),
        ("memory.kinds.pinned_host.live", amount(1, MIB)),
        ("contexts.live", json!(1)),
    ];
    let (pid, report) = bench.traced(&mut bench.command(&program)?, &figures)?;
    // In a crate's generic function; the program's own one is the next frame or further out.
    let sites = process(&report, pid).and_then(|p| p["sites"].as_array());
    let forgotten = sites.into_iter().flatten().find(|site| {
        let frames = site["frames"].as_array().into_iter().flatten();
        let mut symbols = frames.filter_map(|frame| frame["symbol"].as_str());
        symbols.any(|symbol| symbol.contains("forgotten"))
    });
    require(
        forgotten.is_some_and(|it| it["allocated"] == amount(10, 20 * MIB)),
        || format!("the call site of what is forgotten: {forgotten:?}\n{report}"),
    )?;
    Ok(Completion::Completed)
}

fn pool() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    let python = or_ignore!(real().have(real().python()));
    let bench = Bench::new()?;
    let mut tracer = bench.tracer(&[])?;
    let mut command = bench.command(python)?;
    command.arg(programs::root().join("tests/clients/python/pool.py"));
    let mut client = Program::start(&mut command)?;
    let who: Value = serde_json::from_str(&client.line()?)?;
    let pids = |of: &str| -> Vec<u32> {
        let each = who[of].as_array().into_iter().flatten();
        each.filter_map(Value::as_u64)
            .filter_map(|pid| u32::try_from(pid).ok())
            .collect()
    };
    let (forked, spawned) = (pids("fork"), pids("spawn"));
    require((forked.len(), spawned.len()) == (4, 4), || who.to_string())?;
    let mut expected: Vec<(u32, Vec<(&str, Value)>)> = vec![(
        client.pid(),
        vec![
            ("memory.allocated", amount(5, 80 * MIB)),
            ("memory.live", amount(5, 80 * MIB)),
        ],
    )];
    for (number, pid) in (0..).zip(forked) {
        expected.push((
            pid,
            vec![
                ("memory.allocated", amount(0, 0)),
                ("memory.live", amount(0, 0)),
                (
                    "memory.failed_allocations",
                    amount(2, 2 * (number + 1) * MIB),
                ),
            ],
        ));
    }
    for (number, pid) in (0..).zip(spawned) {
        expected.push((
            pid,
            vec![
                ("memory.allocated", amount(10 + number, (10 + number) * MIB)),
                ("memory.freed", amount(number, number * MIB)),
                ("memory.live", amount(10, 10 * MIB)),
                ("memory.failed_allocations", amount(0, 0)),
            ],
        ));
    }
    tracer.snapshot(|it| {
        let wrong: Vec<String> = expected
            .iter()
            .filter_map(|(pid, figures)| {
                differs(it, *pid, figures).map(|wrong| format!("{pid}: {wrong}"))
            })
            .collect();
        (!wrong.is_empty()).then(|| wrong.join("\n"))
    })?;
    client.end()?;
    tracer.finish()?;
    Ok(Completion::Completed)
}

/// The copy appears after gputrace has started, in a folder of its own.
fn late() -> Result<Completion, Failed> {
    or_ignore!(can_trace());
    or_ignore!(can_compile());
    let bench = Bench::new()?;
    let program = bench.compile("late.c", false)?;
    let mut tracer = bench.tracer(&[EVERY_COPY])?;
    let mut client = Program::start(&mut bench.command(&program)?)?;
    client.line()?;
    let copy = bench.folder.path().join("elsewhere/libcuda.so.1");
    fs::create_dir(copy.parent().ok_or("no folder")?)?;
    fs::copy(bench.layout.libcuda(), &copy)?;
    client.tell(&copy.to_string_lossy())?;
    require(client.line()? == "loaded", || "not loaded".to_owned())?;
    let pid = client.pid();
    let shown = copy.to_string_lossy().into_owned();
    tracer.snapshot(|it| {
        let libraries = it["coverage"]["libraries"].as_array().into_iter().flatten();
        let probed = libraries.filter(|it| it["path"] == shown && !it["probed_at"].is_null());
        (probed.count() != 1).then(|| format!("{shown} is not probed once: {}", it["coverage"]))
    })?;
    client.tell("go")?;
    require(client.line()? == "done", || "not done".to_owned())?;
    tracer.snapshot(|it| {
        differs(
            it,
            pid,
            &[
                ("memory.allocated", amount(10, 20 * MIB)),
                ("memory.freed", amount(4, 8 * MIB)),
                ("memory.live", amount(6, 12 * MIB)),
            ],
        )
    })?;
    client.end()?;
    tracer.finish()?;
    Ok(Completion::Completed)
}
