//! The report: one type for every way to show it. Its serde form is the documented JSON schema
//! (`docs/report.schema.json`).
//!
//! Bytes and counts are numbers; nanoseconds, ticks, inode numbers and addresses are strings, since
//! a reader with 53-bit numbers would corrupt them; moments are RFC 3339.

pub use crate::event::EndedBy;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    analysis::{Kind, Thresholds, Verdict},
    cuda::FunctionId,
    doctor::Diagnosis,
    event::{Coverage, Event},
    evidence::Evidence,
    ledger::{Account, Amount, Contexts, VmmStates},
    resource::Resource,
    text::{Decimal, Hexadecimal, as_text},
};

/// Version of the JSON form. It changes when a reader of the old one could be misled.
pub const SCHEMA: &str = "gputrace/1";

/// One line of JSON output.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "A line of gputrace's JSON output")]
pub struct Line {
    /// Version of this format. It changes when a reader of the old one could be misled; new members
    /// may come without.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// The object.
    #[serde(flatten)]
    pub body: Body,
}

impl Line {
    /// Adds the schema's version.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            body,
        }
    }
}

/// What a line says.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Body {
    /// Every probe is in place.
    Start(Start),
    /// Something happened.
    Event(Event),
    /// Events were left out of the output, since it was not read fast enough. The reports do not
    /// suffer from that.
    EventsLeftOut {
        /// How many, since the last such line.
        count: u64,
    },
    /// How things stand.
    Snapshot(Box<Report>),
    /// How things stood at the end: the last line.
    Report(Box<Report>),
    /// Whether this machine can be traced: the answer of `gputrace doctor --json`.
    Doctor(Diagnosis),
}

/// Tracing has begun.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Start {
    /// When.
    pub time: String,
    /// gputrace's own process.
    pub pid: u32,
    /// What is probed.
    pub coverage: Coverage,
}

/// How things stand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Moment of the report.
    pub time: String,
    /// Everything that happened before this moment (nanoseconds of `CLOCK_BOOTTIME`) is in the
    /// report.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub boot_ns: u64,
    /// When tracing began.
    pub started: String,
    /// Time traced.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub duration_ns: u64,
    /// Why tracing ended; `null` in a snapshot.
    pub ended_by: Option<EndedBy>,
    /// What is probed.
    pub coverage: Coverage,
    /// What is missing from the picture.
    pub losses: LossSummary,
    /// GPUs, with the closing sum of each.
    pub devices: Evidence<Vec<DeviceReport>>,
    /// Processes that were asked for, the most worrying first.
    pub processes: Vec<ProcessReport>,
    /// Memory that its owner has freed, or whose owner has ended, and that others keep open. It is
    /// part of no process's figures.
    pub kept_by_imports: Vec<KeptByImports>,
    /// What the filters left out.
    pub filtered_out: FilteredOut,
    /// What was given up to keep gputrace's own memory bounded.
    pub given_up: GivenUpReport,
    /// Durations that decided the verdicts.
    pub thresholds: Thresholds,
    /// What of the recording could not be read; `null` where nothing is missing, and live.
    pub recording: Option<RecordingReport>,
}

/// What of a recording could not be read. Missing events are losses of no process in particular.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordingReport {
    /// Bytes of the file that are no whole block.
    pub unreadable_bytes: u64,
    /// Events that were in damaged or missing bytes, between others that could be read.
    pub events_damaged: u64,
    /// Events that were never written: the disk was full or too slow.
    pub events_not_recorded: u64,
    /// Events that another version of gputrace wrote and this one does not understand.
    pub events_not_understood: u64,
    /// Calls among them of functions that this version does not know.
    pub unknown_functions: BTreeMap<String, u64>,
    /// Up to when there are events, where the recording has no end: it was cut off, or gputrace was
    /// killed. Nothing is said about what came later.
    pub breaks_off_at: Option<String>,
    /// Why the rest of the file could not be read.
    pub error: Option<String>,
}

impl Report {
    /// Whether there is anything that `--exit-code` should tell of.
    #[must_use]
    pub fn has_findings(&self) -> bool {
        self.processes.iter().any(|p| p.verdict.kind == Kind::Leak)
    }
}

/// Losses of all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LossSummary {
    /// Lost events.
    pub events: u64,
    /// Stacks that found no place: no event is missing, but those allocations are known by their
    /// return address alone.
    pub stacks: u64,
    /// First loss.
    pub first: Option<String>,
    /// Latest loss.
    pub last: Option<String>,
    /// Lost events, by cause.
    pub causes: BTreeMap<String, u64>,
    /// Processes that lost any.
    pub processes: u64,
    /// Lost events of which it is not known whose they were.
    pub unattributed: u64,
}

/// Losses of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessLosses {
    /// Lost events.
    pub events: u64,
    /// First loss.
    pub first: Option<String>,
    /// Latest loss.
    pub last: Option<String>,
    /// Lost events, by cause.
    pub causes: BTreeMap<String, u64>,
    /// Successful allocations among them.
    pub allocations: u64,
    /// Bytes that these asked for.
    pub allocation_bytes: u64,
    /// Successful frees among them.
    pub frees: u64,
}

/// A GPU. used = processes + unexplained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceReport {
    /// Index, as NVML counts.
    pub index: u32,
    /// UUID.
    pub uuid: Evidence<String>,
    /// Model.
    pub name: Evidence<String>,
    /// Bytes in all.
    pub total: Evidence<u64>,
    /// Bytes in use.
    pub used: Evidence<u64>,
    /// Bytes that the driver keeps for itself.
    pub reserved: Evidence<u64>,
    /// Bytes free.
    pub free: Evidence<u64>,
    /// Bytes that NVML attributes to processes.
    pub processes: Evidence<u64>,
    /// Used, and of no process: the driver's own, managed memory, memory that outlived its process.
    pub unexplained: Evidence<u64>,
    /// Bytes by which the processes' sum exceeds what is used: the two were read a moment apart.
    pub exceeds: u64,
    /// Processes that NVML lists here and that have called no probed function since tracing began:
    /// they hold memory from before, or reach the GPU in another way.
    pub without_calls: Vec<WithoutCalls>,
}

/// A process that is known from NVML alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WithoutCalls {
    /// Its PID.
    pub tgid: u32,
    /// Bytes that it holds on the device.
    pub used: Evidence<u64>,
}

/// What the filters left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilteredOut {
    /// Processes.
    pub processes: u64,
    /// Call sites of the processes that are shown.
    pub sites: u64,
}

/// What was given up to keep gputrace's own memory bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GivenUpReport {
    /// Allocations that are counted but not followed one by one.
    pub allocations: u64,
    /// Ended processes that are not shown any more.
    pub ended_processes: u64,
    /// Calls of processes for which there was no room.
    pub calls: u64,
    /// Stacks for which there was no room: what was called from there has no place.
    pub stacks: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessReport {
    /// PID in the initial PID namespace.
    pub tgid: u32,
    /// Start in clock ticks since boot.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub start_ticks: u64,
    /// PID in its own PID namespace.
    pub namespace_pid: Evidence<u32>,
    /// Its parent when it was first seen.
    pub parent: Option<u32>,
    /// User id.
    pub uid: Option<u32>,
    /// User name.
    pub user: Option<String>,
    /// The kernel's 15-character name.
    pub comm: String,
    /// Command line; not available where it could not be read.
    pub command: Evidence<String>,
    /// Name of its innermost cgroup.
    pub cgroup: Option<String>,
    /// Inode number of its cgroup in the v2 hierarchy.
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub cgroup_id: u64,
    /// Whether it runs.
    pub state: ProcessState,
    /// Images that it has executed, the one that it was seen with included.
    pub images: u32,
    /// First and latest call of a probed function.
    pub first_call: Option<String>,
    /// See `first_call`.
    pub latest_call: Option<String>,
    /// Its memory and objects as the CUDA API was asked for them.
    pub memory: MemoryReport,
    /// Its contexts.
    pub contexts: Contexts,
    /// Its failed calls, by function and result, the most frequent first.
    pub failures: Vec<FailureReport>,
    /// How often it has used the GPU since tracing began.
    pub activity: Evidence<ActivityReport>,
    /// Its memory on all GPUs, as NVML says.
    pub device_memory: Evidence<u64>,
    /// The closing sum.
    pub closing: Closing,
    /// The verdict on it.
    pub verdict: Verdict,
    /// What was lost of it.
    pub losses: Option<ProcessLosses>,
    /// Where it allocates, the most worrying first.
    pub sites: Vec<SiteReport>,
}

/// Memory and objects of a process at the API layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReport {
    /// The sums over GPU memory: the kinds device, managed, array and vmm.
    #[serde(flatten)]
    pub gpu: Account,
    /// Calls in which a thread ended.
    pub never_returned: u64,
    /// Each kind that occurred.
    pub kinds: BTreeMap<Resource, Account>,
    /// Live aliases whose bytes are not known: they count as 0 in their kind.
    pub aliases_of_unknown_size: u64,
    /// What leads to the memory of kind vmm.
    pub vmm: VmmStates,
    /// Live GPU memory by device.
    pub by_device: Vec<OnDevice>,
}

/// Live GPU memory of a process on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnDevice {
    /// Ordinal, as the process counts devices (`CUDA_VISIBLE_DEVICES` may have changed it).
    pub device: Evidence<u32>,
    /// Live there.
    pub live: Amount,
}

/// Failed calls of one function with one result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureReport {
    /// Function.
    pub function: FunctionId,
    /// Its result, a `CUresult`.
    pub result: i32,
    /// How many.
    pub count: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// The first of them.
    pub first: String,
    /// The latest of them.
    pub latest: String,
}

/// How often a process has used the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActivityReport {
    /// Launches of kernels and graphs.
    pub launches: ActivityCountReport,
    /// Copies, fills and prefetches of memory.
    pub copies: ActivityCountReport,
    /// Waits for the GPU.
    pub synchronizations: ActivityCountReport,
}

/// Calls that are only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActivityCountReport {
    /// Successful calls.
    pub count: u64,
    /// Failed calls.
    pub failed: u64,
    /// When the latest of them returned.
    pub latest: Option<String>,
}

/// Memory of one process that it does not hold any more and that others have open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptByImports {
    /// PID of the process that allocated it.
    pub owner: u32,
    /// Whether that process, or its image, has ended.
    pub owner_ended: bool,
    /// How many allocations, and their bytes where these are known.
    pub allocations: Amount,
    /// When the latest of them was freed, or lost its owner.
    pub freed_at: String,
    /// Who has them open.
    pub holders: Vec<Holder>,
}

/// A process that keeps memory of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holder {
    /// Its PID.
    pub tgid: u32,
    /// Allocations that it has open.
    pub handles: u64,
    /// Their bytes, where these are known.
    pub bytes: u64,
}

/// Whether a process runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It does.
    Running {},
    /// It has ended.
    Exited {
        /// When.
        at: String,
        /// Exit code, where it exited by itself and the code is known.
        code: Option<u32>,
        /// Signal that ended it, if one did.
        signal: Option<u32>,
        /// The kernel's event was lost; the end was noticed later.
        noticed_late: bool,
    },
}

/// device memory = API live + other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Closing {
    /// Live at the CUDA API, without managed memory, which NVML does not count for the process.
    pub api_live: u64,
    /// The rest of what NVML attributes to the process: contexts, modules, functions that are not
    /// probed, and what it allocated before tracing.
    pub other: Evidence<u64>,
    /// What it allocated before tracing: 0 for a process that began under tracing, else part of
    /// `other` and not known apart.
    pub before_tracing: Evidence<u64>,
    /// Bytes by which API live exceeds the device's figure.
    pub exceeds: u64,
}

/// A place in the program that allocates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteReport {
    /// The place in one line: symbol and module with offset.
    pub site: String,
    /// What it asks for.
    pub kind: Resource,
    /// How it was reached, innermost first.
    pub frames: Vec<Frame>,
    /// Not yet freed.
    pub live: Amount,
    /// Not yet freed when the process ended.
    pub live_at_exit: Option<Amount>,
    /// Every successful allocation.
    pub allocated: Amount,
    /// Every free of them.
    pub freed: Amount,
    /// Allocations that the driver refused.
    pub failed: Amount,
    /// First successful allocation.
    pub since: String,
    /// Latest successful allocation.
    pub latest: String,
    /// Age of the oldest live allocation.
    pub oldest_age_ns: Option<Nanoseconds>,
    /// How it grows, if it does.
    pub growth: Option<GrowthReport>,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// A number of nanoseconds, as text.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Nanoseconds(
    #[serde(with = "as_text")]
    #[schemars(with = "Decimal")]
    pub u64,
);

/// How memory grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrowthReport {
    /// Begin of the latest time of growth.
    pub since: String,
    /// Retained bytes gained since.
    pub bytes: u64,
    /// Gain a second.
    pub bytes_per_second: u64,
    /// When the GPU will be full at this rate.
    pub time_to_full_ns: Evidence<Nanoseconds>,
}

/// A stack frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Frame {
    /// Return address in the process.
    #[schemars(with = "Hexadecimal")]
    pub address: String,
    /// File that it lies in.
    pub module: Option<String>,
    /// Where in that file.
    #[schemars(with = "Option<Hexadecimal>")]
    pub offset: Option<String>,
    /// Function, where a symbol is there.
    pub symbol: Option<String>,
}
