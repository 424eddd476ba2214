//! One thread of the actor, with its connection to the runner.

use crate::execute::{self, Done};
use crate::world::World;
use crate::{clock, process};
use gputrace_test_rig::protocol::{Command, Connection, Failure, Hello, Message, Results};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// A connected thread.
pub struct Session {
    /// The process.
    pub world: &'static World,
    number: u32,
    connection: Connection,
}

impl Session {
    /// Connects the calling thread to the runner.
    pub fn connect(world: &'static World, number: u32) -> io::Result<Self> {
        let path = world.rig.control();
        let stream = UnixStream::connect(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        world.state().connections.push(stream.as_raw_fd());
        let mut connection = Connection::new(stream);
        connection.send(&Message::Hello(Hello {
            actor: world.name.clone(),
            thread: number,
            tgid: std::process::id(),
            // SAFETY: takes nothing and cannot fail.
            tid: unsafe { libc::gettid() }.unsigned_abs(),
            parent: std::os::unix::process::parent_id(),
        }))?;
        Ok(Self {
            world,
            number,
            connection,
        })
    }

    /// The runner's end, for noticing that it goes away.
    pub fn runner(&self) -> BorrowedFd<'_> {
        self.connection.stream().as_fd()
    }

    /// Does what it is told until it is told to end.
    ///
    /// The code is that of the process, for its first thread.
    pub fn obey(mut self) -> ExitCode {
        loop {
            let command = match self.connection.receive::<Command>() {
                Ok(Some(command)) => command,
                Ok(None) => std::process::exit(0),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.answer(Err(failure(format!("not a command: {error}"))));
                    continue;
                }
                Err(error) => {
                    eprintln!("actor {}: {error}", self.world.name);
                    std::process::exit(2);
                }
            };
            match command {
                Command::ExitThread => return self.exit_thread(),
                Command::ExitProcess { code } => {
                    self.answer(Ok(done()));
                    std::process::exit(i32::from(code));
                }
                Command::Exec { title } => {
                    self.answer(Ok(done()));
                    let error = process::exec(self.world, title);
                    eprintln!("actor {}: exec: {error}", self.world.name);
                    std::process::exit(127);
                }
                Command::Fork { child } => {
                    let forked = process::fork(self.world, child);
                    self.answer(forked.map_err(|problem| failure(problem.to_string())));
                }
                command => {
                    let answer = execute::execute(&self, &command);
                    self.answer(answer);
                }
            }
        }
    }

    fn answer(&mut self, answer: Done) {
        let message = match answer {
            Ok(results) => Message::Done(results),
            Err(failure) => Message::Failed(*failure),
        };
        if let Err(error) = self.connection.send(&message) {
            eprintln!("actor {}: {error}", self.world.name);
            std::process::exit(2);
        }
    }

    fn exit_thread(mut self) -> ExitCode {
        self.answer(Ok(done()));
        let fd = self.connection.stream().as_raw_fd();
        self.world.state().connections.retain(|other| *other != fd);
        let number = self.number;
        drop(self);
        if number == 0 {
            // Returning would end the process.
            // SAFETY: ends this thread only. Nothing that it owns is needed by the others.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        ExitCode::SUCCESS
    }
}

fn done() -> Results {
    let now = clock::now();
    Results {
        started: now,
        ended: now,
        ..Results::default()
    }
}

fn failure(message: String) -> Box<Failure> {
    let results = Results::default();
    Box::new(Failure { message, results })
}
