//! Kinds of memory: that they add up to the process, and the process to its devices.

use serde_json::Value as Json;

use super::{list, whole};
use crate::protocol::Kind;

/// The amounts whose sum over the kinds is the process's.
const SUMMED: [&str; 7] = [
    "live",
    "allocated",
    "freed",
    "failed_allocations",
    "released_by_exit",
    "released_by_exec",
    "released_by_context",
];

const MEMBERS: [&str; 2] = ["count", "bytes"];

/// Whether a call site gives memory on a GPU; one without a kind does.
pub(super) fn is_memory(site: &Json) -> bool {
    match &site["kind"] {
        Json::Null => true,
        kind => serde_json::from_value(kind.clone()).is_ok_and(Kind::is_gpu_memory),
    }
}

/// Checks one process. Nothing is checked of a report without kinds.
pub(super) fn check(report: &Json, process: &Json, name: &str, wrong: &mut Vec<String>) {
    let memory = &process["memory"];
    let Some(kinds) = memory["kinds"].as_object() else {
        return;
    };
    for kind in kinds.keys() {
        if serde_json::from_value::<Kind>(Json::from(kind.as_str())).is_err() {
            wrong.push(format!("{name}: memory.kinds has the unknown kind {kind}"));
        }
    }
    sums(process, name, wrong);
    for (kind, amounts) in kinds {
        for member in MEMBERS {
            let of = |group: &str| whole(&amounts[group][member]);
            if let (Some(live), Some(allocated)) = (of("live"), of("allocated"))
                && live > allocated
            {
                wrong.push(format!(
                    "{name}: {kind}.live.{member} {live} is more than allocated {allocated}"
                ));
            }
            let sites = list(process, "sites").iter();
            let of_sites: i128 = sites
                .filter(|site| site["kind"] == kind.as_str())
                .filter_map(|site| whole(&site["live"][member]))
                .sum();
            if let Some(live) = of("live").filter(|live| of_sites > *live) {
                wrong.push(format!(
                    "{name}: its call sites of {kind} hold {of_sites} {member}, it {live}"
                ));
            }
        }
    }
    vmm(memory, name, wrong);
    devices(report, process, name, wrong);
}

fn kind_sum(memory: &Json, kinds: impl Fn(Kind) -> bool, group: &str, member: &str) -> i128 {
    let all = memory["kinds"].as_object();
    all.into_iter()
        .flatten()
        .filter(|(kind, _)| serde_json::from_value(Json::from(kind.as_str())).is_ok_and(&kinds))
        .filter_map(|(_, amounts)| whole(&amounts[group][member]))
        .sum()
}

/// The kinds of memory on a GPU add up to the process's own figures, and so do the devices.
fn sums(process: &Json, name: &str, wrong: &mut Vec<String>) {
    let memory = &process["memory"];
    for group in SUMMED {
        for member in MEMBERS {
            let Some(all) = whole(&memory[group][member]) else {
                continue;
            };
            let sum = kind_sum(memory, Kind::is_gpu_memory, group, member);
            if sum != all {
                wrong.push(format!(
                    "{name}: the kinds' {group}.{member} add up to {sum}, not to {all}"
                ));
            }
        }
    }
    if memory["by_device"].is_null() {
        return;
    }
    for member in MEMBERS {
        let by_device = list(memory, "by_device").iter();
        let sum: i128 = by_device
            .filter_map(|entry| whole(&entry["live"][member]))
            .sum();
        if whole(&memory["live"][member]).is_some_and(|live| live != sum) {
            wrong.push(format!(
                "{name}: by_device adds up to {sum} {member}, not to {}",
                memory["live"][member]
            ));
        }
    }
}

/// Physical memory either has an address or has none.
fn vmm(memory: &Json, name: &str, wrong: &mut Vec<String>) {
    for member in MEMBERS {
        let of = |group: &str| whole(&memory["vmm"][group][member]);
        let live = whole(&memory["kinds"]["vmm"]["live"][member]).unwrap_or(0);
        if let (Some(mapped), Some(unmapped)) = (of("mapped"), of("unmapped"))
            && mapped + unmapped != live
        {
            wrong.push(format!(
                "{name}: vmm.mapped {mapped} + unmapped {unmapped} {member} is not its live {live}"
            ));
        }
    }
}

/// Nobody holds more of a device than it has. Managed memory may exceed it: it lies elsewhere then.
fn devices(report: &Json, process: &Json, name: &str, wrong: &mut Vec<String>) {
    let memory = &process["memory"];
    let managed = kind_sum(memory, |kind| kind == Kind::Managed, "live", "bytes");
    for entry in list(memory, "by_device") {
        let (Some(ordinal), Some(live)) = (whole(&entry["device"]), whole(&entry["live"]["bytes"]))
        else {
            continue;
        };
        let mut devices = list(report, "devices").iter();
        let device = devices.find(|device| whole(&device["index"]) == Some(ordinal));
        if let Some(total) = device.and_then(|device| whole(&device["total"]))
            && live - managed > total
        {
            wrong.push(format!(
                "{name} holds {live} bytes on device {ordinal}, which has {total}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Invariants;
    use serde_json::{Value as Json, json};

    fn amount(count: u64, bytes: u64) -> Json {
        json!({"count": count, "bytes": bytes})
    }

    fn report() -> Json {
        json!({
            "schema": "gputrace/1", "type": "snapshot", "boot_ns": "100",
            "losses": {"events": 0, "first": null, "last": null, "causes": {}},
            "devices": {"value": [{"index": 0, "total": {"value": 1000}}]},
            "processes": [{
                "tgid": 7, "start_ticks": "1",
                "memory": {
                    "live": amount(3, 700), "allocated": amount(3, 700), "freed": amount(0, 0),
                    "kinds": {
                        "device": {"live": amount(1, 100), "allocated": amount(1, 100), "freed": amount(0, 0)},
                        "vmm": {"live": amount(2, 600), "allocated": amount(2, 600), "freed": amount(0, 0)},
                        "pinned_host": {"live": amount(1, 5000), "allocated": amount(1, 5000), "freed": amount(0, 0)},
                    },
                    "vmm": {"mapped": amount(1, 300), "unmapped": amount(1, 300), "exported": amount(0, 0)},
                    "by_device": [
                        {"device": {"value": 0}, "live": amount(2, 400)},
                        {"device": {"not_available": "?"}, "live": amount(1, 300)},
                    ],
                },
                "sites": [{"kind": "pinned_host", "live": amount(1, 5000)}],
            }],
        })
    }

    fn wrong(change: impl FnOnce(&mut Json)) -> Vec<String> {
        let mut changed = report();
        change(&mut changed["processes"][0]["memory"]);
        Invariants::default().check(&changed)
    }

    #[test]
    fn kinds_that_add_up_pass() {
        let found = wrong(|_| {});
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn each_violation_is_found() {
        type Change = fn(&mut Json);
        let changes: [(&str, Change); 7] = [
            ("the kinds' live.bytes add up to 700", |m| {
                m["live"]["bytes"] = json!(600);
            }),
            ("the kinds' allocated.count add up to 3", |m| {
                m["allocated"]["count"] = json!(4);
            }),
            ("unknown kind", |m| m["kinds"]["vram"] = json!({})),
            ("pinned_host.live.bytes 5000 is more", |m| {
                m["kinds"]["pinned_host"]["allocated"]["bytes"] = json!(4999);
            }),
            ("call sites of pinned_host hold 5000", |m| {
                m["kinds"]["pinned_host"]["live"]["bytes"] = json!(4999);
            }),
            ("vmm.mapped 300 + unmapped 301", |m| {
                m["vmm"]["unmapped"]["bytes"] = json!(301);
            }),
            ("by_device adds up to 1701", |m| {
                m["by_device"][0]["live"]["bytes"] = json!(1401);
            }),
        ];
        for (message, change) in changes {
            let found = wrong(change);
            assert!(
                found.iter().any(|text| text.contains(message)),
                "{message}: {found:?}"
            );
        }
        let found = wrong(|m| m["by_device"][0]["live"]["bytes"] = json!(1401));
        assert!(
            found.iter().any(|text| text.contains("which has 1000")),
            "{found:?}"
        );
    }
}
