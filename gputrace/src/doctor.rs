//! Can this machine be traced?
use std::{io, process::ExitCode};

/// Placeholder until written.
///
/// # Errors
/// None.
pub fn run(_: &crate::cli::Doctor, _: &mut impl io::Write) -> io::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
