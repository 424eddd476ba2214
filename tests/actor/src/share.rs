//! Memory that processes share: by files with physical memory behind them, and by IPC handles.
//!
//! What a process exports it writes into a file of the rig, for the importer to read. Files with
//! memory behind them are fetched out of the exporter with `pidfd_getfd(2)`, which gives the importer
//! the same open file, as sending it over a socket would.

use crate::execute::Run;
use crate::functions::{self as f};
use crate::memory::Put;
use crate::problem::{Problem, allowed};
use crate::sites;
use crate::things::{Family, Held, Physical, What};
use gputrace_test_rig::protocol::{
    ExternalImport, IpcOpen, Kind, Place, PoolExport, PoolImport, Site, VmmImport,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const AS_FILE: u64 = 1;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`
const OPAQUE_FILE: u32 = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
const LAZY: u64 = 1;

/// What a process has exported under a label.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Exported {
    /// The process.
    pid: u32,
    items: Vec<Item>,
}

/// One exported allocation.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Item {
    bytes: u64,
    /// The number of the file in the exporter, for physical memory.
    file: RawFd,
    /// The IPC handle; empty for physical memory.
    handle: Vec<u64>,
}

fn system(what: &str) -> impl FnOnce(io::Error) -> Problem + '_ {
    move |source| Problem::System {
        what: what.to_owned(),
        source,
    }
}

impl Run<'_> {
    fn exchange(&self, process: &str, label: &str, what: &str) -> PathBuf {
        let folder = self.session.world.rig.folder().join("exchange");
        // A label may be any text.
        let label: String = label.bytes().map(|byte| format!("{byte:02x}")).collect();
        folder.join(format!("{process}-{what}-{label}.json"))
    }

    fn write_exported(&self, label: &str, what: &str, items: Vec<Item>) -> Result<(), Problem> {
        let path = self.exchange(&self.session.world.name, label, what);
        let exported = Exported {
            pid: std::process::id(),
            items,
        };
        let write = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&path, serde_json::to_vec(&exported)?)
        };
        write().map_err(system("writing what was exported"))
    }

    fn read_exported(&self, import: &VmmImport, what: &str) -> Result<Exported, Problem> {
        let path = self.exchange(&import.process, &import.of, what);
        let read = || {
            let mut exported: Exported = serde_json::from_slice(&std::fs::read(&path)?)?;
            if let Some(count) = import.count {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                if exported.items.len() < count {
                    let message = format!("only {} were exported", exported.items.len());
                    return Err(io::Error::other(message));
                }
                exported.items.truncate(count);
            }
            Ok(exported)
        };
        let what = format!("what {} exported as `{}`", import.process, import.of);
        read().map_err(system(&what))
    }

    /// What a command exports.
    fn to_export(&self, family: Family, place: &Place) -> Result<Vec<Held>, Problem> {
        let state = self.session.world.state();
        let pile = state.pile(family, &place.label);
        let count = place.count.map_or(pile.len(), |count| {
            usize::try_from(count).unwrap_or(usize::MAX)
        });
        pile.get(..count)
            .filter(|some| !some.is_empty())
            .map(<[Held]>::to_vec)
            .ok_or_else(|| Problem::EmptyPile(place.label.clone()))
    }

    /// Exports physical memory as files.
    pub fn vmm_export(&mut self, place: &Place) -> Result<(), Problem> {
        let function = self.find(&f::VMM_EXPORT, place.via, false)?;
        allow_fetching();
        let mut items = Vec::new();
        for held in self.to_export(Family::Handles, place)? {
            let mut file: RawFd = -1;
            let arguments = [sites::pointer(&mut file), held.address, AS_FILE, 0];
            let code = sites::call(Site::default(), function, &arguments, &[]);
            if code == 0 {
                self.keep_open(&place.label, file);
                items.push(Item {
                    bytes: held.bytes,
                    file,
                    handle: Vec::new(),
                });
            }
            self.call(f::VMM_EXPORT.symbol, code, &place.expect)?;
        }
        self.write_exported(&place.label, "vmm", items)
    }

    /// Closes exported files.
    pub fn close_exports(&self, label: &str) -> Result<(), Problem> {
        let files = self.session.world.state().exports.remove(label);
        let files = files.ok_or_else(|| Problem::EmptyPile(label.to_owned()))?;
        for file in files {
            // SAFETY: this program's own, and nobody uses it any more.
            drop(unsafe { OwnedFd::from_raw_fd(file) });
        }
        Ok(())
    }

    /// Imports physical memory that another process has exported.
    pub fn vmm_import(&mut self, import: &VmmImport) -> Result<(), Problem> {
        let function = self.find(&f::VMM_IMPORT, import.via, false)?;
        let exported = self.read_exported(import, "vmm")?;
        for item in exported.items {
            let file = fetch(exported.pid, item.file)
                .map_err(system(&format!("a file of {}", import.process)))?;
            let mut handle = 0_u64;
            let arguments = [
                sites::pointer(&mut handle),
                // The number itself, in the place of a pointer.
                number(&file),
                AS_FILE,
            ];
            let code = sites::call(import.site, function, &arguments, &[]);
            self.results
                .given(Kind::Alias, import.site, code, item.bytes);
            if code == 0 {
                let physical = Physical {
                    kind: Kind::Alias,
                    bytes: item.bytes,
                    device: 0,
                    references: 1,
                    mappings: 0,
                };
                self.add_handle(&import.label, handle, physical);
            }
            allowed(|| f::VMM_IMPORT.symbol.to_owned(), code, &import.expect)?;
        }
        Ok(())
    }

    /// Exports memory as IPC handles.
    pub fn ipc_export(&mut self, place: &Place) -> Result<(), Problem> {
        let function = self.find(&f::IPC_GET, place.via, false)?;
        let mut items = Vec::new();
        for held in self.to_export(Family::Memory, place)? {
            let mut handle = [0_u64; 8];
            let arguments = [sites::pointer(&mut handle), held.address];
            let code = sites::call(Site::default(), function, &arguments, &[]);
            if code == 0 {
                items.push(Item {
                    bytes: held.bytes,
                    file: -1,
                    handle: handle.to_vec(),
                });
            }
            self.call(f::IPC_GET.symbol, code, &place.expect)?;
        }
        self.write_exported(&place.label, "ipc", items)
    }

    /// Opens IPC handles that another process has exported.
    pub fn ipc_open(&mut self, open: &IpcOpen) -> Result<(), Problem> {
        let function = self.find(&f::IPC_OPEN, open.via, false)?;
        let exported = self.read_exported(open, "ipc")?;
        let put = Put {
            site: open.site,
            label: &open.label,
            expect: &open.expect,
        };
        for item in exported.items {
            let mut address = 0_u64;
            let arguments = [sites::pointer(&mut address), LAZY];
            // The handle is passed by value: 64 bytes on the stack.
            let code = sites::call(open.site, function, &arguments, &item.handle);
            self.put_sized(What::Opened, code, (address, item.bytes), &put)?;
        }
        Ok(())
    }
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`
#[repr(C)]
struct ExternalHandle {
    kind: u32,
    /// A union of a file and two pointers.
    handle: [u64; 2],
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`
#[repr(C)]
struct ExternalBuffer {
    offset: u64,
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

impl Run<'_> {
    /// Exports a pool as a file, and memory from it as data.
    pub fn pool_export(&mut self, export: &PoolExport) -> Result<(), Problem> {
        let (label, via) = (&export.label, export.via);
        allow_fetching();
        let pool = self.pool(label)?;
        let mut file: RawFd = -1;
        let arguments = [sites::pointer(&mut file), pool, AS_FILE, 0];
        self.other(&f::POOL_EXPORT, via, &arguments, &export.expect)?;
        // The first item is the pool itself.
        let mut items = vec![Item {
            bytes: 0,
            file,
            handle: Vec::new(),
        }];
        self.keep_open(label, file);
        let memory = self
            .session
            .world
            .state()
            .pile(Family::Memory, &export.memory)
            .to_vec();
        for held in memory {
            let mut data = [0_u64; 8];
            let arguments = [sites::pointer(&mut data), held.address];
            self.other(&f::POOL_EXPORT_POINTER, via, &arguments, &export.expect)?;
            items.push(Item {
                bytes: held.bytes,
                file: -1,
                handle: data.to_vec(),
            });
        }
        self.write_exported(label, "pool", items)
    }

    fn keep_open(&self, label: &str, file: RawFd) {
        if file >= 0 {
            let mut state = self.session.world.state();
            state
                .exports
                .entry(label.to_owned())
                .or_default()
                .push(file);
        }
    }

    /// Imports a pool that another process has exported, and the memory from it.
    pub fn pool_import(&mut self, import: &PoolImport) -> Result<(), Problem> {
        let function = self.find(&f::POOL_IMPORT, import.via, false)?;
        let pointer = self.find(&f::POOL_IMPORT_POINTER, import.via, false)?;
        let put = Put {
            site: import.site,
            label: &import.label,
            expect: &import.expect,
        };
        let exported = self.read_exported(import, "pool")?;
        let mut items = exported.items.into_iter();
        let mut pool = 0_u64;
        if let Some(item) = items.next() {
            let file = fetch(exported.pid, item.file)
                .map_err(system(&format!("a file of {}", import.process)))?;
            let arguments = [sites::pointer(&mut pool), number(&file), AS_FILE, 0];
            let code = sites::call(import.site, function, &arguments, &[]);
            self.put_object(What::Pool, code, pool, &put)?;
        }
        for mut item in items {
            let mut address = 0_u64;
            let data = item.handle.as_mut_ptr().expose_provenance() as u64;
            let arguments = [sites::pointer(&mut address), pool, data];
            let code = sites::call(import.site, pointer, &arguments, &[]);
            self.put_sized(What::FromPool, code, (address, item.bytes), &put)?;
        }
        Ok(())
    }

    /// Imports files of another process as external memory, and maps all of it.
    pub fn external_import(&mut self, import: &ExternalImport) -> Result<(), Problem> {
        let function = self.find(&f::EXTERNAL_IMPORT, import.via, false)?;
        let map = self.find(&f::EXTERNAL_BUFFER, import.via, false)?;
        let put = Put {
            site: import.site,
            label: &import.label,
            expect: &import.expect,
        };
        let exported = self.read_exported(import, "vmm")?;
        for item in exported.items {
            let file = fetch(exported.pid, item.file)
                .map_err(system(&format!("a file of {}", import.process)))?;
            let mut handle = ExternalHandle {
                kind: OPAQUE_FILE,
                handle: [number(&file), 0],
                bytes: item.bytes,
                flags: 0,
                reserved: [0; 16],
            };
            let mut memory = 0_u64;
            let arguments = [sites::pointer(&mut memory), sites::pointer(&mut handle)];
            let code = sites::call(import.site, function, &arguments, &[]);
            if code == 0 {
                // The driver's from now on, which closes it.
                let _ = std::os::fd::IntoRawFd::into_raw_fd(file);
            }
            self.put_sized(What::External, code, (memory, item.bytes), &put)?;
            if code != 0 {
                continue;
            }
            let mut buffer = ExternalBuffer {
                offset: 0,
                bytes: item.bytes,
                flags: 0,
                reserved: [0; 16],
            };
            let mut address = 0_u64;
            let arguments = [
                sites::pointer(&mut address),
                memory,
                sites::pointer(&mut buffer),
            ];
            let code = sites::call(import.site, map, &arguments, &[]);
            self.put_sized(What::Buffer, code, (address, item.bytes), &put)?;
        }
        Ok(())
    }
}

/// The number of a file, as an argument.
fn number(file: &OwnedFd) -> u64 {
    u64::from(std::os::fd::AsRawFd::as_raw_fd(file).cast_unsigned())
}

/// Lets every process fetch files of this one, where the system asks for such a permission.
fn allow_fetching() {
    // SAFETY: takes values only. Where it is refused, fetching says what is missing.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

/// A file of another process.
fn fetch(pid: u32, file: RawFd) -> io::Result<OwnedFd> {
    let owned = |result: libc::c_long| match RawFd::try_from(result) {
        // SAFETY: a new file of this process.
        Ok(file) if file >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: takes values only.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let process = std::os::fd::AsRawFd::as_raw_fd(&process);
    // SAFETY: as above.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, file, 0) })
}
