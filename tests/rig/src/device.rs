//! What the simulated devices hold, shared by every process of a rig.
//!
//! The state is a table in the file [`Rig::devices`], mapped by every process and changed by atomic
//! instructions only. A row of the table is a *client*: one open of the device by one process, and
//! the bytes that it holds on each GPU. There is no total anywhere: what a device holds is the sum
//! of its clients, so a process can be killed between any two instructions and nothing disagrees.
//!
//! A client lives as long as its open file in [`Rig::clients`], which its owner locked with flock(2).
//! That lock belongs to the open file description: a forked child keeps it, an exec closes it, and
//! the last close gives it back, which is how a driver's release of an open device file works.
//! Whoever wants a total [reaps](Devices::reap) first: a client whose file somebody else can lock is
//! gone, and its bytes are given back. Owning a row *is* holding that lock, so there is no other
//! lock that a dead process could leave behind.
//!
//! Memory that is exported to other processes is in a second table, of [shares](Share).

mod shares;

pub use shares::{MAX_SHARES, Share, Shared, read_ticket};

use crate::config::{Config, ConfigError, MAX_GPUS, Rig};
use shares::ShareRow;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest number of clients at one time.
pub const MAX_CLIENTS: usize = 4096;

/// Why the device state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The rig's settings cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of the state cannot be opened or mapped.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Every row of the table has a living owner.
    #[error("all {MAX_CLIENTS} clients of the devices are in use")]
    TooManyClients,
}

/// The device does not have that many bytes left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("GPU {gpu} has no room for {bytes} bytes")]
pub struct OutOfMemory {
    /// Index of the GPU.
    pub gpu: usize,
    /// Bytes that were asked for.
    pub bytes: u64,
}

/// The `tgid` of a client that is no process but an exported file descriptor.
const NO_PROCESS: u32 = 0;

const FREE: u32 = 0;
const OPEN: u32 = 1;

/// What one client holds on one GPU.
#[repr(C)]
struct Holding {
    contexts: AtomicU64,
    context_bytes: AtomicU64,
    allocation_bytes: AtomicU64,
}

#[repr(C, align(64))]
struct Row {
    state: AtomicU32,
    tgid: AtomicU32,
    holdings: [Holding; MAX_GPUS],
}

/// The file. All zeros is the valid empty state, so nobody needs to initialise it.
#[repr(C)]
struct Table {
    /// No row from this one on has ever been used.
    rows_used: AtomicU32,
    /// The same of the shares.
    shares_used: AtomicU32,
    /// The number that the newest share has.
    last_share: AtomicU64,
    rows: [Row; MAX_CLIENTS],
    shares: [ShareRow; MAX_SHARES],
}

impl Row {
    fn clear(&self) {
        for holding in &self.holdings {
            holding.contexts.store(0, SeqCst);
            holding.context_bytes.store(0, SeqCst);
            holding.allocation_bytes.store(0, SeqCst);
        }
    }
}

struct Mapping(NonNull<Table>);

// SAFETY: the mapping lives as long as the value, and everything in it is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File) -> io::Result<Self> {
        let size = size_of::<Table>();
        // The same size whoever does it first; new bytes of a file are zeros.
        file.set_len(size as u64)?;
        // SAFETY: a new shared mapping of a file that is at least this long.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast())
            .map(Self)
            .ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    fn table(&self) -> &Table {
        // SAFETY: page-aligned, as long as a Table, mapped until drop, and any bit pattern is valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `of` mapped; nothing borrows from it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Table>()) };
    }
}

/// The simulated devices as this process sees them.
pub struct Devices {
    rig: Rig,
    config: Config,
    file: File,
    mapping: Mapping,
}

/// What one process has on one GPU through one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The process that opened the client; it may be gone while another one keeps the file open.
    pub tgid: u32,
    /// Contexts that exist.
    pub contexts: u64,
    /// Hidden bytes of those contexts, and of what is loaded into them.
    pub context_bytes: u64,
    /// Bytes of its allocations, and of those that it has open of somebody who freed them.
    pub allocation_bytes: u64,
}

impl Devices {
    /// Opens the state of this rig; the first one to do so creates it.
    pub fn open(rig: Rig) -> Result<Arc<Self>, DeviceError> {
        let config = rig.load()?;
        let path = rig.devices();
        let attempt = || {
            std::fs::create_dir_all(rig.clients())?;
            let file = open_file(&path)?;
            let mapping = Mapping::of(&file)?;
            Ok((file, mapping))
        };
        let (file, mapping) = attempt().map_err(|source| DeviceError::File {
            path: path.clone(),
            source,
        })?;
        Ok(Arc::new(Self {
            rig,
            config,
            file,
            mapping,
        }))
    }

    /// The rig's settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Number of GPUs.
    pub fn count(&self) -> usize {
        self.config.gpu.len()
    }

    /// Bytes that processes hold on this GPU, as far as has been [reaped](Self::reap).
    pub fn held(&self, gpu: usize) -> u64 {
        let own: u64 = self
            .rows()
            .iter()
            .map(|row| {
                let holding = &row.holdings[gpu];
                holding.context_bytes.load(SeqCst) + holding.allocation_bytes.load(SeqCst)
            })
            .sum();
        own + self.shared_bytes(gpu)
    }

    /// Bytes that processes can hold on this GPU in all.
    pub fn capacity(&self, gpu: usize) -> u64 {
        let gpu = &self.config.gpu[gpu];
        gpu.total - gpu.reserved
    }

    /// Bytes in use on this GPU without what the driver reserves; reaps first.
    pub fn used(&self, gpu: usize) -> u64 {
        self.reap();
        // An allocation that is about to be refused may be counted for a moment.
        self.held(gpu).min(self.capacity(gpu))
    }

    /// The clients that have a context or memory on this GPU; reaps first.
    pub fn holders(&self, gpu: usize) -> Vec<Holder> {
        self.reap();
        let shared = self.shared_by_client(gpu);
        let shared_of = |client: usize| -> u64 {
            let of_client = shared.iter().filter(|(charged, _)| *charged == client);
            of_client.map(|(_, bytes)| bytes).sum()
        };
        self.rows()
            .iter()
            .enumerate()
            .filter(|(_, row)| {
                row.state.load(SeqCst) == OPEN && row.tgid.load(SeqCst) != NO_PROCESS
            })
            .map(|(index, row)| Holder {
                tgid: row.tgid.load(SeqCst),
                contexts: row.holdings[gpu].contexts.load(SeqCst),
                context_bytes: row.holdings[gpu].context_bytes.load(SeqCst),
                allocation_bytes: row.holdings[gpu].allocation_bytes.load(SeqCst)
                    + shared_of(index),
            })
            .filter(|holder| {
                holder.contexts > 0 || holder.context_bytes + holder.allocation_bytes > 0
            })
            .collect()
    }

    /// Gives back what belongs to clients whose file nobody has open any more.
    pub fn reap(&self) {
        for (index, row) in self.rows().iter().enumerate() {
            if row.state.load(SeqCst) != OPEN {
                continue;
            }
            if let Ok(Some(file)) = self.lock_row(index) {
                // Killed in the middle of this, the next reaper does it again: FREE comes last.
                self.leave_all(index);
                row.clear();
                row.state.store(FREE, SeqCst);
                // Said aloud, since a thread that forked just now has a copy of the descriptor.
                let _ = flock(&file, libc::LOCK_UN);
            }
        }
    }

    /// Nobody else admits, makes or joins anything meanwhile.
    fn alone(&self) -> (Option<RecordLock<'_>>, MutexGuard<'static, ()>) {
        let in_process = ADMISSION.lock().unwrap_or_else(PoisonError::into_inner);
        (RecordLock::take(&self.file), in_process)
    }

    fn rows(&self) -> &[Row] {
        let table = self.mapping.table();
        let used = table.rows_used.load(SeqCst) as usize;
        &table.rows[..used.min(MAX_CLIENTS)]
    }

    fn client_path(&self, index: usize) -> PathBuf {
        self.rig.clients().join(index.to_string())
    }

    /// The file of a row, locked, if nobody else has it.
    fn lock_row(&self, index: usize) -> io::Result<Option<File>> {
        let file = open_file(&self.client_path(index))?;
        if flock(&file, libc::LOCK_EX | libc::LOCK_NB)? {
            Ok(Some(file))
        } else {
            Ok(None)
        }
    }
}

/// One open of the devices by this process; what it holds is charged to the process.
///
/// Dropping it closes this process's end, as a process exit does: the bytes stay until forked
/// children are gone too.
pub struct Client {
    devices: Arc<Devices>,
    index: usize,
    _file: File,
}

/// Takes an unused row and the lock of its file.
fn open_row(devices: &Devices, tgid: u32) -> Result<(usize, File), DeviceError> {
    devices.reap();
    let table = devices.mapping.table();
    for (index, row) in table.rows.iter().enumerate() {
        if row.state.load(SeqCst) != FREE {
            continue;
        }
        let locked = devices
            .lock_row(index)
            .map_err(|source| DeviceError::File {
                path: devices.client_path(index),
                source,
            })?;
        let Some(file) = locked else { continue };
        if row.state.load(SeqCst) != FREE {
            // Its owner opened and lost it in between; the next reaper has it.
            continue;
        }
        // What an exported descriptor was for is not what this one is for.
        let _ = file.set_len(0);
        row.clear();
        row.tgid.store(tgid, SeqCst);
        let used = u32::try_from(index + 1).unwrap_or(u32::MAX);
        table.rows_used.fetch_max(used, SeqCst);
        row.state.store(OPEN, SeqCst);
        return Ok((index, file));
    }
    Err(DeviceError::TooManyClients)
}

/// One at a time within a process; the file's record lock is between processes.
static ADMISSION: Mutex<()> = Mutex::new(());

impl Client {
    /// Opens the devices for this process.
    pub fn open(devices: &Arc<Devices>) -> Result<Self, DeviceError> {
        let (index, file) = open_row(devices, std::process::id())?;
        Ok(Self {
            devices: Arc::clone(devices),
            index,
            _file: file,
        })
    }

    /// The devices that it opened.
    pub fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Charges the hidden bytes of a new context.
    pub fn open_context(&self, gpu: usize) -> Result<(), OutOfMemory> {
        let holding = self.holding(gpu);
        let bytes = self.devices.config.costs.context;
        self.charge(&holding.context_bytes, gpu, bytes)?;
        holding.contexts.fetch_add(1, SeqCst);
        Ok(())
    }

    /// Gives the hidden bytes of a context back.
    pub fn close_context(&self, gpu: usize) {
        let holding = self.holding(gpu);
        holding.contexts.fetch_sub(1, SeqCst);
        holding
            .context_bytes
            .fetch_sub(self.devices.config.costs.context, SeqCst);
    }

    /// Charges hidden bytes that come on top of a context's.
    pub fn hide(&self, gpu: usize, bytes: u64) -> Result<(), OutOfMemory> {
        self.charge(&self.holding(gpu).context_bytes, gpu, bytes)
    }

    /// Gives such bytes back.
    pub fn unhide(&self, gpu: usize, bytes: u64) {
        self.holding(gpu).context_bytes.fetch_sub(bytes, SeqCst);
    }

    /// Charges an allocation.
    pub fn allocate(&self, gpu: usize, bytes: u64) -> Result<(), OutOfMemory> {
        self.charge(&self.holding(gpu).allocation_bytes, gpu, bytes)
    }

    /// Gives the bytes of an allocation back.
    pub fn free(&self, gpu: usize, bytes: u64) {
        self.holding(gpu).allocation_bytes.fetch_sub(bytes, SeqCst);
    }

    fn holding(&self, gpu: usize) -> &Holding {
        &self.devices.mapping.table().rows[self.index].holdings[gpu]
    }

    fn charge(&self, counter: &AtomicU64, gpu: usize, bytes: u64) -> Result<(), OutOfMemory> {
        let capacity = self.devices.capacity(gpu);
        // First charge, then look: of two that race for the last bytes, each sees the other.
        let fits = || {
            counter.fetch_add(bytes, SeqCst);
            let fits = self.devices.held(gpu) <= capacity;
            if !fits {
                counter.fetch_sub(bytes, SeqCst);
            }
            fits
        };
        if bytes <= capacity && (fits() || self.last_resort(fits)) {
            Ok(())
        } else {
            Err(OutOfMemory { gpu, bytes })
        }
    }

    /// Before an allocation is refused: give back what dead clients held, and try again alone.
    fn last_resort(&self, fits: impl Fn() -> bool) -> bool {
        let _alone = self.devices.alone();
        self.devices.reap();
        // Another request that is about to be refused may still be charged: look a few times.
        (0..4).any(|attempt| {
            if attempt > 0 {
                std::thread::yield_now();
            }
            fits()
        })
    }
}

/// A lock on the state's file. Of the kind that belongs to the process: a forked child does not
/// have it, and no way of dying leaves it behind.
struct RecordLock<'a>(&'a File);

impl<'a> RecordLock<'a> {
    /// None when the system refuses: the lock makes refusals exact, nothing depends on it.
    fn take(file: &'a File) -> Option<Self> {
        fcntl_lock(file, libc::F_WRLCK).then_some(Self(file))
    }
}

impl Drop for RecordLock<'_> {
    fn drop(&mut self) {
        fcntl_lock(self.0, libc::F_UNLCK);
    }
}

fn fcntl_lock(file: &File, kind: libc::c_int) -> bool {
    // SAFETY: an all-zero flock is valid: the whole file, from its start.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).unwrap_or_default();
    loop {
        // SAFETY: the descriptor is open and the structure outlives the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock) } == 0 {
            return true;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

/// Whether the lock could be taken or given back; false where somebody else has it.
fn flock(file: &File, operation: libc::c_int) -> io::Result<bool> {
    // SAFETY: flock on a descriptor that is open for the whole call.
    if unsafe { libc::flock(file.as_raw_fd(), operation) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

/// Opens a file of the rig, and makes it if it is not there. Rust's files close on exec, as a client
/// must.
fn open_file(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_for_everybody(path)?;
            open()
        }
        other => other,
    }
}

/// Makes an empty file that every user's processes may write, whatever the umask says. It appears
/// with these permissions, or somebody else's has appeared meanwhile.
fn create_for_everybody(path: &Path) -> io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, SeqCst);
    let temporary = path.with_extension(format!("{}-{number}", std::process::id()));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)?;
    file.set_permissions(Permissions::from_mode(0o666))?;
    let linked = std::fs::hard_link(&temporary, path);
    std::fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
