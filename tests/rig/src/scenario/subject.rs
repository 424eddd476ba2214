//! What an expectation looks at: a process by its letter, one of its call sites by the site's name,
//! a device by its index, gputrace itself, or the whole report; and the path from there.

use std::fmt;

use serde_json::Value as Json;

use super::expression::Scalar;
use super::fields::Fields;
use super::node::{FormatError, Node};
use super::number::{Moment, Number};
use super::path::{Path, inside};
use super::tally::Part;
use crate::protocol::Kind;

/// A process as the report must show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The PID in the runner's namespace.
    pub tgid: u32,
    /// The start time in clock ticks since boot, as in `/proc/PID/stat`.
    pub start_ticks: u64,
}

/// What the run knows beside the report.
pub trait Lookup {
    /// The identity of a process of the scenario, once it has started.
    fn process(&self, name: &str) -> Option<Identity>;
    /// The moment of a `mark` step.
    fn mark(&self, name: &str) -> Option<Moment>;
    /// What a `measure` step found.
    fn measured(&self, name: &str) -> Option<u64>;
    /// A number that the workload itself kept.
    ///
    /// # Errors
    /// The process or the tally is not known.
    fn tally(&self, process: &str, part: &Part, of: &str) -> Result<Number, String>;
    /// A property of the gputrace process: `rss`, `open_files`, `threads`, `exit_code`, `stderr`,
    /// `lines`.
    ///
    /// # Errors
    /// There is no such property, or it cannot be read now.
    fn gputrace(&self, property: &str) -> Result<Scalar, String>;
}

/// Where a path begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// The letter of a process.
    pub process: Option<String>,
    /// The function that is a call site of that process, such as `site_B`.
    pub site: Option<String>,
    /// The kind of what that call site gives; without it, of any.
    pub kind: Option<Kind>,
    /// The index of a device.
    pub device: Option<u32>,
    /// A property of gputrace itself.
    pub gputrace: Option<String>,
}

impl Subject {
    /// Takes the keys `process`, `site`, `kind`, `device` and `gputrace`.
    ///
    /// # Errors
    /// A key has the wrong type, or keys are combined that exclude each other.
    pub fn parse(fields: &mut Fields) -> Result<Self, FormatError> {
        let subject = Self {
            process: fields.text("process")?,
            site: fields.text("site")?,
            kind: fields
                .take("kind")
                .map(|node| node.read("a kind", &super::units::Units::default()))
                .transpose()?,
            device: fields.small("device", &super::units::Units::default())?,
            gputrace: fields.text("gputrace")?,
        };
        if subject.site.is_some() && subject.process.is_none() {
            return Err(fields.error("\"site\" needs the \"process\" whose call site it is"));
        }
        if subject.kind.is_some() && subject.site.is_none() {
            return Err(fields.error("\"kind\" needs the \"site\" whose kind it is"));
        }
        let kinds = [
            subject.process.is_some(),
            subject.device.is_some(),
            subject.gputrace.is_some(),
        ];
        if kinds.iter().filter(|there| **there).count() > 1 {
            return Err(fields.error("\"process\", \"device\" and \"gputrace\" exclude each other"));
        }
        Ok(subject)
    }

    /// The parts of the report that the subject names: none, one, or for a call site that is
    /// reached by several call chains also several.
    ///
    /// # Errors
    /// The process has not been started by the scenario.
    pub fn find<'v>(&self, report: &'v Json, lookup: &dyn Lookup) -> Result<Vec<&'v Json>, String> {
        if let Some(index) = self.device {
            return Ok(elements(report, "devices")
                .filter(|device| device["index"].as_u64() == Some(u64::from(index)))
                .collect());
        }
        let Some(name) = &self.process else {
            return Ok(vec![report]);
        };
        let identity = lookup
            .process(name)
            .ok_or_else(|| format!("the scenario has not started {name} yet"))?;
        let processes = elements(report, "processes").filter(|process| is(process, identity));
        Ok(match &self.site {
            None => processes.collect(),
            Some(site) => processes
                .flat_map(|process| elements(process, "sites"))
                .filter(|found| is_site(found, site))
                .filter(|found| self.kind.is_none_or(|kind| is_kind(found, kind)))
                .collect(),
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.process, &self.site, self.device, &self.gputrace) {
            (Some(process), Some(site), ..) => match self.kind {
                Some(kind) => write!(f, "{process}, {site}, {kind:?}"),
                None => write!(f, "{process}, {site}"),
            },
            (Some(process), None, ..) => write!(f, "{process}"),
            (_, _, Some(device), _) => write!(f, "device {device}"),
            (_, _, _, Some(property)) => write!(f, "gputrace's {property}"),
            _ => f.write_str("the report"),
        }
    }
}

fn elements<'v>(value: &'v Json, key: &str) -> impl Iterator<Item = &'v Json> + use<'v> {
    value
        .get(key)
        .map(inside)
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
}

fn is(process: &Json, identity: Identity) -> bool {
    let ticks = match &process["start_ticks"] {
        Json::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    process["tgid"].as_u64() == Some(u64::from(identity.tgid))
        && ticks == Some(identity.start_ticks)
}

/// A call site is named by the function that calls the driver; it is in the stack whatever lies
/// between it and the probed function.
fn is_site(found: &Json, function: &str) -> bool {
    elements(found, "frames").any(|frame| frame["symbol"].as_str() == Some(function))
        || found["site"]
            .as_str()
            .and_then(|text| text.split([' ', '+']).next())
            .is_some_and(|symbol| symbol == function)
}

fn is_kind(found: &Json, kind: Kind) -> bool {
    serde_json::from_value(found["kind"].clone()).is_ok_and(|found: Kind| found == kind)
}

/// How many values a path must lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantifier {
    /// Exactly one, which must meet the comparison.
    One,
    /// Each of them, and at least one.
    All,
    /// At least one of them.
    Some,
    /// None of them.
    None,
    /// Their sum.
    Sum,
    /// Their number.
    Count,
}

const QUANTIFIERS: [(&str, Quantifier); 6] = [
    ("path", Quantifier::One),
    ("all", Quantifier::All),
    ("some", Quantifier::Some),
    ("none", Quantifier::None),
    ("sum", Quantifier::Sum),
    ("count", Quantifier::Count),
];

/// A subject, a path from it and how many values are meant.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Where the path begins.
    pub subject: Subject,
    /// How many values are meant.
    pub quantifier: Quantifier,
    /// The path; none for a property of gputrace, or for the subject itself.
    pub path: Option<Path>,
    /// Paths whose values are added to the found one; what is not there counts as 0.
    pub added: Vec<Path>,
}

impl Selection {
    /// Takes the keys of a subject, one of `path`, `all`, `some`, `none`, `sum`, `count`, and `add`.
    ///
    /// # Errors
    /// A key has the wrong type, a path cannot be read, or there is more than one path.
    pub fn parse(fields: &mut Fields) -> Result<Self, FormatError> {
        let subject = Subject::parse(fields)?;
        let mut chosen = None;
        for (key, quantifier) in QUANTIFIERS {
            let Some(node) = fields.take(key) else {
                continue;
            };
            if chosen.is_some() {
                return Err(fields.error("one of path, all, some, none, sum, count, not several"));
            }
            chosen = Some((quantifier, path(&node)?));
        }
        let added = match fields.take("add") {
            None => Vec::new(),
            Some(node) => node
                .texts()?
                .iter()
                .map(|text| {
                    Path::parse(text).map_err(|e| FormatError::new(node.line, e.to_string()))
                })
                .collect::<Result<_, _>>()?,
        };
        let (quantifier, path) = match chosen {
            Some((quantifier, path)) => (quantifier, Some(path)),
            None => (Quantifier::One, None),
        };
        if path.is_some() == subject.gputrace.is_some() {
            let whole = subject.process.is_some() || subject.device.is_some();
            if path.is_some() || !whole {
                return Err(fields.error(
                    "needs a path (path, all, some, none, sum or count) or, instead of it, \"gputrace\"",
                ));
            }
        }
        Ok(Self {
            subject,
            quantifier,
            path,
            added,
        })
    }

    /// Whether the subject is in the report.
    ///
    /// # Errors
    /// The process has not been started by the scenario.
    pub fn is_there(&self, report: &Json, lookup: &dyn Lookup) -> Result<bool, String> {
        Ok(self.subject.gputrace.is_some() || !self.subject.find(report, lookup)?.is_empty())
    }

    /// The values that are there, with sums and counts already taken and additions made.
    ///
    /// # Errors
    /// The process has not been started by the scenario, gputrace's property cannot be read, or
    /// something is to be added up that is no number.
    pub fn values(&self, report: &Json, lookup: &dyn Lookup) -> Result<Vec<Scalar>, String> {
        if let Some(property) = &self.subject.gputrace {
            return Ok(vec![lookup.gputrace(property)?]);
        }
        let subjects = self.subject.find(report, lookup)?;
        let pid = |name: &str| lookup.process(name).map(|identity| identity.tgid);
        let at = |path: &Path| -> Vec<Scalar> {
            subjects
                .iter()
                .flat_map(|subject| path.find(subject, &pid))
                .map(Scalar::of)
                .collect()
        };
        let found = match &self.path {
            None => subjects.iter().map(|subject| Scalar::of(subject)).collect(),
            Some(path) => at(path),
        };
        let mut found = match self.quantifier {
            Quantifier::Sum => vec![Scalar::Number(sum(&found)?)],
            Quantifier::Count => vec![Scalar::Number(Number::Whole(found.len() as i128))],
            _ => found,
        };
        for path in &self.added {
            let extra = sum(&at(path)
                .into_iter()
                .filter(|v| *v != Scalar::Null)
                .collect::<Vec<_>>())?;
            for value in &mut found {
                let number = value
                    .number()
                    .ok_or_else(|| format!("{value} is no number"))?;
                *value = Scalar::Number(number.plus(extra));
            }
        }
        Ok(found)
    }

    /// The names of all processes that it mentions.
    pub(super) fn processes<'s>(&'s self, into: &mut Vec<&'s str>) {
        into.extend(self.subject.process.as_deref());
        for path in self.path.iter().chain(&self.added) {
            into.extend(path.processes());
        }
    }

    /// The one value that is meant.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn one(&self, report: &Json, lookup: &dyn Lookup) -> Result<Scalar, String> {
        let mut found = self.values(report, lookup)?;
        match (found.pop(), found.len()) {
            (Some(value), 0) => Ok(value),
            (None, _) => Err(format!("{self}: nothing is there")),
            (Some(_), more) => Err(format!("{self}: {} values instead of one", more + 1)),
        }
    }
}

fn path(node: &Node) -> Result<Path, FormatError> {
    Path::parse(node.text()?).map_err(|error| FormatError::new(node.line, error.to_string()))
}

fn sum(values: &[Scalar]) -> Result<Number, String> {
    values.iter().try_fold(Number::Whole(0), |total, value| {
        value
            .number()
            .map(|number| total.plus(number))
            .ok_or_else(|| format!("{value} is no number"))
    })
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.subject)?;
        if let Some(path) = &self.path {
            let quantifier = match self.quantifier {
                Quantifier::One => "",
                Quantifier::All => "all of ",
                Quantifier::Some => "some of ",
                Quantifier::None => "none of ",
                Quantifier::Sum => "the sum of ",
                Quantifier::Count => "the number of ",
            };
            write!(f, ": {quantifier}{path}")?;
        }
        for added in &self.added {
            write!(f, " + {added}")?;
        }
        Ok(())
    }
}
