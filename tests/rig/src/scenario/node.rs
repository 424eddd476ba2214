//! A scenario file as a tree whose every value knows its line, and a reader that refuses keys it
//! does not know: a misspelt key must never make a scenario quietly weaker.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

use super::fields::Fields;
use super::units::{Quantity, Units};

/// A mistake in a scenario file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct FormatError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl FormatError {
    pub(super) fn new(line: usize, message: impl Into<String>) -> Self {
        Self {
            line,
            message: message.into(),
        }
    }
}

/// A value with the line where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The line, from 1.
    pub line: usize,
    /// The value itself.
    pub value: Value,
}

/// A TOML value, without the types that scenarios have no use for.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Flag(bool),
    /// An array.
    List(Vec<Node>),
    /// A table, inline or not.
    Table(BTreeMap<String, Node>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Flag(_) => "a boolean",
            Self::List(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

impl Node {
    /// Parses a whole file. TOML 1.1 is understood, so inline tables may span lines.
    ///
    /// # Errors
    /// The text is not TOML, or holds a value of a type that scenarios do not use.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let lines = Lines::new(text);
        let root = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| lines.at(span.start));
            FormatError::new(line, error.message())
        })?;
        Ok(Self {
            line: 1,
            value: table(root.get_ref(), &lines)?,
        })
    }

    /// The error "expected this, found that" at this node.
    #[must_use]
    pub fn unexpected(&self, expected: &str) -> FormatError {
        FormatError::new(
            self.line,
            format!("expected {expected}, found {}", self.value.kind()),
        )
    }

    /// The text of a string.
    ///
    /// # Errors
    /// It is not a string.
    pub fn text(&self) -> Result<&str, FormatError> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.unexpected("a string")),
        }
    }

    /// The elements of an array.
    ///
    /// # Errors
    /// It is not an array.
    pub fn list(&self) -> Result<&[Node], FormatError> {
        match &self.value {
            Value::List(list) => Ok(list),
            _ => Err(self.unexpected("an array")),
        }
    }

    /// One string, or an array of strings.
    ///
    /// # Errors
    /// It is neither.
    pub fn texts(&self) -> Result<Vec<String>, FormatError> {
        match &self.value {
            Value::Text(text) => Ok(vec![text.clone()]),
            Value::List(list) => list.iter().map(|n| n.text().map(str::to_owned)).collect(),
            _ => Err(self.unexpected("a string or an array of strings")),
        }
    }

    /// A reader of this table's keys; `what` names the table in messages.
    ///
    /// # Errors
    /// It is not a table.
    pub fn fields(&self, what: &str) -> Result<Fields, FormatError> {
        match &self.value {
            Value::Table(entries) => Ok(Fields::new(self.line, what, entries.clone())),
            _ => Err(self.unexpected(&format!("a table ({what})"))),
        }
    }

    /// A whole number, which may be written as a string such as `"3_200_000"`.
    ///
    /// # Errors
    /// It is not a whole number, or is negative.
    pub fn count(&self, units: &Units) -> Result<u64, FormatError> {
        match self.quantity(units)? {
            Quantity::Count(count) => Ok(count),
            _ => Err(self.unexpected("a count without a unit")),
        }
    }

    /// A size in bytes: `"6 MiB"`, or a bare number of bytes.
    ///
    /// # Errors
    /// It is not a size.
    pub fn bytes(&self, units: &Units) -> Result<u64, FormatError> {
        match self.quantity(units)? {
            Quantity::Bytes(bytes) | Quantity::Count(bytes) => Ok(bytes),
            Quantity::Nanos(_) => Err(FormatError::new(self.line, "expected a size, found a time")),
        }
    }

    /// A time in nanoseconds: `"100ms"`. A bare number other than 0 is refused, since its unit would be a guess.
    ///
    /// # Errors
    /// It is not a time.
    pub fn nanos(&self, units: &Units) -> Result<u64, FormatError> {
        match self.quantity(units)? {
            Quantity::Nanos(nanos) => Ok(nanos),
            Quantity::Count(0) => Ok(0),
            _ => Err(FormatError::new(
                self.line,
                "expected a time with a unit, such as \"100ms\"",
            )),
        }
    }

    /// The node as JSON, with quantities in the scenario's own units replaced by their amounts. What
    /// is written in a built-in unit stays text, for its reader to understand.
    ///
    /// # Errors
    /// A quantity does not fit in 64 bits.
    pub fn json(&self, units: &Units) -> Result<Json, FormatError> {
        Ok(match &self.value {
            Value::Text(text) => match units.own(text) {
                None => Json::from(text.as_str()),
                Some(Ok(quantity)) => Json::from(quantity.amount()),
                Some(Err(error)) => return Err(FormatError::new(self.line, error.to_string())),
            },
            Value::Integer(number) => Json::from(*number),
            Value::Float(number) => Json::from(*number),
            Value::Flag(flag) => Json::from(*flag),
            Value::List(list) => list
                .iter()
                .map(|n| n.json(units))
                .collect::<Result<_, _>>()?,
            Value::Table(entries) => Json::Object(
                entries
                    .iter()
                    .map(|(key, node)| Ok((key.clone(), node.json(units)?)))
                    .collect::<Result<_, FormatError>>()?,
            ),
        })
    }

    /// Reads any type of the rig, such as its settings or a command of the actor protocol.
    ///
    /// # Errors
    /// The node is not what the type needs; the message is serde's.
    pub fn read<T: DeserializeOwned>(&self, what: &str, units: &Units) -> Result<T, FormatError> {
        serde_json::from_value(self.json(units)?)
            .map_err(|error| FormatError::new(self.line, format!("{what}: {error}")))
    }

    fn quantity(&self, units: &Units) -> Result<Quantity, FormatError> {
        match &self.value {
            Value::Integer(number) => u64::try_from(*number)
                .map(Quantity::Count)
                .map_err(|_| FormatError::new(self.line, "a negative number has no meaning here")),
            Value::Text(text) => units
                .parse(text)
                .map_err(|error| FormatError::new(self.line, error.to_string())),
            _ => Err(self.unexpected("a number or a quantity such as \"6 MiB\"")),
        }
    }
}

/// Where each line begins, to turn a byte offset into a line number.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(ends).collect())
    }

    fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|start| *start <= offset)
    }
}

fn table(source: &DeTable<'_>, lines: &Lines) -> Result<Value, FormatError> {
    let mut entries = BTreeMap::new();
    for (key, value) in source {
        let line = lines.at(key.span().start);
        let node = Node {
            line,
            value: convert(value.get_ref(), line, lines)?,
        };
        entries.insert(key.get_ref().to_string(), node);
    }
    Ok(Value::Table(entries))
}

fn convert(source: &DeValue<'_>, line: usize, lines: &Lines) -> Result<Value, FormatError> {
    Ok(match source {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Integer(
            i64::from_str_radix(number.as_str(), number.radix())
                .map_err(|_| FormatError::new(line, format!("{number} is too large")))?,
        ),
        DeValue::Float(number) => Value::Float(
            number
                .as_str()
                .parse()
                .map_err(|_| FormatError::new(line, "not a number"))?,
        ),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(_) => return Err(FormatError::new(line, "dates have no meaning here")),
        DeValue::Array(elements) => {
            let mut list = Vec::new();
            for element in elements.iter() {
                let line = lines.at(element.span().start);
                list.push(Node {
                    line,
                    value: convert(element.get_ref(), line, lines)?,
                });
            }
            Value::List(list)
        }
        DeValue::Table(entries) => table(entries, lines)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_line() {
        let root =
            Node::parse("a = 1\nsteps = [\n  { start = \"P\" },\n  {\n    b = 2,\n  },\n]\n")
                .unwrap();
        let mut fields = root.fields("the file").unwrap();
        let steps = fields.take("steps").unwrap();
        let lines: Vec<usize> = steps.list().unwrap().iter().map(|node| node.line).collect();
        assert_eq!(lines, [3, 4]);
        let mut second = steps.list().unwrap()[1].fields("a step").unwrap();
        assert_eq!(second.take("b").unwrap().line, 5);
    }

    #[test]
    fn a_syntax_error_has_a_line() {
        assert_eq!(Node::parse("a = 1\nb = = 2\n").unwrap_err().line, 2);
    }
}
