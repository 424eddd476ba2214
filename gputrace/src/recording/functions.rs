//! Functions in a recording: each is written as its row, and read by the symbol that the recording's
//! own table has there, since another build of gputrace may have other rows.

use std::{
    cell::{Cell, RefCell},
    io,
};

use borsh::{BorshDeserialize, BorshSerialize};

use crate::{cuda::FunctionId, event::ProbedFunction};

/// The functions of a recording, by row; `None`: this build knows none of that symbol.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    functions: Vec<Option<FunctionId>>,
}

impl Rows {
    /// From the recording's table of symbols.
    pub(super) fn new(symbols: &[String]) -> Self {
        let functions = symbols.iter().map(|it| FunctionId::by_symbol(it)).collect();
        Self { functions }
    }
}

thread_local! {
    // Deserialising has no other way to be told of a table: its trait has no room for a context.
    static ROWS: RefCell<Rows> = RefCell::default();
    static UNKNOWN: Cell<Option<u16>> = const { Cell::new(None) };
}

/// Reads with these rows, in this thread, until it is called again.
pub(super) fn use_rows(rows: Rows) {
    ROWS.set(rows);
    UNKNOWN.set(None);
}

/// The row of an unknown function that was read since the last call. What holds it means nothing.
pub(super) fn take_unknown() -> Option<u16> {
    UNKNOWN.take()
}

impl BorshSerialize for FunctionId {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.row().serialize(writer)
    }
}

impl BorshDeserialize for FunctionId {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let row = u16::deserialize_reader(reader)?;
        let known = ROWS.with_borrow(|rows| rows.functions.get(usize::from(row)).copied());
        if let Some(Some(function)) = known {
            return Ok(function);
        }
        UNKNOWN.set(Some(row));
        // Only a stand-in, so that what follows is read as it was written.
        Self::new(0).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Reads the probed functions of a library without those that are unknown.
pub(crate) fn known_functions<R: io::Read>(reader: &mut R) -> io::Result<Vec<ProbedFunction>> {
    let before = take_unknown();
    let mut functions = Vec::new();
    for _ in 0..u32::deserialize_reader(reader)? {
        let function = ProbedFunction::deserialize_reader(reader)?;
        if take_unknown().is_none() {
            functions.push(function);
        }
    }
    UNKNOWN.set(before);
    Ok(functions)
}
