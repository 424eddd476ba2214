//! What an actor says that it did.

use super::Site;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a command did; what does not apply is empty.
///
/// Counts are of this command alone, exact, and those of the calls that really were made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// When the command began; nanoseconds of `CLOCK_BOOTTIME`.
    pub started: u64,
    /// When it ended; nanoseconds of `CLOCK_BOOTTIME`.
    pub ended: u64,
    /// Allocation calls.
    pub allocations: Tally,
    /// Calls that free. The bytes of a refused free of a bad pointer are 0.
    pub frees: Tally,
    /// Allocation calls by call site.
    pub sites: BTreeMap<Site, Tally>,
    /// Every other driver call.
    pub calls: Tally,
    /// What all piles of this process hold at the end of the command.
    pub live: Amount,
    /// The child of [`Command::Fork`](super::Command::Fork).
    pub child: Option<u32>,
    /// The wait status of [`Command::Wait`](super::Command::Wait), as waitpid(2) gives it.
    pub status: Option<i32>,
    /// The answer to [`Command::MemoryInfo`](super::Command::MemoryInfo).
    pub memory: Option<MemoryInfo>,
}

/// A number of calls or of allocations, and the sum of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Their bytes in all.
    pub bytes: u64,
}

impl Amount {
    /// Adds one of this size.
    pub fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    /// Adds another amount.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Calls by how they ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Calls with result 0.
    pub succeeded: Amount,
    /// The others, by result code.
    pub failed: BTreeMap<i32, Amount>,
}

impl Tally {
    /// Counts one call.
    pub fn add(&mut self, code: i32, bytes: u64) {
        if code == 0 {
            self.succeeded.add(bytes);
        } else {
            self.failed.entry(code).or_default().add(bytes);
        }
    }

    /// Adds the counts of another tally.
    pub fn merge(&mut self, other: &Self) {
        self.succeeded.merge(other.succeeded);
        for (code, amount) in &other.failed {
            self.failed.entry(*code).or_default().merge(*amount);
        }
    }

    /// All calls that did not end with 0.
    pub fn failures(&self) -> Amount {
        let mut sum = Amount::default();
        for amount in self.failed.values() {
            sum.merge(*amount);
        }
        sum
    }
}

/// What `cuMemGetInfo` or `cudaMemGetInfo` said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// Bytes that are free on the device.
    pub free: u64,
    /// Bytes of the device in all.
    pub total: u64,
}
