//! What a value must be.

use std::fmt;

use serde_json::Value as Json;

use super::expression::{Expression, Scalar};
use super::fields::Fields;
use super::node::{FormatError, Node};
use super::number::Number;
use super::subject::Lookup;
use super::units::Units;

/// What a value must be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Comparison {
    Equals(Expression),
    Not(Expression),
    AnyOf(Vec<Expression>),
    NoneOf(Vec<Expression>),
    Within(Expression, Expression),
    About(Expression, u32),
    AtLeast(Expression),
    AtMost(Expression),
    Contains(Expression),
    Lacks(Expression),
    /// The value is not available, and says why.
    NotAvailable,
}

/// Takes the key of each comparison that is there.
///
/// # Errors
/// A value cannot be read.
pub(super) fn comparisons(
    fields: &mut Fields,
    units: &Units,
) -> Result<Vec<Comparison>, FormatError> {
    let mut found = Vec::new();
    type Make = fn(Expression) -> Comparison;
    let singles: [(&'static str, Make); 4] = [
        ("equals", Comparison::Equals),
        ("not", Comparison::Not),
        ("at_least", Comparison::AtLeast),
        ("at_most", Comparison::AtMost),
    ];
    for (key, make) in singles {
        if let Some(node) = fields.take(key) {
            found.push(make(Expression::parse(&node, units)?));
        }
    }
    let parts: [(&'static str, Make); 2] = [
        ("contains", Comparison::Contains),
        ("lacks", Comparison::Lacks),
    ];
    for (key, make) in parts {
        if let Some(node) = fields.take(key) {
            found.push(make(Expression::parse_text(&node, units)?));
        }
    }
    let many = |node: &Node| -> Result<Vec<Expression>, FormatError> {
        node.list()?
            .iter()
            .map(|node| Expression::parse(node, units))
            .collect()
    };
    if let Some(node) = fields.take("any_of") {
        found.push(Comparison::AnyOf(many(&node)?));
    }
    if let Some(node) = fields.take("none_of") {
        found.push(Comparison::NoneOf(many(&node)?));
    }
    if let Some(node) = fields.take("within") {
        let Ok([low, high]) = <[Expression; 2]>::try_from(many(&node)?) else {
            return Err(FormatError::new(
                node.line,
                "\"within\" needs two values: [low, high]",
            ));
        };
        found.push(Comparison::Within(low, high));
    }
    match (fields.take("about"), fields.small("percent", units)?) {
        (Some(node), Some(percent)) => {
            found.push(Comparison::About(Expression::parse(&node, units)?, percent));
        }
        (None, None) => {}
        _ => return Err(fields.error("\"about\" and \"percent\" belong together")),
    }
    if fields.flag("not_available")? {
        found.push(Comparison::NotAvailable);
    }
    Ok(found)
}

impl Comparison {
    /// Whether it says what must not be.
    pub(super) fn prohibits(&self) -> bool {
        matches!(self, Self::Not(_) | Self::NoneOf(_) | Self::Lacks(_))
    }

    /// The expected values.
    pub(super) fn expressions(&self) -> Vec<&Expression> {
        match self {
            Self::Equals(e)
            | Self::Not(e)
            | Self::About(e, _)
            | Self::AtLeast(e)
            | Self::AtMost(e)
            | Self::Contains(e)
            | Self::Lacks(e) => vec![e],
            Self::AnyOf(list) | Self::NoneOf(list) => list.iter().collect(),
            Self::Within(low, high) => vec![low, high],
            Self::NotAvailable => Vec::new(),
        }
    }

    /// `Err` holds what was found, or why nothing can be compared.
    pub(super) fn check(
        &self,
        value: &Scalar,
        report: &Json,
        lookup: &dyn Lookup,
    ) -> Result<(), String> {
        let eval = |expression: &Expression| {
            let expected = expression.evaluate(report, lookup)?;
            Ok::<Scalar, String>(expected.on_clock_of(value))
        };
        // Where the expected value is computed, its amount belongs in the message.
        let miss = |expected: &Scalar, expression: &Expression| {
            if expression.to_string() == expected.to_string() {
                value.to_string()
            } else {
                format!("{value} (and {expression} is {expected})")
            }
        };
        let ordered = |expression: &Expression, ok: fn(Number, Number) -> bool| {
            let expected = eval(expression)?;
            let met = match (value.number(), expected.number()) {
                (Some(found), Some(expected)) => ok(found, expected),
                _ => false,
            };
            if met {
                Ok(())
            } else {
                Err(miss(&expected, expression))
            }
        };
        let is_one_of = |list: &[Expression]| -> Result<bool, String> {
            list.iter()
                .try_fold(false, |met, e| Ok(met || value.means(&eval(e)?)))
        };
        let met = |met: bool| if met { Ok(()) } else { Err(value.to_string()) };
        match self {
            Self::Equals(e) => {
                let expected = eval(e)?;
                if value.means(&expected) {
                    Ok(())
                } else {
                    Err(miss(&expected, e))
                }
            }
            Self::Not(e) => {
                let unwanted = eval(e)?;
                if value.means(&unwanted) {
                    Err(miss(&unwanted, e))
                } else {
                    Ok(())
                }
            }
            Self::AnyOf(list) => met(is_one_of(list)?),
            Self::NoneOf(list) => met(!is_one_of(list)?),
            Self::Within(low, high) => {
                ordered(low, |found, low| found >= low)?;
                ordered(high, |found, high| found <= high)
            }
            Self::About(e, percent) => {
                let expected = eval(e)?;
                let close = match (value.number(), expected.number()) {
                    (Some(found), Some(expected)) => {
                        let distance = (found.real() - expected.real()).abs();
                        distance * 100.0 <= expected.real().abs() * f64::from(*percent)
                    }
                    _ => false,
                };
                if close {
                    Ok(())
                } else {
                    Err(miss(&expected, e))
                }
            }
            Self::AtLeast(e) => ordered(e, |found, low| found >= low),
            Self::AtMost(e) => ordered(e, |found, high| found <= high),
            Self::Contains(e) => met(contains(value, &eval(e)?)),
            Self::Lacks(e) => met(!contains(value, &eval(e)?)),
            Self::NotAvailable => met(matches!(value, Scalar::NotAvailable(_))),
        }
    }
}

/// A text contains a text; an array contains an element.
fn contains(value: &Scalar, part: &Scalar) -> bool {
    match (value, part) {
        (Scalar::Text(text), Scalar::Text(part)) => text.contains(part.as_str()),
        (Scalar::Composite(Json::Array(elements)), part) => elements
            .iter()
            .any(|element| Scalar::of(element).means(part)),
        _ => false,
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &[Expression]| {
            let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
            texts.join(", ")
        };
        match self {
            Self::Equals(e) => write!(f, "= {e}"),
            Self::Not(e) => write!(f, "not {e}"),
            Self::AnyOf(l) => write!(f, "any of {}", list(l)),
            Self::NoneOf(l) => write!(f, "none of {}", list(l)),
            Self::Within(low, high) => write!(f, "within {low} .. {high}"),
            Self::About(e, percent) => write!(f, "about {e} (within {percent} %)"),
            Self::AtLeast(e) => write!(f, "at least {e}"),
            Self::AtMost(e) => write!(f, "at most {e}"),
            Self::Contains(e) => write!(f, "to contain {e}"),
            Self::Lacks(e) => write!(f, "not to contain {e}"),
            Self::NotAvailable => f.write_str("not available"),
        }
    }
}
