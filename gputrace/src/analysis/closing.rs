//! The closing sums: device = processes + unexplained, process = API live + other.

use std::collections::{BTreeMap, HashSet};

use crate::{
    evidence::Evidence,
    ledger::{Ledger, Process},
    report::{Closing, DeviceReport, WithoutCalls},
    resource::Resource,
    sensors::nvml::{Device, Sample},
};

/// Devices with their sums. `pids`: only these processes are asked for; none: all.
pub fn devices(ledger: &Ledger, pids: &[u32]) -> Evidence<Vec<DeviceReport>> {
    let has_called: HashSet<u32> = ledger
        .processes()
        .filter(|it| !it.is_without_calls() && it.ended().is_none())
        .map(|it| it.pid.tgid)
        .collect();
    let is_wanted =
        |pid: u32| (pids.is_empty() || pids.contains(&pid)) && !has_called.contains(&pid);
    ledger.devices().as_ref().and_then(|sample| {
        sample.devices.as_ref().map(|devices| {
            let report = |it| device(it, is_wanted);
            devices.iter().map(report).collect()
        })
    })
}

/// Processes on a device that are known from NVML alone, each once, the biggest first.
fn without_calls(device: &Device, is_wanted: impl Fn(u32) -> bool) -> Vec<WithoutCalls> {
    let mut by_pid: BTreeMap<u32, Evidence<u64>> = BTreeMap::new();
    for process in device.processes.value().into_iter().flatten() {
        if !is_wanted(process.pid) {
            continue;
        }
        let used = by_pid
            .entry(process.pid)
            .or_insert_with(|| process.used.clone());
        if used.value() < process.used.value() {
            *used = process.used.clone();
        }
    }
    let mut all: Vec<_> = by_pid
        .into_iter()
        .map(|(tgid, used)| WithoutCalls { tgid, used })
        .collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.used.value().copied()));
    all
}

fn device(device: &Device, is_wanted: impl Fn(u32) -> bool) -> DeviceReport {
    let processes = processes_bytes(device);
    let (unexplained, exceeds) = match (device.used.value(), processes.value()) {
        (Some(&used), Some(&of_processes)) => (
            Evidence::Value(used.saturating_sub(of_processes)),
            of_processes.saturating_sub(used),
        ),
        (None, _) => (device.used.clone(), 0),
        (_, None) => (processes.clone(), 0),
    };
    DeviceReport {
        index: device.index,
        uuid: device.uuid.clone(),
        name: device.name.clone(),
        total: device.total.clone(),
        used: device.used.clone(),
        reserved: device.reserved.clone(),
        free: device.free.clone(),
        processes,
        unexplained,
        exceeds,
        without_calls: without_calls(device, is_wanted),
    }
}

/// Bytes of each process on a device. One that is in several of NVML's lists (compute, graphics,
/// MPS) has the same bytes in each: it counts once in each GPU instance.
fn bytes_by_process(device: &Device) -> Evidence<BTreeMap<(u32, Option<u32>), u64>> {
    device.processes.as_ref().and_then(|processes| {
        let mut by_process = BTreeMap::new();
        for process in processes {
            match &process.used {
                Evidence::Value(used) => {
                    let bytes: &mut u64 = by_process
                        .entry((process.pid, process.gpu_instance))
                        .or_default();
                    *bytes = (*bytes).max(*used);
                }
                Evidence::NotAvailable(reason) => {
                    return Evidence::not_available(format!("process {}: {reason}", process.pid));
                }
            }
        }
        Evidence::Value(by_process)
    })
}

/// Sum over the processes on a device; not available if one of them is not.
fn processes_bytes(device: &Device) -> Evidence<u64> {
    bytes_by_process(device).map(|by_process| {
        by_process
            .values()
            .fold(0_u64, |sum, bytes| sum.saturating_add(*bytes))
    })
}

/// What NVML attributes to a process, on all devices.
fn device_memory(sample: &Evidence<Sample>, tgid: u32) -> Evidence<u64> {
    sample
        .as_ref()
        .and_then(|sample| sample.devices.as_ref())
        .and_then(|devices| {
            let mut sum: Option<u64> = None;
            for device in devices {
                let by_process = match bytes_by_process(device) {
                    Evidence::Value(by_process) => by_process,
                    Evidence::NotAvailable(reason) => return Evidence::NotAvailable(reason),
                };
                for (_, used) in by_process.iter().filter(|((pid, _), _)| *pid == tgid) {
                    sum = Some(sum.unwrap_or(0).saturating_add(*used));
                }
            }
            sum.map_or_else(
                || Evidence::not_available("NVML lists no such process"),
                Evidence::Value,
            )
        })
}

/// Bytes free on the device of a process, if it is on one device only.
pub fn free_on_device_of(sample: &Evidence<Sample>, tgid: u32) -> Evidence<u64> {
    sample
        .as_ref()
        .and_then(|sample| sample.devices.as_ref())
        .and_then(|devices| {
            let mut on = devices.iter().filter(|device| {
                device
                    .processes
                    .value()
                    .is_some_and(|list| list.iter().any(|p| p.pid == tgid))
            });
            match (on.next(), on.next()) {
                (Some(device), None) => device.free.clone(),
                (Some(_), Some(_)) => Evidence::not_available("the process is on several GPUs"),
                (None, _) => Evidence::not_available("NVML lists no such process"),
            }
        })
}

/// The closing sum of a process.
pub fn process(ledger: &Ledger, process: &Process) -> (Evidence<u64>, Closing) {
    let live = process.accounts.sum(Resource::is_in_nvml_figure).live;
    let api_live = live.bytes;
    let device_memory = if process.ended().is_some() {
        Evidence::not_available("the process has ended")
    } else {
        device_memory(ledger.devices(), process.pid.tgid)
    };
    let other = device_memory
        .clone()
        .map(|bytes| bytes.saturating_sub(api_live));
    let exceeds = device_memory
        .value()
        .map_or(0, |bytes| api_live.saturating_sub(*bytes));
    let before_tracing = if ledger.saw_from_the_start(process) {
        Evidence::Value(0)
    } else {
        Evidence::not_available(
            "the process ran before its copy of libcuda was probed: what it held then is part of \
             'other'",
        )
    };
    (
        device_memory,
        Closing {
            api_live,
            other,
            before_tracing,
            exceeds,
        },
    )
}
