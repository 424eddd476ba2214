//! The steps of a scenario.

use nix::sys::signal::Signal;

use super::args::Argument;
use super::expect::Expectation;
use super::fields::Fields;
use super::node::{FormatError, Node, Value};
use super::target::Target;
use super::units::Units;
use crate::protocol::Command;

/// The name of the gputrace that is started without one.
pub const TRACER: &str = "gputrace";

/// An answer takes no longer than this, unless the query says otherwise.
const QUERY_TIME: u64 = 10_000_000_000;

/// One step.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its line in the file.
    pub line: usize,
    /// Its place among the steps, from 1.
    pub number: usize,
    /// What it does.
    pub action: Action,
}

/// What a step does.
#[derive(Debug, Clone)]
pub enum Action {
    /// Starts a process of the rig and waits until it is ready.
    Start(Start),
    /// Lets threads of processes execute a command of the actor protocol.
    Do {
        /// Which threads.
        targets: Vec<Target>,
        /// The command, the same for each.
        command: Command,
        /// The next step begins at once; `wait` waits for the end.
        background: bool,
    },
    /// Waits for a condition.
    Wait {
        /// Of which threads or processes.
        targets: Vec<Target>,
        /// Which condition.
        until: WaitFor,
    },
    /// Sends a signal to processes.
    Signal {
        /// Which signal.
        signal: Signal,
        /// To which processes.
        to: Vec<String>,
    },
    /// Lets time pass, in nanoseconds.
    Pause(u64),
    /// Names this moment.
    Mark(String),
    /// Remembers a property of gputrace under a name.
    Measure {
        /// The property.
        property: String,
        /// The name.
        name: String,
        /// Of which gputrace.
        tracer: String,
    },
    /// Compares snapshots that are younger than the steps before with expectations.
    Query(Query),
    /// Expectations on every snapshot from here on.
    Always(Vec<Expectation>),
    /// Does something to a gputrace itself.
    Tracer {
        /// Which one.
        name: String,
        /// What.
        action: TracerAction,
    },
}

/// How a process is started.
#[derive(Debug, Clone)]
pub struct Start {
    /// Its name in the scenario.
    pub process: String,
    /// The user and group ID that it runs as; the runner's own where absent.
    pub user: Option<u32>,
    /// Additions to its environment.
    pub env: Vec<(String, String)>,
    /// Whether the runner takes its status when it ends; else it stays a zombie.
    pub reap: bool,
}

/// What `wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The background commands of the threads have ended.
    Done,
    /// The thread sleeps in a system call that waits for time to pass.
    Sleep,
    /// The process has ended, with this exit code if one is given.
    Exit(Option<i32>),
}

/// A look at what gputrace says.
#[derive(Debug, Clone)]
pub struct Query {
    /// A name for messages.
    pub name: String,
    /// Which gputrace is asked.
    pub tracer: String,
    /// Snapshots are passed over until one meets these.
    pub until: Vec<Expectation>,
    /// How long to wait for a snapshot that meets everything, in nanoseconds.
    pub at_most: u64,
    /// What the snapshot must be. One that is not yet so is passed over; one that is what it must
    /// not be fails at once.
    pub expect: Vec<Expectation>,
}

/// How a gputrace is started.
#[derive(Debug, Clone)]
pub struct TracerStart {
    /// Arguments after those that the runner gives.
    pub args: Vec<Argument>,
    /// `--interval`, in nanoseconds.
    pub interval: u64,
    /// Its user ID; the runner's own where absent.
    pub user: Option<u32>,
    /// Its output is for people: this text on standard error says that its probes are in place.
    pub ready_text: Option<String>,
}

impl Default for TracerStart {
    fn default() -> Self {
        // Five snapshots a second keep queries quick and the output small.
        Self {
            args: Vec::new(),
            interval: 200_000_000,
            user: None,
            ready_text: None,
        }
    }
}

/// What is done to a gputrace.
#[derive(Debug, Clone)]
pub enum TracerAction {
    /// Starts it and waits until its probes are in place.
    Start(TracerStart),
    /// Stops it with SIGSTOP; with a time in nanoseconds, lets it continue after that.
    Stall(Option<u64>),
    /// Lets it continue.
    Resume,
    /// Ends it with SIGKILL.
    Kill,
    /// Ends it with a signal, or waits until it ends by itself, and checks its last report.
    End {
        /// The signal; none to wait for it.
        signal: Option<Signal>,
        /// What the last report must be.
        expect: Vec<Expectation>,
    },
}

impl TracerStart {
    /// Takes the keys `args`, `interval`, `user` and `ready_text`.
    ///
    /// # Errors
    /// A key has the wrong type.
    pub fn parse(fields: &mut Fields, units: &Units) -> Result<Self, FormatError> {
        let default = Self::default();
        Ok(Self {
            args: args(fields, units)?,
            interval: fields.nanos("interval", units)?.unwrap_or(default.interval),
            user: fields.small("user", units)?,
            ready_text: fields.text("ready_text")?,
        })
    }
}

/// The key that says what a step is, for each kind of step.
const VERBS: [&str; 9] = [
    "start", "as", "wait", "signal", "pause", "mark", "measure", "query", "always",
];

impl Step {
    /// Reads the list of steps.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn list(node: &Node, units: &Units) -> Result<Vec<Self>, FormatError> {
        let parse = |(index, node): (usize, &Node)| {
            let number = index + 1;
            let action = action(node, units).map_err(|error| FormatError {
                line: error.line,
                message: format!("step {number}: {}", error.message),
            })?;
            Ok(Self {
                line: node.line,
                number,
                action,
            })
        };
        node.list()?.iter().enumerate().map(parse).collect()
    }
}

fn action(node: &Node, units: &Units) -> Result<Action, FormatError> {
    let mut fields = node.fields("this step")?;
    let verbs: Vec<&str> = VERBS.into_iter().filter(|verb| fields.has(verb)).collect();
    let action = match verbs[..] {
        ["start"] => start(&mut fields, units)?,
        ["as"] => return command(fields, node, units),
        ["wait"] => wait(&mut fields)?,
        ["signal"] if fields.has("gputrace") => tracer(&mut fields, units)?,
        ["signal"] => Action::Signal {
            signal: signal(&fields.need("signal")?)?,
            to: fields.need("to")?.texts()?,
        },
        ["pause"] => Action::Pause(fields.need("pause")?.nanos(units)?),
        ["mark"] => Action::Mark(fields.need("mark")?.text()?.to_owned()),
        ["measure"] => Action::Measure {
            property: fields.need("measure")?.text()?.to_owned(),
            name: fields.need("name")?.text()?.to_owned(),
            tracer: fields.text("of")?.unwrap_or_else(|| TRACER.to_owned()),
        },
        ["query"] => Action::Query(query(&mut fields, units)?),
        ["always"] => Action::Always(Expectation::list(fields.take("always"), units)?),
        [] if fields.has("gputrace") => tracer(&mut fields, units)?,
        [] => {
            let there = fields.keys().join(", ");
            let known = VERBS.join(", ");
            return Err(fields.error(format!(
                "a step needs one of {known}, gputrace; this one has only {there}"
            )));
        }
        _ => {
            return Err(fields.error(format!(
                "a step does one thing, not {}",
                verbs.join(" and ")
            )));
        }
    };
    fields.finish()?;
    Ok(action)
}

fn start(fields: &mut Fields, units: &Units) -> Result<Action, FormatError> {
    let node = fields.need("start")?;
    let target = Target::parse(&node)?;
    let env = match fields.take("env") {
        None => Vec::new(),
        Some(node) => node
            .fields("env")?
            .rest()
            .into_iter()
            .map(|(name, value)| Ok((name, value.text()?.to_owned())))
            .collect::<Result<_, FormatError>>()?,
    };
    let reap = match fields.take("reap") {
        None => true,
        Some(Node {
            value: Value::Flag(flag),
            ..
        }) => flag,
        Some(node) => return Err(node.unexpected("a boolean")),
    };
    Ok(Action::Start(Start {
        process: target.only_process(&node)?,
        user: fields.small("user", units)?,
        env,
        reap,
    }))
}

/// `{ as = "P", do = "alloc", ... }`: everything but `as` and `background` is the command.
fn command(mut fields: Fields, node: &Node, units: &Units) -> Result<Action, FormatError> {
    let targets = Target::list(&fields.need("as")?)?;
    let background = fields.flag("background")?;
    if !fields.has("do") {
        return Err(fields.error("a step with \"as\" needs \"do\": what the process shall do"));
    }
    let rest = Node {
        line: node.line,
        value: Value::Table(fields.rest()),
    };
    let command = rest.read("this command", units)?;
    Ok(Action::Do {
        targets,
        command,
        background,
    })
}

fn wait(fields: &mut Fields) -> Result<Action, FormatError> {
    let targets = Target::list(&fields.need("wait")?)?;
    let kind = fields.text("for")?;
    let code = fields.integer("code")?;
    let until = match (kind.as_deref(), code) {
        (Some("exit"), code) => WaitFor::Exit(code),
        (_, Some(_)) => return Err(fields.error("\"code\" belongs to for = \"exit\"")),
        (None | Some("done"), None) => WaitFor::Done,
        (Some("sleep"), None) => WaitFor::Sleep,
        (Some(other), None) => {
            return Err(fields.error(format!("for = \"{other}\": it is done, sleep or exit")));
        }
    };
    Ok(Action::Wait { targets, until })
}

fn signal(node: &Node) -> Result<Signal, FormatError> {
    let name = node.text()?;
    let full = if name.starts_with("SIG") {
        name.to_owned()
    } else {
        format!("SIG{name}")
    };
    full.parse()
        .map_err(|_| FormatError::new(node.line, format!("\"{name}\" is no signal")))
}

fn query(fields: &mut Fields, units: &Units) -> Result<Query, FormatError> {
    let query = Query {
        name: fields.need("query")?.text()?.to_owned(),
        tracer: fields.text("of")?.unwrap_or_else(|| TRACER.to_owned()),
        until: Expectation::list(fields.take("until"), units)?,
        at_most: fields.nanos("at_most", units)?.unwrap_or(QUERY_TIME),
        expect: Expectation::list(fields.take("expect"), units)?,
    };
    if query.until.is_empty() && query.expect.is_empty() {
        return Err(fields.error("a query needs \"expect\" or \"until\""));
    }
    Ok(query)
}

fn tracer(fields: &mut Fields, units: &Units) -> Result<Action, FormatError> {
    let verb = fields.need("gputrace")?;
    let name = fields.text("name")?.unwrap_or_else(|| TRACER.to_owned());
    let action = match verb.text()? {
        "start" => TracerAction::Start(TracerStart::parse(fields, units)?),
        "stall" => TracerAction::Stall(fields.nanos("for", units)?),
        "resume" => TracerAction::Resume,
        "kill" => TracerAction::Kill,
        "end" => {
            let by = match fields.take("signal") {
                None => Some(Signal::SIGINT),
                Some(node) if node.text()? == "none" => None,
                Some(node) => Some(signal(&node)?),
            };
            TracerAction::End {
                signal: by,
                expect: Expectation::list(fields.take("expect"), units)?,
            }
        }
        other => {
            let message =
                format!("gputrace = \"{other}\": it is start, stall, resume, kill or end");
            return Err(FormatError::new(verb.line, message));
        }
    };
    Ok(Action::Tracer { name, action })
}

fn args(fields: &mut Fields, units: &Units) -> Result<Vec<Argument>, FormatError> {
    let Some(node) = fields.take("args") else {
        return Ok(Vec::new());
    };
    node.list()?
        .iter()
        .map(|node| Argument::parse(node, units))
        .collect()
}
