//! The live allocations of one process, and the order rules that keep them true.
//!
//! What pointers, handles and addresses there are of different kinds are kept apart: see [`Space`].
//!
//! Events arrive in the order of the ring buffer, which is not that of time: an address that one
//! thread has freed can be given to another, and that allocation be reported, before the freeing
//! thread comes to report its free. What is known of each address is that allocations and frees
//! alternate when an allocation counts from its return and a free from its entry. So
//! - a free ends the latest allocation that had returned when the free was entered;
//! - an allocation on a live address replaces the one that is there, which then awaits its free.

use std::collections::VecDeque;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher as _;

use super::homes::HomeIndex;
use crate::{event::BootTime, resource::Resource};

/// Numbers that the driver gives out so that no two live ones are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Pointers of the GPU, whatever is behind them.
    Pointer,
    /// Pointers of the host.
    Host,
    /// Reserved address ranges, by their begin: pointers may lie in them.
    Addresses,
    /// Physical memory of the virtual-memory API, by a number of the ledger's own.
    Physical,
    /// Handles of objects: arrays, modules, graphs, pools.
    Object,
}

impl Space {
    const COUNT: usize = 5;

    /// Where a function for this kind looks.
    #[must_use]
    pub const fn of(kind: Resource) -> Self {
        match kind {
            Resource::Device | Resource::Managed | Resource::Alias => Self::Pointer,
            Resource::PinnedHost => Self::Host,
            Resource::Addresses => Self::Addresses,
            Resource::Vmm => Self::Physical,
            Resource::Array | Resource::Module | Resource::Graph | Resource::Pool => Self::Object,
        }
    }
}

/// Index of a call site within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteIndex(pub u32);

/// A live allocation. With the table's own overhead (one byte a slot, at worst 7 of 16 slots in
/// use) it costs at most 76 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The pointer, handle or number.
    pub address: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// When the allocating call returned.
    pub returned: BootTime,
    /// Call site.
    pub site: SiteIndex,
    /// Where it belongs.
    pub home: HomeIndex,
}

/// Allocations of one process.
#[derive(Debug, Default)]
pub struct Allocations {
    live: [HashTable<Allocation>; Space::COUNT],
    hasher: DefaultHashBuilder,
    /// Replaced, their frees not yet seen; oldest first.
    awaiting: HashMap<(Space, u64), VecDeque<Allocation>>,
}

impl Allocations {
    /// Live allocations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.iter().map(HashTable::len).sum()
    }

    /// Live allocations, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.live.iter().flatten()
    }

    /// Live ones of one space, in no order.
    pub fn in_space(&self, space: Space) -> impl Iterator<Item = &Allocation> {
        self.live[space as usize].iter()
    }

    /// The live allocation with this number.
    #[must_use]
    pub fn get(&self, space: Space, address: u64) -> Option<&Allocation> {
        let hash = self.hasher.hash_one(address);
        self.live[space as usize].find(hash, |a| a.address == address)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, space: Space, address: u64) -> Option<&mut Allocation> {
        let hash = self.hasher.hash_one(address);
        self.live[space as usize].find_mut(hash, |a| a.address == address)
    }

    /// Adds an allocation. If its address was live, the older of the two now awaits its free and
    /// is returned.
    pub fn insert(&mut self, space: Space, new: Allocation) -> Option<Allocation> {
        let hash = self.hasher.hash_one(new.address);
        let live = &mut self.live[space as usize];
        if let Some(there) = live.find_mut(hash, |a| a.address == new.address) {
            let old = if there.returned <= new.returned {
                std::mem::replace(there, new)
            } else {
                new
            };
            let queue = self.awaiting.entry((space, old.address)).or_default();
            let at = queue.partition_point(|a| a.returned <= old.returned);
            queue.insert(at, old);
            return Some(old);
        }
        let hasher = &self.hasher;
        live.insert_unique(hash, new, |a| hasher.hash_one(a.address));
        None
    }

    /// Ends the allocation that a free entered at `entered` is for. `None` if none is known.
    pub fn free(&mut self, space: Space, address: u64, entered: BootTime) -> Option<Freed> {
        let hash = self.hasher.hash_one(address);
        let live = &mut self.live[space as usize];
        if let Ok(slot) = live.find_entry(hash, |a| a.address == address && a.returned <= entered) {
            let (allocation, _) = slot.remove();
            shrink(live, &self.hasher);
            return Some(Freed::Live(allocation));
        }
        let queue = self.awaiting.get_mut(&(space, address))?;
        let after = queue.partition_point(|a| a.returned <= entered);
        let allocation = queue.remove(after.checked_sub(1)?)?;
        if queue.is_empty() {
            self.awaiting.remove(&(space, address));
        }
        Some(Freed::Awaiting(allocation))
    }

    /// Removes the live allocations for which `gone` holds, and gives each to `each`.
    pub fn remove_where(
        &mut self,
        gone: impl Fn(&Allocation) -> bool,
        mut each: impl FnMut(&Allocation),
    ) {
        for live in &mut self.live {
            live.retain(|allocation| {
                let gone = gone(allocation);
                if gone {
                    each(allocation);
                }
                !gone
            });
            shrink(live, &self.hasher);
        }
    }

    /// Forgets the replaced allocations that were made before `horizon`, and gives each to `each`:
    /// their free was lost, or was no free.
    pub fn forget_awaiting(&mut self, horizon: BootTime, mut each: impl FnMut(&Allocation)) {
        self.awaiting.retain(|_, queue| {
            queue.retain(|allocation| {
                let keep = allocation.returned > horizon;
                if !keep {
                    each(allocation);
                }
                keep
            });
            !queue.is_empty()
        });
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Makes a table as small as it can be once it costs too much per live allocation, so that the
/// bound holds after a peak as well. At least a sixth of the table must be added or removed before
/// it is resized again: the cost per event is constant.
fn shrink(live: &mut HashTable<Allocation>, hasher: &DefaultHashBuilder) {
    let count = live.len();
    if live.allocation_size() > SHRINK_ABOVE * count.max(SMALL) {
        live.shrink_to(count, |a| hasher.hash_one(a.address));
    }
}

/// Bytes per live allocation above which a table is made smaller.
const SHRINK_ABOVE: usize = 90;
/// A table for so many is never made smaller.
const SMALL: usize = 1024;

/// What a free ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// An allocation that was live.
    Live(Allocation),
    /// One that had been replaced: its address had been given out again meanwhile.
    Awaiting(Allocation),
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Space = Space::Pointer;

    fn waiting(a: &Allocations) -> Vec<u64> {
        a.awaiting.values().flatten().map(|it| it.bytes).collect()
    }

    fn allocation(address: u64, bytes: u64, returned: u64) -> Allocation {
        Allocation {
            address,
            bytes,
            returned: BootTime(returned),
            site: SiteIndex(0),
            home: HomeIndex::UNKNOWN,
        }
    }

    #[test]
    fn a_late_free_ends_the_allocation_that_it_was_for() {
        let mut a = Allocations::default();
        assert_eq!(a.insert(P, allocation(1, 10, 100)), None);
        // Freed from 150 on, reused at 170; the free is reported last.
        let old = a.insert(P, allocation(1, 20, 170)).unwrap();
        assert_eq!(old.bytes, 10);
        assert_eq!(waiting(&a), [10]);
        assert_eq!(a.free(P, 1, BootTime(150)), Some(Freed::Awaiting(old)));
        assert_eq!((a.len(), waiting(&a).len()), (1, 0));
        assert!(matches!(
            a.free(P, 1, BootTime(200)),
            Some(Freed::Live(Allocation { bytes: 20, .. }))
        ));
        assert_eq!(a.free(P, 1, BootTime(300)), None);
    }

    #[test]
    fn frees_that_arrive_in_the_wrong_order_find_their_own() {
        let mut a = Allocations::default();
        for (bytes, returned) in [(10, 100), (20, 200), (30, 300)] {
            a.insert(P, allocation(1, bytes, returned));
        }
        let freed = [250, 350, 150].map(|at| match a.free(P, 1, BootTime(at)).unwrap() {
            Freed::Live(a) | Freed::Awaiting(a) => a.bytes,
        });
        assert_eq!(freed, [20, 30, 10]);
        assert_eq!(a.len(), 0);
    }

    #[test]
    fn a_free_does_not_end_what_was_allocated_after_it() {
        let mut a = Allocations::default();
        a.insert(P, allocation(1, 10, 100));
        assert_eq!(a.free(P, 1, BootTime(99)), None);
        assert_eq!(a.len(), 1);
    }

    #[test]
    fn forgotten_ones_leave_no_trace() {
        let mut a = Allocations::default();
        a.insert(P, allocation(1, 10, 100));
        a.insert(P, allocation(1, 20, 200));
        a.insert(P, allocation(1, 30, 300));
        let mut forgotten = Vec::new();
        a.forget_awaiting(BootTime(100), |it| forgotten.push(it.bytes));
        assert_eq!(
            (forgotten.as_slice(), waiting(&a)),
            ([10].as_slice(), vec![20])
        );
        a.forget_awaiting(BootTime(1000), |it| forgotten.push(it.bytes));
        assert_eq!(forgotten, [10, 20]);
        assert_eq!((a.len(), waiting(&a).len()), (1, 0));
    }

    #[test]
    fn a_live_allocation_costs_at_most_96_bytes_at_any_time() {
        let mut a = Allocations::default();
        let bytes_each = |a: &Allocations| a.live[P as usize].allocation_size() / a.len();
        for n in 1..200_000_u64 {
            a.insert(P, allocation(n << 9, 1, n));
            assert!(
                a.len() < SMALL || bytes_each(&a) <= 96,
                "{n} in: {}",
                bytes_each(&a)
            );
        }
        for n in 1..200_000_u64 {
            a.free(P, n << 9, BootTime(u64::MAX));
            assert!(
                a.len() < SMALL || bytes_each(&a) <= 96,
                "{n} out: {}",
                bytes_each(&a)
            );
        }
    }
}
