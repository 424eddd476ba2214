//! Sizes and durations as people write them in a scenario.
//!
//! A number is bytes or nanoseconds; a string carries its unit: `"4 MiB"`, `"1.5GiB"`, `"100ms"`.
//! Both forms may stand wherever a field says `with = "units::bytes"` or `"units::nanoseconds"`;
//! such a field is always written as a number.

use serde::de::{self, Deserializer, Visitor};
use std::fmt;

/// A size or a duration that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// There is no number in front of the unit.
    #[error("`{0}` does not start with a number")]
    Number(String),
    /// The unit is not one of those known.
    #[error("`{text}` has the unit `{unit}`; known are {known}")]
    Unit {
        /// The whole text.
        text: String,
        /// What follows the number.
        unit: String,
        /// The units that would do.
        known: &'static str,
    },
    /// The value does not fit in 64 bits.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("K", 1 << 10),
    ("MiB", 1 << 20),
    ("M", 1 << 20),
    ("GiB", 1 << 30),
    ("G", 1 << 30),
    ("TiB", 1 << 40),
    ("T", 1 << 40),
];

const DURATIONS: &[(&str, u64)] = &[
    ("", 1),
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
];

/// Reads a size such as `4 MiB`; a bare number is bytes.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    parse(text, SIZES, "B, KiB, MiB, GiB, TiB")
}

/// Reads a duration such as `100ms`; a bare number is nanoseconds.
pub fn parse_nanoseconds(text: &str) -> Result<u64, UnitError> {
    parse(text, DURATIONS, "ns, us, ms, s, m")
}

fn parse(text: &str, units: &[(&str, u64)], known: &'static str) -> Result<u64, UnitError> {
    let (number, unit) = split(text);
    let factor = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, factor)| *factor)
        .ok_or_else(|| UnitError::Unit {
            text: text.to_owned(),
            unit: unit.to_owned(),
            known,
        })?;
    multiply(number, factor)
}

/// Splits a quantity into its number and its unit; either may be empty.
#[must_use]
pub fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

/// A decimal number times a factor, rounded to the nearest whole.
///
/// # Errors
/// It is no number, or the product does not fit in 64 bits.
pub fn multiply(number: &str, factor: u64) -> Result<u64, UnitError> {
    let plain = number.replace('_', "");
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    if whole.is_empty() || !fraction.chars().all(|c| c.is_ascii_digit()) {
        return Err(UnitError::Number(number.to_owned()));
    }
    let too_large = || UnitError::TooLarge(number.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    // Decimal places in integers, so that "0.1 GiB" means the same everywhere.
    let places: String = fraction.chars().take(9).collect();
    let scale = 10_u128.pow(u32::try_from(places.len()).map_err(|_| too_large())?);
    let part: u128 = if places.is_empty() {
        0
    } else {
        places.parse().map_err(|_| too_large())?
    };
    let value =
        u128::from(whole) * u128::from(factor) + (part * u128::from(factor) + scale / 2) / scale;
    u64::try_from(value).map_err(|_| too_large())
}

struct Quantity(fn(&str) -> Result<u64, UnitError>, &'static str);

impl Visitor<'_> for Quantity {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
        u64::try_from(value).map_err(|_| E::custom("must not be negative"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
        (self.0)(value).map_err(E::custom)
    }
}

/// A field of bytes: `#[serde(with = "units::bytes")]`.
pub mod bytes {
    use super::{Deserializer, Quantity, parse_bytes};

    /// Reads a number of bytes or a text such as `"4 MiB"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_any(Quantity(parse_bytes, "bytes, or a text such as \"4 MiB\""))
    }

    /// Writes the number of bytes.
    pub fn serialize<S: serde::Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*value)
    }
}

/// A field of nanoseconds: `#[serde(with = "units::nanoseconds")]`.
pub mod nanoseconds {
    use super::{Deserializer, Quantity, parse_nanoseconds};

    /// Reads a number of nanoseconds or a text such as `"100ms"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_any(Quantity(
            parse_nanoseconds,
            "nanoseconds, or a text such as \"100ms\"",
        ))
    }

    /// Writes the number of nanoseconds.
    pub fn serialize<S: serde::Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_with_their_units() {
        assert_eq!(parse_bytes("4 MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("3.1 GiB"), Ok(3_328_599_654));
        assert_eq!(parse_bytes("17"), Ok(17));
        assert_eq!(parse_nanoseconds("100ms"), Ok(100_000_000));
        assert_eq!(parse_nanoseconds("0.5 s"), Ok(500_000_000));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        assert!(matches!(parse_bytes("MiB"), Err(UnitError::Number(_))));
        assert!(matches!(parse_bytes("4 MB"), Err(UnitError::Unit { .. })));
        assert!(matches!(parse_bytes("1.2.3"), Err(UnitError::Number(_))));
        assert!(matches!(
            parse_bytes("99999999999 TiB"),
            Err(UnitError::TooLarge(_))
        ));
    }
}
