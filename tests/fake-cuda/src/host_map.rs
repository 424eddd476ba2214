//! Real memory of the process: for what the program itself may read and write.

use std::ptr;

const PAGE: u64 = 4096;

fn length(bytes: u64) -> Option<usize> {
    usize::try_from(bytes.checked_next_multiple_of(PAGE)?).ok()
}

/// Maps so many bytes, which take real memory only where they are written.
pub fn map(bytes: u64) -> Option<u64> {
    let length = length(bytes)?;
    // SAFETY: a new private mapping at a place that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (address != libc::MAP_FAILED).then(|| address.expose_provenance() as u64)
}

/// Unmaps what [`map`] gave for so many bytes.
pub fn unmap(address: u64, bytes: u64) {
    let (Ok(address), Some(length)) = (usize::try_from(address), length(bytes)) else {
        return;
    };
    // SAFETY: exactly what `map` mapped; that nothing uses it any more is for the program that frees
    // it to see to, as with the real driver.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(address), length) };
}
