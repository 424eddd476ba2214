//! Untrusted bytes made safe to show.

use std::path::Path;

/// What [`escape()`] keeps of one string, in characters of its result. Long enough for any path
/// (`PATH_MAX` is 4096) and short enough that a hostile string cannot fill a terminal or a disk.
pub const MAX_ESCAPED_CHARS: usize = 4096;

/// Makes untrusted bytes (a command, a path, a reply of the driver) visible and harmless.
///
/// The result is one line of printable text of at most [`MAX_ESCAPED_CHARS`] characters (longer
/// ones end in `…`). Control characters become `\n`, `\t`, `\r` or `\xNN`, so no terminal sequence
/// survives; bytes that are not UTF-8 become `\xNN`; characters that reorder or hide text
/// (directional overrides, zero-width and other invisible ones) become `\u{N}`. A backslash is
/// doubled, so that two different inputs never look alike.
///
/// ```
/// # use gputrace::identity::escape;
/// assert_eq!(escape(b"train\x1b[2J.py"), r"train\x1b[2J.py");
/// ```
pub fn escape(bytes: &[u8]) -> String {
    escape_at_most(bytes, MAX_ESCAPED_CHARS)
}

/// A path, made harmless for a terminal as by [`escape()`].
pub fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_encoded_bytes())
}

/// As [`escape()`], with at most `max_chars` characters in the result.
pub fn escape_at_most(bytes: &[u8], max_chars: usize) -> String {
    // Every character of the result stands for at least a quarter of a byte of the input; what lies
    // beyond cannot be shown, so it need not be looked at.
    let horizon = bytes
        .len()
        .min(max_chars.saturating_mul(4).saturating_add(4));
    let mut out = Shown::new(max_chars);
    let mut whole = horizon == bytes.len();
    'all: for chunk in bytes[..horizon].utf8_chunks() {
        for c in chunk.valid().chars() {
            let shown = match c {
                '\\' => out.push(r"\\"),
                '\n' => out.push(r"\n"),
                '\r' => out.push(r"\r"),
                '\t' => out.push(r"\t"),
                c if c.is_ascii_control() => out.push(&format!(r"\x{:02x}", u32::from(c))),
                c if is_deceptive(c) => out.push(&format!(r"\u{{{:x}}}", u32::from(c))),
                c => out.push(c.encode_utf8(&mut [0; 4])),
            };
            if !shown {
                whole = false;
                break 'all;
            }
        }
        for byte in chunk.invalid() {
            if !out.push(&format!(r"\x{byte:02x}")) {
                whole = false;
                break 'all;
            }
        }
    }
    out.finish(whole)
}

/// Whether a text can be shown as it is: [`escape()`] would change nothing but backslashes, or cut it.
pub fn is_harmless(text: &str) -> bool {
    !text
        .chars()
        .any(|c| c.is_ascii_control() || is_deceptive(c))
}

/// Characters that a reader cannot see, or that change how the text around them is shown.
fn is_deceptive(c: char) -> bool {
    matches!(c,
        // C1 control characters: some terminals take U+009B for "escape [".
        '\u{80}'..='\u{9f}'
        // Soft hyphen; Arabic letter mark; Mongolian vowel separator.
        | '\u{ad}' | '\u{61c}' | '\u{180e}'
        // Fillers that look like nothing.
        | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}'
        | '\u{3164}' | '\u{ffa0}'
        // Zero width, directional marks, line and paragraph separators, embeddings, overrides,
        // isolates, invisible operators.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        // Variation selectors, byte order mark, interlinear annotation.
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
        // Musical and shorthand format controls.
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        // Tags and further variation selectors.
        | '\u{e0000}'..='\u{e0fff}')
}

/// A string that knows when it is full.
struct Shown {
    text: String,
    chars: usize,
    max_chars: usize,
    /// Where to cut so that the mark of truncation still fits: the end of the last piece that left
    /// room for it.
    cut: usize,
}

impl Shown {
    fn new(max_chars: usize) -> Self {
        Self {
            text: String::new(),
            chars: 0,
            max_chars,
            cut: 0,
        }
    }

    /// Adds a piece whole, or says that it does not fit.
    fn push(&mut self, piece: &str) -> bool {
        let chars = piece.chars().count();
        if self.chars + chars > self.max_chars {
            return false;
        }
        self.text.push_str(piece);
        self.chars += chars;
        if self.chars < self.max_chars {
            self.cut = self.text.len();
        }
        true
    }

    fn finish(mut self, whole: bool) -> String {
        if !whole && self.max_chars > 0 {
            if self.chars >= self.max_chars {
                self.text.truncate(self.cut);
            }
            self.text.push('…');
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_text_is_kept() {
        assert_eq!(
            escape(b"python3 train.py --lr 1e-4"),
            "python3 train.py --lr 1e-4"
        );
        assert_eq!(escape("größe 模型 🚀".as_bytes()), "größe 模型 🚀");
    }

    #[test]
    fn terminal_sequences_lose_their_power() {
        assert_eq!(escape(b"\x1b]0;owned\x07"), r"\x1b]0;owned\x07");
        assert_eq!(escape("\u{9b}2J".as_bytes()), r"\u{9b}2J");
        assert_eq!(escape(b"a\rb\nc\td"), r"a\rb\nc\td");
        assert_eq!(escape(b"\x00\x7f"), r"\x00\x7f");
    }

    #[test]
    fn hidden_and_reordering_characters_are_shown() {
        assert_eq!(escape("a\u{202e}txt.exe".as_bytes()), r"a\u{202e}txt.exe");
        assert_eq!(
            escape("a\u{200b}b\u{2066}".as_bytes()),
            r"a\u{200b}b\u{2066}"
        );
        assert_eq!(escape("\u{e0041}".as_bytes()), r"\u{e0041}");
    }

    #[test]
    fn invalid_utf8_is_shown_byte_by_byte() {
        assert_eq!(escape(b"ok\xff\xfe\xe4\xb8"), r"ok\xff\xfe\xe4\xb8");
    }

    #[test]
    fn different_inputs_never_look_alike() {
        assert_ne!(escape(br"\x1b"), escape(b"\x1b"));
        assert_eq!(escape(br"\x1b"), r"\\x1b");
    }

    #[test]
    fn a_long_string_is_cut_with_a_mark() {
        assert_eq!(escape_at_most(b"abcdef", 6), "abcdef");
        assert_eq!(escape_at_most(b"abcdefg", 6), "abcde…");
        // An escape is never cut in half.
        assert_eq!(escape_at_most(b"abcd\x1b", 6), "abcd…");
        assert_eq!(escape_at_most(b"abc", 0), "");
    }

    proptest! {
        #[test]
        fn never_longer_and_always_printable(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            max in 0usize..200,
        ) {
            let shown = escape_at_most(&bytes, max);
            prop_assert!(shown.chars().count() <= max);
            prop_assert!(shown.chars().all(|c| !c.is_control() && !is_deceptive(c)));
        }

        #[test]
        fn any_text_is_harmless(text in "\\PC*|.*") {
            let shown = escape(text.as_bytes());
            prop_assert!(shown.chars().all(|c| !c.is_control() && !is_deceptive(c)));
        }

        #[test]
        fn short_inputs_are_told_apart(
            a in proptest::collection::vec(any::<u8>(), 0..20),
            b in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            prop_assert_eq!(a == b, escape(&a) == escape(&b));
        }
    }
}
