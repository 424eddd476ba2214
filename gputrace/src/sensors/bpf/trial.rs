//! Whether the kernel would take the programs: loaded and thrown away, never attached.

use std::path::Path;

use aya::programs::UProbe;

use super::{
    AttachMethod, BpfError, OBJECT, Programs, Settings, TRACEPOINTS, multi::MultiPrograms, offsets,
    refused,
};
use crate::sensors::btf::{Btf, BtfError};

/// What the kernel said to the programs.
#[derive(Debug)]
pub struct Trial {
    /// The best way to attach on this kernel, by its version.
    pub method: AttachMethod,
    /// Whether the kernel took the programs that this way needs.
    pub probes: Result<(), BpfError>,
}

impl Trial {
    /// Has the kernel create the maps and check the programs. Nothing is attached, and nothing is
    /// left behind.
    ///
    /// # Errors
    /// Where it does not even take the maps and the programs for the scheduler's tracepoints.
    pub fn run() -> Result<Self, BpfError> {
        let mut programs = Programs::create(Settings {
            // Its size makes no difference to the answer.
            ring_bytes: 1 << 16,
            ..Settings::default()
        })?;
        for (program, _) in TRACEPOINTS {
            programs.load_tracepoint(program)?;
        }
        let method = programs.method();
        Ok(Self {
            method,
            probes: programs.try_probes(method),
        })
    }
}

impl Programs {
    fn try_probes(&mut self, method: AttachMethod) -> Result<(), BpfError> {
        let suffix = match method {
            AttachMethod::UprobeMulti => {
                return MultiPrograms::load(OBJECT, &self.ebpf)
                    .map(drop)
                    .map_err(|source| BpfError::Multi(Box::new(source)));
            }
            AttachMethod::PerfEvent => "",
            // One of the copies speaks for all.
            AttachMethod::PerfEventCopies => "_0",
        };
        for name in ["call_enter", "call_return"] {
            let name = format!("{name}{suffix}");
            let program: &mut UProbe = self
                .ebpf
                .program_mut(&name)
                .and_then(|program| program.try_into().ok())
                .ok_or_else(|| BpfError::Missing(name.clone()))?;
            program.load().map_err(refused(&name))?;
        }
        Ok(())
    }
}

/// How many facts about the kernel's structures the programs need, if all of them are in `btf`.
///
/// # Errors
/// The first one that is not.
pub fn needed_members(btf: &Btf, proc_cgroups: &Path) -> Result<usize, BtfError> {
    offsets::read(btf, proc_cgroups).map(|constants| constants.len())
}
