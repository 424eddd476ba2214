//! Recordings: the events of a trace, kept in a file. `docs/recordings.md` describes the format.
//!
//! [`Recorder`] takes events from the engine and writes them on a thread of its own; [`Reader`]
//! gives back what of a file can be read; [`Replay`] makes a ledger of it.

mod format;
mod functions;
mod harmless;
mod reader;
mod recorder;
mod replay;
mod writer;

#[doc(hidden)] // For fuzz/.
pub use format::of_raw_events;
pub use format::{Header, MAX_RAW, VERSION};
pub(crate) use functions::known_functions;
pub use harmless::harmless;
pub use reader::{Block, Gap, Item, ReadError, Reader};
pub use recorder::{Recorder, Recording, Summary};
pub use replay::{Replay, Unreadable};
pub use writer::{Sink, Writer};
