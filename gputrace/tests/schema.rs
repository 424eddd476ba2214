//! The JSON Schema: that the file in `docs/` is the generated one, and that it describes what is
//! written.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::{collections::BTreeMap, fs, path::Path};

use gputrace::{
    analysis::{Filter, Thresholds, report},
    cuda::FunctionId,
    doctor::{Check, Diagnosis, FoundLibrary, State},
    event::{
        ActivityCount, ActivitySeen, BootTime, Call, Coverage, Event, Exit, ExitSource,
        LateProcess, Library, Losses, MissingFunction, Module, NotProbed, Op, Outcome, Pid,
        ProbedFunction, ProcessSeen, Sighting, StackId,
    },
    evidence::Evidence,
    ledger::{Ledger, Limits},
    render::ndjson,
    report::{Body, EndedBy, Line, ProcessState, Report, Start},
    resource::{Activity, Place},
    schema,
    sensors::nvml::{Device, Process, ProcessKind, Sample},
};
use serde_json::{Value, json};

const SECOND: u64 = 1_000_000_000;
const STACK: StackId = StackId(7);
const PID: Pid = Pid {
    tgid: 4242,
    start_ticks: u64::MAX,
};

fn validator() -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(&schema::text().unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

#[track_caller]
fn assert_valid(validator: &jsonschema::Validator, line: &Value) {
    let errors: Vec<String> = validator
        .iter_errors(line)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{line:#}\n{}", errors.join("\n"));
}

/// What was written: each line parsed.
fn lines(written: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(written).unwrap();
    assert!(text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn library() -> Library {
    Library {
        path: "/usr/lib/libcuda.so.1".to_owned(),
        device: u64::MAX,
        inode: u64::MAX,
        probed_at: Some(BootTime(u64::MAX)),
        functions: FunctionId::all()
            .map(|function| ProbedFunction {
                function,
                offset: 10,
                emulated: true,
                placement: "je +0x18".to_owned(),
            })
            .collect(),
        missing: vec![MissingFunction {
            function: "cuMemAllocAsync".to_owned(),
            reason: "this copy does not have it".to_owned(),
        }],
    }
}

fn coverage() -> Coverage {
    Coverage {
        version: "0.1.0".to_owned(),
        kernel: "6.8.0".to_owned(),
        method: "uprobe.multi".to_owned(),
        stacks: "taken at each allocation".to_owned(),
        activity_not_counted: Some("not counted: --no-activity".to_owned()),
        targets: vec![PID],
        command: true,
        discovery: "as they are mapped".to_owned(),
        libraries: vec![library()],
        not_probed: vec![NotProbed {
            path: "/x".to_owned(),
            reason: "not an ELF file".to_owned(),
            processes: vec![u32::MAX],
        }],
        late_processes: vec![LateProcess {
            tgid: 1,
            start_ticks: u64::MAX,
            library: "/x".to_owned(),
            probed_at: BootTime(u64::MAX),
        }],
    }
}

fn device() -> Device {
    Device {
        index: 0,
        uuid: Evidence::Value("GPU-1".to_owned()),
        name: Evidence::Value("H100".to_owned()),
        pci_bus_id: Evidence::Value("00000000:01:00.0".to_owned()),
        minor: Evidence::Value(0),
        total: Evidence::Value(80 << 30),
        used: Evidence::Value(2 << 30),
        reserved: Evidence::not_available("the driver is too old"),
        free: Evidence::Value(78 << 30),
        used_includes_reserved: true,
        processes: Evidence::Value(vec![
            Process {
                pid: PID.tgid,
                used: Evidence::Value(1 << 30),
                kind: ProcessKind::Compute,
                gpu_instance: Some(1),
                compute_instance: Some(0),
            },
            Process {
                pid: 9,
                used: Evidence::not_available("the driver does not say"),
                kind: ProcessKind::Graphics,
                gpu_instance: None,
                compute_instance: None,
            },
        ]),
        processes_incomplete: vec!["MPS processes could not be read".to_owned()],
    }
}

fn call(at: u64, function: &str, op: Op) -> Event {
    Event::Call(Call {
        pid: PID,
        tid: 4243,
        function: FunctionId::by_symbol(function).unwrap(),
        enclosing: None,
        entered: BootTime(at),
        returned: BootTime(at + 1000),
        outcome: Outcome::Returned(0),
        op,
        stack: Some(STACK),
        cgroup_id: u64::MAX,
    })
}

/// Every kind of event and of call, with and without each optional part; a process that leaks.
fn events() -> Vec<Event> {
    let context = u64::MAX;
    let mut events = vec![
        Event::Started {
            at: BootTime(SECOND),
            wall_ns: 1_800_000_000 * SECOND,
            coverage: coverage(),
        },
        Event::Process(ProcessSeen {
            pid: PID,
            at: BootTime(2 * SECOND),
            started: BootTime(2 * SECOND),
            sighting: Sighting::FirstCall,
            parent: PID,
            namespace_pid: Some(7),
            uid: 1000,
            comm: "python3".to_owned(),
            cgroup: "train.scope".to_owned(),
            cgroup_id: u64::MAX,
        }),
        Event::CommandLine {
            pid: PID,
            command: "python3 train.py".to_owned(),
        },
        Event::Modules {
            pid: PID,
            modules: vec![Module {
                start: 0x7fff_0000_0000,
                end: u64::MAX,
                offset: 0x1000,
                path: "/opt/train".to_owned(),
            }],
        },
        Event::Stack {
            stack: STACK,
            pid: PID,
            frames: vec![0x7fff_0000_1234, 1],
        },
        Event::Symbols {
            stack: STACK,
            names: vec![Some("step".to_owned()), None],
        },
        Event::User {
            uid: 1000,
            name: "alice".to_owned(),
        },
    ];
    for (function, op) in [
        (
            "cuCtxCreate_v2",
            Op::CreateContext {
                device: 0,
                context: Some(context),
            },
        ),
        ("cuCtxSetCurrent", Op::SetContext { context }),
        ("cuCtxPushCurrent_v2", Op::PushContext { context }),
        ("cuCtxPopCurrent_v2", Op::PopContext),
        (
            "cuMemCreate",
            Op::CreateHandle {
                bytes: 2 << 20,
                handle: Some(9),
                place: Place::Device { ordinal: 1 },
            },
        ),
        (
            "cuMemMap",
            Op::Map {
                address: 0x5000,
                bytes: 2 << 20,
                offset: 0,
                handle: 9,
            },
        ),
        (
            "cuMemRetainAllocationHandle",
            Op::RetainHandle {
                handle: Some(9),
                address: 0x5000,
            },
        ),
        (
            "cuMemExportToShareableHandle",
            Op::ExportHandle { handle: 9 },
        ),
        ("cuMemRelease", Op::ReleaseHandle { handle: 9 }),
        (
            "cuMemUnmap",
            Op::Unmap {
                address: 0x5000,
                bytes: 2 << 20,
            },
        ),
        (
            "cuMemImportFromShareableHandle",
            Op::ImportHandle { handle: Some(10) },
        ),
        (
            "cuIpcGetMemHandle",
            Op::ExportPointer {
                address: 0x7000,
                key: Some(77),
            },
        ),
        (
            "cuIpcOpenMemHandle_v2",
            Op::OpenPointer {
                address: Some(0x8000),
                key: Some(77),
            },
        ),
        (
            "cuDeviceGetDefaultMemPool",
            Op::DevicePool {
                device: 0,
                pool: Some(11),
            },
        ),
        (
            "cuDevicePrimaryCtxRetain",
            Op::RetainPrimary {
                device: 1,
                context: Some(12),
            },
        ),
        (
            "cuDevicePrimaryCtxRelease_v2",
            Op::ReleasePrimary { device: 1 },
        ),
        ("cuDevicePrimaryCtxReset_v2", Op::ResetPrimary { device: 1 }),
        (
            "cuGreenCtxCreate",
            Op::CreateGreenContext {
                device: 0,
                green: Some(13),
            },
        ),
        (
            "cuCtxFromGreenCtx",
            Op::NameGreenContext {
                green: 13,
                context: Some(14),
            },
        ),
        (
            "cuLaunchKernel",
            Op::Activity {
                activity: Activity::Launch,
            },
        ),
        ("cuMemPoolTrimTo", Op::Other),
    ] {
        events.push(call(3 * SECOND, function, op));
    }
    for n in 0..100 {
        let op = Op::device_memory(1 << 20, Some(0x7000_0000_0000 + (n << 20)));
        events.push(call((4 + n) * SECOND, "cuMemAlloc_v2", op));
    }
    let free = Op::free(0x7000_0000_0000);
    let destroy = Op::DestroyContext { context };
    events.extend([
        call(104 * SECOND, "cuMemFree_v2", free),
        Event::Call(Call {
            pid: PID,
            tid: 4243,
            function: FunctionId::by_symbol("cuMemAlloc_v2").unwrap(),
            enclosing: FunctionId::by_symbol("cuCtxCreate_v2"),
            entered: BootTime(104 * SECOND),
            returned: BootTime(105 * SECOND),
            outcome: Outcome::NeverReturned,
            op: Op::device_memory(u64::MAX, None),
            stack: None,
            cgroup_id: 0,
        }),
        Event::Losses {
            pid: Some(PID),
            losses: Losses {
                first: Some(BootTime(SECOND)),
                last: Some(BootTime(2 * SECOND)),
                causes: BTreeMap::from([("ring_full".to_owned(), 3)]),
                allocations: 1,
                allocation_bytes: 4096,
                frees: 2,
            },
        },
        Event::Losses {
            pid: None,
            losses: Losses::default(),
        },
        Event::Activity(ActivitySeen {
            pid: PID,
            launches: ActivityCount {
                count: 5,
                failed: 1,
                latest: Some(BootTime(105 * SECOND)),
            },
            copies: ActivityCount::default(),
            synchronizations: ActivityCount::default(),
        }),
        Event::Devices {
            at: BootTime(106 * SECOND),
            sample: Evidence::Value(Sample {
                driver_version: Evidence::Value("550.163.01".to_owned()),
                devices: Evidence::Value(vec![device()]),
            }),
        },
        Event::Tick {
            at: BootTime(106 * SECOND),
        },
        call(107 * SECOND, "cuCtxDestroy_v2", destroy),
        Event::Exit(Exit {
            pid: PID,
            at: BootTime(108 * SECOND),
            status: Some(9),
            source: ExitSource::Kernel,
        }),
        Event::Devices {
            at: BootTime(109 * SECOND),
            sample: Evidence::not_available("no driver"),
        },
        Event::Library {
            at: BootTime(110 * SECOND),
            library: library(),
            processes: vec![PID],
        },
        Event::NotProbed {
            at: BootTime(110 * SECOND),
            copy: coverage().not_probed.remove(0),
        },
        Event::Stopped {
            at: BootTime(111 * SECOND),
            by: EndedBy::Signal,
        },
    ]);
    events
}

/// A number for each kind of event and call. Does not compile without one for each; then
/// [`events`] needs one, too.
fn kind(event: &Event) -> usize {
    match event {
        Event::Started { .. } => 0,
        Event::Process(_) => 1,
        Event::CommandLine { .. } => 2,
        Event::Modules { .. } => 3,
        Event::Stack { .. } => 4,
        Event::Symbols { .. } => 5,
        Event::User { .. } => 6,
        Event::Exit(_) => 7,
        Event::Losses { .. } => 8,
        Event::Devices { .. } => 9,
        Event::Tick { .. } => 10,
        Event::Call(call) => match call.op {
            Op::Allocate { .. } => 11,
            Op::Free { .. } => 12,
            Op::CreateContext { .. } => 13,
            Op::DestroyContext { .. } => 14,
            Op::SetContext { .. } => 15,
            Op::PushContext { .. } => 16,
            Op::PopContext => 17,
            Op::CreateHandle { .. } => 18,
            Op::ReleaseHandle { .. } => 19,
            Op::RetainHandle { .. } => 20,
            Op::Map { .. } => 21,
            Op::Unmap { .. } => 22,
            Op::ExportHandle { .. } => 23,
            Op::ImportHandle { .. } => 24,
            Op::ExportPointer { .. } => 25,
            Op::OpenPointer { .. } => 26,
            Op::DevicePool { .. } => 27,
            Op::RetainPrimary { .. } => 28,
            Op::ReleasePrimary { .. } => 29,
            Op::ResetPrimary { .. } => 30,
            Op::CreateGreenContext { .. } => 31,
            Op::NameGreenContext { .. } => 32,
            Op::Activity { .. } => 33,
            Op::Other => 34,
        },
        Event::Activity(_) => 35,
        Event::Stopped { .. } => 36,
        Event::Library { .. } => 37,
        Event::NotProbed { .. } => 38,
    }
}
const KINDS: usize = 39;

/// Reports as the events go on: an empty one, of a leaking process, and of an ended one.
fn reports() -> [Report; 3] {
    let mut ledger = Ledger::new(Limits::default());
    let mut done = 0;
    let events = events();
    let mut until = |end: usize, ended_by| {
        for event in &events[done..end] {
            ledger.apply(event);
        }
        done = end;
        let now = ledger.now();
        report(
            &ledger,
            &Filter::default(),
            Thresholds::default(),
            now,
            ended_by,
        )
    };
    let tick = |event: &Event| matches!(event, Event::Tick { .. });
    let middle = events.iter().position(tick).unwrap() + 1;
    [
        until(1, None),
        until(middle, None),
        until(events.len(), Some(EndedBy::TargetsEnded)),
    ]
}

#[test]
fn the_file_in_docs_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/report.schema.json");
    let file = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        file == schema::text().unwrap(),
        "docs/report.schema.json is out of date; run\n\
         cargo run -p gputrace -- schema > docs/report.schema.json"
    );
}

#[test]
fn the_schema_is_one() {
    let schema: Value = serde_json::from_str(&schema::text().unwrap()).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
}

#[test]
fn every_kind_of_event_is_described() {
    let events = events();
    let mut seen = [false; KINDS];
    for event in &events {
        seen[kind(event)] = true;
    }
    assert!(seen.iter().all(|&seen| seen), "{seen:?}");
    let validator = validator();
    let mut written = Vec::new();
    for event in events.iter().cloned() {
        ndjson::event(&mut written, event).unwrap();
    }
    for (line, event) in lines(&written).iter().zip(&events) {
        assert_valid(&validator, line);
        // And what is written can be read again.
        let Body::Event(read) = Line::deserialized(line).body else {
            panic!("{line}");
        };
        assert_eq!(read, *event);
    }
}

/// Reads a line back.
trait Deserialized {
    fn deserialized(line: &Value) -> Self;
}

impl Deserialized for Line {
    fn deserialized(line: &Value) -> Self {
        serde_json::from_value(line.clone()).unwrap_or_else(|error| panic!("{error}: {line:#}"))
    }
}

#[test]
fn reports_are_described_from_the_empty_one_to_that_of_a_leak() {
    let [empty, leaking, ended] = reports();
    // The samples show what they are for.
    assert!(empty.processes.is_empty());
    let process = &leaking.processes[0];
    assert!(process.losses.is_some() && process.user.is_some());
    assert!(process.sites.iter().any(|site| site.growth.is_some()));
    assert!(process.sites.iter().any(|site| !site.frames.is_empty()));
    assert!(leaking.devices.is_available() && !ended.devices.is_available());
    assert!(matches!(
        ended.processes[0].state,
        ProcessState::Exited { .. }
    ));

    let validator = validator();
    let mut written = Vec::new();
    for report in [&empty, &leaking, &ended] {
        ndjson::snapshot(&mut written, report).unwrap();
        ndjson::report(&mut written, report).unwrap();
    }
    let lines = lines(&written);
    assert_eq!(lines.len(), 6);
    for (line, report) in lines
        .iter()
        .zip([&empty, &empty, &leaking, &leaking, &ended, &ended])
    {
        assert_valid(&validator, line);
        match Line::deserialized(line).body {
            Body::Snapshot(read) | Body::Report(read) => assert_eq!(*read, *report),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_other_lines_are_described() {
    let validator = validator();
    let mut written = Vec::new();
    let start = Start {
        time: "2026-01-02T03:04:05.000000006Z".to_owned(),
        pid: 77,
        coverage: coverage(),
    };
    ndjson::start(&mut written, &start).unwrap();
    ndjson::events_left_out(&mut written, 12).unwrap();
    let checks = [
        State::Ok,
        State::Note,
        State::Warning,
        State::Unknown,
        State::Missing,
    ]
    .map(|state| Check::ok("kernel", "Linux 6.8", "It matters").state(state));
    let [first, rest @ ..] = checks;
    let mut checks = vec![first.needed().advice("boot another one")];
    checks.extend(rest);
    let found = FoundLibrary {
        library: library(),
        mapped_by: vec![1, 2],
        proc_addresses: None,
    };
    let not_probed = coverage().not_probed;
    let diagnosis = Diagnosis::new(checks, vec![found], not_probed);
    let doctor = Line::new(Body::Doctor(diagnosis.clone()));
    serde_json::to_writer(&mut written, &doctor).unwrap();
    written.push(b'\n');
    let lines = lines(&written);
    assert_eq!(lines.len(), 3);
    for line in &lines {
        assert_valid(&validator, line);
    }
    let Body::Doctor(read) = Line::deserialized(&lines[2]).body else {
        panic!("{}", lines[2]);
    };
    assert_eq!(read, diagnosis);
}

#[test]
fn numbers_that_a_reader_would_corrupt_are_texts() {
    // Every number in a report that may exceed 53 bits: bytes and counts do not.
    fn check(path: &str, value: &Value) {
        match value {
            Value::Number(number) => {
                let number = number.as_u64().unwrap_or(0);
                assert!(number < 1 << 53, "{path} is {number}");
            }
            Value::Array(items) => items.iter().for_each(|item| check(path, item)),
            Value::Object(members) => members
                .iter()
                .for_each(|(name, value)| check(&format!("{path}.{name}"), value)),
            _ => {}
        }
    }
    let mut written = Vec::new();
    for report in reports() {
        ndjson::report(&mut written, &report).unwrap();
    }
    for line in lines(&written) {
        check("", &line);
    }
}

#[test]
fn what_is_not_written_is_refused() {
    let validator = validator();
    let mut written = Vec::new();
    ndjson::report(&mut written, &reports()[1]).unwrap();
    let good = lines(&written).remove(0);
    assert_valid(&validator, &good);
    for (pointer, bad) in [
        ("/schema", json!("gputrace/2")),
        ("/type", json!("unheard of")),
        ("/boot_ns", json!(1)),
        ("/boot_ns", json!("0x1")),
        ("/ended_by", json!("magic")),
        ("/devices", json!({"value": [], "not_available": "both"})),
        ("/devices", json!([])),
        ("/processes/0/tgid", json!(-1)),
        ("/processes/0/state", json!("running")),
        ("/processes/0/memory/live/bytes", json!("1")),
        ("/processes/0/verdict/kind", json!("maybe")),
        ("/processes/0/device_memory", json!(0)),
        ("/processes/0/sites/0/frames/0/address", json!("123")),
    ] {
        let mut line = good.clone();
        *line
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("{pointer}")) = bad;
        assert!(!validator.is_valid(&line), "{pointer}");
    }
    for name in ["schema", "type", "ended_by", "losses", "processes"] {
        let mut line = good.clone();
        line.as_object_mut().unwrap().remove(name).unwrap();
        assert!(!validator.is_valid(&line), "without {name}");
    }
}
