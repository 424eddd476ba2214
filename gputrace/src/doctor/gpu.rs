//! Checks of the GPU's side: the driver, the copies of libcuda, NVML.

use std::{fs, path::PathBuf};

use super::{
    diagnosis::{Check, FoundLibrary, State},
    machine::Machine,
};
use crate::{
    cuda::FunctionId,
    event::NotProbed,
    evidence::Evidence,
    identity::{escape_at_most, procfs::Procfs},
    sensors::{
        cuda::discovery::{Search, Source, discover},
        libraries,
        nvml::Sample,
        procaddr::{self, ProcAddressOptions, ProcAddresses},
    },
};

/// The NVIDIA kernel module and its device files. Nothing is opened: that could wake a GPU.
pub fn driver(machine: &Machine) -> Check {
    let version = machine
        .read("sys/module/nvidia/version")
        .ok()
        .filter(|version| !version.is_empty());
    judge_driver(&DriverFacts {
        version,
        description: machine.read("proc/driver/nvidia/version").ok(),
        control: machine.has("dev/nvidiactl"),
        wsl: machine.has("dev/dxg"),
        nouveau: machine.has("sys/module/nouveau"),
        cards: cards(machine),
    })
}

struct DriverFacts {
    version: Option<String>,
    description: Option<String>,
    control: bool,
    wsl: bool,
    nouveau: bool,
    /// NVIDIA's graphics devices on the PCI bus.
    cards: usize,
}

/// Most PCI devices looked at.
const MAX_PCI_DEVICES: usize = 4096;

fn cards(machine: &Machine) -> usize {
    let Ok(devices) = fs::read_dir(machine.path("sys/bus/pci/devices")) else {
        return 0;
    };
    devices
        .flatten()
        .take(MAX_PCI_DEVICES)
        .filter(|device| {
            let path = format!("sys/bus/pci/devices/{}", device.file_name().display());
            let file = |name| machine.read(&format!("{path}/{name}"));
            // Class 03: display controllers, those without a display included.
            file("vendor").is_ok_and(|vendor| vendor == "0x10de")
                && file("class").is_ok_and(|class| class.starts_with("0x03"))
        })
        .count()
}

fn judge_driver(facts: &DriverFacts) -> Check {
    let why = "Without it no program can use a GPU";
    let check = |found: String| Check::ok("driver", found, why);
    let description = facts.description.as_deref().unwrap_or_default();
    if facts.version.is_some() || !description.is_empty() {
        let version = facts.version.as_deref().or_else(|| number(description));
        let version = escape_at_most(version.unwrap_or("of unknown version").as_bytes(), 40);
        let kind = if description.contains("Open Kernel Module") {
            " (open kernel modules)"
        } else {
            ""
        };
        let found = format!("NVIDIA {version}{kind}");
        return if facts.control {
            check(found)
        } else {
            check(format!("{found}, but /dev/nvidiactl is not there"))
                .state(State::Warning)
                .advice(
                    "run nvidia-smi once, which makes the device files; in a container, pass the \
                     GPUs in (docker run --gpus all)",
                )
        };
    }
    if facts.wsl {
        return check("of Windows, through /dev/dxg".to_owned()).state(State::Note);
    }
    if facts.control {
        return check("/dev/nvidiactl is there, but no kernel module says its version".to_owned())
            .state(State::Warning)
            .advice("see that /sys and /proc are those of the machine with the GPU");
    }
    let found = match facts.cards {
        0 => "not loaded, and no NVIDIA GPU is on the PCI bus".to_owned(),
        1 => "not loaded, although an NVIDIA GPU is on the PCI bus".to_owned(),
        cards => format!("not loaded, although {cards} NVIDIA GPUs are on the PCI bus"),
    };
    let advice = match (facts.cards, facts.nouveau) {
        (0, _) => "nothing, where only simulated GPUs are traced; else look at lspci",
        (_, true) => "install NVIDIA's driver: the free driver nouveau has no CUDA",
        (_, false) => "install NVIDIA's driver, or load it: sudo modprobe nvidia",
    };
    check(found).state(State::Missing).advice(advice)
}

/// The first word that looks like a driver's version.
fn number(description: &str) -> Option<&str> {
    description
        .split_whitespace()
        .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// What was found of libcuda.
#[derive(Debug)]
pub struct Libraries {
    /// The check.
    pub check: Check,
    /// Copies that can be probed.
    pub found: Vec<FoundLibrary>,
    /// The path of each of them that the loader has or the user named; `None` for the others.
    pub may_load: Vec<Option<PathBuf>>,
    /// Copies that cannot, and processes that could not be looked into.
    pub not_probed: Vec<NotProbed>,
}

/// Looks for copies of libcuda and for the places to probe in them.
pub fn libcuda(machine: &Machine) -> Libraries {
    let explicit = !machine.libcuda.is_empty();
    let discovery = discover(&Search {
        explicit: machine.libcuda.clone(),
        standard_places: !explicit,
        procfs: Procfs::at(machine.path("proc")),
        root: machine.root.clone(),
        ..Search::default()
    });
    let is_blind = !explicit && !discovery.unreadable.is_empty();
    let mut not_probed: Vec<NotProbed> = discovery
        .unreadable
        .into_iter()
        .filter(|it| it.explicit || !explicit)
        .map(libraries::not_looked_at)
        .collect();
    let (mut found, mut may_load) = (Vec::new(), Vec::new());
    for library in discovery.libraries {
        if explicit && library.source != Source::Explicit {
            continue;
        }
        let mapped_by = library.mapped_by.clone();
        let processes = mapped_by.clone();
        let path = library.display.clone();
        match libraries::target(library) {
            Ok(target) => {
                // A file that only a process has mapped may be a container's, with whatever its
                // constructors do.
                let is_hosts = matches!(target.found.source, Source::Explicit | Source::Standard);
                may_load.push(is_hosts.then_some(target.found.path));
                found.push(FoundLibrary {
                    library: target.library,
                    mapped_by,
                    proc_addresses: None,
                });
            }
            Err(reason) => not_probed.push(NotProbed {
                path,
                reason,
                processes,
            }),
        }
    }
    Libraries {
        check: judge_libcuda(&found, &not_probed, is_blind),
        found,
        may_load,
        not_probed,
    }
}

fn judge_libcuda(found: &[FoundLibrary], not_probed: &[NotProbed], is_blind: bool) -> Check {
    let check = |found: String, why: &str| Check::ok("libcuda", found, why).needed();
    if found.is_empty() && is_blind {
        return check(
            "no copy of libcuda.so was found, and not everything could be looked at".to_owned(),
            "Its functions are what is traced",
        )
        .state(State::Unknown)
        .advice("run doctor as root, or name a copy: gputrace doctor --libcuda PATH");
    }
    if found.is_empty() && not_probed.is_empty() {
        return check(
            "there is no copy of libcuda.so yet".to_owned(),
            "Its functions are what is traced",
        )
        .state(State::Warning)
        .advice(
            "nothing, if containers bring their own: a copy is probed as soon as a process maps \
             it. Else install NVIDIA's driver, or name a copy: gputrace doctor --libcuda PATH",
        );
    }
    if found.is_empty() {
        return check(
            "no copy of libcuda.so can be probed".to_owned(),
            "Its functions are what is traced",
        )
        .state(State::Missing)
        .advice(
            "see below why; install NVIDIA's driver, or name another copy: gputrace doctor \
             --libcuda PATH",
        );
    }
    let functions = found.iter().flat_map(|it| &it.library.functions);
    let total = functions.clone().count();
    let slow = functions.filter(|function| !function.emulated).count();
    let missing: usize = found.iter().map(|it| it.library.missing.len()).sum();
    let wanted = FunctionId::all().count();
    let copies = match found.len() {
        1 => "1 copy".to_owned(),
        n => format!("{n} copies"),
    };
    let functions = match (missing, slow) {
        (0, 0) => {
            format!("all {wanted} functions, each at an instruction that the kernel emulates")
        }
        (_, 0) => format!("{total} functions, each at an instruction that the kernel emulates"),
        (_, slow) => format!("{total} functions, {slow} of them single-stepped"),
    };
    let lacking = match missing {
        0 => String::new(),
        n => format!("; {n} missing"),
    };
    let check = check(
        format!("{copies} with {functions}{lacking}"),
        "A single-stepped probe costs 3 times as much, in a virtual machine 30 times",
    );
    if slow > 0 {
        check.state(State::Warning).advice(
            "this libcuda's functions begin otherwise than those of known drivers; where calls \
             are frequent, expect them to take some microseconds longer",
        )
    } else if !not_probed.is_empty() {
        check
            .state(State::Warning)
            .advice("see below what is not probed; run as root if permission is denied")
    } else if missing > 0 {
        check.state(State::Note)
    } else {
        check
    }
}

/// Asks every copy that may be loaded for its addresses, each in a process of its own, and notes them
/// with the copies.
pub async fn proc_addresses(machine: &Machine, libraries: &mut Libraries) -> Check {
    let options = ProcAddressOptions::default();
    for (library, path) in libraries.found.iter_mut().zip(&libraries.may_load) {
        library.proc_addresses = Some(match path {
            Some(path) => procaddr::ask(&options, path, machine.patience).await,
            None => Evidence::not_available(
                "not loaded, since only a process has it; --libcuda PATH names it",
            ),
        });
    }
    judge_proc_addresses(&libraries.found)
}

fn judge_proc_addresses(found: &[FoundLibrary]) -> Check {
    let check = |found: String| {
        Check::ok(
            "proc_addresses",
            found,
            "Programs with the CUDA runtime take their functions from it",
        )
    };
    let answers = || found.iter().filter_map(|it| it.proc_addresses.as_ref());
    let asked: Vec<&ProcAddresses> = answers().filter_map(Evidence::value).collect();
    let hidden: usize = asked.iter().map(|it| it.hidden.len()).sum();
    let (Some(first), count) = (asked.first(), asked.len()) else {
        let reason = answers().find_map(Evidence::reason);
        return check(reason.unwrap_or("there is no library to ask").to_owned())
            .state(State::Unknown);
    };
    if hidden > 0 {
        return check(format!(
            "{hidden} names lead to code that is no exported function, and so not probed"
        ))
        .state(State::Warning)
        .advice("programs that take these names from it are not seen there: please report this");
    }
    let text = match count {
        1 => format!(
            "all {} answers are exported functions, {} of them probed",
            first.answers,
            first.given.len()
        ),
        n => format!("all answers of {n} libraries are exported functions"),
    };
    match answers().find_map(Evidence::reason) {
        Some(reason) => check(format!("{text}; one did not answer: {reason}")).state(State::Note),
        None => check(text),
    }
}

/// What NVML said. `None`: it was not asked.
pub fn nvml(sample: Option<Evidence<Sample>>) -> Check {
    let why = "It tells how much of each GPU is used, and by whom";
    let check = |found: String| Check::ok("nvml", found, why);
    let sample = match sample {
        None => return check("not asked: --no-nvml".to_owned()).state(State::Note),
        Some(Evidence::Value(sample)) => sample,
        Some(Evidence::NotAvailable(reason)) => {
            return check(reason).state(State::Warning).advice(
                "see driver; a copy of NVML in an unusual place is named with --nvml PATH. \
                 Tracing works without, but totals of the GPUs are not available",
            );
        }
    };
    let version = match &sample.driver_version {
        Evidence::Value(version) => format!("driver {version}"),
        Evidence::NotAvailable(_) => "driver of unknown version".to_owned(),
    };
    let devices = match &sample.devices {
        Evidence::Value(devices) => devices,
        Evidence::NotAvailable(reason) => {
            return check(format!("{version}; {reason}"))
                .state(State::Warning)
                .advice("see driver");
        }
    };
    let count = match devices.len() {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    };
    let mute = devices.iter().find_map(|device| {
        let reason = device.used.reason().or_else(|| device.processes.reason())?;
        Some(format!("GPU {}: {reason}", device.index))
    });
    match mute {
        Some(mute) => check(format!("{version}, {count}; {mute}"))
            .state(State::Warning)
            .advice("what is not available is shown so in reports; the rest is right"),
        None => check(format!("{version}, {count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Library, MissingFunction, ProbedFunction},
        sensors::procaddr::Answer,
    };

    fn facts() -> DriverFacts {
        DriverFacts {
            version: None,
            description: None,
            control: false,
            wsl: false,
            nouveau: false,
            cards: 0,
        }
    }

    #[test]
    fn a_driver_is_known_by_either_file() {
        let both = judge_driver(&DriverFacts {
            version: Some("570.86.15".to_owned()),
            description: Some(
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release"
                    .to_owned(),
            ),
            control: true,
            ..facts()
        });
        assert_eq!(both.state, State::Ok);
        assert_eq!(both.found, "NVIDIA 570.86.15 (open kernel modules)");
        let described = judge_driver(&DriverFacts {
            description: Some(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01 Tue".into(),
            ),
            ..facts()
        });
        assert_eq!(described.state, State::Warning);
        assert!(described.found.starts_with("NVIDIA 550.163.01, but"));
        let garbage = judge_driver(&DriverFacts {
            version: Some("\u{1b}[31m".to_owned()),
            control: true,
            ..facts()
        });
        assert_eq!(garbage.found, r"NVIDIA \x1b[31m");
    }

    #[test]
    fn without_a_driver_the_advice_fits_what_is_there() {
        let advice = |facts| judge_driver(&facts).advice.unwrap_or_default();
        assert!(advice(facts()).contains("simulated"));
        let one = DriverFacts {
            cards: 1,
            ..facts()
        };
        assert!(advice(one).contains("modprobe"));
        let nouveau = DriverFacts {
            cards: 2,
            nouveau: true,
            ..facts()
        };
        assert!(advice(nouveau).contains("nouveau"));
        let wsl = DriverFacts {
            wsl: true,
            ..facts()
        };
        assert_eq!(judge_driver(&wsl).state, State::Note);
    }

    fn library(emulated: bool, missing: usize) -> FoundLibrary {
        FoundLibrary {
            library: Library {
                path: "/lib/libcuda.so.1".to_owned(),
                device: 1,
                inode: 2,
                probed_at: None,
                functions: FunctionId::all()
                    .skip(missing)
                    .map(|function| ProbedFunction {
                        function,
                        offset: 10,
                        emulated,
                        placement: "je +0x18".to_owned(),
                    })
                    .collect(),
                missing: FunctionId::all()
                    .take(missing)
                    .map(|function| MissingFunction {
                        function: function.symbol().to_owned(),
                        reason: "no such symbol".to_owned(),
                    })
                    .collect(),
            },
            mapped_by: vec![7],
            proc_addresses: None,
        }
    }

    #[test]
    fn libcuda_is_as_good_as_its_placements() {
        let state = |found: &[FoundLibrary]| judge_libcuda(found, &[], false).state;
        assert_eq!(state(&[]), State::Warning);
        assert_eq!(state(&[library(true, 0)]), State::Ok);
        assert_eq!(
            state(&[library(true, 0), library(false, 0)]),
            State::Warning
        );
        assert_eq!(state(&[library(true, 1)]), State::Note);
        let hidden = [NotProbed {
            path: "/x".to_owned(),
            reason: "denied".to_owned(),
            processes: vec![7],
        }];
        assert_eq!(judge_libcuda(&[], &hidden, false).state, State::Missing);
        // What cannot be seen is not missing.
        assert_eq!(judge_libcuda(&[], &hidden, true).state, State::Unknown);
        let check = judge_libcuda(&[library(true, 0)], &hidden, true);
        assert_eq!(check.state, State::Warning);
    }

    #[test]
    fn addresses_that_are_not_exported_are_a_warning() {
        let state = |answers: Vec<Evidence<ProcAddresses>>| {
            let found: Vec<FoundLibrary> = answers
                .into_iter()
                .map(|answer| FoundLibrary {
                    proc_addresses: Some(answer),
                    ..library(true, 0)
                })
                .collect();
            judge_proc_addresses(&found).state
        };
        let good = || Evidence::Value(ProcAddresses::default());
        let hidden = Answer {
            name: "cuMemAlloc".to_owned(),
            since: 13000,
            per_thread: false,
            address: "libcuda.so.1+0x10".to_owned(),
        };
        let bad = Evidence::Value(ProcAddresses {
            hidden: vec![hidden],
            ..ProcAddresses::default()
        });
        assert_eq!(state(vec![]), State::Unknown);
        assert_eq!(state(vec![good()]), State::Ok);
        assert_eq!(state(vec![Evidence::not_available("x")]), State::Unknown);
        assert_eq!(
            state(vec![good(), Evidence::not_available("x")]),
            State::Note
        );
        assert_eq!(state(vec![good(), bad]), State::Warning);
    }

    #[test]
    fn nvml_that_says_nothing_is_a_warning_only() {
        assert_eq!(nvml(None).state, State::Note);
        let silent = nvml(Some(Evidence::not_available("no library")));
        assert_eq!((silent.state, silent.needed), (State::Warning, false));
        let none = Sample {
            driver_version: Evidence::Value("1".to_owned()),
            devices: Evidence::Value(Vec::new()),
        };
        assert_eq!(nvml(Some(Evidence::Value(none))).found, "driver 1, no GPU");
    }
}
