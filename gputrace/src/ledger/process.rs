//! The account of one process.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::{
    allocations::{Allocation, Allocations, ContextIndex, Freed, SiteIndex},
    contexts::ContextTable,
    growth::History,
};
use crate::event::{
    BootTime, Call, Exit, ExitSource, Losses, Op, Outcome, Pid, ProcessSeen, Sighting, StackId,
};

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
    const fn remove(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Who the process is, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// As the kernel said; `None` where that event was lost.
    pub seen: Option<ProcessSeen>,
    /// Command line, where it could be read.
    pub command: Option<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When.
    pub at: BootTime,
    /// As `wait(2)` encodes it.
    pub status: Option<u32>,
    /// Who noticed.
    pub source: ExitSource,
}

/// Memory of one process at the API layer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Memory {
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
    /// Successful frees of memory that was not seen being allocated: before tracing, or lost.
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
    /// Successful, but not kept one by one: no room, or the pointer could not be read.
    pub not_followed: Amount,
    /// Calls in which a thread ended.
    pub never_returned: u64,
}

/// Contexts of one process.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Contexts {
    /// Successfully created since tracing began.
    pub created: u64,
    /// Successfully destroyed since tracing began.
    pub destroyed: u64,
    /// Created, not destroyed, and their process's image still there.
    pub live: u64,
}

/// A place in the program that allocates.
#[derive(Clone, Debug)]
pub struct Site {
    /// How it was reached; `None` collects what has no stack or found no room.
    pub stack: Option<StackId>,
    /// Not yet freed; for an ended process: when it ended.
    pub live: Amount,
    /// Every successful allocation.
    pub allocated: Amount,
    /// Every free of them.
    pub freed: Amount,
    /// Allocations that the driver refused.
    pub failed: Amount,
    /// First successful allocation.
    pub first: BootTime,
    /// Bytes of that one.
    pub first_bytes: u64,
    /// Latest one.
    pub latest: BootTime,
    /// How `live` has developed.
    pub history: History,
}

impl Site {
    /// Bytes a second from its first allocation to its latest one, if nothing was ever freed: then
    /// that is exactly the rate of its growth.
    #[must_use]
    pub fn exact_rate(&self) -> Option<u64> {
        let nanoseconds = u128::from(self.latest.since(self.first));
        if self.live != self.allocated || nanoseconds == 0 {
            return None;
        }
        let gained = u128::from(self.allocated.bytes.saturating_sub(self.first_bytes));
        u64::try_from((gained * 1_000_000_000 + nanoseconds / 2) / nanoseconds).ok()
    }

    fn new(stack: Option<StackId>, at: BootTime) -> Self {
        Self {
            stack,
            live: Amount::default(),
            allocated: Amount::default(),
            freed: Amount::default(),
            failed: Amount::default(),
            first: at,
            first_bytes: 0,
            latest: at,
            history: History::new(at),
        }
    }
}

/// The account of one process.
#[derive(Debug)]
pub struct Process {
    /// Which one.
    pub pid: Pid,
    /// Who it is.
    pub identity: Identity,
    /// Its memory.
    pub memory: Memory,
    /// Its contexts.
    pub contexts: Contexts,
    /// What was lost of it.
    pub losses: Losses,
    /// Images that it has executed since it is known.
    pub executed: u32,
    /// First and latest call of a probed function.
    pub calls: Option<(BootTime, BootTime)>,
    /// cgroup at the latest call.
    pub cgroup_id: u64,
    /// How its live memory has developed.
    pub history: History,
    ended: Option<Ended>,
    sites: Vec<Site>,
    site_index: HashMap<Option<StackId>, SiteIndex>,
    allocations: Allocations,
    context_table: ContextTable,
}

impl Process {
    pub(super) fn new(pid: Pid, now: BootTime) -> Self {
        Self {
            pid,
            identity: Identity::default(),
            memory: Memory::default(),
            contexts: Contexts::default(),
            losses: Losses::default(),
            executed: 0,
            calls: None,
            cgroup_id: 0,
            history: History::new(now),
            ended: None,
            sites: Vec::new(),
            site_index: HashMap::new(),
            allocations: Allocations::default(),
            context_table: ContextTable::default(),
        }
    }

    /// How it ended; `None` while it runs.
    #[must_use]
    pub const fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Its call sites, in the order of their first call.
    #[must_use]
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Live allocations that are kept one by one, in no order.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.allocations.iter()
    }

    /// It has called no probed function: it is known only as somebody's child.
    #[must_use]
    pub const fn is_without_calls(&self) -> bool {
        self.calls.is_none()
    }

    pub(super) fn live_len(&self) -> usize {
        self.allocations.len()
    }

    /// Takes in who it is. Returns how many kept allocations that ended.
    pub(super) fn seen(&mut self, seen: &ProcessSeen) -> usize {
        let mut released = 0;
        // An exec that is reported after the end was noticed changes nothing any more.
        if seen.sighting == Sighting::Executed && self.ended.is_none() {
            self.executed += 1;
            self.identity.command = None;
            released = self.allocations.len();
            let live = self.drop_live();
            self.memory.released_by_exec = self.memory.released_by_exec.plus(live);
            self.contexts.live = 0;
            for site in &mut self.sites {
                site.live = Amount::default();
                site.history.set(seen.at, Amount::default());
            }
            // The new image has other code at the same addresses.
            self.site_index.clear();
            self.history.set(seen.at, Amount::default());
        }
        // A process that is already known keeps its first sighting's parent: later it may have
        // been adopted.
        let parent = self.identity.seen.as_ref().map(|first| first.parent);
        self.identity.seen = Some(ProcessSeen {
            parent: parent.unwrap_or(seen.parent),
            ..seen.clone()
        });
        self.cgroup_id = seen.cgroup_id;
        released
    }

    /// Takes in its end. Returns how many kept allocations that ended.
    pub(super) fn end(&mut self, exit: &Exit) -> usize {
        let released = self.allocations.len();
        let live = self.drop_live();
        self.memory.released_by_exit = live;
        self.contexts.live = 0;
        self.ended = Some(Ended {
            at: exit.at,
            status: exit.status,
            source: exit.source,
        });
        self.site_index = HashMap::new();
        released
    }

    fn drop_live(&mut self) -> Amount {
        self.allocations.clear();
        self.context_table.clear();
        self.memory.awaiting_free = Amount::default();
        std::mem::take(&mut self.memory.live)
    }

    /// Takes in a call. `true`: an allocation was not kept one by one.
    pub(super) fn call(&mut self, call: &Call, room: bool, max_sites: usize) -> bool {
        let first = self
            .calls
            .map_or(call.entered, |(first, _)| first.min(call.entered));
        let latest = self
            .calls
            .map_or(call.returned, |(_, latest)| latest.max(call.returned));
        self.calls = Some((first, latest));
        if call.cgroup_id != 0 {
            self.cgroup_id = call.cgroup_id;
        }
        let Outcome::Returned(result) = call.outcome else {
            self.memory.never_returned += 1;
            return false;
        };
        let is_part_of_another = call
            .enclosing
            .is_some_and(crate::cuda::FunctionId::absorbs_nested);
        if is_part_of_another {
            return false;
        }
        match call.op {
            Op::Allocate { bytes, address } => {
                if result == 0 {
                    return self.allocated(call, bytes, address, room, max_sites);
                }
                self.memory.failed_allocations.add(bytes);
                let site = self.site(call, max_sites);
                self.sites[site.0 as usize].failed.add(bytes);
            }
            Op::Free { address } => {
                if result != 0 {
                    self.memory.failed_frees += 1;
                } else if address != 0 {
                    self.freed(address, call.entered);
                }
            }
            Op::CreateContext { context, .. } => {
                if result == 0 {
                    self.contexts.created += 1;
                    self.contexts.live += 1;
                    if let Some(handle) = context {
                        self.context_table.created(call.tid, handle);
                    }
                }
            }
            Op::DestroyContext { context } => {
                if result == 0 {
                    self.contexts.destroyed += 1;
                    self.contexts.live = self.contexts.live.saturating_sub(1);
                    self.context_destroyed(context, call.entered);
                }
            }
            Op::SetContext { context } if result == 0 => self.context_table.set(call.tid, context),
            Op::PushContext { context } if result == 0 => {
                self.context_table.pushed(call.tid, context);
            }
            Op::PopContext if result == 0 => self.context_table.popped(call.tid),
            Op::SetContext { .. } | Op::PushContext { .. } | Op::PopContext => {}
        }
        false
    }

    fn site(&mut self, call: &Call, max_sites: usize) -> SiteIndex {
        if let Some(&site) = self.site_index.get(&call.stack) {
            return site;
        }
        if self.sites.len() >= max_sites && call.stack.is_some() {
            return self.site(
                &Call {
                    stack: None,
                    ..*call
                },
                max_sites,
            );
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "bounded by max_sites + executed images"
        )]
        let index = SiteIndex(self.sites.len() as u32);
        self.sites.push(Site::new(call.stack, call.returned));
        self.site_index.insert(call.stack, index);
        index
    }

    fn allocated(
        &mut self,
        call: &Call,
        bytes: u64,
        address: Option<u64>,
        room: bool,
        max_sites: usize,
    ) -> bool {
        self.memory.allocated.add(bytes);
        let index = self.site(call, max_sites);
        let site = &mut self.sites[index.0 as usize];
        if site.allocated.count == 0 {
            site.first = call.returned;
            site.first_bytes = bytes;
        }
        site.allocated.add(bytes);
        site.latest = site.latest.max(call.returned);
        let Some(address) = address.filter(|_| room && self.ended.is_none()) else {
            self.memory.not_followed.add(bytes);
            return true;
        };
        let allocation = Allocation {
            address,
            bytes,
            returned: call.returned,
            site: index,
            context: self.context_table.current(call.tid),
        };
        self.memory.live.add(bytes);
        site.live.add(bytes);
        if let Some(replaced) = self.allocations.insert(allocation) {
            self.no_longer_live(&replaced, call.returned);
        }
        let site = &mut self.sites[index.0 as usize];
        site.history.set(call.returned, site.live);
        self.history.set(call.returned, self.memory.live);
        self.count_awaiting();
        false
    }

    fn count_awaiting(&mut self) {
        let (count, bytes) = self.allocations.awaiting();
        self.memory.awaiting_free = Amount { count, bytes };
    }

    /// Takes an allocation out of what is live, in the process and at its site.
    fn no_longer_live(&mut self, allocation: &Allocation, at: BootTime) {
        self.memory.live.remove(allocation.bytes);
        let site = &mut self.sites[allocation.site.0 as usize];
        site.live.remove(allocation.bytes);
        site.history.set(at, site.live);
        self.history.set(at, self.memory.live);
    }

    fn freed(&mut self, address: u64, entered: BootTime) {
        let allocation = match self.allocations.free(address, entered) {
            None => {
                self.memory.unknown_frees += 1;
                return;
            }
            Some(Freed::Live(allocation)) => {
                self.no_longer_live(&allocation, entered);
                allocation
            }
            Some(Freed::Awaiting(allocation)) => {
                self.count_awaiting();
                allocation
            }
        };
        self.memory.freed.add(allocation.bytes);
        self.sites[allocation.site.0 as usize]
            .freed
            .add(allocation.bytes);
    }

    fn context_destroyed(&mut self, handle: u64, entered: BootTime) {
        let Some(context) = self.context_table.destroyed(handle) else {
            return;
        };
        if context == ContextIndex::UNKNOWN {
            return;
        }
        let mut gone = Vec::new();
        self.allocations.remove_where(
            |a| a.context == context && a.returned <= entered,
            |a| gone.push(*a),
        );
        for allocation in gone {
            self.no_longer_live(&allocation, entered);
            self.memory.released_by_context.add(allocation.bytes);
        }
    }

    pub(super) fn forget_awaiting(&mut self, horizon: BootTime) {
        if self.memory.awaiting_free.count > 0 {
            self.memory.frees_not_seen += self.allocations.forget_awaiting(horizon);
            self.count_awaiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::FunctionId;

    #[test]
    fn an_exec_reported_after_the_end_changes_nothing() {
        let pid = Pid {
            tgid: 7,
            start_ticks: 1,
        };
        let mut process = Process::new(pid, BootTime(0));
        let call = Call {
            pid,
            tid: 7,
            function: FunctionId::new(0).unwrap(),
            enclosing: None,
            entered: BootTime(1),
            returned: BootTime(2),
            outcome: Outcome::Returned(0),
            op: Op::Allocate {
                bytes: 64,
                address: Some(1),
            },
            stack: None,
            cgroup_id: 0,
        };
        process.call(&call, true, 10);
        let exit = Exit {
            pid,
            at: BootTime(3),
            status: None,
            source: ExitSource::Procfs,
        };
        assert_eq!(process.end(&exit), 1);
        let exec = ProcessSeen {
            pid,
            at: BootTime(3),
            started: BootTime(0),
            sighting: Sighting::Executed,
            parent: pid,
            namespace_pid: None,
            uid: 0,
            comm: String::new(),
            cgroup: String::new(),
            cgroup_id: 0,
        };
        assert_eq!(process.seen(&exec), 0);
        let held = Amount {
            count: 1,
            bytes: 64,
        };
        assert_eq!(
            (process.memory.released_by_exit, process.sites()[0].live),
            (held, held)
        );
    }
}
