//! Writing what the engine says, on a thread of its own: a terminal or a pipe may be slow.

use std::{
    io::{self, Write},
    sync::mpsc::Receiver,
};

use crate::{
    engine::Output,
    render::{ndjson, table},
    report::Report,
};

/// How to write.
#[derive(Clone, Copy, Debug)]
pub enum Format {
    /// One JSON object a line.
    Ndjson,
    /// Tables for people.
    Table(table::Style),
    /// Not at all.
    Silent,
}

/// Writes everything until the channel closes. Returns the last report, if it came.
///
/// # Errors
/// The first error of writing; nothing is written after it.
pub fn write_all(
    outputs: &Receiver<Output>,
    format: Format,
    to: &mut impl Write,
) -> io::Result<Option<Box<Report>>> {
    for output in outputs {
        match (format, output) {
            (Format::Ndjson, Output::Events(events)) => {
                for event in events {
                    ndjson::event(to, event)?;
                }
                to.flush()?;
            }
            (Format::Ndjson, Output::EventsLeftOut(count)) => ndjson::events_left_out(to, count)?,
            (Format::Ndjson, Output::Snapshot(report)) => ndjson::snapshot(to, &report)?,
            (Format::Ndjson, Output::Report(report)) => {
                ndjson::report(to, &report)?;
                return Ok(Some(report));
            }
            (Format::Table(style), Output::Snapshot(report)) => {
                write!(
                    to,
                    "{}",
                    table::Table {
                        report: &report,
                        style
                    }
                )?;
                writeln!(to)?;
                to.flush()?;
            }
            (Format::Table(style), Output::Report(report)) => {
                write!(
                    to,
                    "{}",
                    table::Table {
                        report: &report,
                        style
                    }
                )?;
                to.flush()?;
                return Ok(Some(report));
            }
            (Format::Silent, Output::Report(report)) => return Ok(Some(report)),
            (Format::Table(_) | Format::Silent, _) => {}
        }
    }
    Ok(None)
}
