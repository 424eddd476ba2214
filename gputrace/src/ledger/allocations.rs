//! The live allocations of one process, and the order rules that keep them true.
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

use crate::event::BootTime;

/// Index of a call site within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteIndex(pub u32);

/// Index of a context within its process; [`ContextIndex::UNKNOWN`] where it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextIndex(pub u32);

impl ContextIndex {
    /// The thread's current context was set before tracing, or in a way that is not probed.
    pub const UNKNOWN: Self = Self(u32::MAX);
}

/// A live allocation. With the table's own overhead (one byte a slot, at worst 7 of 16 slots in
/// use) it costs at most 76 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The pointer given.
    pub address: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// When the allocating call returned.
    pub returned: BootTime,
    /// Call site.
    pub site: SiteIndex,
    /// Context that was current.
    pub context: ContextIndex,
}

/// Allocations of one process.
#[derive(Debug, Default)]
pub struct Allocations {
    live: HashTable<Allocation>,
    hasher: DefaultHashBuilder,
    /// Replaced, their frees not yet seen; oldest first.
    awaiting: HashMap<u64, VecDeque<Allocation>>,
    awaiting_count: u64,
    awaiting_bytes: u64,
}

impl Allocations {
    /// Live allocations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Live allocations, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.live.iter()
    }

    /// Count and bytes of replaced allocations whose free has not been seen.
    #[must_use]
    pub const fn awaiting(&self) -> (u64, u64) {
        (self.awaiting_count, self.awaiting_bytes)
    }

    /// Adds an allocation. If its address was live, the older of the two now awaits its free and
    /// is returned.
    pub fn insert(&mut self, new: Allocation) -> Option<Allocation> {
        let hash = self.hasher.hash_one(new.address);
        if let Some(there) = self.live.find_mut(hash, |a| a.address == new.address) {
            let old = if there.returned <= new.returned {
                std::mem::replace(there, new)
            } else {
                new
            };
            self.await_free(old);
            return Some(old);
        }
        let hasher = &self.hasher;
        self.live
            .insert_unique(hash, new, |a| hasher.hash_one(a.address));
        None
    }

    fn await_free(&mut self, old: Allocation) {
        let queue = self.awaiting.entry(old.address).or_default();
        let at = queue.partition_point(|a| a.returned <= old.returned);
        queue.insert(at, old);
        self.awaiting_count += 1;
        self.awaiting_bytes = self.awaiting_bytes.saturating_add(old.bytes);
    }

    /// Ends the allocation that a free entered at `entered` is for. `None` if none is known.
    pub fn free(&mut self, address: u64, entered: BootTime) -> Option<Freed> {
        let hash = self.hasher.hash_one(address);
        if let Ok(slot) = self
            .live
            .find_entry(hash, |a| a.address == address && a.returned <= entered)
        {
            let (allocation, _) = slot.remove();
            self.shrink();
            return Some(Freed::Live(allocation));
        }
        let queue = self.awaiting.get_mut(&address)?;
        let after = queue.partition_point(|a| a.returned <= entered);
        let allocation = queue.remove(after.checked_sub(1)?)?;
        if queue.is_empty() {
            self.awaiting.remove(&address);
        }
        self.awaiting_count -= 1;
        self.awaiting_bytes = self.awaiting_bytes.saturating_sub(allocation.bytes);
        Some(Freed::Awaiting(allocation))
    }

    /// Removes the live allocations for which `gone` holds, and gives each to `each`.
    pub fn remove_where(
        &mut self,
        gone: impl Fn(&Allocation) -> bool,
        mut each: impl FnMut(&Allocation),
    ) {
        self.live.retain(|allocation| {
            let gone = gone(allocation);
            if gone {
                each(allocation);
            }
            !gone
        });
        self.shrink();
    }

    /// Forgets the replaced allocations that were made before `horizon`: their free was lost, or
    /// was no free. Returns how many.
    pub fn forget_awaiting(&mut self, horizon: BootTime) -> u64 {
        let (mut count, mut bytes) = (0, 0_u64);
        self.awaiting.retain(|_, queue| {
            queue.retain(|a| {
                let keep = a.returned > horizon;
                if !keep {
                    count += 1;
                    bytes = bytes.saturating_add(a.bytes);
                }
                keep
            });
            !queue.is_empty()
        });
        self.awaiting_count -= count;
        self.awaiting_bytes = self.awaiting_bytes.saturating_sub(bytes);
        count
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes the table as small as it can be once it costs too much per live allocation, so that
    /// the bound holds after a peak as well. At least a sixth of the table must be added or removed
    /// before it is resized again: the cost per event is constant.
    fn shrink(&mut self) {
        let live = self.live.len();
        if self.live.allocation_size() > SHRINK_ABOVE * live.max(SMALL) {
            let hasher = &self.hasher;
            self.live.shrink_to(live, |a| hasher.hash_one(a.address));
        }
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

    fn allocation(address: u64, bytes: u64, returned: u64) -> Allocation {
        Allocation {
            address,
            bytes,
            returned: BootTime(returned),
            site: SiteIndex(0),
            context: ContextIndex::UNKNOWN,
        }
    }

    #[test]
    fn a_late_free_ends_the_allocation_that_it_was_for() {
        let mut a = Allocations::default();
        assert_eq!(a.insert(allocation(1, 10, 100)), None);
        // Freed from 150 on, reused at 170; the free is reported last.
        let old = a.insert(allocation(1, 20, 170)).unwrap();
        assert_eq!(old.bytes, 10);
        assert_eq!(a.awaiting(), (1, 10));
        assert_eq!(a.free(1, BootTime(150)), Some(Freed::Awaiting(old)));
        assert_eq!((a.len(), a.awaiting()), (1, (0, 0)));
        assert!(matches!(
            a.free(1, BootTime(200)),
            Some(Freed::Live(Allocation { bytes: 20, .. }))
        ));
        assert_eq!(a.free(1, BootTime(300)), None);
    }

    #[test]
    fn frees_that_arrive_in_the_wrong_order_find_their_own() {
        let mut a = Allocations::default();
        for (bytes, returned) in [(10, 100), (20, 200), (30, 300)] {
            a.insert(allocation(1, bytes, returned));
        }
        let freed = [250, 350, 150].map(|at| match a.free(1, BootTime(at)).unwrap() {
            Freed::Live(a) | Freed::Awaiting(a) => a.bytes,
        });
        assert_eq!(freed, [20, 30, 10]);
        assert_eq!(a.len(), 0);
    }

    #[test]
    fn a_free_does_not_end_what_was_allocated_after_it() {
        let mut a = Allocations::default();
        a.insert(allocation(1, 10, 100));
        assert_eq!(a.free(1, BootTime(99)), None);
        assert_eq!(a.len(), 1);
    }

    #[test]
    fn forgotten_ones_leave_no_trace() {
        let mut a = Allocations::default();
        a.insert(allocation(1, 10, 100));
        a.insert(allocation(1, 20, 200));
        a.insert(allocation(1, 30, 300));
        assert_eq!(a.forget_awaiting(BootTime(100)), 1);
        assert_eq!(a.awaiting(), (1, 20));
        assert_eq!(a.forget_awaiting(BootTime(1000)), 1);
        assert_eq!((a.len(), a.awaiting()), (1, (0, 0)));
    }

    #[test]
    fn a_live_allocation_costs_at_most_96_bytes_at_any_time() {
        let mut a = Allocations::default();
        let bytes_each = |a: &Allocations| a.live.allocation_size() / a.len();
        for n in 1..200_000_u64 {
            a.insert(allocation(n << 9, 1, n));
            assert!(
                a.len() < SMALL || bytes_each(&a) <= 96,
                "{n} in: {}",
                bytes_each(&a)
            );
        }
        for n in 1..200_000_u64 {
            a.free(n << 9, BootTime(u64::MAX));
            assert!(
                a.len() < SMALL || bytes_each(&a) <= 96,
                "{n} out: {}",
                bytes_each(&a)
            );
        }
    }
}
