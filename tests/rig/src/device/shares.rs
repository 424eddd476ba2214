//! Memory that several clients hold together: what one process exports and others open.
//!
//! A share is one allocation that has left its owner's own bytes. It has a bit for each client that
//! holds it, and exists as long as one bit is set: freeing it, or being reaped, is one atomic
//! instruction, so that a process can be killed anywhere here too. Its bytes count once: for the
//! owner while that holds it, else for the first other process that does, as the real driver makes
//! the next importer the owner. Where no process holds it any more, only an exported file
//! descriptor does: then the device has it in use, and no process has it.
//!
//! Making a share and joining one happen under the lock of the state's file, so that nobody can join
//! what is being made anew.

use super::{Client, DeviceError, Devices, MAX_CLIENTS, NO_PROCESS, Row, open_row};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The largest number of shares at one time.
pub const MAX_SHARES: usize = 4096;

const WORDS: usize = MAX_CLIENTS / 64;

/// A share, also of another process: its place, and a number that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    /// Its place in the table.
    pub index: u32,
    /// Of this share alone, on all devices of the rig.
    pub id: u64,
}

/// What a share is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Index of the GPU.
    pub gpu: usize,
    /// Bytes on it.
    pub bytes: u64,
    /// The process that made it.
    pub owner: u32,
}

#[repr(C, align(64))]
pub(super) struct ShareRow {
    id: AtomicU64,
    bytes: AtomicU64,
    gpu: AtomicU32,
    /// Row of the client that made it.
    owner: AtomicU32,
    owner_tgid: AtomicU32,
    holders: [AtomicU64; WORDS],
}

impl ShareRow {
    fn is_held(&self) -> bool {
        self.holders.iter().any(|word| word.load(SeqCst) != 0)
    }

    fn is_held_by(&self, client: usize) -> bool {
        self.holders[client / 64].load(SeqCst) & (1 << (client % 64)) != 0
    }

    fn hold(&self, client: usize) {
        self.holders[client / 64].fetch_or(1 << (client % 64), SeqCst);
    }

    fn let_go(&self, client: usize) {
        self.holders[client / 64].fetch_and(!(1 << (client % 64)), SeqCst);
    }

    /// The client whose process has the bytes.
    fn charged(&self, rows: &[Row]) -> Option<usize> {
        let is_charged = |client: usize| {
            self.is_held_by(client)
                && rows
                    .get(client)
                    .is_some_and(|row| row.tgid.load(SeqCst) != NO_PROCESS)
        };
        let owner = self.owner.load(SeqCst) as usize;
        if is_charged(owner) {
            return Some(owner);
        }
        (0..rows.len()).find(|client| is_charged(*client))
    }
}

impl Devices {
    fn shares(&self) -> &[ShareRow] {
        let table = self.mapping.table();
        let used = table.shares_used.load(SeqCst) as usize;
        &table.shares[..used.min(MAX_SHARES)]
    }

    /// Bytes of all shares on this GPU.
    pub(super) fn shared_bytes(&self, gpu: usize) -> u64 {
        self.shares()
            .iter()
            .filter(|share| share.gpu.load(SeqCst) as usize == gpu && share.is_held())
            .map(|share| share.bytes.load(SeqCst))
            .sum()
    }

    /// Bytes of shares on this GPU by the client that is charged for them.
    pub(super) fn shared_by_client(&self, gpu: usize) -> Vec<(usize, u64)> {
        let rows = self.rows();
        self.shares()
            .iter()
            .filter(|share| share.gpu.load(SeqCst) as usize == gpu)
            .filter_map(|share| Some((share.charged(rows)?, share.bytes.load(SeqCst))))
            .collect()
    }

    /// Nothing is held any more by a client that is gone.
    pub(super) fn leave_all(&self, client: usize) {
        for share in self.shares() {
            share.let_go(client);
        }
    }

    fn share_row(&self, share: Share) -> Option<&ShareRow> {
        self.shares()
            .get(share.index as usize)
            .filter(|row| row.id.load(SeqCst) == share.id && row.is_held())
    }

    /// What a share is, if anybody holds it.
    pub fn shared(&self, share: Share) -> Option<Shared> {
        let row = self.share_row(share)?;
        Some(Shared {
            gpu: row.gpu.load(SeqCst) as usize,
            bytes: row.bytes.load(SeqCst),
            owner: row.owner_tgid.load(SeqCst),
        })
    }
}

impl Client {
    /// Turns an allocation of this client into a share that it holds. None where there are
    /// [`MAX_SHARES`] already.
    pub fn share(&self, gpu: usize, bytes: u64) -> Option<Share> {
        let _alone = self.devices.alone();
        let table = self.devices.mapping.table();
        let (index, row) = table
            .shares
            .iter()
            .enumerate()
            .find(|(_, row)| !row.is_held())?;
        let share = Share {
            index: u32::try_from(index).ok()?,
            id: table.last_share.fetch_add(1, SeqCst) + 1,
        };
        row.id.store(share.id, SeqCst);
        row.bytes.store(bytes, SeqCst);
        row.gpu.store(u32::try_from(gpu).ok()?, SeqCst);
        row.owner.store(u32::try_from(self.index).ok()?, SeqCst);
        row.owner_tgid.store(std::process::id(), SeqCst);
        table.shares_used.fetch_max(share.index + 1, SeqCst);
        // Counted twice for a moment rather than not at all: nobody else may get the bytes.
        row.hold(self.index);
        self.free(gpu, bytes);
        Some(share)
    }

    /// Holds a share of somebody else's too; false if nobody holds it any more.
    pub fn join(&self, share: Share) -> bool {
        let _alone = self.devices.alone();
        let row = self.devices.share_row(share);
        if let Some(row) = row {
            row.hold(self.index);
        }
        row.is_some()
    }

    /// Lets go of a share.
    pub fn leave(&self, share: Share) {
        if let Some(row) = self.devices.share_row(share) {
            row.let_go(self.index);
        }
    }

    /// A file that holds the share for as long as it is open anywhere: in this process, in forked
    /// children, in whoever it was sent to. `extra` can be read from it with [`read_ticket`].
    ///
    /// # Errors
    /// There are [`MAX_CLIENTS`] clients and such files, or the file cannot be made.
    pub fn ticket(&self, share: Option<Share>, extra: u64) -> Result<File, DeviceError> {
        let (index, file) = open_row(&self.devices, NO_PROCESS)?;
        let Share { index: place, id } = share.unwrap_or(Share {
            index: u32::MAX,
            id: 0,
        });
        let words = [MAGIC, u64::from(place), id, extra];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, 0)
            .map_err(|source| DeviceError::File {
                path: self.devices.client_path(index),
                source,
            })?;
        if let Some(row) = share.and_then(|share| self.devices.share_row(share)) {
            row.hold(index);
        }
        Ok(file)
    }
}

/// `gputrace` in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"gputrace");

/// What a file of [`Client::ticket`] is for: the share, if any, and the `extra` that it was given.
///
/// # Errors
/// The file cannot be read, or is no such file.
pub fn read_ticket(file: &File) -> io::Result<(Option<Share>, u64)> {
    let mut bytes = [0; 32];
    file.read_exact_at(&mut bytes, 0)?;
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let [MAGIC, place, id, extra] = words else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let share = u32::try_from(place)
        .ok()
        .filter(|index| *index != u32::MAX)
        .map(|index| Share { index, id });
    Ok((share, extra))
}
