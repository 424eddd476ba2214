//! Ways to show a report. Each takes the one [`Report`](crate::report::Report) and nothing else.

pub mod ndjson;
pub mod recording;
pub mod table;
pub mod terminal;
