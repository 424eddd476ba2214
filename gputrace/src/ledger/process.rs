//! The account of one process.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::{
    accounts::{Account, Accounts, Amount},
    allocations::{Allocation, Allocations, Freed, SiteIndex, Space},
    growth::History,
    homes::{Fate, Gone, HomeIndex, Homes},
    vmm::{Ended as MemoryEnded, Vmm},
};
use crate::{
    cuda::FunctionId,
    event::{
        ActivitySeen, BootTime, Call, Exit, ExitSource, Losses, Op, Outcome, Pid, ProcessSeen,
        Sighting, StackId,
    },
    resource::{Place, Resource},
};

/// Pairs of function and result that are kept apart in one process.
const MAX_FAILURES: usize = 256;

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

/// Physical memory of the virtual-memory API: what leads to it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct VmmStates {
    /// Live, and mapped somewhere.
    pub mapped: Amount,
    /// Live, and mapped nowhere.
    pub unmapped: Amount,
    /// Released and unmapped here, but exported: it lives on as long as anybody has it open, which
    /// is not seen. Not part of what is live.
    pub exported: Amount,
}

/// A kind of failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which function.
    pub function: FunctionId,
    /// Its result.
    pub result: i32,
    /// How many, and the bytes that they asked for.
    pub amount: Amount,
    /// The first of them.
    pub first: BootTime,
    /// The latest of them.
    pub latest: BootTime,
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
    /// What it asks for.
    pub kind: Resource,
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
    /// What is live now changed: of objects the number is what can grow.
    fn note(&mut self, at: BootTime) {
        let live = if self.kind.is_object() {
            Amount {
                bytes: self.live.count,
                ..self.live
            }
        } else {
            self.live
        };
        self.history.set(at, live);
    }

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

    fn new(kind: Resource, stack: Option<StackId>, at: BootTime) -> Self {
        Self {
            kind,
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
    /// Its memory and objects.
    pub accounts: Accounts,
    /// Its contexts.
    pub contexts: Contexts,
    /// Calls in which a thread ended.
    pub never_returned: u64,
    /// What it did with the GPU, as far as that is only counted.
    pub activity: Option<ActivitySeen>,
    /// The latest time at which a context ended, or may have, that was there before tracing, with
    /// the home of what was in it: such memory may be gone.
    pub unsure: Option<(HomeIndex, BootTime)>,
    /// Memory of the virtual-memory API that lives on only because it was exported.
    pub kept_by_export: Amount,
    /// What was lost of it.
    pub losses: Losses,
    /// Images that it has executed since it is known.
    pub executed: u32,
    /// First and latest call of a probed function.
    pub calls: Option<(BootTime, BootTime)>,
    /// cgroup at the latest call.
    pub cgroup_id: u64,
    /// How its live GPU memory has developed.
    pub history: History,
    ended: Option<Ended>,
    sites: Vec<Site>,
    site_index: HashMap<(Option<StackId>, Resource), SiteIndex>,
    allocations: Allocations,
    homes: Homes,
    vmm: Vmm,
    failures: HashMap<(FunctionId, i32), Failure>,
}

/// What the ledger has to know beside the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    /// There is room for one more live allocation.
    pub room: bool,
    /// Call sites kept apart in one process.
    pub max_sites: usize,
    /// Every call of the process has been seen.
    pub from_the_start: bool,
}

impl Process {
    pub(super) fn new(pid: Pid, now: BootTime) -> Self {
        Self {
            pid,
            identity: Identity::default(),
            accounts: Accounts::default(),
            contexts: Contexts::default(),
            never_returned: 0,
            activity: None,
            unsure: None,
            kept_by_export: Amount::default(),
            losses: Losses::default(),
            executed: 0,
            calls: None,
            cgroup_id: 0,
            history: History::new(now),
            ended: None,
            sites: Vec::new(),
            site_index: HashMap::new(),
            allocations: Allocations::default(),
            homes: Homes::default(),
            vmm: Vmm::default(),
            failures: HashMap::new(),
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

    /// The device that an allocation lies on, as the process counts them. `None` where it is not
    /// known.
    #[must_use]
    pub fn device_of(&self, allocation: &Allocation) -> Option<u32> {
        self.homes.device(allocation.home)
    }

    /// The kind of an allocation.
    #[must_use]
    pub fn kind_of(&self, allocation: &Allocation) -> Resource {
        self.sites[allocation.site.0 as usize].kind
    }

    /// Live memory that may be gone, since it may have been in a context that was there before
    /// tracing and has ended; with the time of that.
    #[must_use]
    pub fn unsure_memory(&self) -> Option<(Amount, BootTime)> {
        let (home, at) = self.unsure?;
        let mut amount = Amount::default();
        for allocation in self.allocations.iter() {
            let is_of_it = allocation.home == home || allocation.home == HomeIndex::UNKNOWN;
            if is_of_it && allocation.returned <= at {
                amount.add(allocation.bytes);
            }
        }
        (amount.count > 0).then_some((amount, at))
    }

    /// Its failed calls, in no order.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.failures.values()
    }

    /// What leads to its physical memory.
    #[must_use]
    pub fn vmm_states(&self) -> VmmStates {
        let mut states = VmmStates {
            exported: self.kept_by_export,
            ..VmmStates::default()
        };
        for allocation in self.allocations.in_space(Space::Physical) {
            if self.kind_of(allocation) != Resource::Vmm {
                continue;
            }
            if self.vmm.is_mapped(allocation.address) {
                states.mapped.add(allocation.bytes);
            } else {
                states.unmapped.add(allocation.bytes);
            }
        }
        states
    }

    /// Bytes of the live allocation at a pointer, and when it was made.
    pub(super) fn pointer(&self, address: u64) -> Option<(u64, BootTime)> {
        self.allocations
            .get(Space::Pointer, address)
            .map(|it| (it.bytes, it.returned))
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
            self.drop_live(|account, live| {
                account.released_by_exec = account.released_by_exec.plus(live);
            });
            self.contexts.live = 0;
            self.unsure = None;
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
        self.drop_live(|account, live| account.released_by_exit = live);
        self.contexts.live = 0;
        self.ended = Some(Ended {
            at: exit.at,
            status: exit.status,
            source: exit.source,
        });
        self.site_index = HashMap::new();
        released
    }

    fn drop_live(&mut self, mut each: impl FnMut(&mut Account, Amount)) {
        self.allocations.clear();
        self.homes.clear();
        self.vmm = Vmm::default();
        for account in self.accounts.each_mut() {
            account.awaiting_free = Amount::default();
            let live = std::mem::take(&mut account.live);
            each(account, live);
        }
    }

    /// Takes in how often it has used the GPU.
    pub(super) fn active(&mut self, activity: ActivitySeen) {
        if let Some(at) = activity.latest() {
            self.called(at, at);
        }
        self.activity = Some(activity);
    }

    fn called(&mut self, entered: BootTime, returned: BootTime) {
        let (first, latest) = self.calls.unwrap_or((entered, returned));
        self.calls = Some((first.min(entered), latest.max(returned)));
    }

    /// Takes in a call. `true`: an allocation was not kept one by one.
    pub(super) fn call(&mut self, call: &Call, around: Circumstances) -> bool {
        self.called(call.entered, call.returned);
        if call.cgroup_id != 0 {
            self.cgroup_id = call.cgroup_id;
        }
        let Outcome::Returned(result) = call.outcome else {
            self.never_returned += 1;
            return false;
        };
        // What a probed function calls in its turn is part of it.
        if call.enclosing.is_some() {
            return false;
        }
        if result != 0 {
            self.failed(call, result, around.max_sites);
            return false;
        }
        match call.op {
            Op::Allocate {
                kind,
                bytes,
                address,
                place,
            } => {
                if kind == Resource::Pool
                    && let Some(pool) = address
                {
                    self.homes.pool(pool, place);
                }
                let made = Made {
                    kind,
                    space: Space::of(kind),
                    bytes,
                    address,
                    place,
                };
                self.allocated(call, made, around)
            }
            Op::Free { kind, address } => {
                self.freed(kind, address, call.entered);
                false
            }
            Op::CreateHandle {
                bytes,
                handle,
                place,
            } => self.handle_created(call, Resource::Vmm, bytes, handle, place, around),
            Op::ImportHandle { handle } => {
                self.handle_created(call, Resource::Alias, 0, handle, Place::Process, around)
            }
            Op::OpenPointer { address, .. } => {
                // A handle that is open already gives the same pointer again.
                let is_open = address.is_some_and(|it| self.pointer(it).is_some());
                let made = Made {
                    kind: Resource::Alias,
                    space: Space::Pointer,
                    bytes: 0,
                    address,
                    place: Place::Current,
                };
                !is_open && self.allocated(call, made, around)
            }
            Op::Activity { .. } | Op::Other | Op::ExportPointer { .. } => false,
            _ => {
                self.changed(call, around.from_the_start);
                false
            }
        }
    }

    /// Takes in a successful call that gives and takes no memory of its own.
    fn changed(&mut self, call: &Call, from_the_start: bool) {
        match call.op {
            Op::ReleaseHandle { handle } => match self.vmm.released(handle, call.entered) {
                Ok(Some(ended)) => self.memory_ended(ended, call.entered),
                Ok(None) => {}
                Err(_) => self.accounts[Resource::Vmm].unknown_frees += 1,
            },
            Op::RetainHandle {
                handle: Some(handle),
                address,
            } => {
                self.vmm.retained(handle, address, call.returned);
            }
            Op::Map {
                address,
                bytes,
                offset,
                handle,
            } => {
                let (memory, ended) = self.vmm.mapped(address, bytes, handle, call.entered);
                for ended in ended {
                    self.memory_ended(ended, call.entered);
                }
                if let Some(memory) = memory {
                    let bytes = offset.saturating_add(bytes);
                    self.alias_has(Space::Physical, memory, bytes, call.returned);
                }
            }
            Op::Unmap { address, bytes } => {
                for ended in self.vmm.unmapped(address, bytes) {
                    self.memory_ended(ended, call.entered);
                }
            }
            Op::ExportHandle { handle } => self.vmm.exported(handle, call.entered),
            Op::DevicePool {
                device,
                pool: Some(pool),
            } => self.homes.pool(pool, Place::Device { ordinal: device }),
            Op::CreateContext { device, context } => {
                self.context_created();
                if let Some(handle) = context {
                    self.homes.created(call.tid, device, handle);
                }
            }
            Op::CreateGreenContext { device, green } => {
                self.context_created();
                if let Some(green) = green {
                    self.homes.created_green(device, green);
                }
            }
            Op::NameGreenContext {
                green,
                context: Some(context),
            } => self.homes.named_green(green, context),
            Op::RetainPrimary {
                device,
                context: Some(handle),
            } => {
                let created = self.homes.retained_primary(device, handle, from_the_start);
                if created {
                    self.context_created();
                }
            }
            Op::DestroyContext { context } => {
                let fate = self.homes.destroyed(call.tid, context, call.entered);
                self.context_ended(fate, call.entered);
            }
            Op::ReleasePrimary { device } => {
                let fate = self.homes.released_primary(device, call.entered);
                self.context_ended(fate, call.entered);
            }
            Op::ResetPrimary { device } => {
                let fate = self
                    .homes
                    .reset_primary(device, call.entered, from_the_start);
                self.context_ended(fate, call.entered);
            }
            Op::SetContext { context } => self.homes.set(call.tid, context),
            Op::PushContext { context } => self.homes.pushed(call.tid, context),
            Op::PopContext => self.homes.popped(call.tid),
            _ => {}
        }
    }

    /// Takes in a call that the driver refused.
    fn failed(&mut self, call: &Call, result: i32, max_sites: usize) {
        let asked = match call.op {
            Op::Allocate { kind, bytes, .. } => Some((kind, bytes)),
            Op::CreateHandle { bytes, .. } => Some((Resource::Vmm, bytes)),
            Op::ImportHandle { .. } | Op::OpenPointer { .. } => Some((Resource::Alias, 0)),
            Op::Free { kind, .. } => {
                self.accounts[kind].failed_frees += 1;
                None
            }
            Op::ReleaseHandle { .. } => {
                self.accounts[Resource::Vmm].failed_frees += 1;
                None
            }
            _ => None,
        };
        if let Some((kind, bytes)) = asked {
            self.accounts[kind].failed_allocations.add(bytes);
            let site = self.site(call.stack, kind, call.returned, max_sites);
            self.sites[site.0 as usize].failed.add(bytes);
        }
        let bytes = asked.map_or(0, |(_, bytes)| bytes);
        let key = (call.function, result);
        if self.failures.len() >= MAX_FAILURES && !self.failures.contains_key(&key) {
            return;
        }
        let failure = self.failures.entry(key).or_insert(Failure {
            function: call.function,
            result,
            amount: Amount::default(),
            first: call.returned,
            latest: call.returned,
        });
        failure.amount.add(bytes);
        failure.first = failure.first.min(call.returned);
        failure.latest = failure.latest.max(call.returned);
    }

    fn site(
        &mut self,
        stack: Option<StackId>,
        kind: Resource,
        at: BootTime,
        max_sites: usize,
    ) -> SiteIndex {
        if let Some(&site) = self.site_index.get(&(stack, kind)) {
            return site;
        }
        if self.sites.len() >= max_sites && stack.is_some() {
            return self.site(None, kind, at, max_sites);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "bounded by max_sites, kinds and executed images"
        )]
        let index = SiteIndex(self.sites.len() as u32);
        self.sites.push(Site::new(kind, stack, at));
        self.site_index.insert((stack, kind), index);
        index
    }

    fn allocated(&mut self, call: &Call, made: Made, around: Circumstances) -> bool {
        let home = self.homes.of(call.tid, made.place);
        let kind = if made.kind.is_gpu_memory() && self.homes.is_host(home) {
            Resource::PinnedHost
        } else {
            made.kind
        };
        let bytes = made.bytes;
        self.accounts[kind].allocated.add(bytes);
        let index = self.site(call.stack, kind, call.returned, around.max_sites);
        let site = &mut self.sites[index.0 as usize];
        if site.allocated.count == 0 {
            site.first = call.returned;
            site.first_bytes = bytes;
        }
        site.allocated.add(bytes);
        site.latest = site.latest.max(call.returned);
        let Some(address) = made.address.filter(|_| around.room && self.ended.is_none()) else {
            self.accounts[kind].not_followed.add(bytes);
            return true;
        };
        let allocation = Allocation {
            address,
            bytes,
            returned: call.returned,
            site: index,
            home,
        };
        self.accounts[kind].live.add(bytes);
        site.live.add(bytes);
        if let Some(replaced) = self.allocations.insert(made.space, allocation) {
            self.no_longer_live(&replaced, call.returned);
            let kind = self.kind_of(&replaced);
            self.accounts[kind].awaiting_free.add(replaced.bytes);
        }
        self.sites[index.0 as usize].note(call.returned);
        self.note(kind, call.returned);
        false
    }

    /// The live memory of a kind changed.
    fn note(&mut self, kind: Resource, at: BootTime) {
        if kind.is_gpu_memory() {
            self.history.set(at, self.accounts.live_on_gpu());
        }
    }

    /// Takes an allocation out of what is live, in the process and at its site.
    fn no_longer_live(&mut self, allocation: &Allocation, at: BootTime) {
        let site = &mut self.sites[allocation.site.0 as usize];
        let kind = site.kind;
        site.live.remove(allocation.bytes);
        site.note(at);
        self.accounts[kind].live.remove(allocation.bytes);
        self.note(kind, at);
    }

    fn freed(&mut self, kind: Resource, address: u64, entered: BootTime) {
        if address == 0 {
            return;
        }
        if kind == Resource::Pool {
            self.homes.pool_gone(address);
        }
        let freed = self.allocations.free(Space::of(kind), address, entered);
        let Some(freed) = freed else {
            self.accounts[kind].unknown_frees += 1;
            return;
        };
        self.account_for(freed, entered);
    }

    fn account_for(&mut self, freed: Freed, entered: BootTime) {
        let allocation = match freed {
            Freed::Live(allocation) => {
                self.no_longer_live(&allocation, entered);
                allocation
            }
            Freed::Awaiting(allocation) => {
                let kind = self.kind_of(&allocation);
                self.accounts[kind].awaiting_free.remove(allocation.bytes);
                allocation
            }
        };
        let kind = self.kind_of(&allocation);
        self.accounts[kind].freed.add(allocation.bytes);
        self.sites[allocation.site.0 as usize]
            .freed
            .add(allocation.bytes);
    }

    fn handle_created(
        &mut self,
        call: &Call,
        kind: Resource,
        bytes: u64,
        handle: Option<u64>,
        place: Place,
        around: Circumstances,
    ) -> bool {
        // The number of the memory stands for it: a handle can be given out again while a mapping
        // keeps the memory.
        let followed = around.room && self.ended.is_none();
        let address = handle
            .filter(|_| followed)
            .map(|handle| self.vmm.created(handle, call.returned));
        let made = Made {
            kind,
            space: Space::Physical,
            bytes,
            address,
            place,
        };
        self.allocated(call, made, around)
    }

    /// Opened or imported memory turns out to have at least so many bytes.
    fn alias_has(&mut self, space: Space, address: u64, bytes: u64, at: BootTime) {
        let Some(allocation) = self.allocations.get_mut(space, address) else {
            return;
        };
        let site = &mut self.sites[allocation.site.0 as usize];
        if site.kind != Resource::Alias || allocation.bytes >= bytes {
            return;
        }
        let more = bytes - allocation.bytes;
        allocation.bytes = bytes;
        let account = &mut self.accounts[Resource::Alias];
        for amount in [
            &mut site.live,
            &mut site.allocated,
            &mut account.live,
            &mut account.allocated,
        ] {
            amount.bytes = amount.bytes.saturating_add(more);
        }
        site.note(at);
    }

    /// Opened memory of another process is this big.
    pub(super) fn opened(&mut self, address: u64, bytes: u64, at: BootTime) {
        self.alias_has(Space::Pointer, address, bytes, at);
    }

    /// No handle and no mapping leads to physical memory any more.
    fn memory_ended(&mut self, ended: MemoryEnded, entered: BootTime) {
        let freed = self
            .allocations
            .free(Space::Physical, ended.memory, BootTime(u64::MAX));
        let Some(freed) = freed else { return };
        let (Freed::Live(allocation) | Freed::Awaiting(allocation)) = freed;
        if ended.exported && self.kind_of(&allocation) == Resource::Vmm {
            self.no_longer_live(&allocation, entered);
            self.kept_by_export.add(allocation.bytes);
        } else {
            self.account_for(freed, entered);
        }
    }

    const fn context_created(&mut self) {
        self.contexts.created += 1;
        self.contexts.live += 1;
    }

    fn context_ended(&mut self, fate: Fate, at: BootTime) {
        let gone = match fate {
            Fate::Lives => return,
            Fate::Destroyed(gone) => {
                self.contexts.live = self.contexts.live.saturating_sub(1);
                Some(gone)
            }
            Fate::UnknownDestroyed(gone) => {
                self.unsure = Some((HomeIndex::UNKNOWN, at));
                gone
            }
            Fate::Unsure(home) => {
                self.unsure = Some((home, at));
                return;
            }
        };
        self.contexts.destroyed += 1;
        if let Some(gone) = gone {
            self.release(gone, at);
        }
    }

    fn release(&mut self, gone: Gone, at: BootTime) {
        let mut released = Vec::new();
        self.allocations.remove_where(
            |it| gone.takes(it.home, it.returned),
            |it| released.push(*it),
        );
        for allocation in released {
            self.no_longer_live(&allocation, at);
            let kind = self.kind_of(&allocation);
            self.accounts[kind]
                .released_by_context
                .add(allocation.bytes);
        }
    }

    pub(super) fn forget_awaiting(&mut self, horizon: BootTime) {
        let (sites, accounts) = (&self.sites, &mut self.accounts);
        self.allocations.forget_awaiting(horizon, |it| {
            let account = &mut accounts[sites[it.site.0 as usize].kind];
            account.awaiting_free.remove(it.bytes);
            account.frees_not_seen += 1;
        });
    }
}

/// Something that a call gave.
#[derive(Clone, Copy)]
struct Made {
    kind: Resource,
    space: Space,
    bytes: u64,
    address: Option<u64>,
    place: Place,
}

#[cfg(test)]
mod tests {
    use super::*;

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
                kind: Resource::Device,
                bytes: 64,
                address: Some(1),
                place: Place::Current,
            },
            stack: None,
            cgroup_id: 0,
        };
        let around = Circumstances {
            room: true,
            max_sites: 10,
            from_the_start: true,
        };
        process.call(&call, around);
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
            (
                process.accounts[Resource::Device].released_by_exit,
                process.sites()[0].live
            ),
            (held, held)
        );
    }
}
