//! Recordings: the events of a trace, kept in a file (`docs/recordings.md`).

mod functions;

pub(crate) use functions::known_functions;
