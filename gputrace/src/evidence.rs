//! A fact that may be missing.
//!
//! gputrace answers in three ways: a value, zero, or *not available* with the reason. A plain
//! integer would turn a failed measurement into a silent zero, and an `Option` would lose the
//! reason, so every measured quantity is an [`Evidence`].

use std::fmt::{self, Display};

use borsh::{BorshDeserialize, BorshSerialize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A measured value, or the reason why there is none.
///
/// Serialised as `{"value": ...}` or `{"not_available": "reason"}`.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Evidence_of_{T}")]
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Evidence<T> {
    /// It was measured; zero is a value like any other.
    Value(T),
    /// It was not, and why: one line, safe to print.
    NotAvailable(String),
}

impl<T> Evidence<T> {
    /// The missing value, with its reason.
    pub fn not_available(reason: impl Into<String>) -> Self {
        Self::NotAvailable(reason.into())
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotAvailable(_) => None,
        }
    }

    /// The value by value, if there is one.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::NotAvailable(_) => None,
        }
    }

    /// Why there is no value, if there is none.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Value(_) => None,
            Self::NotAvailable(reason) => Some(reason),
        }
    }

    /// Whether there is a value.
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Value(_))
    }

    /// The same evidence by reference; the reason is copied.
    pub fn as_ref(&self) -> Evidence<&T> {
        match self {
            Self::Value(value) => Evidence::Value(value),
            Self::NotAvailable(reason) => Evidence::NotAvailable(reason.clone()),
        }
    }

    /// Applies `f` to the value and keeps a reason as it is.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Evidence<U> {
        match self {
            Self::Value(value) => Evidence::Value(f(value)),
            Self::NotAvailable(reason) => Evidence::NotAvailable(reason),
        }
    }

    /// Applies `f`, which may itself find that there is no answer.
    pub fn and_then<U>(self, f: impl FnOnce(T) -> Evidence<U>) -> Evidence<U> {
        match self {
            Self::Value(value) => f(value),
            Self::NotAvailable(reason) => Evidence::NotAvailable(reason),
        }
    }

    /// Both values, or the first reason.
    pub fn zip<U>(self, other: Evidence<U>) -> Evidence<(T, U)> {
        match (self, other) {
            (Self::Value(a), Evidence::Value(b)) => Evidence::Value((a, b)),
            (Self::NotAvailable(reason), _) | (_, Evidence::NotAvailable(reason)) => {
                Evidence::NotAvailable(reason)
            }
        }
    }
}

impl Evidence<u64> {
    /// The sum of all parts. One part without a value leaves the sum without one, with that part's
    /// reason: a total that silently lacks a part is worse than none. The empty sum is zero.
    pub fn sum(parts: impl IntoIterator<Item = Evidence<u64>>) -> Evidence<u64> {
        parts.into_iter().fold(Evidence::Value(0), Evidence::plus)
    }

    /// `self + other`; not available if either is not, or if the sum does not fit.
    #[must_use]
    pub fn plus(self, other: Evidence<u64>) -> Evidence<u64> {
        self.zip(other).and_then(|(a, b)| {
            a.checked_add(b).map_or_else(
                || Evidence::not_available("the sum does not fit into 64 bits"),
                Evidence::Value,
            )
        })
    }

    /// `self - other`; not available if either is not, or (with `below_zero` as the reason) if the
    /// difference would be negative.
    #[must_use]
    pub fn minus(self, other: Evidence<u64>, below_zero: &str) -> Evidence<u64> {
        self.zip(other).and_then(|(a, b)| {
            a.checked_sub(b)
                .map_or_else(|| Evidence::not_available(below_zero), Evidence::Value)
        })
    }
}

impl<T, E: Display> From<Result<T, E>> for Evidence<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(error) => Self::NotAvailable(error.to_string()),
        }
    }
}

impl<T: Display> Display for Evidence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::NotAvailable(reason) => write!(f, "not available ({reason})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_form_is_the_documented_one() {
        let value = Evidence::Value(0u64);
        assert_eq!(serde_json::to_string(&value).unwrap(), r#"{"value":0}"#);
        let missing: Evidence<u64> = Evidence::not_available("no driver");
        let json = serde_json::to_string(&missing).unwrap();
        assert_eq!(json, r#"{"not_available":"no driver"}"#);
        assert_eq!(
            serde_json::from_str::<Evidence<u64>>(&json).unwrap(),
            missing
        );
    }

    #[test]
    fn a_sum_with_a_missing_part_is_missing() {
        let sum = Evidence::sum([
            Evidence::Value(1),
            Evidence::not_available("part 2"),
            Evidence::not_available("part 3"),
        ]);
        assert_eq!(sum.reason(), Some("part 2"));
        assert_eq!(Evidence::sum([]), Evidence::Value(0));
        assert_eq!(
            Evidence::sum([Evidence::Value(3), Evidence::Value(4)]),
            Evidence::Value(7)
        );
    }

    #[test]
    fn arithmetic_never_wraps() {
        let max = Evidence::Value(u64::MAX);
        assert!(!max.plus(Evidence::Value(1)).is_available());
        let below = Evidence::Value(1u64).minus(Evidence::Value(2), "more than all");
        assert_eq!(below.reason(), Some("more than all"));
    }

    #[test]
    fn a_result_becomes_evidence() {
        let failed: Result<u64, &str> = Err("EPERM");
        assert_eq!(Evidence::from(failed).to_string(), "not available (EPERM)");
        assert_eq!(
            Evidence::from(Ok::<_, &str>(5)).map(|v| v * 2).value(),
            Some(&10)
        );
    }
}
