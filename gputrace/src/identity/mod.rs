//! Who a process is: names, command lines, cgroups and users, from `/proc` and the user database.
//!
//! Everything read here was written by somebody else, so parsers are pure functions over bytes
//! that never panic, reads have an upper bound, and whatever may reach a terminal or a file goes
//! through [`escape()`].

mod escape;
mod patience;
pub mod procfs;
mod users;

pub use escape::{MAX_ESCAPED_CHARS, escape, escape_at_most, escape_path, is_harmless};
pub use patience::{OutOfPatience, within};
pub use users::{UserError, Users, resolve as resolve_user};
