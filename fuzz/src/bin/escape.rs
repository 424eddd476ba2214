//! Text of others, made harmless. The first byte of the input is the length allowed.
#![no_main]

use gputrace::identity::{MAX_ESCAPED_CHARS, escape, escape_at_most};
use gputrace_fuzz::assert_harmless;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&most, bytes)) = bytes.split_first() else {
        return;
    };
    let cut = escape_at_most(bytes, most.into());
    assert_harmless(&cut, most.into());
    let whole = escape(bytes);
    assert_harmless(&whole, MAX_ESCAPED_CHARS);
    if whole.chars().count() <= most.into() {
        assert_eq!(cut, whole);
    } else if most > 0 {
        assert!(whole.starts_with(cut.strip_suffix('…').unwrap()));
    }
    // 10 characters at most for a byte or a character of it.
    if bytes.len() * 10 < MAX_ESCAPED_CHARS {
        assert_eq!(unescape(&whole), bytes, "two inputs look alike: {whole}");
    }
});

/// The bytes behind an escaped text that was not cut.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            bytes.extend(c.to_string().bytes());
            continue;
        }
        let number = |digits: &str| u32::from_str_radix(digits, 16).unwrap();
        match rest.next().unwrap() {
            '\\' => bytes.push(b'\\'),
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            't' => bytes.push(b'\t'),
            'x' => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::try_from(number(&digits)).unwrap());
            }
            'u' => {
                assert_eq!(rest.next(), Some('{'));
                let digits: String = rest.by_ref().take_while(|&c| c != '}').collect();
                let c = char::from_u32(number(&digits)).unwrap();
                bytes.extend(c.to_string().bytes());
            }
            other => panic!("\\{other} in {text}"),
        }
    }
    bytes
}
