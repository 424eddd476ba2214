//! `/proc/PID/maps`.
#![no_main]

use gputrace::sensors::{
    cuda::maps::{file_name, parse_maps_line},
    modules,
};
use gputrace_fuzz::assert_harmless;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let modules = modules::parse(bytes);
    assert!(modules.is_sorted_by_key(|module| module.start));
    for module in &modules {
        assert!(module.path.starts_with('/'));
        assert_harmless(&module.path, 4096);
        let _ = modules::contains(&modules, module.start);
        let _ = modules::contains(&modules, module.end);
    }
    let lines = bytes.split(|&byte| byte == b'\n');
    let mappings: Vec<_> = lines.filter_map(parse_maps_line).collect();
    assert!(modules.len() <= mappings.len());
    for mapping in &mappings {
        assert!(mapping.path.ends_with(file_name(mapping)));
        assert!(!file_name(mapping).contains(&b'/'));
    }
});
