//! What sensors say was made harmless for a terminal before it was recorded. A file may have been made
//! by somebody else.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::identity::{escape, is_harmless};

/// Most bytes of a text that are believed: what [`escape()`] leaves at most.
const MAX_TEXT: usize = 4 * crate::identity::MAX_ESCAPED_CHARS;

/// The same with every text in it made harmless; untouched where each is.
///
/// # Errors
/// Where it has no form in JSON.
pub fn harmless<T: Serialize + DeserializeOwned>(value: T) -> serde_json::Result<T> {
    let mut json = serde_json::to_value(&value)?;
    if clean(&mut json) {
        serde_json::from_value(json)
    } else {
        Ok(value)
    }
}

fn is_text_harmless(text: &str) -> bool {
    text.len() <= MAX_TEXT && is_harmless(text)
}

/// Whether anything had to be changed.
fn clean(json: &mut Value) -> bool {
    match json {
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) if is_text_harmless(text) => false,
        Value::String(text) => {
            *text = escape(text.as_bytes());
            true
        }
        // Not `any`, which would stop at the first one.
        Value::Array(items) => items
            .iter_mut()
            .fold(false, |changed, item| clean(item) | changed),
        Value::Object(members) => {
            let mut changed = false;
            if !members.keys().all(|key| is_text_harmless(key)) {
                changed = true;
                *members = std::mem::take(members)
                    .into_iter()
                    .map(|(key, value)| (escape(key.as_bytes()), value))
                    .collect();
            }
            members
                .values_mut()
                .fold(changed, |changed, value| clean(value) | changed)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_what_could_do_harm_is_changed() {
        let texts =
            |texts: &[&str]| -> Vec<String> { texts.iter().map(|&text| text.to_owned()).collect() };
        let good = texts(&[r"a\\b", "é", r"\x1b"]);
        assert_eq!(harmless(good.clone()).unwrap(), good);
        let bad = texts(&["a", "\x1b[2J", "\u{202e}"]);
        assert_eq!(
            harmless(bad).unwrap(),
            texts(&["a", r"\x1b[2J", r"\u{202e}"])
        );
        let key: BTreeMap<String, u64> = [("\n".to_owned(), u64::MAX)].into();
        assert_eq!(
            harmless(key).unwrap(),
            [(r"\n".to_owned(), u64::MAX)].into()
        );
        let long = vec!["x".repeat(MAX_TEXT + 1)];
        assert!(harmless(long).unwrap()[0].len() <= MAX_TEXT);
    }
}
