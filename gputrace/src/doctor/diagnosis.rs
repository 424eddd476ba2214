//! What the doctor found: values, without I/O.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    event::{Library, NotProbed},
    evidence::Evidence,
    sensors::procaddr::ProcAddresses,
};

/// Whether this machine can be traced by this process, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Version of gputrace.
    pub version: String,
    /// Whether everything that tracing depends on is there.
    pub can_trace: bool,
    /// What was looked at.
    pub checks: Vec<Check>,
    /// Copies of libcuda that can be probed.
    pub libraries: Vec<FoundLibrary>,
    /// Copies of libcuda that cannot be, and processes that could not be looked into.
    pub not_probed: Vec<NotProbed>,
}

impl Diagnosis {
    /// Tracing is possible if nothing that it depends on is missing or unknown.
    #[must_use]
    pub fn new(
        checks: Vec<Check>,
        libraries: Vec<FoundLibrary>,
        not_probed: Vec<NotProbed>,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            can_trace: !checks.iter().any(Check::prevents_tracing),
            checks,
            libraries,
            not_probed,
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What. There is one `libcuda` check for each copy; every other name occurs once.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Whether tracing is impossible without it.
    pub needed: bool,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: String,
    /// What to do, where there is something to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing needs to be done.
    Note,
    /// It works, but less well than it could.
    Warning,
    /// It could not be found out.
    Unknown,
    /// It is not there, or in the way.
    Missing,
}

impl State {
    /// For people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
        }
    }
}

/// A copy of libcuda.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundLibrary {
    /// The copy, and where its functions would be probed.
    #[serde(flatten)]
    pub library: Library,
    /// Processes that have it mapped.
    pub mapped_by: Vec<u32>,
    /// What it answers to `cuGetProcAddress`; only with `--deep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc_addresses: Option<Evidence<ProcAddresses>>,
}

impl Check {
    /// A check that is as it should be.
    #[must_use]
    pub fn ok(name: &str, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            state: State::Ok,
            needed: false,
            found: found.into(),
            why: why.into(),
            advice: None,
        }
    }

    /// The same, in another state.
    #[must_use]
    pub fn state(self, state: State) -> Self {
        Self { state, ..self }
    }

    /// The same, with what to do.
    #[must_use]
    pub fn advice(self, advice: impl Into<String>) -> Self {
        Self {
            advice: Some(advice.into()),
            ..self
        }
    }

    /// The same; tracing depends on it.
    #[must_use]
    pub fn needed(self) -> Self {
        Self {
            needed: true,
            ..self
        }
    }

    /// Whether tracing is not possible, or not known to be, because of this.
    #[must_use]
    pub fn prevents_tracing(&self) -> bool {
        self.needed && matches!(self.state, State::Missing | State::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_tracing_depends_on_prevents_it() {
        let can = |checks| Diagnosis::new(checks, Vec::new(), Vec::new()).can_trace;
        let check = |state| Check::ok("x", "f", "w").state(state);
        assert!(can(vec![]));
        assert!(can(vec![check(State::Missing), check(State::Unknown)]));
        assert!(can(vec![
            check(State::Warning).needed(),
            check(State::Note).needed()
        ]));
        assert!(!can(vec![check(State::Missing).needed()]));
        assert!(!can(vec![check(State::Unknown).needed()]));
    }
}
