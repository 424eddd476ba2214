//! What must hold in everything that gputrace prints, whatever a scenario asks for.

mod kinds;

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::expression::Scalar;
use super::path::inside;

/// The schema that every line must name.
pub const SCHEMA: &str = "gputrace/1";

/// The types of lines that there are.
const TYPES: [&str; 5] = ["start", "event", "events_left_out", "snapshot", "report"];

/// Counts that never go down while a process lives.
const GROWING: [[&str; 2]; 2] = [["allocated", "count"], ["freed", "count"]];

/// Checks each line, and each report against the one before.
#[derive(Debug, Default)]
pub struct Invariants {
    boot_ns: i128,
    finished: bool,
    /// The growing counts of each process, by PID and start time, in all and of each kind.
    counts: BTreeMap<(String, String, String), [i128; GROWING.len()]>,
}

impl Invariants {
    /// What is wrong with this line, and with the report in it if it has one.
    pub fn check(&mut self, line: &Json) -> Vec<String> {
        let mut wrong = Vec::new();
        if line["schema"] != SCHEMA {
            wrong.push(format!("schema is {}, not \"{SCHEMA}\"", line["schema"]));
        }
        let kind = line["type"].as_str().unwrap_or_default();
        if !TYPES.contains(&kind) {
            wrong.push(format!("a line has the unknown type {}", line["type"]));
        }
        if self.finished {
            wrong.push(format!(
                "a line of type \"{kind}\" follows the report, which is the last"
            ));
        }
        negatives(line, "", &mut wrong);
        if matches!(kind, "snapshot" | "report") {
            self.finished = kind == "report";
            self.time(line, &mut wrong);
            devices(line, &mut wrong);
            losses(line, &mut wrong);
            for process in list(line, "processes") {
                let name = format!("process {}", process["tgid"]);
                amounts(process, &name, &mut wrong);
                kinds::check(line, process, &name, &mut wrong);
                self.growth(process, &name, &mut wrong);
            }
        }
        wrong
    }

    fn time(&mut self, report: &Json, wrong: &mut Vec<String>) {
        match whole(&report["boot_ns"]) {
            None => wrong.push(format!("boot_ns is {}, not a time", report["boot_ns"])),
            Some(now) if now < self.boot_ns => {
                wrong.push(format!("boot_ns went back from {} to {now}", self.boot_ns));
            }
            Some(now) => self.boot_ns = now,
        }
    }

    fn growth(&mut self, process: &Json, name: &str, wrong: &mut Vec<String>) {
        let memory = &process["memory"];
        self.growth_of(process, memory, "", name, wrong);
        for (kind, amounts) in memory["kinds"].as_object().into_iter().flatten() {
            self.growth_of(process, amounts, kind, name, wrong);
        }
    }

    /// Of one kind, or of all where it has no name.
    fn growth_of(
        &mut self,
        process: &Json,
        memory: &Json,
        kind: &str,
        name: &str,
        wrong: &mut Vec<String>,
    ) {
        let key = (
            process["tgid"].to_string(),
            process["start_ticks"].to_string(),
            kind.to_owned(),
        );
        let counts = self.counts.entry(key).or_default();
        for ([group, member], before) in GROWING.iter().zip(counts) {
            let now = whole(&memory[group][member]).unwrap_or(0);
            if now < *before {
                wrong.push(format!(
                    "{name}: {kind} {group}.{member} went down from {before} to {now}"
                ));
            }
            *before = now;
        }
    }
}

fn list<'v>(value: &'v Json, key: &str) -> &'v [Json] {
    inside(&value[key]).as_array().map_or(&[], Vec::as_slice)
}

/// A number, also where it is evidence or a string of digits.
fn whole(value: &Json) -> Option<i128> {
    match Scalar::of(value).number()? {
        super::number::Number::Whole(whole) => Some(whole),
        super::number::Number::Real(_) => None,
    }
}

fn negatives(value: &Json, at: &str, wrong: &mut Vec<String>) {
    match value {
        Json::Number(number) if number.as_f64().is_some_and(|number| number < 0.0) => {
            wrong.push(format!("{at} is negative: {number}"));
        }
        Json::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                negatives(element, &format!("{at}[{index}]"), wrong);
            }
        }
        Json::Object(members) => {
            for (name, member) in members {
                negatives(member, &format!("{at}.{name}"), wrong);
            }
        }
        _ => {}
    }
}

/// No part of a device is larger than the device, and what is explained and what is not make up
/// what is used.
fn devices(report: &Json, wrong: &mut Vec<String>) {
    for device in list(report, "devices") {
        let name = format!("device {}", device["index"]);
        let value = |key: &str| whole(&device[key]);
        if let Some(total) = value("total") {
            for key in ["used", "free", "reserved", "processes", "unexplained"] {
                if let Some(part) = value(key).filter(|part| *part > total) {
                    wrong.push(format!(
                        "{name}: {key} is {part}, more than its total {total}"
                    ));
                }
            }
        }
        let closes = [value("processes"), value("unexplained"), value("used")];
        if let [Some(processes), Some(unexplained), Some(used)] = closes {
            let exceeds = value("exceeds").unwrap_or(0);
            if processes + unexplained - exceeds != used {
                wrong.push(format!(
                    "{name} does not close: processes {processes} + unexplained {unexplained} \
                     - exceeds {exceeds} is not used {used}"
                ));
            }
        }
    }
}

/// Losses are told by cause, in all and per process, and the sums agree.
fn losses(report: &Json, wrong: &mut Vec<String>) {
    let losses = &report["losses"];
    let Some(events) = whole(&losses["events"]) else {
        wrong.push("losses.events is missing: loss must be stated, also when it is 0".to_owned());
        return;
    };
    let causes = losses["causes"].as_object();
    let by_cause: i128 = causes
        .into_iter()
        .flat_map(|c| c.values())
        .filter_map(whole)
        .sum();
    if by_cause != events {
        wrong.push(format!(
            "losses.events is {events}, but the causes add up to {by_cause}"
        ));
    }
    let processes = list(report, "processes").iter();
    let of_processes: i128 = processes
        .filter_map(|process| whole(&process["losses"]["events"]))
        .sum();
    if of_processes > events {
        wrong.push(format!(
            "processes lost {of_processes} events, more than {events} in all"
        ));
    }
    if events > 0 && (losses["first"].is_null() || losses["last"].is_null()) {
        wrong.push("events were lost, but not said when".to_owned());
    }
}

/// A process cannot hold more than it allocated, nor its call sites more than it.
fn amounts(process: &Json, name: &str, wrong: &mut Vec<String>) {
    let closing = &process["closing"];
    let parts = [
        &closing["api_live"],
        &closing["other"],
        &process["device_memory"],
    ]
    .map(whole);
    if let [Some(live), Some(other), Some(device)] = parts {
        let exceeds = whole(&closing["exceeds"]).unwrap_or(0);
        if live + other - exceeds != device {
            wrong.push(format!(
                "{name} does not close: live {live} + other {other} - exceeds {exceeds} is not \
                 its device memory {device}"
            ));
        }
    }
    let memory = &process["memory"];
    for member in ["count", "bytes"] {
        let of = |group: &str| whole(&memory[group][member]);
        if let (Some(live), Some(allocated)) = (of("live"), of("allocated"))
            && live > allocated
        {
            wrong.push(format!(
                "{name}: live.{member} {live} is more than allocated {allocated}"
            ));
        }
        // Call sites of what is no memory on a GPU are compared with their own kind.
        let sites = list(process, "sites")
            .iter()
            .filter(|site| kinds::is_memory(site));
        let of_sites: i128 = sites.filter_map(|site| whole(&site["live"][member])).sum();
        if let Some(live) = of("live").filter(|live| of_sites > *live) {
            wrong.push(format!(
                "{name}: its call sites hold {of_sites} {member}, it {live}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Json {
        json!({
            "schema": "gputrace/1", "type": "snapshot", "boot_ns": "100",
            "losses": {"events": 0, "first": null, "last": null, "causes": {}},
            "devices": {"value": [{
                "index": 0, "total": {"value": 1000}, "used": {"value": 300},
                "reserved": {"value": 10}, "free": {"value": 690},
                "processes": {"value": 250}, "unexplained": {"value": 50},
                "exceeds": 0,
            }]},
            "processes": [{
                "tgid": 7, "start_ticks": "1",
                "memory": {
                    "live": {"count": 2, "bytes": 200}, "allocated": {"count": 3, "bytes": 300},
                    "freed": {"count": 1, "bytes": 100},
                },
                "device_memory": {"value": 250},
                "closing": {"api_live": 200, "other": {"value": 50}, "exceeds": 0},
                "sites": [{"live": {"count": 2, "bytes": 200}}],
                "losses": null,
            }],
        })
    }

    fn wrong(change: impl FnOnce(&mut Json)) -> Vec<String> {
        let mut changed = report();
        change(&mut changed);
        Invariants::default().check(&changed)
    }

    fn first(report: &mut Json) -> &mut Json {
        &mut report["processes"][0]
    }

    #[test]
    fn a_sound_report_passes() {
        assert!(wrong(|_| {}).is_empty());
    }

    #[test]
    fn each_violation_is_found() {
        type Change = fn(&mut Json);
        let changes: [(&str, Change); 11] = [
            ("schema", |r| r["schema"] = json!("gputrace/2")),
            ("unknown type", |r| r["type"] = json!("snapshots")),
            ("negative", |r| {
                first(r)["memory"]["freed"]["bytes"] = json!(-1);
            }),
            ("not a time", |r| r["boot_ns"] = json!(null)),
            ("more than its total", |r| {
                r["devices"]["value"][0]["used"] = json!(1001);
            }),
            ("does not close", |r| {
                r["devices"]["value"][0]["unexplained"] = json!(51);
            }),
            ("process 7 does not close", |r| {
                first(r)["device_memory"] = json!(251);
            }),
            ("must be stated", |r| r["losses"] = json!(null)),
            ("causes add up", |r| r["losses"]["causes"]["x"] = json!(3)),
            ("more than allocated", |r| {
                first(r)["memory"]["live"]["count"] = json!(4);
            }),
            ("call sites hold", |r| {
                first(r)["sites"][0]["live"]["bytes"] = json!(201);
            }),
        ];
        for (message, change) in changes {
            let found = wrong(change);
            assert!(
                found.iter().any(|text| text.contains(message)),
                "{message}: {found:?}"
            );
        }
    }

    #[test]
    fn time_and_counts_never_go_back() {
        let mut invariants = Invariants::default();
        assert!(invariants.check(&report()).is_empty());
        let mut later = report();
        later["boot_ns"] = json!("99");
        later["processes"][0]["memory"]["freed"]["count"] = json!(0);
        assert_eq!(invariants.check(&later).len(), 2);
        let mut last = report();
        last["type"] = json!("report");
        assert!(invariants.check(&last).is_empty());
        assert!(invariants.check(&report())[0].contains("follows the report"));
    }
}
