//! Quantities in a scenario file: those of [`crate::units`], and the scenario's own units.
//!
//! A scenario may define units in its `[vars]` table, which is how a "scaled minute" of four
//! seconds is written.

use std::collections::BTreeMap;

use crate::units::{UnitError, multiply, parse_bytes, parse_nanoseconds, split};

/// What a quantity measures, with its amount in the base unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A size in bytes.
    Bytes(u64),
    /// A duration in nanoseconds.
    Nanos(u64),
    /// A bare number: a count.
    Count(u64),
}

impl Quantity {
    /// The amount in the base unit: bytes, nanoseconds or a count.
    #[must_use]
    pub fn amount(self) -> u64 {
        match self {
            Self::Bytes(amount) | Self::Nanos(amount) | Self::Count(amount) => amount,
        }
    }
}

/// The units that a scenario may use: the built-in ones and its own variables.
#[derive(Debug, Clone, Default)]
pub struct Units {
    own: BTreeMap<String, Quantity>,
}

impl Units {
    /// Adds a unit of the scenario's own, or replaces it.
    pub fn define(&mut self, name: &str, quantity: Quantity) {
        self.own.insert(name.to_owned(), quantity);
    }

    /// The amount of a quantity in one of the scenario's own units; none for any other text.
    ///
    /// # Errors
    /// The amount does not fit in 64 bits.
    pub fn own(&self, text: &str) -> Option<Result<Quantity, UnitError>> {
        let (number, unit) = split(text);
        if number.is_empty() {
            return None;
        }
        // "2 minutes" reads better than "2 minute".
        let quantity = self
            .own
            .get(unit)
            .or_else(|| self.own.get(unit.strip_suffix('s')?))?;
        Some(
            multiply(number, quantity.amount()).map(|amount| match quantity {
                Quantity::Bytes(_) => Quantity::Bytes(amount),
                Quantity::Nanos(_) => Quantity::Nanos(amount),
                Quantity::Count(_) => Quantity::Count(amount),
            }),
        )
    }

    /// Reads a quantity. A fraction is rounded to the nearest base unit.
    ///
    /// # Errors
    /// The text has no number, an unknown unit, or does not fit in 64 bits.
    pub fn parse(&self, text: &str) -> Result<Quantity, UnitError> {
        if let Some(own) = self.own(text) {
            return own;
        }
        // "20 MiB/s" is a number of bytes to compare with a rate in bytes per second.
        let text = text.strip_suffix("/s").unwrap_or(text);
        let (number, unit) = split(text);
        if unit.is_empty() {
            return multiply(number, 1).map(Quantity::Count);
        }
        let unknown = |error: &UnitError| matches!(error, UnitError::Unit { .. });
        match parse_bytes(text) {
            Err(error) if unknown(&error) => {}
            bytes => return bytes.map(Quantity::Bytes),
        }
        match parse_nanoseconds(text) {
            Err(error) if unknown(&error) => Err(UnitError::Unit {
                text: text.to_owned(),
                unit: unit.to_owned(),
                known: "B, KiB, MiB, GiB, TiB, ns, us, ms, s, min and the names in [vars]",
            }),
            nanos => nanos.map(Quantity::Nanos),
        }
    }

    /// Whether `text` reads as a quantity with a unit, such as `"6 MiB"`. A bare number does not,
    /// so that a text like `"46"` stays a text.
    #[must_use]
    pub fn is_quantity(&self, text: &str) -> bool {
        matches!(
            self.parse(text),
            Ok(Quantity::Bytes(_) | Quantity::Nanos(_))
        ) || self.own(text).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_exactly() {
        let units = Units::default();
        for (text, expected) in [
            ("6 MiB", Quantity::Bytes(6 << 20)),
            ("100ms", Quantity::Nanos(100_000_000)),
            ("3_200_000", Quantity::Count(3_200_000)),
            ("20 MiB/s", Quantity::Bytes(20 << 20)),
        ] {
            assert_eq!(units.parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_variable_is_a_unit() {
        let mut units = Units::default();
        units.define("minute", Quantity::Nanos(4_000_000_000));
        assert_eq!(units.parse("2 minutes"), Ok(Quantity::Nanos(8_000_000_000)));
        assert_eq!(
            units.parse("0.5 minute"),
            Ok(Quantity::Nanos(2_000_000_000))
        );
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_the_reason() {
        let units = Units::default();
        assert!(matches!(units.parse("leak"), Err(UnitError::Unit { .. })));
        assert!(matches!(
            units.parse("2 minute"),
            Err(UnitError::Unit { .. })
        ));
        assert!(matches!(
            units.parse("1.2.3 MiB"),
            Err(UnitError::Number(_))
        ));
        assert!(!units.is_quantity("46"));
        assert!(!units.is_quantity("growing_too_early"));
        assert!(units.is_quantity("46 MiB"));
    }
}
