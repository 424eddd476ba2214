//! One look at all devices, and the check that it makes sense.

use std::collections::HashSet;

use borsh::{BorshDeserialize, BorshSerialize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{evidence::Evidence, identity::escape_at_most};

/// Most devices and most entries of one process list that are believed. A machine has 16 GPUs, and
/// no driver can serve so many processes.
pub(super) const MAX_ENTRIES: usize = 100_000;
const MAX_DEVICES: usize = 4096;

/// Most memory of one device that is believed, in bytes: 1 PiB.
const MAX_MEMORY: u64 = 1 << 50;

/// The kernel's largest possible number of processes (`PID_MAX_LIMIT`).
const MAX_PID: u32 = 1 << 22;

/// Longest name, UUID, address and version shown; NVML's own buffers have 80 to 96 bytes.
const MAX_TEXT_CHARS: usize = 128;

/// Longest reason shown.
const MAX_REASON_CHARS: usize = 512;

/// What NVML said at one moment.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Sample {
    /// Version of the driver, as `550.163.01`.
    pub driver_version: Evidence<String>,
    /// The devices in NVML's order. A device that does not answer is in the list as well.
    pub devices: Evidence<Vec<Device>>,
}

/// One GPU. Memory is in bytes.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Device {
    /// NVML's number of it: the order of nvidia-smi, not that of CUDA nor of the device files.
    pub index: u32,
    /// `GPU-` and a UUID; the only name that stays.
    pub uuid: Evidence<String>,
    /// The product.
    pub name: Evidence<String>,
    /// `DOMAIN:BUS:DEVICE.FUNCTION` in hexadecimal.
    pub pci_bus_id: Evidence<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Evidence<u32>,
    /// All memory of the device.
    pub total: Evidence<u64>,
    /// Memory in use; see [`Device::used_includes_reserved`].
    pub used: Evidence<u64>,
    /// What driver and firmware keep for themselves. Not available from drivers before 510.
    pub reserved: Evidence<u64>,
    /// Memory that can be allocated.
    pub free: Evidence<u64>,
    /// Whether `used` includes what is reserved. True for the older call, where `reserved` is not
    /// available.
    pub used_includes_reserved: bool,
    /// The processes that NVML knows on this device. Not available if the list of compute processes
    /// could not be read.
    pub processes: Evidence<Vec<Process>>,
    /// Why entries may be missing from `processes`: other lists that could not be read, entries
    /// that made no sense.
    pub processes_incomplete: Vec<String>,
}

impl Device {
    /// A device about which nothing is known, for one reason.
    pub(super) fn unknown(index: u32, reason: &str) -> Self {
        Self {
            index,
            uuid: Evidence::not_available(reason),
            name: Evidence::not_available(reason),
            pci_bus_id: Evidence::not_available(reason),
            minor: Evidence::not_available(reason),
            total: Evidence::not_available(reason),
            used: Evidence::not_available(reason),
            reserved: Evidence::not_available(reason),
            free: Evidence::not_available(reason),
            used_includes_reserved: false,
            processes: Evidence::not_available(reason),
            processes_incomplete: Vec::new(),
        }
    }
}

/// A process on a device.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Process {
    /// The tgid. In the initial PID namespace with drivers before 535.43, in that of gputrace
    /// since, where processes that it does not have are left out.
    pub pid: u32,
    /// Memory that it uses on this device, in bytes. The driver may not say (WSL, missing rights).
    pub used: Evidence<u64>,
    /// In which of NVML's lists it is.
    pub kind: ProcessKind,
    /// The GPU instance, on a device that is split by MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// The compute instance inside of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

/// How a process uses a device.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum ProcessKind {
    /// It has a CUDA context of its own.
    Compute,
    /// It computes as a client of the multi-process service.
    Mps,
    /// It draws.
    Graphics,
}

impl Sample {
    /// Makes an answer of the child fit to be believed and shown: text is escaped, and a value that
    /// cannot be true becomes "not available" with the reason, without touching the others.
    #[doc(hidden)] // For fuzz/.
    pub fn checked(self) -> Self {
        let devices = reason(self.devices).and_then(|devices| {
            if devices.len() > MAX_DEVICES {
                return Evidence::not_available(format!(
                    "NVML speaks of {} devices",
                    devices.len()
                ));
            }
            Evidence::Value(devices.into_iter().map(Device::checked).collect())
        });
        Self {
            driver_version: text(self.driver_version),
            devices,
        }
    }
}

impl Device {
    fn checked(self) -> Self {
        let total = reason(self.total).and_then(|total| match total {
            0 => Evidence::not_available("the driver says that the device has no memory"),
            MAX_MEMORY.. => Evidence::not_available(format!(
                "the driver says that the device has {total} bytes"
            )),
            total => Evidence::Value(total),
        });
        // Without a total there is nothing to hold a part against.
        let limit = total.value().copied().unwrap_or(MAX_MEMORY);
        let part = |name: &str, part: Evidence<u64>| {
            reason(part).and_then(|bytes| {
                if bytes <= limit {
                    Evidence::Value(bytes)
                } else {
                    Evidence::not_available(format!(
                        "the driver says that {bytes} bytes are {name}, of {limit}"
                    ))
                }
            })
        };
        let mut used = part("used", self.used);
        let mut reserved = part("reserved", self.reserved);
        let free = part("free", self.free);
        if let (Evidence::Value(a), Evidence::Value(b)) = (&used, &reserved)
            && a.saturating_add(*b) > limit
            && !self.used_includes_reserved
        {
            let nonsense =
                format!("the driver says that {a} bytes are used and {b} reserved, of {limit}");
            used = Evidence::not_available(&*nonsense);
            reserved = Evidence::not_available(nonsense);
        }
        let mut incomplete: Vec<String> = self
            .processes_incomplete
            .iter()
            .take(8)
            .map(|reason| shown(reason, MAX_REASON_CHARS))
            .collect();
        let processes = reason(self.processes).and_then(|processes| {
            if processes.len() > 3 * MAX_ENTRIES {
                return Evidence::not_available(format!(
                    "NVML lists {} processes",
                    processes.len()
                ));
            }
            Evidence::Value(checked_processes(processes, limit, &mut incomplete))
        });
        Self {
            index: self.index,
            uuid: text(self.uuid),
            name: text(self.name),
            pci_bus_id: text(self.pci_bus_id),
            minor: reason(self.minor),
            total,
            used,
            reserved,
            free,
            used_includes_reserved: self.used_includes_reserved,
            processes,
            processes_incomplete: incomplete,
        }
    }
}

/// Drops impossible entries (and says so), and a second entry of what is one: NVML has a process
/// that both computes and draws in both lists, each time with all of its memory.
fn checked_processes(
    mut processes: Vec<Process>,
    limit: u64,
    incomplete: &mut Vec<String>,
) -> Vec<Process> {
    let before = processes.len();
    processes.retain(|process| (1..=MAX_PID).contains(&process.pid));
    let dropped = before - processes.len();
    if dropped > 0 {
        incomplete.push(format!("{dropped} entries had impossible process numbers"));
    }
    // Stable, so that of two entries the one of the first kind stays.
    processes.sort_by_key(|process| process.kind);
    let mut seen = HashSet::new();
    processes.retain(|process| {
        seen.insert((process.pid, process.gpu_instance, process.compute_instance))
    });
    processes.sort_by_key(|p| (p.pid, p.gpu_instance, p.compute_instance));
    for process in &mut processes {
        let used = std::mem::replace(&mut process.used, Evidence::Value(0));
        process.used = reason(used).and_then(|bytes| {
            if bytes <= limit {
                Evidence::Value(bytes)
            } else {
                Evidence::not_available(format!(
                    "the driver says that it uses {bytes} bytes, of {limit}"
                ))
            }
        });
    }
    processes
}

fn text(evidence: Evidence<String>) -> Evidence<String> {
    reason(evidence).and_then(|text| {
        if text.is_empty() {
            Evidence::not_available("the driver gave an empty text")
        } else {
            Evidence::Value(shown(&text, MAX_TEXT_CHARS))
        }
    })
}

/// The evidence with its reason made safe to show.
fn reason<T>(evidence: Evidence<T>) -> Evidence<T> {
    match evidence {
        Evidence::NotAvailable(reason) => Evidence::NotAvailable(shown(&reason, MAX_REASON_CHARS)),
        value => value,
    }
}

fn shown(text: &str, max_chars: usize) -> String {
    escape_at_most(text.as_bytes(), max_chars)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn device() -> Device {
        Device {
            index: 0,
            uuid: Evidence::Value("GPU-1".into()),
            name: Evidence::Value("Fake".into()),
            pci_bus_id: Evidence::Value("00000000:01:00.0".into()),
            minor: Evidence::Value(0),
            total: Evidence::Value(16 * GIB),
            used: Evidence::Value(3 * GIB),
            reserved: Evidence::Value(GIB),
            free: Evidence::Value(12 * GIB),
            used_includes_reserved: false,
            processes: Evidence::Value(Vec::new()),
            processes_incomplete: Vec::new(),
        }
    }

    fn process(pid: u32, used: u64, kind: ProcessKind) -> Process {
        Process {
            pid,
            used: Evidence::Value(used),
            kind,
            gpu_instance: None,
            compute_instance: None,
        }
    }

    #[test]
    fn a_sensible_device_is_left_alone() {
        let plain = Device {
            processes: Evidence::Value(vec![process(7, GIB, ProcessKind::Compute)]),
            ..device()
        };
        assert_eq!(plain.clone().checked(), plain);
    }

    #[test]
    fn nonsense_becomes_not_available_and_the_rest_stays() {
        let checked = Device {
            used: Evidence::Value(17 * GIB),
            name: Evidence::Value("\u{1b}[2J".into()),
            uuid: Evidence::Value(String::new()),
            ..device()
        }
        .checked();
        assert!(checked.used.reason().unwrap().contains("used"));
        assert_eq!(checked.free, Evidence::Value(12 * GIB));
        assert_eq!(checked.name, Evidence::Value(r"\x1b[2J".into()));
        assert!(!checked.uuid.is_available());
        for total in [0, u64::MAX, MAX_MEMORY] {
            let checked = Device {
                total: Evidence::Value(total),
                ..device()
            }
            .checked();
            assert!(!checked.total.is_available());
            assert_eq!(checked.used, Evidence::Value(3 * GIB));
        }
    }

    #[test]
    fn used_and_reserved_together_fit_into_the_device() {
        let both = Device {
            used: Evidence::Value(10 * GIB),
            reserved: Evidence::Value(10 * GIB),
            ..device()
        };
        let checked = both.clone().checked();
        assert!(!checked.used.is_available() && !checked.reserved.is_available());
        let included = Device {
            used_includes_reserved: true,
            ..both
        };
        assert!(included.checked().used.is_available());
    }

    #[test]
    fn processes_are_believed_one_by_one() {
        let mut split = process(9, GIB, ProcessKind::Compute);
        split.gpu_instance = Some(1);
        let checked = Device {
            processes: Evidence::Value(vec![
                process(7, GIB, ProcessKind::Graphics),
                process(9, 2 * GIB, ProcessKind::Mps),
                process(0, GIB, ProcessKind::Compute),
                process(u32::MAX, GIB, ProcessKind::Compute),
                process(8, 17 * GIB, ProcessKind::Compute),
                process(7, GIB, ProcessKind::Compute),
                split.clone(),
            ]),
            ..device()
        }
        .checked();
        let processes = checked.processes.into_value().unwrap();
        assert_eq!(processes[0], process(7, GIB, ProcessKind::Compute));
        assert_eq!(processes[1].pid, 8);
        assert!(!processes[1].used.is_available());
        assert_eq!(processes[2], process(9, 2 * GIB, ProcessKind::Mps));
        assert_eq!(processes[3], split);
        assert_eq!(processes.len(), 4);
        assert_eq!(checked.processes_incomplete.len(), 1);
    }

    #[test]
    fn the_number_of_devices_is_limited() {
        let sample = Sample {
            driver_version: Evidence::Value("1".into()),
            devices: Evidence::Value(vec![device(); MAX_DEVICES + 1]),
        };
        let checked = sample.checked();
        assert!(!checked.devices.is_available());
        assert!(checked.driver_version.is_available());
    }

    proptest! {
        #[test]
        fn no_number_is_above_the_device(
            memory in any::<[u64; 4]>(),
            shift in 0u32..64,
            pids in proptest::collection::vec((any::<u32>(), any::<u64>()), 0..8),
            included in any::<bool>(),
        ) {
            let [total, used, reserved, free] = memory.map(|bytes| bytes >> shift);
            let processes = pids
                .into_iter()
                .map(|(pid, used)| process(pid >> (shift / 2), used >> shift, ProcessKind::Compute))
                .collect();
            let checked = Device {
                total: Evidence::Value(total),
                used: Evidence::Value(used),
                reserved: Evidence::Value(reserved),
                free: Evidence::Value(free),
                used_includes_reserved: included,
                processes: Evidence::Value(processes),
                ..device()
            }
            .checked();
            let limit = checked.total.value().copied().unwrap_or(MAX_MEMORY);
            for part in [&checked.used, &checked.reserved, &checked.free] {
                prop_assert!(part.value().is_none_or(|bytes| *bytes <= limit));
            }
            for process in checked.processes.clone().into_value().unwrap() {
                prop_assert!(process.used.value().is_none_or(|bytes| *bytes <= limit));
            }
            // Checking twice changes nothing.
            prop_assert_eq!(checked.clone().checked(), checked);
        }
    }
}
