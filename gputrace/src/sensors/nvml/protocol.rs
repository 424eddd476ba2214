//! What parent and child say to each other: one JSON object a line.

use serde::{Deserialize, Serialize};

use super::sample::Sample;

/// The parent asks for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Comes back in the reply, so that a reply which comes late is not taken for another one.
    pub request: u64,
    /// Whether NVML may stay open after the reply.
    #[serde(default)]
    pub keep_open: bool,
}

/// The child answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The number of the request.
    pub request: u64,
    /// What it found.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What the child found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// An answer of NVML.
    Sample(Sample),
    /// There is none, and why (no library, no driver).
    Failure(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_as_written_down() {
        let request: Request = serde_json::from_str(r#"{"request":3}"#).unwrap();
        assert_eq!(
            request,
            Request {
                request: 3,
                keep_open: false
            }
        );
        let failure = Reply {
            request: 3,
            outcome: Outcome::Failure("no driver".into()),
        };
        let line = serde_json::to_string(&failure).unwrap();
        assert_eq!(line, r#"{"request":3,"failure":"no driver"}"#);
        assert_eq!(serde_json::from_str::<Reply>(&line).unwrap(), failure);
        let sample =
            r#"{"request":4,"sample":{"driver_version":{"value":"1"},"devices":{"value":[]}}}"#;
        assert!(matches!(
            serde_json::from_str::<Reply>(sample).unwrap().outcome,
            Outcome::Sample(_)
        ));
    }
}
