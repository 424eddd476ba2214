//! Physical memory, addresses, and the mappings between them.

use crate::execute::Run;
use crate::functions::{self as f};
use crate::memory::Put;
use crate::problem::{Problem, allowed};
use crate::sites::{self, Function};
use crate::things::{Family, Held, Mapping, Physical, What};
use gputrace_test_rig::protocol::{Expect, Kind, Map, Reserve, Unmap, VmmCreate, VmmRetain};

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, so that it can be exported.
const AS_FILE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_AND_WRITE: u32 = 3;

/// `CUmemAllocationProp`
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    location: i32,
    security: u64,
    flags: u64,
}

/// `CUmemAccessDesc`
#[repr(C)]
struct Access {
    location_type: u32,
    location: i32,
    flags: u32,
}

impl Run<'_> {
    /// Creates handles of physical memory.
    pub fn vmm_create(&mut self, create: &VmmCreate) -> Result<(), Problem> {
        let function = self.find(&f::VMM_CREATE, create.via, false)?;
        for _ in 0..create.count {
            let mut properties = Properties {
                kind: PINNED,
                handle_types: AS_FILE,
                location_type: ON_DEVICE,
                location: create.device,
                security: 0,
                flags: 0,
            };
            let mut handle = 0_u64;
            let arguments = [
                sites::pointer(&mut handle),
                create.bytes,
                sites::pointer(&mut properties),
                0,
            ];
            let code = sites::call(create.site, function, &arguments, &[]);
            self.results
                .given(Kind::Vmm, create.site, code, create.bytes);
            if code == 0 {
                let physical = Physical {
                    kind: Kind::Vmm,
                    bytes: create.bytes,
                    device: create.device,
                    references: 1,
                    mappings: 0,
                };
                self.add_handle(&create.label, handle, physical);
            }
            let what = || format!("{}: creating {} bytes", create.site, create.bytes);
            allowed(what, code, &create.expect)?;
        }
        Ok(())
    }

    /// A new handle goes on its pile.
    pub fn add_handle(&self, label: &str, handle: u64, physical: Physical) {
        let imported = physical.kind == Kind::Alias;
        let mut state = self.session.world.state();
        // The same memory may have come in before, under the same handle.
        match state.physical.get_mut(&handle) {
            Some(known) => known.references += 1,
            None => state.created(handle, physical),
        }
        let held = Held {
            what: What::Handle { imported },
            address: handle,
            bytes: physical.bytes,
            context: 0,
        };
        state.put_back(label, held);
    }

    /// Physical memory is gone, if it is.
    pub fn physical_gone(&mut self, gone: Option<Physical>) {
        if let Some(physical) = gone {
            self.results.taken(physical.kind, 0, physical.bytes);
        }
    }

    /// Asks for a further handle of what is mapped.
    pub fn vmm_retain(&mut self, retain: &VmmRetain) -> Result<(), Problem> {
        let function = self.find(&f::VMM_RETAIN, retain.via, false)?;
        let (_, mapping) = self.newest_mapping(&retain.range)?;
        for _ in 0..retain.count {
            let mut handle = 0_u64;
            let arguments = [sites::pointer(&mut handle), mapping.address];
            let code = sites::call(retain.site, function, &arguments, &[]);
            if code == 0 {
                let known = self
                    .session
                    .world
                    .state()
                    .physical
                    .get(&mapping.handle)
                    .copied();
                // Mapped, so it is known.
                if let Some(physical) = known {
                    self.add_handle(&retain.label, handle, physical);
                }
            }
            self.call(f::VMM_RETAIN.symbol, code, &retain.expect)?;
        }
        Ok(())
    }

    /// Reserves addresses.
    pub fn reserve(&mut self, reserve: &Reserve) -> Result<(), Problem> {
        let function = self.find(&f::VMM_RESERVE, reserve.via, false)?;
        let put = Put {
            site: reserve.site,
            label: &reserve.label,
            expect: &reserve.expect,
        };
        for _ in 0..reserve.count {
            let mut address = 0_u64;
            let arguments = [sites::pointer(&mut address), reserve.bytes, 0, 0, 0];
            let code = sites::call(reserve.site, function, &arguments, &[]);
            self.put_sized(What::Range, code, (address, reserve.bytes), &put)?;
        }
        Ok(())
    }

    /// Maps handles into the newest range.
    pub fn map(&mut self, map: &Map) -> Result<(), Problem> {
        let mapping = self.find(&f::VMM_MAP, map.via, false)?;
        let range = self.newest(Family::Ranges, &map.range)?;
        let handles: Vec<Held> = {
            let state = self.session.world.state();
            let pile = state.pile(Family::Handles, &map.label);
            let count = usize::try_from(map.count).unwrap_or(usize::MAX);
            pile.iter().rev().take(count).copied().collect()
        };
        if (handles.len() as u64) < map.count {
            return Err(Problem::EmptyPile(map.label.clone()));
        }
        for handle in handles {
            let address = {
                let state = self.session.world.state();
                let mapped = state
                    .mappings
                    .get(&range.address)
                    .and_then(|all| all.last());
                mapped.map_or(range.address, |last| last.address + last.bytes)
            };
            let arguments = [address, handle.bytes, 0, handle.address, 0];
            let code = sites::call(map.site, mapping, &arguments, &[]);
            if code == 0 {
                let device = self.add_mapping(&range, address, &handle);
                self.set_access(map, address, handle.bytes, device)?;
            }
            self.call(f::VMM_MAP.symbol, code, &map.expect)?;
        }
        Ok(())
    }

    /// Notes a mapping: the device of the memory.
    fn add_mapping(&self, range: &Held, address: u64, handle: &Held) -> i32 {
        let mut state = self.session.world.state();
        state
            .mappings
            .entry(range.address)
            .or_default()
            .push(Mapping {
                address,
                bytes: handle.bytes,
                handle: handle.address,
            });
        state
            .physical
            .get_mut(&handle.address)
            .map_or(0, |physical| {
                physical.mappings += 1;
                physical.device
            })
    }

    fn set_access(
        &mut self,
        map: &Map,
        address: u64,
        bytes: u64,
        device: i32,
    ) -> Result<(), Problem> {
        let function = self.find(&f::VMM_SET_ACCESS, map.via, false)?;
        let mut access = Access {
            location_type: ON_DEVICE,
            location: device,
            flags: READ_AND_WRITE,
        };
        let arguments = [address, bytes, sites::pointer(&mut access), 1];
        let code = sites::call(map.site, function, &arguments, &[]);
        self.call(f::VMM_SET_ACCESS.symbol, code, &Expect::default())
    }

    /// The newest mapping in the ranges of a pile, and the range.
    fn newest_mapping(&self, label: &str) -> Result<(u64, Mapping), Problem> {
        let state = self.session.world.state();
        let ranges = state.pile(Family::Ranges, label).iter().rev();
        let mut mappings = ranges.filter_map(|range| {
            let newest = state.mappings.get(&range.address)?.last()?;
            Some((range.address, *newest))
        });
        mappings
            .next()
            .ok_or_else(|| Problem::NoMapping(label.to_owned()))
    }

    /// Unmaps the newest mappings.
    pub fn unmap(&mut self, unmap: &Unmap) -> Result<(), Problem> {
        let function = self.find(&f::VMM_UNMAP, unmap.via, false)?;
        if unmap.whole {
            return self.unmap_whole(unmap, function);
        }
        let mut left = unmap.count;
        while left != Some(0) {
            let (range, mapping) = match self.newest_mapping(&unmap.range) {
                Ok(found) => found,
                Err(_) if left.is_none() => return Ok(()),
                Err(problem) => return Err(problem),
            };
            left = left.map(|left| left - 1);
            let code = sites::give_back(function, &[mapping.address, mapping.bytes]);
            if code == 0 {
                self.drop_newest_mapping(range);
            }
            self.call(f::VMM_UNMAP.symbol, code, &unmap.expect)?;
            if code != 0 {
                // The same one would be refused for ever.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Unmaps all that is mapped in the newest addresses, by one call.
    fn unmap_whole(&mut self, unmap: &Unmap, function: Function) -> Result<(), Problem> {
        let range = self.newest(Family::Ranges, &unmap.range)?.address;
        let mappings = {
            let state = self.session.world.state();
            state.mappings.get(&range).cloned().unwrap_or_default()
        };
        let bytes: u64 = mappings.iter().map(|mapping| mapping.bytes).sum();
        if bytes == 0 {
            return Err(Problem::NoMapping(unmap.range.clone()));
        }
        let code = sites::give_back(function, &[range, bytes]);
        if code == 0 {
            for _ in mappings {
                self.drop_newest_mapping(range);
            }
        }
        self.call(f::VMM_UNMAP.symbol, code, &unmap.expect)
    }

    /// Notes that the newest mapping in a range is no more.
    fn drop_newest_mapping(&mut self, range: u64) {
        let mut state = self.session.world.state();
        let newest = state.mappings.get_mut(&range).and_then(Vec::pop);
        let gone = newest.and_then(|mapping| {
            state.change(mapping.handle, |physical| {
                physical.mappings = physical.mappings.saturating_sub(1);
            })
        });
        drop(state);
        self.physical_gone(gone);
    }
}
