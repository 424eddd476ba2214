//! Writing blocks.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom, Write},
};

use super::format::{self, FULL, Header, Kind};
use crate::event::Event;

/// Where a recording is written to.
pub trait Sink: Write {
    /// Takes back what was written beyond `length` bytes: a block that did not get there whole.
    ///
    /// # Errors
    /// Where it cannot; a reader then skips what there is of the block.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Sink for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.seek(SeekFrom::Start(length)).map(drop)
    }
}

impl Sink for Vec<u8> {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// Events that will be one block.
#[derive(Debug)]
pub(super) struct Pending {
    /// Sequence number of the first.
    pub(super) first: u64,
    pub(super) events: u32,
    raw: Vec<u8>,
}

impl Pending {
    /// A block that begins with a sequence number.
    pub(super) const fn at(first: u64) -> Self {
        Self {
            first,
            events: 0,
            raw: Vec::new(),
        }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// Where it is too large for a recording.
    pub(super) fn add(&mut self, event: &Event) -> io::Result<()> {
        if self.raw.capacity() == 0 {
            // With room for the event that makes it full.
            self.raw.reserve(FULL + 4096);
        }
        format::append(&mut self.raw, event)?;
        self.events += 1;
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.raw.len() >= FULL
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// The sequence number that follows.
    pub(super) fn next(&self) -> u64 {
        self.first + u64::from(self.events)
    }
}

/// Writes a recording, in the thread that gives it the events.
#[derive(Debug)]
pub struct Writer<S: Sink> {
    sink: S,
    length: u64,
    pending: Pending,
}

impl<S: Sink> Writer<S> {
    /// Begins a recording. The header is written twice: without it, nothing can be read.
    ///
    /// # Errors
    /// The sink's.
    pub fn new(sink: S, header: &Header) -> io::Result<Self> {
        let mut writer = Self {
            sink,
            length: 0,
            pending: Pending::at(0),
        };
        let header = header.to_block()?;
        writer.append(&header)?;
        writer.append(&header)?;
        Ok(writer)
    }

    /// Adds an event.
    ///
    /// # Errors
    /// The sink's, and for an event that is too large.
    pub fn add(&mut self, event: &Event) -> io::Result<()> {
        self.pending.add(event)?;
        if self.pending.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the events that were added as a block of their own.
    ///
    /// # Errors
    /// The sink's; the events are missing then.
    pub fn flush(&mut self) -> io::Result<()> {
        let next = Pending::at(self.pending.next());
        let pending = std::mem::replace(&mut self.pending, next);
        if pending.is_empty() {
            return Ok(());
        }
        self.write(Kind::Events, &pending)
    }

    /// Ends the recording with the events that were added last.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self) -> io::Result<S> {
        let pending = std::mem::replace(&mut self.pending, Pending::at(0));
        self.write(Kind::End, &pending)?;
        Ok(self.sink)
    }

    /// Bytes written.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn write(&mut self, kind: Kind, events: &Pending) -> io::Result<()> {
        let block = format::block(kind, events.first, events.events, &events.raw)?;
        self.append(&block)
    }

    fn append(&mut self, block: &[u8]) -> io::Result<()> {
        let result = self.sink.write_all(block).and_then(|()| self.sink.flush());
        match result {
            Ok(()) => self.length += block.len() as u64,
            Err(_) => {
                // Where that fails too, a reader finds the next block by its magic.
                let _ = self.sink.cut(self.length);
            }
        }
        result
    }
}
