//! State from events: pure, without I/O and without a clock of its own.

mod accounts;
mod allocations;
mod coverage;
mod growth;
mod homes;
mod limits;
mod process;
mod sharing;
mod vmm;

use std::collections::VecDeque;

use coverage::Covered;
use hashbrown::HashMap;

pub use accounts::{Account, Accounts, Amount};
pub use allocations::{Allocation, SiteIndex};
pub use growth::{Growth, History, Low, Retained};
pub use homes::HomeIndex;
pub use limits::Limits;
use process::Circumstances;
pub use process::{Contexts, Ended, Failure, Identity, Process, Site, VmmStates};
use sharing::Sharing;
pub use sharing::{Export, GivenUp as OwnerGaveUp};

use crate::{
    event::{
        BootTime, Call, Coverage, EndedBy, Event, Exit, Losses, Module, Op, Pid, Sighting, StackId,
    },
    evidence::Evidence,
    resource::Resource,
    sensors::nvml::Sample,
};

/// What was given up to stay within [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Allocations that are not kept one by one.
    pub allocations: u64,
    /// Ended processes that are not shown any more.
    pub ended_processes: u64,
    /// Calls of processes for which there was no room.
    pub calls: u64,
    /// Stacks for which there was no room: what was called from there has no place.
    pub stacks: u64,
}

/// The ledger.
#[derive(Debug)]
pub struct Ledger {
    limits: Limits,
    started: BootTime,
    wall_ns: u64,
    covered: Covered,
    now: BootTime,
    processes: HashMap<Pid, Process>,
    ended: VecDeque<Pid>,
    stacks: HashMap<StackId, (Pid, Vec<u64>)>,
    symbols: HashMap<StackId, Vec<Option<String>>>,
    users: HashMap<u32, String>,
    modules: HashMap<Pid, Vec<Module>>,
    live_allocations: usize,
    stopped: Option<(BootTime, EndedBy)>,
    devices: Evidence<Sample>,
    unattributed_losses: Losses,
    given_up: GivenUp,
    sharing: Sharing,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            started: BootTime(0),
            wall_ns: 0,
            covered: Covered::default(),
            now: BootTime(0),
            processes: HashMap::new(),
            ended: VecDeque::new(),
            stacks: HashMap::new(),
            symbols: HashMap::new(),
            users: HashMap::new(),
            modules: HashMap::new(),
            live_allocations: 0,
            stopped: None,
            devices: Evidence::NotAvailable("the device layer has not been asked".to_owned()),
            unattributed_losses: Losses::default(),
            given_up: GivenUp::default(),
            sharing: Sharing::default(),
        }
    }

    /// Takes in one event. Constant time, except where a process, an image or a context ends.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Started {
                at,
                wall_ns,
                coverage,
            } => {
                self.covered.start(coverage);
                self.started = *at;
                self.wall_ns = *wall_ns;
                self.advance(*at);
            }
            Event::Process(seen) => {
                self.advance(seen.at);
                if let Some(process) = self.process(seen.pid) {
                    let released = process.seen(seen);
                    self.live_allocations -= released;
                }
                if seen.sighting == Sighting::Executed {
                    self.modules.remove(&seen.pid);
                    self.sharing.ended(seen.pid, seen.at);
                    self.covered.executed(seen.pid);
                }
            }
            Event::CommandLine { pid, command } => {
                if let Some(process) = self.processes.get_mut(pid) {
                    process.identity.command = Some(command.clone());
                }
            }
            Event::Modules { pid, modules } => {
                if self.process(*pid).is_some() {
                    let modules = &modules[..modules.len().min(Limits::MODULES)];
                    self.modules.insert(*pid, modules.to_vec());
                }
            }
            Event::Stack { stack, pid, frames } => {
                if self.stacks.len() < self.limits.stacks || self.stacks.contains_key(stack) {
                    let frames = &frames[..frames.len().min(Limits::FRAMES)];
                    self.stacks.insert(*stack, (*pid, frames.to_vec()));
                } else {
                    self.given_up.stacks += 1;
                }
            }
            Event::Symbols { stack, names } => {
                if let Some((_, frames)) = self.stacks.get(stack) {
                    let names = &names[..names.len().min(frames.len())];
                    self.symbols.insert(*stack, names.to_vec());
                }
            }
            Event::User { uid, name } => {
                if self.users.len() < Limits::USERS {
                    self.users.insert(*uid, name.clone());
                }
            }
            Event::Call(call) => self.call(call),
            Event::Activity(activity) => {
                if let Some(process) = self.process(activity.pid) {
                    process.active(*activity);
                }
            }
            Event::Exit(exit) => self.exit(exit),
            Event::Losses {
                pid: Some(pid),
                losses,
            } => {
                if let Some(process) = self.process(*pid) {
                    process.losses = losses.clone();
                }
            }
            Event::Losses { pid: None, losses } => self.unattributed_losses = losses.clone(),
            Event::Devices { at, sample } => {
                self.advance(*at);
                self.devices = sample.clone();
            }
            Event::Library {
                at,
                library,
                processes,
            } => {
                self.advance(*at);
                self.covered.library(*at, library, processes);
            }
            Event::NotProbed { at, copy } => {
                self.advance(*at);
                self.covered.not_probed(copy);
            }
            Event::Tick { at } => {
                self.advance(*at);
                let horizon = BootTime(self.now.0.saturating_sub(self.limits.await_free_ns));
                for process in self.processes.values_mut() {
                    process.forget_awaiting(horizon);
                }
            }
            Event::Stopped { at, by } => {
                self.advance(*at);
                self.stopped = Some((*at, *by));
            }
        }
    }

    fn advance(&mut self, at: BootTime) {
        self.now = self.now.max(at);
    }

    /// The account of a process, opened where there is none. `None` where there is no room.
    fn process(&mut self, pid: Pid) -> Option<&mut Process> {
        if !self.processes.contains_key(&pid) && self.processes.len() >= self.limits.processes {
            self.drop_oldest_ended();
            if self.processes.len() >= self.limits.processes {
                return None;
            }
        }
        let now = self.now;
        Some(
            self.processes
                .entry(pid)
                .or_insert_with(|| Process::new(pid, now)),
        )
    }

    fn call(&mut self, call: &Call) {
        self.advance(call.returned);
        let room = self.live_allocations < self.limits.live_allocations;
        let max_sites = self.limits.sites_per_process;
        let from_the_start = self
            .processes
            .get(&call.pid)
            .is_some_and(|process| self.saw_from_the_start(process));
        if self.closes_one_of_several(call) {
            return;
        }
        let Some(process) = self.process(call.pid) else {
            self.given_up.calls += 1;
            return;
        };
        let around = Circumstances {
            room,
            max_sites,
            from_the_start,
        };
        let before = process.live_len();
        let given_up = process.call(call, around);
        let after = process.live_len();
        self.live_allocations = self.live_allocations + after - before;
        self.given_up.allocations += u64::from(given_up);
        if call.counts() {
            self.share(call);
        }
    }

    /// Memory that a process has open several times is closed once: it keeps its pointer.
    fn closes_one_of_several(&mut self, call: &Call) -> bool {
        let Op::Free {
            kind: Resource::Alias,
            address,
        } = call.op
        else {
            return false;
        };
        call.counts() && self.sharing.closed(call.pid, address)
    }

    /// What a successful call means for memory that processes share.
    fn share(&mut self, call: &Call) {
        match call.op {
            Op::ExportPointer {
                address,
                key: Some(key),
            } => {
                let allocation = self
                    .processes
                    .get(&call.pid)
                    .and_then(|process| process.pointer(address));
                self.sharing.exported(call.pid, address, allocation, key);
            }
            Op::OpenPointer {
                address: Some(address),
                key,
            } => {
                let bytes = self.sharing.opened(call.pid, address, key);
                if let (Some(bytes), Some(process)) = (bytes, self.processes.get_mut(&call.pid)) {
                    process.opened(address, bytes, call.returned);
                }
            }
            Op::Free { .. } => self.settle(call),
            Op::DestroyContext { .. } | Op::ReleasePrimary { .. } | Op::ResetPrimary { .. } => {
                self.settle(call);
                if let Some(process) = self.processes.get(&call.pid) {
                    self.sharing
                        .settle_holder(call.pid, |address| process.pointer(address).is_some());
                }
            }
            _ => {}
        }
    }

    /// What a process exported may not be live any more.
    fn settle(&mut self, call: &Call) {
        if self.sharing.is_owner(call.pid)
            && let Some(process) = self.processes.get(&call.pid)
        {
            self.sharing
                .settle(call.pid, call.entered, false, |address| {
                    process.pointer(address).map(|(_, returned)| returned)
                });
        }
    }

    fn exit(&mut self, exit: &Exit) {
        self.advance(exit.at);
        // An exit of a process of which nothing else is known opens no account.
        let Some(process) = self.processes.get_mut(&exit.pid) else {
            return;
        };
        if process.ended().is_some() {
            return;
        }
        self.live_allocations -= process.end(exit);
        self.sharing.ended(exit.pid, exit.at);
        if process.is_without_calls() {
            self.forget(exit.pid);
            return;
        }
        self.ended.push_back(exit.pid);
        if self.ended.len() > self.limits.ended_processes {
            self.drop_oldest_ended();
        }
    }

    fn drop_oldest_ended(&mut self) {
        if let Some(pid) = self.ended.pop_front() {
            self.forget(pid);
            self.given_up.ended_processes += 1;
        }
    }

    fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
        self.modules.remove(&pid);
        let symbols = &mut self.symbols;
        self.stacks.retain(|stack, (owner, _)| {
            let keep = *owner != pid;
            if !keep {
                symbols.remove(stack);
            }
            keep
        });
    }

    /// Every process with an account, in no order.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// The account of one process.
    #[must_use]
    pub fn get(&self, pid: Pid) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Frames of a stack, innermost first; none if it is not known.
    #[must_use]
    pub fn frames(&self, stack: StackId) -> &[u64] {
        self.stacks.get(&stack).map_or(&[], |(_, frames)| frames)
    }

    /// Names of a stack's frames; `None` where they have not been looked up.
    #[must_use]
    pub fn symbols(&self, stack: StackId) -> Option<&[Option<String>]> {
        self.symbols.get(&stack).map(Vec::as_slice)
    }

    /// Name of a user, if it has been looked up.
    #[must_use]
    pub fn user(&self, uid: u32) -> Option<&str> {
        self.users.get(&uid).map(String::as_str)
    }

    /// The user of a name, if it is that of a user that has been looked up.
    #[must_use]
    pub fn user_named(&self, name: &str) -> Option<u32> {
        let mut users = self.users.iter();
        users.find_map(|(&uid, known)| (known == name).then_some(uid))
    }

    /// What is probed.
    #[must_use]
    pub const fn coverage(&self) -> &Coverage {
        self.covered.coverage()
    }

    /// Whether every call of a process was seen: it began under tracing, and its copy of libcuda was
    /// probed before it mapped it. `false` where that is not known.
    #[must_use]
    pub fn saw_from_the_start(&self, process: &Process) -> bool {
        let seen = process.identity.seen.as_ref();
        seen.is_some_and(|seen| {
            self.covered
                .saw_from_the_start(process.pid, seen.started, self.started)
        })
    }

    /// Executable mappings of a process, as they were last read.
    #[must_use]
    pub fn modules(&self, pid: Pid) -> &[Module] {
        self.modules.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// When tracing began.
    #[must_use]
    pub const fn started(&self) -> BootTime {
        self.started
    }

    /// When and why tracing ended; `None` while it goes on.
    #[must_use]
    pub const fn stopped(&self) -> Option<(BootTime, EndedBy)> {
        self.stopped
    }

    /// The latest moment that any event spoke of.
    #[must_use]
    pub const fn now(&self) -> BootTime {
        self.now
    }

    /// Wall clock at a moment, in nanoseconds since 1970, by the clocks as they stood at the start.
    #[must_use]
    pub const fn wall_ns(&self, at: BootTime) -> u64 {
        if at.0 >= self.started.0 {
            self.wall_ns.saturating_add(at.0 - self.started.0)
        } else {
            self.wall_ns.saturating_sub(self.started.0 - at.0)
        }
    }

    /// What the device layer last said.
    #[must_use]
    pub const fn devices(&self) -> &Evidence<Sample> {
        &self.devices
    }

    /// Losses of which it is not known whose they were.
    #[must_use]
    pub const fn unattributed_losses(&self) -> &Losses {
        &self.unattributed_losses
    }

    /// What was given up to stay within the limits.
    #[must_use]
    pub const fn given_up(&self) -> GivenUp {
        self.given_up
    }

    /// Memory that its owner has freed, or whose owner has ended, and that others have open, in no
    /// order.
    pub fn kept_by_imports(&self) -> impl Iterator<Item = &Export> {
        self.sharing.kept()
    }

    /// Live allocations kept one by one.
    #[must_use]
    pub const fn live_allocations(&self) -> usize {
        self.live_allocations
    }
}
