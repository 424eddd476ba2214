//! The table, against golden files. `UPDATE_GOLDEN=1 cargo test -p gputrace --test table` writes
//! them anew; look at the difference before you commit it.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    reason = "small numbers that the test makes itself"
)]

use std::{fs, path::PathBuf};

use gputrace::{
    analysis::{Filter, Thresholds, report},
    cuda::FunctionId,
    event::{
        ActivityCount, ActivitySeen, BootTime, Call, Coverage, Event, Exit, ExitSource, Library,
        Losses, Module, NotProbed, Op, Outcome, Pid, ProbedFunction, ProcessSeen, Sighting,
        StackId,
    },
    evidence::Evidence,
    ledger::{Ledger, Limits},
    render::table::{Style, Table},
    report::EndedBy,
    resource::{Activity, Place, Resource},
    sensors::nvml::{Device, Process, ProcessKind, Sample},
};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1000 * SECOND;
const MIB: u64 = 1 << 20;

fn at(seconds: f64) -> BootTime {
    BootTime(START + (seconds * 1e9) as u64)
}

fn pid(tgid: u32) -> Pid {
    Pid::from_start_ns(tgid, START + SECOND)
}

fn function(symbol: &str) -> FunctionId {
    FunctionId::by_symbol(symbol).unwrap()
}

fn call(tgid: u32, seconds: f64, symbol: &str, op: Op, result: i32, stack: u32) -> Event {
    Event::Call(Call {
        pid: pid(tgid),
        tid: tgid,
        function: function(symbol),
        enclosing: None,
        entered: BootTime(at(seconds).0 - 500),
        returned: at(seconds),
        outcome: Outcome::Returned(result),
        op,
        stack: Some(StackId(stack)),
        cgroup_id: 77,
    })
}

fn allocate(tgid: u32, seconds: f64, mib: u64, address: u64, stack: u32) -> Event {
    let op = Op::device_memory(mib * MIB, Some(address));
    call(tgid, seconds, "cuMemAlloc_v2", op, 0, stack)
}

fn free(tgid: u32, seconds: f64, address: u64) -> Event {
    call(tgid, seconds, "cuMemFree_v2", Op::free(address), 0, 99)
}

fn seen(tgid: u32, command: &str) -> Vec<Event> {
    vec![
        Event::Process(ProcessSeen {
            pid: pid(tgid),
            at: at(1.0),
            started: BootTime(START + SECOND),
            sighting: Sighting::FirstCall,
            parent: pid(1),
            namespace_pid: None,
            uid: 1000,
            comm: command.chars().take(15).collect(),
            cgroup: "session-4.scope".to_owned(),
            cgroup_id: 77,
        }),
        Event::CommandLine {
            pid: pid(tgid),
            command: command.to_owned(),
        },
    ]
}

fn started() -> Event {
    Event::Started {
        at: BootTime(START),
        wall_ns: 1_796_000_000 * SECOND,
        coverage: Coverage {
            version: "0.1.0".to_owned(),
            kernel: "6.18.0".to_owned(),
            method: "uprobe.multi".to_owned(),
            stacks: "taken at each allocation".to_owned(),
            activity_not_counted: None,
            targets: Vec::new(),
            command: false,
            discovery: "as they are mapped".to_owned(),
            libraries: vec![Library {
                path: "/usr/lib/libcuda.so.1".to_owned(),
                device: 1,
                inode: 2,
                probed_at: None,
                functions: vec![ProbedFunction {
                    function: function("cuMemAlloc_v2"),
                    offset: 10,
                    emulated: true,
                    placement: "je +0x12".to_owned(),
                }],
                missing: Vec::new(),
            }],
            not_probed: vec![NotProbed {
                path: "/opt/old/libcuda.so.1".to_owned(),
                reason: "it is no ELF file".to_owned(),
                processes: vec![77],
            }],
            late_processes: Vec::new(),
        },
    }
}

fn sample(processes: &[(u32, u64)]) -> Event {
    let used: u64 = processes.iter().map(|(_, mib)| mib * MIB).sum();
    Event::Devices {
        at: at(90.0),
        sample: Evidence::Value(Sample {
            driver_version: Evidence::Value("550.163.01".to_owned()),
            devices: Evidence::Value(vec![Device {
                index: 0,
                uuid: Evidence::Value("GPU-1".to_owned()),
                name: Evidence::Value("NVIDIA H100 80GB HBM3".to_owned()),
                pci_bus_id: Evidence::Value("00000000:65:00.0".to_owned()),
                minor: Evidence::Value(0),
                total: Evidence::Value(81_920 * MIB),
                used: Evidence::Value(used + 600 * MIB),
                reserved: Evidence::Value(512 * MIB),
                free: Evidence::Value(81_920 * MIB - used - 600 * MIB),
                used_includes_reserved: false,
                processes: Evidence::Value(
                    processes
                        .iter()
                        .map(|&(pid, mib)| Process {
                            pid,
                            used: Evidence::Value(mib * MIB),
                            kind: ProcessKind::Compute,
                            gpu_instance: None,
                            compute_instance: None,
                        })
                        .collect(),
                ),
                processes_incomplete: Vec::new(),
            }]),
        }),
    }
}

/// A server that forgets a buffer every third of a second beside a model that it keeps.
fn leaking_server() -> Vec<Event> {
    let mut events = seen(4242, "python serve.py --model llama");
    events.push(Event::Modules {
        pid: pid(4242),
        modules: vec![Module {
            start: 0x1000,
            end: 0x9000,
            offset: 0,
            path: "/srv/libserve.so".to_owned(),
        }],
    });
    for (stack, frames) in [(0, vec![0x1100, 0x2200]), (1, vec![0x1300, 0x2200])] {
        events.push(Event::Stack {
            stack: StackId(stack),
            pid: pid(4242),
            frames,
        });
    }
    let name = |name: &str| Some(name.to_owned());
    events.push(Event::Symbols {
        stack: StackId(0),
        names: vec![name("load_model"), name("main")],
    });
    events.push(Event::Symbols {
        stack: StackId(1),
        names: vec![name("handle_request"), None],
    });
    events.push(Event::User {
        uid: 1000,
        name: "alice".to_owned(),
    });
    for i in 0..4 {
        events.push(allocate(4242, 1.5, 512, 0x7000_0000 + i, 0));
    }
    for i in 0..264_u32 {
        let seconds = 2.0 + f64::from(i) / 3.0;
        events.push(allocate(4242, seconds, 6, 0x8000_0000 + u64::from(i), 1));
    }
    let too_much = Op::device_memory(90 << 30, None);
    events.push(call(4242, 40.0, "cuMemAlloc_v2", too_much, 2, 1));
    events
}

/// A process that lost events, one that ended, and names that are hostile.
fn odd_ones() -> Vec<Event> {
    let mut events = seen(51, "\\x1b[31mred");
    events.push(allocate(51, 3.0, 64, 0x1, 5));
    events.push(free(51, 4.0, 0xdead));
    events.push(Event::Losses {
        pid: Some(pid(51)),
        losses: Losses {
            first: Some(at(5.0)),
            last: Some(at(6.5)),
            causes: [("ring_full".to_owned(), 12)].into(),
            allocations: 7,
            allocation_bytes: 7 * MIB,
            frees: 5,
        },
    });
    events.extend(seen(52, "train"));
    events.push(allocate(52, 3.0, 100, 0x2, 6));
    events.push(Event::Exit(Exit {
        pid: pid(52),
        at: at(30.0),
        status: Some(9),
        source: ExitSource::Kernel,
    }));
    events.extend(seen(53, "balanced"));
    events.push(allocate(53, 3.0, 100, 0x3, 7));
    events.push(free(53, 3.5, 0x3));
    events
}

fn golden(name: &str, events: Vec<Event>, filter: &Filter, width: u16) {
    let mut ledger = Ledger::new(Limits::default());
    for event in [started()]
        .into_iter()
        .chain(events)
        .chain([Event::Tick { at: at(90.0) }])
    {
        ledger.apply(&event);
    }
    let report = report(
        &ledger,
        filter,
        Thresholds::default(),
        at(90.0),
        Some(EndedBy::Signal),
    );
    let shown = Table {
        report: &report,
        style: Style {
            color: false,
            width,
        },
    }
    .to_string();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &shown).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        shown == expected,
        "{} differs from what is shown now:\n{shown}",
        path.display()
    );
}

#[test]
fn a_leak_beside_what_is_kept() {
    let events = [leaking_server(), vec![sample(&[(4242, 3932)])]].concat();
    golden(
        "leak.txt",
        events,
        &Filter {
            top: Some(10),
            ..Filter::default()
        },
        100,
    );
}

#[test]
fn doubt_end_and_balance() {
    let events = [odd_ones(), vec![sample(&[])]].concat();
    golden("odd.txt", events, &Filter::default(), 80);
}

#[test]
fn nothing_to_show_and_no_device_layer() {
    let filter = Filter {
        comm: Some("nobody".to_owned()),
        ..Filter::default()
    };
    golden("filtered.txt", odd_ones(), &filter, 80);
}

/// One process with something of every kind, and one that keeps memory which the first has freed.
fn every_kind() -> Vec<Event> {
    let mut events = seen(61, "python train.py");
    let mut called = |tgid, second: u32, symbol: &str, op: Op, result| {
        let seconds = 2.0 + f64::from(second);
        events.push(call(tgid, seconds, symbol, op, result, second));
    };
    let made = |kind, mib: u64, address| Op::Allocate {
        kind,
        bytes: mib * MIB,
        address: Some(address),
        place: Place::Current,
    };
    let context = Op::CreateContext {
        device: 0,
        context: Some(0xc),
    };
    called(61, 0, "cuCtxCreate_v2", context, 0);
    for (second, symbol, kind, mib) in [
        (1, "cuMemAlloc_v2", Resource::Device, 512),
        (2, "cuMemAllocManaged", Resource::Managed, 256),
        (3, "cuArray3DCreate_v2", Resource::Array, 64),
        (4, "cuMemHostAlloc", Resource::PinnedHost, 128),
        (5, "cuMemAddressReserve", Resource::Addresses, 65_536),
        (6, "cuModuleLoadData", Resource::Module, 0),
        (7, "cuModuleLoadData", Resource::Module, 0),
    ] {
        let address = 0x1000 * u64::from(second);
        called(61, second, symbol, made(kind, mib, address), 0);
    }
    for (second, handle) in [(8, 1), (9, 2)] {
        let create = Op::CreateHandle {
            bytes: 2 * MIB,
            handle: Some(handle),
            place: Place::Device { ordinal: 1 },
        };
        called(61, second, "cuMemCreate", create, 0);
    }
    let map = Op::Map {
        address: 0x5000,
        bytes: 2 * MIB,
        offset: 0,
        handle: 1,
    };
    called(61, 10, "cuMemMap", map, 0);
    let launch = Op::Activity {
        activity: Activity::Launch,
    };
    called(61, 11, "cuLaunchKernel", launch, 700);
    called(
        61,
        12,
        "cuMemHostAlloc",
        made(Resource::PinnedHost, 9000, 0),
        2,
    );
    let address = 0x9000;
    called(
        61,
        13,
        "cuMemAlloc_v2",
        made(Resource::Device, 640, address),
        0,
    );
    let export = Op::ExportPointer {
        address,
        key: Some(5),
    };
    called(61, 14, "cuIpcGetMemHandle", export, 0);
    let open = Op::OpenPointer {
        address: Some(0x7000),
        key: Some(5),
    };
    called(62, 15, "cuIpcOpenMemHandle_v2", open, 0);
    called(61, 16, "cuMemFree_v2", Op::free(address), 0);
    events.extend(seen(62, "python viewer.py"));
    events.push(Event::Activity(ActivitySeen {
        pid: pid(61),
        launches: ActivityCount {
            count: 1200,
            failed: 1,
            latest: Some(at(80.0)),
        },
        copies: ActivityCount {
            count: 3,
            failed: 0,
            latest: Some(at(13.0)),
        },
        synchronizations: ActivityCount::default(),
    }));
    events
}

#[test]
fn every_kind_and_memory_that_outlives_its_free() {
    let events = [
        every_kind(),
        vec![sample(&[(61, 900), (62, 940), (63, 2000)])],
    ]
    .concat();
    golden("kinds.txt", events, &Filter::default(), 100);
}
