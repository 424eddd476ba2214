//! From a recording to the ledger that the live run had.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    ops::ControlFlow,
};

use super::reader::{Item, Reader};
use crate::{
    event::{BootTime, Coverage, EndedBy, Event, Losses},
    identity,
    ledger::{Ledger, Limits},
    report::RecordingReport,
    text::rfc3339,
};

/// Events that the file had and has no more: bytes of it are damaged, or missing.
const DAMAGED: &str = "recording_damaged";
/// Events that never were in the file: the disk was full, or too slow.
const NOT_RECORDED: &str = "not_recorded";
/// Events of another version of gputrace.
const NOT_UNDERSTOOD: &str = "not_understood";

/// What of a recording could not be read.
#[derive(Debug, Default)]
pub struct Unreadable {
    /// Bytes that are no whole block.
    pub bytes: u64,
    /// Events that are missing among those that were read, by cause.
    pub causes: BTreeMap<String, u64>,
    /// Calls of functions that this build does not know, by symbol, harmless for a terminal.
    pub unknown_functions: BTreeMap<String, u64>,
    /// Up to when there are events, where the end is missing.
    pub breaks_off: Option<BootTime>,
    /// What kept the rest of the file from being read.
    pub error: Option<io::Error>,
    first: Option<BootTime>,
    last: Option<BootTime>,
}

/// A recording that has been read.
#[derive(Debug)]
pub struct Replay {
    /// As it stood at the end.
    pub ledger: Ledger,
    /// Everything before this moment is in the ledger.
    pub as_of: BootTime,
    /// Why it ended.
    pub ended_by: EndedBy,
    /// What is missing.
    pub unreadable: Unreadable,
}

impl Replay {
    /// Reads all that can be read. `each` is shown every event, in order, with the bytes read so far;
    /// where it breaks, nothing more is read.
    pub fn run<R: Read>(
        reader: &mut Reader<R>,
        limits: Limits,
        mut each: impl FnMut(Event, u64) -> ControlFlow<()>,
    ) -> Self {
        let mut state = State {
            ledger: Ledger::new(limits),
            recorded: Losses::default(),
            unreadable: Unreadable::default(),
        };
        let header = reader.header();
        let started = Event::Started {
            at: header.boot,
            wall_ns: header.wall_ns,
            coverage: Coverage::default(),
        };
        let functions = header.functions.clone();
        let mut began = false;
        'blocks: loop {
            let position = reader.position();
            let Some(block) = reader.next_block() else {
                break;
            };
            let before = state.ledger.now();
            let gap = block.gap;
            if !began && gap.events > 0 {
                // The event that tells when tracing began is missing.
                state.ledger.apply(&started);
            }
            began = true;
            state.unreadable.bytes += gap.bytes;
            let mut missing = state.missing(
                if gap.bytes > 0 { DAMAGED } else { NOT_RECORDED },
                gap.events,
            );
            let mut left = u64::from(block.events);
            for item in block {
                left = left.saturating_sub(1);
                match item {
                    Item::Event(event) => {
                        state.take_in(&event);
                        if each(event, position).is_break() {
                            break 'blocks;
                        }
                    }
                    Item::UnknownFunction(row) => {
                        missing |= state.missing(NOT_UNDERSTOOD, 1);
                        let symbol = functions.get(usize::from(row)).map_or("", String::as_str);
                        state.unknown_function(symbol);
                    }
                    Item::NotUnderstood => missing |= state.missing(NOT_UNDERSTOOD, 1),
                }
            }
            missing |= state.missing(NOT_UNDERSTOOD, left);
            if missing {
                // Whatever is missing happened before the last event of this block was reported.
                state.lost(before, state.ledger.now());
            }
        }
        let (bytes, error) = reader.rest();
        state.finish(bytes, error)
    }

    /// What is missing, for the report; `None` where nothing is.
    #[must_use]
    pub fn recording_report(&self) -> Option<RecordingReport> {
        let unreadable = &self.unreadable;
        let cause = |cause| unreadable.causes.get(cause).copied().unwrap_or(0);
        let whole = unreadable.bytes == 0
            && unreadable.causes.is_empty()
            && unreadable.breaks_off.is_none()
            && unreadable.error.is_none();
        (!whole).then(|| RecordingReport {
            unreadable_bytes: unreadable.bytes,
            events_damaged: cause(DAMAGED),
            events_not_recorded: cause(NOT_RECORDED),
            events_not_understood: cause(NOT_UNDERSTOOD),
            unknown_functions: unreadable.unknown_functions.clone(),
            breaks_off_at: unreadable
                .breaks_off
                .map(|at| rfc3339(self.ledger.wall_ns(at))),
            error: unreadable.error.as_ref().map(ToString::to_string),
        })
    }
}

struct State {
    ledger: Ledger,
    /// As the live run counted them: of no process in particular.
    recorded: Losses,
    unreadable: Unreadable,
}

impl State {
    fn take_in(&mut self, event: &Event) {
        match event {
            // Each counts from the start, so what is missing here has to be in each.
            Event::Losses { pid: None, losses } => {
                self.recorded = losses.clone();
                self.tell_losses();
            }
            _ => self.ledger.apply(event),
        }
    }

    /// Counts missing events; whether there are any.
    fn missing(&mut self, cause: &str, events: u64) -> bool {
        if events > 0 {
            let count = self.unreadable.causes.entry(cause.to_owned()).or_default();
            *count = count.saturating_add(events);
        }
        events > 0
    }

    fn unknown_function(&mut self, symbol: &str) {
        /// Longer than any function's name.
        const SYMBOL: usize = 128;
        let symbol = identity::escape_at_most(symbol.as_bytes(), SYMBOL);
        *self.unreadable.unknown_functions.entry(symbol).or_default() += 1;
    }

    fn lost(&mut self, from: BootTime, to: BootTime) {
        self.unreadable.first.get_or_insert(from);
        self.unreadable.last = self.unreadable.last.max(Some(to));
        self.tell_losses();
    }

    fn tell_losses(&mut self) {
        let mut losses = self.recorded.clone();
        for (cause, &events) in &self.unreadable.causes {
            let count = losses.causes.entry(cause.clone()).or_default();
            *count = count.saturating_add(events);
        }
        let first = [losses.first, self.unreadable.first];
        losses.first = first.into_iter().flatten().min();
        losses.last = losses.last.max(self.unreadable.last);
        self.ledger.apply(&Event::Losses { pid: None, losses });
    }

    fn finish(mut self, bytes: u64, error: Option<io::Error>) -> Replay {
        self.unreadable.bytes += bytes;
        self.unreadable.error = error;
        let now = self.ledger.now();
        let (as_of, ended_by) = self.ledger.stopped().unwrap_or_else(|| {
            self.unreadable.breaks_off = Some(now);
            (now, EndedBy::RecordingBreaksOff)
        });
        Replay {
            ledger: self.ledger,
            as_of,
            ended_by,
            unreadable: self.unreadable,
        }
    }
}
