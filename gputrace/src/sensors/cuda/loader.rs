//! Where the dynamic loader finds `libcuda.so`.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// What the name of every copy of the library begins with: `libcuda.so`, `libcuda.so.1`,
/// `libcuda.so.550.163.01`, and on WSL `libcuda.so.1.1`. (`libcudart.so` and
/// `libcudadebugger.so` do not.)
pub const LIBCUDA: &[u8] = b"libcuda.so";

/// The loader's cache, relative to the root of the file system.
const CACHE: &str = "etc/ld.so.cache";

/// Largest cache read; a full distribution's has some 100 KB.
const MAX_CACHE: u64 = 16 << 20;

/// Directories that hold the library without the loader's cache knowing it, relative to the root
/// of the file system.
const DIRECTORIES: [&str; 12] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
    // Containers of older runtimes.
    "usr/local/nvidia/lib64",
    // The forward-compatibility package.
    "usr/local/cuda/compat",
    // Drivers installed by a container on the host.
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    // NixOS, and Windows' subsystem for Linux.
    "run/opengl-driver/lib",
    "usr/lib/wsl/lib",
];

/// Paths below `root` at which the library may be: those that the loader's cache names, then all
/// that are in the usual directories. Neither is checked any further; the same file may appear
/// under several names.
pub fn standard_paths(root: &Path) -> Vec<PathBuf> {
    let mut cache = Vec::new();
    // Without a cache (musl, a stripped container) the directories have to do.
    let _ =
        File::open(root.join(CACHE)).and_then(|file| file.take(MAX_CACHE).read_to_end(&mut cache));
    let mut paths: Vec<PathBuf> = parse_cache(&cache)
        .filter(|(name, _)| name.starts_with(LIBCUDA))
        .filter_map(|(_, path)| {
            let path = Path::new(OsStr::from_bytes(path)).strip_prefix("/").ok()?;
            Some(root.join(path))
        })
        .collect();
    for directory in DIRECTORIES {
        paths.extend(libraries_in(&root.join(directory)));
    }
    paths
}

/// What is called like the library in a directory; nothing if that cannot be read.
pub fn libraries_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().starts_with(LIBCUDA))
        .map(|entry| entry.path())
        .collect();
    // The order of a directory is arbitrary; answers should not be.
    found.sort();
    found
}

/// The 64-bit x86 libraries in a loader's cache: (name, path), in its order. Anything that is not a
/// cache of glibc 2.2 or later in this byte order holds none.
///
/// The format is `struct cache_file_new` of glibc's sysdeps/generic/dl-cache.h, possibly behind a
/// cache in the format of 1996.
pub fn parse_cache(cache: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    /// `FLAG_ELF_LIBC6 | FLAG_X8664_LIB64`.
    const X86_64: u32 = 0x0303;

    let cache = match cache.strip_prefix(OLD_MAGIC) {
        Some(old) => {
            // Its entries have 12 bytes; what follows is aligned to 8.
            let entries = u32_at(old, 0).unwrap_or(u32::MAX) as usize;
            let length = entries.saturating_mul(12).saturating_add(16);
            let length = length.checked_next_multiple_of(8).unwrap_or(usize::MAX);
            cache.get(length..).unwrap_or_default()
        }
        None => cache,
    };
    let valid = cache.starts_with(MAGIC);
    let count = if valid { u32_at(cache, 20) } else { None }.unwrap_or(0) as usize;
    let entries = cache.get(HEADER..).unwrap_or_default();
    entries
        .chunks_exact(ENTRY)
        .take(count)
        .filter(|entry| u32_at(entry, 0) == Some(X86_64))
        .filter_map(move |entry| {
            let name = string_at(cache, u32_at(entry, 4)?)?;
            let path = string_at(cache, u32_at(entry, 8)?)?;
            Some((name, path))
        })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn string_at(cache: &[u8], at: u32) -> Option<&[u8]> {
    // Names are short; a look for the end of a longer one would make garbage slow to read.
    let rest = cache.get(at as usize..)?;
    let rest = &rest[..rest.len().min(4096)];
    rest.iter()
        .position(|&byte| byte == 0)
        .map(|end| &rest[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache with the given (flags, name, path).
    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let strings_at = 48 + 24 * entries.len();
        let mut add = |text: &str| {
            let at = u32::try_from(strings_at + strings.len()).unwrap();
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        for (flags, name, path) in entries {
            let (name, path) = (add(name), add(path));
            table.extend([*flags, name, path, 0].map(u32::to_ne_bytes).concat());
            table.extend([0; 8]);
        }
        let mut file = b"glibc-ld.so.cache1.1".to_vec();
        file.extend(u32::try_from(entries.len()).unwrap().to_ne_bytes());
        file.extend(u32::try_from(strings.len()).unwrap().to_ne_bytes());
        file.resize(48, 0);
        file.extend(table);
        file.extend(strings);
        file
    }

    fn sample() -> Vec<u8> {
        cache(&[
            (0x0303, "libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
            (0x0003, "libcuda.so.1", "/usr/lib32/libcuda.so.1"),
            (0x0303, "libcuda.so.1", "/opt/driver/libcuda.so.1"),
            (0x0303, "libcudart.so.12", "/usr/local/cuda/libcudart.so.12"),
        ])
    }

    #[test]
    fn the_cache_names_64_bit_libraries() {
        let cache = sample();
        let entries: Vec<_> = parse_cache(&cache).collect();
        assert_eq!(entries.len(), 3);
        assert_eq!(
            entries[1],
            (&b"libcuda.so.1"[..], &b"/opt/driver/libcuda.so.1"[..])
        );
    }

    #[test]
    fn a_cache_behind_one_of_the_old_format() {
        let mut both = b"ld.so-1.7.0\0".to_vec();
        both.extend(1u32.to_ne_bytes());
        both.extend([0; 12]);
        both.resize(both.len().next_multiple_of(8), 0);
        both.extend(sample());
        assert_eq!(parse_cache(&both).count(), 3);
    }

    #[test]
    fn finds_what_cache_and_directories_have() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(standard_paths(root.path()), Vec::<PathBuf>::new());
        for (path, content) in [
            ("etc/ld.so.cache", sample()),
            ("usr/lib64/libcuda.so.1", vec![]),
            ("usr/lib64/libcuda.so", vec![]),
            ("usr/lib64/libcudart.so", vec![]),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let found = standard_paths(root.path());
        let expected = [
            "opt/driver/libcuda.so.1",
            "usr/lib64/libcuda.so",
            "usr/lib64/libcuda.so.1",
        ];
        assert_eq!(found, expected.map(|path| root.path().join(path)));
    }

    #[test]
    fn reads_the_cache_of_this_machine() {
        let Ok(cache) = fs::read("/etc/ld.so.cache") else {
            eprintln!("skipped: this machine has no /etc/ld.so.cache");
            return;
        };
        assert!(
            parse_cache(&cache)
                .all(|(name, path)| { path.starts_with(b"/") && path.ends_with(name) })
        );
        assert!(parse_cache(&cache).any(|(name, _)| name.starts_with(b"libc.so")));
    }

    proptest! {
        #[test]
        fn damaged_caches_never_panic(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
            old in any::<bool>(),
        ) {
            let mut bytes = if old { b"ld.so-1.7.0\0".to_vec() } else { Vec::new() };
            bytes.extend(sample());
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = parse_cache(&bytes).count();
            bytes.truncate(cut.index(bytes.len()));
            let _ = parse_cache(&bytes).count();
        }
    }
}
