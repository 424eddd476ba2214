//! Functions of a library file: address, file offset, first bytes.
//!
//! The file may be anybody's (a process in a container mapped it), so nothing in it is believed:
//! every read has a limit, and nonsense is an error that names the file. The library is not mapped,
//! since a mapped file that is cut short kills the reader with SIGBUS, and it is not read as a
//! whole, since the real one has up to 90 MB.

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs::{self, File},
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use object::{
    LittleEndian, elf,
    read::{
        ReadCache, ReadRef,
        elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _},
    },
};

use super::placement::WINDOW;
use crate::identity::escape_path;

/// Largest file looked at. The real libcuda has 30 to 90 MB.
const MAX_FILE: u64 = 2 << 30;

/// Largest single table read from it. The real libcuda's symbols and their names have 50 KB;
/// a full symbol table of a large program has some 10 MB.
const MAX_READ: u64 = 64 << 20;

/// Longest build id kept, in bytes; linkers write 8, 16 or 20.
const MAX_BUILD_ID: usize = 64;

const LE: LittleEndian = LittleEndian;

/// What a library says about the functions that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// The GNU build id in hexadecimal, if there is one.
    pub build_id: Option<String>,
    /// The functions that are there, in the order in which they were asked for.
    pub found: Vec<Function>,
    /// The ones that are not, or cannot be probed, and why.
    pub missing: Vec<Missing>,
}

/// One function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name of its symbol.
    pub name: String,
    /// Its address in the library's own address space (`st_value`).
    pub address: u64,
    /// Its size in bytes as the symbol says; 0 where the symbol does not.
    pub size: u64,
    /// Where its first byte is in the file; what a uprobe is attached by.
    pub offset: u64,
    /// Its first bytes: at most [`WINDOW`], and none behind its end.
    pub code: Vec<u8>,
}

/// A function that cannot be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// Why not.
    pub reason: &'static str,
}

/// A file cannot be used as a library.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// It cannot be opened or read.
    #[error("{}: {source}", escape_path(.path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// It is a directory, a device, a pipe, ...; opening some of those has effects.
    #[error("{}: not a regular file", escape_path(.path))]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// It is larger than any library.
    #[error("{}: {size} bytes are too many for a library", escape_path(.path))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// It is no ELF file.
    #[error("{}: not an ELF file", escape_path(.path))]
    NotElf {
        /// The file.
        path: PathBuf,
    },
    /// It is one for another kind of machine.
    #[error("{}: {what}; only 64-bit x86-64 libraries can be traced", escape_path(.path))]
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// Its tables are damaged, or not what they claim to be.
    #[error("{}: damaged: {what}", escape_path(.path))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is fully stripped: neither `.dynsym` nor `.symtab`.
    #[error("{}: it has no symbol table", escape_path(.path))]
    NoSymbols {
        /// The file.
        path: PathBuf,
    },
}

impl ElfError {
    /// The file.
    fn path(&self) -> &Path {
        match self {
            Self::Unreadable { path, .. }
            | Self::NotAFile { path }
            | Self::TooLarge { path, .. }
            | Self::NotElf { path }
            | Self::OtherMachine { path, .. }
            | Self::Malformed { path, .. }
            | Self::NoSymbols { path } => path,
        }
    }

    /// What is wrong, without the path: for where that stands beside it.
    pub fn reason(&self) -> String {
        let mut text = self.to_string();
        let path = format!("{}: ", escape_path(self.path()));
        if text.starts_with(&path) {
            text.drain(..path.len());
        }
        text
    }
}

/// Opens a file for reading if it is a regular one, without blocking on or disturbing anything
/// else (a pipe, a device) that the path may lead to.
///
/// # Errors
///
/// [`ElfError::Unreadable`] or [`ElfError::NotAFile`].
pub fn open_regular(path: &Path) -> Result<File, ElfError> {
    // O_PATH only finds the file; opening a pipe would wait, and opening a device may act on it.
    let found = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| ElfError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
    reopen_regular(found.into(), path)
}

/// Opens for reading what was opened with `O_PATH`, if it is a regular file. `path` is only used in
/// errors.
///
/// # Errors
///
/// [`ElfError::Unreadable`] or [`ElfError::NotAFile`].
pub fn reopen_regular(found: OwnedFd, path: &Path) -> Result<File, ElfError> {
    let unreadable = |source| ElfError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let found = File::from(found);
    if !found.metadata().map_err(unreadable)?.is_file() {
        return Err(ElfError::NotAFile {
            path: path.to_owned(),
        });
    }
    // By its number it is the same file, whatever the path leads to by now.
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).map_err(unreadable)
}

/// Finds the functions named `wanted` in an x86-64 library, first among its dynamic symbols, then
/// (for those that are not there) among all symbols. `path` is only used in errors.
///
/// # Errors
///
/// [`ElfError`] if the file is no such library. A function that is not there is not an error.
pub fn functions(file: &File, path: &Path, wanted: &[&str]) -> Result<Functions, ElfError> {
    let size = file
        .metadata()
        .map_err(|source| ElfError::Unreadable {
            path: path.to_owned(),
            source,
        })?
        .len();
    if size > MAX_FILE {
        return Err(ElfError::TooLarge {
            path: path.to_owned(),
            size,
        });
    }
    let cache = ReadCache::new(file);
    read_functions(Limited(&cache), wanted).map_err(|trouble| {
        let path = path.to_owned();
        match trouble {
            Trouble::NotElf => ElfError::NotElf { path },
            Trouble::OtherMachine(what) => ElfError::OtherMachine { path, what },
            Trouble::NoSymbols => ElfError::NoSymbols { path },
            Trouble::Malformed(error) => ElfError::Malformed {
                path,
                what: error.to_string(),
            },
            Trouble::Damaged(what) => ElfError::Malformed {
                path,
                what: what.to_owned(),
            },
        }
    })
}

/// An [`ElfError`] that does not know its path yet.
#[derive(Debug)]
enum Trouble {
    NotElf,
    OtherMachine(String),
    NoSymbols,
    Malformed(object::Error),
    Damaged(&'static str),
}

impl From<object::Error> for Trouble {
    fn from(error: object::Error) -> Self {
        Self::Malformed(error)
    }
}

/// A file of which no single read is larger than [`MAX_READ`].
#[derive(Clone, Copy)]
struct Limited<R>(R);

impl<'a, R: ReadRef<'a>> ReadRef<'a> for Limited<R> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > MAX_READ {
            return Err(());
        }
        self.0.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}

type Header = elf::FileHeader64<LittleEndian>;
type Section = elf::SectionHeader64<LittleEndian>;
type Segment = elf::ProgramHeader64<LittleEndian>;
type Symbol = elf::Sym64<LittleEndian>;

fn read_functions<'a, R: ReadRef<'a>>(data: R, wanted: &[&str]) -> Result<Functions, Trouble> {
    check_machine(data)?;
    let header = Header::parse(data)?;
    let segments = header.program_headers(LE, data)?;
    let sections = header.section_headers(LE, data)?;
    let mut open: Vec<Wanted> = wanted.iter().map(|&name| Wanted::new(name)).collect();
    let kinds = [elf::SHT_DYNSYM, elf::SHT_SYMTAB];
    if !sections.iter().any(|s| kinds.contains(&s.sh_type(LE))) {
        return Err(Trouble::NoSymbols);
    }
    for kind in kinds {
        look_up(data, sections, kind, &mut open)?;
    }
    let mut functions = Functions {
        build_id: build_id(segments, data),
        ..Functions::default()
    };
    for wanted in &open {
        match wanted.function(segments, data) {
            Ok(function) => functions.found.push(function),
            Err(reason) => functions.missing.push(Missing {
                name: wanted.name.to_owned(),
                reason,
            }),
        }
    }
    Ok(functions)
}

/// Tells an ELF file for another machine from one that is none, before its headers are believed.
fn check_machine<'a, R: ReadRef<'a>>(data: R) -> Result<(), Trouble> {
    // The identification, then e_type and e_machine: the same place in every ELF file.
    let start = data.read_bytes_at(0, 20).map_err(|()| Trouble::NotElf)?;
    if !start.starts_with(&elf::ELFMAG) {
        return Err(Trouble::NotElf);
    }
    let other = |what: &str| Err(Trouble::OtherMachine(what.to_owned()));
    match (start[4], start[5]) {
        (2, 1) => {}
        (2, 2) => return other("a big-endian ELF file"),
        (1, _) => return other("a 32-bit ELF file"),
        _ => return other("an ELF file of unknown class"),
    }
    let machine = u16::from_le_bytes([start[18], start[19]]);
    match machine {
        62 => Ok(()),
        183 => other("an ELF file for arm64"),
        machine => Err(Trouble::OtherMachine(format!(
            "an ELF file for machine {machine}"
        ))),
    }
}

/// A function that is looked for, and the symbol found so far.
struct Wanted<'a> {
    name: &'a str,
    symbol: Option<Found>,
}

#[derive(Clone, Copy)]
struct Found {
    address: u64,
    size: u64,
    kind: elf::SymbolType,
    /// The address of the next symbol of the same table, where the size is not known.
    next: u64,
}

/// Fills in the symbols of `wanted` that are still open from all tables of one kind.
fn look_up<'a, R: ReadRef<'a>>(
    data: R,
    sections: &[Section],
    kind: elf::SectionType,
    wanted: &mut [Wanted<'_>],
) -> Result<(), Trouble> {
    for section in sections.iter().filter(|s| s.sh_type(LE) == kind) {
        if wanted.iter().all(|wanted| wanted.symbol.is_some()) {
            break;
        }
        let symbols: &[Symbol] = section.data_as_array(LE, data)?;
        let names = match sections.get(section.link(LE).0) {
            Some(names) => names.data(LE, data)?,
            None => return Err(Trouble::Damaged("a symbol table without names")),
        };
        let mut open: HashMap<&[u8], usize> = wanted
            .iter()
            .enumerate()
            .filter(|(_, wanted)| wanted.symbol.is_none())
            .map(|(index, wanted)| (wanted.name.as_bytes(), index))
            .collect();
        let mut found = Vec::new();
        for symbol in symbols.iter().filter(|symbol| !symbol.is_undefined(LE)) {
            let name = name_at(names, symbol.st_name(LE));
            if let Some(index) = name.and_then(|name| open.remove(name)) {
                wanted[index].symbol = Some(Found {
                    address: symbol.st_value(LE),
                    size: symbol.st_size(LE),
                    kind: symbol.st_type(),
                    next: u64::MAX,
                });
                found.push(index);
            }
        }
        for index in found {
            if let Some(found) = &mut wanted[index].symbol
                && found.size == 0
            {
                found.next = symbols
                    .iter()
                    .map(|symbol| symbol.st_value(LE))
                    .filter(|&address| address > found.address)
                    .min()
                    .unwrap_or(u64::MAX);
            }
        }
    }
    Ok(())
}

/// The NUL-terminated name at `offset`.
fn name_at(names: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = names.get(usize::try_from(offset).ok()?..)?;
    rest.iter()
        .position(|&byte| byte == 0)
        .map(|end| &rest[..end])
}

impl<'a> Wanted<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, symbol: None }
    }

    /// The function behind the symbol, or why it cannot be probed.
    fn function<'d, R: ReadRef<'d>>(
        &self,
        segments: &[Segment],
        data: R,
    ) -> Result<Function, &'static str> {
        let symbol = self.symbol.ok_or("the library does not have it")?;
        match symbol.kind {
            elf::STT_FUNC | elf::STT_NOTYPE => {}
            elf::STT_GNU_IFUNC => return Err("it is chosen at run time (an indirect function)"),
            _ => return Err("its symbol is not that of a function"),
        }
        let segment = segments
            .iter()
            .find(|segment| {
                segment.p_type(LE) == elf::PT_LOAD
                    && symbol
                        .address
                        .checked_sub(segment.p_vaddr(LE))
                        .is_some_and(|inside| inside < segment.p_filesz(LE))
            })
            .ok_or("its address is in no part of the file")?;
        if segment.p_flags(LE).0 & elf::PF_X.0 == 0 {
            return Err("it is not in an executable part of the file");
        }
        let inside = symbol.address - segment.p_vaddr(LE);
        let offset = segment
            .p_offset(LE)
            .checked_add(inside)
            .ok_or("its address is in no part of the file")?;
        let size = match symbol.size {
            0 => symbol.next - symbol.address,
            size => size,
        };
        let length = size.min(segment.p_filesz(LE) - inside).min(WINDOW as u64);
        let code = data
            .read_bytes_at(offset, length)
            .map_err(|()| "the file ends before its code")?;
        Ok(Function {
            name: self.name.to_owned(),
            address: symbol.address,
            size: symbol.size,
            offset,
            code: code.to_vec(),
        })
    }
}

/// The GNU build id; damaged notes count as none, since nothing depends on it.
fn build_id<'a, R: ReadRef<'a>>(segments: &'a [Segment], data: R) -> Option<String> {
    for segment in segments {
        let Ok(Some(mut notes)) = segment.notes(LE, data) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(LE) == elf::NT_GNU_BUILD_ID {
                let id = note.desc();
                let id = &id[..id.len().min(MAX_BUILD_ID)];
                return Some(id.iter().fold(String::new(), |mut hex, byte| {
                    // Writing to a string does not fail.
                    let _ = write!(hex, "{byte:02x}");
                    hex
                }));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
