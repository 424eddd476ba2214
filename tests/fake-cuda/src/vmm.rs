//! Virtual memory management: physical memory, addresses, and what is mapped where.
//!
//! Physical memory is used until it is released, unmapped, and no exported descriptor is open.

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

/// `cuMemCreate`.
pub unsafe extern "C" fn create(
    to: *mut u64,
    size: usize,
    properties: *const Properties,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let properties = unsafe { take(properties)? };
        let bytes = size as u64;
        if to.is_null() || flags != 0 || properties.kind != PINNED || !is_granular(bytes) {
            return Err(INVALID_VALUE);
        }
        let place = place(driver, properties.location)?;
        if let Place::Gpu(gpu) = place {
            driver
                .client
                .allocate(gpu, bytes)
                .map_err(|_no_room| OUT_OF_MEMORY)?;
        }
        let handle = driver.vmm.lock().physical.insert(Physical {
            bytes,
            place,
            handle_types: properties.handle_types,
            handles: 1,
            mappings: 0,
            share: None,
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}

/// `cuMulticastCreate`: the object has no memory of its own.
pub unsafe extern "C" fn multicast_create(to: *mut u64, properties: *const Multicast) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let properties = unsafe { take(properties)? };
        if to.is_null() || properties.devices == 0 || !is_granular(properties.size) {
            return Err(INVALID_VALUE);
        }
        let handle = driver.vmm.lock().physical.insert(Physical {
            bytes: properties.size,
            place: Place::Multicast,
            handle_types: c_uint::try_from(properties.handle_types).unwrap_or(0),
            handles: 1,
            mappings: 0,
            share: None,
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}

/// `cuMulticastAddDevice`, `cuMulticastBindMem`, `cuMulticastBindAddr`, `cuMulticastUnbind`.
pub unsafe extern "C" fn multicast_change(handle: u64) -> Code {
    code(driver().and_then(|driver| {
        let place = driver.vmm.lock().valid(handle)?.place;
        if place == Place::Multicast {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }))
}

/// `cuMemRelease`.
pub unsafe extern "C" fn release(handle: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut state = driver.vmm.lock();
        state.valid(handle)?.handles -= 1;
        state.settle(driver, handle);
        Ok(())
    }))
}

/// `cuMemRetainAllocationHandle`: the handle of what is mapped at an address, once more.
pub unsafe extern "C" fn retain(to: *mut u64, address: u64) -> Code {
    code(driver().and_then(|driver| {
        let mut state = driver.vmm.lock();
        let (_, mapping) =
            State::containing(&state.mapped, address, |m| m.size).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, mapping.handle)? };
        // Mapped memory exists, also where its handle had been released.
        if let Some(physical) = state.physical.get_mut(mapping.handle) {
            physical.handles += 1;
        }
        Ok(())
    }))
}

/// `cuMemMap`.
pub unsafe extern "C" fn map(
    address: u64,
    size: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        let (size, offset) = (size as u64, offset as u64);
        if flags != 0
            || !is_granular(size)
            || !offset.is_multiple_of(GRANULARITY)
            || !address.is_multiple_of(GRANULARITY)
        {
            return Err(INVALID_VALUE);
        }
        let mut state = driver.vmm.lock();
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        let (first, reserved) =
            State::containing(&state.reserved, address, |bytes| bytes).ok_or(INVALID_VALUE)?;
        let is_mapped = state
            .mapped
            .range(..end)
            .next_back()
            .is_some_and(|(at, mapping)| at + mapping.size > address);
        if end > first + reserved || is_mapped {
            return Err(INVALID_VALUE);
        }
        let physical = state.valid(handle)?;
        if offset
            .checked_add(size)
            .is_none_or(|end| end > physical.bytes)
        {
            return Err(INVALID_VALUE);
        }
        physical.mappings += 1;
        state.mapped.insert(address, Mapping { size, handle });
        Ok(())
    }))
}

/// `cuMemUnmap`.
pub unsafe extern "C" fn unmap(address: u64, size: usize) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut state = driver.vmm.lock();
        for at in state.mappings_of(address, size as u64)? {
            let Some(mapping) = state.mapped.remove(&at) else {
                continue;
            };
            if let Some(physical) = state.physical.get_mut(mapping.handle) {
                physical.mappings -= 1;
            }
            state.settle(driver, mapping.handle);
        }
        Ok(())
    }))
}

/// `cuMemSetAccess`.
pub unsafe extern "C" fn set_access(
    address: u64,
    size: usize,
    descriptions: *const c_void,
    count: usize,
) -> Code {
    code(driver().and_then(|driver| {
        if descriptions.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        driver
            .vmm
            .lock()
            .mappings_of(address, size as u64)
            .map(drop)
    }))
}

/// `cuMemGetAccess`: what is mapped may be read and written.
pub unsafe extern "C" fn access(to: *mut u64, location: *const Location, address: u64) -> Code {
    const READ_AND_WRITE: u64 = 3;
    code(driver().and_then(|driver| {
        if location.is_null() || driver.vmm.mapping_around(address).is_none() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, READ_AND_WRITE) }
    }))
}

/// `cuMemAddressReserve`.
pub unsafe extern "C" fn reserve(
    to: *mut u64,
    size: usize,
    alignment: usize,
    wanted: u64,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Reserve)?;
        let (size, alignment) = (size as u64, alignment as u64);
        let power = alignment == 0 || alignment.is_power_of_two();
        if to.is_null() || flags != 0 || size == 0 || !size.is_multiple_of(PAGE) || !power {
            return Err(INVALID_VALUE);
        }
        let mut state = driver.vmm.lock();
        let limit = match faults::address_space() {
            0 => ZONE.1 - ZONE.0,
            limit => limit,
        };
        if state
            .reserved_bytes
            .checked_add(size)
            .is_none_or(|all| all > limit)
        {
            return Err(OUT_OF_MEMORY);
        }
        let first = state
            .gap(size, alignment.max(GRANULARITY), wanted)
            .ok_or(OUT_OF_MEMORY)?;
        state.reserved.insert(first, size);
        state.reserved_bytes += size;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, first) }
    }))
}

/// `cuMemAddressFree`: one whole reservation in which nothing is mapped.
pub unsafe extern "C" fn free_addresses(address: u64, size: usize) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let mut state = driver.vmm.lock();
        let size = size as u64;
        let is_mapped = state
            .mapped
            .range(address..address.saturating_add(size))
            .next()
            .is_some();
        if state.reserved.get(&address) != Some(&size) || is_mapped {
            return Err(INVALID_VALUE);
        }
        state.reserved.remove(&address);
        state.reserved_bytes -= size;
        Ok(())
    }))
}

/// `cuMemGetAllocationGranularity` and `cuMulticastGetGranularity`.
pub unsafe extern "C" fn granularity(
    to: *mut usize,
    properties: *const c_void,
    _option: c_uint,
) -> Code {
    code(driver().and_then(|_| {
        if properties.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, usize::try_from(GRANULARITY).unwrap_or(usize::MAX)) }
    }))
}

/// `cuMemGetAllocationPropertiesFromHandle`.
pub unsafe extern "C" fn properties(to: *mut Properties, handle: u64) -> Code {
    code(driver().and_then(|driver| {
        let physical = *driver.vmm.lock().valid(handle)?;
        let location = match physical.place {
            Place::Gpu(gpu) => Location {
                kind: DEVICE,
                id: c_int::try_from(gpu).unwrap_or(c_int::MAX),
            },
            Place::Host | Place::Multicast => Location {
                kind: *HOST.start(),
                id: 0,
            },
        };
        let properties = Properties {
            kind: PINNED,
            handle_types: physical.handle_types,
            location,
            meta_data: 0,
            flags: 0,
        };
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, properties) }
    }))
}

/// Makes a descriptor that keeps a share.
pub fn export_descriptor(driver: &Driver, share: Option<Share>, extra: u64) -> Result<c_int, Code> {
    driver
        .client
        .ticket(share, extra)
        .map(IntoRawFd::into_raw_fd)
        .map_err(|_none_left| OUT_OF_MEMORY)
}

/// What a descriptor of [`export_descriptor`] is for; it stays open.
pub fn read_descriptor(descriptor: u64) -> Result<(Option<Share>, u64), Code> {
    let descriptor = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
    if descriptor < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: only read from, and never closed here. If it is not open, the read fails.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    read_ticket(&file).map_err(|_no_ticket| INVALID_VALUE)
}

/// `cuMemExportToShareableHandle`.
pub unsafe extern "C" fn export(
    to: *mut c_int,
    handle: u64,
    handle_type: c_uint,
    flags: u64,
) -> Code {
    code(driver().and_then(|driver| {
        let mut state = driver.vmm.lock();
        let physical = state.valid(handle)?;
        if to.is_null() || flags != 0 || physical.handle_types & handle_type == 0 {
            return Err(INVALID_VALUE);
        }
        if handle_type != FILE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        if physical.share.is_none()
            && let Place::Gpu(gpu) = physical.place
        {
            let share = driver
                .shares
                .make(&driver.client, gpu, physical.bytes)
                .ok_or(OUT_OF_MEMORY)?;
            physical.share = Some(share);
        }
        let descriptor = export_descriptor(driver, physical.share, physical.bytes)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, descriptor) }
    }))
}

/// `cuMemImportFromShareableHandle`: the handle that is imported comes in place of a pointer.
pub unsafe extern "C" fn import(to: *mut u64, exported: u64, handle_type: c_uint) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Vmm)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        if handle_type != FILE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        let (share, bytes) = read_descriptor(exported)?;
        let place = match share {
            None => Place::Host,
            Some(share) => {
                let shared = driver.client.devices().shared(share).ok_or(INVALID_VALUE)?;
                if !driver.shares.join(&driver.client, share) {
                    return Err(INVALID_VALUE);
                }
                Place::Gpu(shared.gpu)
            }
        };
        let handle = driver.vmm.lock().physical.insert(Physical {
            bytes,
            place,
            handle_types: FILE_DESCRIPTOR,
            handles: 1,
            mappings: 0,
            share,
        });
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, handle) }
    }))
}
