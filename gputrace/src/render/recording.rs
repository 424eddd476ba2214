//! What of a recording could not be read, in words.

use crate::{report::RecordingReport, units::counted};

/// What is missing, a sentence each.
#[must_use]
pub fn lines(missing: &RecordingReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(at) = &missing.breaks_off_at {
        lines.push(format!(
            "the recording breaks off at {at}: it was cut off, or gputrace was killed"
        ));
    }
    if missing.unreadable_bytes > 0 {
        lines.push(format!(
            "{} of the recording could not be read",
            counted(missing.unreadable_bytes, "byte")
        ));
    }
    if missing.events_damaged > 0 {
        lines.push(format!(
            "{} missing: that part of the recording is damaged",
            are(missing.events_damaged, "event")
        ));
    }
    if missing.events_not_recorded > 0 {
        lines.push(format!(
            "{} never recorded: the disk was full or too slow",
            were(missing.events_not_recorded, "event")
        ));
    }
    if missing.events_not_understood > 0 {
        let functions: Vec<&str> = missing
            .unknown_functions
            .keys()
            .map(String::as_str)
            .collect();
        let of = if functions.is_empty() {
            String::new()
        } else {
            format!(", calls of {} among them", functions.join(", "))
        };
        lines.push(format!(
            "{} not understood by this version of gputrace{of}",
            are(missing.events_not_understood, "event")
        ));
    }
    if let Some(error) = &missing.error {
        lines.push(format!("the rest of the file could not be read: {error}"));
    }
    lines
}

fn are(n: u64, thing: &str) -> String {
    format!(
        "{} {}",
        counted(n, thing),
        if n == 1 { "is" } else { "are" }
    )
}

fn were(n: u64, thing: &str) -> String {
    format!(
        "{} {}",
        counted(n, thing),
        if n == 1 { "was" } else { "were" }
    )
}
