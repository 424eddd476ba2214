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

use crate::scenarios::check_line;
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
            ("doctor_asks_470_for_addresses", || deep("470")),
            ("doctor_asks_535_for_addresses", || deep("535")),
            ("doctor_asks_550_for_addresses", || deep("550")),
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
    let (functions, missing) = (names(library, "functions"), names(library, "missing"));
    if branch == "470" {
        for name in NOT_IN_470 {
            require(missing.contains(name), || format!("{name} is not missing"))?;
        }
    }
    for name in ["cuMemAlloc_v2", "cuMemCreate", "cuLaunchKernel"] {
        require(functions.contains(name), || format!("no probe in {name}"))?;
    }
    let problems = library["missing"].as_array().into_iter().flatten();
    for entry in problems {
        let reason = entry["reason"].as_str().unwrap_or_default();
        require(reason.contains("does not have it"), || {
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
    // The report counts each function's refusals.
    let process = report["processes"]
        .as_array()
        .and_then(|all| all.iter().find(|it| it["tgid"] == pid))
        .ok_or("the process is not in the report")?;
    for name in &functions {
        let result = expected[name.as_str()].result;
        let failures = process["failures"].as_array().into_iter().flatten();
        let failure = failures
            .filter(|it| it["function"] == *name && it["result"] == result)
            .collect::<Vec<_>>();
        require(failure.len() == 1 && failure[0]["count"] == 2, || {
            format!("{name}, twice {result}, is reported as {failure:?}")
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

/// The device files that `cuInit` makes when root calls it; nothing here may.
fn nvidia_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| path.to_string_lossy().starts_with("/dev/nvidia"));
    found.sort();
    found
}

/// Pointers into the buffer serve everywhere: as a pointer to write to or to read from, as a handle, and
/// as a number that is recognised.
fn pointer(number: u64) -> u64 {
    BUFFER + number * 0x1000
}

/// The plan for one function.
fn plan(name: &str) -> Plan {
    let mut plan = Plan {
        arguments: (1..=6).map(pointer).collect(),
        result: NOT_INITIALIZED,
        shows: json!({}),
    };
    give_what_it_looks_at(name, &mut plan);
    plan.shows = shows(name, &mut plan.arguments);
    plan
}

/// Some functions look closer at their arguments before they look whether the driver is initialised.
fn give_what_it_looks_at(name: &str, plan: &mut Plan) {
    match name {
        // CU_MEM_ATTACH_GLOBAL; 0 is refused as an invalid value.
        "cuMemAllocManaged" => plan.arguments[2] = 1,
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
}

/// What the event of a refused call shows of its arguments, which are made recognisable for it.
fn shows(name: &str, arguments: &mut [u64]) -> Value {
    const BYTES: u64 = 0x7001;
    const DEVICE: u64 = 5;
    let hex = |number: u64| format!("{number:#x}");
    let allocate = |arguments: &mut [u64], kind: &str| {
        arguments[1] = BYTES;
        json!({"op": "allocate", "kind": kind, "bytes": BYTES, "address": null})
    };
    let free = |kind: &str, bits: u64| {
        let address = pointer(1) & (u64::MAX >> (64 - bits));
        json!({"op": "free", "kind": kind, "address": hex(address)})
    };
    let context = |op: &str| json!({"op": op, "context": hex(pointer(1))});
    match name {
        "cuMemAlloc_v2" | "cuMemAlloc" | "cuMemAllocAsync" | "cuMemAllocAsync_ptsz" => {
            allocate(arguments, "device")
        }
        "cuMemAllocFromPoolAsync" | "cuMemAllocFromPoolAsync_ptsz" => {
            let mut shows = allocate(arguments, "device");
            shows["place"] = json!({"at": "pool", "pool": hex(pointer(3))});
            shows
        }
        // Without a pitch, the rows as they were asked for.
        "cuMemAllocPitch_v2" => {
            arguments[2..=4].copy_from_slice(&[BYTES, 3, 4]);
            json!({"op": "allocate", "kind": "device", "bytes": 3 * BYTES, "address": null})
        }
        "cuMemAllocManaged" => allocate(arguments, "managed"),
        "cuMemHostAlloc" | "cuMemAllocHost_v2" | "cuMemAllocHost" => {
            allocate(arguments, "pinned_host")
        }
        "cuMemAddressReserve" => allocate(arguments, "addresses"),
        "cuMemHostRegister_v2" | "cuMemHostRegister" => {
            let mut shows = allocate(arguments, "pinned_host");
            shows["address"] = hex(pointer(1)).into();
            shows
        }
        "cuMemFree_v2" | "cuMemFreeAsync" | "cuMemFreeAsync_ptsz" => free("device", 64),
        "cuMemFree" => free("device", 32),
        "cuMemFreeHost" | "cuMemHostUnregister" => free("pinned_host", 64),
        "cuMemAddressFree" => free("addresses", 64),
        "cuArrayDestroy" | "cuMipmappedArrayDestroy" => free("array", 64),
        "cuIpcCloseMemHandle" | "cuDestroyExternalMemory" => free("alias", 64),
        "cuMemPoolDestroy" => free("pool", 64),
        "cuModuleUnload" | "cuLibraryUnload" => free("module", 64),
        "cuGraphExecDestroy" => free("graph", 64),
        "cuMemCreate" => {
            arguments[1] = BYTES;
            json!({"op": "create_handle", "bytes": BYTES, "handle": null})
        }
        "cuMemRelease" => json!({"op": "release_handle", "handle": hex(pointer(1))}),
        "cuMemMap" => {
            arguments[1..=2].copy_from_slice(&[BYTES, 0x7002]);
            json!({
                "op": "map", "address": hex(pointer(1)), "bytes": BYTES, "offset": 0x7002,
                "handle": hex(pointer(4)),
            })
        }
        "cuMemUnmap" => {
            arguments[1] = BYTES;
            json!({"op": "unmap", "address": hex(pointer(1)), "bytes": BYTES})
        }
        "cuMemExportToShareableHandle" => {
            json!({"op": "export_handle", "handle": hex(pointer(2))})
        }
        "cuIpcGetMemHandle" => json!({"op": "export_pointer", "address": hex(pointer(2))}),
        "cuCtxCreate" | "cuCtxCreate_v2" | "cuCtxCreate_v3" | "cuCtxCreate_v4" => {
            let place = match name {
                "cuCtxCreate_v3" => 4,
                "cuCtxCreate_v4" => 3,
                _ => 2,
            };
            arguments[place] = DEVICE;
            json!({"op": "create_context", "device": DEVICE, "context": null})
        }
        "cuCtxDestroy" | "cuCtxDestroy_v2" | "cuGreenCtxDestroy" => context("destroy_context"),
        "cuCtxSetCurrent" => context("set_context"),
        "cuCtxPushCurrent" | "cuCtxPushCurrent_v2" => context("push_context"),
        "cuCtxPopCurrent" | "cuCtxPopCurrent_v2" => json!({"op": "pop_context"}),
        "cuDevicePrimaryCtxRetain" => {
            arguments[1] = DEVICE;
            json!({"op": "retain_primary", "device": DEVICE, "context": null})
        }
        "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxRelease_v2" => {
            arguments[0] = DEVICE;
            json!({"op": "release_primary", "device": DEVICE})
        }
        "cuDevicePrimaryCtxReset" | "cuDevicePrimaryCtxReset_v2" => {
            arguments[0] = DEVICE;
            json!({"op": "reset_primary", "device": DEVICE})
        }
        "cuGreenCtxCreate" => {
            arguments[2] = DEVICE;
            json!({"op": "create_green_context", "device": DEVICE})
        }
        name if name.starts_with("cuModuleLoad") || name.starts_with("cuLibraryLoad") => {
            json!({"op": "allocate", "kind": "module", "bytes": 0})
        }
        name if name.starts_with("cuGraphInstantiate") => {
            json!({"op": "allocate", "kind": "graph", "bytes": 0})
        }
        name if name.starts_with("cuLaunch") || name.starts_with("cuGraphLaunch") => {
            json!({"op": "activity", "activity": "launch"})
        }
        name if name.contains("Synchronize") => {
            json!({"op": "activity", "activity": "synchronization"})
        }
        name if ["cuMemcpy", "cuMemset", "cuMemPrefetch"]
            .iter()
            .any(|beginning| name.starts_with(beginning)) =>
        {
            json!({"op": "activity", "activity": "copy"})
        }
        _ => json!({}),
    }
}

/// What `doctor` prints of a library.
fn examine(library: &Path, args: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(&programs::paths()?.gputrace);
    command.args(["doctor", "--no-nvml"]).args(args);
    command.arg("--libcuda").arg(library);
    let output = command.output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// The entry of the library in what `doctor --json` prints.
fn examine_json(library: &Path, args: &[&str]) -> Result<Value, Failed> {
    let text = examine(library, &[&["--json"], args].concat())?;
    check_line(&text)?;
    let diagnosis: Value = serde_json::from_str(&text)?;
    let libraries = diagnosis["libraries"].as_array();
    require(libraries.is_some_and(|it| it.len() == 1), || text.clone())?;
    Ok(diagnosis["libraries"][0].clone())
}

fn doctor(branch: &'static str) -> Result<Completion, Failed> {
    let path = match library(branch) {
        Ok(path) => path,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let entry = examine_json(&path, &[])?;
    let functions = check_entry(branch, &entry)?;
    let missing = names(&entry, "missing");
    require(entry.get("proc_addresses").is_none(), || {
        "it was loaded without having been asked for".to_owned()
    })?;

    // People are told the same.
    let text = examine(&path, &[])?;
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

/// Every function that the library has is given by `cuGetProcAddress`, and nothing that is hidden.
fn deep(branch: &'static str) -> Result<Completion, Failed> {
    let path = match library(branch) {
        Ok(path) => path,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let devices = nvidia_devices();
    let entry = examine_json(&path, &["--deep"])?;
    let functions = names(&entry, "functions");
    let answers = &entry["proc_addresses"]["value"];
    let list = |of: &str| -> BTreeSet<String> {
        let each = answers[of].as_array().into_iter().flatten();
        each.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    require(list("given") == functions, || {
        format!("not given: {answers}")
    })?;
    require(
        answers["not_given"] == json!([]) && answers["hidden"] == json!([]),
        || answers.to_string(),
    )?;
    let text = examine(&path, &["--deep"])?;
    let given = format!("cuGetProcAddress gives {}", functions.len());
    require(text.contains(&given), || text.clone())?;
    require(nvidia_devices() == devices, || {
        "the library made a device file".to_owned()
    })?;
    eprintln!("     {} answers", answers["answers"]);
    Ok(Completion::Completed)
}
