//! Copies of `libcuda.so` on this machine.
//!
//! A uprobe belongs to a file (an inode), so every copy needs its own: the host's, the one of a
//! driver container, the forward-compatibility package inside an image. Copies are found where the
//! user says, where the dynamic loader looks, and in the mappings of running processes, which are
//! opened through the process's own view of the file system. One file is one library, however many
//! paths, mounts and containers show it: two entries would count every call twice.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs::{File, Metadata},
    io::{BufRead, BufReader, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs},
};

use super::{
    elf::{ElfError, open_regular, reopen_regular},
    loader::{LIBCUDA, libraries_in, standard_paths},
    maps::{file_name, parse_maps_line},
};
use crate::identity::{
    escape, escape_path,
    procfs::{Procfs, is_gone},
};

/// Most bytes read of one process's mappings. The default limit of 65,530 mappings gives 10 MB.
const MAX_MAPS: u64 = 64 << 20;

/// Most threads left behind in mappings that do not answer, before the search gives up.
const MAX_STUCK: usize = 8;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Search {
    /// Paths that the user named; they come first, and their absence is reported.
    pub explicit: Vec<PathBuf>,
    /// Directories to look into as well, in the order of `LD_LIBRARY_PATH`.
    pub directories: Vec<PathBuf>,
    /// Whether to look where the dynamic loader would.
    pub standard_places: bool,
    /// The processes whose mappings are looked at.
    pub procfs: Procfs,
    /// The root of the file system; `/` but in tests.
    pub root: PathBuf,
    /// How long to wait for the mappings of one process, which a task stuck in the kernel may never
    /// give.
    pub patience: Duration,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            explicit: Vec::new(),
            directories: Vec::new(),
            standard_places: true,
            procfs: Procfs::default(),
            root: PathBuf::from("/"),
            patience: Duration::from_secs(1),
        }
    }
}

/// How a library was found first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The user named it.
    Explicit,
    /// It is where the dynamic loader looks.
    Standard,
    /// A process has it mapped.
    Process,
}

/// One copy of the library.
#[derive(Debug)]
pub struct Library {
    /// The path by which it was opened: as the user or the loader has it, or below
    /// `/proc/PID/root`. Only for people and logs; see [`Library::attach_path`].
    pub path: PathBuf,
    /// The path to show, escaped; for a file that only a container has, the path inside of it.
    pub display: String,
    /// Device number as of stat(2).
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// How it was found first.
    pub source: Source,
    /// The tgids of the processes that have it mapped, in ascending order.
    pub mapped_by: Vec<u32>,
    file: File,
    identity: Identity,
}

impl Library {
    /// The opened file, to read its symbols.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path that leads to exactly this file as long as `self` lives, whatever happens to the
    /// process, the container or the directory meanwhile; only within this process.
    pub fn attach_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether both are the same file, so that a probe in one is a probe in the other.
    pub fn is_same_file(&self, other: &Self) -> bool {
        self.identity.same(&other.identity)
    }
}

/// Something that could not be looked at, and may hide a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// What it is, escaped: a path, or the mappings of processes.
    pub what: String,
    /// Whether the user named it.
    pub explicit: bool,
    /// The processes concerned.
    pub pids: Vec<u32>,
    /// Why it could not be looked at.
    pub reason: String,
}

/// What a search found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The libraries, in the order of [`Source`].
    pub libraries: Vec<Library>,
    /// What could not be looked at.
    pub unreadable: Vec<Unreadable>,
    /// How many processes were looked at.
    pub processes: usize,
}

/// Looks everywhere. Takes some 20 microseconds per process and reads nothing of the libraries.
pub fn discover(search: &Search) -> Discovery {
    match search.procfs.pids() {
        Ok(pids) => discover_in(search, pids),
        Err(error) => {
            let mut discovery = discover_in(search, Vec::new());
            discovery.add_unreadable("the list of processes", false, None, error.to_string());
            discovery
        }
    }
}

/// Looks where the user and the loader say, and in the mappings of the given processes.
pub fn discover_in(search: &Search, mut pids: Vec<u32>) -> Discovery {
    let mut discovery = Discovery::default();
    for path in &search.explicit {
        discovery.add_path(path, Source::Explicit);
    }
    for directory in &search.directories {
        for path in libraries_in(directory) {
            discovery.add_path(&path, Source::Standard);
        }
    }
    if search.standard_places {
        for path in standard_paths(&search.root) {
            discovery.add_path(&path, Source::Standard);
        }
    }
    pids.sort_unstable();
    discovery.processes = pids.len();
    for_each_mapped(search, &pids, |pid, result| match result {
        Ok(mapped) => {
            for library in mapped {
                discovery.add_mapped(search, pid, &library);
            }
        }
        Err(reason) => {
            discovery.add_unreadable("mappings of processes", false, Some(pid), reason);
        }
    });
    for library in &mut discovery.libraries {
        library.mapped_by.sort_unstable();
        library.mapped_by.dedup();
    }
    discovery
}

impl Discovery {
    fn add_path(&mut self, path: &Path, source: Source) {
        let explicit = source == Source::Explicit;
        let shown = escape_path(path);
        match open_regular(path).and_then(|file| Opened::new(file, path)) {
            Ok(opened) => {
                self.add(opened, path.to_owned(), shown, source);
            }
            // The loader's cache may be older than the file system, and links may lead nowhere.
            Err(ElfError::Unreadable { source, .. }) if !explicit && is_gone(&source) => {}
            Err(error) => self.add_unreadable(&shown, explicit, None, error.reason()),
        }
    }

    fn add_mapped(&mut self, search: &Search, pid: u32, mapped: &Mapped) {
        let inside = Path::new(OsStr::from_bytes(&mapped.path));
        let mut shown = escape(&mapped.path);
        let (opened, path) = match open_mapped(&search.procfs, pid, mapped) {
            Ok(opened) => opened,
            Err(None) => return,
            Err(Some(reason)) => {
                return self.add_unreadable(&shown, false, Some(pid), reason);
            }
        };
        // Prefer the plain path where it leads to the same file: it is shorter, and it does not
        // depend on the process. A new library on the host is seen so.
        let plain = search.root.join(inside.strip_prefix("/").unwrap_or(inside));
        let plainly = open_regular(&plain)
            .and_then(|file| Opened::new(file, &plain))
            .ok()
            .filter(|plainly| plainly.identity.same(&opened.identity));
        let (opened, path) = match plainly {
            Some(plainly) => (plainly, plain),
            None => {
                if mapped.deleted {
                    shown.push_str(" (deleted)");
                }
                (opened, path)
            }
        };
        let index = self.add(opened, path, shown, Source::Process);
        self.libraries[index].mapped_by.push(pid);
    }

    /// Adds a file unless it is there already, and returns where it is.
    fn add(&mut self, opened: Opened, path: PathBuf, display: String, source: Source) -> usize {
        let known = self
            .libraries
            .iter()
            .position(|library| library.identity.same(&opened.identity));
        known.unwrap_or_else(|| {
            self.libraries.push(Library {
                path,
                display,
                device: opened.identity.device,
                inode: opened.identity.inode,
                source,
                mapped_by: Vec::new(),
                file: opened.file,
                identity: opened.identity,
            });
            self.libraries.len() - 1
        })
    }

    /// Notes what could not be looked at; the same trouble with several processes is one entry.
    fn add_unreadable(&mut self, what: &str, explicit: bool, pid: Option<u32>, reason: String) {
        let known = self
            .unreadable
            .iter_mut()
            .find(|entry| entry.what == what && entry.reason == reason);
        match known {
            Some(entry) => {
                entry.pids.extend(pid);
                entry.explicit |= explicit;
            }
            None => self.unreadable.push(Unreadable {
                what: what.to_owned(),
                explicit,
                pids: pid.into_iter().collect(),
                reason,
            }),
        }
    }
}

/// An open file that may be a library.
struct Opened {
    file: File,
    identity: Identity,
}

impl Opened {
    fn new(file: File, path: &Path) -> Result<Self, ElfError> {
        match Identity::of(&file) {
            Ok(identity) => Ok(Self { file, identity }),
            Err(source) => Err(ElfError::Unreadable {
                path: path.to_owned(),
                source,
            }),
        }
    }
}

/// Which file it is.
///
/// On overlayfs (the file system of most containers) device and inode are not enough: a file of an
/// image that several containers share has in each of them another device number, while the kernel
/// puts the probe into the one file below. Its inode number, size and times are those of the file
/// below as well, and a copy has another inode and another time of change. (With `xino` the upper
/// bits of the inode number say in which layer the file lies.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    overlay: bool,
}

impl Identity {
    fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let overlay = fstatfs(file)?.filesystem_type() == OVERLAYFS_SUPER_MAGIC;
        Ok(Self::from_metadata(&metadata, overlay))
    }

    fn from_metadata(metadata: &Metadata, overlay: bool) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            overlay,
        }
    }

    /// Whether its inode has this number.
    pub fn is_inode(&self, inode: u64) -> bool {
        self.inode == inode
    }

    /// Whether both are the same file, so that a probe in one is a probe in the other.
    pub fn same(&self, other: &Self) -> bool {
        /// Without the bits that overlayfs takes for the layer: up to 11 of them, for 500 layers.
        const INODE: u64 = (1 << 52) - 1;
        let below = |id: &Self| (id.inode & INODE, id.size, id.modified, id.changed);
        (self.device, self.inode) == (other.device, other.inode)
            || (self.overlay || other.overlay) && below(self) == below(other)
    }
}

/// A library in the mappings of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mapped {
    /// The path in the process's mount namespace.
    path: Vec<u8>,
    inode: u64,
    deleted: bool,
    /// The name of its first mapping in `/proc/PID/map_files`.
    range: (u64, u64),
}

/// Whether a process has mapped a copy of libcuda.
///
/// # Errors
/// Why its mappings cannot be read.
pub fn has_mapped(procfs: &Procfs, pid: u32) -> Result<bool, String> {
    mapped_by(procfs, pid).map(|mapped| !mapped.is_empty())
}

/// The libraries that a process has mapped; none if it is gone.
fn mapped_by(procfs: &Procfs, pid: u32) -> Result<Vec<Mapped>, String> {
    let read = || -> std::io::Result<Vec<Mapped>> {
        let file = File::open(procfs.path(pid, "maps"))?;
        let mut reader = BufReader::with_capacity(64 << 10, file.take(MAX_MAPS));
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let mut line = Vec::new();
        while {
            line.clear();
            reader.read_until(b'\n', &mut line)? > 0
        } {
            let Some(mapping) = parse_maps_line(&line) else {
                continue;
            };
            if !file_name(&mapping).starts_with(LIBCUDA) || !mapping.path.starts_with(b"/") {
                continue;
            }
            let range = (mapping.start, mapping.end);
            let (inode, deleted) = (mapping.inode, mapping.deleted);
            let path = mapping.path.into_owned();
            if seen.insert((path.clone(), inode)) {
                found.push(Mapped {
                    path,
                    inode,
                    deleted,
                    range,
                });
            }
        }
        Ok(found)
    };
    match read() {
        Err(error) if is_gone(&error) => Ok(Vec::new()),
        result => result.map_err(|error| error.to_string()),
    }
}

/// Calls `each` with what every process has mapped, or why that is not known. The reading is done
/// by another thread; where a process does not answer, that thread is abandoned and another one
/// goes on behind it.
fn for_each_mapped(
    search: &Search,
    pids: &[u32],
    mut each: impl FnMut(u32, Result<Vec<Mapped>, String>),
) {
    let mut next = 0;
    for _ in 0..MAX_STUCK {
        if next == pids.len() {
            return;
        }
        let (sender, receiver) = mpsc::channel();
        let procfs = search.procfs.clone();
        let remaining = pids[next..].to_vec();
        let started = thread::Builder::new().name("maps".into()).spawn(move || {
            for pid in remaining {
                // An error means that the receiver gave up this thread.
                if sender.send(mapped_by(&procfs, pid)).is_err() {
                    return;
                }
            }
        });
        if started.is_err() {
            break;
        }
        while next < pids.len() {
            match receiver.recv_timeout(search.patience) {
                Ok(result) => each(pids[next], result),
                Err(_) => {
                    let limit = search.patience.as_millis();
                    each(pids[next], Err(format!("no answer within {limit} ms")));
                    next += 1;
                    break;
                }
            }
            next += 1;
        }
    }
    for &pid in &pids[next..] {
        each(
            pid,
            Err("too many other processes do not answer".to_owned()),
        );
    }
}

/// Opens a mapped file through the process that has it: by its path in the process's file system
/// if that still is the mapped file, otherwise by the mapping itself. `Err(None)` if the process is
/// gone.
fn open_mapped(
    procfs: &Procfs,
    pid: u32,
    mapped: &Mapped,
) -> Result<(Opened, PathBuf), Option<String>> {
    let root = procfs.path(pid, "root");
    let inside = Path::new(OsStr::from_bytes(&mapped.path));
    let inside = inside.strip_prefix("/").unwrap_or(inside);
    let by_path = open_in_root(&root, inside).and_then(|file| Opened::new(file, inside));
    let shown = root.join(inside);
    match by_path {
        // A file that was replaced (by an update of the driver, say) has another inode.
        Ok(opened) if !mapped.deleted && opened.identity.inode == mapped.inode => {
            return Ok((opened, shown));
        }
        Err(ElfError::NotAFile { .. }) => return Err(Some("not a regular file".to_owned())),
        _ => {}
    }
    let (start, end) = mapped.range;
    let path = procfs
        .path(pid, "map_files")
        .join(format!("{start:x}-{end:x}"));
    match open_regular(&path).and_then(|file| Opened::new(file, &path)) {
        Ok(opened) => Ok((opened, path)),
        Err(ElfError::Unreadable { source, .. })
            if is_gone(&source) && !procfs.path(pid, "stat").exists() =>
        {
            Err(None)
        }
        Err(error) => Err(Some(error.reason())),
    }
}

/// Opens a file below the root directory of a process. The kernel resolves links in the path as
/// the process would see them, and follows none that leads out of that root.
fn open_in_root(root: &Path, inside: &Path) -> Result<File, ElfError> {
    let unreadable = |error: nix::Error| ElfError::Unreadable {
        path: root.join(inside),
        source: error.into(),
    };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let directory = nix::fcntl::open(
        root,
        flags | OFlag::O_DIRECTORY,
        nix::sys::stat::Mode::empty(),
    )
    .map_err(unreadable)?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found: OwnedFd = openat2(&directory, inside, how).map_err(unreadable)?;
    reopen_regular(found, &root.join(inside))
}

#[cfg(test)]
mod tests;
