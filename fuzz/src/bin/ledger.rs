//! Any sequence of events, put together from the input: what the ledger counts, and the report.
#![no_main]

use gputrace::{
    cuda::FunctionId,
    event::{
        BootTime, Call, Event, Exit, ExitSource, Losses, Module, Op, Outcome, Pid, ProcessSeen,
        Sighting, StackId,
    },
    evidence::Evidence,
    ledger::Ledger,
    resource::{Activity, Place, Resource},
    sensors::nvml::{Device, Process, ProcessKind, Sample},
};
use gputrace_fuzz::{SMALL, check, check_sums, show};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

/// Mostly small, so that sums stay exact and names meet again; now and then anything.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Few(u8),
    Some(u32),
    Any(u64),
}

impl Number {
    fn get(self) -> u64 {
        match self {
            Self::Few(n) => n.into(),
            Self::Some(n) => n.into(),
            Self::Any(n) => n,
        }
    }
}

/// When something happened: so many milliseconds after what came before, or at any time at all.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum When {
    After(u16),
    At(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Where {
    Current,
    CurrentDevice,
    Device(u8),
    Host,
    Process,
    Pool(u8),
    Unknown,
}

impl Where {
    fn get(self) -> Place {
        match self {
            Self::Current => Place::Current,
            Self::CurrentDevice => Place::CurrentDevice,
            Self::Device(ordinal) => Place::Device {
                ordinal: u32::from(ordinal % 2),
            },
            Self::Host => Place::Host,
            Self::Process => Place::Process,
            Self::Pool(pool) => Place::Pool {
                pool: u64::from(pool % 8),
            },
            Self::Unknown => Place::Unknown,
        }
    }
}

fn resource(number: u8) -> Resource {
    Resource::ALL[usize::from(number) % Resource::COUNT]
}

#[derive(Arbitrary, Debug)]
enum Does {
    Allocate(u8, Number, Option<u8>, Where),
    Free(u8, u8),
    CreateHandle(Number, Option<u8>, Where),
    ReleaseHandle(u8),
    RetainHandle(Option<u8>, u8),
    Map(u8, Number, u8),
    Unmap(u8, Number),
    ExportHandle(u8),
    ImportHandle(Option<u8>),
    ExportPointer(u8, Option<u8>),
    OpenPointer(Option<u8>, Option<u8>),
    DevicePool(u8, Option<u8>),
    RetainPrimary(u8, Option<u8>),
    ReleasePrimary(u8),
    ResetPrimary(u8),
    CreateGreenContext(Option<u8>),
    NameGreenContext(u8, Option<u8>),
    Launch,
    CreateContext(Option<u8>),
    DestroyContext(u8),
    SetContext(u8),
    PushContext(u8),
    PopContext,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Call {
        process: u8,
        thread: u8,
        does: Does,
        function: u8,
        enclosing: Option<u8>,
        when: When,
        lasted: Number,
        result: Option<i8>,
        stack: Option<u8>,
    },
    /// An allocation that is repeated, a second apart: what a leak is made of.
    Leak {
        process: u8,
        times: u8,
        bytes: u16,
        stack: u8,
    },
    Seen {
        process: u8,
        when: When,
        started: Number,
        sighting: u8,
    },
    Exit {
        process: u8,
        when: When,
        status: Option<u32>,
        late: bool,
    },
    Lost {
        process: Option<u8>,
        events: Number,
        cause: bool,
        first: Option<Number>,
        last: Option<Number>,
    },
    Stack {
        stack: u8,
        process: u8,
        frames: [Number; 2],
        named: bool,
    },
    Modules {
        process: u8,
        start: Number,
        end: Number,
        offset: Number,
    },
    Started(When),
    Devices {
        when: When,
        total: Option<Number>,
        used: Option<Number>,
        processes: Vec<(u8, Option<Number>, bool)>,
    },
    Tick(When),
}

/// Turns steps into events.
#[derive(Default)]
struct Play {
    now: u64,
    next_address: u64,
    /// A number or a time was so large that sums may have ended at the end of 64 bits.
    extreme: bool,
}

impl Play {
    fn number(&mut self, number: Number) -> u64 {
        self.extreme |= matches!(number, Number::Any(_));
        number.get()
    }

    fn time(&mut self, when: When) -> BootTime {
        match when {
            When::After(ms) => {
                self.now = self.now.saturating_add(u64::from(ms) * 1_000_000);
                BootTime(self.now)
            }
            When::At(at) => BootTime(at),
        }
    }

    fn evidence(&mut self, number: Option<Number>) -> Evidence<u64> {
        number.map_or(Evidence::not_available("fuzz"), |number| {
            Evidence::Value(self.number(number))
        })
    }

    fn events(&mut self, step: Step, mut each: impl FnMut(Event)) {
        match step {
            Step::Call {
                process,
                thread,
                does,
                function,
                enclosing,
                when,
                lasted,
                result,
                stack,
            } => {
                let small = |n: u8| u64::from(n % 8);
                let op = match does {
                    Does::Allocate(kind, bytes, address, place) => Op::Allocate {
                        kind: resource(kind),
                        bytes: self.number(bytes),
                        address: address.map(small),
                        place: place.get(),
                    },
                    Does::Free(kind, address) => Op::Free {
                        kind: resource(kind),
                        address: small(address),
                    },
                    Does::CreateHandle(bytes, handle, place) => Op::CreateHandle {
                        bytes: self.number(bytes),
                        handle: handle.map(small),
                        place: place.get(),
                    },
                    Does::ReleaseHandle(handle) => Op::ReleaseHandle {
                        handle: small(handle),
                    },
                    Does::RetainHandle(handle, address) => Op::RetainHandle {
                        handle: handle.map(small),
                        address: small(address),
                    },
                    Does::Map(address, bytes, handle) => Op::Map {
                        address: small(address),
                        bytes: self.number(bytes),
                        offset: small(handle),
                        handle: small(handle),
                    },
                    Does::Unmap(address, bytes) => Op::Unmap {
                        address: small(address),
                        bytes: self.number(bytes),
                    },
                    Does::ExportHandle(handle) => Op::ExportHandle {
                        handle: small(handle),
                    },
                    Does::ImportHandle(handle) => Op::ImportHandle {
                        handle: handle.map(small),
                    },
                    Does::ExportPointer(address, key) => Op::ExportPointer {
                        address: small(address),
                        key: key.map(small),
                    },
                    Does::OpenPointer(address, key) => Op::OpenPointer {
                        address: address.map(small),
                        key: key.map(small),
                    },
                    Does::DevicePool(device, pool) => Op::DevicePool {
                        device: device.into(),
                        pool: pool.map(small),
                    },
                    Does::RetainPrimary(device, context) => Op::RetainPrimary {
                        device: u32::from(device % 2),
                        context: context.map(small),
                    },
                    Does::ReleasePrimary(device) => Op::ReleasePrimary {
                        device: u32::from(device % 2),
                    },
                    Does::ResetPrimary(device) => Op::ResetPrimary {
                        device: u32::from(device % 2),
                    },
                    Does::CreateGreenContext(green) => Op::CreateGreenContext {
                        device: 0,
                        green: green.map(small),
                    },
                    Does::NameGreenContext(green, context) => Op::NameGreenContext {
                        green: small(green),
                        context: context.map(small),
                    },
                    Does::Launch => Op::Activity {
                        activity: Activity::Launch,
                    },
                    Does::CreateContext(context) => Op::CreateContext {
                        device: 0,
                        context: context.map(small),
                    },
                    Does::DestroyContext(context) => Op::DestroyContext {
                        context: small(context),
                    },
                    Does::SetContext(context) => Op::SetContext {
                        context: small(context),
                    },
                    Does::PushContext(context) => Op::PushContext {
                        context: small(context),
                    },
                    Does::PopContext => Op::PopContext,
                };
                let returned = self.time(when);
                each(Event::Call(Call {
                    pid: pid(process),
                    tid: u32::from(thread % 4),
                    function: row(function),
                    enclosing: enclosing.map(row),
                    entered: BootTime(returned.0.saturating_sub(lasted.get())),
                    returned,
                    outcome: result.map_or(Outcome::NeverReturned, |result| {
                        Outcome::Returned((result % 2).into())
                    }),
                    op,
                    stack: stack.map(|stack| StackId(u32::from(stack % 8))),
                    cgroup_id: 0,
                }));
            }
            Step::Leak {
                process,
                times,
                bytes,
                stack,
            } => {
                for _ in 0..times {
                    let returned = self.time(When::After(1000));
                    self.next_address += 0x1000;
                    each(Event::Call(Call {
                        pid: pid(process),
                        tid: 1,
                        function: row(0),
                        enclosing: None,
                        entered: returned,
                        returned,
                        outcome: Outcome::Returned(0),
                        op: Op::device_memory(bytes.into(), Some(self.next_address)),
                        stack: Some(StackId(u32::from(stack % 8))),
                        cgroup_id: 1,
                    }));
                }
            }
            Step::Seen {
                process,
                when,
                started,
                sighting,
            } => each(Event::Process(ProcessSeen {
                pid: pid(process),
                at: self.time(when),
                started: BootTime(started.get()),
                sighting: match sighting % 3 {
                    0 => Sighting::FirstCall,
                    1 => Sighting::Forked,
                    _ => Sighting::Executed,
                },
                parent: pid(process.wrapping_add(1)),
                namespace_pid: Some(1),
                uid: 0,
                comm: "fuzz".to_owned(),
                cgroup: String::new(),
                cgroup_id: 1,
            })),
            Step::Exit {
                process,
                when,
                status,
                late,
            } => each(Event::Exit(Exit {
                pid: pid(process),
                at: self.time(when),
                status,
                source: if late {
                    ExitSource::Procfs
                } else {
                    ExitSource::Kernel
                },
            })),
            Step::Lost {
                process,
                events,
                cause,
                first,
                last,
            } => {
                let cause = if cause { "ring_full" } else { "stack_lost" };
                let events = self.number(events);
                each(Event::Losses {
                    pid: process.map(pid),
                    losses: Losses {
                        first: first.map(|at| BootTime(at.get())),
                        last: last.map(|at| BootTime(at.get())),
                        causes: [(cause.to_owned(), events), ("other".to_owned(), 1)].into(),
                        allocations: events,
                        allocation_bytes: events,
                        frees: 0,
                    },
                });
            }
            Step::Stack {
                stack,
                process,
                frames,
                named,
            } => {
                let stack = StackId(u32::from(stack % 8));
                each(Event::Stack {
                    stack,
                    pid: pid(process),
                    frames: frames.map(Number::get).to_vec(),
                });
                if named {
                    let names = vec![Some("site".to_owned()), None, None];
                    each(Event::Symbols { stack, names });
                }
            }
            Step::Modules {
                process,
                start,
                end,
                offset,
            } => each(Event::Modules {
                pid: pid(process),
                modules: vec![Module {
                    start: start.get(),
                    end: end.get(),
                    offset: offset.get(),
                    path: "/usr/lib/libfuzz.so".to_owned(),
                }],
            }),
            Step::Started(when) => each(Event::Started {
                at: self.time(when),
                wall_ns: 1 << 60,
                coverage: Default::default(),
            }),
            Step::Devices {
                when,
                total,
                used,
                processes,
            } => {
                let processes = processes
                    .into_iter()
                    .map(|(process, used, graphics)| Process {
                        pid: pid(process).tgid,
                        used: self.evidence(used),
                        kind: if graphics {
                            ProcessKind::Graphics
                        } else {
                            ProcessKind::Compute
                        },
                        gpu_instance: graphics.then_some(1),
                        compute_instance: None,
                    })
                    .collect();
                let total = self.evidence(total);
                let device = Device {
                    index: 0,
                    uuid: Evidence::not_available("fuzz"),
                    name: Evidence::Value("fuzz".to_owned()),
                    pci_bus_id: Evidence::not_available("fuzz"),
                    minor: Evidence::Value(0),
                    free: total.clone(),
                    total,
                    used: self.evidence(used),
                    reserved: Evidence::Value(0),
                    used_includes_reserved: false,
                    processes: Evidence::Value(processes),
                    processes_incomplete: Vec::new(),
                };
                each(Event::Devices {
                    at: self.time(when),
                    sample: Evidence::Value(Sample {
                        driver_version: Evidence::not_available("fuzz"),
                        devices: Evidence::Value(vec![device]),
                    }),
                });
            }
            Step::Tick(when) => each(Event::Tick {
                at: self.time(when),
            }),
        }
    }
}

fn pid(process: u8) -> Pid {
    Pid {
        tgid: u32::from(process % 6) + 1,
        start_ticks: 0,
    }
}

fn row(function: u8) -> FunctionId {
    let all = FunctionId::all().count();
    FunctionId::all().nth(usize::from(function) % all).unwrap()
}

fuzz_target!(|steps: Vec<Step>| {
    let mut ledger = Ledger::new(SMALL);
    let mut play = Play::default();
    for step in steps {
        play.events(step, |event| ledger.apply(&event));
        check(&ledger, SMALL);
        if !play.extreme {
            check_sums(&ledger);
        }
    }
    show(&ledger);
});
