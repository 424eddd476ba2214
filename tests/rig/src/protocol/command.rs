//! What an actor can be told to do.

use super::memory::{
    Alloc, ExternalImport, IpcOpen, Map, Place, PoolCreate, PoolExport, PoolImport, Reserve, Unmap,
    VmmCreate, VmmImport, VmmRetain,
};
use super::work::{Copy, GraphInstantiate, Launch, ModuleLoad, SynchronizeHow};
use super::{ContextHow, Expect, Site, Via};
use crate::units;
use serde::{Deserialize, Serialize};

/// What a thread of an actor can do.
///
/// CUDA commands act for the thread that gets them: the current context is per thread, as in CUDA.
/// Labels (of contexts and of piles) belong to the process. Memory, handles, address ranges, opened
/// IPC handles, pools, modules and graphs have piles of their own, so that the same label may stand
/// for one of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// `cuInit(0)`.
    Init {
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Creates a context, after `cuInit` if the process has not called it; the context becomes the
    /// thread's current one.
    CtxCreate {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// Name of the new context.
        #[serde(default)]
        label: String,
        /// By which function; absent: `cuCtxCreate_v2`.
        #[serde(default)]
        how: ContextHow,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Destroys a context that [`Command::CtxCreate`] made, by the function that belongs to it. What
    /// it still holds is gone, and out of every pile.
    CtxDestroy {
        /// Name of the context.
        #[serde(default)]
        label: String,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxSetCurrent`.
    SetCurrent {
        /// Name of the context; without it the thread has none afterwards.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxPushCurrent_v2`.
    Push {
        /// Name of the context.
        #[serde(default)]
        label: String,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxPopCurrent_v2`.
    Pop {
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Waits for work that was given to the device.
    Synchronize {
        /// How many calls.
        #[serde(default = "one")]
        count: u64,
        /// By which function.
        #[serde(default)]
        how: SynchronizeHow,
        /// The `_ptsz` form, where there is one.
        #[serde(default)]
        ptsz: bool,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuDevicePrimaryCtxRetain`, after `cuInit` if the process has not called it; the context can
    /// be made current under the label.
    RetainPrimary {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// Name of the context.
        #[serde(default)]
        label: String,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuDevicePrimaryCtxRelease_v2`. What the context still holds after the last release is gone,
    /// and out of every pile.
    ReleasePrimary {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuDevicePrimaryCtxReset_v2`. What the context holds is gone, and out of every pile.
    ResetPrimary {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuMemGetInfo_v2`, or `cudaMemGetInfo`.
    MemoryInfo {
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Allocates.
    Alloc(Alloc),
    /// Frees what a pile holds, the newest first, each by the function that belongs to it.
    Free {
        /// Which pile.
        #[serde(default)]
        label: String,
        /// How many allocations; absent: all that the pile holds. More than it holds is a failure
        /// of the command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed. An allocation whose free is refused stays in the pile.
        #[serde(default)]
        expect: Expect,
    },
    /// Calls the freeing function with addresses that were never allocated.
    FreeBad {
        /// The kind of memory whose freeing function it is.
        #[serde(default)]
        kind: super::AllocKind,
        /// The `_ptsz` form, where there is one.
        #[serde(default)]
        ptsz: bool,
        /// How many calls.
        #[serde(default = "one")]
        count: u64,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed; by default 1, invalid value.
        #[serde(default = "Expect::invalid_value")]
        expect: Expect,
    },
    /// `cuMemCreate`: physical memory without an address.
    VmmCreate(VmmCreate),
    /// `cuMemRelease`, of handles that were created, retained or imported.
    VmmRelease(Undo),
    /// `cuMemRetainAllocationHandle`: a further reference to memory that is mapped.
    VmmRetain(VmmRetain),
    /// `cuMemAddressReserve`: addresses without memory.
    Reserve(Reserve),
    /// `cuMemAddressFree`.
    Unreserve(Undo),
    /// `cuMemMap`, then `cuMemSetAccess`.
    Map(Map),
    /// `cuMemUnmap`.
    Unmap(Unmap),
    /// `cuMemExportToShareableHandle`, for files: the handles stay on their pile.
    VmmExport(Place),
    /// Closes the files of `vmm_export` and `pool_export`.
    CloseExports {
        /// The label under which they were exported.
        #[serde(default)]
        label: String,
    },
    /// `cuMemImportFromShareableHandle`, of the files that another process has exported.
    VmmImport(VmmImport),
    /// `cuIpcGetMemHandle`, of all memory on a pile.
    IpcExport(Place),
    /// `cuIpcOpenMemHandle_v2`, of handles that another process has exported.
    IpcOpen(IpcOpen),
    /// `cuIpcCloseMemHandle`.
    IpcClose(Undo),
    /// `cuMemPoolCreate`.
    PoolCreate(PoolCreate),
    /// `cuMemPoolDestroy`.
    PoolDestroy(Undo),
    /// `cuMemPoolTrimTo`.
    PoolTrim {
        /// Name of the pool.
        #[serde(default)]
        label: String,
        /// Bytes that it may keep.
        #[serde(default, with = "units::bytes")]
        keep: u64,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuMemPoolExportToShareableHandle`, and `cuMemPoolExportPointer` of memory from the pool.
    PoolExport(PoolExport),
    /// `cuMemPoolImportFromShareableHandle` and `cuMemPoolImportPointer`, of what another process
    /// has exported.
    PoolImport(PoolImport),
    /// `cuImportExternalMemory`, of the files of another process's `vmm_export`, and
    /// `cuExternalMemoryGetMappedBuffer` of all of it.
    ExternalImport(ExternalImport),
    /// `cuDestroyExternalMemory`.
    ExternalDestroy(Undo),
    /// `cuDeviceGraphMemTrim`.
    GraphTrim {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Loads modules or libraries.
    ModuleLoad(ModuleLoad),
    /// `cuModuleUnload`, or `cuLibraryUnload` for what was loaded as a library.
    ModuleUnload(Undo),
    /// Makes executable graphs of a graph.
    GraphInstantiate(GraphInstantiate),
    /// `cuGraphExecDestroy`.
    GraphDestroy(Undo),
    /// `cuGraphLaunch`, of the newest executable graph of a pile.
    GraphLaunch {
        /// The pile.
        #[serde(default)]
        label: String,
        /// How many calls.
        #[serde(default = "one")]
        count: u64,
        /// The `_ptsz` form.
        #[serde(default)]
        ptsz: bool,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Starts kernels.
    Launch(Launch),
    /// Copies, fills or moves memory.
    Copy(Copy),
    /// Repeats commands.
    Loop(Loop),
    /// Does nothing for a while.
    Sleep {
        /// For how long.
        #[serde(rename = "for", with = "units::nanoseconds")]
        duration: u64,
    },
    /// Allocates and frees from many threads as fast as they can.
    Hammer(Hammer),
    /// Allocations of random sizes that become rarer, up to an exact sum.
    RandomAllocs(RandomAllocs),
    /// One allocation during which the driver sleeps: for a process that is killed inside the call.
    /// Only the thread's own call is meant to happen meanwhile, since the delay is the process's.
    BlockInAlloc {
        /// Bytes to ask for.
        #[serde(with = "units::bytes")]
        bytes: u64,
        /// How long the call sleeps; a thousandth of a second or more.
        #[serde(rename = "for", with = "units::nanoseconds")]
        duration: u64,
        /// The function that calls the driver.
        #[serde(default)]
        site: Site,
        /// The pile that gets the allocation.
        #[serde(default)]
        label: String,
    },
    /// `gputrace_rig_set` of the fake driver library: changes injected behaviour of this process;
    /// the keys are the fields of [`crate::config::Faults`].
    RigSet {
        /// Which.
        key: String,
        /// The new value.
        value: u64,
    },
    /// Starts threads, which connect by themselves. The answer comes when all have been created;
    /// they are numbered on from the highest number that the process has had.
    Spawn {
        /// How many.
        #[serde(default = "one")]
        count: u64,
    },
    /// fork(2), without an exec. The child has this thread only; it connects under its own name as
    /// thread 0. It inherits open files, labels and piles, but its CUDA calls give 3, as real ones do.
    Fork {
        /// Name of the child.
        child: String,
    },
    /// Waits for a child's end and takes its status, so that it is no zombie any more.
    Wait {
        /// Name of the child.
        child: String,
    },
    /// execve(2) of the actor itself, under the same name. Only thread 0 of a new image is left.
    Exec {
        /// What stands as the program's name on the command line; absent: as before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    },
    /// Sets the command name (its first 15 bytes) and the command line of the process.
    SetTitle {
        /// The whole title.
        title: String,
    },
    /// Ends this thread alone, also the leader: the process lives on while another thread does.
    ExitThread,
    /// exit(2) of the process, with the libraries' tear-down and without freeing anything.
    ExitProcess {
        /// Exit code.
        #[serde(default)]
        code: u8,
    },
}

/// Gives things back, the newest of a pile first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undo {
    /// Which pile.
    #[serde(default)]
    pub label: String,
    /// How many; absent: all that the pile holds. More than it holds is a failure of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed. What is refused stays on the pile.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::Loop`]: a body that is repeated on a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// How many times.
    pub iterations: u64,
    /// Time between the beginnings of two iterations, counted from the loop's own beginning so that
    /// nothing drifts: iteration n (from 1) begins at (n - 1) times this. An iteration that comes
    /// late begins at once. 0: as fast as possible.
    #[serde(default, with = "units::nanoseconds")]
    pub every: u64,
    /// What an iteration does, in this order. Commands that create, replace or end threads and
    /// processes are not allowed here.
    pub body: Vec<LoopStep>,
}

/// One command of a loop's body: the command's own fields and `each`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopStep {
    /// Only in every so many iterations: 3 is the third, the sixth, and so on.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub each: u64,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// [`Command::Hammer`]: threads that allocate and free without pause.
///
/// The threads are the command's own: they take over the current context of the thread that has the
/// command, do not connect, and have ended when it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hammer {
    /// How many threads.
    #[serde(default = "one")]
    pub threads: u64,
    /// Stop after this time. One of this and `pairs` must be given.
    #[serde(
        rename = "for",
        default,
        with = "units::nanoseconds",
        skip_serializing_if = "is_zero"
    )]
    pub duration: u64,
    /// Stop after this many allocation calls by all threads together, each followed by a free
    /// unless it failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pairs: u64,
    /// Smallest size; sizes are multiples of 256 bytes.
    #[serde(with = "units::bytes")]
    pub min: u64,
    /// Largest size, below 8 GiB; absent: as the smallest.
    #[serde(default, with = "units::bytes", skip_serializing_if = "is_zero")]
    pub max: u64,
    /// How many allocations each thread keeps while it goes on.
    #[serde(default = "one")]
    pub hold: u64,
    /// An allocation is freed by a thread other than the one that made it.
    #[serde(default)]
    pub cross_thread: bool,
    /// What is held at the end goes on the pile instead of being freed.
    #[serde(default)]
    pub leave: bool,
    /// The pile for `leave`.
    #[serde(default)]
    pub label: String,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// How the functions are reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed, of the allocations and the frees.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::RandomAllocs`]: what a cache does that warms up.
///
/// Sizes are drawn evenly between `min` and `max`, in steps of 512 bytes; the last one makes the sum
/// exactly `total`. Each pause is longer than the one before by `ratio`; all take `over` together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAllocs {
    /// The same seed gives the same sizes.
    #[serde(default)]
    pub seed: u64,
    /// Smallest size (the last allocation may be smaller).
    #[serde(with = "units::bytes")]
    pub min: u64,
    /// Largest size.
    #[serde(with = "units::bytes")]
    pub max: u64,
    /// Sum of all sizes.
    #[serde(with = "units::bytes")]
    pub total: u64,
    /// Time from the first allocation to the last.
    #[serde(with = "units::nanoseconds")]
    pub over: u64,
    /// Each pause divided by the one before; 1 spaces them evenly.
    #[serde(default = "RandomAllocs::default_ratio")]
    pub ratio: f64,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile that gets the allocations.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

// The ratio is never NaN in a command that means anything, so equality is total enough.
impl Eq for RandomAllocs {}

impl RandomAllocs {
    fn default_ratio() -> f64 {
        1.05
    }
}

pub(super) fn one() -> u64 {
    1
}

fn is_one(value: &u64) -> bool {
    *value == 1
}

pub(super) fn is_zero(value: &u64) -> bool {
    *value == 0
}
