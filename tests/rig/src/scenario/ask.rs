//! Steps on gputrace: start it, ask it, stall it, end it.

use std::process::Command as Program;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use std::os::unix::process::CommandExt;

use super::args::Argument;
use super::expect::Expectation;
use super::failure::{Failure, block};
use super::member::end_with_runner;
use super::process::boot_nanos;
use super::run::{Run, moment};
use super::steps::{Query, TracerAction, TracerStart};
use super::tracer::Tracer;
use crate::config::RIG;

/// Attaching and detaching takes up to a tenth of a second per probe, more on a busy machine.
const ATTACH_TIME: Duration = Duration::from_secs(60);

impl Run<'_> {
    pub(super) fn start_tracer(&mut self, name: &str, start: &TracerStart) -> Result<(), Failure> {
        let mut program = Program::new(&self.options.paths.gputrace);
        program.env(RIG, self.layout.rig().folder());
        let arguments = self.resolve_args(&start.args)?;
        if start.ready_text.is_none() {
            if self.options.record {
                let file =
                    |ending: &str| self.layout.rig().folder().join(format!("{name}.{ending}"));
                program.arg("record").arg("-o").arg(file("gputrace"));
                let path = file("args");
                std::fs::write(&path, arguments.join("\n")).map_err(|source| Failure::System {
                    what: format!("writing {}", path.display()),
                    source,
                })?;
            }
            let interval = format!("{}ms", start.interval / 1_000_000);
            program.args(["--json", "--interval", &interval]);
        }
        program.arg("--libcuda").arg(self.layout.libcuda());
        program.arg("--nvml").arg(self.layout.libnvml());
        program.args(arguments);
        if let Some(user) = start.user {
            program.uid(user).gid(user);
        }
        end_with_runner(&mut program);
        let folder = self.layout.rig().folder().to_owned();
        let hub = Arc::clone(&self.hub);
        let tracer = Tracer::start(program, &folder, name, start.ready_text.clone(), hub).map_err(
            |source| Failure::System {
                what: format!("starting {}", self.options.paths.gputrace.display()),
                source,
            },
        )?;
        self.tracers.insert(name.to_owned(), tracer);
        let what = format!("{name} to say that its probes are in place");
        self.until(&what, Some(ATTACH_TIME), |run| {
            Ok(run
                .tracers
                .get(name)
                .is_some_and(Tracer::is_ready)
                .then_some(()))
        })
        .map_err(|failure| self.with_stderr(name, failure))
    }

    pub(super) fn measure(
        &mut self,
        property: &str,
        name: &str,
        tracer: &str,
    ) -> Result<(), Failure> {
        let found = self.tracers.get(tracer).map_or_else(
            || Err("has not started".to_owned()),
            |tracer| tracer.property(property),
        );
        let number = found.and_then(|value| {
            let number = value.to_string().parse::<u64>();
            number.map_err(|_| format!("has the {property} {value}, which is no number"))
        });
        let number = number.map_err(|message| Failure::Tracer {
            tracer: tracer.to_owned(),
            message,
            stderr: String::new(),
        })?;
        self.notes.push(format!("{property} \"{name}\" {number}"));
        self.measured.insert(name.to_owned(), number);
        Ok(())
    }

    /// Looks at the snapshots that are younger than this moment until one is as expected.
    pub(super) fn query(&mut self, query: &Query) -> Result<(), Failure> {
        let name = &query.tracer;
        let (asked, mut latest) = (boot_nanos(), 0);
        let mut missed = Vec::new();
        let mut held = query.until.is_empty();
        let what = format!("a snapshot for the query \"{}\"", query.name);
        let at_most = Some(Duration::from_nanos(query.at_most));
        let found = self.until(&what, at_most, |run| {
            let snapshot = run
                .tracers
                .get(name)
                .and_then(|tracer| tracer.heard().snapshot.clone());
            let Some(snapshot) = snapshot else {
                return Ok(None);
            };
            let time = moment(&snapshot);
            if time <= asked || time == latest {
                return Ok(None);
            }
            latest = time;
            if !held {
                missed = run.compare(&query.until, &snapshot, name);
                held = missed.is_empty();
            }
            if held {
                missed = run.compare(&query.expect, &snapshot, name);
            }
            let decided = missed.is_empty() || held && missed.iter().any(|(last, _)| *last);
            Ok(decided.then_some(()))
        });
        let waited = match found {
            Ok(()) if missed.is_empty() => return Ok(()),
            Ok(()) => String::new(),
            Err(Failure::TimeOut { waited, .. }) if !missed.is_empty() => {
                let until = if held { "" } else { " until" };
                format!(", waited {waited:.1} s{until}")
            }
            Err(failure) => return Err(self.with_stderr(name, failure)),
        };
        let what = format!("the query \"{}\"{waited}", query.name);
        let mismatches = missed.into_iter().map(|(_, mismatch)| mismatch).collect();
        Err(Failure::Expectations { what, mismatches })
    }

    /// A time-out, with what gputrace has to say for itself.
    fn with_stderr(&self, name: &str, failure: Failure) -> Failure {
        match failure {
            Failure::TimeOut { what, waited, .. } => {
                let stderr = self
                    .tracers
                    .get(name)
                    .map(Tracer::stderr)
                    .unwrap_or_default();
                Failure::TimeOut {
                    what,
                    waited,
                    detail: block("gputrace wrote", &stderr),
                }
            }
            other => other,
        }
    }

    pub(super) fn tracer_step(&mut self, name: &str, action: &TracerAction) -> Result<(), Failure> {
        match action {
            TracerAction::Start(start) => self.start_tracer(name, start),
            TracerAction::Stall(None) => self.signal_tracer(name, Signal::SIGSTOP),
            TracerAction::Stall(Some(nanos)) => {
                self.signal_tracer(name, Signal::SIGSTOP)?;
                let end = Instant::now() + Duration::from_nanos(*nanos);
                let waited = self.until("the stall to pass", None, |_| {
                    Ok((Instant::now() >= end).then_some(()))
                });
                self.signal_tracer(name, Signal::SIGCONT)?;
                waited
            }
            TracerAction::Resume => self.signal_tracer(name, Signal::SIGCONT),
            TracerAction::Kill => {
                self.may_end(name);
                self.signal_tracer(name, Signal::SIGKILL)?;
                self.wait_for_end(name)
            }
            TracerAction::End { signal, expect } => self.end(name, *signal, expect),
        }
    }

    fn end(
        &mut self,
        name: &str,
        signal: Option<Signal>,
        expect: &[Expectation],
    ) -> Result<(), Failure> {
        self.may_end(name);
        let began = Instant::now();
        if let Some(signal) = signal {
            self.signal_tracer(name, signal)?;
        }
        self.wait_for_end(name)?;
        if let Some(signal) = signal {
            let seconds = began.elapsed().as_secs_f64();
            self.notes
                .push(format!("{name} ended {seconds:.2} s after {signal}"));
        }
        let failed = |run: &Self, message: String| Failure::Tracer {
            tracer: name.to_owned(),
            message,
            stderr: block(
                "it wrote",
                &run.tracers
                    .get(name)
                    .map(Tracer::stderr)
                    .unwrap_or_default(),
            ),
        };
        let expects_code = expect.iter().any(|e| e.gputrace() == Some("exit_code"));
        let status = self.tracers.get_mut(name).and_then(Tracer::ended);
        if let Some(status) = status.filter(|status| !expects_code && !status.success()) {
            return Err(failed(self, format!("ended with {status}")));
        }
        let Some(tracer) = self.tracers.get(name) else {
            return Ok(());
        };
        let report = tracer.heard().report.clone();
        let report = match report {
            Some(report) => report,
            None if tracer.is_text() => Arc::default(),
            None => return Err(failed(self, "ended without a last report".to_owned())),
        };
        if self.options.show && tracer.is_text() {
            print!("{}", tracer.heard().text);
        }
        let missed = self.compare(expect, &report, name);
        if missed.is_empty() {
            return Ok(());
        }
        let mismatches = missed.into_iter().map(|(_, mismatch)| mismatch).collect();
        Err(Failure::Expectations {
            what: format!("the last report of {name}"),
            mismatches,
        })
    }

    fn resolve_args(&self, args: &[Argument]) -> Result<Vec<String>, Failure> {
        let pid = |name: &str| self.members.get(name).map(|member| member.identity.tgid);
        let resolve = |argument: &Argument| {
            argument.resolve(pid).map_err(|process| Failure::Process {
                process,
                message: "it is named in an argument and has not started".to_owned(),
                log: String::new(),
            })
        };
        args.iter().map(resolve).collect()
    }

    fn may_end(&mut self, name: &str) {
        if let Some(tracer) = self.tracers.get_mut(name) {
            tracer.may_end = true;
        }
    }

    fn signal_tracer(&self, name: &str, signal: Signal) -> Result<(), Failure> {
        let Some(tracer) = self.tracers.get(name) else {
            return Ok(());
        };
        tracer.signal(signal).map_err(|source| Failure::System {
            what: format!("sending {signal} to {name}"),
            source,
        })
    }

    /// Waits until the process has ended and all of its output was read.
    fn wait_for_end(&mut self, name: &str) -> Result<(), Failure> {
        self.until(&format!("the end of {name}"), Some(ATTACH_TIME), |run| {
            let Some(tracer) = run.tracers.get_mut(name) else {
                return Ok(Some(()));
            };
            let output_ended = tracer.heard().ended;
            Ok((tracer.ended().is_some() && output_ended).then_some(()))
        })
    }
}
