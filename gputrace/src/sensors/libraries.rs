//! From the copies of libcuda to the places to probe in them.

use std::path::PathBuf;

use super::{
    bpf::Probe,
    cuda::{
        discovery::{Discovery, Library as Found, Search, Unreadable, discover, discover_in},
        elf,
        placement::{PlacementKind, place},
    },
};
use crate::{
    cuda::FunctionId,
    event::{Library, MissingFunction, NotProbed, ProbedFunction},
};

/// A library that can be probed.
#[derive(Debug)]
pub struct Target {
    /// The library, kept open.
    pub found: Found,
    /// Where to probe it.
    pub probes: Vec<Probe>,
    /// The same, for the report.
    pub library: Library,
}

impl Target {
    /// Does without the functions that are only counted.
    pub fn leave_out_activity(&mut self, reason: &str) {
        self.probes
            .retain(|probe| !probe.function.is_counted_only());
        let functions = &mut self.library.functions;
        for probed in functions.extract_if(.., |it| it.function.is_counted_only()) {
            self.library.missing.push(MissingFunction {
                function: probed.function.symbol().to_owned(),
                reason: reason.to_owned(),
            });
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Targets {
    /// Libraries to be probed.
    pub targets: Vec<Target>,
    /// Libraries that cannot be.
    pub refused: Vec<NotProbed>,
    /// What could not be looked at, and may hide a library.
    pub unreadable: Vec<NotProbed>,
}

/// Looks for the copies of libcuda: the ones that the user named, or else all, those in
/// `directories` first.
#[must_use]
pub fn find(explicit: &[PathBuf], directories: Vec<PathBuf>) -> Targets {
    let search = Search {
        explicit: explicit.to_vec(),
        directories,
        standard_places: explicit.is_empty(),
        ..Search::default()
    };
    let Discovery {
        libraries,
        unreadable,
        ..
    } = if explicit.is_empty() {
        discover(&search)
    } else {
        discover_in(&search, Vec::new())
    };
    let mut found = Targets {
        unreadable: unreadable.into_iter().map(not_looked_at).collect(),
        ..Targets::default()
    };
    for library in libraries {
        let (path, processes) = (library.display.clone(), library.mapped_by.clone());
        match target(library) {
            Ok(target) => found.targets.push(target),
            Err(reason) => found.refused.push(NotProbed {
                path,
                reason,
                processes,
            }),
        }
    }
    found
}

/// Looks for the places to probe in one copy.
///
/// # Errors
/// Why there are none.
pub fn target(found: Found) -> Result<Target, String> {
    let wanted: Vec<&str> = FunctionId::all().map(FunctionId::symbol).collect();
    let functions =
        elf::functions(found.file(), &found.path, &wanted).map_err(|error| error.reason())?;
    let mut missing: Vec<MissingFunction> = functions
        .missing
        .into_iter()
        .map(|it| MissingFunction {
            function: it.name,
            reason: it.reason.to_owned(),
        })
        .collect();
    let (mut probes, mut probed) = (Vec::new(), Vec::new());
    for it in functions.found {
        let Some(function) = FunctionId::by_symbol(&it.name) else {
            continue;
        };
        let placement = place(&it.code, it.address);
        let (emulated, text) = match placement.kind {
            PlacementKind::Emulated { instruction } => (true, instruction),
            PlacementKind::SingleStepped { reason } if function.is_counted_only() => {
                missing.push(MissingFunction {
                    function: it.name,
                    reason: format!("called too often to be single-stepped: {reason}"),
                });
                continue;
            }
            PlacementKind::SingleStepped { reason } => (false, reason),
            PlacementKind::Refused { reason } => {
                missing.push(MissingFunction {
                    function: it.name,
                    reason,
                });
                continue;
            }
        };
        probes.push(Probe {
            function,
            offset: it.offset + placement.offset,
        });
        probed.push(ProbedFunction {
            function,
            offset: placement.offset,
            emulated,
            placement: text,
        });
    }
    if probes.is_empty() {
        return Err("it has none of the functions that gputrace probes".to_owned());
    }
    let library = Library {
        path: found.display.clone(),
        device: found.device,
        inode: found.inode,
        probed_at: None,
        functions: probed,
        missing,
    };
    Ok(Target {
        found,
        probes,
        library,
    })
}

/// What could not be looked at, in words.
#[must_use]
pub fn not_looked_at(it: Unreadable) -> NotProbed {
    NotProbed {
        path: it.what,
        reason: it.reason,
        processes: it.pids,
    }
}
