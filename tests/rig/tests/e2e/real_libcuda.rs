//! NVIDIA's own libcuda of three branches: is every wanted function that it has probed, and is every
//! call seen, however its address was come by? Nothing is initialised and no GPU is needed: each call
//! is refused by the library itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gputrace_test_rig::real::Real;
use gputrace_test_rig::scenario::Need;
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::{Value, json};

use crate::tracer::{Program, Tracer};
use crate::{named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "real_libcuda",
        &[
            ("every_call_is_seen_in_470", || every_call("470")),
            ("every_call_is_seen_in_535", || every_call("535")),
            ("every_call_is_seen_in_550", || every_call("550")),
            ("doctor_tells_where_470_is_probed", || doctor("470")),
            ("doctor_tells_where_535_is_probed", || doctor("535")),
            ("doctor_tells_where_550_is_probed", || doctor("550")),
        ],
    )
}

/// What the old branch lacks of what is wanted.
const NOT_IN_470: [&str; 9] = [
    "cuGraphInstantiateWithParams",
    "cuGraphInstantiateWithParams_ptsz",
    "cuGreenCtxCreate",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuMulticastCreate",
];

/// Where call-libcuda has a buffer for pointers.
const BUFFER: u64 = 0x1234_5670_0000;

/// What a function without `cuInit` returns.
const NOT_INITIALIZED: i64 = 3;

/// How a function is called, and what gputrace must show of it.
struct Plan {
    arguments: Vec<u64>,
    result: i64,
    /// Fields of the event.
    shows: Value,
}

/// The library of a branch by its own name, or why there is none.
pub fn library(branch: &str) -> Result<PathBuf, String> {
    // The folder that cargo gives to tests lies in the target folder.
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let real = Real::of(temporary.parent().unwrap_or(temporary));
    let link = real.have(real.libcuda(branch))?;
    fs::canonicalize(link).map_err(|error| error.to_string())
}

/// The functions of one kind in a library's entry, by name.
fn names(library: &Value, list: &str) -> BTreeSet<String> {
    let entries = library[list].as_array().into_iter().flatten();
    entries
        .filter_map(|entry| entry["function"].as_str())
        .map(str::to_owned)
        .collect()
}

/// The library's entry is as it should be: what is placed is placed well, what is missing is not there.
fn check_entry(branch: &str, library: &Value) -> Result<BTreeSet<String>, Failed> {
    for function in library["functions"].as_array().into_iter().flatten() {
        require(
            function["emulated"] == true && function["offset"] == 10,
            || format!("{function} is not probed at the jump behind the comparison"),
        )?;
    }
    let functions = names(library, "functions");
    if branch == "470" {
        for name in NOT_IN_470 {
            require(!functions.contains(name), || {
                format!("{name} is not missing")
            })?;
        }
    }
    for name in ["cuMemAlloc_v2", "cuMemFree_v2"] {
        require(functions.contains(name), || format!("no probe in {name}"))?;
    }
    let problems = library["missing"].as_array().into_iter().flatten();
    for entry in problems {
        let reason = entry["reason"].as_str().unwrap_or_default();
        require(reason.contains("no such symbol"), || {
            format!("{entry} is there, but cannot be probed")
        })?;
    }
    Ok(functions)
}

fn every_call(branch: &'static str) -> Result<Completion, Failed> {
    let path = match library(branch) {
        Ok(path) => path,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    if let Some(reason) = Need::Uprobes.missing() {
        return Ok(Completion::ignored_with(reason));
    }
    let devices = nvidia_devices();
    let text = path.to_string_lossy();
    let mut tracer = Tracer::start(&["--events", "--no-nvml", "--libcuda", &text], &[])?;
    let entry = tracer.start["coverage"]["libraries"][0].clone();
    require(entry["path"] == *text, || entry.to_string())?;
    let functions = check_entry(branch, &entry)?;

    let caller = programs::paths()?.gputrace.with_file_name("call-libcuda");
    let mut program = Program::start(Command::new(caller).arg(&path))?;
    let pid = program.pid();
    program.line()?;
    let mut expected = BTreeMap::new();
    for name in &functions {
        let plan = plan(name);
        let arguments: Vec<String> = plan.arguments.iter().map(|a| format!("{a:x}")).collect();
        for way in ["dlsym", "procaddr"] {
            program.tell(&format!("{way} {name} {}", arguments.join(" ")))?;
            let answer = program.line()?;
            require(answer == format!("result {}", plan.result), || {
                format!("{name} by {way}: {answer}, expected {}", plan.result)
            })?;
        }
        expected.insert(name.as_str(), plan);
    }
    for name in names(&entry, "missing") {
        program.tell(&format!("dlsym {name}"))?;
        let answer = program.line()?;
        require(answer == "absent", || format!("{name} is not probed"))?;
    }
    program.end()?;
    let report = tracer.finish()?;

    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for event in tracer.events.iter().filter(|e| e["pid"]["tgid"] == pid) {
        let Some(name) = event["function"].as_str() else {
            continue;
        };
        *seen.entry(name).or_default() += 1;
        let plan = expected
            .get(name)
            .ok_or_else(|| format!("{name} was not called: {event}"))?;
        require(event["outcome"] == json!({"returned": plan.result}), || {
            format!("another result than {}: {event}", plan.result)
        })?;
        for (field, value) in plan.shows.as_object().into_iter().flatten() {
            require(event[field] == *value, || {
                format!("{field} is not {value}: {event}")
            })?;
        }
    }
    for name in &functions {
        let times = seen.get(name.as_str()).copied().unwrap_or(0);
        require(times == 2, || {
            format!("{name} was called twice and seen {times} times")
        })?;
    }
    require(report["losses"]["events"] == 0, || {
        report["losses"].to_string()
    })?;
    require(nvidia_devices() == devices, || {
        "the library made a device file".to_owned()
    })?;
    eprintln!(
        "     {} functions, each seen by both ways; it lacks {}",
        functions.len(),
        names(&entry, "missing").len()
    );
    Ok(Completion::Completed)
}

/// `cuInit` as root makes them; nothing here calls it.
fn nvidia_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| path.to_string_lossy().starts_with("/dev/nvidia"));
    found.sort();
    found
}

/// Pointers into the buffer serve everywhere: as a pointer to write to or to read from, as a handle, and
/// as a number that is recognised. The functions below look closer at their arguments before they
/// look whether the driver is initialised, or show a size.
fn plan(name: &str) -> Plan {
    let pointer = |n: u64| BUFFER + n * 0x1000;
    let mut plan = Plan {
        arguments: (1..=6).map(pointer).collect(),
        result: NOT_INITIALIZED,
        shows: json!({}),
    };
    match name {
        "cuMemAlloc_v2" => {
            plan.arguments[1] = 0x7001;
            plan.shows = json!({"op": "allocate", "bytes": 0x7001, "address": null});
        }
        "cuMemFree_v2" => {
            plan.shows = json!({"op": "free", "address": format!("{:#x}", pointer(1))});
        }
        // CU_MEM_ATTACH_GLOBAL; 0 is refused as an invalid value.
        "cuMemAllocManaged" => plan.arguments[1..=2].copy_from_slice(&[0x7003, 1]),
        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag that is allowed; the handle is on the stack.
        "cuIpcOpenMemHandle" | "cuIpcOpenMemHandle_v2" => plan.arguments[1] = 1,
        "cuGraphInstantiateWithFlags" => plan.arguments[2] = 0,
        // Pointer, bytes, a location of two numbers in one register, flags.
        "cuMemPrefetchAsync_v2" | "cuMemPrefetchAsync_v2_ptsz" => {
            plan.arguments[1..=3].copy_from_slice(&[0x7004, 1, 0]);
        }
        // It looks for the event's context first: CUDA_ERROR_INVALID_CONTEXT.
        "cuEventSynchronize" => plan.result = 201,
        _ => {}
    }
    plan
}

fn doctor(branch: &'static str) -> Result<Completion, Failed> {
    let path = match library(branch) {
        Ok(path) => path,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let gputrace = || -> Result<Command, Failed> {
        let mut command = Command::new(&programs::paths()?.gputrace);
        command
            .args(["doctor", "--no-nvml", "--libcuda"])
            .arg(&path);
        Ok(command)
    };
    let output = gputrace()?.arg("--json").output()?;
    let diagnosis: Value = serde_json::from_slice(&output.stdout)?;
    let libraries = diagnosis["libraries"].as_array();
    require(libraries.is_some_and(|it| it.len() == 1), || {
        diagnosis.to_string()
    })?;
    let functions = check_entry(branch, &diagnosis["libraries"][0])?;
    let missing = names(&diagnosis["libraries"][0], "missing");

    // People are told the same.
    let output = gputrace()?.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: BTreeSet<&str> = text
        .split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
        .collect();
    for name in functions.iter().chain(&missing) {
        require(words.contains(name.as_str()), || {
            format!("{name} is not named:\n{text}")
        })?;
    }
    Ok(Completion::Completed)
}
