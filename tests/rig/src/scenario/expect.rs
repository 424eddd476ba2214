//! Expectations on a report: a selection of values and what they must be.

use std::fmt;

use serde_json::Value as Json;

use super::comparison::{Comparison, comparisons};
use super::expression::Scalar;
use super::node::{FormatError, Node};
use super::subject::{Lookup, Quantifier, Selection};
use super::units::Units;

/// Whether something must be there at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    Absent,
    /// The comparisons count only where the value is there.
    Optional,
}

/// One expectation.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The line in the scenario file.
    pub line: usize,
    selection: Selection,
    presence: Presence,
    comparisons: Vec<Comparison>,
    why: Option<String>,
}

/// How an expectation fared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is met.
    Met,
    /// It is not met.
    Missed(Mismatch),
    /// What it is about is not in the report, or not known yet.
    NoSubject(Mismatch),
}

/// Why an expectation is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The line in the scenario file.
    pub line: usize,
    /// What was expected, and of what.
    pub expected: String,
    /// What is there instead.
    pub found: String,
    /// The author's reason.
    pub why: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}: expected {}\n  found {}",
            self.line, self.expected, self.found
        )?;
        if let Some(why) = &self.why {
            write!(f, "\n  because {why}")?;
        }
        Ok(())
    }
}

impl Expectation {
    /// Reads a list of expectations; a missing key is an empty list.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn list(node: Option<Node>, units: &Units) -> Result<Vec<Self>, FormatError> {
        let Some(node) = node else {
            return Ok(Vec::new());
        };
        node.list()?
            .iter()
            .map(|node| Self::parse(node, units))
            .collect()
    }

    /// Reads one expectation.
    ///
    /// # Errors
    /// A key is unknown or has the wrong type, or nothing is compared.
    pub fn parse(node: &Node, units: &Units) -> Result<Self, FormatError> {
        let mut fields = node.fields("an expectation")?;
        let selection = Selection::parse(&mut fields)?;
        let comparisons = comparisons(&mut fields, units)?;
        let (present, absent) = (fields.flag("present")?, fields.flag("absent")?);
        let or_absent = fields.flag("or_absent")?;
        let presence = match (absent, or_absent) {
            (true, _) => Presence::Absent,
            (false, true) => Presence::Optional,
            (false, false) => Presence::Required,
        };
        if absent && (present || or_absent || !comparisons.is_empty()) {
            return Err(fields.error("what must be absent cannot be compared as well"));
        }
        if comparisons.is_empty() && !present && !absent {
            return Err(fields.error(
                "nothing is compared: equals, not, any_of, none_of, within, about, at_least, \
                 at_most, contains, lacks, not_available, present or absent",
            ));
        }
        let why = fields.text("why")?;
        fields.finish()?;
        Ok(Self {
            line: node.line,
            selection,
            presence,
            comparisons,
            why,
        })
    }

    /// Compares with a report.
    #[must_use]
    pub fn check(&self, report: &Json, lookup: &dyn Lookup) -> Verdict {
        match self.selection.is_there(report, lookup) {
            Ok(true) => {}
            Ok(false) if self.presence == Presence::Absent || self.counts_nothing() => {}
            Ok(false) if self.presence == Presence::Optional => return Verdict::Met,
            Ok(false) => {
                let found = format!("no {} in the report", self.selection.subject);
                return Verdict::NoSubject(self.mismatch(found));
            }
            Err(reason) => return Verdict::NoSubject(self.mismatch(reason)),
        }
        match self.compare(report, lookup) {
            Ok(()) => Verdict::Met,
            Err(found) => Verdict::Missed(self.mismatch(found)),
        }
    }

    /// "None of", and a count or sum of nothing, have an answer where nothing is there.
    fn counts_nothing(&self) -> bool {
        matches!(
            self.selection.quantifier,
            Quantifier::None | Quantifier::Sum | Quantifier::Count
        )
    }

    fn compare(&self, report: &Json, lookup: &dyn Lookup) -> Result<(), String> {
        let mut values = self.selection.values(report, lookup)?;
        if self.presence == Presence::Absent {
            values.retain(|value| *value != Scalar::Null);
            return match values.first() {
                None => Ok(()),
                Some(value) => Err(value.to_string()),
            };
        }
        let meets = |value: &Scalar| -> Result<(), String> {
            self.comparisons
                .iter()
                .try_for_each(|c| c.check(value, report, lookup))
        };
        match self.selection.quantifier {
            Quantifier::None => match values.iter().find(|value| meets(value).is_ok()) {
                None => Ok(()),
                Some(value) => Err(value.to_string()),
            },
            Quantifier::Some if !values.is_empty() => {
                let met = values.iter().any(|value| meets(value).is_ok());
                if met { Ok(()) } else { Err(listed(&values)) }
            }
            _ => {
                // Null is how the report writes "there is no such thing".
                if values.iter().all(|value| *value == Scalar::Null) {
                    return match self.presence {
                        Presence::Optional => Ok(()),
                        _ if values.is_empty() => Err("nothing there".to_owned()),
                        _ => Err("null".to_owned()),
                    };
                }
                if values.len() > 1 && self.selection.quantifier == Quantifier::One {
                    return Err(format!(
                        "{} values instead of one: {}",
                        values.len(),
                        listed(&values)
                    ));
                }
                values.iter().try_for_each(meets)
            }
        }
    }

    /// Whether it says only what must not be. Such an expectation fails at once, since a wrong
    /// claim is wrong even if it is taken back.
    #[must_use]
    pub fn prohibits(&self) -> bool {
        self.selection.quantifier == Quantifier::None
            || !self.comparisons.is_empty() && self.comparisons.iter().all(Comparison::prohibits)
    }

    fn mismatch(&self, found: String) -> Mismatch {
        Mismatch {
            line: self.line,
            expected: self.to_string(),
            found,
            why: self.why.clone(),
        }
    }

    /// The processes whose own tallies must be fetched before [`Expectation::check`].
    #[must_use]
    pub fn tallies(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for comparison in &self.comparisons {
            comparison
                .expressions()
                .iter()
                .for_each(|e| e.tallies(&mut names));
        }
        names
    }

    /// The names of all processes that it mentions.
    #[must_use]
    pub fn processes(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.selection.processes(&mut names);
        for comparison in &self.comparisons {
            comparison
                .expressions()
                .iter()
                .for_each(|e| e.processes(&mut names));
        }
        names
    }

    /// The property of gputrace that it asks for, if it asks for one.
    #[must_use]
    pub fn gputrace(&self) -> Option<&str> {
        self.selection.subject.gputrace.as_deref()
    }
}

fn listed(values: &[Scalar]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.selection)?;
        for (index, comparison) in self.comparisons.iter().enumerate() {
            write!(f, "{} {comparison}", if index == 0 { "" } else { " and" })?;
        }
        match self.presence {
            Presence::Absent => f.write_str(" absent"),
            Presence::Optional => f.write_str(" (where it is there)"),
            Presence::Required if self.comparisons.is_empty() => f.write_str(" present"),
            Presence::Required => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::number::{Moment, Number};
    use crate::scenario::subject::Identity;
    use crate::scenario::tally::Part;
    use crate::scenario::units::Quantity;
    use serde_json::json;

    /// P is process 7; everything else that is asked for is a fixed number.
    struct Known;

    impl Lookup for Known {
        fn process(&self, name: &str) -> Option<Identity> {
            let identity = Identity {
                tgid: 7,
                start_ticks: 90,
            };
            match name {
                "P" => Some(identity),
                "Gone" => Some(Identity {
                    tgid: 8,
                    ..identity
                }),
                _ => None,
            }
        }

        fn mark(&self, name: &str) -> Option<Moment> {
            // Midnight of 1970-01-02, five seconds after boot.
            let moment = Moment {
                boot: 5_000_000_000,
                wall: 86_400_000_000_000,
            };
            (name == "loop").then_some(moment)
        }

        fn measured(&self, name: &str) -> Option<u64> {
            (name == "before").then_some(1000)
        }

        fn tally(&self, _: &str, _: &Part, of: &str) -> Result<Number, String> {
            match of {
                "allocations" => Ok(Number::Whole(300)),
                _ => Err("no such tally".to_owned()),
            }
        }

        fn gputrace(&self, property: &str) -> Result<Scalar, String> {
            match property {
                "stderr" => Ok(Scalar::Text("permission denied".to_owned())),
                "rss" => Ok(Scalar::Number(Number::Whole(1090))),
                _ => Err("no such property".to_owned()),
            }
        }
    }

    fn report() -> Json {
        json!({
            "boot_ns": "5100000000",
            "devices": {"value": [
                {"index": 0, "used": {"value": 500}, "free": {"not_available": "old NVML"}},
            ]},
            "losses": {"events": 0, "causes": {}},
            "processes": [
                {
                    "tgid": 7, "start_ticks": "90", "comm": "actor",
                    "verdict": {"kind": "leak", "reason": "it grew for 60 s"},
                    "memory": {"allocated": {"count": 298, "bytes": 3_405_774_848_u64}},
                    "losses": {"allocations": 2},
                    "sites": [
                        {
                            "site": "site_A (actor+0x10)", "frames": [{"symbol": "site_A"}],
                            "verdict": {"kind": "balanced"}, "growth": null,
                        },
                        {
                            "site": "site_B (actor+0x20)", "kind": "vmm", "frames": [{"symbol": "site_B"}],
                            "verdict": {"kind": "leak"},
                            "growth": {"bytes_per_second": 20_000_000, "since": "1970-01-02T00:00:00.100000000Z"},
                        },
                    ],
                },
                {"tgid": 6, "start_ticks": "12", "comm": "old"},
            ],
        })
    }

    fn verdict(text: &str) -> Verdict {
        let mut units = Units::default();
        units.define("minute", Quantity::Nanos(4_000_000_000));
        let root = Node::parse(&format!("e = {text}")).unwrap();
        let node = root.fields("test").unwrap().need("e").unwrap();
        let expectation =
            Expectation::parse(&node, &units).unwrap_or_else(|e| panic!("{text}: {e}"));
        expectation.check(&report(), &Known)
    }

    #[test]
    fn what_holds_is_met() {
        for text in [
            r#"{ process = "P", path = "comm", equals = "actor" }"#,
            r#"{ process = "P", path = "memory.allocated.bytes", equals = "3248 MiB" }"#,
            r#"{ process = "P", path = "memory.allocated.count", add = "losses.allocations",
                 equals = { tally = "P", of = "allocations" } }"#,
            r#"{ process = "P", path = "memory.allocated.count",
                 equals = { tally = "P", of = "allocations",
                            minus = { process = "P", path = "losses.allocations" } } }"#,
            r#"{ process = "P", site = "site_B", path = "verdict.kind", equals = "leak" }"#,
            r#"{ process = "P", site = "site_A", path = "verdict.kind", not = "leak" }"#,
            r#"{ process = "P", site = "site_A", path = "growth", absent = true }"#,
            r#"{ process = "P", site = "site_A", path = "growth.since", or_absent = true, at_least = 1 }"#,
            r#"{ process = "P", site = "site_B", path = "growth.bytes_per_second",
                 about = "20 MiB/s", percent = 15 }"#,
            r#"{ process = "P", site = "site_B", path = "growth.since",
                 within = [{ mark = "loop" }, { mark = "loop", plus = "0.5 minute" }] }"#,
            r#"{ path = "boot_ns", within = [{ mark = "loop" }, { mark = "loop", plus = "100ms" }] }"#,
            r#"{ path = "devices[index=0].used", equals = 500 }"#,
            r#"{ device = 0, path = "used", at_most = 500, at_least = 500 }"#,
            r#"{ device = 0, path = "free", not_available = true }"#,
            r#"{ path = "losses.events", equals = 0 }"#,
            r#"{ sum = "losses.causes[]", equals = 0 }"#,
            r#"{ count = "processes[]", equals = 2 }"#,
            r#"{ process = "P", count = "sites[]", equals = 2 }"#,
            r#"{ path = "processes[tgid={P}].memory.allocated.count", equals = 298 }"#,
            r#"{ count = "processes[tgid={Gone}]", equals = 0 }"#,
            r#"{ process = "P", site = "site_B", kind = "vmm", path = "verdict.kind", equals = "leak" }"#,
            r#"{ process = "P", site = "site_B", kind = "device", absent = true }"#,
            r#"{ process = "P", some = "sites[].verdict.kind", equals = "leak" }"#,
            r#"{ process = "P", all = "sites[].verdict.kind", any_of = ["leak", "balanced"] }"#,
            r#"{ none = "processes[].verdict.kind", equals = "uncertain" }"#,
            r#"{ process = "P", path = "verdict.reason", contains = "60 s", lacks = "shrank" }"#,
            r#"{ process = "P", path = "tgid", equals = { pid = "P" } }"#,
            r#"{ process = "Gone", absent = true }"#,
            r#"{ process = "Gone", path = "verdict.kind", or_absent = true, not = "leak" }"#,
            r#"{ process = "P", present = true }"#,
            r#"{ gputrace = "rss", at_most = { measured = "before", times = 1.1 } }"#,
            r#"{ gputrace = "stderr", contains = "denied" }"#,
        ] {
            assert_eq!(verdict(text), Verdict::Met, "{text}");
        }
    }

    #[test]
    fn what_does_not_hold_is_missed() {
        for text in [
            r#"{ process = "P", path = "comm", equals = "actress" }"#,
            r#"{ process = "P", path = "memory.allocated.bytes", equals = "3249 MiB" }"#,
            r#"{ process = "P", path = "memory.allocated.count", equals = { tally = "P", of = "allocations" } }"#,
            r#"{ process = "P", path = "memory.allocated.count", equals = { tally = "P", of = "x" } }"#,
            r#"{ process = "P", site = "site_B", path = "growth.bytes_per_second", about = "24 MiB/s", percent = 15 }"#,
            r#"{ process = "P", site = "site_A", path = "growth.since", at_least = 1 }"#,
            r#"{ process = "P", site = "site_B", path = "growth.since", at_most = { mark = "loop" } }"#,
            r#"{ process = "P", path = "sites[].verdict.kind", not = "uncertain" }"#,
            r#"{ process = "P", all = "sites[].verdict.kind", not = "leak" }"#,
            r#"{ process = "P", all = "sites[].no.such", not = "leak" }"#,
            r#"{ process = "P", some = "sites[].verdict.kind", equals = "uncertain" }"#,
            r#"{ none = "processes[].verdict.kind", equals = "leak" }"#,
            r#"{ device = 0, path = "free", at_least = 0 }"#,
            r#"{ device = 0, path = "used", not_available = true }"#,
            r#"{ process = "P", absent = true }"#,
            r#"{ process = "P", path = "verdict.reason", lacks = "grew" }"#,
            r#"{ path = "losses.events", at_least = { mark = "unknown" } }"#,
            r#"{ gputrace = "threads", equals = 1 }"#,
        ] {
            assert!(
                matches!(verdict(text), Verdict::Missed(_)),
                "{text}: {:?}",
                verdict(text)
            );
        }
    }

    #[test]
    fn a_missing_subject_is_told_apart() {
        for text in [
            r#"{ process = "Gone", path = "verdict.kind", not = "leak" }"#,
            r#"{ process = "P", site = "site_Z", path = "verdict.kind", not = "leak" }"#,
            r#"{ device = 3, path = "used", at_least = 0 }"#,
            r#"{ process = "Unborn", path = "comm", equals = "x" }"#,
        ] {
            assert!(matches!(verdict(text), Verdict::NoSubject(_)), "{text}");
        }
    }

    #[test]
    fn the_message_says_what_was_computed() {
        let text = r#"{ process = "P", path = "memory.allocated.count", equals = { tally = "P", of = "allocations" }, why = "each call counts" }"#;
        let Verdict::Missed(mismatch) = verdict(text) else {
            panic!()
        };
        assert_eq!(
            mismatch.to_string(),
            "line 1: expected P: memory.allocated.count = P's own allocations\n  \
             found 298 (and P's own allocations is 300)\n  because each call counts"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            r#"{ path = "a" }"#,
            r#"{ path = "a", equal = 1 }"#,
            r#"{ path = "a", all = "b", equals = 1 }"#,
            r#"{ equals = 1 }"#,
            r#"{ site = "site_A", path = "a", equals = 1 }"#,
            r#"{ process = "P", kind = "vmm", path = "a", equals = 1 }"#,
            r#"{ process = "P", site = "site_A", kind = "vm", path = "a", equals = 1 }"#,
            r#"{ path = "a[b={}]", equals = 1 }"#,
            r#"{ process = "P", device = 0, path = "a", equals = 1 }"#,
            r#"{ gputrace = "rss", path = "a", equals = 1 }"#,
            r#"{ path = "a", within = [1] }"#,
            r#"{ path = "a", about = 1 }"#,
            r#"{ path = "a", absent = true, equals = 1 }"#,
            r#"{ path = "a..b", equals = 1 }"#,
            r#"{ path = "a", equals = { marc = "x" } }"#,
        ] {
            let root = Node::parse(&format!("e = {text}")).unwrap();
            let node = root.fields("test").unwrap().need("e").unwrap();
            assert!(
                Expectation::parse(&node, &Units::default()).is_err(),
                "{text}"
            );
        }
    }
}
