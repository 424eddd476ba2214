//! The command line of the process as `/proc` shows it.
//!
//! The kernel shows the memory where it put the arguments, followed by the environment. A process
//! that wants another title writes there, once nothing else needs what is in that place.

use std::io;
use std::ops::Range;

/// Copies the environment elsewhere, so that a long title may overwrite it.
///
/// # Safety
/// No other thread may exist.
pub unsafe fn move_environment() {
    let variables: Vec<_> = std::env::vars_os().collect();
    for (key, value) in variables {
        // SAFETY: the caller's promise. setenv(3) keeps its strings on the heap.
        unsafe { std::env::set_var(key, value) };
    }
}

/// Sets the command name (15 bytes of it) and the command line.
pub fn set(title: &str) -> io::Result<()> {
    let area = area()?;
    if title.len() >= area.len() {
        let room = area.len() - 1;
        return Err(io::Error::other(format!("there is room for {room} bytes")));
    }
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(area.start);
    // SAFETY: the arguments were copied and the environment was moved when the process began, so
    // that nothing refers to this writable memory any more; the title is shorter than it.
    unsafe {
        start.copy_from(title.as_ptr(), title.len());
        start
            .add(title.len())
            .write_bytes(0, area.len() - title.len());
    }
    let mut end = title.len().min(15);
    while !title.is_char_boundary(end) {
        end -= 1;
    }
    // The leader's name is the process's, whatever thread sets it.
    std::fs::write(
        format!("/proc/self/task/{}/comm", std::process::id()),
        &title[..end],
    )
}

/// Where the kernel put arguments and environment.
fn area() -> io::Result<Range<usize>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Fields are counted after the command name, which may contain anything.
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    // Fields 48 and 51 of proc_pid_stat(5); the first one here is field 3.
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok());
    match (field(48), field(51)) {
        (Some(start), Some(end)) if start > 0_usize && start < end => Ok(start..end),
        _ => Err(io::Error::other("/proc/self/stat does not say where it is")),
    }
}
