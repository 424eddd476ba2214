//! Reading blocks from a file that may be cut off, damaged, or made to do harm.

use std::io::{self, Read};

use borsh::BorshDeserialize as _;

use super::{
    format::{self, HEAD, Head, Header, Kind, Looked, MAGIC, VERSION},
    functions::{self, Rows},
};
use crate::event::Event;

/// The header must begin within so many bytes. It is written twice, so one copy may be damaged.
const HEADER_WITHIN: usize = 256 << 10;

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// Bytes of damaged blocks in which other blocks are looked for. A file that makes the reader look
/// through more than this was made for that; blocks are then skipped as a whole.
const PATIENCE: u64 = 256 << 20;

/// Why a recording cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Something else.
    #[error("this is not a recording of gputrace")]
    NotARecording,
    /// Nothing.
    #[error("the file is empty")]
    Empty,
    /// A recording without a whole copy of its header.
    #[error("the header of this recording is damaged or cut off: nothing can be read")]
    NoHeader,
    /// Another version of the format.
    #[error(
        "this recording has version {found} of the format, and this gputrace ({own}) reads version \
         {VERSION}: use {advice}", own = env!("CARGO_PKG_VERSION"),
        advice = if *.found > VERSION { "a newer gputrace" } else { "the gputrace that made it" }
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// The file cannot be read.
    #[error("the recording could not be read: {0}")]
    Io(#[from] io::Error),
}

/// What is missing in front of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Events, by the blocks' sequence numbers.
    pub events: u64,
    /// Bytes of the file that are no whole block. None: the events were never written.
    pub bytes: u64,
}

/// Events of a recording.
#[derive(Debug)]
pub struct Block<'a> {
    /// What is missing in front of them.
    pub gap: Gap,
    /// How many they are said to be.
    pub events: u32,
    raw: &'a [u8],
}

/// One event of a block.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are events, which are not to be allocated one by one"
)]
pub enum Item {
    /// An event.
    Event(Event),
    /// A call of a function that this build does not know: the function's number in the recording.
    UnknownFunction(u16),
    /// Bytes that are no event of this version.
    NotUnderstood,
}

impl Iterator for Block<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        if self.raw.is_empty() {
            return None;
        }
        let Some(mut bytes) = format::next(&mut self.raw) else {
            self.raw = &[];
            return Some(Item::NotUnderstood);
        };
        let event = Event::deserialize(&mut bytes);
        Some(match (functions::take_unknown(), event) {
            (None, Ok(event)) if bytes.is_empty() => Item::Event(event),
            (Some(row), Ok(_)) if bytes.is_empty() => Item::UnknownFunction(row),
            _ => Item::NotUnderstood,
        })
    }
}

/// Reads a recording from its beginning to where nothing can be read any more.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: Input<R>,
    header: Header,
    rows: Rows,
    raw: Vec<u8>,
    /// Sequence number of the next event.
    next: u64,
    /// Bytes without a whole block since the last one.
    damaged: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// Where there is none that can be read.
    pub fn new(from: R) -> Result<Self, ReadError> {
        let mut input = Input::new(from);
        let mut raw = Vec::new();
        let (header, damaged) = read_header(&mut input, &mut raw)?;
        Ok(Self {
            rows: Rows::new(&header.functions),
            input,
            header,
            raw,
            next: 0,
            damaged,
            ended: false,
        })
    }

    /// What the recording is of.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Symbol of a function, by its number in the recording; empty if the table has none.
    pub fn symbol(&self, row: u16) -> &str {
        self.header
            .functions
            .get(usize::from(row))
            .map_or("", String::as_str)
    }

    /// Bytes read so far.
    pub const fn position(&self) -> u64 {
        self.input.position
    }

    /// The next block that is whole, without those that are not.
    pub fn next_block(&mut self) -> Option<Block<'_>> {
        while !self.ended {
            let head = match self.input.block(&mut self.raw) {
                Found::Block(head) => head,
                Found::Damaged | Found::Version(_) => {
                    self.damaged += self.input.skip_to_magic();
                    continue;
                }
                Found::End => return None,
            };
            // The header's second copy; or an event's number that was there before, as in a file that
            // was put together of others.
            if head.kind == Kind::Header {
                continue;
            }
            let Some(missing) = head.first.checked_sub(self.next) else {
                self.damaged += u64::from(head.stored) + HEAD as u64;
                continue;
            };
            let gap = Gap {
                events: missing,
                bytes: std::mem::take(&mut self.damaged),
            };
            self.next = head.first.saturating_add(head.events.into());
            self.ended = head.kind == Kind::End;
            functions::use_rows(self.rows.clone());
            return Some(Block {
                gap,
                events: head.events,
                raw: &self.raw,
            });
        }
        None
    }

    /// To be called after the last block: how many bytes follow it that are no whole block, and the
    /// error that kept the rest from being read.
    pub fn rest(&mut self) -> (u64, Option<io::Error>) {
        let mut bytes = self.damaged;
        while self.input.fill(1) {
            bytes += self.input.skip(CHUNK);
        }
        (bytes, self.input.error.take())
    }
}

/// The header, and how many bytes lie in front of it.
fn read_header<R: Read>(
    input: &mut Input<R>,
    raw: &mut Vec<u8>,
) -> Result<(Header, u64), ReadError> {
    input.fill(HEADER_WITHIN);
    if let Some(error) = input.error.take() {
        return Err(error.into());
    }
    let begin = &input.bytes()[..input.bytes().len().min(HEADER_WITHIN)];
    if begin.is_empty() {
        return Err(ReadError::Empty);
    }
    if memchr::memmem::find(begin, &MAGIC).is_none() && !MAGIC.starts_with(begin) {
        return Err(ReadError::NotARecording);
    }
    let mut version = None;
    while input.position < HEADER_WITHIN as u64 {
        let before = input.position;
        match input.block(raw) {
            Found::Block(head) if head.kind == Kind::Header => {
                if let Ok(header) = Header::try_from_slice(raw)
                    && header.functions.len() <= MAX_FUNCTIONS
                {
                    return Ok((header, before));
                }
            }
            Found::Block(_) => {}
            Found::Version(found) => {
                version.get_or_insert(found);
                input.skip_to_magic();
            }
            Found::Damaged => {
                input.skip_to_magic();
            }
            Found::End => break,
        }
    }
    Err(match (input.error.take(), version) {
        (Some(error), _) => error.into(),
        (None, Some(found)) => ReadError::Version { found },
        (None, None) => ReadError::NoHeader,
    })
}

/// Most functions that a table is believed to have: what a row's 16 bits can tell.
const MAX_FUNCTIONS: usize = 1 << 16;

/// What lies at the reading position.
enum Found {
    /// A block, which is now in the buffer for it, and behind the position.
    Block(Head),
    /// A head of another version.
    Version(u16),
    /// Neither.
    Damaged,
    /// The end of the file.
    End,
}

/// Bytes of the file with a position.
#[derive(Debug)]
struct Input<R> {
    from: R,
    buffer: Vec<u8>,
    begin: usize,
    position: u64,
    patience: u64,
    error: Option<io::Error>,
}

impl<R: Read> Input<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
            begin: 0,
            position: 0,
            patience: PATIENCE,
            error: None,
        }
    }

    /// What has been read and not been skipped.
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.begin..]
    }

    /// Reads until there are so many bytes; whether there are.
    fn fill(&mut self, count: usize) -> bool {
        while self.bytes().len() < count {
            if self.begin > 0 {
                self.buffer.drain(..self.begin);
                self.begin = 0;
            }
            let missing = count - self.buffer.len();
            let wanted = missing.max(CHUNK) as u64;
            match (&mut self.from).take(wanted).read_to_end(&mut self.buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => {
                    // What came before the error is in the buffer.
                    let is_there = self.bytes().len() >= count;
                    self.error.get_or_insert(error);
                    return is_there;
                }
            }
        }
        true
    }

    /// Skips at most so many bytes that have been read; tells how many.
    fn skip(&mut self, count: usize) -> u64 {
        let count = count.min(self.bytes().len());
        self.begin += count;
        self.position += count as u64;
        count as u64
    }

    /// Reads the block at the position.
    fn block(&mut self, raw: &mut Vec<u8>) -> Found {
        if !self.fill(1) {
            return Found::End;
        }
        self.fill(HEAD);
        let Some(head) = self.bytes().first_chunk() else {
            return Found::Damaged;
        };
        let head = match Head::look(head) {
            Looked::Head(head) => head,
            Looked::Version(version) => return Found::Version(version),
            Looked::Damaged => return Found::Damaged,
        };
        let end = HEAD + head.stored as usize;
        if self.fill(end) && decompress(&head, &self.bytes()[HEAD..end], raw) {
            self.skip(end);
            Found::Block(head)
        } else {
            Found::Damaged
        }
    }

    /// Skips to the next place after the position where a block may begin, or to the end. Tells how
    /// many bytes.
    fn skip_to_magic(&mut self) -> u64 {
        let mut skipped = self.skip_damaged_block();
        if skipped == 0 {
            skipped = self.skip(1);
        }
        loop {
            if let Some(at) = memchr::memmem::find(self.bytes(), &MAGIC) {
                return skipped + self.skip(at);
            }
            // The magic may lie across the end of what has been read.
            let tail = MAGIC.len() - 1;
            skipped += self.skip(self.bytes().len().saturating_sub(tail));
            if !self.fill(tail + 1) {
                return skipped + self.skip(tail);
            }
        }
    }

    /// Skips a block whose head is whole, and its payload not. If no block follows where it says that
    /// it ends, bytes are missing in it: then the next one is looked for in it.
    fn skip_damaged_block(&mut self) -> u64 {
        let Some(Looked::Head(head)) = self.bytes().first_chunk().map(Head::look) else {
            return 0;
        };
        let end = HEAD + head.stored as usize;
        let follows = self.fill(end)
            && (!self.fill(end + MAGIC.len()) || self.bytes()[end..].starts_with(&MAGIC));
        let looks = self.patience.checked_sub(head.stored.into());
        match looks {
            Some(left) if !follows => {
                self.patience = left;
                0
            }
            _ => self.skip(end),
        }
    }
}

/// Uncompresses a payload; whether it is what was written.
fn decompress(head: &Head, payload: &[u8], raw: &mut Vec<u8>) -> bool {
    if crc32fast::hash(payload) != head.checksum {
        return false;
    }
    raw.clear();
    raw.resize(head.raw as usize, 0);
    lz4_flex::block::decompress_into(payload, raw).is_ok_and(|length| length == raw.len())
}
