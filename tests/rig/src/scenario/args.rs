//! Arguments of gputrace, in which `{P}` stands for a PID and `{2 minutes}` for a time or size.

use super::node::{FormatError, Node};
use super::target;
use super::units::{Quantity, Units};

/// One argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Pid(String),
}

impl Argument {
    /// Reads an argument. Quantities are replaced at once, PIDs when gputrace is started.
    ///
    /// # Errors
    /// A brace is not closed, or holds neither a quantity nor the name of a process.
    pub fn parse(node: &Node, units: &Units) -> Result<Self, FormatError> {
        let mut pieces = Vec::new();
        let mut rest = node.text()?;
        while let Some((before, after)) = rest.split_once('{') {
            let (inside, after) = after
                .split_once('}')
                .ok_or_else(|| FormatError::new(node.line, "a \"{\" is not closed"))?;
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(if units.is_quantity(inside) {
                let quantity = units
                    .parse(inside)
                    .map_err(|error| FormatError::new(node.line, error.to_string()))?;
                Piece::Text(written(quantity))
            } else if target::is_name(inside) {
                Piece::Pid(inside.to_owned())
            } else {
                let message =
                    format!("\"{{{inside}}}\" is neither a quantity nor the name of a process");
                return Err(FormatError::new(node.line, message));
            });
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// The names of the processes whose PIDs it needs.
    pub fn processes(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Pid(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// The text to hand over.
    ///
    /// # Errors
    /// The name of a process whose PID is not known.
    pub fn resolve(&self, pid: impl Fn(&str) -> Option<u32>) -> Result<String, String> {
        self.0.iter().try_fold(String::new(), |mut text, piece| {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Pid(name) => {
                    text.push_str(&pid(name).ok_or_else(|| name.clone())?.to_string());
                }
            }
            Ok(text)
        })
    }
}

/// A quantity as gputrace's flags take it.
fn written(quantity: Quantity) -> String {
    const SECOND: u64 = 1_000_000_000;
    match quantity {
        Quantity::Nanos(nanos) if nanos % SECOND == 0 => format!("{}s", nanos / SECOND),
        Quantity::Nanos(nanos) => format!("{}ms", nanos / 1_000_000),
        Quantity::Bytes(amount) | Quantity::Count(amount) => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::node::Value;

    fn resolved(text: &str) -> Result<String, String> {
        let mut units = Units::default();
        units.define("minute", Quantity::Nanos(2_500_000_000));
        let node = Node {
            line: 1,
            value: Value::Text(text.to_owned()),
        };
        let argument = Argument::parse(&node, &units).map_err(|error| error.to_string())?;
        argument.resolve(|name| (name == "P").then_some(17))
    }

    #[test]
    fn braces_are_replaced() {
        assert_eq!(resolved("--leaks"), Ok("--leaks".to_owned()));
        assert_eq!(resolved("{P}"), Ok("17".to_owned()));
        assert_eq!(
            resolved("--flat-after={2 minutes}"),
            Ok("--flat-after=5s".to_owned())
        );
        assert_eq!(resolved("{1 minute}"), Ok("2500ms".to_owned()));
        assert_eq!(resolved("{Q}"), Err("Q".to_owned()));
        assert!(resolved("{").is_err());
        assert!(resolved("{a b}").is_err());
    }
}
