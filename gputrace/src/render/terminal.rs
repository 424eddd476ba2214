//! The terminal on stdout, if it is one.

use std::io::{self, IsTerminal as _};

use super::table::Style;
use crate::cli::Color;

/// How text on stdout looks; `width` columns where it is no terminal.
#[must_use]
pub fn style(color: Color, width: u16) -> Style {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        color: match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io::stdout().is_terminal() && !no_color,
        },
        width: columns().unwrap_or(width),
    }
}

/// Columns of the terminal on stdout, if it is one.
fn columns() -> Option<u16> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request writes a winsize, and gets one.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col >= 40).then_some(size.ws_col)
}
