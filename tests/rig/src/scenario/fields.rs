//! A reader of a table's keys that refuses keys it does not know: a misspelt key must never make a
//! scenario quietly weaker.

use std::collections::BTreeMap;

use super::node::{FormatError, Node, Value};
use super::units::Units;

/// The keys of one table, taken one by one. [`Fields::finish`] refuses what nobody took.
#[derive(Debug)]
pub struct Fields {
    /// The line of the table.
    pub line: usize,
    what: String,
    entries: BTreeMap<String, Node>,
    known: Vec<&'static str>,
}

impl Fields {
    /// The keys of a table in this line; `what` names it in messages.
    #[must_use]
    pub fn new(line: usize, what: &str, entries: BTreeMap<String, Node>) -> Self {
        Self {
            line,
            what: what.to_owned(),
            entries,
            known: Vec::new(),
        }
    }

    /// Takes a key, if it is there.
    pub fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        self.entries.remove(key)
    }

    /// Whether a key is there and was not taken yet.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Takes a key that must be there.
    ///
    /// # Errors
    /// It is not there.
    pub fn need(&mut self, key: &'static str) -> Result<Node, FormatError> {
        self.take(key)
            .ok_or_else(|| self.error(format!("{} needs the key \"{key}\"", self.what)))
    }

    /// Takes a string.
    ///
    /// # Errors
    /// It is there and not a string.
    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, FormatError> {
        self.take(key)
            .map(|node| node.text().map(str::to_owned))
            .transpose()
    }

    /// Takes a boolean; absent means `false`.
    ///
    /// # Errors
    /// It is there and not a boolean.
    pub fn flag(&mut self, key: &'static str) -> Result<bool, FormatError> {
        match self.take(key) {
            None => Ok(false),
            Some(Node {
                value: Value::Flag(flag),
                ..
            }) => Ok(flag),
            Some(node) => Err(node.unexpected("a boolean")),
        }
    }

    /// Takes a signed integer.
    ///
    /// # Errors
    /// It is there and not an integer that fits.
    pub fn integer(&mut self, key: &'static str) -> Result<Option<i32>, FormatError> {
        match self.take(key) {
            None => Ok(None),
            Some(Node {
                value: Value::Integer(number),
                line,
            }) => i32::try_from(number)
                .map(Some)
                .map_err(|_| FormatError::new(line, format!("{number} does not fit in 32 bits"))),
            Some(node) => Err(node.unexpected("an integer")),
        }
    }

    /// Takes a count.
    ///
    /// # Errors
    /// It is there and not a count.
    pub fn count(&mut self, key: &'static str, units: &Units) -> Result<Option<u64>, FormatError> {
        self.take(key).map(|node| node.count(units)).transpose()
    }

    /// Takes a small count: of threads, devices, positions.
    ///
    /// # Errors
    /// It is there and not a count that fits in 32 bits.
    pub fn small(&mut self, key: &'static str, units: &Units) -> Result<Option<u32>, FormatError> {
        let Some(node) = self.take(key) else {
            return Ok(None);
        };
        let count = node.count(units)?;
        u32::try_from(count)
            .map(Some)
            .map_err(|_| FormatError::new(node.line, format!("{count} is too large for \"{key}\"")))
    }

    /// Takes a size in bytes.
    ///
    /// # Errors
    /// It is there and not a size.
    pub fn bytes(&mut self, key: &'static str, units: &Units) -> Result<Option<u64>, FormatError> {
        self.take(key).map(|node| node.bytes(units)).transpose()
    }

    /// Takes a time in nanoseconds.
    ///
    /// # Errors
    /// It is there and not a time.
    pub fn nanos(&mut self, key: &'static str, units: &Units) -> Result<Option<u64>, FormatError> {
        self.take(key).map(|node| node.nanos(units)).transpose()
    }

    /// Every entry that nobody took: for tables whose keys are names of the author's choice.
    pub fn rest(&mut self) -> BTreeMap<String, Node> {
        std::mem::take(&mut self.entries)
    }

    /// An error at this table.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> FormatError {
        FormatError::new(self.line, message)
    }

    /// The keys that are there and were not taken yet.
    #[must_use]
    pub fn keys(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    /// Refuses what is left over.
    ///
    /// # Errors
    /// A key is left that nobody took.
    pub fn finish(self) -> Result<(), FormatError> {
        let Some((key, node)) = self.entries.first_key_value() else {
            return Ok(());
        };
        let mut known = self.known;
        known.sort_unstable();
        known.dedup();
        Err(FormatError::new(
            node.line,
            format!(
                "{} has no key \"{key}\"; its keys: {}",
                self.what,
                known.join(", ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_known_ones() {
        let root = Node::parse("title = \"x\"\n\ntittle = \"y\"\n").unwrap();
        let mut fields = root.fields("the file").unwrap();
        let _ = fields.text("title").unwrap();
        let error = fields.finish().unwrap_err();
        assert_eq!(error.line, 3);
        assert_eq!(
            error.message,
            "the file has no key \"tittle\"; its keys: title"
        );
    }
}
