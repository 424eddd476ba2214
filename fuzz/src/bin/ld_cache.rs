//! The dynamic loader's cache, `/etc/ld.so.cache`.
#![no_main]

use gputrace::sensors::cuda::loader::parse_cache;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut entries = 0;
    for (name, path) in parse_cache(bytes) {
        entries += 1;
        for text in [name, path] {
            assert!(text.len() < 4096 && !text.contains(&0));
        }
    }
    assert!(entries <= bytes.len() / 24);
});
