//! What is probed, as it grows while tracing.

use hashbrown::HashMap;

use crate::event::{BootTime, Coverage, LateProcess, Library, NotProbed, Pid};

/// Most rows kept of each list; what is beyond is counted where it decides something.
const MAX_ROWS: usize = 4096;

/// The coverage, and who was there before a copy of libcuda was probed.
#[derive(Debug, Default)]
pub struct Covered {
    coverage: Coverage,
    /// Late processes, but for those that have executed a new image since.
    late: HashMap<Pid, BootTime>,
    /// There was no room: whoever started before this moment may be late.
    unknown_before: BootTime,
}

impl Covered {
    /// What is probed.
    pub const fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Tracing begins.
    pub fn start(&mut self, coverage: &Coverage) {
        *self = Self {
            coverage: coverage.clone(),
            ..Self::default()
        };
    }

    /// A copy was probed while `processes` had it mapped already. One that is known only gets more
    /// of them.
    pub fn library(&mut self, at: BootTime, library: &Library, processes: &[Pid]) {
        let libraries = &mut self.coverage.libraries;
        let known = libraries
            .iter()
            .any(|it| (it.device, it.inode) == (library.device, library.inode));
        if !known && libraries.len() < MAX_ROWS {
            libraries.push(library.clone());
        }
        let probed_at = library.probed_at.unwrap_or(at);
        for &pid in processes {
            if self.late.contains_key(&pid) {
                continue;
            }
            if self.coverage.late_processes.len() >= MAX_ROWS {
                self.unknown_before = self.unknown_before.max(probed_at);
                continue;
            }
            self.late.insert(pid, probed_at);
            self.coverage.late_processes.push(LateProcess {
                tgid: pid.tgid,
                start_ticks: pid.start_ticks,
                library: library.path.clone(),
                probed_at,
            });
        }
    }

    /// A copy is not probed.
    pub fn not_probed(&mut self, copy: &NotProbed) {
        let rows = &mut self.coverage.not_probed;
        let known = rows
            .iter()
            .position(|row| row.path == copy.path && row.reason == copy.reason);
        match known {
            Some(index) => {
                let row = &mut rows[index];
                for &tgid in &copy.processes {
                    if !row.processes.contains(&tgid) && row.processes.len() < MAX_ROWS {
                        row.processes.push(tgid);
                    }
                }
            }
            None if rows.len() < MAX_ROWS => rows.push(copy.clone()),
            None => {}
        }
    }

    /// A process executed a new image, in which everything was mapped anew.
    pub fn executed(&mut self, pid: Pid) {
        self.late.remove(&pid);
    }

    /// Whether every call of a process that started then has been seen, by tracing that began then.
    pub fn saw_from_the_start(&self, pid: Pid, started: BootTime, began: BootTime) -> bool {
        // A command is held, after its fork, until the probes are in place.
        let held = self.coverage.command && self.coverage.targets.contains(&pid);
        (held || started >= began) && !self.is_late(pid, started)
    }

    /// Whether a process may have called a copy of libcuda before that was probed.
    fn is_late(&self, pid: Pid, started: BootTime) -> bool {
        self.late.contains_key(&pid) || started < self.unknown_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(tgid: u32) -> Pid {
        Pid {
            tgid,
            start_ticks: 7,
        }
    }

    fn library(inode: u64) -> Library {
        Library {
            path: format!("/{inode}/libcuda.so.1"),
            device: 1,
            inode,
            probed_at: Some(BootTime(50)),
            functions: Vec::new(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_late_process_is_late_until_it_executes_another_image() {
        let mut covered = Covered::default();
        covered.library(BootTime(60), &library(1), &[pid(2)]);
        covered.library(BootTime(70), &library(1), &[pid(2), pid(3)]);
        assert_eq!(covered.coverage().libraries.len(), 1);
        let late = &covered.coverage().late_processes;
        assert_eq!(late.iter().map(|it| it.tgid).collect::<Vec<_>>(), [2, 3]);
        assert!(covered.is_late(pid(2), BootTime(9)) && !covered.is_late(pid(4), BootTime(9)));
        covered.executed(pid(2));
        assert!(!covered.is_late(pid(2), BootTime(9)));
        // It stays in the list: its first image was late.
        assert_eq!(covered.coverage().late_processes.len(), 2);
    }

    #[test]
    fn a_command_is_older_than_tracing_and_seen_from_its_start() {
        let mut covered = Covered::default();
        let began = BootTime(50);
        covered.start(&Coverage {
            command: true,
            targets: vec![pid(2)],
            ..Coverage::default()
        });
        assert!(covered.saw_from_the_start(pid(2), BootTime(49), began));
        assert!(!covered.saw_from_the_start(pid(3), BootTime(49), began));
        assert!(covered.saw_from_the_start(pid(3), BootTime(50), began));
        covered.library(BootTime(60), &library(1), &[pid(2)]);
        assert!(!covered.saw_from_the_start(pid(2), BootTime(49), began));
    }

    #[test]
    fn without_room_whoever_is_old_enough_may_be_late() {
        let mut covered = Covered::default();
        let many: Vec<Pid> = (1..=5000).map(pid).collect();
        covered.library(BootTime(60), &library(1), &many);
        assert_eq!(covered.coverage().late_processes.len(), MAX_ROWS);
        assert!(covered.is_late(pid(5000), BootTime(49)));
        assert!(!covered.is_late(pid(5000), BootTime(50)));
    }

    #[test]
    fn the_same_trouble_is_one_row() {
        let mut covered = Covered::default();
        for tgid in [5, 6, 5] {
            covered.not_probed(&NotProbed {
                path: "/x".to_owned(),
                reason: "odd".to_owned(),
                processes: vec![tgid],
            });
        }
        let rows = &covered.coverage().not_probed;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].processes, [5, 6]);
    }
}
