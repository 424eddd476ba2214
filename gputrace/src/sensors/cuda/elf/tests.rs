//! Tests of [`super`].

use std::io::Write as _;

use proptest::prelude::*;

use super::*;

const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x66, 0x90];

/// One symbol of the library that [`library`] builds.
struct Entry {
    name: &'static str,
    value: u64,
    size: u64,
    /// `st_info`: type in the lower half (2: function), binding in the upper (1: global).
    info: u8,
}

const fn entry(name: &'static str, value: u64, size: u64) -> Entry {
    Entry {
        name,
        value,
        size,
        info: 0x12,
    }
}

/// A small library: code at offset 0x400, loaded at 0x1000_0400; data loaded at 0x2000_0000
/// from the same bytes; a build id; `symbols` in a table of the given section type.
fn library(symbols: &[Entry], table: u32) -> Vec<u8> {
    let mut names = vec![0];
    let mut entries = vec![0; 24];
    for symbol in symbols {
        let name = u32::try_from(names.len()).unwrap();
        names.extend_from_slice(symbol.name.as_bytes());
        names.push(0);
        entries.extend(name.to_le_bytes());
        entries.extend([symbol.info, 0]);
        // Defined in some section, unless its value is 0.
        entries.extend(u16::from(symbol.value != 0).to_le_bytes());
        entries.extend(symbol.value.to_le_bytes());
        entries.extend(symbol.size.to_le_bytes());
    }
    let note = [
        &[4, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0][..],
        b"GNU\0",
        &[0xde, 0xad, 0xbe, 0xef],
    ];
    let note = note.concat();
    let mut file = vec![0; 0x400];
    file.extend(CODE.repeat(16));
    let note_at = file.len() as u64;
    file.extend(&note);
    let names_at = file.len() as u64;
    file.extend(&names);
    let entries_at = file.len().next_multiple_of(8);
    file.resize(entries_at, 0);
    file.extend(&entries);
    let sections_at = file.len().next_multiple_of(8);
    file.resize(sections_at, 0);
    let mut section = |kind: u32, at: u64, size: usize, link: u32| {
        file.extend([0, kind].map(u32::to_le_bytes).concat());
        file.extend([0, 0, at, size as u64].map(u64::to_le_bytes).concat());
        file.extend([link, 0].map(u32::to_le_bytes).concat());
        file.extend([8, 24].map(u64::to_le_bytes).concat());
    };
    section(0, 0, 0, 0);
    section(table, entries_at as u64, entries.len(), 2);
    section(3, names_at, names.len(), 0);

    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header.extend([3u16, 62].map(u16::to_le_bytes).concat());
    header.extend(1u32.to_le_bytes());
    header.extend([0, 64, sections_at as u64].map(u64::to_le_bytes).concat());
    header.extend(0u32.to_le_bytes());
    header.extend([64u16, 56, 3, 64, 3, 0].map(u16::to_le_bytes).concat());
    let mut segment = |kind: u32, flags: u32, at: u64, address: u64, size: u64| {
        header.extend([kind, flags].map(u32::to_le_bytes).concat());
        header.extend(
            [at, address, address, size, size, 4]
                .map(u64::to_le_bytes)
                .concat(),
        );
    };
    segment(1, 5, 0x400, 0x1000_0400, 128);
    segment(1, 6, 0x400, 0x2000_0000, 128);
    segment(4, 4, note_at, 0, note.len() as u64);
    file[..header.len()].copy_from_slice(&header);
    file
}

fn read(bytes: &[u8], wanted: &[&str]) -> Result<Functions, ElfError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    functions(&open_regular(file.path())?, file.path(), wanted)
}

#[test]
fn finds_functions_and_says_why_not() {
    let file = library(
        &[
            entry("cuMemAlloc_v2", 0x1000_0400, 6),
            entry("cuMemFree_v2", 0x1000_0408, 0x1000),
            entry("cuUnsized", 0x1000_0418, 0),
            entry("cuNext", 0x1000_0420, 8),
            entry("cuImported", 0, 0),
            entry("cuData", 0x2000_0000, 8),
            entry("cuNowhere", 0x3000_0000, 8),
            Entry {
                info: 0x1a,
                ..entry("cuIndirect", 0x1000_0400, 8)
            },
            Entry {
                info: 0x11,
                ..entry("cuObject", 0x1000_0400, 8)
            },
        ],
        11,
    );
    let wanted = [
        "cuMemFree_v2",
        "cuMemAlloc_v2",
        "cuUnsized",
        "cuAbsent",
        "cuImported",
        "cuData",
        "cuNowhere",
        "cuIndirect",
        "cuObject",
    ];
    let answer = read(&file, &wanted).unwrap();
    assert_eq!(answer.build_id.as_deref(), Some("deadbeef"));
    let free = &answer.found[0];
    assert_eq!(free.name, "cuMemFree_v2");
    assert_eq!((free.address, free.offset), (0x1000_0408, 0x408));
    // The size is too large to be true: at most the window, and the segment ends later.
    assert_eq!(free.code.len(), WINDOW);
    assert_eq!(answer.found[1].code, CODE[..6]);
    // A symbol without a size ends at the next one.
    assert_eq!(answer.found[2].name, "cuUnsized");
    assert_eq!(answer.found[2].code.len(), 8);
    let missing: Vec<&str> = answer.missing.iter().map(|m| &*m.name).collect();
    assert_eq!(missing, wanted[3..]);
    assert!(answer.missing[2].reason.contains("executable"));
    assert!(answer.missing[4].reason.contains("indirect"));
}

#[test]
fn the_full_symbol_table_serves_where_the_dynamic_one_does_not() {
    let file = library(&[entry("static", 0x1000_0400, 8)], 2);
    let answer = read(&file, &["static"]).unwrap();
    assert_eq!(answer.found.len(), 1);
    // Nothing wanted is nothing missing.
    assert_eq!(read(&file, &[]).unwrap().found, []);
    let file = library(&[], 1);
    assert!(matches!(
        read(&file, &["x"]),
        Err(ElfError::NoSymbols { .. })
    ));
}

#[test]
fn other_files_are_told_apart() {
    let mut file = library(&[], 11);
    file[18] = 183;
    let error = read(&file, &[]).unwrap_err().to_string();
    assert!(
        error.contains("arm64") && error.contains("x86-64"),
        "{error}"
    );
    file[4] = 1;
    assert!(matches!(
        read(&file, &[]),
        Err(ElfError::OtherMachine { .. })
    ));
    for bytes in [
        &b""[..],
        b"\x7fEL",
        b"#!/bin/sh\n and more than twenty bytes",
    ] {
        assert!(matches!(read(bytes, &[]), Err(ElfError::NotElf { .. })));
    }
}

#[test]
fn what_is_no_file_is_not_opened() {
    for path in ["/dev/null", "/"] {
        let error = open_regular(Path::new(path)).unwrap_err();
        assert!(matches!(error, ElfError::NotAFile { .. }), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("libcuda.so.1");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(
        open_regular(&fifo),
        Err(ElfError::NotAFile { .. })
    ));
    let error = open_regular(Path::new("/nonexistent/\u{1b}[2J")).unwrap_err();
    assert!(error.to_string().starts_with(r"/nonexistent/\x1b[2J: "));
}

#[test]
fn a_table_that_claims_to_be_huge_costs_nothing() {
    let mut file = library(&[entry("f", 0x1000_0400, 8)], 11);
    let sections = usize::try_from(u64::from_le_bytes(file[40..48].try_into().unwrap())).unwrap();
    file[sections + 64 + 32..][..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(matches!(
        read(&file, &["f"]),
        Err(ElfError::Malformed { .. })
    ));
    // The same with a sparse file in which the table would fit.
    let sparse = tempfile::NamedTempFile::new().unwrap();
    file[sections + 64 + 32..][..8].copy_from_slice(&(1u64 << 30).to_le_bytes());
    sparse.as_file().write_all(&file).unwrap();
    sparse.as_file().set_len((1 << 30) + (1 << 20)).unwrap();
    let read = |path: &Path| functions(&open_regular(path)?, path, &["f"]);
    assert!(matches!(
        read(sparse.path()),
        Err(ElfError::Malformed { .. })
    ));
    sparse.as_file().set_len(MAX_FILE + 1).unwrap();
    assert!(matches!(
        read(sparse.path()),
        Err(ElfError::TooLarge { .. })
    ));
}

/// The C library of this machine, where it is shared.
#[test]
fn reads_a_real_library() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let Some(libc) = maps
        .lines()
        .filter_map(|line| line.split_once('/'))
        .map(|(_, path)| PathBuf::from(format!("/{path}")))
        .find(|path| path.to_string_lossy().contains("/libc.so"))
    else {
        eprintln!("skipped: no shared C library is mapped");
        return;
    };
    let file = open_regular(&libc).unwrap();
    let answer = functions(&file, &libc, &["malloc", "no_such_function"]).unwrap();
    let malloc = &answer.found[0];
    assert_eq!(answer.missing[0].name, "no_such_function");
    assert!(!malloc.code.is_empty() && malloc.size > 0);
    let mut code = vec![0; malloc.code.len()];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut code, malloc.offset).unwrap();
    assert_eq!(code, malloc.code);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_files_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = library(
            &[entry("a", 0x1000_0400, 8), entry("b", 0x1000_0410, 0)],
            11,
        );
        // Most of the file is padding; damage what is not.
        let interesting: Vec<usize> =
            (0..bytes.len()).filter(|at| *at < 232 || *at > 0x480).collect();
        for (at, byte) in damage {
            bytes[interesting[at.index(interesting.len())]] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(answer) = read_functions(Limited(&*bytes), &["a", "b", "c"]) {
            for function in answer.found {
                prop_assert!(function.code.len() <= WINDOW);
            }
        }
    }
}
