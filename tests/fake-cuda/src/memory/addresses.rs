//! Addresses of device memory.
//!
//! Nothing is behind an address; it is only handed out, and never twice at one time. A freed address
//! is the first to be handed out again for its size, to whatever thread asks: that is what makes
//! the order of events matter to whoever traces them. The first addresses of two processes are the
//! same. They lie below where the system maps files and memory, so that no address of device memory
//! is also one of host memory.

use super::shards::{Shard, shard};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Sizes are rounded up to this, so that addresses are multiples of it.
const SMALL: u64 = 512;
/// From this size on, sizes and addresses are multiples of it.
const LARGE: u64 = 2 << 20;

/// Where addresses begin and end: of small allocations, of large ones, and of those made by the
/// functions of the 32-bit API.
const SMALL_ZONE: (u64, u64) = (0x7d10_0000_0000, 0x7d40_0000_0000);
const LARGE_ZONE: (u64, u64) = (0x7d40_0000_0000, 0x7dff_0000_0000);
const LOW_ZONE: (u64, u64) = (0x0200_0000, 0xfff0_0000);

/// The addresses that this process has handed out.
pub struct Addresses {
    /// By rounded size (and [`LOW`]): addresses that were used and are free, the newest last.
    free: Vec<Shard<Vec<u64>>>,
    next_small: AtomicU64,
    next_large: AtomicU64,
    next_low: AtomicU64,
}

/// Marks a size in the low zone.
const LOW: u64 = 1 << 63;

impl Addresses {
    /// None handed out yet.
    pub fn new() -> Self {
        Self {
            free: Shard::all(),
            next_small: AtomicU64::new(SMALL_ZONE.0),
            next_large: AtomicU64::new(LARGE_ZONE.0),
            next_low: AtomicU64::new(LOW_ZONE.0),
        }
    }

    /// An address for so many bytes; `low`: one of 32 bits.
    pub fn take(&self, bytes: u64, low: bool) -> Option<u64> {
        let size = rounded(bytes);
        let key = size | if low { LOW } else { 0 };
        let reused = shard(&self.free, key)
            .lock()
            .get_mut(&key)
            .and_then(Vec::pop);
        if reused.is_some() {
            return reused;
        }
        let (next, end) = if low {
            (&self.next_low, LOW_ZONE.1)
        } else if size < LARGE {
            (&self.next_small, SMALL_ZONE.1)
        } else {
            (&self.next_large, LARGE_ZONE.1)
        };
        next.fetch_update(Relaxed, Relaxed, |first| {
            first.checked_add(size).filter(|after| *after <= end)
        })
        .ok()
    }

    /// Gives one back that was taken for so many bytes.
    pub fn give_back(&self, address: u64, bytes: u64) {
        let low = if address < LOW_ZONE.1 { LOW } else { 0 };
        let key = rounded(bytes) | low;
        shard(&self.free, key)
            .lock()
            .entry(key)
            .or_default()
            .push(address);
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(if bytes < LARGE { SMALL } else { LARGE })
}
