//! `stat`, `status`, `cgroup` and `cmdline` of `/proc/PID`; the same bytes for each.
#![no_main]

use gputrace::identity::procfs::parse;
use gputrace_fuzz::assert_harmless;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match parse::stat(bytes) {
        Ok(stat) => {
            assert!(stat.state.is_ascii_alphabetic());
            // The name is all that lies between the outer parentheses.
            let open = bytes.iter().position(|&byte| byte == b'(').unwrap();
            assert_eq!(bytes[open + 1..][..stat.comm.len()], stat.comm);
            assert!(!bytes[open + 2 + stat.comm.len()..].contains(&b')'));
        }
        Err(error) => assert_harmless(&error.to_string(), 5000),
    }
    if let Err(error) = parse::status(bytes) {
        assert_harmless(&error.to_string(), 5000);
    }
    match parse::cgroup(bytes) {
        Ok(cgroup) => {
            assert_eq!(cgroup.path().is_none(), cgroup.lines.is_empty());
            for line in &cgroup.lines {
                assert_harmless(&line.path, 4096);
                for controller in &line.controllers {
                    assert_harmless(controller, 4096);
                }
            }
        }
        Err(error) => assert_harmless(&error.to_string(), 5000),
    }
    // At most 4 characters for each byte, with quotes and blanks between the arguments.
    match parse::command(bytes) {
        Some(command) => assert_harmless(&command, 7 * bytes.len()),
        None => assert!(bytes.iter().all(|&byte| byte == 0)),
    }
});
