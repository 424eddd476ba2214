//! Steps on the processes of a scenario: start, command, wait, signal.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::control::Thread;
use super::failure::Failure;
use super::member::{Member, end_with_runner};
use super::process::sleeps;
use super::run::Run;
use super::steps::{Start, WaitFor};
use super::target::{Target, Threads};
use crate::config::RIG;
use crate::protocol::Command;

/// A process that has not said a word after this time is not coming.
const START_TIME: Duration = Duration::from_secs(20);

impl Run<'_> {
    pub(super) fn start_process(&mut self, start: &Start) -> Result<(), Failure> {
        let name = &start.process;
        let system = |what: String| move |source| Failure::System { what, source };
        let path = self.layout.file(&format!("{name}.log"));
        let log = File::create(&path).map_err(system(format!("making {}", path.display())))?;
        let errors = log
            .try_clone()
            .map_err(system("keeping a log".to_owned()))?;
        let before = self.youngest_generation(name);
        // A process of that name may have lived before; it has ended or ends now.
        self.members.remove(name);

        let rig = self.layout.rig();
        let mut program = Program::new(&self.options.paths.actor);
        program
            .arg("--rig")
            .arg(rig.folder())
            .args(["--name", name])
            .env(RIG, rig.folder())
            .env("LD_LIBRARY_PATH", rig.libraries())
            .envs(start.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        if let Some(user) = start.user {
            program.uid(user).gid(user);
        }
        end_with_runner(&mut program);
        let mut child = program.spawn().map_err(system(format!(
            "starting {}",
            self.options.paths.actor.display()
        )))?;

        // Until it is a member nobody else watches it.
        let connected = self.until(&format!("{name} to connect"), Some(START_TIME), |run| {
            if let Some(identity) = run.connected(name, 0, before) {
                return Ok(Some(Ok(identity)));
            }
            Ok(child.try_wait().ok().flatten().map(Err))
        });
        let identity = match connected {
            Ok(Ok(identity)) => identity,
            Ok(Err(status)) => {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                return Err(Failure::Process {
                    process: name.clone(),
                    message: format!("it ended before it connected ({status})"),
                    log: super::failure::block("it wrote", &text),
                });
            }
            Err(failure) => {
                // The child is ours and nobody has taken its status.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failure);
            }
        };
        let member = Member::new(identity, Some(child), start.reap, path)
            .map_err(system(format!("watching {name}")))?;
        self.members.insert(name.clone(), member);
        Ok(())
    }

    /// Lets threads execute a command, all at the same time.
    pub(super) fn command(
        &mut self,
        targets: &[Target],
        command: &Command,
        background: bool,
        line: usize,
    ) -> Result<(), Failure> {
        let threads = self.resolve(targets, &[0])?;
        for (process, number) in &threads {
            let before = self.newest(command, process);
            let highest = self.members.get(process).map_or(0, |member| member.highest);
            let ends = matches!(command, Command::ExitThread | Command::ExitProcess { .. });
            if let Some(member) = self.members.get_mut(process) {
                member.may_end |= ends;
                member.executes = matches!(command, Command::Exec { .. });
            }
            self.control
                .send(process, *number, command, line)
                .map_err(|message| Failure::Process {
                    process: process.clone(),
                    message,
                    log: String::new(),
                })?;
            if changes_threads(command) {
                // What comes next depends on who connects, so these go one after the other.
                self.done(process, &[*number])?;
                self.follow(process, *number, command, before, highest)?;
            }
        }
        if background || changes_threads(command) {
            return Ok(());
        }
        for (process, number) in &threads {
            self.done(process, &[*number])?;
        }
        Ok(())
    }

    /// Waits for the connections and ends that follow the answer to a command.
    fn follow(
        &mut self,
        process: &str,
        number: u32,
        command: &Command,
        before: u64,
        highest: u32,
    ) -> Result<(), Failure> {
        match command {
            Command::Spawn { count } => {
                let first = highest + 1;
                let last = first.saturating_add(u32::try_from(*count).unwrap_or(u32::MAX)) - 1;
                self.until(
                    &format!("threads {first} to {last} of {process}"),
                    Some(START_TIME),
                    |run| {
                        let all = (first..=last).all(|n| run.connected(process, n, 0).is_some());
                        Ok(all.then_some(()))
                    },
                )
            }
            Command::Fork { child } => {
                let what = format!("{child} to connect");
                let identity = self.until(&what, Some(START_TIME), |run| {
                    Ok(run.connected(child, 0, before))
                })?;
                // It writes where its parent writes.
                let log = self.layout.file(&format!("{process}.log"));
                let member =
                    Member::new(identity, None, false, log).map_err(|source| Failure::System {
                        what: format!("watching {child}"),
                        source,
                    })?;
                self.members.insert(child.clone(), member);
                Ok(())
            }
            Command::Exec { .. } => {
                let what = format!("the new image of {process}");
                self.until(&what, Some(START_TIME), |run| {
                    Ok(run.connected(process, 0, before).map(|_| ()))
                })?;
                self.control.forget(process, before);
                if let Some(member) = self.members.get_mut(process) {
                    member.highest = 0;
                    member.executes = false;
                }
                Ok(())
            }
            Command::ExitThread => self.until(
                &format!("the end of thread {number} of {process}"),
                None,
                |run| {
                    Ok(run
                        .thread(process, number, |thread| thread.gone)
                        .unwrap_or(true)
                        .then_some(()))
                },
            ),
            Command::ExitProcess { .. } => self.exited(process, None),
            _ => Ok(()),
        }
    }

    pub(super) fn wait(&mut self, targets: &[Target], until: WaitFor) -> Result<(), Failure> {
        match until {
            WaitFor::Done => {
                for (process, number) in self.resolve_all(targets)? {
                    self.done(&process, &[number])?;
                }
                Ok(())
            }
            WaitFor::Sleep => {
                for (process, number) in self.resolve(targets, &[0])? {
                    self.until(&format!("{process} to sleep"), None, |run| {
                        let asleep = run.thread(&process, number, |thread| {
                            sleeps(thread.identity.tgid, thread.tid)
                        });
                        Ok(asleep.unwrap_or(false).then_some(()))
                    })?;
                }
                Ok(())
            }
            WaitFor::Exit(code) => targets
                .iter()
                .try_for_each(|target| self.exited(&target.process, code)),
        }
    }

    pub(super) fn signal(&mut self, signal: Signal, to: &[String]) -> Result<(), Failure> {
        for name in to {
            let Some(member) = self.members.get_mut(name) else {
                continue;
            };
            let harmless = [
                Signal::SIGSTOP,
                Signal::SIGCONT,
                Signal::SIGCHLD,
                Signal::SIGWINCH,
            ];
            member.may_end |= !harmless.contains(&signal);
            member.signal(signal).map_err(|source| Failure::System {
                what: format!("sending {signal} to {name}"),
                source,
            })?;
            if signal == Signal::SIGKILL {
                self.exited(name, None)?;
            }
        }
        Ok(())
    }

    /// Waits until threads have answered their commands.
    fn done(&mut self, process: &str, numbers: &[u32]) -> Result<(), Failure> {
        for number in numbers {
            self.until(&format!("{process} to finish its command"), None, |run| {
                let idle = run.thread(process, *number, |thread| thread.busy.is_none());
                Ok(idle.unwrap_or(true).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Waits for the end of a process, and compares its exit code if one is given.
    fn exited(&mut self, name: &str, code: Option<i32>) -> Result<(), Failure> {
        let wrong = |message: String| Failure::Process {
            process: name.to_owned(),
            message,
            log: String::new(),
        };
        // It is waited for, so its end is what the author wants.
        if let Some(member) = self.members.get_mut(name) {
            member.may_end = true;
        }
        self.until(&format!("the end of {name}"), None, |run| {
            Ok(run
                .members
                .get_mut(name)
                .is_none_or(Member::ended)
                .then_some(()))
        })?;
        let Some((code, member)) = code.zip(self.members.get(name)) else {
            return Ok(());
        };
        if !member.is_own_child() {
            let message = "its exit code is its parent's to take: let the parent wait for it";
            return Err(wrong(message.to_owned()));
        }
        match member.status {
            Some(status) if status.code() == Some(code) => Ok(()),
            Some(status) => Err(wrong(format!(
                "it ended with {status}, not with code {code}"
            ))),
            None => Err(wrong(
                "its status is not taken, so it has no exit code yet".to_owned(),
            )),
        }
    }

    /// The living threads that targets name; `unsaid` are the numbers meant by a bare name.
    fn resolve(&self, targets: &[Target], unsaid: &[u32]) -> Result<Vec<(String, u32)>, Failure> {
        let mut found = Vec::new();
        for target in targets {
            let process = &target.process;
            let numbers: Vec<u32> = match target.threads {
                Threads::Unsaid => unsaid.to_vec(),
                Threads::Range(low, high) => (low..=high).collect(),
                Threads::All => self.living(process),
            };
            if numbers.is_empty() {
                return Err(Failure::Process {
                    process: process.clone(),
                    message: "it has no thread any more".to_owned(),
                    log: String::new(),
                });
            }
            found.extend(numbers.into_iter().map(|number| (process.clone(), number)));
        }
        Ok(found)
    }

    /// As [`Run::resolve`], where a bare name means all threads, and having none is fine.
    fn resolve_all(&self, targets: &[Target]) -> Result<Vec<(String, u32)>, Failure> {
        let mut found = Vec::new();
        for target in targets {
            if target.threads == Threads::Unsaid {
                let process = &target.process;
                found.extend(
                    self.living(process)
                        .into_iter()
                        .map(|n| (process.clone(), n)),
                );
            } else {
                found.extend(self.resolve(std::slice::from_ref(target), &[])?);
            }
        }
        Ok(found)
    }

    fn living(&self, process: &str) -> Vec<u32> {
        let threads = self.control.threads();
        let of_process = threads
            .iter()
            .filter(|((name, _), thread)| name == process && !thread.gone);
        of_process.map(|((_, number), _)| *number).collect()
    }

    fn thread<T>(&self, process: &str, number: u32, look: impl Fn(&Thread) -> T) -> Option<T> {
        self.control
            .threads()
            .get(&(process.to_owned(), number))
            .map(look)
    }

    /// The identity of a living thread's process, if it connected after that generation.
    fn connected(
        &self,
        process: &str,
        number: u32,
        after: u64,
    ) -> Option<super::subject::Identity> {
        self.thread(process, number, |thread| {
            (thread.generation > after && !thread.gone).then_some(thread.identity)
        })?
    }

    fn youngest_generation(&self, process: &str) -> u64 {
        let threads = self.control.threads();
        let of_process = threads.iter().filter(|((name, _), _)| name == process);
        of_process
            .map(|(_, thread)| thread.generation)
            .max()
            .unwrap_or(0)
    }

    /// The generation that a connection which follows the command must exceed.
    fn newest(&self, command: &Command, process: &str) -> u64 {
        match command {
            Command::Fork { child } => self.youngest_generation(child),
            _ => self.youngest_generation(process),
        }
    }
}

/// Whether threads or processes appear or end with the command.
fn changes_threads(command: &Command) -> bool {
    matches!(
        command,
        Command::Spawn { .. }
            | Command::Fork { .. }
            | Command::Exec { .. }
            | Command::ExitThread
            | Command::ExitProcess { .. }
    )
}
