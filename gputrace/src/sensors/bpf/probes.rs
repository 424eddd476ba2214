//! Probes on the functions of a library.

use std::{num::NonZeroU32, path::Path};

use aya::programs::{
    UProbe,
    uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope},
};

use super::{
    BpfError, OBJECT, Programs, Release, mentions_permission,
    multi::{MultiLink, MultiPrograms, Point},
    refused,
};
use crate::cuda::FunctionId;

/// How probes are attached.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMethod {
    /// One link for all functions of a library (kernel 6.6).
    UprobeMulti,
    /// Two perf events for each function, told apart by their cookie (kernel 5.15).
    PerfEvent,
    /// Two perf events for each function, each with its own copy of the programs.
    PerfEventCopies,
}

impl AttachMethod {
    /// The best one that a kernel has.
    #[must_use]
    pub const fn best(release: Release) -> Self {
        if release.has_uprobe_multi() {
            Self::UprobeMulti
        } else if release.has_attach_cookies() {
            Self::PerfEvent
        } else {
            Self::PerfEventCopies
        }
    }

    /// For people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::UprobeMulti => "uprobe.multi",
            Self::PerfEvent => "perf events",
            Self::PerfEventCopies => "perf events, one program a function",
        }
    }
}

/// A place to probe: both entry and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Which function.
    pub function: FunctionId,
    /// Where in the library's file.
    pub offset: u64,
}

/// Probes in place, from [`Programs::prepare`]. Dropping it takes them out: at once for `uprobe.multi`, else 0.1 s for each
/// perf event.
#[derive(Debug, Default)]
pub struct Probes {
    multi: Option<MultiPrograms>,
    links: Vec<MultiLink>,
    perf_events: usize,
}

impl Probes {
    /// Perf events that the kernel takes out one after the other, each in about 0.1 s.
    #[must_use]
    pub const fn perf_events(&self) -> usize {
        self.perf_events
    }
}

impl Programs {
    /// How probes are attached.
    #[must_use]
    pub fn method(&self) -> AttachMethod {
        self.settings
            .method
            .unwrap_or(AttachMethod::best(self.release))
    }

    /// Loads the programs that probes run, before [`Programs::start`]: a library may be probed at
    /// any time later.
    ///
    /// # Errors
    /// Where the kernel refuses them.
    pub fn prepare(&mut self) -> Result<Probes, BpfError> {
        let mut probes = Probes::default();
        let rows = match self.method() {
            AttachMethod::UprobeMulti => {
                let programs = MultiPrograms::load(OBJECT, &self.ebpf)
                    .map_err(|source| BpfError::Multi(Box::new(source)))?;
                probes.multi = Some(programs);
                return Ok(probes);
            }
            AttachMethod::PerfEvent => vec![String::new()],
            AttachMethod::PerfEventCopies => FunctionId::all()
                .filter(|function| !function.is_counted_only())
                .map(|function| format!("_{}", function.row()))
                .collect(),
        };
        for row in rows {
            for name in ["call_enter", "call_return"] {
                self.uprobe(&format!("{name}{row}"))?;
            }
        }
        Ok(probes)
    }

    /// A program for perf events, loaded.
    fn uprobe(&mut self, name: &str) -> Result<&mut UProbe, BpfError> {
        let program: &mut UProbe = self
            .ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| BpfError::Missing(name.to_owned()))?;
        if program.fd().is_err() {
            program.load().map_err(refused(name))?;
        }
        Ok(program)
    }

    /// Probes a library's functions. A failure is final: no other method is tried in its place.
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn attach(
        &mut self,
        probes: &mut Probes,
        path: &Path,
        at: &[Probe],
    ) -> Result<(), BpfError> {
        let (counted, followed): (Vec<Probe>, Vec<Probe>) = at
            .iter()
            .partition(|probe| probe.function.is_counted_only());
        let counted = if self.counts_activity().is_ok() {
            counted
        } else {
            Vec::new()
        };
        match self.method() {
            AttachMethod::UprobeMulti => self.attach_multi(probes, path, &followed, &counted),
            AttachMethod::PerfEvent => self.attach_perf(probes, path, &followed, true),
            AttachMethod::PerfEventCopies => self.attach_perf(probes, path, &followed, false),
        }
    }

    /// Whether launches, copies and synchronisations are counted, or why not.
    ///
    /// # Errors
    /// Why not.
    pub fn counts_activity(&self) -> Result<(), &'static str> {
        if !self.settings.activity {
            return Err("not counted: --no-activity");
        }
        match self.method() {
            AttachMethod::UprobeMulti => Ok(()),
            // Each perf event takes the kernel 0.1 s to take out.
            AttachMethod::PerfEvent | AttachMethod::PerfEventCopies => {
                Err("not counted: that takes uprobe.multi (Linux 6.6)")
            }
        }
    }

    /// A single target: only its own memory is changed, no other process pays for the probes.
    fn only_target(&self) -> Option<u32> {
        match *self.settings.targets.as_slice() {
            [pid] if !self.settings.follow => Some(pid),
            _ => None,
        }
    }

    fn attach_multi(
        &self,
        probes: &mut Probes,
        path: &Path,
        followed: &[Probe],
        counted: &[Probe],
    ) -> Result<(), BpfError> {
        let failed = |source| BpfError::AttachMulti {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let programs = probes
            .multi
            .as_ref()
            .ok_or_else(|| BpfError::Missing("call_enter for uprobe.multi".to_owned()))?;
        let points = |at: &[Probe]| -> Vec<Point> {
            at.iter()
                .map(|probe| Point {
                    offset: probe.offset,
                    cookie: u64::from(probe.function.row()),
                })
                .collect()
        };
        let process = self.only_target().filter(|_| self.release.at_least(6, 11));
        let links = programs
            .attach(path, &points(followed), &points(counted), process)
            .map_err(failed)?;
        probes.links.extend(links);
        Ok(())
    }

    fn attach_perf(
        &mut self,
        probes: &mut Probes,
        path: &Path,
        at: &[Probe],
        cookies: bool,
    ) -> Result<(), BpfError> {
        let scope = self
            .only_target()
            .and_then(NonZeroU32::new)
            .map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
        // Entry first: a return without an entry is no call, an entry without a return is dropped.
        for name in ["call_enter", "call_return"] {
            for probe in at {
                let row = probe.function.row();
                let (name, cookie) = if cookies {
                    (name.to_owned(), Some(u64::from(row)))
                } else {
                    (format!("{name}_{row}"), None)
                };
                let location = UProbeAttachLocation::AbsoluteOffset(probe.offset);
                self.uprobe(&name)?
                    .attach(UProbeAttachPoint { location, cookie }, path, scope)
                    .map_err(|source| {
                        if mentions_permission(&source) {
                            BpfError::NotPermitted {
                                what: "perf-event probes to be attached (they need CAP_SYS_ADMIN as well)",
                            }
                        } else {
                            BpfError::Attach {
                                path: path.to_owned(),
                                source: Box::new(source),
                            }
                        }
                    })?;
                probes.perf_events += 1;
            }
        }
        Ok(())
    }
}
