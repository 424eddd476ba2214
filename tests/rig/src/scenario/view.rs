//! What expectations may ask a run for.

use super::expression::Scalar;
use super::number::{Moment, Number};
use super::run::Run;
use super::subject::{Identity, Lookup};
use super::tally::Part;

/// A run as the expectations on the reports of one gputrace see it.
pub(super) struct View<'v, 'r> {
    pub(super) run: &'v Run<'r>,
    pub(super) tracer: &'v str,
}

impl Lookup for View<'_, '_> {
    fn process(&self, name: &str) -> Option<Identity> {
        self.run.members.get(name).map(|member| member.identity)
    }

    fn mark(&self, name: &str) -> Option<Moment> {
        self.run.marks.get(name).copied()
    }

    fn measured(&self, name: &str) -> Option<u64> {
        self.run.measured.get(name).copied()
    }

    fn tally(&self, process: &str, part: &Part, of: &str) -> Result<Number, String> {
        let member = self.run.members.get(process);
        member
            .ok_or_else(|| format!("{process} has not started"))?
            .workload
            .get(part, of)
    }

    fn gputrace(&self, property: &str) -> Result<Scalar, String> {
        let tracer = self.run.tracers.get(self.tracer);
        tracer
            .ok_or_else(|| format!("{} has not started", self.tracer))?
            .property(property)
    }
}
