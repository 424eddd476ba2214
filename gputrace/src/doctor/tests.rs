//! Machines as folders: whole ones, poor ones, hostile ones.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    thread,
};

use super::*;
use crate::{
    cuda::FUNCTIONS,
    sensors::bpf::{BpfError, Trial},
};

/// Long enough that only a real hang reaches it.
const LONG: Duration = Duration::from_secs(60);

/// What every diagnosis says something about.
const NAMES: [&str; 15] = [
    "kernel",
    "btf",
    "privileges",
    "pid_namespace",
    "lockdown",
    "sysctls",
    "programs",
    "probes",
    "uprobe_events",
    "kprobes",
    "user_stacks",
    "preemption",
    "driver",
    "libcuda",
    "nvml",
];

fn accepted() -> Result<Trial, BpfError> {
    Ok(Trial {
        method: AttachMethod::UprobeMulti,
        probes: Ok(()),
    })
}

fn nvml(script: &str) -> NvmlOptions {
    NvmlOptions {
        executable: PathBuf::from("/bin/sh"),
        arguments: vec!["-c".into(), script.into()],
        ..NvmlOptions::default()
    }
}

/// A machine with nothing.
fn empty() -> (tempfile::TempDir, Machine) {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine {
        root: root.path().to_owned(),
        libcuda: Vec::new(),
        deep: false,
        nvml: Some(nvml("exit 0")),
        try_programs: accepted,
        patience: LONG,
    };
    (root, machine)
}

fn write(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The form of every exported function of the real libcuda.
const TRAMPOLINE: [u8; 16] = [
    0x81, 0x3d, 0, 0, 0, 0, 0, 0, 0, 0, // cmpl
    0x74, 0x04, // je +0x10
    0xff, 0x25, 0, 0, // jmp *slot(%rip), cut
];

/// A library with all functions that are probed, each a trampoline.
fn library() -> Vec<u8> {
    const CODE: usize = 0x200;
    let mut names = vec![0u8];
    let mut symbols = vec![0u8; 24];
    for (index, function) in FUNCTIONS.iter().enumerate() {
        symbols.extend(u32::try_from(names.len()).unwrap().to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]); // a global function in section 1
        let at = CODE + index * TRAMPOLINE.len();
        symbols.extend([at, TRAMPOLINE.len()].map(usize::to_le_bytes).concat());
        names.extend_from_slice(function.symbol.as_bytes());
        names.push(0);
    }
    let code = TRAMPOLINE.repeat(FUNCTIONS.len());
    let symbols_at = (CODE + code.len()).next_multiple_of(8);
    let names_at = symbols_at + symbols.len();
    let sections_at = (names_at + names.len()).next_multiple_of(8);

    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([3u16, 62].map(u16::to_le_bytes).concat()); // a library for x86-64
    file.extend(1u32.to_le_bytes());
    file.extend([0, 64, sections_at].map(usize::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 64, 3, 0].map(u16::to_le_bytes).concat());
    // One segment, to be read and executed, that is the whole file.
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    let all = sections_at;
    file.extend([0, 0, 0, all, all, 0x1000].map(usize::to_le_bytes).concat());
    file.resize(CODE, 0);
    file.extend(code);
    file.resize(symbols_at, 0);
    file.extend(&symbols);
    file.extend(&names);
    file.resize(sections_at, 0);
    for (kind, at, size, link) in [
        (0u32, 0, 0, 0u32),
        (11, symbols_at, symbols.len(), 2),
        (3, names_at, names.len(), 0),
    ] {
        file.extend([0, kind].map(u32::to_le_bytes).concat());
        file.extend([0, 0, at, size].map(usize::to_le_bytes).concat());
        file.extend([link, 1].map(u32::to_le_bytes).concat());
        file.extend([8usize, 24].map(usize::to_le_bytes).concat());
    }
    file
}

/// A server with a GPU, looked at by root.
fn server() -> (tempfile::TempDir, Machine) {
    let (folder, mut machine) = empty();
    let root = folder.path();
    for (path, content) in [
        ("proc/sys/kernel/osrelease", "6.8.0-31-generic\n"),
        ("proc/sys/kernel/perf_event_paranoid", "4\n"),
        ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
        (
            "proc/version",
            "Linux version 6.8.0 (b@h) #1 SMP PREEMPT_DYNAMIC\n",
        ),
        (
            "proc/self/status",
            "Name:\tgputrace\nNSpid:\t9\nCapEff:\t000001ffffffffff\n",
        ),
        ("proc/self/uid_map", "         0          0 4294967295\n"),
        ("proc/1/comm", "systemd\n"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01\n",
        ),
        ("sys/module/nvidia/version", "550.163.01\n"),
        (
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        ),
        ("sys/bus/event_source/devices/uprobe/type", "8\n"),
        ("sys/bus/event_source/devices/kprobe/type", "7\n"),
        ("dev/nvidiactl", ""),
    ] {
        write(root, path, content);
    }
    fs::create_dir_all(root.join("proc/self/ns")).unwrap();
    symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
    write(root, "usr/lib64/libcuda.so.1", library());
    let inode = fs::metadata(root.join("usr/lib64/libcuda.so.1"))
        .unwrap()
        .ino();
    let maps = format!("7f00-7f01 r-xp 0 00:28 {inode}    /usr/lib64/libcuda.so.1\n");
    write(root, "proc/9/maps", maps);
    // The process sees the same files.
    symlink(root, root.join("proc/9/root")).unwrap();
    machine.nvml = Some(nvml(
        r#"read line; echo '{"request":1,"sample":{"driver_version":{"value":"550.163.01"},"devices":{"value":[]}}}'; read line"#,
    ));
    (folder, machine)
}

/// Gives the machine the types of the running kernel, which has the only complete ones at hand.
fn with_btf(root: &Path) -> bool {
    let path = crate::sensors::btf::KERNEL_BTF;
    fs::create_dir_all(root.join("sys/kernel/btf")).unwrap();
    symlink(path, root.join(path.trim_start_matches('/'))).unwrap();
    Path::new(path).exists()
}

fn diagnose(machine: Machine) -> Diagnosis {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let diagnosis = runtime.block_on(examine(machine));
    runtime.shutdown_background();
    diagnosis
}

fn check<'a>(diagnosis: &'a Diagnosis, name: &str) -> &'a Check {
    let mut checks = diagnosis.checks.iter().filter(|check| check.name == name);
    let check = checks.next().unwrap_or_else(|| panic!("no check {name}"));
    assert_eq!(checks.count(), 0, "{name} occurs twice");
    check
}

fn state(diagnosis: &Diagnosis, name: &str) -> State {
    check(diagnosis, name).state
}

/// What holds of every diagnosis.
fn assert_sound(diagnosis: &Diagnosis) {
    let names: Vec<&str> = diagnosis.checks.iter().map(|check| &*check.name).collect();
    assert_eq!(names, NAMES);
    for check in &diagnosis.checks {
        let all_well = matches!(check.state, State::Ok | State::Note);
        assert!(all_well || check.advice.is_some(), "{check:?}");
        assert!(!check.found.is_empty() && !check.why.is_empty());
        for text in [&check.found, &check.why] {
            assert!(!text.chars().any(char::is_control), "{text:?}");
        }
    }
}

#[test]
fn a_server_can_be_traced() {
    let (folder, machine) = server();
    if !with_btf(folder.path()) {
        eprintln!("skipped: the running kernel has no BTF");
        return;
    }
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    for name in NAMES {
        let expected = if name == "sysctls" {
            State::Note
        } else {
            State::Ok
        };
        let check = check(&diagnosis, name);
        assert_eq!(check.state, expected, "{check:?}");
    }
    assert!(diagnosis.can_trace);
    let [library] = &diagnosis.libraries[..] else {
        panic!("{:?}", diagnosis.libraries);
    };
    assert_eq!(library.mapped_by, [9]);
    assert_eq!(library.library.functions.len(), FUNCTIONS.len());
    assert!(
        library
            .library
            .functions
            .iter()
            .all(|it| it.emulated && it.offset == 10)
    );
}

#[test]
fn an_empty_machine_cannot_be_traced_and_everything_is_said() {
    let (_folder, machine) = empty();
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    assert!(!diagnosis.can_trace);
    for (name, expected) in [
        ("kernel", State::Unknown),
        ("btf", State::Missing),
        ("privileges", State::Unknown),
        ("programs", State::Unknown),
        ("driver", State::Missing),
        ("libcuda", State::Unknown),
        ("nvml", State::Warning),
    ] {
        assert_eq!(state(&diagnosis, name), expected, "{name}");
    }
}

#[test]
fn without_btf_or_nvidia_that_is_what_is_missing() {
    let (folder, machine) = server();
    for path in ["sys/module", "proc/driver", "dev", "usr", "proc/9"] {
        fs::remove_dir_all(folder.path().join(path)).unwrap();
    }
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    for name in ["btf", "driver"] {
        assert_eq!(state(&diagnosis, name), State::Missing, "{name}");
    }
    // One may still come, with a container.
    assert_eq!(state(&diagnosis, "libcuda"), State::Warning);
    for name in ["kernel", "privileges", "programs"] {
        assert_eq!(state(&diagnosis, name), State::Ok, "{name}");
    }
}

#[test]
fn in_a_rootless_container_the_host_is_advised() {
    let (folder, machine) = server();
    let root = folder.path();
    write(root, "proc/self/uid_map", "0 1000 1\n1 100000 65536\n");
    fs::remove_file(root.join("proc/self/ns/pid")).unwrap();
    symlink("pid:[4026532179]", root.join("proc/self/ns/pid")).unwrap();
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    assert_eq!(state(&diagnosis, "privileges"), State::Missing);
    assert_eq!(state(&diagnosis, "pid_namespace"), State::Warning);
    // The kernel is not even asked.
    assert_eq!(state(&diagnosis, "programs"), State::Unknown);
    assert!(!diagnosis.can_trace);
}

#[test]
fn an_old_kernel_is_told_what_it_lacks() {
    let (folder, machine) = server();
    write(
        folder.path(),
        "proc/sys/kernel/osrelease",
        "5.4.0-200-generic\n",
    );
    let diagnosis = diagnose(machine);
    assert_eq!(state(&diagnosis, "kernel"), State::Missing);
    assert!(!diagnosis.can_trace);
}

#[test]
fn a_named_library_is_the_only_one() {
    let (folder, mut machine) = server();
    let named = folder.path().join("opt/libcuda.so.1");
    let absent = folder.path().join("absent.so");
    write(folder.path(), "opt/libcuda.so.1", library());
    machine.libcuda = vec![named.clone(), absent.clone()];
    let diagnosis = diagnose(machine);
    let paths = |paths: Vec<&String>| paths.into_iter().map(PathBuf::from).collect::<Vec<_>>();
    let found = diagnosis.libraries.iter().map(|it| &it.library.path);
    assert_eq!(paths(found.collect()), [named]);
    let not_probed = diagnosis.not_probed.iter().map(|it| &it.path);
    assert_eq!(paths(not_probed.collect()), [absent]);
    assert_eq!(state(&diagnosis, "libcuda"), State::Warning);
}

#[test]
fn what_hangs_is_unknown_and_does_not_keep_the_rest() {
    fn never() -> Result<Trial, BpfError> {
        loop {
            thread::park();
        }
    }
    let (_folder, mut machine) = server();
    machine.patience = Duration::from_millis(300);
    machine.try_programs = never;
    machine.nvml = Some(nvml("exec sleep 600"));
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    assert!(!diagnosis.can_trace);
    assert!(check(&diagnosis, "programs").found.contains("no answer"));
    assert_eq!(state(&diagnosis, "nvml"), State::Warning);
}

#[test]
fn a_check_that_fails_is_unknown() {
    fn panics() -> Result<Trial, BpfError> {
        panic!("as the test wants it");
    }
    let (_folder, mut machine) = server();
    machine.try_programs = panics;
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    assert_eq!(state(&diagnosis, "programs"), State::Unknown);
}

#[test]
fn hostile_files_do_no_harm() {
    let (folder, machine) = server();
    let root = folder.path();
    let garbage: Vec<u8> = (0..=255u8).cycle().take(200_000).collect();
    for path in [
        "proc/sys/kernel/osrelease",
        "proc/sys/kernel/perf_event_paranoid",
        "proc/version",
        "proc/self/uid_map",
        "proc/1/comm",
        "proc/9/maps",
        "proc/cgroups",
        "proc/driver/nvidia/version",
        "sys/module/nvidia/version",
        "sys/kernel/security/lockdown",
        "sys/kernel/btf/vmlinux",
        "usr/lib64/libcuda.so.1",
        "sys/bus/pci/devices/x/vendor",
    ] {
        write(root, path, &garbage);
    }
    // A pipe that nobody writes to, where a file should be.
    let pipe = root.join("proc/cmdline");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir_all(root.join("sys/kernel/debug/sched/preempt")).unwrap();
    let diagnosis = diagnose(machine);
    assert_sound(&diagnosis);
    assert!(!diagnosis.can_trace);
}
