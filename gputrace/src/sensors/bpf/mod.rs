//! The eBPF programs: loading, attaching, reading. The only place that knows aya.

mod kernel;
mod multi;
mod offsets;
mod probes;
mod reader;
mod translate;
mod trial;

use std::{
    io,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap as BpfHashMap, MapError},
    programs::{ProgramError, RawTracePoint},
};
use gputrace_ebpf::FunctionSpec;

pub use kernel::Release;
pub use multi::MultiError;
pub use probes::{AttachMethod, Probe, Probes};
pub use reader::{Reader, RecordedLoss};
pub use translate::Translator;
pub use trial::{Trial, needed_members};

use crate::{
    cuda::FunctionId,
    sensors::btf::{Btf, BtfError},
};

/// The eBPF programs, built from `gputrace-ebpf` or checked in.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/gputrace.bpf.o"));

/// What went wrong with the programs.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel is too old, or does not say what it is.
    #[error("this kernel ({found}) has no BPF ring buffer; gputrace needs Linux 5.8 or later")]
    OldKernel {
        /// What it says.
        found: String,
    },
    /// The kernel's types could not be read.
    #[error("{0}; gputrace needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF)")]
    Btf(#[from] BtfError),
    /// The kernel refused, for want of privileges.
    #[error(
        "the kernel does not allow {what}: run gputrace as root (sudo gputrace ...), or give it \
             CAP_BPF and CAP_PERFMON; 'gputrace doctor' says what is missing"
    )]
    NotPermitted {
        /// What was tried.
        what: &'static str,
    },
    /// The object could not be loaded.
    #[error("the eBPF programs could not be loaded: {0}")]
    Load(#[source] Box<aya::EbpfError>),
    /// A program was refused.
    #[error("the eBPF program '{program}' was refused: {source}")]
    Program {
        /// Which.
        program: String,
        /// Why.
        source: Box<ProgramError>,
    },
    /// A map could not be used.
    #[error("the eBPF map '{map}' could not be used: {source}")]
    Map {
        /// Which.
        map: &'static str,
        /// Why.
        source: Box<MapError>,
    },
    /// The object lacks a program or a map.
    #[error("the eBPF object has no '{0}'")]
    Missing(String),
    /// A library could not be probed.
    #[error("{path} could not be probed: {source}")]
    Attach {
        /// Which library.
        path: PathBuf,
        /// Why.
        source: Box<ProgramError>,
    },
    /// A library could not be probed through `uprobe.multi`.
    #[error("{path} could not be probed: {source}")]
    AttachMulti {
        /// Which library.
        path: PathBuf,
        /// Why.
        source: Box<MultiError>,
    },
    /// The programs for `uprobe.multi` were refused.
    #[error(transparent)]
    Multi(Box<MultiError>),
    /// The ring buffer could not be waited for.
    #[error("the ring buffer could not be read: {0}")]
    Wait(#[source] io::Error),
}

/// What the programs are to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Trace only these processes; none: all.
    pub targets: Vec<u32>,
    /// Trace the descendants of the targets as well, from their fork on.
    pub follow: bool,
    /// Take user stacks of allocations.
    pub stacks: bool,
    /// Count launches, copies and synchronisations.
    pub activity: bool,
    /// Size of the ring buffer in bytes: a power of two, and a multiple of the page size.
    pub ring_bytes: u32,
    /// How to attach; `None`: the best that the kernel has.
    pub method: Option<AttachMethod>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            follow: false,
            stacks: true,
            activity: true,
            ring_bytes: 16 << 20,
            method: None,
        }
    }
}

/// A row of the function table, as the kernel side reads it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Spec(FunctionSpec);

// SAFETY: repr(transparent) over a repr(C) struct of bytes without padding.
unsafe impl Pod for Spec {}

/// The programs, loaded; nothing is probed yet.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
    settings: Settings,
    release: Release,
}

impl Programs {
    /// Loads the programs.
    ///
    /// # Errors
    /// Where the kernel lacks what they need or refuses them.
    pub fn load(settings: Settings) -> Result<Self, BpfError> {
        let mut programs = Self::create(settings)?;
        for (program, tracepoint) in TRACEPOINTS {
            programs.attach_tracepoint(program, tracepoint)?;
        }
        Ok(programs)
    }

    /// Creates the maps and fills them; no program is loaded yet.
    fn create(settings: Settings) -> Result<Self, BpfError> {
        let release = Release::running()
            .filter(|release| release.has_ring_buffer())
            .ok_or_else(|| BpfError::OldKernel {
                found: Release::running().map_or_else(|| "unknown".to_owned(), |r| r.to_string()),
            })?;
        // Kernels before 5.11 charge maps to this limit. Where it cannot be raised, loading says so.
        let _ = nix::sys::resource::setrlimit(
            nix::sys::resource::Resource::RLIMIT_MEMLOCK,
            nix::libc::RLIM_INFINITY,
            nix::libc::RLIM_INFINITY,
        );
        let btf = Btf::kernel()?;
        let constants = offsets::read(&btf, Path::new("/proc/cgroups"))?;
        let ring = u64::from(settings.ring_bytes);
        let only_targets = u32::from(!settings.targets.is_empty());
        let follow = u32::from(settings.follow);
        let want_stacks = u32::from(settings.stacks);
        let (wake_at, congested_at) = (ring / 64, ring / 4 * 3);
        // The last quarter of the ring is shared out: to 64 processes at once.
        let share = ring / 4 / (size_of::<gputrace_ebpf::CallRecord>() as u64 + 8) / 64;
        let mut loader = EbpfLoader::new();
        for (name, value) in &constants {
            loader.override_global(name, value, true);
        }
        loader
            .override_global("ONLY_TARGETS", &only_targets, true)
            .override_global("FOLLOW_FORKS", &follow, true)
            .override_global("WANT_STACKS", &want_stacks, true)
            .override_global("WAKE_AT", &wake_at, true)
            .override_global("CONGESTED_AT", &congested_at, true)
            .override_global("SHARE", &share, true)
            .map_max_entries("EVENTS", settings.ring_bytes);
        if !settings.stacks {
            loader.map_max_entries("STACKS", 1);
        }
        let ebpf = loader.load(OBJECT).map_err(|error| {
            if mentions_permission(&error) {
                BpfError::NotPermitted {
                    what: "eBPF maps to be created",
                }
            } else {
                BpfError::Load(Box::new(error))
            }
        })?;
        let mut programs = Self {
            ebpf,
            settings,
            release,
        };
        programs.fill_tables()?;
        Ok(programs)
    }

    fn fill_tables(&mut self) -> Result<(), BpfError> {
        let map_error = |map| {
            move |source| BpfError::Map {
                map,
                source: Box::new(source),
            }
        };
        let missing = |name: &str| BpfError::Missing(name.to_owned());
        let map = self
            .ebpf
            .map_mut("FUNCTIONS")
            .ok_or_else(|| missing("FUNCTIONS"))?;
        let mut functions: Array<_, Spec> = Array::try_from(map).map_err(map_error("FUNCTIONS"))?;
        for id in FunctionId::all() {
            functions
                .set(u32::from(id.row()), Spec(id.function().spec), 0)
                .map_err(map_error("FUNCTIONS"))?;
        }
        let map = self
            .ebpf
            .map_mut("TARGETS")
            .ok_or_else(|| missing("TARGETS"))?;
        let mut targets: BpfHashMap<_, u32, u8> =
            BpfHashMap::try_from(map).map_err(map_error("TARGETS"))?;
        for pid in &self.settings.targets {
            targets.insert(pid, 1, 0).map_err(map_error("TARGETS"))?;
        }
        Ok(())
    }

    fn attach_tracepoint(&mut self, name: &str, tracepoint: &str) -> Result<(), BpfError> {
        let program = self.load_tracepoint(name)?;
        program.attach(tracepoint).map(drop).map_err(refused(name))
    }

    fn load_tracepoint(&mut self, name: &str) -> Result<&mut RawTracePoint, BpfError> {
        let program: &mut RawTracePoint = self
            .ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| BpfError::Missing(name.to_owned()))?;
        program.load().map_err(refused(name))?;
        Ok(program)
    }

    /// Whether the stacks that were asked for are taken.
    #[must_use]
    pub const fn takes_stacks(&self) -> bool {
        self.settings.stacks
    }
}

/// The programs at tracepoints of the scheduler: (program, tracepoint).
const TRACEPOINTS: [(&str, &str); 3] = [
    ("process_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("process_exit", "sched_process_exit"),
];

fn refused(program: &str) -> impl Fn(ProgramError) -> BpfError {
    move |source| {
        if mentions_permission(&source) {
            BpfError::NotPermitted {
                what: "eBPF programs to be loaded",
            }
        } else {
            BpfError::Program {
                program: program.to_owned(),
                source: Box::new(source),
            }
        }
    }
}

/// Whether an error was, at its root, `EPERM` or `EACCES`.
fn mentions_permission(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(e) = error {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            return matches!(io.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        }
        error = e.source();
    }
    false
}
