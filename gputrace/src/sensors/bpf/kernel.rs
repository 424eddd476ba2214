//! What the running kernel offers, and what is known to hurt on it.

use std::fmt;

/// A kernel release, such as `6.18.44`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// `6` in `6.18.44`.
    pub major: u32,
    /// `18` in `6.18.44`.
    pub minor: u32,
    /// `44` in `6.18.44`; 0 where there is none.
    pub patch: u32,
}

impl Release {
    /// Reads the beginning of `uname -r`; what follows the numbers is ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let end = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(str::parse);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
        Some(Self {
            major,
            minor,
            patch,
        })
    }

    /// The running kernel's. `None` if it says nothing that can be read.
    #[must_use]
    pub fn running() -> Option<Self> {
        let name = nix::sys::utsname::uname().ok()?;
        Self::parse(name.release().to_str()?)
    }

    /// Whether it is at least this version.
    #[must_use]
    pub const fn at_least(self, major: u32, minor: u32) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }

    /// The ring buffer came with 5.8.
    #[must_use]
    pub const fn has_ring_buffer(self) -> bool {
        self.at_least(5, 8)
    }

    /// Attach cookies came with 5.15; before, each function gets its own copy of the programs.
    #[must_use]
    pub const fn has_attach_cookies(self) -> bool {
        self.at_least(5, 15)
    }

    /// One link for all functions came with 6.6; before, each probe is a perf event, and each of
    /// these takes about 0.1 s to detach.
    #[must_use]
    pub const fn has_uprobe_multi(self) -> bool {
        self.at_least(6, 6)
    }

    /// Why user stacks must not be walked on this kernel, if so.
    ///
    /// 6.6.58 and its neighbours were reported to fault in `is_uprobe_at_func_entry` when a probe
    /// walks the user stack (coroot-node-agent#377, talos#9671); which releases are free of it is
    /// not known, so the whole 6.6 series is left out.
    #[must_use]
    pub const fn refuses_user_stacks(self) -> Option<&'static str> {
        if self.major == 6 && self.minor == 6 {
            return Some(
                "6.6 kernels were reported to crash when a probe walks the user stack; \
                 call sites are shown by their return address alone (--force-stacks to walk anyway)",
            );
        }
        None
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_from_what_distributions_call_them() {
        for (text, expected) in [
            ("6.18.44-fc-v669", (6, 18, 44)),
            ("5.10.0-32-cloud-amd64", (5, 10, 0)),
            ("6.1", (6, 1, 0)),
            ("7.3.4+deb13", (7, 3, 4)),
        ] {
            let r = Release::parse(text).unwrap();
            assert_eq!((r.major, r.minor, r.patch), expected, "{text}");
        }
        for text in ["", "x", "6", "6.x", "99999999999.1"] {
            assert_eq!(Release::parse(text), None, "{text}");
        }
    }
}
