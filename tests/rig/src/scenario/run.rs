//! Runs one scenario: the state of a run, waiting, and the order of things.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control::Control;
use super::expect::{Expectation, Mismatch, Verdict};
use super::expression::Scalar;
use super::failure::{Failed, Failure, block};
use super::format::Scenario;
use super::hub::Hub;
use super::layout::Layout;
use super::member::Member;
use super::number::{Moment, Number};
use super::process::boot_nanos;
use super::steps::{Action, Step, TRACER, TracerAction};
use super::tracer::Tracer;
use super::view::View;
use super::{Options, Passed};
use crate::protocol::Message;

/// How long the runner sleeps at most before it looks again at what sends no wake-up: ends of
/// processes, `/proc`, the clock.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A run in progress.
pub(super) struct Run<'r> {
    pub(super) options: &'r Options,
    pub(super) scenario: &'r Scenario,
    // Dropped in this order: processes and gputrace end before their socket and folder go.
    pub(super) tracers: BTreeMap<String, Tracer>,
    pub(super) members: BTreeMap<String, Member>,
    pub(super) control: Control,
    pub(super) hub: Arc<Hub>,
    pub(super) layout: Layout,
    pub(super) marks: BTreeMap<String, Moment>,
    pub(super) measured: BTreeMap<String, u64>,
    pub(super) notes: Vec<String>,
    /// Lasting expectations, each with the moment from which it counts.
    always: Vec<(u64, Expectation)>,
    deadline: Instant,
}

/// Runs a scenario to its end.
pub(super) fn run(scenario: &Scenario, options: &Options) -> Result<Passed, Box<Failed>> {
    let before = |failure| {
        Box::new(Failed {
            step: None,
            failure,
            kept: None,
        })
    };
    let started = Instant::now();
    let mut run = Run::new(scenario, options).map_err(before)?;
    let (step, failure) = match run.execute() {
        Ok(()) => {
            if options.keep {
                run.notes
                    .push(format!("kept: {}", run.layout.keep().display()));
            }
            let notes = std::mem::take(&mut run.notes);
            return Ok(Passed {
                seconds: started.elapsed().as_secs_f64(),
                notes,
            });
        }
        Err(failed) => failed,
    };
    run.save_reports();
    let kept = Some(run.layout.keep());
    Err(Box::new(Failed {
        step,
        failure,
        kept,
    }))
}

type Place = Option<(usize, usize)>;

impl<'r> Run<'r> {
    fn new(scenario: &'r Scenario, options: &'r Options) -> Result<Self, Failure> {
        let layout = Layout::new(&options.folder, &scenario.rig, &options.paths)?;
        let hub = Arc::new(Hub::default());
        let socket = layout.rig().control();
        let control =
            Control::listen(&socket, Arc::clone(&hub)).map_err(|source| Failure::System {
                what: format!("listening at {}", socket.display()),
                source,
            })?;
        Ok(Self {
            options,
            scenario,
            tracers: BTreeMap::new(),
            members: BTreeMap::new(),
            control,
            hub,
            layout,
            marks: BTreeMap::new(),
            measured: BTreeMap::new(),
            notes: Vec::new(),
            always: scenario.always.iter().map(|e| (0, e.clone())).collect(),
            deadline: Instant::now() + Duration::from_nanos(scenario.time_limit),
        })
    }

    fn execute(&mut self) -> Result<(), (Place, Failure)> {
        let scenario = self.scenario;
        if let Some(start) = &scenario.tracer {
            self.start_tracer(TRACER, start)
                .map_err(|failure| (None, failure))?;
        }
        for step in &scenario.steps {
            self.step(step)
                .map_err(|failure| (Some((step.number, step.line)), failure))?;
        }
        self.finish().map_err(|failure| (None, failure))
    }

    fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let began = Instant::now();
        match &step.action {
            Action::Start(start) => self.start_process(start)?,
            Action::Do {
                targets,
                command,
                background,
            } => {
                self.command(targets, command, *background, step.line)?;
            }
            Action::Wait { targets, until } => self.wait(targets, *until)?,
            Action::Signal { signal, to } => self.signal(*signal, to)?,
            Action::Pause(nanos) => self.pause(Duration::from_nanos(*nanos))?,
            Action::Mark(name) => {
                self.marks.insert(name.clone(), Moment::now());
            }
            Action::Measure {
                property,
                name,
                tracer,
            } => self.measure(property, name, tracer)?,
            Action::Query(query) => self.query(query)?,
            Action::Always(expectations) => {
                let now = boot_nanos();
                self.always
                    .extend(expectations.iter().map(|e| (now, e.clone())));
            }
            Action::Tracer { name, action } => self.tracer_step(name, action)?,
        }
        self.watch()?;
        if self.options.verbose {
            let seconds = began.elapsed().as_secs_f64();
            eprintln!(
                "  step {:2} (line {:3}) {seconds:6.2} s  {}",
                step.number, step.line, step.action
            );
        }
        Ok(())
    }

    /// Ends each gputrace that no step ended, with the checks that an `end` step makes.
    fn finish(&mut self) -> Result<(), Failure> {
        let names: Vec<String> = self.tracers.keys().cloned().collect();
        for name in names {
            if self
                .tracers
                .get_mut(&name)
                .is_some_and(|tracer| tracer.ended().is_none())
            {
                let signal = Some(nix::sys::signal::Signal::SIGINT);
                self.tracer_step(
                    &name,
                    &TracerAction::End {
                        signal,
                        expect: Vec::new(),
                    },
                )?;
            }
        }
        self.watch()
    }

    /// Waits until `check` gives a value, and watches everything meanwhile.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        at_most: Option<Duration>,
        mut check: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let deadline = at_most.map_or(self.deadline, |time| (began + time).min(self.deadline));
        loop {
            let seen = self.hub.seen();
            self.watch()?;
            if let Some(value) = check(self)? {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                return Err(Failure::TimeOut {
                    what: what.to_owned(),
                    waited: began.elapsed().as_secs_f64(),
                    detail: String::new(),
                });
            }
            self.hub.wait(seen, LOOK_AGAIN);
        }
    }

    fn pause(&mut self, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        self.until("time to pass", None, |_| {
            Ok((Instant::now() >= end).then_some(()))
        })
    }

    /// Takes note of everything that has happened, and fails if it should not have.
    fn watch(&mut self) -> Result<(), Failure> {
        self.take_answers()?;
        for (name, member) in &mut self.members {
            if member.ended() && !member.may_end {
                let how = member
                    .status
                    .map_or_else(String::new, |status| format!(" ({status})"));
                return Err(Failure::Process {
                    process: name.clone(),
                    message: format!("it ended although nothing told it to{how}"),
                    log: member.log(),
                });
            }
        }
        for (name, tracer) in &mut self.tracers {
            if let Some(status) = tracer.ended().filter(|_| !tracer.may_end) {
                return Err(Failure::Tracer {
                    tracer: name.clone(),
                    message: format!("ended although nothing told it to ({status})"),
                    stderr: block("it wrote", &tracer.stderr()),
                });
            }
        }
        self.check_fresh_reports()
    }

    /// Collects the answers of actors: adds up what they did, and fails where one could not.
    fn take_answers(&mut self) -> Result<(), Failure> {
        let mut threads = self.control.threads();
        for ((process, number), thread) in threads.iter_mut() {
            let Some(member) = self.members.get_mut(process) else {
                continue;
            };
            member.highest = member.highest.max(*number);
            let Some(line) = thread.busy else { continue };
            match thread.answer.take() {
                Some(Message::Done(results)) => {
                    member.workload.add(&results);
                    thread.busy = None;
                }
                Some(Message::Failed(failure)) => {
                    return Err(Failure::Process {
                        process: process.clone(),
                        message: format!("the step in line {line}: {}", failure.message),
                        log: member.log(),
                    });
                }
                Some(Message::Hello(_)) | None if !thread.gone => {}
                _ if member.may_end || member.executes => thread.busy = None,
                _ => {
                    return Err(Failure::Process {
                        process: process.clone(),
                        message: format!("thread {number} ended in the step in line {line}"),
                        log: member.log(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Rules that hold for every line, and lasting expectations.
    fn check_fresh_reports(&mut self) -> Result<(), Failure> {
        for (name, tracer) in &self.tracers {
            let (violations, fresh) = {
                let mut heard = tracer.heard();
                (
                    std::mem::take(&mut heard.violations),
                    std::mem::take(&mut heard.fresh),
                )
            };
            if !violations.is_empty() {
                return Err(Failure::Invariants {
                    tracer: name.clone(),
                    violations,
                });
            }
            let view = View {
                run: self,
                tracer: name,
            };
            for report in fresh {
                let time = moment(&report);
                let counting = self.always.iter().filter(|(since, _)| time >= *since);
                let mismatches: Vec<Mismatch> = counting
                    .filter_map(|(_, expectation)| match expectation.check(&report, &view) {
                        Verdict::Missed(mismatch) => Some(mismatch),
                        // A lasting expectation begins to count when its subject appears.
                        Verdict::Met | Verdict::NoSubject(_) => None,
                    })
                    .collect();
                if !mismatches.is_empty() {
                    let what = format!(
                        "the {} of boot time {:.3} s, which must always hold",
                        report["type"].as_str().unwrap_or("report"),
                        Duration::from_nanos(time).as_secs_f64()
                    );
                    self.save("failed-always", &report);
                    return Err(Failure::Expectations { what, mismatches });
                }
            }
        }
        Ok(())
    }

    /// Each expectation that a report does not meet, with whether that is final: what must not be
    /// will not become right by waiting.
    pub(super) fn compare(
        &self,
        expectations: &[Expectation],
        report: &serde_json::Value,
        tracer: &str,
    ) -> Vec<(bool, Mismatch)> {
        let view = View { run: self, tracer };
        expectations
            .iter()
            .filter_map(|expectation| match expectation.check(report, &view) {
                Verdict::Met => None,
                Verdict::Missed(mismatch) => Some((expectation.prohibits(), mismatch)),
                Verdict::NoSubject(mismatch) => Some((false, mismatch)),
            })
            .collect()
    }

    fn save_reports(&self) {
        for (name, tracer) in &self.tracers {
            let heard = tracer.heard();
            if let Some(report) = heard.report.as_ref().or(heard.snapshot.as_ref()) {
                self.save(&format!("{name}-last"), report);
            }
        }
    }

    /// Writes a report to a file in the run's folder, readable for people.
    fn save(&self, name: &str, report: &serde_json::Value) {
        let file = self.layout.file(&format!("{name}.json"));
        // The failure itself matters more than this aid, so an error here is left alone.
        let _ = std::fs::write(file, format!("{report:#}\n"));
    }
}

/// When a report was made, in nanoseconds of the boot clock; 0 where it does not say.
pub(super) fn moment(report: &serde_json::Value) -> u64 {
    match Scalar::of(&report["boot_ns"]).number() {
        Some(Number::Whole(nanos)) => u64::try_from(nanos).unwrap_or(0),
        _ => 0,
    }
}
