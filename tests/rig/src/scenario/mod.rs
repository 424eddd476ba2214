//! Scenarios: what happens on a machine with GPUs, as data, and what gputrace must say about it.
//!
//! `tests/README.md` describes the format for authors. A file is read into a [`Scenario`] and run
//! by [`run_file`] on simulated devices, real processes and real probes.

mod act;
mod args;
mod ask;
mod check;
mod comparison;
mod control;
mod describe;
pub mod expect;
pub mod expression;
mod failure;
pub mod fields;
mod format;
mod hub;
pub mod invariants;
mod layout;
mod member;
mod needs;
pub mod node;
pub mod number;
mod path;
mod process;
mod run;
pub mod steps;
mod subject;
pub mod tally;
mod target;
mod tracer;
pub mod units;
mod view;

use std::fmt;
use std::path::{Path, PathBuf};

pub use failure::{Failed, Failure};
pub use format::{LoadError, Scenario};
pub use layout::{Layout, LayoutError, Paths};
pub use needs::Need;

/// How scenarios are run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The programs and libraries, as built.
    pub paths: Paths,
    /// Where the folders of runs are made.
    pub folder: PathBuf,
    /// Says on standard error what each step did.
    pub verbose: bool,
    /// Passes on what a gputrace prints for people.
    pub show: bool,
    /// Keeps a recording of each gputrace that prints NDJSON, `NAME.gputrace` in the run's folder, and
    /// its arguments, one a line, in `NAME.args`.
    pub record: bool,
    /// Leaves the folder of a run that passed; that of a failed run is always left.
    pub keep: bool,
}

impl Options {
    /// Quiet runs of these programs, in the system's folder for temporary files.
    #[must_use]
    pub fn new(paths: Paths) -> Self {
        Self {
            paths,
            folder: std::env::temp_dir(),
            verbose: false,
            show: false,
            record: false,
            keep: false,
        }
    }
}

/// A run that passed.
#[derive(Debug, Clone, PartialEq)]
pub struct Passed {
    /// How long it took.
    pub seconds: f64,
    /// What it measured beside, for people.
    pub notes: Vec<String>,
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// All expectations were met.
    Passed(Passed),
    /// The machine lacks what the scenario needs; each text says what.
    Skipped(Vec<String>),
    /// The file is not a valid scenario.
    Invalid(LoadError),
    /// An expectation was not met, or the run broke off.
    Failed(Box<Failed>),
}

/// The runs of several files.
#[derive(Debug, Default)]
pub struct Summary {
    /// Each file with its outcome, in the order in which they were run.
    pub runs: Vec<(PathBuf, Outcome)>,
}

impl Summary {
    /// Whether no run failed and no file was invalid. Skipped runs do not count against it.
    #[must_use]
    pub fn is_success(&self) -> bool {
        let bad = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_) | Outcome::Invalid(_));
        !self.runs.iter().any(|(_, outcome)| bad(outcome))
    }

    /// The numbers of runs that passed, failed (or could not be read), and were skipped.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        self.runs.iter().fold(
            (0, 0, 0),
            |(passed, failed, skipped), (_, outcome)| match outcome {
                Outcome::Passed(_) => (passed + 1, failed, skipped),
                Outcome::Failed(_) | Outcome::Invalid(_) => (passed, failed + 1, skipped),
                Outcome::Skipped(_) => (passed, failed, skipped + 1),
            },
        )
    }
}

/// Reads a scenario file and runs it.
#[must_use]
pub fn run_file(file: &Path, options: &Options) -> Outcome {
    let scenario = match Scenario::load(file) {
        Ok(scenario) => scenario,
        Err(error) => return Outcome::Invalid(error),
    };
    let missing: Vec<String> = scenario
        .needs
        .iter()
        .filter_map(|need| need.missing())
        .collect();
    if !missing.is_empty() {
        return Outcome::Skipped(missing);
    }
    match run::run(&scenario, options) {
        Ok(passed) => Outcome::Passed(passed),
        Err(failed) => Outcome::Failed(failed),
    }
}

/// Runs files one after the other and says on standard error how each ended. They are never run at
/// the same time: some load every core, and rates are compared.
#[must_use]
pub fn run_files(files: &[PathBuf], options: &Options) -> Summary {
    let mut summary = Summary::default();
    for file in files {
        if options.verbose {
            eprintln!("{}", file.display());
        }
        let outcome = run_file(file, options);
        eprintln!("{}: {outcome}", file.display());
        summary.runs.push((file.clone(), outcome));
    }
    summary
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(passed) => {
                write!(f, "passed in {:.1} s", passed.seconds)?;
                passed
                    .notes
                    .iter()
                    .try_for_each(|note| write!(f, "; {note}"))
            }
            Self::Skipped(reasons) => write!(f, "skipped: {}", reasons.join("; ")),
            Self::Invalid(error) => write!(f, "INVALID: {error}"),
            Self::Failed(failed) => write!(f, "FAILED: {failed}"),
        }
    }
}
