//! Names of processes and of their threads in a scenario: `"P"`, `"P.3"`, `"P.1-4"`, `"P.*"`.

use std::fmt;

use super::node::{FormatError, Node};

/// Some threads of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name of the process.
    pub process: String,
    /// Which of its threads.
    pub threads: Threads,
}

/// Which threads of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The name alone: the first thread for a command, all of them for a condition.
    Unsaid,
    /// Those with these numbers, both included.
    Range(u32, u32),
    /// All that there are.
    All,
}

impl Target {
    /// Reads one target.
    ///
    /// # Errors
    /// It is no string of that form.
    pub fn parse(node: &Node) -> Result<Self, FormatError> {
        let text = node.text()?;
        let (process, threads) = text
            .split_once('.')
            .map_or((text, None), |(p, t)| (p, Some(t)));
        let threads = match threads {
            None => Some(Threads::Unsaid),
            Some("*") => Some(Threads::All),
            Some(numbers) => {
                let (low, high) = numbers.split_once('-').unwrap_or((numbers, numbers));
                match (low.parse(), high.parse()) {
                    (Ok(low), Ok(high)) if low <= high => Some(Threads::Range(low, high)),
                    _ => None,
                }
            }
        };
        match threads {
            Some(threads) if is_name(process) => Ok(Self {
                process: process.to_owned(),
                threads,
            }),
            _ => Err(FormatError::new(
                node.line,
                format!(
                    "\"{text}\" is no process or thread: write \"P\", \"P.3\", \"P.1-4\" or \"P.*\""
                ),
            )),
        }
    }

    /// Reads one target or a list of them.
    ///
    /// # Errors
    /// One of them cannot be read, or there is none.
    pub fn list(node: &Node) -> Result<Vec<Self>, FormatError> {
        let targets = match node.list() {
            Ok(list) => list
                .iter()
                .map(Self::parse)
                .collect::<Result<Vec<_>, _>>()?,
            Err(_) => vec![Self::parse(node)?],
        };
        if targets.is_empty() {
            return Err(FormatError::new(node.line, "no process is named"));
        }
        Ok(targets)
    }

    /// The process, where a thread has no meaning.
    ///
    /// # Errors
    /// A thread is named.
    pub fn only_process(&self, node: &Node) -> Result<String, FormatError> {
        match self.threads {
            Threads::Unsaid => Ok(self.process.clone()),
            _ => Err(FormatError::new(
                node.line,
                "a process is meant here, not a thread",
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = &self.process;
        match self.threads {
            Threads::Unsaid => write!(f, "{process}"),
            Threads::Range(low, high) if low == high => write!(f, "{process}.{low}"),
            Threads::Range(low, high) => write!(f, "{process}.{low}-{high}"),
            Threads::All => write!(f, "{process}.*"),
        }
    }
}

/// Whether a text can name a process.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}
