//! From wire records to events: numbers stacks, names processes, gives calls their meaning.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use gputrace_ebpf::{
    ACTIVITIES, CALL_INPUT_UNREADABLE, CALL_NEVER_RETURNED, CALL_OUT0_UNREADABLE,
    CALL_OUT1_UNREADABLE, CallRecord, ExitRecord, PROCESS_EXECUTED, PROCESS_FORKED, ProcessRecord,
    Record,
};

use super::{Reader, RecordedLoss};
use crate::{
    cuda::{FunctionId, Observed},
    event::{
        ActivityCount, ActivitySeen, BootTime, Call, Event, Exit, ExitSource, Module, Outcome, Pid,
        ProcessSeen, Sighting, StackId,
    },
    identity::{escape, procfs::Procfs, within},
    sensors::modules,
};

/// Longest wait for `/proc` of one process: a task stuck in a driver may hold its memory lock for
/// ever, and meanwhile the ring buffer fills.
const PROC_LIMIT: Duration = Duration::from_millis(50);
/// Stacks numbered in one process; further ones are known by their return address alone.
const MAX_STACKS: usize = 8192;

/// A stack as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RawStack {
    return_address: u64,
    kernel_id: i32,
}

#[derive(Default)]
struct Known {
    modules: Vec<Module>,
    /// How often they have been read, to bound it.
    reads: u32,
    raw: HashMap<RawStack, StackId>,
    /// Kernel stacks among `raw`.
    kernel_ids: HashSet<i32>,
    numbered: HashMap<Vec<u64>, StackId>,
}

/// Times that the mappings of one image are read: at first, and when an address lies in none.
const MAX_READS: u32 = 16;

/// Turns records into events.
pub struct Translator {
    procfs: Procfs,
    processes: HashMap<Pid, Known>,
    next_stack: u32,
    /// How many processes use a kernel stack.
    users: HashMap<i32, u32>,
    unused: Vec<i32>,
}

impl Translator {
    /// One that reads from this `/proc`.
    #[must_use]
    pub fn new(procfs: Procfs) -> Self {
        Self {
            procfs,
            processes: HashMap::new(),
            next_stack: 0,
            users: HashMap::new(),
            unused: Vec::new(),
        }
    }

    /// Gives the events of a record to `each`, in their order.
    pub fn translate(&mut self, record: &Record, reader: &Reader, mut each: impl FnMut(Event)) {
        match record {
            Record::Call(record) => self.call(record, reader, &mut each),
            Record::Process(record) => self.process(record, &mut each),
            Record::Exit(record) => {
                let exit = exit(record);
                self.forget(exit.pid);
                let activity = activity(exit.pid, &record.activity);
                if activity.latest().is_some() {
                    each(Event::Activity(activity));
                }
                each(Event::Exit(exit));
            }
        }
    }

    /// Turns a row of the loss table into an event.
    #[must_use]
    pub fn losses(loss: RecordedLoss) -> Event {
        let pid = loss
            .process
            .map(|(tgid, start_ns)| Pid::from_start_ns(tgid, start_ns));
        Event::Losses {
            pid,
            losses: loss.losses,
        }
    }

    /// Forgets a process or an image that has ended.
    pub fn forget(&mut self, pid: Pid) {
        let Some(known) = self.processes.remove(&pid) else {
            return;
        };
        for id in known.kernel_ids {
            let users = self.users.entry(id).or_insert(1);
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.users.remove(&id);
                self.unused.push(id);
            }
        }
    }

    /// Kernel stacks that no process uses any more: their places can be given to others. Each
    /// program start has addresses of its own, so they would fill the table in time.
    pub fn take_unused(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.unused)
    }

    fn call(&mut self, record: &CallRecord, reader: &Reader, each: &mut impl FnMut(Event)) {
        // A row that this build does not have: the programs are of another build.
        let Some(function) = FunctionId::new(record.function) else {
            return;
        };
        let pid = Pid::from_start_ns(record.tgid, record.start_ns);
        let never_returned = record.flags & CALL_NEVER_RETURNED != 0;
        let succeeded = record.result == 0 && !never_returned;
        let out = |i: usize, unreadable| {
            (succeeded && record.flags & unreadable == 0).then_some(record.out[i])
        };
        let observed = Observed {
            args: record.args,
            out: [out(0, CALL_OUT0_UNREADABLE), out(1, CALL_OUT1_UNREADABLE)],
            input_is_read: record.flags & CALL_INPUT_UNREADABLE == 0,
        };
        let takes_stack = function.function().spec.stack != 0 || function.is_counted_only();
        let stack = if takes_stack {
            self.stack(pid, record, reader, each)
        } else {
            None
        };
        each(Event::Call(Call {
            pid,
            tid: record.tid,
            function,
            enclosing: FunctionId::new(record.enclosing),
            entered: BootTime(record.enter_ns),
            returned: BootTime(record.exit_ns),
            outcome: if never_returned {
                Outcome::NeverReturned
            } else {
                Outcome::Returned(record.result)
            },
            op: function.decode(&observed),
            stack,
            cgroup_id: record.cgroup_id,
        }));
    }

    fn stack(
        &mut self,
        pid: Pid,
        record: &CallRecord,
        reader: &Reader,
        each: &mut impl FnMut(Event),
    ) -> Option<StackId> {
        let raw = RawStack {
            return_address: record.return_address,
            kernel_id: record.stack_id,
        };
        let known = self.processes.entry(pid).or_default();
        if let Some(&stack) = known.raw.get(&raw) {
            return Some(stack);
        }
        let walked = if known.raw.len() < MAX_STACKS {
            reader.stack(raw.kernel_id)
        } else {
            None
        };
        let walked = walked.as_deref().unwrap_or(&[]);
        let frames = if raw.return_address == 0 {
            // Walked at the return: it begins in the caller.
            walked.iter().copied().filter(|&ip| ip != 0).collect()
        } else {
            chain(raw.return_address, walked)
        };
        if frames.is_empty() {
            return None;
        }
        let is_known = |known: &Known| modules::contains(&known.modules, frames[0]);
        if !is_known(known) && known.reads < MAX_READS {
            known.reads += 1;
            if let Some(modules) = read_modules(&self.procfs, pid) {
                known.modules.clone_from(&modules);
                each(Event::Modules { pid, modules });
            }
        }
        let frames = trim(frames, &known.modules);
        let stack = match known.numbered.get(&frames) {
            Some(&stack) => stack,
            None => {
                let stack = StackId(self.next_stack);
                self.next_stack += 1;
                known.numbered.insert(frames.clone(), stack);
                each(Event::Stack { stack, pid, frames });
                stack
            }
        };
        if known.raw.len() < 2 * MAX_STACKS {
            known.raw.insert(raw, stack);
            if raw.kernel_id >= 0 && known.kernel_ids.insert(raw.kernel_id) {
                *self.users.entry(raw.kernel_id).or_default() += 1;
            }
        }
        Some(stack)
    }

    fn process(&mut self, record: &ProcessRecord, each: &mut impl FnMut(Event)) {
        let pid = Pid::from_start_ns(record.tgid, record.start_ns);
        let sighting = match record.reason {
            PROCESS_FORKED => Sighting::Forked,
            PROCESS_EXECUTED => Sighting::Executed,
            _ => Sighting::FirstCall,
        };
        if sighting == Sighting::Executed {
            self.forget(pid);
        }
        if sighting != Sighting::Forked && record.verified == 0 {
            // Offsets come from the kernel's own BTF; if they are wrong after all, say so.
            tracing::error!(
                "the kernel's struct offsets are wrong: who processes are cannot be trusted"
            );
        }
        each(Event::Process(ProcessSeen {
            pid,
            at: BootTime(record.time_ns),
            started: BootTime(record.start_ns),
            sighting,
            parent: Pid::from_start_ns(record.parent_tgid, record.parent_start_ns),
            namespace_pid: (record.namespace_level > 0).then_some(record.namespace_pid),
            uid: record.uid,
            comm: escape(until_nul(&record.comm)),
            cgroup: escape(until_nul(&record.cgroup_name)),
            cgroup_id: record.cgroup_id,
        }));
        if let Some(command) = read_command(&self.procfs, pid) {
            each(Event::CommandLine { pid, command });
        }
    }
}

/// A process's counted calls, as the kernel side keeps them.
pub(super) fn activity(
    pid: Pid,
    [launches, copies, synchronizations]: &[gputrace_ebpf::ActivityCount; ACTIVITIES],
) -> ActivitySeen {
    let count = |it: &gputrace_ebpf::ActivityCount| ActivityCount {
        count: it.count,
        failed: it.failed,
        latest: (it.latest_ns != 0).then_some(BootTime(it.latest_ns)),
    };
    ActivitySeen {
        pid,
        launches: count(launches),
        copies: count(copies),
        synchronizations: count(synchronizations),
    }
}

fn exit(record: &ExitRecord) -> Exit {
    Exit {
        pid: Pid::from_start_ns(record.tgid, record.start_ns),
        at: BootTime(record.time_ns),
        status: Some(record.status),
        source: ExitSource::Kernel,
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// The callers of a probed function, innermost first. `walked` begins with the probed instruction;
/// its walk by frame pointers misses the direct caller, unless the kernel knew that it stood at a
/// function's entry.
fn chain(return_address: u64, walked: &[u64]) -> Vec<u64> {
    let callers = walked.get(1..).unwrap_or(&[]);
    let mut frames = Vec::with_capacity(callers.len() + 1);
    if return_address != 0 && callers.first() != Some(&return_address) {
        frames.push(return_address);
    }
    frames.extend(callers.iter().copied().filter(|&ip| ip != 0));
    frames
}

/// Cuts a stack where it leaves the program's code: code without frame pointers leads a walk
/// astray, and every stray would be a call site of its own.
fn trim(mut frames: Vec<u64>, modules: &[Module]) -> Vec<u64> {
    if !modules.is_empty() {
        let end = frames
            .iter()
            .skip(1)
            .position(|&ip| !modules::contains(modules, ip))
            .map_or(frames.len(), |i| i + 1);
        frames.truncate(end);
    }
    frames
}

fn read_modules(procfs: &Procfs, pid: Pid) -> Option<Vec<Module>> {
    let path = procfs.path(pid.tgid, "maps");
    within(PROC_LIMIT, move || modules::read(&path)).ok()?.ok()
}

fn read_command(procfs: &Procfs, pid: Pid) -> Option<String> {
    let procfs = procfs.clone();
    within(PROC_LIMIT, move || {
        procfs.same_process(pid.tgid, Some(pid.start_ticks), |procfs| {
            procfs.names(pid.tgid)
        })
    })
    .ok()?
    .ok()
    .and_then(|(_, names)| names.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(start: u64, end: u64) -> Module {
        Module {
            start,
            end,
            offset: 0,
            path: "/x".to_owned(),
        }
    }

    #[test]
    fn the_direct_caller_comes_first_and_once() {
        assert_eq!(chain(5, &[1, 7, 8]), [5, 7, 8]);
        assert_eq!(chain(5, &[1, 5, 7]), [5, 7]);
        assert_eq!(chain(5, &[]), [5]);
        assert_eq!(chain(0, &[1, 7]), [7]);
        assert!(chain(0, &[]).is_empty());
    }

    #[test]
    fn a_walk_that_goes_astray_is_cut() {
        let modules = [module(10, 20), module(30, 40)];
        assert_eq!(trim(vec![12, 33, 99, 15], &modules), [12, 33]);
        assert_eq!(trim(vec![12, 33], &modules), [12, 33]);
        // The return address is no walk: it stays, even in code without a file.
        assert_eq!(trim(vec![99, 12], &modules), [99, 12]);
        assert_eq!(trim(vec![12, 99], &[]), [12, 99]);
    }
}
