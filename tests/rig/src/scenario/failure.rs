//! Why a run did not pass.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::expect::Mismatch;
use super::layout::LayoutError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The rig could not be set up.
    #[error("the rig cannot be set up: {0}")]
    Layout(#[from] LayoutError),
    /// The system refused something that the runner needs.
    #[error("{what}: {source}")]
    System {
        /// What the runner was doing.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A process of the scenario could not do what it was told, or a call had another result.
    #[error("{process}: {message}{log}")]
    Process {
        /// Its name.
        process: String,
        /// What happened.
        message: String,
        /// The end of what it wrote, on lines of its own; may be empty.
        log: String,
    },
    /// A condition did not come true in time.
    #[error("waited {waited:.1} s for {what}{detail}")]
    TimeOut {
        /// The condition.
        what: String,
        /// How long, in seconds.
        waited: f64,
        /// How things stood at the end, on lines of its own; may be empty.
        detail: String,
    },
    /// A report is not as expected.
    #[error("{what}:\n{}", Lines(.mismatches))]
    Expectations {
        /// Which report.
        what: String,
        /// Each expectation that is not met.
        mismatches: Vec<Mismatch>,
    },
    /// A line of output breaks a rule that holds for every report.
    #[error("{tracer} broke a rule that holds for every report:\n{}", Lines(.violations))]
    Invariants {
        /// Which gputrace.
        tracer: String,
        /// Each violation.
        violations: Vec<String>,
    },
    /// gputrace did not start, ended too early, or ended badly.
    #[error("{tracer} {message}{stderr}")]
    Tracer {
        /// Which gputrace.
        tracer: String,
        /// What happened.
        message: String,
        /// What it wrote on standard error, on lines of its own; may be empty.
        stderr: String,
    },
}

/// A failure with its place in the scenario and what was kept of the run.
#[derive(Debug)]
pub struct Failed {
    /// The number and the line of the step; none before the first and after the last one.
    pub step: Option<(usize, usize)>,
    /// What went wrong.
    pub failure: Failure,
    /// The run's folder, with everything that was printed; none if it could not be made.
    pub kept: Option<PathBuf>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((number, line)) = self.step {
            write!(f, "step {number} (line {line}): ")?;
        }
        write!(f, "{}", self.failure)?;
        if let Some(folder) = &self.kept {
            write!(f, "\nkept: {}", folder.display())?;
        }
        Ok(())
    }
}

struct Lines<'l, T>(&'l [T]);

impl<T: fmt::Display> fmt::Display for Lines<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A report that is wrong in hundreds of places is read in its file.
        const SHOWN: usize = 20;
        let texts: Vec<String> = self
            .0
            .iter()
            .take(SHOWN)
            .map(|t| format!("- {t}"))
            .collect();
        f.write_str(&texts.join("\n"))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n- and {more} more"),
        }
    }
}

/// The last lines of a text as a block below a message; empty for an empty text.
#[must_use]
pub fn block(title: &str, text: &str) -> String {
    const SHOWN: usize = 15;
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(SHOWN)..];
    if tail.is_empty() {
        String::new()
    } else {
        format!("\n{title}:\n  {}", tail.join("\n  "))
    }
}
