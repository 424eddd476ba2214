//! The order rules of the ledger, against a model of threads that interleave at every point.
//!
//! A call has four points: its entry is seen, the allocator acts, its return is seen, and its event
//! reaches the ring buffer. Between any two of them any other thread may run. The allocator gives
//! the address that was freed last, as real ones do.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "small numbers that the test makes itself"
)]

use std::collections::{BTreeMap, HashMap};

use gputrace::{
    cuda::FunctionId,
    event::{BootTime, Call, Event, Op, Outcome, Pid},
    ledger::{Account, Ledger, Limits},
    resource::{Activity, Place, Resource},
};
use proptest::prelude::*;

const PID: Pid = Pid {
    tgid: 100,
    start_ticks: 1,
};

#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    Allocating {
        entered: u64,
        bytes: u64,
        address: Option<u64>,
        returned: Option<u64>,
    },
    Freeing {
        entered: u64,
        address: u64,
        done: bool,
        returned: Option<u64>,
    },
}

/// The program, the driver and the probes.
#[derive(Debug, Default)]
struct Model {
    now: u64,
    next_address: u64,
    free_addresses: Vec<u64>,
    /// What the program holds: it has been told the address, and has not begun to free it.
    held: Vec<u64>,
    /// What the driver holds, with its size.
    live: BTreeMap<u64, u64>,
    allocated: u64,
    freed: u64,
    ring: Vec<Call>,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Takes one thread one point further.
    fn step(&mut self, tid: u32, doing: Doing, choice: u32) -> Doing {
        let now = self.tick();
        match doing {
            Doing::Nothing if choice.is_multiple_of(2) || self.held.is_empty() => {
                Doing::Allocating {
                    entered: now,
                    bytes: u64::from(choice % 7 + 1) << 9,
                    address: None,
                    returned: None,
                }
            }
            Doing::Nothing => {
                let address = self.held.swap_remove(choice as usize % self.held.len());
                Doing::Freeing {
                    entered: now,
                    address,
                    done: false,
                    returned: None,
                }
            }
            Doing::Allocating {
                entered,
                bytes,
                address: None,
                ..
            } => {
                let address = self.free_addresses.pop().unwrap_or_else(|| {
                    self.next_address += 0x1000;
                    self.next_address
                });
                assert_eq!(self.live.insert(address, bytes), None);
                self.allocated += 1;
                Doing::Allocating {
                    entered,
                    bytes,
                    address: Some(address),
                    returned: None,
                }
            }
            Doing::Allocating {
                entered,
                bytes,
                address,
                returned: None,
            } => Doing::Allocating {
                entered,
                bytes,
                address,
                returned: Some(now),
            },
            Doing::Allocating {
                entered,
                bytes,
                address,
                returned: Some(returned),
            } => {
                self.submit(
                    tid,
                    entered,
                    returned,
                    "cuMemAlloc_v2",
                    Op::device_memory(bytes, address),
                );
                self.held.extend(address);
                Doing::Nothing
            }
            Doing::Freeing {
                entered,
                address,
                done: false,
                ..
            } => {
                assert!(self.live.remove(&address).is_some());
                self.free_addresses.push(address);
                self.freed += 1;
                Doing::Freeing {
                    entered,
                    address,
                    done: true,
                    returned: None,
                }
            }
            Doing::Freeing {
                entered,
                address,
                done,
                returned: None,
            } => Doing::Freeing {
                entered,
                address,
                done,
                returned: Some(now),
            },
            Doing::Freeing {
                entered,
                address,
                returned: Some(returned),
                ..
            } => {
                self.submit(tid, entered, returned, "cuMemFree_v2", Op::free(address));
                Doing::Nothing
            }
        }
    }

    fn submit(&mut self, tid: u32, entered: u64, returned: u64, function: &str, op: Op) {
        self.ring.push(Call {
            pid: PID,
            tid,
            function: FunctionId::by_symbol(function).unwrap(),
            enclosing: None,
            entered: BootTime(entered),
            returned: BootTime(returned),
            outcome: Outcome::Returned(0),
            op,
            stack: None,
            cgroup_id: 0,
        });
    }

    /// Runs the schedule, then lets every call end.
    fn run(threads: usize, schedule: &[(usize, u32)]) -> Self {
        let mut model = Self::default();
        let mut doing = vec![Doing::Nothing; threads];
        for &(thread, choice) in schedule {
            let thread = thread % threads;
            doing[thread] = model.step(thread as u32 + 1, doing[thread], choice);
        }
        for (thread, doing) in doing.iter_mut().enumerate() {
            while !matches!(doing, Doing::Nothing) {
                *doing = model.step(thread as u32 + 1, *doing, 0);
            }
        }
        model
    }
}

fn ledger(calls: impl IntoIterator<Item = Call>) -> Ledger {
    let mut ledger = Ledger::new(Limits::default());
    for call in calls {
        ledger.apply(&Event::Call(call));
        let memory = memory(&ledger);
        // Whatever has arrived: nothing is counted twice, nothing vanishes.
        assert_eq!(
            memory.live.count + memory.awaiting_free.count + memory.freed.count,
            memory.allocated.count
        );
        assert_eq!(
            memory.live.bytes + memory.awaiting_free.bytes + memory.freed.bytes,
            memory.allocated.bytes
        );
    }
    ledger
}

fn memory(ledger: &Ledger) -> Account {
    ledger
        .get(PID)
        .map(|process| process.accounts.sum(|_| true))
        .unwrap_or_default()
}

fn live(ledger: &Ledger) -> BTreeMap<u64, u64> {
    ledger.get(PID).map_or_else(BTreeMap::new, |process| {
        process
            .allocations()
            .map(|a| (a.address, a.bytes))
            .collect()
    })
}

fn schedules() -> impl Strategy<Value = (usize, Vec<(usize, u32)>)> {
    (
        1..9_usize,
        prop::collection::vec((0..8_usize, any::<u32>()), 0..800),
    )
}

/// A call of each kind with small numbers in it, so that they meet; `None`: the process ends.
fn absurd_op(kind: u64, number: u64, bytes: u64) -> Option<Op> {
    let (some, device) = (Some(number), (bytes % 3) as u32);
    let place = match bytes / 8 % 7 {
        0 => Place::Current,
        1 => Place::CurrentDevice,
        2 => Place::Device { ordinal: device },
        3 => Place::Host,
        4 => Place::Pool { pool: number },
        5 => Place::Process,
        _ => Place::Unknown,
    };
    let resource = Resource::ALL[(bytes % 10) as usize];
    Some(match kind {
        0..=5 => Op::Allocate {
            kind: resource,
            bytes,
            address: some,
            place,
        },
        6..=9 => Op::Free {
            kind: resource,
            address: number,
        },
        10 => Op::CreateHandle {
            bytes,
            handle: some,
            place,
        },
        11 => Op::ReleaseHandle { handle: number },
        12 => Op::RetainHandle {
            handle: some,
            address: number + 1,
        },
        13 | 14 => Op::Map {
            address: number,
            bytes,
            offset: bytes,
            handle: number / 2,
        },
        15 => Op::Unmap {
            address: number,
            bytes,
        },
        16 => Op::ExportHandle { handle: number },
        17 => Op::ImportHandle { handle: some },
        18 => Op::ExportPointer {
            address: number,
            key: Some(number),
        },
        19 => Op::OpenPointer {
            address: Some(number + 1),
            key: some,
        },
        20 => Op::DevicePool { device, pool: some },
        21 => Op::CreateContext {
            device,
            context: some,
        },
        22 => Op::DestroyContext { context: number },
        23 => Op::SetContext { context: number },
        24 => Op::PushContext { context: number },
        25 => Op::PopContext,
        26 | 27 => Op::RetainPrimary {
            device,
            context: some,
        },
        28 => Op::ReleasePrimary { device },
        29 => Op::ResetPrimary { device },
        30 => Op::CreateGreenContext {
            device,
            green: some,
        },
        31 => Op::NameGreenContext {
            green: number,
            context: Some(number + 1),
        },
        32 => Op::Activity {
            activity: Activity::Launch,
        },
        33 => Op::CreateHandle {
            bytes,
            handle: None,
            place,
        },
        _ => return None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Once every event has arrived the live set is the driver's own, to the byte, in whatever
    /// order the threads ran.
    #[test]
    fn the_live_set_is_exact((threads, schedule) in schedules()) {
        let model = Model::run(threads, &schedule);
        let ledger = ledger(model.ring.iter().copied());
        let memory = memory(&ledger);
        prop_assert_eq!(live(&ledger), model.live.clone());
        prop_assert_eq!(memory.live.count, model.live.len() as u64);
        prop_assert_eq!(memory.live.bytes, model.live.values().sum::<u64>());
        prop_assert_eq!(memory.allocated.count, model.allocated);
        prop_assert_eq!(memory.freed.count, model.freed);
        prop_assert_eq!((memory.unknown_frees, memory.awaiting_free.count), (0, 0));
    }

    /// Events that are lost leave the counts wrong by exactly what was lost.
    #[test]
    fn losses_explain_the_difference_exactly(
        (threads, schedule) in schedules(),
        lose in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let model = Model::run(threads, &schedule);
        let (mut lost_allocations, mut lost_frees) = (0, 0);
        let kept = model.ring.iter().zip(lose.iter().cycle()).filter_map(|(call, lose)| {
            if *lose {
                match call.op {
                    Op::Allocate { .. } => lost_allocations += 1,
                    _ => lost_frees += 1,
                }
                return None;
            }
            Some(*call)
        });
        let ledger = ledger(kept);
        let memory = memory(&ledger);
        prop_assert_eq!(memory.allocated.count + lost_allocations, model.allocated);
        prop_assert_eq!(memory.freed.count + memory.unknown_frees + lost_frees, model.freed);
        prop_assert_eq!(
            memory.live.count + memory.awaiting_free.count + lost_allocations,
            model.live.len() as u64 + memory.unknown_frees + lost_frees
        );
    }

    /// The sum over the call sites is the process, and what a process held is given back at its
    /// end, all of it and once.
    #[test]
    fn sites_add_up_and_an_exit_leaves_nothing((threads, schedule) in schedules()) {
        let model = Model::run(threads, &schedule);
        let mut by_size = HashMap::new();
        let calls = model.ring.iter().map(|call| {
            // One call site for each size.
            let stack = match call.op {
                Op::Allocate { bytes, .. } => {
                    let next = by_size.len() as u32;
                    Some(gputrace::event::StackId(*by_size.entry(bytes).or_insert(next)))
                }
                _ => None,
            };
            Call { stack, ..*call }
        });
        let mut ledger = ledger(calls.collect::<Vec<_>>());
        let before = memory(&ledger);
        if let Some(process) = ledger.get(PID) {
            let sum = |of: fn(&gputrace::ledger::Site) -> u64| process.sites().iter().map(of).sum::<u64>();
            prop_assert_eq!(sum(|site| site.live.bytes), before.live.bytes);
            prop_assert_eq!(sum(|site| site.live.count), before.live.count);
            prop_assert_eq!(sum(|site| site.allocated.count), before.allocated.count);
            prop_assert_eq!(sum(|site| site.freed.bytes), before.freed.bytes);
        }
        ledger.apply(&Event::Exit(gputrace::event::Exit {
            pid: PID,
            at: BootTime(model.now + 1),
            status: Some(0),
            source: gputrace::event::ExitSource::Kernel,
        }));
        let after = memory(&ledger);
        prop_assert_eq!(after.live.count, 0);
        prop_assert_eq!(after.released_by_exit, before.live);
        prop_assert_eq!(ledger.live_allocations(), 0);
    }

    /// No sequence of events, however absurd, makes it panic or count below zero.
    #[test]
    fn absurd_events_do_no_harm(
        calls in prop::collection::vec(
            (0..4_u32, 0..35_u64, 0..4_u64, any::<u64>(), 0..100_u64, 0..100_u64, -1..2_i32),
            0..300,
        )
    ) {
        let mut ledger = Ledger::new(Limits { live_allocations: 20, processes: 3, ended_processes: 1, sites_per_process: 2, ..Limits::default() });
        for (tgid, kind, address, bytes, entered, returned, result) in calls {
            let pid = Pid { tgid, start_ticks: 0 };
            let Some(op) = absurd_op(kind, address, bytes) else {
                ledger.apply(&Event::Exit(gputrace::event::Exit {
                    pid, at: BootTime(returned), status: None,
                    source: gputrace::event::ExitSource::Procfs,
                }));
                continue;
            };
            ledger.apply(&Event::Call(Call {
                pid,
                tid: tgid,
                function: FunctionId::new(0).unwrap(),
                enclosing: FunctionId::new(result.unsigned_abs() as u16 + 1).filter(|_| bytes.is_multiple_of(5)),
                entered: BootTime(entered),
                returned: BootTime(returned),
                outcome: if bytes.is_multiple_of(7) { Outcome::NeverReturned } else { Outcome::Returned(result) },
                op,
                stack: Some(gputrace::event::StackId(bytes as u32 % 5)),
                cgroup_id: 0,
            }));
            prop_assert!(ledger.processes().count() <= 3);
            let kept: usize = ledger.processes().map(|p| p.allocations().count()).sum();
            prop_assert_eq!(kept, ledger.live_allocations());
            prop_assert!(kept <= 20);
            let report = gputrace::analysis::report(
                &ledger, &gputrace::analysis::Filter::default(),
                gputrace::analysis::Thresholds::default(), BootTime(100), None,
            );
            for process in &report.processes {
                let pid = Pid { tgid: process.tgid, start_ticks: 0 };
                let account = ledger.get(pid).unwrap();
                let kept = account.allocations().count() as u64;
                let all = account.accounts.sum(|_| true);
                prop_assert_eq!(all.live.count, kept);
                prop_assert_eq!(
                    process.memory.by_device.iter().map(|it| it.live.count).sum::<u64>(),
                    process.memory.gpu.live.count
                );
                // Every allocation is in one place.
                let places = [
                    all.live, all.awaiting_free, all.freed, all.not_followed, all.released_by_exit,
                    all.released_by_exec, all.released_by_context, process.memory.vmm.exported,
                ];
                let places = places.iter().map(|it| it.count).sum::<u64>() + all.frees_not_seen;
                prop_assert!(places <= all.allocated.count);
                let vmm = process.memory.vmm;
                let physical = account.accounts[Resource::Vmm].live.count;
                prop_assert_eq!(vmm.mapped.count + vmm.unmapped.count, physical);
            }
        }
    }
}
