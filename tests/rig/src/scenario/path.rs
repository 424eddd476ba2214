//! Paths into the report: `memory.live.bytes`, `devices[0].used`, `processes[].sites[].verdict.kind`,
//! `coverage.libraries[].functions[name=cuMemAlloc_v2].placement`.

use std::fmt;

use serde_json::Value;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `.name`: a member of an object.
    Member(String),
    /// `[]`: every element of an array, or every value of an object.
    Every,
    /// `[3]`: one element.
    Element(usize),
    /// `[key=value]`: the elements whose member has that value.
    Where(String, String),
    /// `[key={P}]`: the elements whose member is the PID of that process.
    OfProcess(String, String),
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    text: String,
    parts: Vec<Part>,
}

/// A text that is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no path: {reason}")]
pub struct PathError {
    /// The whole text.
    pub text: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Path {
    /// Parses a path.
    ///
    /// # Errors
    /// A member without a name, or a bracket that is not closed or has nonsense in it.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let fail = |reason| PathError {
            text: text.to_owned(),
            reason,
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let (inside, after) = inside
                    .split_once(']')
                    .ok_or_else(|| fail("a \"[\" is not closed"))?;
                parts.push(bracket(inside).ok_or_else(|| fail("nonsense between brackets"))?);
                rest = after;
                continue;
            }
            // A dot separates members; the first member has none before it.
            rest = match (rest.strip_prefix('.'), parts.is_empty()) {
                (Some(after), false) => after,
                (None, true) => rest,
                _ => return Err(fail("members are separated by single dots")),
            };
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            if name.is_empty() {
                return Err(fail("a member has no name"));
            }
            parts.push(Part::Member(name.to_owned()));
            rest = after;
        }
        if parts.is_empty() {
            return Err(fail("it is empty"));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// Every value that the path leads to from `root`; empty where nothing is there. `pid` gives the
    /// PID of a process by its name.
    pub fn find<'v>(&self, root: &'v Value, pid: &dyn Fn(&str) -> Option<u32>) -> Vec<&'v Value> {
        let mut found = vec![root];
        for part in &self.parts {
            let known;
            let part = match part {
                Part::OfProcess(key, name) => match pid(name) {
                    Some(pid) => {
                        known = Part::Where(key.clone(), pid.to_string());
                        &known
                    }
                    None => return Vec::new(),
                },
                part => part,
            };
            found = found
                .into_iter()
                .flat_map(|value| step(part, value))
                .collect();
        }
        found
    }

    /// The names of the processes in it.
    pub fn processes(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::OfProcess(_, name) => Some(name.as_str()),
            _ => None,
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn bracket(inside: &str) -> Option<Part> {
    if inside.is_empty() {
        return Some(Part::Every);
    }
    if let Some((key, value)) = inside.split_once('=') {
        if key.is_empty() {
            return None;
        }
        let name = value.strip_prefix('{').and_then(|v| v.strip_suffix('}'));
        return match name {
            Some("") => None,
            Some(name) => Some(Part::OfProcess(key.to_owned(), name.to_owned())),
            None => Some(Part::Where(key.to_owned(), value.to_owned())),
        };
    }
    inside.parse().ok().map(Part::Element)
}

fn step<'v>(part: &Part, value: &'v Value) -> Vec<&'v Value> {
    let value = match part {
        // `devices.value` may be written out as well.
        Part::Member(name) if name == "value" || name == "not_available" => value,
        _ => inside(value),
    };
    match (part, value) {
        (Part::Member(name), Value::Object(members)) => members.get(name).into_iter().collect(),
        (Part::Every, Value::Array(elements)) => elements.iter().collect(),
        (Part::Every, Value::Object(members)) => members.values().collect(),
        (Part::Element(index), Value::Array(elements)) => {
            elements.get(*index).into_iter().collect()
        }
        (Part::Where(key, wanted), Value::Array(elements)) => elements
            .iter()
            .filter(|element| {
                element
                    .get(key)
                    .is_some_and(|found| reads_as(found, wanted))
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// What evidence holds: `{"value": x}` is x. Anything else is itself.
#[must_use]
pub fn inside(value: &Value) -> &Value {
    match value {
        Value::Object(members) if members.len() == 1 => members.get("value").unwrap_or(value),
        _ => value,
    }
}

fn reads_as(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text == wanted,
        Value::Number(number) => number.to_string() == wanted,
        Value::Bool(flag) => flag.to_string() == wanted,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn find(path: &str, root: &Value) -> Vec<Value> {
        Path::parse(path)
            .unwrap()
            .find(root, &|name| (name == "P").then_some(7))
            .into_iter()
            .cloned()
            .collect()
    }

    #[test]
    fn members_elements_and_filters() {
        let root = json!({
            "devices": [{"index": 0, "used": 5}, {"index": 1, "used": 7}],
            "evidence": {"value": [{"used": 3}]},
            "losses": {"causes": {"ring_full": 3, "other": 4}},
        });
        assert_eq!(find("devices[1].used", &root), [json!(7)]);
        assert_eq!(find("devices[].used", &root), [json!(5), json!(7)]);
        assert_eq!(find("devices[index=1].used", &root), [json!(7)]);
        assert_eq!(find("losses.causes.ring_full", &root), [json!(3)]);
        assert_eq!(find("losses.causes[]", &root).len(), 2);
        assert_eq!(find("evidence[].used", &root), [json!(3)]);
        assert_eq!(find("devices[used={P}].index", &root), [json!(1)]);
        assert!(find("devices[used={Q}].index", &root).is_empty());
        assert!(find("devices[7].used", &root).is_empty());
        assert!(find("nothing.here", &root).is_empty());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "", "a..b", ".a", "a.", "a[", "a[x]", "a[=1]", "a[b={}]", "a[0]b",
        ] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
    }
}
