//! The closing sums: device = processes + unexplained, process = API live + other.

use crate::{
    event::Pid,
    evidence::Evidence,
    ledger::{Ledger, Process},
    report::{Closing, DeviceReport},
    sensors::nvml::{Device, Sample},
};

/// Devices with their sums.
pub fn devices(sample: &Evidence<Sample>) -> Evidence<Vec<DeviceReport>> {
    sample.as_ref().and_then(|sample| {
        sample
            .devices
            .as_ref()
            .map(|devices| devices.iter().map(device).collect())
    })
}

fn device(device: &Device) -> DeviceReport {
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
    }
}

/// Sum over the processes on a device; not available if one of them is not.
fn processes_bytes(device: &Device) -> Evidence<u64> {
    device.processes.as_ref().and_then(|processes| {
        let mut sum = 0_u64;
        for process in processes {
            match &process.used {
                Evidence::Value(used) => sum = sum.saturating_add(*used),
                Evidence::NotAvailable(reason) => {
                    return Evidence::not_available(format!("process {}: {reason}", process.pid));
                }
            }
        }
        Evidence::Value(sum)
    })
}

/// What NVML attributes to a process, on all devices.
pub fn device_memory(sample: &Evidence<Sample>, tgid: u32) -> Evidence<u64> {
    sample
        .as_ref()
        .and_then(|sample| sample.devices.as_ref())
        .and_then(|devices| {
            let mut sum = None;
            for device in devices {
                let processes = match &device.processes {
                    Evidence::Value(processes) => processes,
                    Evidence::NotAvailable(reason) => {
                        return Evidence::not_available(reason.clone());
                    }
                };
                for process in processes.iter().filter(|process| process.pid == tgid) {
                    match &process.used {
                        Evidence::Value(used) => sum = Some(sum.unwrap_or(0) + used),
                        Evidence::NotAvailable(reason) => {
                            return Evidence::not_available(reason.clone());
                        }
                    }
                }
            }
            match sum {
                Some(sum) => Evidence::Value(sum),
                None => Evidence::not_available("NVML lists no such process"),
            }
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

/// Whether a process began under tracing: all its calls were seen.
pub fn began_under_tracing(ledger: &Ledger, pid: Pid) -> bool {
    Pid::from_start_ns(0, ledger.started().0).start_ticks < pid.start_ticks
}

/// The closing sum of a process.
pub fn process(ledger: &Ledger, process: &Process) -> (Evidence<u64>, Closing) {
    let api_live = process.memory.live.bytes;
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
    let before_tracing = if began_under_tracing(ledger, process.pid) {
        Evidence::Value(0)
    } else {
        Evidence::not_available(
            "the process ran before tracing began: what it held then is part of 'other'",
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
