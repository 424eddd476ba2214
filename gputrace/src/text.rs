//! Numbers as text, for JSON: a reader with 53-bit numbers would corrupt 64-bit ones.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The JSON schema of what [`as_text`] writes.
pub struct Decimal;

impl JsonSchema for Decimal {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]+$" })
    }
}

/// The JSON schema of what [`as_hex`] writes of one address.
pub struct Hexadecimal;

impl JsonSchema for Hexadecimal {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Hexadecimal".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^0x[0-9a-f]+$" })
    }
}

/// A moment (nanoseconds since 1970) as RFC 3339 in UTC, to the nanosecond.
#[must_use]
pub fn rfc3339(wall_ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(wall_ns))
        .map_or_else(|_| "unknown".to_owned(), |time| format!("{time:.9}"))
}

/// `u64` as decimal text.
pub mod as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &u64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    /// # Errors
    /// Where it is no decimal number.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// Addresses as `0x…` text: a list.
pub mod as_hex {
    use serde::{Deserialize as _, Deserializer, Serializer};

    fn parse<E: serde::de::Error>(text: &str) -> Result<u64, E> {
        let digits = text
            .strip_prefix("0x")
            .ok_or_else(|| E::custom("an address begins with 0x"))?;
        u64::from_str_radix(digits, 16).map_err(E::custom)
    }

    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(value: &[u64], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(value.iter().map(|address| format!("{address:#x}")))
    }

    /// # Errors
    /// Where one is no such text.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u64>, D::Error> {
        Vec::<String>::deserialize(d)?
            .iter()
            .map(|text| parse(text))
            .collect()
    }

    /// One address.
    pub mod one {
        use super::{Deserializer, Serializer, parse};
        use serde::Deserialize as _;

        /// # Errors
        /// The serializer's.
        pub fn serialize<S: Serializer>(value: &u64, s: S) -> Result<S::Ok, S::Error> {
            s.collect_str(&format_args!("{value:#x}"))
        }

        /// # Errors
        /// Where it is no such text.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
            parse(&String::deserialize(d)?)
        }
    }

    /// An address or `null`.
    pub mod option {
        use super::{Deserializer, Serializer, parse};
        use serde::Deserialize as _;

        /// # Errors
        /// The serializer's.
        pub fn serialize<S: Serializer>(value: &Option<u64>, s: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => s.collect_str(&format_args!("{value:#x}")),
                None => s.serialize_none(),
            }
        }

        /// # Errors
        /// Where it is no such text.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
            Option::<String>::deserialize(d)?
                .map(|text| parse(&text))
                .transpose()
        }
    }
}
