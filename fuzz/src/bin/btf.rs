//! The kernel's type information.
#![no_main]

use gputrace::sensors::btf::Btf;
use libfuzzer_sys::fuzz_target;

/// Names that the seeds have, and two that they do not.
const LOOK_UPS: [(&str, &str); 10] = [
    ("task_struct", "pid"),
    ("task_struct", "comm"),
    ("task_struct", "cred.uid.val"),
    ("pid", "level"),
    ("pid", "b"),
    ("pid", "numbers"),
    ("pid", "numbers.ns"),
    ("upid", "nr"),
    ("upid", "nr.x"),
    ("", ""),
];

fuzz_target!(|bytes: &[u8]| {
    let btf = match Btf::parse(bytes.to_vec()) {
        Ok(btf) => btf,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for (structure, path) in LOOK_UPS {
        let offset = btf.offset(structure, path);
        assert_eq!(btf.has(structure, path), offset.is_ok());
        if let Err(error) = offset {
            assert!(!error.to_string().is_empty());
            assert!(btf.size_of_member(structure, path).is_err());
        }
        let _ = btf.size_of(structure);
        let _ = btf.size_of_member(structure, path);
    }
});
