//! Sizes and durations as people write and read them.

use std::{fmt, str::FromStr, time::Duration};

/// A number of bytes. Shown in binary units (`3.1 GiB`); a plain number in JSON.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = UNITS
            .into_iter()
            .find(|&(_, size)| self.0 >= size)
            .unwrap_or(("B", 1));
        if self.0.is_multiple_of(size) {
            return f.pad(&format!("{} {unit}", self.0 / size));
        }
        #[expect(clippy::cast_precision_loss, reason = "shown with one or two decimals")]
        let value = self.0 as f64 / size as f64;
        let decimals = if value < 10.0 { 2 } else { 1 };
        f.pad(&format!("{value:.decimals$} {unit}"))
    }
}

/// What is wrong with a size or a duration that a user wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number followed by a unit.
    #[error("'{0}' is not a size: write for example 4096, 16M or 1.5GiB")]
    Size(String),
    /// Not a number followed by a unit.
    #[error("'{0}' is not a duration: write for example 500ms, 30s, 5m or 1h")]
    Duration(String),
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some((number, unit.trim()))
}

impl FromStr for Bytes {
    type Err = UnitError;

    /// Binary units with or without `iB` or `B`: `16M`, `16MB` and `16 MiB` are the same.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError::Size(text.to_owned());
        let (number, unit) = split(text).ok_or_else(error)?;
        let lower = unit.to_ascii_lowercase();
        let size: u64 = match lower.trim_end_matches('b').trim_end_matches('i') {
            "" => 1,
            "k" => 1 << 10,
            "m" => 1 << 20,
            "g" => 1 << 30,
            "t" => 1 << 40,
            _ => return Err(error()),
        };
        #[expect(clippy::cast_precision_loss, reason = "a power of two")]
        let bytes = number * size as f64;
        if bytes > 9e18 {
            return Err(error());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked above"
        )]
        Ok(Self(bytes as u64))
    }
}

/// Reads a duration: `500ms`, `30s`, `5m`, `1h`, `2d`; a bare number is seconds.
///
/// # Errors
/// Where the text is no such thing, or longer than a hundred years.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let error = || UnitError::Duration(text.to_owned());
    let (number, unit) = split(text).ok_or_else(error)?;
    let seconds = number
        * match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(error()),
        };
    const HUNDRED_YEARS: f64 = 100.0 * 366.0 * 86_400.0;
    if seconds > HUNDRED_YEARS {
        return Err(error());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

/// A duration in the two largest units that say something: `1h 02m`, `3.2 s`, `41 ms`.
#[must_use]
pub fn show_duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    match seconds {
        0 => format!("{} ms", nanoseconds / 1_000_000),
        1..60 => match nanoseconds / 100_000_000 % 10 {
            0 => format!("{seconds} s"),
            tenths => format!("{seconds}.{tenths} s"),
        },
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds / 60 % 60, "m"),
        _ => two(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit} {small:02}{small_unit}"),
    }
}

/// A number of things: `1 allocation`, `2 allocations`, `2 processes`.
#[must_use]
pub fn counted(n: u64, thing: &str) -> String {
    match n {
        1 => format!("1 {thing}"),
        _ if thing.ends_with(['s', 'h']) => format!("{n} {thing}es"),
        _ if thing.ends_with('y') => format!("{n} {}ies", &thing[..thing.len() - 1]),
        _ => format!("{n} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_binary_units() {
        let shown = [
            0,
            1023,
            1024,
            1536,
            1 << 20,
            1200 << 20,
            2 << 30,
            3_328_599_654,
            10_737_418_245,
        ]
        .map(|n| Bytes(n).to_string());
        assert_eq!(
            shown,
            [
                "0 B", "1023 B", "1 KiB", "1.50 KiB", "1 MiB", "1.17 GiB", "2 GiB", "3.10 GiB",
                "10.0 GiB"
            ]
        );
    }

    #[test]
    fn sizes_are_read_with_any_common_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16M", 16 << 20),
            ("16 MiB", 16 << 20),
            ("1.5g", 3 << 29),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "M", "-1", "1X", "1e9", "nan", "99999999999T"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_read_and_shown() {
        for (text, ms) in [
            ("500ms", 500),
            ("30", 30_000),
            ("0.5s", 500),
            ("5m", 300_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in ["", "s", "-1s", "1y", "1e99s", "999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        let shown = [
            41_000_000,
            3_250_000_000,
            125_000_000_000,
            3_725_000_000_000,
            180_000_000_000_000,
        ]
        .map(show_duration);
        assert_eq!(shown, ["41 ms", "3.2 s", "2m 05s", "1h 02m", "2d 02h"]);
    }
}
