//! Physical memory of the virtual-memory API: handles, mappings, exports.
//!
//! Memory lives as long as a handle, a mapping or an exported descriptor leads to it. Handles are
//! given out by the driver, which may use a number again; the memory itself has a number of the
//! ledger's own.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::event::BootTime;

/// Number of a piece of physical memory within its process.
pub type Serial = u64;

#[derive(Debug)]
struct Physical {
    /// Handles to it that have not been released.
    handles: u64,
    /// Its numbers.
    names: Vec<u64>,
    mappings: u64,
    exported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    memory: Serial,
}

/// Memory to which no handle and no mapping leads any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub memory: Serial,
    /// It was exported: it lives on as long as somebody has it open.
    pub exported: bool,
}

/// The virtual-memory API's state in one process.
#[derive(Debug, Default)]
pub struct Vmm {
    next: Serial,
    /// By handle; several where one was given out again before its release was reported.
    names: HashMap<u64, Vec<(BootTime, Serial)>>,
    memory: HashMap<Serial, Physical>,
    mappings: BTreeMap<u64, Mapping>,
}

impl Vmm {
    /// A handle was given for new memory, or for memory of others.
    pub fn created(&mut self, handle: u64, returned: BootTime) -> Serial {
        let serial = self.next;
        self.next += 1;
        self.memory.insert(
            serial,
            Physical {
                handles: 1,
                names: vec![handle],
                mappings: 0,
                exported: false,
            },
        );
        self.name(handle, returned, serial);
        serial
    }

    fn name(&mut self, handle: u64, returned: BootTime, serial: Serial) {
        let names = self.names.entry(handle).or_default();
        let at = names.partition_point(|(it, _)| *it <= returned);
        names.insert(at, (returned, serial));
    }

    /// The memory that a handle meant when a call with it was entered.
    fn find(&self, handle: u64, entered: BootTime) -> Option<Serial> {
        let names = self.names.get(&handle)?;
        let after = names.partition_point(|(it, _)| *it <= entered);
        names.get(after.checked_sub(1)?).map(|(_, serial)| *serial)
    }

    /// One more handle was given for memory that is mapped at `address`. `false` if it is not known.
    pub fn retained(&mut self, handle: u64, address: u64, returned: BootTime) -> bool {
        let mapped = self.mappings.range(..=address).next_back();
        let Some((_, &Mapping { memory, .. })) = mapped.filter(|(_, it)| address < it.end) else {
            return false;
        };
        let Some(physical) = self.memory.get_mut(&memory) else {
            return false;
        };
        physical.handles += 1;
        if !physical.names.contains(&handle) {
            physical.names.push(handle);
            self.name(handle, returned, memory);
        }
        true
    }

    /// A handle was released. `Err` if it is not known.
    pub fn released(&mut self, handle: u64, entered: BootTime) -> Result<Option<Ended>, Unknown> {
        let serial = self.find(handle, entered).ok_or(Unknown)?;
        let physical = self.memory.get_mut(&serial).ok_or(Unknown)?;
        physical.handles = physical.handles.saturating_sub(1);
        if physical.handles == 0 {
            for name in std::mem::take(&mut physical.names) {
                if let Some(names) = self.names.get_mut(&name) {
                    names.retain(|(_, it)| *it != serial);
                    if names.is_empty() {
                        self.names.remove(&name);
                    }
                }
            }
        }
        Ok(self.end(serial))
    }

    /// A handle's memory was mapped; returns which. `None` if the handle is not known.
    pub fn mapped(
        &mut self,
        address: u64,
        bytes: u64,
        handle: u64,
        entered: BootTime,
    ) -> (Option<Serial>, Vec<Ended>) {
        let ended = self.unmapped(address, bytes);
        let Some(serial) = self.find(handle, entered) else {
            return (None, ended);
        };
        if let Some(physical) = self.memory.get_mut(&serial) {
            physical.mappings += 1;
            let end = address.saturating_add(bytes);
            let memory = serial;
            self.mappings.insert(address, Mapping { end, memory });
        }
        (Some(serial), ended)
    }

    /// The mappings that begin in a range were taken away.
    pub fn unmapped(&mut self, address: u64, bytes: u64) -> Vec<Ended> {
        let end = address.saturating_add(bytes);
        let gone: Vec<u64> = self
            .mappings
            .range(address..end)
            .map(|(at, _)| *at)
            .collect();
        let mut ended = Vec::new();
        for at in gone {
            let Some(mapping) = self.mappings.remove(&at) else {
                continue;
            };
            if let Some(physical) = self.memory.get_mut(&mapping.memory) {
                physical.mappings = physical.mappings.saturating_sub(1);
                ended.extend(self.end(mapping.memory));
            }
        }
        ended
    }

    /// A handle's memory was exported.
    pub fn exported(&mut self, handle: u64, entered: BootTime) {
        let serial = self.find(handle, entered);
        if let Some(physical) = serial.and_then(|serial| self.memory.get_mut(&serial)) {
            physical.exported = true;
        }
    }

    fn end(&mut self, memory: Serial) -> Option<Ended> {
        let physical = self.memory.get(&memory)?;
        if physical.handles > 0 || physical.mappings > 0 {
            return None;
        }
        let exported = physical.exported;
        self.memory.remove(&memory);
        Some(Ended { memory, exported })
    }

    /// Whether memory is mapped anywhere.
    #[must_use]
    pub fn is_mapped(&self, memory: Serial) -> bool {
        self.memory.get(&memory).is_some_and(|it| it.mappings > 0)
    }
}

/// A handle that was not seen being given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ns: u64) -> BootTime {
        BootTime(ns)
    }

    #[test]
    fn memory_lives_while_a_handle_or_a_mapping_leads_to_it() {
        let mut vmm = Vmm::default();
        let memory = vmm.created(7, at(1));
        assert_eq!(vmm.mapped(0x1000, 0x100, 7, at(2)).0, Some(memory));
        assert_eq!(vmm.released(7, at(3)), Ok(None));
        assert!(vmm.is_mapped(memory));
        let ended = Ended {
            memory,
            exported: false,
        };
        assert_eq!(vmm.unmapped(0x1000, 0x100), [ended]);
        assert_eq!(vmm.released(7, at(4)), Err(Unknown));
    }

    #[test]
    fn each_handle_counts() {
        let mut vmm = Vmm::default();
        let memory = vmm.created(7, at(1));
        vmm.mapped(0x1000, 0x100, 7, at(2));
        assert!(vmm.retained(8, 0x10ff, at(3)));
        assert!(!vmm.retained(9, 0x1100, at(3)));
        assert_eq!(vmm.unmapped(0, u64::MAX), []);
        vmm.exported(8, at(4));
        assert_eq!(vmm.released(7, at(5)), Ok(None));
        let ended = Ended {
            memory,
            exported: true,
        };
        assert_eq!(vmm.released(8, at(6)), Ok(Some(ended)));
    }

    #[test]
    fn a_late_release_means_the_older_memory() {
        let mut vmm = Vmm::default();
        let old = vmm.created(7, at(10));
        let new = vmm.created(7, at(30));
        assert_eq!(vmm.released(7, at(20)).unwrap().unwrap().memory, old);
        assert_eq!(vmm.released(7, at(40)).unwrap().unwrap().memory, new);
    }

    #[test]
    fn a_mapping_over_another_replaces_it() {
        let mut vmm = Vmm::default();
        let first = vmm.created(1, at(1));
        vmm.created(2, at(1));
        vmm.mapped(0x1000, 0x100, 1, at(2));
        vmm.released(1, at(3)).unwrap();
        let (_, ended) = vmm.mapped(0x1000, 0x100, 2, at(4));
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].memory, first);
    }
}
