//! One CPU's ring buffer of mappings: `perf_event_open(2)` and the memory that it shares.

use std::{
    io,
    num::NonZeroUsize,
    os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::record;

/// Bytes of records that a ring holds: some 600 mappings, that is, of 60,000 a second on one CPU
/// with a look at it every 10 ms.
const DATA: usize = 64 << 10;

// From linux/perf_event.h.
const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_DUMMY: u64 = 9;
const SAMPLE_TIME: u64 = 1 << 2;
const MMAP: u64 = 1 << 8;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const USE_CLOCKID: u64 = 1 << 25;
const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
/// Where `data_head` and `data_tail` lie in `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER3` (Linux 3.7, with the clock since 4.1).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers: u64,
    stack: u32,
    clock: i32,
}

/// The ring of one CPU. The kernel writes to it; dropping it ends that.
#[derive(Debug)]
pub struct Ring {
    fd: OwnedFd,
    /// One page of positions, then [`DATA`] bytes of records.
    memory: NonNull<u8>,
    page: usize,
    /// A record that goes over the ring's end.
    whole: Vec<u8>,
}

// SAFETY: the memory belongs to the ring alone, and is reached through `&mut self` only.
unsafe impl Send for Ring {}

impl Ring {
    /// Watches the executable mappings that are made on a CPU, by any process.
    ///
    /// # Errors
    /// The kernel's: `EACCES` or `EPERM` without the right to, `ENODEV` where the CPU is offline.
    pub fn open(cpu: u32) -> io::Result<Self> {
        let attributes = Attributes {
            kind: TYPE_SOFTWARE,
            // 96 fits.
            size: u32::try_from(size_of::<Attributes>()).unwrap_or(0),
            config: COUNT_SW_DUMMY,
            sample_type: SAMPLE_TIME,
            flags: MMAP | MMAP2 | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID,
            // The first byte wakes the reader.
            wakeup_watermark: 1,
            clock: libc::CLOCK_BOOTTIME,
            ..Attributes::default()
        };
        let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
        // SAFETY: the attributes are of the size that they say, and live during the call. All
        // processes (-1) on one CPU, no group.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                -1,
                cpu,
                -1,
                FLAG_FD_CLOEXEC,
            )
        };
        let fd = match RawFd::try_from(fd) {
            // SAFETY: a new descriptor that nobody else owns.
            Ok(fd) if fd >= 0 => unsafe { OwnedFd::from_raw_fd(fd) },
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(io::Error::other)?;
        let length = NonZeroUsize::new(page + DATA).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, &fd, 0)? };
        Ok(Self {
            fd,
            memory: memory.cast(),
            page,
            whole: Vec::new(),
        })
    }

    /// Hands every record that is there to `each`, and frees their room. `false` if some of them
    /// could not be told apart.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        // The kernel writes records before it moves the head.
        let head = self.position(HEAD).load(Ordering::Acquire);
        let mut tail = self.position(TAIL).load(Ordering::Relaxed);
        while tail < head {
            let left = usize::try_from(head - tail).unwrap_or(0).min(DATA);
            let mut header = [0; 8];
            self.copy(tail, &mut header);
            let Some(size) = record::size(&header).filter(|&size| size <= left) else {
                break; // Not what the kernel writes.
            };
            let mut whole = std::mem::take(&mut self.whole);
            whole.resize(size, 0);
            self.copy(tail, &mut whole);
            each(&whole);
            self.whole = whole;
            tail += size as u64;
        }
        // What was read is read before the kernel writes over it.
        self.position(TAIL).store(head, Ordering::Release);
        tail >= head
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the first page, aligned, and shared with the kernel, which loads and
        // stores it whole.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    /// Copies bytes from a position that only grows.
    fn copy(&self, position: u64, to: &mut [u8]) {
        let start = usize::try_from(position % DATA as u64).unwrap_or(0);
        let first = to.len().min(DATA - start);
        let (head, rest) = to.split_at_mut(first);
        // SAFETY: the data is the `DATA` bytes behind the first page, `start + first` and
        // `rest.len()` are within it, and the kernel does not write between tail and head.
        unsafe {
            let data = self.memory.as_ptr().add(self.page);
            data.add(start)
                .copy_to_nonoverlapping(head.as_mut_ptr(), head.len());
            data.copy_to_nonoverlapping(rest.as_mut_ptr(), rest.len().min(DATA));
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`, to which nobody has a reference any more.
        let _ = unsafe { munmap(self.memory.cast(), self.page + DATA) };
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn attributes_have_the_layout_of_linux_perf_event_h() {
        assert_eq!(offset_of!(Attributes, flags), 40);
        assert_eq!(offset_of!(Attributes, wakeup_watermark), 48);
        assert_eq!(offset_of!(Attributes, clock), 92);
        assert_eq!(size_of::<Attributes>(), 96);
    }
}
