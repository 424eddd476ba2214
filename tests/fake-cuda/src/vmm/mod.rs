//! Virtual memory management: physical memory, addresses, and what is mapped where.
//!
//! Physical memory is used until it is released, unmapped, and no exported descriptor is open.

mod addresses;
mod export;
mod physical;

pub use addresses::*;
pub use export::*;
pub use physical::*;

use crate::driver::{Driver, driver};
use crate::faults::{self, Family, strike};
use crate::objects::{Kind, Slots};
use crate::result::{
    Code, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, code, give, take,
};
use gputrace_test_rig::device::{Share, read_ticket};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of sizes and addresses of memory that is mapped.
pub const GRANULARITY: u64 = 2 << 20;
/// Of the size of reserved addresses.
const PAGE: u64 = 4096;

/// Where reserved addresses begin and end; with the other device addresses they lie below where the
/// system maps files and memory. 16 TiB.
const ZONE: (u64, u64) = (0x6000_0000_0000, 0x7000_0000_0000);

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`; then come host, host of a NUMA node, and of the current one.
const DEVICE: c_uint = 1;
const HOST: std::ops::RangeInclusive<c_uint> = 2..=4;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const FILE_DESCRIPTOR: c_uint = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Location {
    /// What `id` is the number of.
    pub kind: c_uint,
    /// The number.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    meta_data: u64,
    flags: u64,
}

const _: () = assert!(size_of::<Properties>() == 32);

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Multicast {
    devices: c_uint,
    size: u64,
    handle_types: u64,
    flags: u64,
}

/// Where physical memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Gpu(usize),
    Host,
    /// Nowhere: an object that stands for memory of several devices.
    Multicast,
}

#[derive(Debug, Clone, Copy)]
struct Physical {
    bytes: u64,
    place: Place,
    handle_types: c_uint,
    /// References to the handle; without one it is not valid any more.
    handles: u64,
    mappings: u64,
    share: Option<Share>,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    size: u64,
    handle: u64,
}

struct State {
    physical: Slots<Physical>,
    /// Address and size.
    reserved: BTreeMap<u64, u64>,
    reserved_bytes: u64,
    mapped: BTreeMap<u64, Mapping>,
}

/// The physical memory, addresses and mappings of this process.
pub struct Vmm(Mutex<State>);

impl State {
    /// The entry of a map of ranges in which an address lies.
    fn containing<T: Copy>(
        ranges: &BTreeMap<u64, T>,
        address: u64,
        size: impl Fn(T) -> u64,
    ) -> Option<(u64, T)> {
        let (first, range) = ranges.range(..=address).next_back()?;
        (address - first < size(*range)).then_some((*first, *range))
    }

    /// A place for so many bytes: at `wanted` if that is free, else the first gap.
    fn gap(&self, size: u64, alignment: u64, wanted: u64) -> Option<u64> {
        let is_free = |first: u64| {
            let end = first.checked_add(size)?;
            let overlaps = self
                .reserved
                .range(..end)
                .next_back()
                .is_some_and(|(at, bytes)| at + bytes > first);
            (first >= ZONE.0 && end <= ZONE.1 && !overlaps).then_some(first)
        };
        if wanted != 0
            && wanted.is_multiple_of(alignment)
            && let Some(first) = is_free(wanted)
        {
            return Some(first);
        }
        let mut first = ZONE.0.next_multiple_of(alignment);
        for (at, bytes) in &self.reserved {
            if first.checked_add(size)? <= *at {
                break;
            }
            first = first.max((at + bytes).checked_next_multiple_of(alignment)?);
        }
        is_free(first)
    }

    /// Gives the memory back if nothing holds it any more.
    fn settle(&mut self, driver: &Driver, handle: u64) {
        let held = |physical: &Physical| physical.handles > 0 || physical.mappings > 0;
        if self.physical.get(handle).is_none_or(held) {
            return;
        }
        let Some(physical) = self.physical.remove(handle) else {
            return;
        };
        match (physical.share, physical.place) {
            (Some(share), _) => driver.shares.leave(&driver.client, share),
            (None, Place::Gpu(gpu)) => driver.client.free(gpu, physical.bytes),
            (None, Place::Host | Place::Multicast) => {}
        }
    }

    /// The memory of a handle that is valid.
    fn valid(&mut self, handle: u64) -> Result<&mut Physical, Code> {
        self.physical
            .get_mut(handle)
            .filter(|physical| physical.handles > 0)
            .ok_or(INVALID_VALUE)
    }

    /// The mappings that make up a range, which must be whole and without gaps.
    fn mappings_of(&self, address: u64, size: u64) -> Result<Vec<u64>, Code> {
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        let mut next = address;
        let mut found = Vec::new();
        while next < end {
            let mapping = self.mapped.get(&next).ok_or(INVALID_VALUE)?;
            found.push(next);
            next += mapping.size;
        }
        if next == end && !found.is_empty() {
            Ok(found)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

impl Vmm {
    /// Nothing yet.
    pub fn new() -> Self {
        Self(Mutex::new(State {
            physical: Slots::new(Kind::Physical),
            reserved: BTreeMap::new(),
            reserved_bytes: 0,
            mapped: BTreeMap::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mapping in which an address lies, and its size.
    pub fn mapping_around(&self, address: u64) -> Option<(u64, u64)> {
        let state = self.lock();
        let (first, mapping) = State::containing(&state.mapped, address, |m| m.size)?;
        Some((first, mapping.size))
    }
}

fn is_granular(size: u64) -> bool {
    size != 0 && size.is_multiple_of(GRANULARITY)
}

fn place(driver: &Driver, location: Location) -> Result<Place, Code> {
    match location.kind {
        DEVICE => usize::try_from(location.id)
            .ok()
            .filter(|gpu| *gpu < driver.client.devices().count())
            .map(Place::Gpu)
            .ok_or(INVALID_DEVICE),
        kind if HOST.contains(&kind) => Ok(Place::Host),
        _ => Err(INVALID_VALUE),
    }
}
