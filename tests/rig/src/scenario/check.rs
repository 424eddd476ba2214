//! Checks that need the whole file: that every name is introduced before it is used.

use std::collections::BTreeSet;

use super::args::Argument;
use super::expect::Expectation;
use super::format::Scenario;
use super::node::FormatError;
use super::steps::{Action, Step, TRACER, TracerAction};
use crate::protocol::Command;

/// The names that exist at a point of the scenario.
#[derive(Default)]
struct Names {
    processes: BTreeSet<String>,
    tracers: BTreeSet<String>,
}

/// Checks that processes and tracers are started before a step mentions them.
///
/// # Errors
/// The first name that is used before it is introduced.
pub(super) fn names(scenario: &Scenario) -> Result<(), FormatError> {
    let mut names = Names::default();
    if scenario.tracer.is_some() {
        names.tracers.insert(TRACER.to_owned());
    }
    for step in &scenario.steps {
        names.step(step)?;
    }
    // These hold from the beginning, so they may name processes that come later.
    for expectation in &scenario.always {
        names.expectation(expectation)?;
    }
    Ok(())
}

impl Names {
    fn step(&mut self, step: &Step) -> Result<(), FormatError> {
        let at = step.line;
        match &step.action {
            Action::Start(start) => {
                self.processes.insert(start.process.clone());
            }
            Action::Do {
                targets, command, ..
            } => {
                targets
                    .iter()
                    .try_for_each(|target| self.process(&target.process, at))?;
                if let Command::Fork { child } = command {
                    self.processes.insert(child.clone());
                }
            }
            Action::Wait { targets, .. } => {
                targets
                    .iter()
                    .try_for_each(|target| self.process(&target.process, at))?;
            }
            Action::Signal { to, .. } => to.iter().try_for_each(|name| self.process(name, at))?,
            Action::Pause(_) | Action::Mark(_) => {}
            Action::Measure { tracer, .. } => self.tracer(tracer, at)?,
            Action::Query(query) => {
                self.tracer(&query.tracer, at)?;
                self.expectations(&query.until)?;
                self.expectations(&query.expect)?;
            }
            Action::Always(expectations) => self.expectations(expectations)?,
            Action::Tracer { name, action } => self.tracer_action(name, action, at)?,
        }
        Ok(())
    }

    fn tracer_action(
        &mut self,
        name: &str,
        action: &TracerAction,
        line: usize,
    ) -> Result<(), FormatError> {
        match action {
            TracerAction::Start(start) => {
                let pids = start.args.iter().flat_map(Argument::processes);
                pids.into_iter()
                    .try_for_each(|name| self.process(name, line))?;
                self.tracers.insert(name.to_owned());
                Ok(())
            }
            TracerAction::End { expect, .. } => {
                self.tracer(name, line)?;
                self.expectations(expect)
            }
            TracerAction::Stall(_) | TracerAction::Resume | TracerAction::Kill => {
                self.tracer(name, line)
            }
        }
    }

    fn expectations(&self, expectations: &[Expectation]) -> Result<(), FormatError> {
        expectations
            .iter()
            .try_for_each(|expectation| self.expectation(expectation))
    }

    fn expectation(&self, expectation: &Expectation) -> Result<(), FormatError> {
        let line = expectation.line;
        expectation
            .processes()
            .into_iter()
            .try_for_each(|name| self.process(name, line))
    }

    fn process(&self, name: &str, line: usize) -> Result<(), FormatError> {
        if self.processes.contains(name) {
            return Ok(());
        }
        Err(FormatError::new(
            line,
            format!("no process \"{name}\" is started before this"),
        ))
    }

    fn tracer(&self, name: &str, line: usize) -> Result<(), FormatError> {
        if self.tracers.contains(name) {
            return Ok(());
        }
        Err(FormatError::new(
            line,
            format!("no gputrace named \"{name}\" is started before this"),
        ))
    }
}
