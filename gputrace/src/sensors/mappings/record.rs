//! Records of perf's ring buffer: pure parsing of bytes.
//!
//! The layouts are those of linux/perf_event.h, for an event with `PERF_SAMPLE_TIME` and
//! `sample_id_all`: every record ends with the time at which it was written. Paths come from other
//! processes' mounts, so nothing in here is trusted.

use crate::event::BootTime;

/// Bytes of `struct perf_event_header`.
const HEADER: usize = 8;
/// `PERF_RECORD_LOST`.
const LOST: u32 = 2;
/// `PERF_RECORD_MMAP2`.
const MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_MMAP_BUILD_ID`: a build id stands in the place of device and inode.
const HAS_BUILD_ID: u16 = 1 << 14;
/// Where the path begins in a mapping's record.
const PATH: usize = 72;
/// Bytes behind the body: the time.
const TRAILER: usize = 8;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A process has mapped a file, executable.
    Mapped(Mapped<'a>),
    /// So many records found no room.
    Lost(u64),
    /// Another kind, or one that is cut.
    Other,
}

/// A new executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped<'a> {
    /// Who, in the PID namespace of the reader; 0 where it has no PID there.
    pub tgid: u32,
    /// Inode number of the file; 0 where the record does not say.
    pub inode: u64,
    /// Its path as the process sees it, without ` (deleted)`. The kernel writes `//toolong` for one
    /// beyond 4095 bytes.
    pub path: &'a [u8],
    /// When.
    pub at: BootTime,
}

impl Mapped<'_> {
    /// The last part of the path.
    #[must_use]
    pub fn file_name(&self) -> &[u8] {
        let start = self.path.iter().rposition(|&byte| byte == b'/');
        &self.path[start.map_or(0, |slash| slash + 1)..]
    }

    /// Whether the file may be one whose name begins so: it does, or the path was too long to tell.
    #[must_use]
    pub fn may_be(&self, prefix: &[u8]) -> bool {
        self.file_name().starts_with(prefix) || self.path == b"//toolong"
    }
}

/// The size that the record at the beginning of `bytes` says that it has; `None` where there is no
/// whole header or the size is impossible.
#[must_use]
pub fn size(bytes: &[u8]) -> Option<usize> {
    let size = usize::from(u16_at(bytes, 6)?);
    (size >= HEADER && size.is_multiple_of(8)).then_some(size)
}

/// Reads one whole record.
#[must_use]
pub fn parse(bytes: &[u8]) -> Record<'_> {
    read(bytes).unwrap_or(Record::Other)
}

fn read(bytes: &[u8]) -> Option<Record<'_>> {
    match u32_at(bytes, 0)? {
        LOST => Some(Record::Lost(u64_at(bytes, HEADER + 8)?)),
        MMAP2 => {
            let body = bytes.len().checked_sub(TRAILER)?;
            let path = bytes.get(PATH..body)?;
            let path = &path[..path.iter().position(|&byte| byte == 0)?];
            let has_inode = u16_at(bytes, 4)? & HAS_BUILD_ID == 0;
            Some(Record::Mapped(Mapped {
                tgid: u32_at(bytes, 8)?,
                inode: if has_inode { u64_at(bytes, 48)? } else { 0 },
                path: path.strip_suffix(b" (deleted)").unwrap_or(path),
                at: BootTime(u64_at(bytes, body)?),
            }))
        }
        _ => None,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record of this type with its header, body and time.
    fn record(kind: u32, misc: u16, body: &[u8], at: u64) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        let size = u16::try_from(HEADER + body.len() + TRAILER).unwrap();
        bytes.extend(size.to_ne_bytes());
        bytes.extend(body);
        bytes.extend(at.to_ne_bytes());
        bytes
    }

    fn mapping(path: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(4242u32.to_ne_bytes()); // pid
        body.extend(4243u32.to_ne_bytes()); // tid
        for number in [0x7f00_0000_0000u64, 0x1000, 0x2000] {
            body.extend(number.to_ne_bytes()); // addr, len, pgoff
        }
        body.extend([8u32, 1].map(u32::to_ne_bytes).concat()); // maj, min
        body.extend(77u64.to_ne_bytes()); // ino
        body.extend(5u64.to_ne_bytes()); // generation
        body.extend([5u32, 2].map(u32::to_ne_bytes).concat()); // prot, flags
        assert_eq!(HEADER + body.len(), PATH);
        body.extend(path);
        body.push(0);
        body.resize(body.len().next_multiple_of(8), 0);
        body
    }

    #[test]
    fn a_mapping_is_read() {
        let bytes = record(MMAP2, 2, &mapping(b"/usr/lib/libcuda.so.550"), 99);
        assert_eq!(size(&bytes), Some(bytes.len()));
        let Record::Mapped(mapped) = parse(&bytes) else {
            panic!()
        };
        assert_eq!((mapped.tgid, mapped.inode, mapped.at.0), (4242, 77, 99));
        assert_eq!(mapped.path, b"/usr/lib/libcuda.so.550");
        assert_eq!(mapped.file_name(), b"libcuda.so.550");
        assert!(mapped.may_be(b"libcuda.so") && !mapped.may_be(b"libcudart"));
    }

    #[test]
    fn the_kernels_remarks_on_a_path_are_understood() {
        let bytes = record(MMAP2, 2, &mapping(b"/x/libcuda.so.1 (deleted)"), 1);
        let Record::Mapped(mapped) = parse(&bytes) else {
            panic!()
        };
        assert_eq!(mapped.path, b"/x/libcuda.so.1");
        let bytes = record(MMAP2, 2, &mapping(b"//toolong"), 1);
        assert!(matches!(parse(&bytes), Record::Mapped(it) if it.may_be(b"libcuda.so")));
        let bytes = record(MMAP2, 2, &mapping(b"//anon"), 1);
        assert!(matches!(parse(&bytes), Record::Mapped(it) if !it.may_be(b"libcuda.so")));
    }

    #[test]
    fn a_build_id_is_no_inode() {
        let bytes = record(MMAP2, 2 | HAS_BUILD_ID, &mapping(b"/libcuda.so"), 1);
        assert!(matches!(parse(&bytes), Record::Mapped(it) if it.inode == 0));
    }

    #[test]
    fn losses_are_counted() {
        let body = [3u64, 12].map(u64::to_ne_bytes).concat();
        assert_eq!(parse(&record(LOST, 0, &body, 5)), Record::Lost(12));
    }

    #[test]
    fn what_is_cut_is_nothing() {
        let whole = record(MMAP2, 2, &mapping(b"/usr/lib/libcuda.so.1"), 99);
        for length in 0..PATH + TRAILER {
            assert_eq!(parse(&whole[..length]), Record::Other, "{length}");
        }
        // A path without its end.
        let mut open = whole.clone();
        open[PATH..].fill(b'a');
        assert_eq!(parse(&open), Record::Other);
        for bad in [0u16, 7, 9, 4] {
            let mut header = whole.clone();
            header[6..8].copy_from_slice(&bad.to_ne_bytes());
            assert_eq!(size(&header), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            kind in prop_oneof![Just(MMAP2), Just(LOST), any::<u32>()],
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(rest);
            let _ = size(&bytes);
            if let Record::Mapped(mapped) = parse(&bytes) {
                let _ = mapped.may_be(mapped.file_name());
            }
        }
    }
}
