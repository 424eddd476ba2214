//! Executable files as processes map them: `PERF_RECORD_MMAP2`, of the whole host.
//!
//! The kernel writes one record for each executable mapping, into a ring of the CPU on which it was
//! made, whatever mount and PID namespace the process is in. There are as many as libraries are
//! loaded, so the reader sleeps a moment between two looks: it is woken at most 100 times a second.

pub mod record;
mod ring;

use std::{fs, io, os::fd::AsFd as _, path::PathBuf, time::Duration};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::event::BootTime;
use record::Record;
use ring::Ring;

/// Most mappings that wait to be looked at; beyond, a rescan finds them.
const MAX_WAITING: usize = 4096;

/// A new mapping of a file with one of the wanted names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Who.
    pub tgid: u32,
    /// Inode number of the file; 0 where it is not known.
    pub inode: u64,
    /// The path as the process sees it.
    pub path: Vec<u8>,
    /// When.
    pub at: BootTime,
}

/// New mappings, oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// What was mapped.
    pub mapped: Vec<Mapped>,
    /// Some mappings were not recorded: only a look at every process tells what they were.
    pub lost: bool,
}

impl News {
    /// Adds later ones.
    pub fn add(&mut self, later: Self) {
        self.mapped.extend(later.mapped);
        self.lost |= later.lost;
    }
}

/// Watches the mappings of all processes.
#[derive(Debug)]
pub struct Mappings {
    rings: Vec<(u32, Ring)>,
    prefix: &'static [u8],
    online: PathBuf,
}

impl Mappings {
    /// Begins to watch for files whose names begin with `prefix`.
    ///
    /// # Errors
    /// Where the kernel does not allow it: it takes `CAP_PERFMON`.
    pub fn watch(prefix: &'static [u8]) -> io::Result<Self> {
        let mut mappings = Self {
            rings: Vec::new(),
            prefix,
            online: PathBuf::from("/sys/devices/system/cpu/online"),
        };
        mappings.follow_cpus()?;
        Ok(mappings)
    }

    /// Watches CPUs that have come and forgets those that have gone. Returns whether any has come:
    /// what was mapped there before is not known.
    ///
    /// # Errors
    /// Where a CPU cannot be watched.
    pub fn follow_cpus(&mut self) -> io::Result<bool> {
        let online = cpus(&fs::read_to_string(&self.online)?);
        self.rings.retain(|(cpu, _)| online.contains(cpu));
        let mut any = false;
        for cpu in online {
            if self.rings.iter().all(|(known, _)| *known != cpu) {
                match Ring::open(cpu) {
                    Ok(ring) => self.rings.push((cpu, ring)),
                    // It went offline meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                    Err(error) => return Err(error),
                }
                any = true;
            }
        }
        Ok(any)
    }

    /// Waits until something was mapped, `other` can be read, or the time is over. Returns whether
    /// `other` can be read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, other: impl std::os::fd::AsFd, time: Duration) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(other.as_fd(), PollFlags::POLLIN)];
        let rings = self.rings.iter().map(|(_, ring)| ring.as_fd());
        fds.extend(rings.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(fds[0].any().unwrap_or(false))
    }

    /// What was mapped since the last call.
    pub fn news(&mut self) -> News {
        let mut news = News::default();
        let prefix = self.prefix;
        for (_, ring) in &mut self.rings {
            let all = ring.drain(|bytes| match record::parse(bytes) {
                Record::Mapped(it) if it.tgid != 0 && it.may_be(prefix) => {
                    if news.mapped.len() < MAX_WAITING {
                        news.mapped.push(Mapped {
                            tgid: it.tgid,
                            inode: it.inode,
                            path: it.path.to_vec(),
                            at: it.at,
                        });
                    } else {
                        news.lost = true;
                    }
                }
                Record::Lost(_) => news.lost = true,
                _ => {}
            });
            news.lost |= !all;
        }
        news.mapped.sort_by_key(|mapped| mapped.at);
        news
    }
}

/// The numbers in a list such as `0-3,8`; what is none is left out.
fn cpus(list: &str) -> Vec<u32> {
    /// More than any kernel is built for.
    const MOST: u32 = 1 << 16;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = first.trim().parse::<u32>().ok()?;
        Some(first..=last.trim().parse::<u32>().ok()?.min(MOST))
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("0\n"), [0]);
        for odd in ["", "\n", "x", "3-1", "-", "-1", "1-x"] {
            assert_eq!(cpus(odd), [0; 0], "{odd:?}");
        }
        assert!(cpus("0-4294967295").len() <= 1 << 17);
    }

    /// Needs the right to watch; without it there is nothing to test.
    #[test]
    fn a_mapping_of_this_process_is_seen() {
        let mut mappings = match Mappings::watch(b"seen-by-name") {
            Ok(mappings) => mappings,
            Err(error) => {
                eprintln!("skipped: mappings cannot be watched here: {error}");
                return;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen-by-name.so");
        fs::copy("/proc/self/exe", &path).unwrap();
        // A link with the name is not a file with it: the kernel names the file.
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let before = crate::clock::now();
        let file = fs::File::open(&link).unwrap();
        let length = std::num::NonZeroUsize::new(4096).unwrap();
        use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: a new mapping that nothing uses, unmapped again.
        unsafe {
            let at = mmap(None, length, protection, MapFlags::MAP_PRIVATE, &file, 0).unwrap();
            munmap(at, 4096).unwrap();
        }
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!mappings.wait(&reader, Duration::from_secs(10)).unwrap());
        let news = mappings.news();
        assert_eq!(news.mapped.len(), 1, "{news:?}");
        let mapped = &news.mapped[0];
        assert_eq!(mapped.tgid, std::process::id());
        assert!(mapped.path.ends_with(b"/seen-by-name.so"));
        assert!(mapped.at >= before && mapped.at <= crate::clock::now());
        assert_eq!(mappings.news(), News::default());
    }
}
