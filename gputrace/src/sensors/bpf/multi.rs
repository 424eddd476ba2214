//! `uprobe.multi`: every function of a library in one link (kernel 6.6).
//!
//! aya 0.14 loads uprobe programs without the attach type that such a link needs. The object's
//! instructions are therefore relocated once more, against the maps that aya has made, and loaded
//! and linked with two system calls. This module goes when aya can do it (0.16 can).

use std::{
    collections::{HashMap, HashSet},
    ffi::{CString, NulError},
    io,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use aya::{
    Ebpf,
    maps::{Map, MapData},
};
use aya_obj::Object;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum MultiError {
    /// The object cannot be read.
    #[error("the eBPF object cannot be read: {0}")]
    Parse(#[from] aya_obj::ParseError),
    /// The object cannot be relocated.
    #[error("the eBPF object cannot be relocated: {0}")]
    Relocate(#[from] aya_obj::relocation::EbpfRelocationError),
    /// The object lacks a program.
    #[error("the eBPF object has no program '{0}'")]
    NoProgram(&'static str),
    /// The kernel refused a program.
    #[error("the kernel refused the program '{program}': {source}{}", shown(.log))]
    Load {
        /// Which.
        program: &'static str,
        /// Why.
        source: io::Error,
        /// The end of the verifier's log.
        log: String,
    },
    /// The kernel refused the link.
    #[error("the kernel refused to attach '{program}': {source}")]
    Link {
        /// Which.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The library's path has a NUL byte.
    #[error("the library's path cannot be passed to the kernel: {0}")]
    Path(#[from] NulError),
}

fn shown(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("\n{log}")
    }
}

/// A place to probe.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Offset in the file.
    pub offset: u64,
    /// What `bpf_get_attach_cookie` gives there.
    pub cookie: u64,
}

/// The entry and the return program, loaded for `uprobe.multi`.
#[derive(Debug)]
pub struct MultiPrograms {
    enter: OwnedFd,
    leave: OwnedFd,
    count: OwnedFd,
}

/// A link; closing it takes the probes out.
#[derive(Debug)]
pub struct MultiLink {
    _fd: OwnedFd,
}

const ENTER: &str = "call_enter";
const LEAVE: &str = "call_return";
const COUNT: &str = "activity_return";

impl MultiPrograms {
    /// Loads the two programs against the maps of `ebpf`, which come from the same object with the
    /// same constants.
    ///
    /// # Errors
    /// Where the object does not fit or the kernel refuses a program: without this kind of link,
    /// it does so with `EINVAL`.
    pub fn load(object: &[u8], ebpf: &Ebpf) -> Result<Self, MultiError> {
        let mut object = Object::parse(object)?;
        let fds: HashMap<&str, RawFd> = ebpf
            .maps()
            .filter_map(|(name, map)| Some((name, fd(map)?)))
            .collect();
        let text: HashSet<usize> = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        let maps = std::mem::take(&mut object.maps);
        object.relocate_maps(
            maps.iter()
                .filter_map(|(name, map)| Some((name.as_str(), *fds.get(name.as_str())?, map))),
            &text,
        )?;
        object.relocate_calls(&text)?;
        object.sanitize_functions(aya::features());
        Ok(Self {
            enter: load(&object, ENTER)?,
            leave: load(&object, LEAVE)?,
            count: load(&object, COUNT)?,
        })
    }

    /// Probes entry and return at every point of `followed` in the file at `path`, and the return
    /// alone at those of `counted`. With `process`, only in that one (kernel 6.11: before, the
    /// kernel compared threads).
    ///
    /// # Errors
    /// Where the kernel refuses.
    pub fn attach(
        &self,
        path: &Path,
        followed: &[Point],
        counted: &[Point],
        process: Option<u32>,
    ) -> Result<Vec<MultiLink>, MultiError> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // Entry first: a return without an entry is no call, an entry without a return is dropped.
        let mut links = Vec::new();
        for (program, name, points, flags) in [
            (&self.enter, ENTER, followed, 0),
            (&self.leave, LEAVE, followed, BPF_F_UPROBE_MULTI_RETURN),
            (&self.count, COUNT, counted, BPF_F_UPROBE_MULTI_RETURN),
        ] {
            if points.is_empty() {
                continue; // the kernel refuses a link without a point
            }
            let made = link(program, &path, points, flags, process);
            links.push(made.map_err(|source| MultiError::Link {
                program: name,
                source,
            })?);
        }
        Ok(links)
    }
}

/// The descriptor of a map of one of the kinds that the object has.
fn fd(map: &Map) -> Option<RawFd> {
    let data: &MapData = match map {
        Map::Array(data) | Map::HashMap(data) | Map::RingBuf(data) | Map::StackTraceMap(data) => {
            data
        }
        _ => return None,
    };
    Some(data.fd().as_fd().as_raw_fd())
}

// From linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

/// `union bpf_attr` for `BPF_PROG_LOAD`, up to the last member that is set.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `union bpf_attr` for `BPF_LINK_CREATE` with a `uprobe_multi` part.
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    padding: u32,
}

/// The `bpf` system call for commands that give a descriptor.
///
/// # Safety
/// `attr` is the attribute of `command`, and the pointers in it are valid during the call.
unsafe fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: promised by the caller.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    match RawFd::try_from(result) {
        // SAFETY: a new descriptor that nobody else owns; the kernel sets it close-on-exec.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn load(object: &Object, name: &'static str) -> Result<OwnedFd, MultiError> {
    let program = object
        .programs
        .get(name)
        .ok_or(MultiError::NoProgram(name))?;
    let function = object
        .functions
        .get(&program.function_key())
        .ok_or(MultiError::NoProgram(name))?;
    let try_load = |log: &mut [u8]| {
        let mut attr = LoadAttr {
            prog_type: BPF_PROG_TYPE_KPROBE,
            insn_cnt: u32::try_from(function.instructions.len()).unwrap_or(u32::MAX),
            insns: function.instructions.as_ptr() as u64,
            license: program.license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: u32::try_from(log.len()).unwrap_or(0),
            log_buf: if log.is_empty() {
                0
            } else {
                log.as_mut_ptr() as u64
            },
            expected_attach_type: BPF_TRACE_UPROBE_MULTI,
            ..LoadAttr::default()
        };
        // The kernel wants 15 characters at most and a NUL.
        for (to, from) in attr.prog_name[..15].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        // SAFETY: the attribute of this command; its pointers outlive the call.
        unsafe { bpf(BPF_PROG_LOAD, &mut attr) }
    };
    try_load(&mut []).or_else(|_| {
        // Once more with the verifier's log, to say why.
        let mut log = vec![0; 1 << 20];
        try_load(&mut log).map_err(|source| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
            let start = end.saturating_sub(2000);
            MultiError::Load {
                program: name,
                source,
                log: String::from_utf8_lossy(&log[start..end]).into_owned(),
            }
        })
    })
}

fn link(
    program: &OwnedFd,
    path: &CString,
    points: &[Point],
    flags: u32,
    process: Option<u32>,
) -> io::Result<MultiLink> {
    let offsets: Vec<u64> = points.iter().map(|p| p.offset).collect();
    let cookies: Vec<u64> = points.iter().map(|p| p.cookie).collect();
    let mut attr = LinkAttr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_fd: 0,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        ref_ctr_offsets: 0,
        cookies: cookies.as_ptr() as u64,
        cnt: u32::try_from(points.len()).unwrap_or(u32::MAX),
        multi_flags: flags,
        pid: process.unwrap_or(0),
        padding: 0,
    };
    // SAFETY: the attribute of this command; its pointers outlive the call.
    unsafe { bpf(BPF_LINK_CREATE, &mut attr) }.map(|fd| MultiLink { _fd: fd })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_layout_of_linux_bpf_h() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(LoadAttr, expected_attach_type), 68);
        assert_eq!(offset_of!(LinkAttr, path), 16);
        assert_eq!(offset_of!(LinkAttr, cookies), 40);
        assert_eq!(offset_of!(LinkAttr, pid), 56);
        assert_eq!(size_of::<LinkAttr>(), 64);
    }
}
