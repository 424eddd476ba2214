//! What expectations may ask a run for.

use super::expression::Scalar;
use super::number::{Moment, Number};
use super::run::{Printed, Run};
use super::subject::{Identity, Lookup};

/// What expectations may ask the run for.
pub(super) struct View<'v, 'r> {
    run: &'v Run<'r>,
    tracer: Option<&'v str>,
    printed: Option<&'v Printed>,
}

impl<'v, 'r> View<'v, 'r> {
    /// For the reports of a gputrace.
    pub(super) fn of_tracer(run: &'v Run<'r>, name: &'v str) -> Self {
        Self {
            run,
            tracer: Some(name),
            printed: None,
        }
    }

    /// For what a gputrace printed for people.
    pub(super) fn of_print(run: &'v Run<'r>, printed: &'v Printed) -> Self {
        Self {
            run,
            tracer: None,
            printed: Some(printed),
        }
    }
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

    fn tally(&self, process: &str, site: Option<&str>, of: &str) -> Result<Number, String> {
        let member = self.run.members.get(process);
        member
            .ok_or_else(|| format!("{process} has not started"))?
            .workload
            .get(site, of)
    }

    fn gputrace(&self, property: &str) -> Result<Scalar, String> {
        if let Some(printed) = self.printed {
            return match property {
                "stdout" => Ok(Scalar::Text(printed.stdout.clone())),
                "stderr" => Ok(Scalar::Text(printed.stderr.clone())),
                "exit_code" => Ok(printed.exit_code.map_or(Scalar::Null, |code| {
                    Scalar::Number(Number::Whole(code.into()))
                })),
                _ => Err(format!(
                    "a printing gputrace has stdout, stderr and exit_code, no \"{property}\""
                )),
            };
        }
        let tracer = self.tracer.and_then(|name| self.run.tracers.get(name));
        tracer
            .ok_or_else(|| "that gputrace has not started".to_owned())?
            .property(property)
    }
}
