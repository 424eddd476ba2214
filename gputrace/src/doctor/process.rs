//! Checks of the process that would trace: its privileges and its PID namespace.

use std::fs;

use super::{
    diagnosis::{Check, State},
    machine::Machine,
};
use crate::identity::escape_at_most;

/// A capability, by its number in linux/capability.h.
#[derive(Clone, Copy)]
struct Capability(u32, &'static str);

const DAC_READ_SEARCH: Capability = Capability(2, "CAP_DAC_READ_SEARCH");
const SYS_PTRACE: Capability = Capability(19, "CAP_SYS_PTRACE");
const SYS_ADMIN: Capability = Capability(21, "CAP_SYS_ADMIN");
const PERFMON: Capability = Capability(38, "CAP_PERFMON");
const BPF: Capability = Capability(39, "CAP_BPF");

/// What the process may do.
#[derive(Clone, Debug)]
pub struct Privileges {
    /// The check.
    pub check: Check,
    /// Whether the kernel would take eBPF programs from it.
    pub enough: bool,
    /// Whether it has `CAP_SYS_ADMIN`.
    pub sys_admin: bool,
}

/// The effective capabilities of this process.
pub fn privileges(machine: &Machine) -> Privileges {
    judge_privileges(
        &machine.read("proc/self/status").unwrap_or_default(),
        &machine.read("proc/self/uid_map").unwrap_or_default(),
    )
}

fn judge_privileges(status: &str, uid_map: &str) -> Privileges {
    let why = "Only privileged processes may load eBPF programs";
    let check = |found: String| Check::ok("privileges", found, why).needed();
    let root = "run it as root: sudo gputrace";
    let Some(effective) = effective(status) else {
        return Privileges {
            check: check("/proc/self/status does not say which there are".to_owned())
                .state(State::Unknown)
                .advice("mount /proc"),
            enough: false,
            sys_admin: false,
        };
    };
    let has = |capability: Capability| effective >> capability.0 & 1 == 1;
    let listed = |wanted: bool, of: &[Capability]| {
        of.iter()
            .filter(|&&capability| has(capability) == wanted)
            .map(|capability| capability.1)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let all = [BPF, PERFMON, SYS_ADMIN, SYS_PTRACE, DAC_READ_SEARCH];
    let held = listed(true, &all);
    let held = if held.is_empty() { "none" } else { &held };
    // Without such a file there are no user namespaces.
    let own_namespace = !uid_map.is_empty() && !maps_every_user(uid_map);
    if own_namespace && effective != 0 {
        return Privileges {
            check: check(format!(
                "{held}, but only within a user namespace (a rootless container), where the \
                 kernel does not count them"
            ))
            .state(State::Missing)
            .advice("run it as root of the host, outside of the container"),
            enough: false,
            sys_admin: false,
        };
    }
    let sys_admin = has(SYS_ADMIN);
    // The kernel takes CAP_SYS_ADMIN for both.
    let enough = sys_admin || (has(BPF) && has(PERFMON));
    let check = if !enough {
        check(held.to_owned()).state(State::Missing).advice(format!(
            "{root}. Or give the program {} once: sudo setcap \
             cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep $(command -v gputrace)",
            listed(false, &[BPF, PERFMON]),
        ))
    } else if !has(SYS_PTRACE) || !has(DAC_READ_SEARCH) {
        check(format!(
            "{held}; without {} what other users' processes have mapped stays unknown: their \
             copies of libcuda are not found, and their call sites have no names",
            listed(false, &[SYS_PTRACE, DAC_READ_SEARCH])
        ))
        .state(State::Warning)
        .advice(root)
    } else {
        check(held.to_owned())
    };
    Privileges {
        check,
        enough,
        sys_admin,
    }
}

fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether the process is in the initial user namespace, which maps every user to itself.
fn maps_every_user(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The PID namespace: in one of its own, the PIDs that gputrace reads in /proc are not those that
/// the kernel gives to the programs.
pub fn pid_namespace(machine: &Machine) -> Check {
    let link = fs::read_link(machine.path("proc/self/ns/pid"))
        .ok()
        .and_then(|link| Some(link.to_str()?.to_owned()));
    judge_pid_namespace(
        link.as_deref(),
        &machine.read("proc/self/status").unwrap_or_default(),
        machine.read("proc/1/comm").ok().as_deref(),
    )
}

/// `PROC_PID_INIT_INO` of linux/proc_ns.h: the inode number of the initial PID namespace.
const INITIAL: &str = "pid:[4026531836]";

fn judge_pid_namespace(link: Option<&str>, status: &str, init: Option<&str>) -> Check {
    let why = "PIDs are reported as the initial one counts them";
    let init = init.map_or_else(
        || "process 1 cannot be seen".to_owned(),
        |comm| format!("process 1 is '{}'", escape_at_most(comm.as_bytes(), 20)),
    );
    // /proc shows the PIDs of the namespace that it was mounted in, from there inwards.
    let levels = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .map(|pids| pids.split_whitespace().count());
    let check = |found: String| Check::ok("pid_namespace", found, why);
    match (link, levels) {
        (Some(INITIAL), _) => check(format!("the initial one; {init}")),
        (Some(_), Some(2..)) => check(format!(
            "one of its own, with the /proc of an outer one; {init}"
        ))
        .state(State::Note),
        (Some(_), _) => check(format!(
            "one of its own, as in a container; {init}. Names, call sites and -p would be those \
             of other processes than the traced ones"
        ))
        .state(State::Warning)
        .advice(
            "run it on the host, or in a container that shares its PIDs: docker run --pid=host, \
             hostPID: true in Kubernetes",
        ),
        (None, _) => check(format!("/proc does not say which; {init}"))
            .state(State::Unknown)
            .advice("mount /proc"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL_USERS: &str = "         0          0 4294967295";

    fn with(capabilities: &[Capability]) -> Privileges {
        let bits = capabilities.iter().fold(0u64, |bits, it| bits | 1 << it.0);
        judge_privileges(&format!("Name:\tx\nCapEff:\t{bits:016x}\n"), INITIAL_USERS)
    }

    #[test]
    fn two_capabilities_are_enough_and_sys_admin_stands_for_both() {
        let others = [SYS_PTRACE, DAC_READ_SEARCH];
        for (capabilities, enough) in [
            (vec![BPF, PERFMON], true),
            (vec![SYS_ADMIN], true),
            (vec![BPF], false),
            (vec![PERFMON], false),
            (vec![], false),
        ] {
            let all = [&capabilities[..], &others].concat();
            let found = with(&all);
            assert_eq!(found.enough, enough, "{}", found.check.found);
            let state = if enough { State::Ok } else { State::Missing };
            assert_eq!(found.check.state, state);
            assert_eq!(found.check.advice.is_some(), !enough);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let found = with(&[BPF, SYS_PTRACE, DAC_READ_SEARCH]).check;
        assert!(found.advice.unwrap().contains("program CAP_PERFMON once"));
        let found = with(&[BPF, PERFMON, SYS_PTRACE]);
        assert!(found.enough && found.check.state == State::Warning);
        assert!(found.check.found.contains("without CAP_DAC_READ_SEARCH"));
    }

    #[test]
    fn capabilities_within_a_user_namespace_do_not_count() {
        let found = judge_privileges("CapEff:\t000001ffffffffff\n", "0 1000 1\n1 100000 65536");
        assert!(!found.enough && !found.sys_admin);
        assert!(found.check.advice.unwrap().contains("host"));
    }

    #[test]
    fn hostile_files_are_unknown() {
        for status in ["", "CapEff:", "CapEff:\tzz", "CapEff:\t-1", "\0\u{fffd}"] {
            let found = judge_privileges(status, INITIAL_USERS);
            assert_eq!(found.check.state, State::Unknown, "{status:?}");
            assert!(!found.enough);
        }
    }

    #[test]
    fn pid_namespaces() {
        let judge = |link, status| judge_pid_namespace(link, status, Some("systemd")).state;
        assert_eq!(judge(Some(INITIAL), "NSpid:\t7\n"), State::Ok);
        let own = Some("pid:[4026532179]");
        assert_eq!(judge(own, "NSpid:\t7\n"), State::Warning);
        assert_eq!(judge(own, "NSpid:\t700\t7\n"), State::Note);
        assert_eq!(judge(own, ""), State::Warning);
        assert_eq!(judge(None, ""), State::Unknown);
        let hostile = judge_pid_namespace(own, "", Some("\u{1b}[2J"));
        assert!(!hostile.found.contains('\u{1b}'));
    }
}
