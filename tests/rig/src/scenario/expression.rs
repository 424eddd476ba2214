//! Values that an expectation compares with: literals, and references to what the run itself knows
//! (the workload's own tallies, moments, earlier measurements, PIDs, other places of the report).

use std::fmt;

use serde_json::Value as Json;

use super::fields::Fields;
use super::node::{FormatError, Node, Value};
use super::number::{Moment, Number, wall_nanos};
use super::subject::{Lookup, Selection};
use super::tally::Part;
use super::units::Units;

/// What a value is once evidence is unwrapped.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// A number; also a string of digits, as the report writes nanoseconds.
    Number(Number),
    /// A text; also a moment as the report writes it.
    Text(String),
    /// A moment of the run.
    Moment(Moment),
    /// A boolean.
    Flag(bool),
    /// `{"not_available": reason}`.
    NotAvailable(String),
    /// `null`.
    Null,
    /// An array or an object.
    Composite(Json),
}

impl Scalar {
    /// Reads a value of the report. `{"value": N}` is N.
    #[must_use]
    pub fn of(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(flag) => Self::Flag(*flag),
            Json::Number(number) => Self::Number(number.as_i128().map_or_else(
                || Number::Real(number.as_f64().unwrap_or(f64::NAN)),
                Number::Whole,
            )),
            Json::String(text) => Self::Text(text.clone()),
            Json::Object(members) if members.len() == 1 => {
                match (members.get("value"), members.get("not_available")) {
                    (Some(value), None) => Self::of(value),
                    (None, Some(Json::String(reason))) => Self::NotAvailable(reason.clone()),
                    _ => Self::Composite(json.clone()),
                }
            }
            Json::Array(_) | Json::Object(_) => Self::Composite(json.clone()),
        }
    }

    /// The number, if it is one, a string of digits, or a moment in nanoseconds.
    #[must_use]
    pub fn number(&self) -> Option<Number> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text
                .parse()
                .ok()
                .or_else(|| wall_nanos(text))
                .map(Number::Whole),
            Self::Moment(moment) => Some(Number::Whole(moment.boot)),
            _ => None,
        }
    }

    /// This value on the clock of another one: a moment of the run can be compared with
    /// nanoseconds since boot as well as with a date.
    #[must_use]
    pub fn on_clock_of(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Moment(moment), Self::Text(text)) if wall_nanos(text).is_some() => {
                Self::Number(Number::Whole(moment.wall))
            }
            _ => self.clone(),
        }
    }

    /// Equality as an author means it: a string of digits equals the number it reads as.
    #[must_use]
    pub fn means(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a == b,
            _ => match (self.number(), other.number()) {
                (Some(a), Some(b)) => a == b,
                _ => self == other,
            },
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Moment(moment) => write!(f, "{} ns since boot", moment.boot),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::NotAvailable(reason) => write!(f, "not available ({reason})"),
            Self::Null => f.write_str("null"),
            Self::Composite(json) => {
                // Enough to recognise the value; the whole snapshot is kept in a file.
                let text = json.to_string();
                let short: String = text.chars().take(200).collect();
                f.write_str(&short)?;
                if short.len() < text.len() {
                    f.write_str("...")
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// The source of an expected value.
#[derive(Debug, Clone, PartialEq)]
enum Term {
    Literal(Scalar),
    /// The moment of a `mark` step.
    Mark(String),
    /// A count or size that the workload kept itself.
    Tally {
        process: String,
        part: Part,
        of: String,
    },
    /// What a `measure` step found.
    Measured(String),
    /// The PID of a process of the scenario.
    Pid(String),
    /// Another place of the same report.
    Report(Box<Selection>),
}

/// An expected value: a term, with arithmetic where it is written as a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    term: Term,
    times: Option<Number>,
    plus: Vec<Expression>,
    minus: Vec<Expression>,
}

impl Expression {
    /// Reads a literal or a table such as `{ mark = "loop", plus = "2s" }`.
    ///
    /// # Errors
    /// The node is neither.
    pub fn parse(node: &Node, units: &Units) -> Result<Self, FormatError> {
        let term = match &node.value {
            Value::Text(text) if units.is_quantity(text) => {
                let quantity = units
                    .parse(text)
                    .map_err(|e| FormatError::new(node.line, e.to_string()))?;
                Scalar::Number(Number::Whole(i128::from(quantity.amount())))
            }
            Value::Text(text) => Scalar::Text(text.clone()),
            Value::Integer(number) => Scalar::Number(Number::Whole(i128::from(*number))),
            Value::Float(number) => Scalar::Number(Number::Real(*number)),
            Value::Flag(flag) => Scalar::Flag(*flag),
            Value::Table(_) => return Self::from_table(node.fields("a computed value")?, units),
            Value::List(_) => return Err(node.unexpected("a value, not a list")),
        };
        Ok(Self {
            term: Term::Literal(term),
            times: None,
            plus: Vec::new(),
            minus: Vec::new(),
        })
    }

    /// As [`Expression::parse`], except that a string is always text: for parts of texts, where
    /// `"60 s"` means these characters.
    ///
    /// # Errors
    /// The node is neither a literal nor such a table.
    pub fn parse_text(node: &Node, units: &Units) -> Result<Self, FormatError> {
        match &node.value {
            Value::Text(text) => Ok(Self {
                term: Term::Literal(Scalar::Text(text.clone())),
                times: None,
                plus: Vec::new(),
                minus: Vec::new(),
            }),
            _ => Self::parse(node, units),
        }
    }

    fn from_table(mut fields: Fields, units: &Units) -> Result<Self, FormatError> {
        let term = if let Some(mark) = fields.text("mark")? {
            Term::Mark(mark)
        } else if let Some(process) = fields.text("tally")? {
            let of = fields.need("of")?.text()?.to_owned();
            Term::Tally {
                process,
                part: Part {
                    site: fields.text("site")?,
                    kind: fields
                        .take("kind")
                        .map(|node| node.read("a kind", units))
                        .transpose()?,
                },
                of,
            }
        } else if let Some(name) = fields.text("measured")? {
            Term::Measured(name)
        } else if let Some(process) = fields.text("pid")? {
            Term::Pid(process)
        } else if let Some(value) = fields.take("value") {
            Self::parse(&value, units)?.term
        } else if fields.has("path") || fields.has("sum") || fields.has("count") {
            Term::Report(Box::new(Selection::parse(&mut fields)?))
        } else {
            return Err(fields.error(
                "a computed value needs one of: mark, tally, measured, pid, value, path, sum, count",
            ));
        };
        let mut operands = |key| match fields.take(key) {
            None => Ok(Vec::new()),
            Some(Node {
                value: Value::List(list),
                ..
            }) => list.iter().map(|node| Self::parse(node, units)).collect(),
            Some(node) => Ok(vec![Self::parse(&node, units)?]),
        };
        let (plus, minus) = (operands("plus")?, operands("minus")?);
        let times = match fields.take("times") {
            None => None,
            Some(Node {
                value: Value::Float(number),
                ..
            }) => Some(Number::Real(number)),
            Some(Node {
                value: Value::Integer(number),
                ..
            }) => Some(Number::Whole(number.into())),
            Some(node) => return Err(node.unexpected("a number")),
        };
        fields.finish()?;
        Ok(Self {
            term,
            times,
            plus,
            minus,
        })
    }

    /// The names of processes that this expression refers to.
    pub(super) fn processes<'e>(&'e self, into: &mut Vec<&'e str>) {
        match &self.term {
            Term::Tally { process, .. } | Term::Pid(process) => into.push(process),
            Term::Report(selection) => selection.processes(into),
            _ => {}
        }
        for operand in self.plus.iter().chain(&self.minus) {
            operand.processes(into);
        }
    }

    /// The processes whose own tallies the expression needs.
    pub(super) fn tallies<'e>(&'e self, into: &mut Vec<&'e str>) {
        if let Term::Tally { process, .. } = &self.term {
            into.push(process);
        }
        for operand in self.plus.iter().chain(&self.minus) {
            operand.tallies(into);
        }
    }

    /// Computes the value.
    ///
    /// # Errors
    /// What it refers to is not known, or arithmetic is asked of something that is no number.
    pub fn evaluate(&self, report: &Json, lookup: &dyn Lookup) -> Result<Scalar, String> {
        let base = match &self.term {
            Term::Literal(scalar) => scalar.clone(),
            Term::Mark(name) => lookup.mark(name).map_or(Scalar::Null, Scalar::Moment),
            Term::Tally { process, part, of } => Scalar::Number(lookup.tally(process, part, of)?),
            Term::Measured(name) => number(lookup.measured(name)),
            Term::Pid(process) => number(lookup.process(process).map(|id| u64::from(id.tgid))),
            Term::Report(selection) => selection.one(report, lookup)?,
        };
        if matches!(base, Scalar::Null) {
            return Err(format!("{self} is not known"));
        }
        if self.times.is_none() && self.plus.is_empty() && self.minus.is_empty() {
            return Ok(base);
        }
        let mut change = Number::Whole(0);
        for operand in &self.plus {
            change = change.plus(amount(&operand.evaluate(report, lookup)?)?);
        }
        for operand in &self.minus {
            change = change.minus(amount(&operand.evaluate(report, lookup)?)?);
        }
        match (base, self.times, change) {
            (Scalar::Moment(moment), None, Number::Whole(nanos)) => {
                Ok(Scalar::Moment(moment.plus(nanos)))
            }
            (base, times, change) => {
                let factor = times.unwrap_or(Number::Whole(1));
                Ok(Scalar::Number(amount(&base)?.times(factor).plus(change)))
            }
        }
    }
}

fn amount(scalar: &Scalar) -> Result<Number, String> {
    scalar
        .number()
        .ok_or_else(|| format!("arithmetic needs a number, found {scalar}"))
}

fn number(value: Option<u64>) -> Scalar {
    value.map_or(Scalar::Null, |value| {
        Scalar::Number(Number::Whole(i128::from(value)))
    })
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.term {
            Term::Literal(scalar) => write!(f, "{scalar}")?,
            Term::Mark(name) => write!(f, "the moment \"{name}\"")?,
            Term::Tally { process, part, of } => {
                write!(f, "{process}'s own {of}")?;
                if let Some(kind) = part.kind {
                    write!(f, " of kind {kind:?}")?;
                }
                if let Some(site) = &part.site {
                    write!(f, " at {site}")?;
                }
            }
            Term::Measured(name) => write!(f, "the measurement \"{name}\"")?,
            Term::Pid(process) => write!(f, "the PID of {process}")?,
            Term::Report(selection) => write!(f, "{selection}")?,
        }
        if let Some(times) = self.times {
            write!(f, " x {times}")?;
        }
        for operand in &self.plus {
            write!(f, " + {operand}")?;
        }
        for operand in &self.minus {
            write!(f, " - {operand}")?;
        }
        Ok(())
    }
}
