//! User names.

use std::{collections::HashMap, time::Duration};

use nix::unistd::{Uid, User};

use super::{escape::escape_at_most, patience::within};
use crate::evidence::Evidence;

/// How long one look-up may take. A directory server that is down can take minutes to say so.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(1);

/// Longest name shown; Linux allows 32 bytes, directory servers more.
const MAX_NAME_CHARS: usize = 128;

/// A user that was asked for is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// The user database answered that there is no such user.
    #[error("there is no user named '{name}'")]
    Unknown {
        /// What was asked for, escaped.
        name: String,
    },
    /// The user database did not answer.
    #[error("the user database gave no answer for '{name}': {reason}")]
    NoAnswer {
        /// What was asked for, escaped.
        name: String,
        /// What went wrong.
        reason: String,
    },
}

/// User names by uid, each asked for once.
///
/// The uid is the one of the host; inside a container the same number may have another name.
#[derive(Debug, Default)]
pub struct Users {
    names: HashMap<u32, Evidence<String>>,
}

impl Users {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name of `uid`, escaped; not available if it has none or the user database is silent.
    /// Waits for at most a second, and only the first time for each uid.
    pub fn name(&mut self, uid: u32) -> Evidence<String> {
        self.names
            .entry(uid)
            .or_insert_with(|| look_up(uid))
            .clone()
    }
}

fn look_up(uid: u32) -> Evidence<String> {
    match within(LOOK_UP_LIMIT, move || User::from_uid(Uid::from_raw(uid))) {
        Ok(Ok(Some(user))) => Evidence::Value(escape_at_most(user.name.as_bytes(), MAX_NAME_CHARS)),
        Ok(Ok(None)) => Evidence::not_available(format!("no user has the uid {uid}")),
        Ok(Err(error)) => Evidence::not_available(format!("the user database failed: {error}")),
        Err(error) => Evidence::not_available(format!("the user database gave {error}")),
    }
}

/// The uid of a user given by name or by number, as on a command line. A name wins over a number
/// that looks like it.
///
/// # Errors
///
/// [`UserError`] for a name that nobody has, or when the user database does not answer.
pub fn resolve(name_or_uid: &str) -> Result<u32, UserError> {
    let name = escape_at_most(name_or_uid.as_bytes(), MAX_NAME_CHARS);
    let wanted = name_or_uid.to_owned();
    let number = name_or_uid.parse::<u32>().ok();
    match (
        within(LOOK_UP_LIMIT, move || User::from_name(&wanted)),
        number,
    ) {
        (Ok(Ok(Some(user))), _) => Ok(user.uid.as_raw()),
        (_, Some(number)) => Ok(number),
        (Ok(Ok(None)), None) => Err(UserError::Unknown { name }),
        (Ok(Err(error)), None) => Err(UserError::NoAnswer {
            name,
            reason: error.to_string(),
        }),
        (Err(error), None) => Err(UserError::NoAnswer {
            name,
            reason: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_nobody_has_the_last_uid_but_one() {
        let mut users = Users::new();
        assert_eq!(users.name(0), Evidence::Value("root".into()));
        assert_eq!(users.name(0), Evidence::Value("root".into()));
        let missing = users.name(4_294_967_290);
        assert!(missing.reason().unwrap().contains("4294967290"));
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        assert_eq!(resolve("root"), Ok(0));
        assert_eq!(resolve("12345678"), Ok(12_345_678));
        assert!(matches!(
            resolve("no-such-user\u{1b}"),
            Err(UserError::Unknown { name }) if !name.contains('\u{1b}')
        ));
        assert!(resolve("nul\0inside").is_err());
    }
}
