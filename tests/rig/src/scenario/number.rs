//! Numbers and moments of reports and scenarios.

use std::cmp::Ordering;
use std::fmt;

use super::process::boot_nanos;

/// A number from a report or a scenario. Whole numbers stay exact.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// A whole number.
    Whole(i128),
    /// Anything else.
    Real(f64),
}

impl Number {
    /// The nearest float.
    #[must_use]
    pub fn real(self) -> f64 {
        match self {
            #[expect(
                clippy::cast_precision_loss,
                reason = "only for comparison with a float"
            )]
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }

    fn combine(
        self,
        other: Self,
        whole: fn(i128, i128) -> i128,
        real: fn(f64, f64) -> f64,
    ) -> Self {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Self::Whole(whole(a, b)),
            _ => Self::Real(real(self.real(), other.real())),
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combine(other, i128::saturating_add, |a, b| a + b)
    }

    /// The difference.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combine(other, i128::saturating_sub, |a, b| a - b)
    }

    /// The product.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        self.combine(other, i128::saturating_mul, |a, b| a * b)
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(b)),
            _ => self.real().partial_cmp(&other.real()),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Real(real) => write!(f, "{real}"),
        }
    }
}

/// A moment on both clocks that reports use: `boot_ns` is nanoseconds of the boot clock, other
/// moments are RFC 3339.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since boot.
    pub boot: i128,
    /// Nanoseconds since 1970.
    pub wall: i128,
}

impl Moment {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self {
            boot: i128::from(boot_nanos()),
            wall: jiff::Timestamp::now().as_nanosecond(),
        }
    }

    /// The moment so many nanoseconds later; earlier for a negative number.
    #[must_use]
    pub fn plus(self, nanos: i128) -> Self {
        Self {
            boot: self.boot + nanos,
            wall: self.wall + nanos,
        }
    }
}

/// Nanoseconds since 1970 of a text such as `2024-01-31T12:00:00.5Z`; `None` for any other text.
#[must_use]
pub fn wall_nanos(text: &str) -> Option<i128> {
    text.parse().ok().map(jiff::Timestamp::as_nanosecond)
}
