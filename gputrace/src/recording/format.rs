//! What lies in the file: blocks, each of which says what it is and proves that it is whole.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::{
    analysis::Thresholds, clock::Moment, cuda::FunctionId, event::BootTime, ledger::Limits,
};

/// Version of the format. It changes with every change of what is written, the types of
/// [`crate::event`] included.
pub const VERSION: u16 = 1;

/// Begin of every block, and so of every recording. The first byte is in no text, the last ones show
/// a transfer that changed line ends.
pub(super) const MAGIC: [u8; 8] = *b"\x93gpTrc\r\n";

/// A block is complete at so many bytes before compression: large enough to compress well, small
/// enough that a damaged one takes little with it.
pub(super) const FULL: usize = 1 << 20;

/// Most bytes that one event can have. The largest are the mappings of a process with very many.
const MAX_EVENT: usize = 7 << 20;

/// Most bytes of events in a block, before compression.
pub const MAX_RAW: usize = FULL + MAX_EVENT;

/// Bytes of a block's head.
pub(super) const HEAD: usize = 40;

/// Most bytes that a block's payload can have: LZ4 makes what it cannot compress a little larger.
pub(super) const MAX_STORED: usize = MAX_RAW + MAX_RAW / 255 + 64;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A [`Header`].
    Header = 1,
    /// Events.
    Events = 2,
    /// The last events.
    End = 3,
}

/// The head of a block. In the file, little-endian:
///
/// | offset | bytes | |
/// |---|---|---|
/// | 0 | 8 | magic |
/// | 8 | 2 | version of the format |
/// | 10 | 2 | kind |
/// | 12 | 4 | events |
/// | 16 | 8 | sequence number of the first event |
/// | 24 | 4 | bytes of the payload as it lies in the file |
/// | 28 | 4 | bytes of it uncompressed |
/// | 32 | 4 | CRC-32 of the payload as it lies in the file |
/// | 36 | 4 | CRC-32 of the 36 bytes before |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) events: u32,
    pub(super) first: u64,
    pub(super) stored: u32,
    pub(super) raw: u32,
    pub(super) checksum: u32,
}

/// What 40 bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// The head of a block.
    Head(Head),
    /// The head of a block in another version of the format.
    Version(u16),
    /// Something else, or damaged.
    Damaged,
}

impl Head {
    pub(super) fn to_bytes(self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.events.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.stored.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.raw.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32fast::hash(&bytes[..36]);
        bytes[36..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    pub(super) fn look(bytes: &[u8; HEAD]) -> Looked {
        let four = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC || four(36) != crc32fast::hash(&bytes[..36]) {
            return Looked::Damaged;
        }
        let version = two(8);
        if version != VERSION {
            return Looked::Version(version);
        }
        let kind = match two(10) {
            1 => Kind::Header,
            2 => Kind::Events,
            3 => Kind::End,
            _ => return Looked::Damaged,
        };
        let (stored, raw) = (four(24), four(28));
        if stored as usize > MAX_STORED || raw as usize > MAX_RAW {
            return Looked::Damaged;
        }
        Looked::Head(Self {
            kind,
            events: four(12),
            first: u64::from(four(16)) | u64::from(four(20)) << 32,
            stored,
            raw,
            checksum: four(32),
        })
    }
}

/// A block as it lies in the file.
///
/// # Errors
/// Where `raw` is larger than [`MAX_RAW`].
pub(super) fn block(kind: Kind, first: u64, events: u32, raw: &[u8]) -> io::Result<Vec<u8>> {
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, "a block is too large");
    if raw.len() > MAX_RAW {
        return Err(too_large());
    }
    let mut block = vec![0; HEAD + lz4_flex::block::get_maximum_output_size(raw.len())];
    let stored = lz4_flex::block::compress_into(raw, &mut block[HEAD..])
        .map_err(|error| io::Error::other(error.to_string()))?;
    block.truncate(HEAD + stored);
    let head = Head {
        kind,
        events,
        first,
        stored: u32::try_from(stored).map_err(|_| too_large())?,
        raw: u32::try_from(raw.len()).map_err(|_| too_large())?,
        checksum: crc32fast::hash(&block[HEAD..]),
    };
    block[..HEAD].copy_from_slice(&head.to_bytes());
    Ok(block)
}

/// A recording whose only block holds these bytes in place of events.
///
/// # Errors
/// Where they are too many.
pub fn of_raw_events(raw: &[u8]) -> io::Result<Vec<u8>> {
    let began = Moment {
        boot: BootTime(1),
        wall_ns: 1 << 60,
    };
    let mut file = Header::new(began, Thresholds::default(), Limits::default()).to_block()?;
    let mut rest = raw;
    let mut events = 0;
    while next(&mut rest).is_some() {
        events += 1;
    }
    file.extend(block(Kind::End, 0, events, raw)?);
    Ok(file)
}

/// What the recording is of, and what shaped the report at its end.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Header {
    /// Version of the gputrace that wrote it.
    pub gputrace: String,
    /// When it was begun.
    pub boot: BootTime,
    /// The same moment, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Symbols of all functions, by the number that stands for each in the events.
    pub functions: Vec<String>,
    /// Durations that decided verdicts.
    pub thresholds: Thresholds,
    /// Bounds on what was kept.
    pub limits: Limits,
}

impl Header {
    /// The header of a recording that this build begins now.
    #[must_use]
    pub fn new(began: Moment, thresholds: Thresholds, limits: Limits) -> Self {
        Self {
            gputrace: env!("CARGO_PKG_VERSION").to_owned(),
            boot: began.boot,
            wall_ns: began.wall_ns,
            functions: FunctionId::all().map(|id| id.symbol().to_owned()).collect(),
            thresholds,
            limits,
        }
    }

    pub(super) fn to_block(&self) -> io::Result<Vec<u8>> {
        block(Kind::Header, 0, 0, &borsh::to_vec(self)?)
    }
}

/// Appends an event with its length. What is not [`FULL`] before is not above [`MAX_RAW`] then.
///
/// # Errors
/// Where the event is too large; nothing is appended then.
pub(super) fn append(to: &mut Vec<u8>, event: &impl BorshSerialize) -> io::Result<()> {
    const LENGTH: usize = size_of::<u32>();
    let before = to.len();
    to.extend_from_slice(&[0; LENGTH]);
    let written = event.serialize(to);
    let length = to.len() - before - LENGTH;
    match (written, u32::try_from(length)) {
        (Ok(()), Ok(length)) if length as usize + LENGTH <= MAX_EVENT => {
            to[before..before + LENGTH].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        (result, _) => {
            to.truncate(before);
            result.and(Err(io::ErrorKind::FileTooLarge.into()))
        }
    }
}

/// Takes the bytes of the next event off `raw`; `None` where there is none, or where it would reach
/// beyond the end.
pub(super) fn next<'a>(raw: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = raw.split_first_chunk()?;
    let (event, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *raw = rest;
    Some(event)
}
