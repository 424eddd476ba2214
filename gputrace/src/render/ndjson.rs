//! Newline-delimited JSON: one object a line, each with the schema's version, flushed.

use std::io::{self, Write};

use serde::Serialize;

use crate::{
    event::Event,
    report::{Report, SCHEMA, Start},
};

/// The borrowed form of [`Line`](crate::report::Line).
#[derive(Serialize)]
struct Line<'a, T: Serialize> {
    schema: &'a str,
    r#type: &'a str,
    #[serde(flatten)]
    body: T,
}

fn line(to: &mut impl Write, r#type: &str, body: impl Serialize) -> io::Result<()> {
    serde_json::to_writer(
        &mut *to,
        &Line {
            schema: SCHEMA,
            r#type,
            body,
        },
    )?;
    to.write_all(b"\n")
}

/// Tracing has begun.
///
/// # Errors
/// The writer's.
pub fn start(to: &mut impl Write, start: &Start) -> io::Result<()> {
    line(to, "start", start)?;
    to.flush()
}

/// Something happened. Not flushed: a batch of them is, at its end.
///
/// # Errors
/// The writer's.
pub fn event(to: &mut impl Write, event: Event) -> io::Result<()> {
    line(to, "event", event)
}

/// Events were left out of the output.
///
/// # Errors
/// The writer's.
pub fn events_left_out(to: &mut impl Write, count: u64) -> io::Result<()> {
    #[derive(Serialize)]
    struct LeftOut {
        count: u64,
    }
    line(to, "events_left_out", LeftOut { count })?;
    to.flush()
}

/// How things stand.
///
/// # Errors
/// The writer's.
pub fn snapshot(to: &mut impl Write, report: &Report) -> io::Result<()> {
    line(to, "snapshot", report)?;
    to.flush()
}

/// How things stood at the end.
///
/// # Errors
/// The writer's.
pub fn report(to: &mut impl Write, report: &Report) -> io::Result<()> {
    line(to, "report", report)?;
    to.flush()
}
