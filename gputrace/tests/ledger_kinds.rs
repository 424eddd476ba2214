//! Each kind of resource, from calls to figures: what is balanced, what leaks, what fails, what was
//! there before.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use gputrace::{
    analysis::{Filter, Thresholds, report},
    cuda::FunctionId,
    event::{
        BootTime, Call, Coverage, Event, Exit, ExitSource, Op, Outcome, Pid, ProcessSeen, Sighting,
    },
    ledger::{Account, Amount, Ledger, Limits},
    report::{ProcessReport, Report},
    resource::{Activity, Place, Resource},
};

const MIB: u64 = 1 << 20;

/// Calls of processes, one after the other.
struct Play {
    ledger: Ledger,
    now: u64,
}

const fn pid(tgid: u32) -> Pid {
    Pid {
        tgid,
        start_ticks: 1000,
    }
}

impl Play {
    /// Tracing begins before the processes, or after them.
    fn new(processes_come_later: bool) -> Self {
        let mut ledger = Ledger::new(Limits::default());
        let at = BootTime(1_000_000_000);
        ledger.apply(&Event::Started {
            at,
            wall_ns: 0,
            coverage: Coverage::default(),
        });
        for tgid in 1..4 {
            ledger.apply(&Event::Process(ProcessSeen {
                pid: pid(tgid),
                at,
                started: BootTime(at.0 - 1 + 2 * u64::from(processes_come_later)),
                sighting: Sighting::FirstCall,
                parent: pid(9),
                namespace_pid: None,
                uid: 0,
                comm: "p".to_owned(),
                cgroup: String::new(),
                cgroup_id: 0,
            }));
        }
        Self {
            ledger,
            now: 2_000_000_000,
        }
    }

    fn under_tracing() -> Self {
        Self::new(true)
    }

    fn call(&mut self, tgid: u32, op: Op, result: i32) {
        let inside = None;
        self.call_inside(tgid, op, result, inside);
    }

    fn by_thread(&mut self, tgid: u32, tid: u32, op: Op) {
        self.enter(tgid, tid, op, 0, None);
    }

    fn call_inside(&mut self, tgid: u32, op: Op, result: i32, enclosing: Option<FunctionId>) {
        self.enter(tgid, tgid, op, result, enclosing);
    }

    fn enter(&mut self, tgid: u32, tid: u32, op: Op, result: i32, enclosing: Option<FunctionId>) {
        self.now += 1_000_000;
        self.ledger.apply(&Event::Call(Call {
            pid: pid(tgid),
            tid,
            function: FunctionId::by_symbol(symbol(&op)).unwrap(),
            enclosing,
            entered: BootTime(self.now - 1000),
            returned: BootTime(self.now),
            outcome: Outcome::Returned(result),
            op,
            stack: None,
            cgroup_id: 0,
        }));
    }

    fn p(&mut self, op: Op) {
        self.call(1, op, 0);
    }

    fn exit(&mut self, tgid: u32) {
        self.now += 1_000_000;
        self.ledger.apply(&Event::Exit(Exit {
            pid: pid(tgid),
            at: BootTime(self.now),
            status: Some(0),
            source: ExitSource::Kernel,
        }));
    }

    fn report(&self) -> Report {
        report(
            &self.ledger,
            &Filter::default(),
            Thresholds::default(),
            BootTime(self.now),
            None,
        )
    }

    fn process(&self, tgid: u32) -> ProcessReport {
        let report = self.report();
        report
            .processes
            .into_iter()
            .find(|it| it.tgid == tgid)
            .unwrap()
    }

    fn kind(&self, kind: Resource) -> Account {
        self.process(1)
            .memory
            .kinds
            .get(&kind)
            .copied()
            .unwrap_or_default()
    }
}

/// A function for which the table has such a meaning; only failures are told by it.
fn symbol(op: &Op) -> &'static str {
    match op {
        Op::Activity { .. } => "cuLaunchKernel",
        Op::Allocate {
            kind: Resource::Addresses,
            ..
        } => "cuMemAddressReserve",
        _ => "cuMemAlloc_v2",
    }
}

fn allocate(kind: Resource, mib: u64, address: u64) -> Op {
    Op::Allocate {
        kind,
        bytes: mib * MIB,
        address: Some(address),
        place: Place::Current,
    }
}

fn free(kind: Resource, address: u64) -> Op {
    Op::Free { kind, address }
}

fn amount(count: u64, mib: u64) -> Amount {
    Amount {
        count,
        bytes: mib * MIB,
    }
}

#[test]
fn each_kind_has_figures_of_its_own() {
    let mut play = Play::under_tracing();
    for (n, kind) in (1..).zip(Resource::ALL) {
        play.p(allocate(kind, n, 0x1000 * n));
        play.p(allocate(kind, n, 0x1000_0000 * n));
        // Pointers of any kind are freed alike.
        let by = match kind {
            Resource::Managed | Resource::Alias => Resource::Device,
            kind => kind,
        };
        play.p(free(by, 0x1000 * n));
        let account = play.kind(kind);
        assert_eq!(account.live, amount(1, n), "{kind:?}");
        assert_eq!(account.freed, amount(1, n), "{kind:?}");
        assert_eq!(account.unknown_frees, 0, "{kind:?}");
    }
    let memory = play.process(1).memory;
    assert_eq!(memory.gpu.live, amount(4, 1 + 2 + 3 + 4));
    let on_devices: u64 = memory.by_device.iter().map(|it| it.live.bytes).sum();
    assert_eq!(on_devices, memory.gpu.live.bytes);
    assert_eq!(play.process(1).closing.api_live, (1 + 3 + 4) * MIB);
}

#[test]
fn what_was_not_seen_being_given_is_an_unknown_free_of_its_kind() {
    let mut play = Play::new(false);
    for kind in Resource::ALL {
        play.p(free(kind, 0x77));
    }
    play.p(Op::ReleaseHandle { handle: 0x77 });
    for kind in Resource::ALL {
        let expected = 1 + u64::from(kind == Resource::Vmm);
        let account = play.kind(kind);
        assert_eq!(account.unknown_frees, expected, "{kind:?}");
        assert_eq!(account.live, Amount::default(), "{kind:?}");
    }
}

#[test]
fn handles_that_are_not_released_stay_though_nothing_is_mapped() {
    let mut play = Play::under_tracing();
    for turn in 1..=20 {
        let base = 0x10_0000_0000 * turn;
        play.p(allocate(Resource::Addresses, 4096, base));
        play.p(Op::CreateHandle {
            bytes: 1024 * MIB,
            handle: Some(turn),
            place: Place::Device { ordinal: 0 },
        });
        play.p(Op::Map {
            address: base,
            bytes: 1024 * MIB,
            offset: 0,
            handle: turn,
        });
        play.p(Op::Unmap {
            address: base,
            bytes: 1024 * MIB,
        });
        play.p(free(Resource::Addresses, base));
        if turn % 2 == 1 {
            play.p(Op::ReleaseHandle { handle: turn });
        }
    }
    let process = play.process(1);
    assert_eq!(process.memory.vmm.unmapped, amount(10, 10_240));
    assert_eq!(process.memory.vmm.mapped, Amount::default());
    assert_eq!(process.memory.gpu.live, amount(10, 10_240));
    assert_eq!(play.kind(Resource::Addresses).live, Amount::default());
    assert_eq!(play.kind(Resource::Vmm).freed, amount(10, 10_240));
    assert_eq!(process.memory.by_device[0].device.value(), Some(&0));
}

#[test]
fn a_mapping_keeps_released_memory_and_an_export_may() {
    let mut play = Play::under_tracing();
    let create = |handle| Op::CreateHandle {
        bytes: 2 * MIB,
        handle: Some(handle),
        place: Place::Device { ordinal: 1 },
    };
    let map = |address, handle| Op::Map {
        address,
        bytes: 2 * MIB,
        offset: 0,
        handle,
    };
    let unmap = |address| Op::Unmap {
        address,
        bytes: 2 * MIB,
    };
    play.p(create(7));
    play.p(map(0x1000_0000, 7));
    play.p(Op::ReleaseHandle { handle: 7 });
    assert_eq!(play.process(1).memory.vmm.mapped, amount(1, 2));
    play.p(unmap(0x1000_0000));
    assert_eq!(play.kind(Resource::Vmm).freed, amount(1, 2));

    play.p(create(8));
    play.p(map(0x1000_0000, 8));
    play.p(Op::RetainHandle {
        handle: Some(8),
        address: 0x1000_0000,
    });
    play.p(Op::ExportHandle { handle: 8 });
    play.p(unmap(0x1000_0000));
    play.p(Op::ReleaseHandle { handle: 8 });
    assert_eq!(play.process(1).memory.vmm.unmapped, amount(1, 2));
    play.p(Op::ReleaseHandle { handle: 8 });
    let memory = play.process(1).memory;
    assert_eq!(memory.vmm.exported, amount(1, 2));
    assert_eq!(memory.gpu.live, Amount::default());
    // The importer's handle is an alias, as big as what is mapped of it.
    play.call(2, Op::ImportHandle { handle: Some(3) }, 0);
    play.call(2, map(0x2000_0000, 3), 0);
    let importer = play.process(2).memory;
    assert_eq!(importer.kinds[&Resource::Alias].live, amount(1, 2));
    assert_eq!(importer.gpu.live, Amount::default());
}

#[test]
fn a_context_takes_what_it_held_and_nothing_else() {
    let mut play = Play::under_tracing();
    play.p(Op::CreateContext {
        device: 0,
        context: Some(0xc0),
    });
    for (n, kind) in (1..).zip([
        Resource::Device,
        Resource::Managed,
        Resource::Array,
        Resource::PinnedHost,
        Resource::Module,
        Resource::Graph,
    ]) {
        play.p(allocate(kind, 1, 0x1000 * n));
    }
    play.p(Op::CreateHandle {
        bytes: MIB,
        handle: Some(1),
        place: Place::Device { ordinal: 0 },
    });
    play.p(Op::DestroyContext { context: 0xc0 });
    let process = play.process(1);
    assert_eq!(process.contexts.live, 0);
    for kind in [Resource::Device, Resource::PinnedHost, Resource::Module] {
        assert_eq!(
            play.kind(kind).released_by_context,
            amount(1, 1),
            "{kind:?}"
        );
    }
    assert_eq!(process.memory.gpu.live, amount(1, 1));
}

#[test]
fn a_reset_takes_stream_ordered_memory_along() {
    let mut play = Play::under_tracing();
    play.p(Op::RetainPrimary {
        device: 2,
        context: Some(0xc0),
    });
    play.p(Op::SetContext { context: 0xc0 });
    let stream_ordered = Op::Allocate {
        kind: Resource::Device,
        bytes: MIB,
        address: Some(0x1000),
        place: Place::CurrentDevice,
    };
    play.p(stream_ordered);
    play.p(allocate(Resource::Device, 1, 0x2000));
    assert_eq!(play.process(1).memory.by_device[0].device.value(), Some(&2));
    play.p(Op::ResetPrimary { device: 2 });
    let process = play.process(1);
    assert_eq!(process.memory.gpu.released_by_context, amount(2, 2));
    let contexts = process.contexts;
    assert_eq!(
        (contexts.created, contexts.destroyed, contexts.live),
        (1, 1, 0)
    );
}

#[test]
fn a_context_that_another_thread_destroyed_is_taken_off_in_its_turn() {
    let mut play = Play::under_tracing();
    for context in [0xa, 0xb] {
        play.p(Op::CreateContext {
            device: 0,
            context: Some(context),
        });
    }
    play.by_thread(1, 77, Op::DestroyContext { context: 0xb });
    play.p(Op::PopContext);
    play.p(allocate(Resource::Device, 8, 0x1000));
    let on = play.process(1).memory.by_device;
    assert_eq!(on[0].device.value(), Some(&0));
    play.p(Op::DestroyContext { context: 0xa });
    let process = play.process(1);
    assert_eq!(process.memory.gpu.live, Amount::default());
    assert_eq!(process.contexts.destroyed, 2);
}

#[test]
fn a_reset_of_what_is_not_active_changes_nothing() {
    let mut play = Play::under_tracing();
    let reset = Op::ResetPrimary { device: 0 };
    play.p(reset);
    play.p(Op::RetainPrimary {
        device: 0,
        context: Some(0xc0),
    });
    play.p(reset);
    play.p(Op::CreateContext {
        device: 0,
        context: Some(0xd0),
    });
    play.p(Op::Allocate {
        kind: Resource::Device,
        bytes: MIB,
        address: Some(0x1000),
        place: Place::CurrentDevice,
    });
    play.p(reset);
    let process = play.process(1);
    assert_eq!(process.memory.gpu.live, amount(1, 1));
    let contexts = process.contexts;
    assert_eq!(
        (contexts.created, contexts.destroyed, contexts.live),
        (2, 1, 1)
    );
}

#[test]
fn a_pool_tells_where_its_memory_lies() {
    let mut play = Play::under_tracing();
    let pool = |handle, place| Op::Allocate {
        kind: Resource::Pool,
        bytes: 0,
        address: Some(handle),
        place,
    };
    let from = |address, pool| Op::Allocate {
        kind: Resource::Device,
        bytes: MIB,
        address: Some(address),
        place: Place::Pool { pool },
    };
    play.p(pool(5, Place::Device { ordinal: 3 }));
    play.p(pool(6, Place::Host));
    play.p(from(0x1000, 5));
    play.p(from(0x2000, 6));
    play.p(Op::DevicePool {
        device: 1,
        pool: Some(7),
    });
    play.p(from(0x3000, 7));
    let memory = play.process(1).memory;
    assert_eq!(memory.kinds[&Resource::PinnedHost].live, amount(1, 1));
    let devices: Vec<_> = memory
        .by_device
        .iter()
        .map(|it| it.device.value().copied())
        .collect();
    assert_eq!(devices, [Some(1), Some(3)]);
    play.p(free(Resource::Device, 0x2000));
    assert_eq!(play.kind(Resource::PinnedHost).freed, amount(1, 1));
    assert_eq!(play.kind(Resource::Pool).live.count, 2);
}

#[test]
fn the_device_is_unknown_until_it_is_learned() {
    let mut play = Play::new(false);
    play.p(Op::SetContext { context: 0xc0 });
    play.p(allocate(Resource::Device, 1, 0x1000));
    assert!(!play.process(1).memory.by_device[0].device.is_available());
    play.p(Op::RetainPrimary {
        device: 4,
        context: Some(0xc0),
    });
    let process = play.process(1);
    assert_eq!(process.memory.by_device[0].device.value(), Some(&4));
    assert_eq!(process.contexts.created, 0, "it was there before");
}

#[test]
fn memory_of_a_context_from_before_is_in_doubt_after_its_end() {
    let mut play = Play::new(false);
    play.p(allocate(Resource::Device, 9, 0x1000));
    assert!(!play.process(1).verdict.reason.contains("may be gone"));
    play.p(Op::DestroyContext { context: 0xc0 });
    let verdict = play.process(1).verdict;
    assert!(verdict.reason.contains("may be gone"), "{}", verdict.reason);
}

#[test]
fn failures_are_kept_by_function_and_result() {
    let mut play = Play::under_tracing();
    for result in [2, 2, 700] {
        play.call(1, allocate(Resource::Device, 5, 0), result);
    }
    let reserve = allocate(Resource::Addresses, 100, 0);
    play.call(1, reserve, 2);
    let launch = Op::Activity {
        activity: Activity::Launch,
    };
    play.call(1, launch, 2);
    let process = play.process(1);
    let failures: Vec<_> = process
        .failures
        .iter()
        .map(|it| (it.function.symbol(), it.result, it.count, it.bytes / MIB))
        .collect();
    assert_eq!(
        failures,
        [
            ("cuMemAlloc_v2", 2, 2, 10),
            ("cuMemAlloc_v2", 700, 1, 5),
            ("cuMemAddressReserve", 2, 1, 100),
            ("cuLaunchKernel", 2, 1, 0),
        ]
    );
    assert_eq!(process.memory.gpu.failed_allocations, amount(3, 15));
    assert_eq!(
        play.kind(Resource::Addresses).failed_allocations,
        amount(1, 100)
    );
}

#[test]
fn a_call_inside_a_call_is_part_of_it() {
    let mut play = Play::under_tracing();
    let load = FunctionId::by_symbol("cuModuleLoadData");
    play.call_inside(1, allocate(Resource::Device, 2, 0x1000), 0, load);
    play.p(allocate(Resource::Module, 0, 0x50));
    let memory = play.process(1).memory;
    assert_eq!(memory.gpu.allocated, Amount::default());
    assert_eq!(memory.kinds[&Resource::Module].live.count, 1);
}

#[test]
fn opened_memory_outlives_its_owner_and_counts_once() {
    let mut play = Play::under_tracing();
    for n in 1..=8 {
        play.call(1, allocate(Resource::Device, 640, 0x1000 * n), 0);
        let key = Some(n);
        play.call(
            1,
            Op::ExportPointer {
                address: 0x1000 * n,
                key,
            },
            0,
        );
        let address = Some(0x9000 * n);
        play.call(2, Op::OpenPointer { address, key }, 0);
    }
    assert!(play.report().kept_by_imports.is_empty());
    for n in 1..=8 {
        play.call(1, free(Resource::Device, 0x1000 * n), 0);
    }
    let kept = |play: &Play| play.report().kept_by_imports;
    let all = kept(&play);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].owner, all[0].owner_ended), (1, false));
    assert_eq!(all[0].allocations, amount(8, 5120));
    assert_eq!(all[0].holders[0].handles, 8);
    let holder = play.process(2).memory;
    assert_eq!(holder.kinds[&Resource::Alias].live, amount(8, 5120));
    assert_eq!(holder.gpu.live, Amount::default());
    for n in 1..=3 {
        play.call(2, free(Resource::Alias, 0x9000 * n), 0);
    }
    assert_eq!(kept(&play)[0].allocations, amount(5, 3200));
    play.exit(1);
    assert_eq!(kept(&play)[0].allocations, amount(5, 3200));
    assert!(kept(&play)[0].owner_ended);
    play.exit(2);
    assert!(kept(&play).is_empty());
}

#[test]
fn modules_that_pile_up_are_a_leak_though_nobody_knows_their_bytes() {
    let mut play = Play::under_tracing();
    for n in 1..=300 {
        play.now += 300_000_000;
        play.p(allocate(Resource::Module, 0, n));
        play.p(allocate(Resource::Device, 200, 0x1000));
        play.p(free(Resource::Device, 0x1000));
    }
    let process = play.process(1);
    let site = |kind| process.sites.iter().find(|it| it.kind == kind).unwrap();
    assert_eq!(
        site(Resource::Module).verdict.kind,
        gputrace::analysis::Kind::Leak
    );
    assert!(site(Resource::Module).verdict.reason.contains("modules"));
    assert_eq!(
        site(Resource::Device).verdict.kind,
        gputrace::analysis::Kind::Balanced
    );
    assert_eq!(site(Resource::Module).growth, None);
}
