//! A scenario file: its header, and the list of its steps.

use std::path::{Path, PathBuf};

use super::expect::Expectation;
use super::fields::Fields;
use super::needs::Need;
use super::node::{FormatError, Node};
use super::steps::{Step, TracerStart};
use super::units::{Quantity, Units};
use crate::config::{Config, Costs, Faults, Gpu};

/// A scenario, ready to be run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The file that it was read from.
    pub file: PathBuf,
    /// A short identifier, such as one from a list of known situations.
    pub id: Option<String>,
    /// One line for people.
    pub title: String,
    /// The question that the scenario answers.
    pub question: Option<String>,
    /// What the machine must offer; where it does not, the scenario is skipped and says so.
    pub needs: Vec<Need>,
    /// The time after which the run is given up, in nanoseconds.
    pub time_limit: u64,
    /// The simulated devices.
    pub rig: Config,
    /// How gputrace is started before the first step; none where a step starts it.
    pub tracer: Option<TracerStart>,
    /// Expectations on every snapshot and on the last report.
    pub always: Vec<Expectation>,
    /// The steps in their order.
    pub steps: Vec<Step>,
}

/// Why a scenario cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a valid scenario.
    #[error("{file}: {source}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The line and the mistake.
        source: FormatError,
    },
}

/// A run that takes longer than this is stuck, unless its file says otherwise.
const TIME_LIMIT: u64 = 120_000_000_000;

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid scenario.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        let text = std::fs::read_to_string(file).map_err(|source| LoadError::File {
            file: file.to_owned(),
            source,
        })?;
        Self::parse(file, &text).map_err(|source| LoadError::Format {
            file: file.to_owned(),
            source,
        })
    }

    /// Reads and checks the text of a file.
    ///
    /// # Errors
    /// The text is not a valid scenario.
    pub fn parse(file: &Path, text: &str) -> Result<Self, FormatError> {
        let root = Node::parse(text)?;
        let mut fields = root.fields("a scenario")?;
        let units = vars(&mut fields)?;
        let needs = match fields.take("needs") {
            None => vec![Need::Uprobes],
            Some(node) => node
                .texts()?
                .iter()
                .map(|name| {
                    Need::parse(name).map_err(|message| FormatError::new(node.line, message))
                })
                .collect::<Result<_, _>>()?,
        };
        let scenario = Self {
            file: file.to_owned(),
            id: fields.text("id")?,
            title: fields.need("title")?.text()?.to_owned(),
            question: fields.text("question")?,
            needs,
            time_limit: fields.nanos("time_limit", &units)?.unwrap_or(TIME_LIMIT),
            rig: rig(&mut fields, &units)?,
            tracer: tracer(&mut fields, &units)?,
            always: Expectation::list(fields.take("always"), &units)?,
            steps: Step::list(&fields.need("steps")?, &units)?,
        };
        fields.finish()?;
        super::check::names(&scenario)?;
        Ok(scenario)
    }
}

/// `[vars]`: each name is a unit.
fn vars(fields: &mut Fields) -> Result<Units, FormatError> {
    let mut units = Units::default();
    let Some(node) = fields.take("vars") else {
        return Ok(units);
    };
    for (name, value) in node.fields("[vars]")?.rest() {
        let text = match &value.value {
            super::node::Value::Integer(number) => number.to_string(),
            _ => value.text()?.to_owned(),
        };
        let plain = name.chars().all(|c| c.is_alphabetic() || c == '_');
        if !plain || Units::default().parse(&format!("1 {name}")).is_ok() {
            let message = format!(
                "\"{name}\" cannot be a unit: it needs letters only, and no built-in unit's name"
            );
            return Err(FormatError::new(value.line, message));
        }
        let quantity: Quantity = units
            .parse(&text)
            .map_err(|error| FormatError::new(value.line, error.to_string()))?;
        units.define(&name, quantity);
    }
    Ok(units)
}

/// `[[gpu]]`, `[costs]` and `[faults]`; one GPU of 24 GiB where none is described.
fn rig(fields: &mut Fields, units: &Units) -> Result<Config, FormatError> {
    let gpu: Vec<Gpu> = match fields.take("gpu") {
        None => {
            return Ok(Config {
                costs: costs(fields, units)?,
                faults: faults(fields, units)?,
                ..Config::with_gpus(1, 24 << 30)
            });
        }
        Some(node) => node.read("[[gpu]]", units)?,
    };
    Ok(Config {
        gpu,
        costs: costs(fields, units)?,
        faults: faults(fields, units)?,
    })
}

fn costs(fields: &mut Fields, units: &Units) -> Result<Costs, FormatError> {
    fields
        .take("costs")
        .map_or_else(|| Ok(Costs::default()), |node| node.read("[costs]", units))
}

fn faults(fields: &mut Fields, units: &Units) -> Result<Faults, FormatError> {
    fields.take("faults").map_or_else(
        || Ok(Faults::default()),
        |node| node.read("[faults]", units),
    )
}

/// `[gputrace]`: how it is started before the first step. `start = false` leaves it to a step.
fn tracer(fields: &mut Fields, units: &Units) -> Result<Option<TracerStart>, FormatError> {
    let Some(node) = fields.take("gputrace") else {
        return Ok(Some(TracerStart::default()));
    };
    let mut fields = node.fields("[gputrace]")?;
    let start = fields
        .take("start")
        .map_or(Ok(true), |node| match node.value {
            super::node::Value::Flag(flag) => Ok(flag),
            _ => Err(node.unexpected("a boolean")),
        })?;
    let settings = TracerStart::parse(&mut fields, units)?;
    fields.finish()?;
    Ok(start.then_some(settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::steps::{Action, WaitFor};

    fn parse(text: &str) -> Result<Scenario, FormatError> {
        Scenario::parse(Path::new("test.toml"), text)
    }

    #[test]
    fn a_scenario_is_read_whole() {
        let scenario = parse(
            r#"
            id = "X-1"
            title = "a title"
            question = "what?"
            needs = ["uprobes", "root"]
            time_limit = "2 minutes"
            always = [{ path = "losses.events", equals = 0 }]
            steps = [
              { start = "P", user = 1000, env = { A = "b" } },
              { mark = "go" },
              { as = "P", do = "init" },
              { as = "P", do = "loop", iterations = 10, every = "0.1 minute", background = true,
                body = [
                  { do = "alloc", bytes = "4 MiB", site = "site_A" },
                  { do = "free", each = 3 },
                ] },
              { wait = ["P.1-4", "P.*"], for = "sleep" },
              { query = "q", until = [{ process = "P", present = true }], at_most = "1 minute" },
              { gputrace = "stall", for = "2s" },
              { measure = "rss", name = "m" },
              { as = "P", do = "fork", child = "C" },
              { signal = "KILL", to = ["P", "C"] },
              { gputrace = "start", name = "second", args = ["-p", "{P}"] },
              { gputrace = "end", name = "second", signal = "none",
                expect = [{ gputrace = "exit_code", equals = 0 }] },
            ]
            [[gpu]]
            total = "24 GiB"
            [[gpu]]
            total = "16 GiB"
            [costs]
            context = "350 MiB"
            [gputrace]
            args = ["--leak-after", "{2 minutes}"]
            [vars]
            minute = "4s"
            "#,
        )
        .unwrap();
        assert_eq!(scenario.time_limit, 8_000_000_000);
        assert_eq!(scenario.rig.gpu[1].total, 16 << 30);
        assert_eq!(scenario.rig.costs.context, 350 << 20);
        assert_eq!(scenario.steps.len(), 12);
        assert_eq!(scenario.steps[4].line, 17);
        let Action::Do {
            command: crate::protocol::Command::Loop(body),
            background: true,
            ..
        } = &scenario.steps[3].action
        else {
            panic!("{:?}", scenario.steps[3]);
        };
        assert_eq!((body.every, body.body[1].each), (400_000_000, 3));
        assert!(matches!(
            &scenario.steps[4].action,
            Action::Wait {
                until: WaitFor::Sleep,
                ..
            }
        ));
        let args = &scenario.tracer.unwrap().args;
        assert_eq!(args[1].resolve(|_| None), Ok("8s".to_owned()));
    }

    #[test]
    fn mistakes_are_refused_with_their_line() {
        for (line, message, text) in [
            (1, "title", "steps = []"),
            (
                2,
                "no key \"stepps\"",
                "title = 't'\nstepps = []\nsteps = []",
            ),
            (
                2,
                "no process \"P\"",
                "title = 't'\nsteps = [{ as = 'P', do = 'init' }]",
            ),
            (
                3,
                "no key \"rip\"",
                "title = 't'\nsteps = [\n{ start = 'P', rip = true }]",
            ),
            (
                3,
                "step 2: this command",
                "title = 't'\nsteps = [{ start = 'P' },\n{ as = 'P', do = 'fly' }]",
            ),
            (
                3,
                "unknown field",
                "title = 't'\nsteps = [{ start = 'P' },\n{ as = 'P', do = 'alloc', byte = 1 }]",
            ),
            (2, "needs one of", "title = 't'\nsteps = [{ strat = 'P' }]"),
            (
                2,
                "one thing",
                "title = 't'\nsteps = [{ start = 'P', pause = '1s' }]",
            ),
            (
                2,
                "no signal",
                "title = 't'\nsteps = [{ signal = 'BOO', to = 'P' }]",
            ),
            (
                2,
                "no gputrace named",
                "title = 't'\nsteps = [{ gputrace = 'stall', name = 'x' }]",
            ),
            (
                2,
                "unit",
                "title = 't'\nsteps = [{ pause = '1 fortnight' }]",
            ),
            (
                2,
                "a time with a unit",
                "title = 't'\nsteps = [{ pause = 3 }]",
            ),
            (
                4,
                "cannot be a unit",
                "title = 't'\nsteps = []\n[vars]\nMiB = 3",
            ),
            (2, "no need", "title = 't'\nneeds = ['gpu']\nsteps = []"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
            assert_eq!(error.line, line, "{text}: {error}");
        }
    }

    #[test]
    fn every_scenario_of_this_repository_is_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let scenario = Scenario::load(&entry.unwrap().path());
            assert!(scenario.is_ok(), "{}", scenario.unwrap_err());
            files += 1;
        }
        assert!(files > 10, "{files}");
    }
}
