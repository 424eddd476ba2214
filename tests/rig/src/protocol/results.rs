//! What an actor says that it did.

use super::{Kind, Site};
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
    /// Allocation calls for memory on a GPU ([`Kind::is_gpu_memory`]).
    pub allocations: Tally,
    /// Calls that free such memory. The bytes of a refused free of a bad pointer are 0.
    pub frees: Tally,
    /// Allocation calls for such memory by call site.
    pub sites: BTreeMap<Site, Tally>,
    /// The same of each kind alone, and of what is no memory on a GPU.
    pub kinds: BTreeMap<Kind, KindTally>,
    /// Calls that start work: kernels and graphs.
    pub launches: Tally,
    /// Calls that copy, fill or move memory.
    pub copies: Tally,
    /// Calls that wait for the device.
    pub synchronizations: Tally,
    /// Every other driver call.
    pub calls: Tally,
    /// What of memory on a GPU this process holds at the end of the command.
    pub live: Amount,
    /// What it holds of each kind.
    pub live_kinds: BTreeMap<Kind, Amount>,
    /// The child of [`Command::Fork`](super::Command::Fork).
    pub child: Option<u32>,
    /// The wait status of [`Command::Wait`](super::Command::Wait), as waitpid(2) gives it.
    pub status: Option<i32>,
    /// The answer to [`Command::MemoryInfo`](super::Command::MemoryInfo).
    pub memory: Option<MemoryInfo>,
}

impl Results {
    /// Counts a call that gives something of this kind.
    pub fn given(&mut self, kind: Kind, site: Site, code: i32, bytes: u64) {
        let of_kind = self.kinds.entry(kind).or_default();
        of_kind.allocations.add(code, bytes);
        of_kind.sites.entry(site).or_default().add(code, bytes);
        if kind.is_gpu_memory() {
            self.allocations.add(code, bytes);
            self.sites.entry(site).or_default().add(code, bytes);
        }
    }

    /// Counts a call that takes something of this kind back.
    pub fn taken(&mut self, kind: Kind, code: i32, bytes: u64) {
        self.kinds.entry(kind).or_default().frees.add(code, bytes);
        if kind.is_gpu_memory() {
            self.frees.add(code, bytes);
        }
    }
}

/// Calls for one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KindTally {
    /// Calls that give.
    pub allocations: Tally,
    /// Calls that take back.
    pub frees: Tally,
    /// Calls that give by call site.
    pub sites: BTreeMap<Site, Tally>,
}

impl KindTally {
    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Self) {
        self.allocations.merge(&other.allocations);
        self.frees.merge(&other.frees);
        for (site, tally) in &other.sites {
            self.sites.entry(*site).or_default().merge(tally);
        }
    }
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
