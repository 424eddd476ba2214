//! Memory of other processes: opened by an IPC handle, or imported from another API.

use crate::context::Context;
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::memory::Origin;
use crate::objects::{Kind, Objects, OfContext};
use crate::result::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED,
    OUT_OF_MEMORY, code, give, take,
};
use crate::vmm::read_descriptor;
use gputrace_test_rig::device::Share;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUipcMemHandle`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemHandle([u8; 64]);

/// What the 64 bytes are to this library; to a program they are opaque.
#[repr(C)]
#[derive(Clone, Copy)]
struct Content {
    magic: u64,
    id: u64,
    index: u64,
    owner: u64,
}

const MAGIC: u64 = u64::from_be_bytes(*b"fake-ipc");

impl MemHandle {
    /// For a share that this process exports.
    pub fn new(share: Share) -> Self {
        let words = [
            MAGIC,
            share.id,
            u64::from(share.index),
            u64::from(std::process::id()),
        ];
        let mut bytes = [0; 64];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        Self(bytes)
    }

    /// The share that it is for.
    pub fn share(&self) -> Option<Share> {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(self.0.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let content = Content {
            magic: words[0],
            id: words[1],
            index: words[2],
            owner: words[3],
        };
        let index = u32::try_from(content.index).ok()?;
        (content.magic == MAGIC && content.owner != 0).then_some(Share {
            index,
            id: content.id,
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Opened {
    share: Share,
    context: Context,
    bytes: u64,
    count: u64,
}

/// Memory of another API or of an exported descriptor.
#[derive(Debug, Clone)]
struct External {
    share: Option<Share>,
    context: Context,
    bytes: u64,
    /// Addresses and sizes of what is mapped of it.
    buffers: Vec<(u64, u64)>,
}

impl OfContext for External {
    fn context(&self) -> Option<Context> {
        Some(self.context)
    }
}

/// What this process has opened of others.
pub struct Ipc {
    /// By address.
    opened: Mutex<HashMap<u64, Opened>>,
    external: Objects<External>,
}

impl Ipc {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            opened: Mutex::new(HashMap::new()),
            external: Objects::new(Kind::External),
        }
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<u64, Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was opened around an address, and its size.
    pub fn around(&self, address: u64) -> Option<(u64, u64)> {
        self.opened()
            .iter()
            .find(|(first, opened)| address >= **first && address - **first < opened.bytes)
            .map(|(first, opened)| (*first, opened.bytes))
    }

    /// Frees what is mapped of external memory at an address; false if nothing is.
    pub fn free_buffer(&self, driver: &Driver, address: u64) -> bool {
        let take = |external: &mut External| {
            let at = external.buffers.iter().position(|(it, _)| *it == address)?;
            Some(external.buffers.swap_remove(at))
        };
        let taken = self.external.lock().values_mut().find_map(take);
        let found = taken.is_some();
        if let Some((address, bytes)) = taken {
            driver.memory.give_address_back(address, bytes);
        }
        found
    }

    /// Closes what belongs to a context that has just been destroyed.
    pub fn free_all_of(&self, driver: &Driver, context: Context) {
        let gone: Vec<_> = self
            .opened()
            .extract_if(|_, opened| opened.context == context)
            .collect();
        for (address, opened) in gone {
            close_address(driver, address, opened);
        }
        for external in self.external.extract_of(context) {
            external.close(driver);
        }
    }
}

fn close_address(driver: &Driver, address: u64, opened: Opened) {
    driver.shares.leave(&driver.client, opened.share);
    driver.memory.give_address_back(address, opened.bytes);
}

impl External {
    fn close(self, driver: &Driver) {
        if let Some(share) = self.share {
            driver.shares.leave(&driver.client, share);
        }
        for (address, bytes) in self.buffers {
            driver.memory.give_address_back(address, bytes);
        }
    }
}

/// Makes the allocation around an address one that other processes can open.
pub fn share_of(
    driver: &Driver,
    address: u64,
    allowed: impl Fn(Origin) -> bool,
) -> Result<Share, Code> {
    let (base, _) = driver.memory.around(address).ok_or(INVALID_VALUE)?;
    driver
        .memory
        .change(base, |block| {
            if !allowed(block.origin) {
                return Err(INVALID_VALUE);
            }
            if let Some(share) = block.share {
                return Ok(share);
            }
            let share = driver
                .shares
                .make(&driver.client, block.gpu, block.bytes)
                .ok_or(OUT_OF_MEMORY)?;
            block.share = Some(share);
            Ok(share)
        })
        .ok_or(INVALID_VALUE)?
}

/// `cuIpcGetMemHandle`: of memory that `cuMemAlloc` gave.
pub unsafe extern "C" fn get_handle(to: *mut MemHandle, address: u64) -> Code {
    code(driver().and_then(|driver| {
        current::context()?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let share = share_of(driver, address, |origin| origin == Origin::Device)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, MemHandle::new(share)) }
    }))
}

/// `cuIpcOpenMemHandle` and `_v2`. A process cannot open what is its own.
pub unsafe extern "C" fn open(to: *mut u64, handle: MemHandle, flags: c_uint) -> Code {
    /// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
    const LAZY: c_uint = 1;
    code(driver().and_then(|driver| {
        strike(Family::Ipc)?;
        let context = current::context()?;
        if to.is_null() || flags & !LAZY != 0 {
            return Err(INVALID_VALUE);
        }
        let share = handle.share().ok_or(INVALID_VALUE)?;
        let shared = driver.client.devices().shared(share).ok_or(INVALID_VALUE)?;
        if shared.owner == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        let mut opened = driver.ipc.opened();
        // Looked at under the lock that its destruction takes afterwards.
        if !driver.contexts.lives(context) {
            return Err(CONTEXT_IS_DESTROYED);
        }
        let again = opened
            .iter_mut()
            .find(|(_, known)| known.share == share && known.context == context);
        if let Some((address, known)) = again {
            known.count += 1;
            // SAFETY: the caller of the driver API vouches for its pointer.
            return unsafe { give(to, *address) };
        }
        if !driver.shares.join(&driver.client, share) {
            return Err(INVALID_VALUE);
        }
        let address = match driver.memory.take_address(shared.bytes) {
            Ok(address) => address,
            Err(code) => {
                driver.shares.leave(&driver.client, share);
                return Err(code);
            }
        };
        opened.insert(
            address,
            Opened {
                share,
                context,
                bytes: shared.bytes,
                count: 1,
            },
        );
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, address) }
    }))
}

/// `cuIpcCloseMemHandle`.
pub unsafe extern "C" fn close(address: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        current::context()?;
        let mut opened = driver.ipc.opened();
        let known = opened.get_mut(&address).ok_or(INVALID_VALUE)?;
        known.count -= 1;
        if known.count == 0
            && let Some(known) = opened.remove(&address)
        {
            close_address(driver, address, known);
        }
        Ok(())
    }))
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HandleDescription {
    kind: c_uint,
    /// A descriptor, or two pointers.
    handle: [u64; 2],
    size: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BufferDescription {
    offset: u64,
    size: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

const _: () =
    assert!(size_of::<HandleDescription>() == 104 && size_of::<BufferDescription>() == 88);

/// `cuImportExternalMemory`: of another API's descriptor, which the driver closes in the end; here at
/// once. One that this library exported keeps its memory.
pub unsafe extern "C" fn import_external(
    to: *mut u64,
    description: *const HandleDescription,
) -> Code {
    /// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
    const OPAQUE_DESCRIPTOR: c_uint = 1;
    code(driver().and_then(|driver| {
        strike(Family::Ipc)?;
        let context = current::context()?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let description = unsafe { take(description)? };
        if to.is_null() || description.size == 0 {
            return Err(INVALID_VALUE);
        }
        if description.kind != OPAQUE_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        // The union's first 32 bits.
        let descriptor = description.handle[0] & u64::from(u32::MAX);
        let number = c_int::try_from(descriptor).map_err(|_| INVALID_VALUE)?;
        // SAFETY: asks about a number, open or not.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
            return Err(INVALID_VALUE);
        }
        let share = read_descriptor(descriptor)
            .ok()
            .and_then(|(share, _)| share);
        if let Some(share) = share
            && !driver.shares.join(&driver.client, share)
        {
            return Err(INVALID_VALUE);
        }
        // SAFETY: it was open, and with success it has become the driver's, as the API says.
        unsafe { libc::close(number) };
        let external = driver.ipc.external.insert(External {
            share,
            context,
            bytes: description.size,
            buffers: Vec::new(),
        });
        if !driver.contexts.lives(context) {
            driver.ipc.free_all_of(driver, context);
            return Err(CONTEXT_IS_DESTROYED);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, external) }
    }))
}

/// `cuExternalMemoryGetMappedBuffer`.
pub unsafe extern "C" fn mapped_buffer(
    to: *mut u64,
    external: u64,
    description: *const BufferDescription,
) -> Code {
    code(driver().and_then(|driver| {
        current::context()?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        let description = unsafe { take(description)? };
        let mut externals = driver.ipc.external.lock();
        let external = externals.get_mut(external).ok_or(INVALID_HANDLE)?;
        let end = description.offset.checked_add(description.size);
        if to.is_null() || description.size == 0 || end.is_none_or(|end| end > external.bytes) {
            return Err(INVALID_VALUE);
        }
        let address = driver.memory.take_address(description.size)?;
        external.buffers.push((address, description.size));
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, address) }
    }))
}

/// `cuDestroyExternalMemory`.
pub unsafe extern "C" fn destroy_external(external: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        driver
            .ipc
            .external
            .remove(external)
            .ok_or(INVALID_HANDLE)?
            .close(driver);
        Ok(())
    }))
}
