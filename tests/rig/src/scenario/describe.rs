//! Steps in words, for the progress of a run.

use std::fmt;

use super::steps::{Action, TracerAction, WaitFor};

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(start) => write!(f, "start {}", start.process),
            Self::Do {
                targets,
                command,
                background,
            } => {
                let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
                let json = serde_json::to_value(command).unwrap_or_default();
                let verb = json["do"].as_str().unwrap_or("command").to_owned();
                let how = if *background {
                    " in the background"
                } else {
                    ""
                };
                write!(f, "{}: {verb}{how}", names.join(", "))
            }
            Self::Wait { targets, until } => {
                let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
                let condition = match until {
                    WaitFor::Done => "be done",
                    WaitFor::Sleep => "sleep",
                    WaitFor::Exit(_) => "end",
                };
                write!(f, "wait for {} to {condition}", names.join(", "))
            }
            Self::Signal { signal, to } => write!(f, "{signal} to {}", to.join(", ")),
            Self::Pause(_) => f.write_str("pause"),
            Self::Mark(name) => write!(f, "mark \"{name}\""),
            Self::Measure { property, name, .. } => write!(f, "measure {property} as \"{name}\""),
            Self::Query(query) => write!(f, "query \"{}\"", query.name),
            Self::Always(_) => f.write_str("always"),
            Self::Tracer { name, action } => {
                let verb = match action {
                    TracerAction::Start(_) => "start",
                    TracerAction::Stall(_) => "stall",
                    TracerAction::Resume => "resume",
                    TracerAction::Kill => "kill",
                    TracerAction::End { .. } => "end",
                };
                write!(f, "{verb} {name}")
            }
        }
    }
}
