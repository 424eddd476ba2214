//! An actor does what its runner tells it, and says exactly what it did.

#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "a failure here is a failed test, and JSON literals read best by value"
)]

mod common;

use common::{CONTEXT, Stage, TOTAL};
use gputrace_test_rig::protocol::{Amount, Kind, Message, Site};
use object::{Object, ObjectSymbol};
use serde_json::json;
use std::collections::HashMap;

const MIB: u64 = 1 << 20;

fn amount(count: u64, bytes: u64) -> Amount {
    Amount { count, bytes }
}

#[test]
fn allocations_and_frees_are_counted_exactly() {
    let (stage, mut p) = Stage::ready();
    let done = p.does(json!({"do": "alloc", "bytes": "4 MiB", "count": 3, "site": "site_B"}));
    assert_eq!(done.allocations.succeeded, amount(3, 12 * MIB));
    assert_eq!(done.sites[&Site::named('B')], done.allocations);
    assert_eq!(done.live, amount(3, 12 * MIB));
    assert!(done.started <= done.ended && done.started > 0);

    let done = p.does(json!({"do": "alloc", "bytes": TOTAL, "expect": [0, 2], "label": "big"}));
    assert_eq!(done.allocations.failed[&2], amount(1, TOTAL));
    assert_eq!(done.live, amount(3, 12 * MIB));

    let done = p.does(json!({"do": "free", "count": 2}));
    assert_eq!(done.frees.succeeded, amount(2, 8 * MIB));
    assert_eq!(stage.devices.used(0), CONTEXT + 4 * MIB);
    let info = p.does(json!({"do": "memory_info"})).memory.unwrap();
    assert_eq!(
        (info.total, info.total - info.free),
        (TOTAL, CONTEXT + 4 * MIB)
    );

    let done = p.does(json!({"do": "free_bad", "count": 5}));
    assert_eq!(done.frees.failed[&1], amount(5, 0));

    p.does(json!({"do": "ctx_create", "device": 1, "label": "d"}));
    p.does(json!({"do": "alloc", "bytes": "1 MiB", "label": "other"}));
    assert_eq!(stage.devices.used(1), CONTEXT + MIB);
    let done = p.does(json!({"do": "ctx_destroy", "label": "d"}));
    assert_eq!(done.live, amount(1, 4 * MIB));
    assert_eq!(stage.devices.used(1), 0);
    p.does(json!({"do": "set_current", "label": "c"}));
    let done = p.does(json!({"do": "free"}));
    assert_eq!(done.live, amount(0, 0));
}

#[test]
fn what_is_not_allowed_is_a_failure_with_what_was_done() {
    let (_stage, mut p) = Stage::start();
    let (message, results) = p.fails(json!({"do": "alloc", "bytes": 4096, "count": 2}));
    assert_eq!(message, "site_A: allocating 4096 bytes gave 3; 0 expected");
    assert_eq!(results.allocations.failed[&3], amount(1, 4096));
    p.does(json!({"do": "alloc", "bytes": 4096, "expect": 3}));
    let (message, _) = p.fails(json!({"do": "free", "label": "none", "count": 1}));
    assert!(message.contains("none"));
    let (message, _) = p.fails(json!({"do": "set_current", "label": "x"}));
    assert!(message.contains('x'));
    let (message, _) = p.fails(json!(
        {"do": "loop", "iterations": 1, "body": [{"do": "exit_thread"}]}
    ));
    assert!(message.contains("ExitThread"));
}

#[test]
fn every_way_to_the_driver_leads_there() {
    let (stage, mut p) = Stage::start();
    // The runtime needs no preparation.
    let done = p.does(json!({"do": "alloc", "bytes": "2 MiB", "via": "runtime"}));
    assert_eq!(done.live, amount(1, 2 * MIB));
    assert_eq!(stage.devices.used(0), CONTEXT + 2 * MIB);
    p.does(json!({"do": "alloc", "bytes": "1 MiB", "via": "procaddr"}));
    p.does(json!({"do": "alloc", "bytes": "1 MiB", "via": "driver"}));
    assert_eq!(stage.devices.used(0), CONTEXT + 4 * MIB);
    p.does(json!({"do": "free", "via": "runtime", "count": 2}));
    p.does(json!({"do": "free", "via": "procaddr"}));
    assert_eq!(stage.devices.used(0), CONTEXT);
    p.does(json!({"do": "alloc", "bytes": TOTAL, "via": "runtime", "expect": 2}));
    p.does(json!({"do": "free_bad", "via": "runtime"}));
    p.does(json!({"do": "memory_info", "via": "runtime"}));
}

#[test]
fn a_loop_does_each_step_as_often_as_it_should() {
    let (_stage, mut p) = Stage::ready();
    let done = p.does(json!({"do": "loop", "iterations": 600, "body": [
        {"do": "alloc", "bytes": "4 MiB", "site": "site_A"},
        {"do": "free", "count": 1},
        {"do": "alloc", "bytes": "6 MiB", "site": "site_B", "label": "kept", "each": 3},
    ]}));
    assert_eq!(
        done.sites[&Site::named('A')].succeeded,
        amount(600, 2400 * MIB)
    );
    assert_eq!(
        done.sites[&Site::named('B')].succeeded,
        amount(200, 1200 * MIB)
    );
    assert_eq!(done.frees.succeeded, amount(600, 2400 * MIB));
    assert_eq!(done.live, amount(200, 1200 * MIB));

    let done = p.does(
        json!({"do": "loop", "iterations": 5, "every": "10ms", "body": [
            {"do": "synchronize"}
        ]}),
    );
    assert_eq!(done.synchronizations.succeeded.count, 5);
    assert!(done.ended - done.started >= 40_000_000);
}

#[test]
fn injected_failures_are_seen() {
    let (_stage, mut p) = Stage::ready();
    p.does(json!({"do": "rig_set", "key": "alloc_fail_every", "value": 16}));
    let done = p.does(json!({"do": "alloc", "bytes": "1 MiB", "count": 256, "expect": [0, 2]}));
    assert_eq!(done.allocations.succeeded.count, 240);
    assert_eq!(done.allocations.failed[&2].count, 16);
    assert_eq!(done.allocations.failures().count, 16);
    p.fails(json!({"do": "rig_set", "key": "nothing", "value": 1}));
}

#[test]
fn threads_live_on_without_the_leader() {
    let (mut stage, mut p) = Stage::ready();
    p.does(json!({"do": "spawn", "count": 3}));
    let mut threads = HashMap::new();
    for _ in 0..3 {
        let thread = stage.accept();
        assert_eq!(thread.hello.tgid, p.hello.tgid);
        assert_ne!(thread.hello.tid, p.hello.tid);
        threads.insert(thread.hello.thread, thread);
    }
    let first = threads.get_mut(&1).unwrap();
    first.does(json!({"do": "alloc", "bytes": 4096, "expect": 201}));
    first.does(json!({"do": "set_current", "label": "c"}));
    first.does(json!({"do": "alloc", "bytes": 4096}));
    // Another thread frees what this one allocated.
    p.does(json!({"do": "free"}));
    first.does(json!({"do": "exit_thread"}));
    assert_eq!(first.hear(), None);
    p.does(json!({"do": "exit_thread"}));
    assert_eq!(p.hear(), None);
    let stat = format!("/proc/{}/stat", p.hello.tgid);
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let second = threads.get_mut(&2).unwrap();
    second.does(json!({"do": "set_current", "label": "c"}));
    let done = second.does(json!({"do": "alloc", "bytes": 4096}));
    assert_eq!(done.live, amount(1, 4096));
    second.does(json!({"do": "exit_process", "code": 7}));
    assert_eq!(stage.actor.wait().unwrap().code(), Some(7));
    assert_eq!(stage.devices.used(0), 0);
}

#[test]
fn a_forked_child_keeps_the_memory_and_cannot_use_it() {
    let (mut stage, mut p) = Stage::ready();
    p.does(json!({"do": "alloc", "bytes": "8 MiB"}));
    let child = p.does(json!({"do": "fork", "child": "W1"})).child.unwrap();
    let mut w1 = stage.accept();
    assert_eq!((w1.hello.actor.as_str(), w1.hello.tgid), ("W1", child));
    assert_eq!((w1.hello.parent, w1.hello.thread), (p.hello.tgid, 0));
    w1.does(json!({"do": "init", "expect": 3}));
    w1.does(json!({"do": "alloc", "bytes": 4096, "expect": 3}));
    let (_, results) = w1.fails(json!({"do": "free"}));
    assert_eq!(results.live, amount(1, 8 * MIB));
    // The parent's connection is its own.
    p.does(json!({"do": "synchronize"}));
    stage.actor.kill().unwrap();
    stage.actor.wait().unwrap();
    assert_eq!(p.hear(), None);
    assert_eq!(stage.devices.used(0), CONTEXT + 8 * MIB);
    w1.does(json!({"do": "exit_process"}));
    while stage.devices.used(0) != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_child_is_waited_for() {
    let (mut stage, mut p) = Stage::start();
    p.does(json!({"do": "fork", "child": "W"}));
    stage
        .accept()
        .does(json!({"do": "exit_process", "code": 3}));
    let done = p.does(json!({"do": "wait", "child": "W"}));
    assert_eq!(done.status, Some(3 << 8));
    p.fails(json!({"do": "wait", "child": "W"}));
}

#[test]
fn an_exec_starts_a_new_image_under_the_same_name() {
    let (mut stage, mut p) = Stage::ready();
    p.does(json!({"do": "alloc", "bytes": "8 MiB"}));
    p.does(json!({"do": "exec", "title": "a title longer than fifteen bytes"}));
    assert_eq!(p.hear(), None);
    let mut again = stage.accept();
    assert_eq!(again.hello, p.hello);
    assert_eq!(stage.devices.used(0), 0);
    let command_line = std::fs::read(format!("/proc/{}/cmdline", p.hello.tgid)).unwrap();
    assert!(command_line.starts_with(b"a title longer than fifteen bytes\0"));
    let done = again.does(json!({"do": "alloc", "bytes": 4096, "expect": 3}));
    assert_eq!(done.live, amount(0, 0));
}

#[test]
fn a_title_is_shown_by_proc() {
    let (mut stage, mut p) = Stage::start();
    for title in [
        "engine",
        "VLLM::EngineCore_DP0, which is rather a long title",
    ] {
        p.does(json!({"do": "set_title", "title": title}));
        let folder = format!("/proc/{}", p.hello.tgid);
        let command_line = std::fs::read(format!("{folder}/cmdline")).unwrap();
        assert!(command_line.starts_with(title.as_bytes()));
        let rest = &command_line[title.len()..];
        assert!(rest.iter().all(|byte| *byte == 0));
        let name = std::fs::read_to_string(format!("{folder}/comm")).unwrap();
        assert_eq!(name.trim_end(), &title[..title.len().min(15)]);
    }
    // The environment is still known, and goes along.
    p.does(json!({"do": "exec"}));
    stage.accept().does(json!({"do": "init"}));
}

#[test]
fn a_hammer_counts_what_it_did() {
    let (stage, mut p) = Stage::ready();
    let hammer = |extra: serde_json::Value| {
        let mut command = json!({"do": "hammer", "threads": 8, "min": "64 KiB", "pairs": 20_003});
        let fields = command.as_object_mut().unwrap();
        fields.extend(extra.as_object().unwrap().clone());
        command
    };
    let all = amount(20_003, 20_003 << 16);
    let done = p.does(hammer(json!({})));
    assert_eq!(done.allocations.succeeded, all);
    assert_eq!(done.frees.succeeded, all);
    assert_eq!(done.live, amount(0, 0));

    let done = p.does(hammer(
        json!({"cross_thread": true, "hold": 4, "max": "1 MiB"}),
    ));
    assert_eq!(done.allocations.succeeded.count, 20_003);
    assert_eq!(done.frees, done.allocations);
    assert_eq!(stage.devices.used(0), CONTEXT);

    let leave = json!({"cross_thread": true, "hold": 4, "max": "1 MiB", "leave": true});
    let done = p.does(hammer(leave));
    assert_eq!(done.live.count, 8 * 4);
    let (made, freed) = (done.allocations.succeeded, done.frees.succeeded);
    assert_eq!(made.count - freed.count, done.live.count);
    assert_eq!(made.bytes - freed.bytes, done.live.bytes);
    assert_eq!(stage.devices.used(0), CONTEXT + done.live.bytes);
    p.does(json!({"do": "free"}));
    assert_eq!(stage.devices.used(0), CONTEXT);

    p.does(json!({"do": "rig_set", "key": "alloc_fail_every", "value": 10}));
    let done = p.does(hammer(json!({"expect": "any"})));
    assert_eq!(done.allocations.failed[&2].count, 2000);
    assert_eq!(done.frees.succeeded.count, 18_003);
    let (message, _) = p.fails(hammer(json!({"cross_thread": true})));
    assert_eq!(message, "allocating gave 2; 0 expected");
    p.does(json!({"do": "free"}));
    assert_eq!(stage.devices.used(0), CONTEXT);
    p.fails(hammer(json!({"for": "1s"})));
}

#[test]
fn a_hammer_stops_in_time() {
    let (_stage, mut p) = Stage::ready();
    let done = p.does(json!({
        "do": "hammer", "threads": 64, "min": "64 KiB", "for": "50ms", "via": "runtime"
    }));
    assert!(done.ended - done.started >= 50_000_000);
    assert_eq!(done.frees, done.allocations);
    assert!(done.allocations.succeeded.count >= 64);
}

#[test]
fn random_allocations_have_an_exact_sum() {
    let (stage, mut p) = Stage::ready();
    let total = 3_328_599_654_u64;
    let done = p.does(json!({
        "do": "random_allocs", "seed": 1, "min": "1 MiB", "max": "64 MiB",
        "total": total, "over": "20ms", "label": "cache"
    }));
    assert_eq!(done.allocations.succeeded.bytes, total);
    assert_eq!(stage.devices.used(0), CONTEXT + total);
    assert!(done.ended - done.started >= 20_000_000);
}

#[test]
fn a_process_can_be_killed_inside_an_allocation() {
    let (mut stage, mut p) = Stage::ready();
    p.does(json!({"do": "block_in_alloc", "bytes": 4096, "for": "1ms"}));
    p.tell(json!({"do": "block_in_alloc", "bytes": 4096, "for": "1000s"}));
    let stat = format!("/proc/{}/stat", p.hello.tgid);
    while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
        std::thread::yield_now();
    }
    stage.actor.kill().unwrap();
    stage.actor.wait().unwrap();
    assert_eq!(p.hear(), None);
    assert_eq!(stage.devices.used(0), 0);
}

#[test]
fn an_actor_ends_with_its_runner() {
    let (mut stage, mut p) = Stage::start();
    p.tell(json!({"do": "loop", "iterations": 1000, "every": "1000s", "body": []}));
    drop(p);
    stage.actor.wait().unwrap();
}

#[test]
fn a_message_that_is_no_command_is_answered() {
    let (_stage, mut p) = Stage::start();
    // A valid command of another rig's version, say.
    p.tell_raw("{\"do\":\"fly\"}");
    match p.hear() {
        Some(Message::Failed(failure)) => assert!(failure.message.contains("fly")),
        other => panic!("{other:?}"),
    }
    p.does(json!({"do": "sleep", "for": 1}));
}

#[test]
fn call_sites_are_symbols_of_the_program() {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_actor")).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let addresses: HashMap<u64, &str> = file
        .symbols()
        .filter(|symbol| symbol.name().is_ok_and(|name| name.starts_with("site_")))
        .map(|symbol| (symbol.address(), symbol.name().unwrap()))
        .collect();
    assert_eq!(addresses.len(), Site::COUNT);
    for name in ["release", "run_command"] {
        assert!(file.symbols().any(|symbol| symbol.name() == Ok(name)));
    }
}

#[test]
fn each_kind_of_memory_is_given_back_by_its_own_function() {
    let (stage, mut p) = Stage::ready();
    p.does(json!({"do": "pool_create", "label": "pool"}));
    for via in ["driver", "procaddr"] {
        for (kind, counted) in [
            ("device", Kind::Device),
            ("pitch", Kind::Device),
            ("managed", Kind::Managed),
            ("async", Kind::Device),
            ("pool", Kind::Device),
            ("host", Kind::PinnedHost),
            ("host_v2", Kind::PinnedHost),
            ("register", Kind::PinnedHost),
            ("array", Kind::Array),
            ("array3d", Kind::Array),
            ("mipmap", Kind::Array),
        ] {
            let done = p.does(json!({
                "do": "alloc", "kind": kind, "bytes": "2 MiB", "count": 2, "pool": "pool",
                "ptsz": via == "driver", "site": "site_K", "via": via
            }));
            assert_eq!(done.live_kinds[&counted], amount(2, 4 * MIB), "{kind}");
            let of_kind = &done.kinds[&counted];
            assert_eq!(of_kind.allocations.succeeded, amount(2, 4 * MIB));
            assert_eq!(of_kind.sites[&Site::named('K')], of_kind.allocations);
            let on_gpu = if counted == Kind::PinnedHost { 0 } else { 2 };
            assert_eq!(done.live, amount(on_gpu, on_gpu * 2 * MIB), "{kind}");
            let done = p.does(json!({"do": "free", "via": via}));
            assert_eq!(done.kinds[&counted].frees.succeeded, amount(2, 4 * MIB));
            assert_eq!(done.live_kinds[&counted], amount(0, 0));
            p.does(json!({"do": "free_bad", "kind": kind, "via": via, "expect": "any"}));
        }
    }
    p.does(json!({"do": "pool_trim", "label": "pool"}));
    assert_eq!(stage.devices.used(0), CONTEXT);
    let done = p.does(json!({"do": "alloc", "kind": "pitch", "bytes": 100_000, "width": 1000}));
    assert!(done.live.bytes > 100_000, "rows are padded");
    let done = p.does(json!({
        "do": "alloc", "kind": "mipmap", "bytes": "1 MiB", "levels": 3, "label": "m"
    }));
    assert_eq!(done.allocations.succeeded.bytes, MIB + MIB / 4 + MIB / 16);
    p.fails(json!({"do": "alloc", "kind": "pool", "bytes": 4096, "pool": "none"}));
}

#[test]
fn physical_memory_is_gone_with_its_last_handle_and_mapping() {
    let (stage, mut p) = Stage::start();
    p.does(json!({"do": "init"}));
    p.does(json!({"do": "reserve", "bytes": "64 MiB"}));
    p.does(json!({"do": "vmm_create", "bytes": "8 MiB", "count": 2}));
    p.does(json!({"do": "map", "count": 2}));
    let done = p.does(json!({"do": "vmm_release"}));
    assert_eq!(done.live, amount(2, 16 * MIB));
    assert_eq!(done.frees.succeeded, amount(0, 0));
    p.does(json!({"do": "vmm_retain", "label": "again"}));
    let done = p.does(json!({"do": "unmap"}));
    assert_eq!(done.live, amount(1, 8 * MIB));
    assert_eq!(stage.devices.used(0), 8 * MIB);
    let done = p.does(json!({"do": "vmm_release", "label": "again"}));
    assert_eq!(done.frees.succeeded, amount(1, 8 * MIB));
    assert_eq!(stage.devices.used(0), 0);
    let done = p.does(json!({"do": "unreserve"}));
    assert_eq!(done.live_kinds[&Kind::Addresses], amount(0, 0));

    p.does(json!({"do": "reserve", "bytes": "64 MiB"}));
    p.does(json!({"do": "vmm_create", "bytes": "8 MiB"}));
    // The same one twice.
    p.does(json!({"do": "map"}));
    p.does(json!({"do": "map"}));
    let done = p.does(json!({"do": "vmm_release"}));
    assert_eq!(done.live, amount(1, 8 * MIB));
    let done = p.does(json!({"do": "unmap", "whole": true}));
    assert_eq!(done.live, amount(0, 0));
    assert_eq!(stage.devices.used(0), 0);
    let (message, _) = p.fails(json!({"do": "vmm_retain"}));
    assert!(message.contains("mapped"), "{message}");
}

#[test]
fn contexts_of_every_kind_are_made_and_destroyed() {
    let (stage, mut p) = Stage::start();
    for via in ["driver", "procaddr"] {
        // A green context needs the primary one.
        p.does(json!({"do": "retain_primary", "label": "primary"}));
        for how in ["v2", "v3", "v4", "green"] {
            p.does(json!({"do": "ctx_create", "how": how, "label": "c", "via": via}));
            let done = p.does(json!({"do": "alloc", "bytes": "1 MiB"}));
            assert_eq!(done.live, amount(1, MIB));
            p.does(json!({"do": "push", "label": "c", "via": via}));
            p.does(json!({"do": "pop", "via": via}));
            p.does(json!({"do": "free"}));
            p.does(json!({"do": "ctx_destroy", "label": "c", "via": via}));
        }
        p.does(json!({"do": "set_current", "label": "primary"}));
        p.does(json!({"do": "alloc", "bytes": "1 MiB"}));
        let done = p.does(json!({"do": "reset_primary", "via": via}));
        assert_eq!(done.live, amount(0, 0));
    }
    assert_eq!(stage.devices.used(0), 0);
}

#[test]
fn programs_are_loaded_and_work_is_counted() {
    let (stage, mut p) = Stage::ready();
    for via in ["driver", "procaddr"] {
        for how in [
            "data",
            "data_ex",
            "fatbin",
            "file",
            "library",
            "library_file",
        ] {
            let done = p.does(json!({"do": "module_load", "how": how, "via": via}));
            assert_eq!(done.kinds[&Kind::Module].allocations.succeeded.count, 1);
        }
        for how in ["kernel", "ex", "cooperative"] {
            for ptsz in [false, true] {
                let launch = json!({"do": "launch", "how": how, "ptsz": ptsz, "via": via});
                assert_eq!(p.does(launch).launches.succeeded.count, 1);
            }
        }
        let done = p.does(json!({"do": "module_unload", "via": via}));
        assert_eq!(done.live_kinds[&Kind::Module].count, 0);
        for how in ["flags", "v2", "params"] {
            let graph = json!({"do": "graph_instantiate", "how": how, "ptsz": true, "via": via});
            assert_eq!(p.does(graph).live_kinds[&Kind::Graph].count, 1);
            let launch = json!({"do": "graph_launch", "count": 3, "ptsz": true, "via": via});
            assert_eq!(p.does(launch).launches.succeeded.count, 3);
            p.does(json!({"do": "graph_destroy", "via": via}));
        }
        p.does(json!({"do": "graph_instantiate", "memory": "1 MiB", "via": via}));
        p.does(json!({"do": "graph_launch", "via": via}));
        p.does(json!({"do": "graph_destroy", "via": via}));
        p.does(json!({"do": "graph_trim", "via": via}));
        p.does(json!({"do": "alloc", "bytes": "1 MiB", "kind": "managed"}));
        for how in [
            "to_device",
            "to_device_async",
            "to_host",
            "on_device",
            "set",
            "set_async",
            "prefetch",
        ] {
            for ptsz in [false, true] {
                let copy = json!({"do": "copy", "how": how, "ptsz": ptsz, "via": via});
                assert_eq!(p.does(copy).copies.succeeded, amount(1, 4096), "{how}");
            }
        }
        p.does(json!({"do": "free"}));
        for how in ["context", "stream", "event"] {
            let wait = json!({"do": "synchronize", "how": how, "ptsz": true, "via": via});
            assert_eq!(p.does(wait).synchronizations.succeeded.count, 1);
        }
    }
    assert_eq!(stage.devices.used(0), CONTEXT);
}

#[test]
fn memory_is_shared_with_another_process() {
    let (mut stage, mut p) = Stage::ready();
    p.does(json!({"do": "alloc", "bytes": "4 MiB", "count": 3, "label": "shared"}));
    p.does(json!({"do": "ipc_export", "label": "shared"}));
    p.does(json!({"do": "vmm_create", "bytes": "8 MiB", "label": "shared"}));
    p.does(json!({"do": "vmm_export", "label": "shared"}));
    let mut q = stage.another("Q");
    q.does(json!({"do": "ctx_create"}));
    let open = json!({"do": "ipc_open", "process": "P", "of": "shared", "count": 2});
    let done = q.does(open);
    assert_eq!(done.live_kinds[&Kind::Alias], amount(2, 8 * MIB));
    assert_eq!(done.live, amount(0, 0));
    q.does(json!({"do": "vmm_import", "process": "P", "of": "shared"}));
    let all = 2 * CONTEXT + 20 * MIB;
    assert_eq!(stage.devices.used(0), all);
    p.does(json!({"do": "free", "label": "shared"}));
    p.does(json!({"do": "vmm_release", "label": "shared"}));
    p.does(json!({"do": "close_exports", "label": "shared"}));
    assert_eq!(stage.devices.used(0), all - 4 * MIB);
    q.does(json!({"do": "ipc_close"}));
    let done = q.does(json!({"do": "vmm_release"}));
    assert_eq!(done.live_kinds[&Kind::Alias], amount(0, 0));
    assert_eq!(stage.devices.used(0), 2 * CONTEXT);
    q.fails(json!({"do": "ipc_open", "process": "P", "of": "other"}));

    p.does(json!({"do": "pool_create", "label": "pool"}));
    p.does(json!({"do": "alloc", "kind": "pool", "pool": "pool", "bytes": "2 MiB", "label": "m"}));
    p.does(json!({"do": "pool_export", "label": "pool", "memory": "m"}));
    p.does(json!({"do": "vmm_create", "bytes": "8 MiB", "label": "file"}));
    p.does(json!({"do": "vmm_export", "label": "file"}));
    let theirs =
        |what: &str, of: &str| json!({"do": what, "process": "P", "of": of, "label": "theirs"});
    let done = q.does(theirs("pool_import", "pool"));
    assert_eq!(done.live_kinds[&Kind::Pool], amount(1, 0));
    assert_eq!(done.live_kinds[&Kind::Alias], amount(1, 2 * MIB));
    let done = q.does(theirs("external_import", "file"));
    assert_eq!(done.live_kinds[&Kind::Alias], amount(3, 18 * MIB));
    assert_eq!(stage.devices.used(0), 2 * CONTEXT + 10 * MIB);
    q.does(json!({"do": "free", "label": "theirs"}));
    q.does(json!({"do": "external_destroy", "label": "theirs"}));
    let done = q.does(json!({"do": "pool_destroy", "label": "theirs"}));
    assert_eq!(done.live_kinds[&Kind::Alias], amount(0, 0));
}
