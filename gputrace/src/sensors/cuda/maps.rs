//! Lines of `/proc/PID/maps`.

use std::borrow::Cow;

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Whether the process may execute it.
    pub executable: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Inode number of the file; 0 for anonymous memory. (For a file on overlayfs, btrfs and some
    /// others the device number in this file is not that of stat(2); it is not read.)
    pub inode: u64,
    /// The path as the process's mount namespace has it; empty for anonymous memory. A line end
    /// is given back as such; the kernel writes it as `\012`.
    pub path: Cow<'a, [u8]>,
    /// Whether the kernel marks the file as deleted. (A file whose name ends in ` (deleted)` looks
    /// the same.)
    pub deleted: bool,
}

/// Parses one line, with or without its line end: `START-END PERM OFFSET DEVICE INODE  PATH`.
/// `None` if it does not have this form.
pub fn parse_maps_line(line: &[u8]) -> Option<Mapping<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut rest = line;
    let mut word = || {
        let end = rest.iter().position(|&byte| byte == b' ')?;
        let (word, after) = rest.split_at(end);
        rest = &after[1..];
        Some(word)
    };
    let range = word()?;
    let permissions = word()?;
    let offset = hexadecimal(word()?)?;
    let _device = word()?;
    // The path is preceded by padding; an anonymous mapping may end right after the inode.
    let (inode, path) = match rest.iter().position(|&byte| byte == b' ') {
        Some(end) => rest.split_at(end),
        None => (rest, &rest[..0]),
    };
    let path = match path.iter().position(|&byte| byte != b' ') {
        Some(start) => &path[start..],
        None => &path[..0],
    };
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    Some(Mapping {
        start: hexadecimal(&range[..dash])?,
        end: hexadecimal(&range[dash + 1..])?,
        executable: permissions.get(2) == Some(&b'x'),
        offset,
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        path: unescape(path),
        deleted,
    })
}

/// The last part of the path.
pub fn file_name<'a>(mapping: &'a Mapping<'_>) -> &'a [u8] {
    let path = &*mapping.path;
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => &path[slash + 1..],
        None => path,
    }
}

fn hexadecimal(word: &[u8]) -> Option<u64> {
    // `from_str_radix` would take a sign.
    if !word.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
}

/// Line ends are the only thing that the kernel escapes here. It does not escape the backslash, so
/// a name that contains the four characters `\012` cannot be told from one with a line end.
fn unescape(path: &[u8]) -> Cow<'_, [u8]> {
    const ESCAPED: &[u8] = br"\012";
    if !path.windows(ESCAPED.len()).any(|window| window == ESCAPED) {
        return Cow::Borrowed(path);
    }
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(ESCAPED) {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(byte);
            rest = after;
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mapped_library() {
        let line = b"7f34a5400000-7f34a5600000 r-xp 001c8000 fd:01 1835100                    \
            /usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01\n";
        let mapping = parse_maps_line(line).unwrap();
        assert_eq!(mapping.start, 0x7f34_a540_0000);
        assert_eq!(mapping.end, 0x7f34_a560_0000);
        assert!(mapping.executable && !mapping.deleted);
        assert_eq!((mapping.offset, mapping.inode), (0x1c_8000, 1_835_100));
        assert_eq!(file_name(&mapping), b"libcuda.so.550.163.01");
    }

    #[test]
    fn other_mappings() {
        let anonymous = parse_maps_line(b"00400000-00401000 rw-p 00000000 00:00 0 \n").unwrap();
        assert_eq!((&*anonymous.path, anonymous.inode), (&b""[..], 0));
        let heap = parse_maps_line(b"1000-2000 rw-p 0 00:00 0     [heap]").unwrap();
        assert_eq!(&*heap.path, b"[heap]");
        assert_eq!(file_name(&heap), b"[heap]");
        let last = b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0      [vsyscall]";
        assert_eq!(parse_maps_line(last).unwrap().start, 0xffff_ffff_ff60_0000);
    }

    #[test]
    fn odd_paths() {
        let path = |text: &[u8]| {
            let line = [b"1000-2000 r-xp 0 00:28 77    ", text].concat();
            let mapping = parse_maps_line(&line).unwrap();
            (mapping.path.into_owned(), mapping.deleted)
        };
        assert_eq!(
            path(b"/a b/libcuda.so.1"),
            (b"/a b/libcuda.so.1".to_vec(), false)
        );
        assert_eq!(path(b"/a (deleted)"), (b"/a".to_vec(), true));
        assert_eq!(
            path(b"/a (deleted) (deleted)"),
            (b"/a (deleted)".to_vec(), true)
        );
        assert_eq!(path(br"/a\012b\012"), (b"/a\nb\n".to_vec(), false));
        assert_eq!(path(b"/\xff\xfe"), (b"/\xff\xfe".to_vec(), false));
        assert_eq!(path(b"/trailing  "), (b"/trailing  ".to_vec(), false));
    }

    #[test]
    fn lines_that_are_none() {
        for line in [
            &b""[..],
            b"\n",
            b"1000-2000",
            b"1000 r-xp 0 00:00 0 x",
            b"1000-2000 r-xp 0 00:00",
            b"g-h r-xp 0 00:00 0",
            b"+1000-2000 r-xp 0 00:00 0",
            b"1000-2000 r-xp 0 00:00 -1 /x",
            b"10000000000000000-2 r-xp 0 00:00 0",
        ] {
            assert_eq!(parse_maps_line(line), None);
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(line in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse_maps_line(&line).map(|mapping| file_name(&mapping).len());
        }

        #[test]
        fn a_path_comes_back_as_the_kernel_wrote_it(
            name in proptest::collection::vec(any::<u8>(), 1..40),
        ) {
            prop_assume!(!name.windows(4).any(|window| window == br"\012"));
            prop_assume!(!name.ends_with(b" (deleted)"));
            let mut path = b"/".to_vec();
            path.extend(&name);
            let mut line = b"7f00-7f01 r--p 00000000 fe:00 12                 ".to_vec();
            for &byte in &path {
                match byte {
                    b'\n' => line.extend(br"\012"),
                    byte => line.push(byte),
                }
            }
            line.push(b'\n');
            prop_assert_eq!(parse_maps_line(&line).unwrap().path.into_owned(), path);
        }
    }
}
