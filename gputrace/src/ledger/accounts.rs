//! The figures of one process, kind by kind.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use crate::resource::Resource;

/// A number of things and the bytes in them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Bytes in all.
    pub bytes: u64,
}

impl Amount {
    /// Adds one of `bytes`.
    pub const fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Takes one of `bytes` away.
    pub const fn remove(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// What became of the things of one kind, or of several.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Account {
    /// Allocated and not yet freed.
    pub live: Amount,
    /// Every successful allocation.
    pub allocated: Amount,
    /// Every free of an allocation that was seen.
    pub freed: Amount,
    /// Allocations that the driver refused, with the bytes that they asked for.
    pub failed_allocations: Amount,
    /// Frees that the driver refused.
    pub failed_frees: u64,
    /// Successful frees of something that was not seen being allocated: before tracing, or lost.
    /// They count for the kind that the freeing function is for.
    pub unknown_frees: u64,
    /// Replaced by a newer allocation at the same address; the free is on its way.
    pub awaiting_free: Amount,
    /// Replaced ones whose free never came.
    pub frees_not_seen: u64,
    /// Live when the process ended.
    pub released_by_exit: Amount,
    /// Live when the process executed a new image.
    pub released_by_exec: Amount,
    /// Live when their context was destroyed.
    pub released_by_context: Amount,
    /// Successful, but not kept one by one: no room, or the pointer or the size could not be read.
    pub not_followed: Amount,
}

impl Account {
    /// Both together.
    #[must_use]
    fn plus(self, other: &Self) -> Self {
        Self {
            live: self.live.plus(other.live),
            allocated: self.allocated.plus(other.allocated),
            freed: self.freed.plus(other.freed),
            failed_allocations: self.failed_allocations.plus(other.failed_allocations),
            failed_frees: self.failed_frees.saturating_add(other.failed_frees),
            unknown_frees: self.unknown_frees.saturating_add(other.unknown_frees),
            awaiting_free: self.awaiting_free.plus(other.awaiting_free),
            frees_not_seen: self.frees_not_seen.saturating_add(other.frees_not_seen),
            released_by_exit: self.released_by_exit.plus(other.released_by_exit),
            released_by_exec: self.released_by_exec.plus(other.released_by_exec),
            released_by_context: self.released_by_context.plus(other.released_by_context),
            not_followed: self.not_followed.plus(other.not_followed),
        }
    }
}

/// An account for each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accounts([Account; Resource::COUNT]);

impl Index<Resource> for Accounts {
    type Output = Account;

    fn index(&self, kind: Resource) -> &Account {
        &self.0[kind as usize]
    }
}

impl IndexMut<Resource> for Accounts {
    fn index_mut(&mut self, kind: Resource) -> &mut Account {
        &mut self.0[kind as usize]
    }
}

impl Accounts {
    /// Each kind that occurred, with its account.
    pub fn used(&self) -> impl Iterator<Item = (Resource, &Account)> {
        Resource::ALL
            .into_iter()
            .map(|kind| (kind, &self[kind]))
            .filter(|(_, account)| **account != Account::default())
    }

    /// The sum over the kinds for which `wanted` holds.
    #[must_use]
    pub fn sum(&self, wanted: impl Fn(Resource) -> bool) -> Account {
        self.used()
            .filter(|(kind, _)| wanted(*kind))
            .fold(Account::default(), |sum, (_, account)| sum.plus(account))
    }

    /// What is live over all kinds of GPU memory.
    #[must_use]
    pub fn live_on_gpu(&self) -> Amount {
        Resource::ALL
            .into_iter()
            .filter(|kind| kind.is_gpu_memory())
            .fold(Amount::default(), |sum, kind| sum.plus(self[kind].live))
    }

    /// For each kind, in place.
    pub fn each_mut(&mut self) -> impl Iterator<Item = &mut Account> {
        self.0.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_gpu_memory_is_said_in_one_way() {
        let mut accounts = Accounts::default();
        for (n, kind) in (1..).zip(Resource::ALL) {
            accounts[kind].live.add(1 << n);
        }
        assert_eq!(
            accounts.live_on_gpu(),
            accounts.sum(Resource::is_gpu_memory).live
        );
    }
}
