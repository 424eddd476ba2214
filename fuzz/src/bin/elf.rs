//! A library file: its symbols, and where to probe the functions that it has.
#![no_main]

use std::{fs::File, os::unix::fs::FileExt as _, path::Path, sync::LazyLock};

use gputrace::{
    cuda::FUNCTIONS,
    sensors::cuda::{
        elf::functions,
        placement::{PlacementKind, WINDOW, place},
    },
};
use gputrace_fuzz::assert_harmless;
use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};

static LIBRARY: LazyLock<File> = LazyLock::new(|| {
    memfd_create("library", MFdFlags::MFD_CLOEXEC)
        .unwrap()
        .into()
});

fuzz_target!(|bytes: &[u8]| {
    LIBRARY.set_len(0).unwrap();
    LIBRARY.write_all_at(bytes, 0).unwrap();
    let wanted: Vec<&str> = FUNCTIONS.iter().map(|function| function.symbol).collect();
    let path = Path::new("/lib\u{1b}cuda.so");
    let functions = match functions(&LIBRARY, path, &wanted) {
        Ok(functions) => functions,
        Err(error) => return assert_harmless(&error.to_string(), 1000),
    };
    let names = functions.found.iter().map(|it| &it.name);
    let missing = functions.missing.iter().map(|it| &it.name);
    assert_eq!(names.chain(missing).count(), wanted.len());
    if let Some(id) = functions.build_id {
        assert!(id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    for function in functions.found {
        assert!(function.code.len() <= WINDOW);
        let at = usize::try_from(function.offset).unwrap();
        assert_eq!(bytes[at..at + function.code.len()], function.code);
        let placement = place(&function.code, function.address);
        match placement.kind {
            PlacementKind::Refused { .. } => assert_eq!(placement.offset, 0),
            _ => assert!(placement.offset < function.code.len() as u64),
        }
    }
});
