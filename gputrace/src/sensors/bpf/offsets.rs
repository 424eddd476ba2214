//! Offsets of kernel struct members for the programs' constants.

use std::{fs, path::Path};

use crate::sensors::btf::{Btf, BtfError};

/// Name of a constant in the programs, and its value.
pub type Constant = (&'static str, u32);

/// (constant, struct, member path)
const MEMBERS: [(&str, &str, &str); 18] = [
    ("TASK_PID", "task_struct", "pid"),
    ("TASK_TGID", "task_struct", "tgid"),
    ("TASK_GROUP_LEADER", "task_struct", "group_leader"),
    ("TASK_REAL_PARENT", "task_struct", "real_parent"),
    ("TASK_START_BOOTTIME", "task_struct", "start_boottime"),
    ("TASK_CRED", "task_struct", "cred"),
    ("TASK_THREAD_PID", "task_struct", "thread_pid"),
    ("TASK_CGROUPS", "task_struct", "cgroups"),
    ("TASK_SIGNAL", "task_struct", "signal"),
    ("TASK_EXIT_CODE", "task_struct", "exit_code"),
    ("TASK_COMM", "task_struct", "comm"),
    ("CRED_UID", "cred", "uid.val"),
    ("PID_LEVEL", "pid", "level"),
    ("PID_NUMBERS", "pid", "numbers"),
    ("UPID_NR", "upid", "nr"),
    ("SIGNAL_LIVE", "signal_struct", "live"),
    ("CGROUP_KN", "cgroup", "kn"),
    ("KERNFS_NAME", "kernfs_node", "name"),
];

/// Reads every offset.
///
/// # Errors
/// Where the kernel's BTF cannot be read or lacks one of the members.
pub fn read(btf: &Btf, proc_cgroups: &Path) -> Result<Vec<Constant>, BtfError> {
    let mut constants = MEMBERS
        .iter()
        .map(|&(name, of, member)| Ok((name, btf.offset(of, member)?)))
        .collect::<Result<Vec<_>, BtfError>>()?;
    constants.push(("UPID_SIZE", btf.size_of("upid")?));
    let table = fs::read_to_string(proc_cgroups).unwrap_or_default();
    match v1_memory_controller(&table) {
        Some(index) => {
            let pointers = btf.offset("css_set", "subsys")?;
            constants.push(("CSS_SET_CGROUP", pointers + 8 * index));
            constants.push(("CSS_CGROUP", btf.offset("cgroup_subsys_state", "cgroup")?));
        }
        None => {
            constants.push(("CSS_SET_CGROUP", btf.offset("css_set", "dfl_cgrp")?));
            constants.push(("CSS_CGROUP", u32::MAX));
        }
    }
    Ok(constants)
}

/// Number of the memory controller if it is mounted as cgroup v1: its line in `/proc/cgroups`,
/// which lists controllers in the order of their numbers. `None`: v2, or no such controller.
fn v1_memory_controller(table: &str) -> Option<u32> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let (index, line) = (0..)
        .zip(lines)
        .find(|(_, line)| line.starts_with("memory\t"))?;
    let hierarchy: u32 = line.split('\t').nth(1)?.parse().ok()?;
    (hierarchy != 0).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_by_its_line() {
        let v1 =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t4\t1\t1\nmemory\t5\t9\t1\n";
        assert_eq!(v1_memory_controller(v1), Some(1));
        let v2 =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t1\t1\nmemory\t0\t9\t1\n";
        assert_eq!(v1_memory_controller(v2), None);
        assert_eq!(v1_memory_controller("garbage"), None);
    }
}
