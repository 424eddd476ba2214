//! The language of the pipeline: what sensors say, and all that the ledger knows.
//!
//! Live tracing and recordings use the same events; a report depends on nothing else. Each type is
//! also written as it stands into recordings ([`crate::recording`]): who changes one that is
//! written raises the version there.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::{
    cuda::FunctionId,
    evidence::Evidence,
    resource::{Activity, Place, Resource},
    sensors::nvml::Sample,
    text::{Decimal, Hexadecimal, as_hex, as_text},
};

/// A moment: nanoseconds of `CLOCK_BOOTTIME`, which also counts while the machine sleeps.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
#[derive(BorshSerialize, BorshDeserialize)]
pub struct BootTime(
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub u64,
);

impl BootTime {
    /// Nanoseconds from `earlier` to here; 0 where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A process: a PID alone may be used again, a PID with its start time is not.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Pid {
    /// Thread-group id, in the initial PID namespace.
    pub tgid: u32,
    /// Start in clock ticks (1/100 s) since boot, as `/proc/PID/stat` gives it.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub start_ticks: u64,
}

impl Pid {
    /// From the kernel's own start time. `USER_HZ` is 100 on every Linux that gputrace runs on.
    #[must_use]
    pub const fn from_start_ns(tgid: u32, start_ns: u64) -> Self {
        const NS_PER_TICK: u64 = 10_000_000;
        Self {
            tgid,
            start_ticks: start_ns / NS_PER_TICK,
        }
    }
}

/// Number of a stack within a run; defined by [`Event::Stack`] before its first use.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
#[derive(BorshSerialize, BorshDeserialize)]
pub struct StackId(pub u32);

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Event {
    /// Tracing began; ties the boot clock to the wall clock.
    Started {
        /// When.
        at: BootTime,
        /// The same moment, in nanoseconds since 1970.
        #[serde(with = "as_text")]
        #[schemars(with = "Decimal")]
        wall_ns: u64,
        /// What is probed.
        coverage: Coverage,
    },
    /// A process was seen, forked, or executed a new image.
    Process(ProcessSeen),
    /// A process's command line, read from /proc.
    CommandLine {
        /// Whose.
        pid: Pid,
        /// Arguments joined by blanks, made harmless for a terminal.
        command: String,
    },
    /// The executable files mapped by a process, all of them.
    Modules {
        /// Whose.
        pid: Pid,
        /// Ordered by address.
        modules: Vec<Module>,
    },
    /// Defines a stack.
    Stack {
        /// Its number.
        stack: StackId,
        /// In which process.
        pid: Pid,
        /// Return addresses, innermost first: `frames[0]` lies in the caller of the CUDA function.
        #[serde(with = "as_hex")]
        #[schemars(with = "Vec<Hexadecimal>")]
        frames: Vec<u64>,
    },
    /// Names of a stack's frames, found late.
    Symbols {
        /// The stack.
        stack: StackId,
        /// One for each frame; `None` where there is no symbol.
        names: Vec<Option<String>>,
    },
    /// The name of a user.
    User {
        /// User id.
        uid: u32,
        /// The name.
        name: String,
    },
    /// A probed function was called.
    Call(Call),
    /// How often a process has used the GPU since tracing began.
    Activity(ActivitySeen),
    /// A process ended.
    Exit(Exit),
    /// What was lost of one process, or of none in particular, since the start.
    Losses {
        /// `None`: it is not known whose events these were.
        pid: Option<Pid>,
        /// Counted since tracing began.
        losses: Losses,
    },
    /// What the device layer says.
    Devices {
        /// When it was asked.
        at: BootTime,
        /// The answer.
        sample: Evidence<Sample>,
    },
    /// A copy of libcuda was probed while tracing.
    Library {
        /// When this was found out.
        at: BootTime,
        /// The copy.
        library: Library,
        /// Processes that had mapped it before it was probed.
        processes: Vec<Pid>,
    },
    /// A copy of libcuda that was met while tracing is not probed.
    NotProbed {
        /// When this was found out.
        at: BootTime,
        /// The copy.
        copy: NotProbed,
    },
    /// Time has passed.
    Tick {
        /// Now.
        at: BootTime,
    },
    /// Tracing ended: the last event.
    Stopped {
        /// When.
        at: BootTime,
        /// Why.
        by: EndedBy,
    },
}

/// Why tracing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum EndedBy {
    /// The time that was asked for is over.
    Duration,
    /// SIGINT or SIGTERM.
    Signal,
    /// Every process that was asked for has ended.
    TargetsEnded,
    /// It may have gone on, but the recording does not: it was cut off, or gputrace was killed.
    RecordingBreaksOff,
}

/// Why a process is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Sighting {
    /// It called a probed function for the first time.
    FirstCall,
    /// A known process forked it.
    Forked,
    /// It executed a new image: what the old one held through CUDA is gone.
    Executed,
}

/// Who a process is, as the kernel said at that moment.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct ProcessSeen {
    /// The process.
    pub pid: Pid,
    /// When it was seen.
    pub at: BootTime,
    /// When it was started, more exactly than `pid` tells.
    pub started: BootTime,
    /// Why it is reported.
    pub sighting: Sighting,
    /// Its parent.
    pub parent: Pid,
    /// Its PID in its own PID namespace, where that is not the initial one.
    pub namespace_pid: Option<u32>,
    /// User id, as the initial user namespace counts.
    pub uid: u32,
    /// The kernel's 15-character name, made harmless for a terminal.
    pub comm: String,
    /// Name of its innermost cgroup, made harmless for a terminal.
    pub cgroup: String,
    /// Inode number of its cgroup in the v2 hierarchy.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub cgroup_id: u64,
}

/// An executable mapping of a file.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Module {
    /// First address.
    #[serde(with = "as_hex::one")]
    #[schemars(with = "Hexadecimal")]
    pub start: u64,
    /// First address after it.
    #[serde(with = "as_hex::one")]
    #[schemars(with = "Hexadecimal")]
    pub end: u64,
    /// Where in the file `start` lies.
    #[serde(with = "as_hex::one")]
    #[schemars(with = "Hexadecimal")]
    pub offset: u64,
    /// Path in the process's own mount namespace.
    pub path: String,
}

impl Module {
    /// Where in the file an address lies; `None` if it is below the mapping, or if the mapping
    /// claims to reach beyond what 64 bits can count.
    #[must_use]
    pub fn in_file(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.start)?.checked_add(self.offset)
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Outcome {
    /// It returned this `CUresult`; 0 is success.
    Returned(i32),
    /// Its thread ended inside it.
    NeverReturned,
}

/// What a call was for, with what it gave.
///
/// Pointers and handles that a call gives are `None` where it failed or they could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "op", rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Op {
    /// Asked for memory, addresses or an object.
    Allocate {
        /// What.
        kind: Resource,
        /// Bytes asked for; 0 for an object.
        bytes: u64,
        /// The pointer or handle given.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        address: Option<u64>,
        /// Where it lies.
        place: Place,
    },
    /// Gave something back.
    Free {
        /// What the function is for. A pointer of any kind is freed as [`Resource::Device`].
        kind: Resource,
        /// The pointer or handle; 0 is allowed and frees nothing.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        address: u64,
    },
    /// Asked for physical memory behind a handle.
    CreateHandle {
        /// Bytes asked for.
        bytes: u64,
        /// The handle.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        handle: Option<u64>,
        /// Where it lies.
        place: Place,
    },
    /// Gave a handle back.
    ReleaseHandle {
        /// The handle.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        handle: u64,
    },
    /// Got one more handle of memory that is mapped.
    RetainHandle {
        /// The handle.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        handle: Option<u64>,
        /// Where it is mapped.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        address: u64,
    },
    /// Mapped a handle's memory at reserved addresses.
    Map {
        /// First address.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        address: u64,
        /// Bytes mapped.
        bytes: u64,
        /// Where in the handle's memory the mapping begins.
        offset: u64,
        /// The handle.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        handle: u64,
    },
    /// Took mappings away.
    Unmap {
        /// First address.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        address: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Gave a handle's memory to others, through a descriptor for instance.
    ExportHandle {
        /// The handle.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        handle: u64,
    },
    /// Got a handle for memory that is not this process's own.
    ImportHandle {
        /// The handle.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        handle: Option<u64>,
    },
    /// Gave the memory behind a pointer to others.
    ExportPointer {
        /// The pointer.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        address: u64,
        /// Digest of the IPC handle.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        key: Option<u64>,
    },
    /// Opened memory of another process.
    OpenPointer {
        /// The pointer given.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        address: Option<u64>,
        /// Digest of the IPC handle.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        key: Option<u64>,
    },
    /// Asked for a device's memory pool.
    DevicePool {
        /// Device ordinal, as the process counts them.
        device: u32,
        /// The pool.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        pool: Option<u64>,
    },
    /// Created a context and made it current to the thread.
    CreateContext {
        /// Device ordinal, as the process counts them.
        device: u32,
        /// The context.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        context: Option<u64>,
    },
    /// Destroyed a context and what it held.
    DestroyContext {
        /// The context.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        context: u64,
    },
    /// Made a context current to the thread, in place of the one that was.
    SetContext {
        /// The context; 0: none.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        context: u64,
    },
    /// Made a context current to the thread, on top of the one that was.
    PushContext {
        /// The context.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        context: u64,
    },
    /// Took the thread's current context off its stack.
    PopContext,
    /// Asked for a device's primary context, which the first such call creates.
    RetainPrimary {
        /// Device ordinal, as the process counts them.
        device: u32,
        /// The context.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        context: Option<u64>,
    },
    /// Gave a device's primary context back; the last such call destroys it.
    ReleasePrimary {
        /// Device ordinal, as the process counts them.
        device: u32,
    },
    /// Destroyed a device's primary context and what it held, whoever retains it.
    ResetPrimary {
        /// Device ordinal, as the process counts them.
        device: u32,
    },
    /// Created a green context: a part of a device's multiprocessors.
    CreateGreenContext {
        /// Device ordinal, as the process counts them.
        device: u32,
        /// The green context.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        green: Option<u64>,
    },
    /// Asked for the context of a green context.
    NameGreenContext {
        /// The green context.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        green: u64,
        /// Its context.
        #[serde(with = "as_hex::option")]
        #[schemars(with = "Option<Hexadecimal>")]
        context: Option<u64>,
    },
    /// Used the GPU; such calls are events only where they fail.
    Activity {
        /// How.
        activity: Activity,
    },
    /// Changed nothing that is kept account of.
    Other,
}

impl Op {
    /// An allocation of plain device memory in the current context.
    #[must_use]
    pub const fn device_memory(bytes: u64, address: Option<u64>) -> Self {
        Self::Allocate {
            kind: Resource::Device,
            bytes,
            address,
            place: Place::Current,
        }
    }

    /// A free of a device pointer.
    #[must_use]
    pub const fn free(address: u64) -> Self {
        Self::Free {
            kind: Resource::Device,
            address,
        }
    }
}

/// One call of a probed function.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Call {
    /// Which process.
    pub pid: Pid,
    /// Which thread.
    pub tid: u32,
    /// Which function.
    pub function: FunctionId,
    /// The outermost probed function that this call happened in.
    pub enclosing: Option<FunctionId>,
    /// When it was entered.
    pub entered: BootTime,
    /// When it returned, or when its thread died in it.
    pub returned: BootTime,
    /// How it ended.
    pub outcome: Outcome,
    /// What it did.
    #[serde(flatten)]
    pub op: Op,
    /// Where it was called from.
    pub stack: Option<StackId>,
    /// cgroup of the caller at that moment (inode number in the v2 hierarchy).
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub cgroup_id: u64,
}

impl Call {
    /// Whether it succeeded, and is not part of another call.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.enclosing.is_none() && self.outcome == Outcome::Returned(0)
    }
}

/// Calls that are only counted.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct ActivityCount {
    /// Successful calls.
    pub count: u64,
    /// Failed calls.
    pub failed: u64,
    /// When the latest of them returned.
    pub latest: Option<BootTime>,
}

/// How often a process has used the GPU since tracing began.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct ActivitySeen {
    /// Which process.
    pub pid: Pid,
    /// Launches of kernels and graphs.
    pub launches: ActivityCount,
    /// Copies, fills and prefetches of memory.
    pub copies: ActivityCount,
    /// Waits for the GPU.
    pub synchronizations: ActivityCount,
}

impl ActivitySeen {
    /// When the process used the GPU last.
    #[must_use]
    pub fn latest(&self) -> Option<BootTime> {
        [self.launches, self.copies, self.synchronizations]
            .into_iter()
            .filter_map(|it| it.latest)
            .max()
    }
}

/// Who noticed that a process had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum ExitSource {
    /// The kernel, at that moment.
    Kernel,
    /// A look at /proc, later: the kernel's own event was lost.
    Procfs,
}

/// A process ended: its last thread did.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Exit {
    /// Which process.
    pub pid: Pid,
    /// When.
    pub at: BootTime,
    /// As `wait(2)` encodes it, where it is known.
    pub status: Option<u32>,
    /// Who noticed.
    pub source: ExitSource,
}

/// Events that did not reach user space.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Losses {
    /// First of them.
    pub first: Option<BootTime>,
    /// Latest of them.
    pub last: Option<BootTime>,
    /// How many, by cause.
    pub causes: std::collections::BTreeMap<String, u64>,
    /// Successful allocations among them.
    pub allocations: u64,
    /// Bytes that these asked for.
    pub allocation_bytes: u64,
    /// Successful frees among them.
    pub frees: u64,
}

impl Losses {
    /// Causes by which no event is lost: all allocations and frees are accounted for, only a stack
    /// or the moment of an identity is missing.
    pub const HARMLESS: [&str; 2] = ["stack_lost", "process_table_full"];

    /// Lost events: they may have changed what is live.
    #[must_use]
    pub fn events(&self) -> u64 {
        let lost = self
            .causes
            .iter()
            .filter(|(cause, _)| !Self::HARMLESS.contains(&cause.as_str()));
        lost.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Stacks that found no place: those allocations are known by their return address alone.
    #[must_use]
    pub fn stacks(&self) -> u64 {
        self.causes.get("stack_lost").copied().unwrap_or(0)
    }
}

/// What is probed, and how.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Coverage {
    /// Version of gputrace.
    pub version: String,
    /// Release of the kernel.
    pub kernel: String,
    /// How probes are attached.
    pub method: String,
    /// Whether user stacks are taken, or why not.
    pub stacks: String,
    /// Why launches, copies and synchronisations are not counted; `null` where they are.
    #[serde(default)]
    pub activity_not_counted: Option<String>,
    /// Only these processes are traced; none: all.
    pub targets: Vec<Pid>,
    /// Whether the target is a command that gputrace started: its first instruction came after the
    /// probes, and its descendants are traced as well.
    pub command: bool,
    /// How copies are noticed that processes map while tracing.
    pub discovery: String,
    /// Copies of libcuda that are probed.
    pub libraries: Vec<Library>,
    /// Copies of libcuda that are not, with the reason.
    pub not_probed: Vec<NotProbed>,
    /// Processes that had mapped a copy before it was probed, while tracing: what they did until
    /// then was not seen.
    pub late_processes: Vec<LateProcess>,
}

/// A process that had mapped a copy of libcuda before that was probed.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct LateProcess {
    /// PID in the initial PID namespace.
    pub tgid: u32,
    /// Start in clock ticks since boot.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub start_ticks: u64,
    /// Path of the copy.
    pub library: String,
    /// From when on its calls are seen.
    pub probed_at: BootTime,
}

/// A probed copy of libcuda.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct Library {
    /// Path.
    pub path: String,
    /// Device number of its file system.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub device: u64,
    /// Inode number.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub inode: u64,
    /// Since when it is probed; `null`: since before tracing began.
    pub probed_at: Option<BootTime>,
    /// Functions that are probed.
    #[borsh(deserialize_with = "crate::recording::known_functions")]
    pub functions: Vec<ProbedFunction>,
    /// Functions that are not: this copy does not have them, or they cannot be probed.
    pub missing: Vec<MissingFunction>,
}

/// A function that is not probed.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct MissingFunction {
    /// Its symbol.
    pub function: String,
    /// Why.
    pub reason: String,
}

/// Where a function is probed.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct ProbedFunction {
    /// Which.
    pub function: FunctionId,
    /// Bytes from the symbol to the probed instruction.
    pub offset: u64,
    /// Whether the kernel emulates that instruction; else each call costs 15 to 30 times more.
    pub emulated: bool,
    /// The instruction, or why no better one was found.
    pub placement: String,
}

/// A copy of libcuda that is not probed.
#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
pub struct NotProbed {
    /// Path.
    pub path: String,
    /// Why.
    pub reason: String,
    /// PIDs of processes that were seen with it.
    pub processes: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_place_in_its_file() {
        let module = |offset| Module {
            start: 0x4000,
            end: 0x6000,
            offset,
            path: "/x".to_owned(),
        };
        assert_eq!(module(0x1000).in_file(0x4010), Some(0x1010));
        assert_eq!(module(0x1000).in_file(0x3fff), None);
        assert_eq!(module(u64::MAX - 0xf).in_file(0x400f), Some(u64::MAX));
        assert_eq!(module(u64::MAX - 0xf).in_file(0x4010), None);
    }
}
