//! Steps on gputrace: start it, ask it, stall it, end it.

use std::process::{Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use std::os::unix::process::CommandExt;

use super::args::Argument;
use super::expect::Expectation;
use super::failure::{Failure, block};
use super::member::end_with_runner;
use super::process::boot_nanos;
use super::run::{Printed, Run, moment};
use super::steps::{Query, TracerAction, TracerStart};
use super::tracer::Tracer;
use crate::config::RIG;

/// Attaching and detaching takes up to a tenth of a second per probe, more on a busy machine.
const ATTACH_TIME: Duration = Duration::from_secs(60);

impl Run<'_> {
    pub(super) fn start_tracer(&mut self, name: &str, start: &TracerStart) -> Result<(), Failure> {
        let mut program = self.program();
        program
            .arg("--json")
            .arg("--interval")
            .arg(format!("{}ms", start.interval / 1_000_000));
        self.add_libraries(&mut program);
        program.args(self.resolve_args(&start.args)?);
        if let Some(user) = start.user {
            program.uid(user).gid(user);
        }
        let folder = self.layout.rig().folder().to_owned();
        let tracer =
            Tracer::start(program, &folder, name, Arc::clone(&self.hub)).map_err(|source| {
                let path = self.options.paths.gputrace.display();
                Failure::System {
                    what: format!("starting {path}"),
                    source,
                }
            })?;
        self.tracers.insert(name.to_owned(), tracer);
        self.until(
            &format!("{name} to say that its probes are in place"),
            Some(ATTACH_TIME),
            |run| {
                Ok(run
                    .tracers
                    .get(name)
                    .and_then(|tracer| tracer.heard().start.clone()))
            },
        )?;
        Ok(())
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
        self.measured.insert(name.to_owned(), number);
        Ok(())
    }

    /// Takes the first snapshot that is younger than this moment (and meets `until`), and compares.
    pub(super) fn query(&mut self, query: &Query) -> Result<(), Failure> {
        let asked = boot_nanos();
        let mut latest = None;
        let mut missing = Vec::new();
        let what = format!("a snapshot for the query \"{}\"", query.name);
        let at_most = Some(Duration::from_nanos(query.at_most));
        let found = self.until(&what, at_most, |run| {
            let Some(snapshot) = run
                .tracers
                .get(&query.tracer)
                .and_then(|tracer| tracer.heard().snapshot.clone())
            else {
                return Ok(None);
            };
            let time = moment(&snapshot);
            if time <= asked || latest == Some(time) {
                return Ok(None);
            }
            latest = Some(time);
            missing = run.compare(&query.until, &snapshot, &query.tracer);
            Ok(missing.is_empty().then_some(snapshot))
        });
        let snapshot = match found {
            Ok(snapshot) => snapshot,
            Err(Failure::TimeOut { waited, .. }) if !missing.is_empty() => {
                let what = format!("the query \"{}\", waited {waited:.1} s until", query.name);
                return Err(Failure::Expectations {
                    what,
                    mismatches: missing,
                });
            }
            Err(Failure::TimeOut { what, waited, .. }) => {
                let stderr = self
                    .tracers
                    .get(&query.tracer)
                    .map(Tracer::stderr)
                    .unwrap_or_default();
                let detail = block("gputrace wrote", &stderr);
                return Err(Failure::TimeOut {
                    what,
                    waited,
                    detail,
                });
            }
            Err(failure) => return Err(failure),
        };
        let mismatches = self.compare(&query.expect, &snapshot, &query.tracer);
        if mismatches.is_empty() {
            return Ok(());
        }
        let what = format!("the query \"{}\"", query.name);
        Err(Failure::Expectations { what, mismatches })
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
            TracerAction::Print { args, expect } => self.print(name, args, expect),
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
        let report = self
            .tracers
            .get(name)
            .and_then(|tracer| tracer.heard().report.clone());
        let Some(report) = report else {
            return Err(failed(self, "ended without a last report".to_owned()));
        };
        let mismatches = self.compare(expect, &report, name);
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(Failure::Expectations {
            what: format!("the last report of {name}"),
            mismatches,
        })
    }

    /// Runs a gputrace whose output is for people.
    fn print(
        &mut self,
        name: &str,
        args: &[Argument],
        expect: &[Expectation],
    ) -> Result<(), Failure> {
        let mut program = self.program();
        program.args(self.resolve_args(args)?);
        self.add_libraries(&mut program);
        let system = |source| Failure::System {
            what: format!("running {name}"),
            source,
        };
        let (stdout, stderr) = (
            self.layout.file("print.stdout"),
            self.layout.file("print.stderr"),
        );
        let create = |path| std::fs::File::create(path).map_err(system);
        program
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?);
        let mut child = program.spawn().map_err(system)?;
        let ended = self.until("gputrace to print its report", None, |_| {
            child.try_wait().map_err(system)
        });
        if ended.is_err() {
            // The child is ours, and may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
        }
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let printed = Printed {
            stdout: text(&stdout),
            stderr: text(&stderr),
            exit_code: ended?.code(),
        };
        if self.options.show {
            print!("{}", printed.stdout);
            eprint!("{}", printed.stderr);
        }
        let expects_code = expect.iter().any(|e| e.gputrace() == Some("exit_code"));
        if !expects_code && printed.exit_code != Some(0) {
            return Err(Failure::Tracer {
                tracer: name.to_owned(),
                message: format!("ended with exit code {:?}", printed.exit_code),
                stderr: block("it wrote", &printed.stderr),
            });
        }
        let mismatches = self.compare_printed(expect, &printed);
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(Failure::Expectations {
            what: "what gputrace printed".to_owned(),
            mismatches,
        })
    }

    fn program(&self) -> Program {
        let mut program = Program::new(&self.options.paths.gputrace);
        program.env(RIG, self.layout.rig().folder());
        end_with_runner(&mut program);
        program
    }

    fn add_libraries(&self, program: &mut Program) {
        program.arg("--libcuda").arg(self.layout.libcuda());
        program.arg("--nvml").arg(self.layout.libnvml());
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
