//! The executable mappings of a process, from `/proc/PID/maps`.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use super::cuda::maps::parse_maps_line;
use crate::{event::Module, identity::escape_at_most};

/// Most bytes read: a process with tens of thousands of mappings is cut, not waited for.
const MAX_BYTES: u64 = 16 << 20;
/// Longest path shown.
const MAX_PATH_CHARS: usize = 4096;

/// Reads the executable mappings of files, ordered by address.
///
/// # Errors
/// Where the file cannot be read.
pub fn read(maps: &Path) -> io::Result<Vec<Module>> {
    let mut bytes = Vec::new();
    File::open(maps)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(parse(&bytes))
}

/// The executable mappings of files in the text of a maps file; lines that are none are left out.
#[must_use]
pub fn parse(maps: &[u8]) -> Vec<Module> {
    let mut modules: Vec<Module> = maps
        .split(|&byte| byte == b'\n')
        .filter_map(parse_maps_line)
        .filter(|line| line.executable && line.path.starts_with(b"/"))
        .map(|line| Module {
            start: line.start,
            end: line.end,
            offset: line.offset,
            path: escape_at_most(&line.path, MAX_PATH_CHARS),
        })
        .collect();
    modules.sort_by_key(|module| module.start);
    modules
}

/// Whether an address lies in one of the modules, which are ordered by address.
#[must_use]
pub fn contains(modules: &[Module], address: u64) -> bool {
    crate::analysis::module_of(modules, address).is_some()
}
