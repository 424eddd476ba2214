//! A map in parts, each with a lock of its own.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Spreads keys that are multiples of a power of two.
#[derive(Default)]
pub struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A map by addresses or sizes.
pub type Map<V> = HashMap<u64, V, BuildHasherDefault<Multiply>>;

/// One of the parts of a map, on a cache line of its own.
#[repr(align(64))]
pub struct Shard<V>(Mutex<Map<V>>);

impl<V> Shard<V> {
    /// All parts of an empty map.
    pub fn all() -> Vec<Self> {
        std::iter::repeat_with(|| Self(Mutex::new(Map::default())))
            .take(SHARDS)
            .collect()
    }

    /// For the entries of this part.
    pub fn lock(&self) -> MutexGuard<'_, Map<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part in which a key is.
pub fn shard<V>(shards: &[Shard<V>], key: u64) -> &Shard<V> {
    let mut hasher = Multiply::default();
    hasher.write_u64(key);
    // The upper bits, since the map inside goes by the lower ones; 6 of them always fit.
    &shards[usize::try_from(hasher.finish() >> 58).unwrap_or(0)]
}
