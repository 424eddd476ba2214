//! The runner's end of the actor protocol: accepts the connections of the actors' threads, sends
//! commands and keeps the answers until somebody asks for them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::hub::Hub;
use super::process;
use super::subject::Identity;
use crate::protocol::{Command, Connection, Hello, Message};

/// A thread of an actor.
#[derive(Debug)]
pub struct Thread {
    /// Counts connections: a new image after an exec has the same name as the old one.
    pub generation: u64,
    /// The process.
    pub identity: Identity,
    /// The thread's ID.
    pub tid: u32,
    /// The line of the step whose command it is carrying out.
    pub busy: Option<usize>,
    /// The answer to that command, once there is one.
    pub answer: Option<Message>,
    /// Whether the connection has ended.
    pub gone: bool,
    connection: Connection,
}

/// Every thread that ever connected, by process and number.
pub type Threads = BTreeMap<(String, u32), Thread>;

#[derive(Debug)]
struct Shared {
    threads: Mutex<Threads>,
    hub: Arc<Hub>,
    stop: AtomicBool,
}

/// The listening socket and the connections.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`. Every happening is told to `hub`.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(path: &Path, hub: Arc<Hub>) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        // Processes of other users join as well.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        let shared = Arc::new(Shared {
            threads: Mutex::default(),
            hub,
            stop: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("scenario control".to_owned())
            .spawn(move || accept(&listener, &accepting))?;
        Ok(Self {
            shared,
            path: path.to_owned(),
        })
    }

    /// The threads, for as long as the guard lives.
    pub fn threads(&self) -> MutexGuard<'_, Threads> {
        lock(&self.shared)
    }

    /// Forgets the threads of a process that connected up to this generation: an exec has ended them.
    pub fn forget(&self, process: &str, up_to: u64) {
        let of_old_image =
            |name: &str, thread: &Thread| name == process && thread.generation <= up_to;
        self.threads()
            .retain(|(name, _), thread| !of_old_image(name, thread));
    }

    /// Sends a command; the thread must not be busy.
    ///
    /// # Errors
    /// There is no such thread, it is busy or gone, or its connection is broken.
    pub fn send(
        &self,
        process: &str,
        number: u32,
        command: &Command,
        line: usize,
    ) -> Result<(), String> {
        let mut threads = self.threads();
        let thread = threads
            .get_mut(&(process.to_owned(), number))
            .ok_or_else(|| format!("{process} has no thread {number}"))?;
        if thread.gone {
            return Err(format!("thread {number} of {process} has ended"));
        }
        if let Some(other) = thread.busy {
            return Err(format!(
                "thread {number} of {process} is still busy with the step in line {other}; wait for it first"
            ));
        }
        thread
            .connection
            .send(command)
            .map_err(|error| format!("thread {number} of {process} cannot be reached: {error}"))?;
        thread.busy = Some(line);
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // The accepting thread waits in accept; a connection wakes it. If nobody listens any more,
        // there is nothing to wake.
        let _ = UnixStream::connect(&self.path);
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Threads> {
    // Each change is one assignment, so the map is sound even where a thread has panicked.
    shared
        .threads
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    let mut generation = 0;
    while let Ok((stream, _)) = listener.accept() {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        generation += 1;
        let shared = Arc::clone(shared);
        // A connection that gets no thread is closed, and its actor's step fails.
        let _ = std::thread::Builder::new()
            .name("scenario actor".to_owned())
            .spawn(move || converse(&stream, generation, &shared));
    }
}

/// Listens to one thread of an actor until its connection ends.
fn converse(stream: &UnixStream, generation: u64, shared: &Shared) {
    let Some((key, mut listening)) = greet(stream, generation, shared) else {
        return;
    };
    loop {
        let message = listening.receive::<Message>().ok().flatten();
        let mut threads = lock(shared);
        let current = threads
            .get_mut(&key)
            .filter(|thread| thread.generation == generation);
        let ended = match (current, message) {
            (Some(thread), Some(message)) => {
                thread.answer = Some(message);
                false
            }
            (Some(thread), None) => {
                thread.gone = true;
                true
            }
            (None, _) => true,
        };
        drop(threads);
        shared.hub.notify();
        if ended {
            return;
        }
    }
}

/// Reads the first message and makes the thread known.
fn greet(
    stream: &UnixStream,
    generation: u64,
    shared: &Shared,
) -> Option<((String, u32), Connection)> {
    let mut listening = Connection::new(stream.try_clone().ok()?);
    let Message::Hello(Hello {
        actor, thread, tid, ..
    }) = listening.receive().ok()??
    else {
        return None;
    };
    // The PID as this process sees it; the actor may live in another namespace.
    let tgid = u32::try_from(getsockopt(stream, PeerCredentials).ok()?.pid()).ok()?;
    let identity = Identity {
        tgid,
        start_ticks: process::start_ticks(tgid)?,
    };
    let connection = Connection::new(stream.try_clone().ok()?);
    let known = Thread {
        generation,
        identity,
        tid,
        busy: None,
        answer: None,
        gone: false,
        connection,
    };
    lock(shared).insert((actor.clone(), thread), known);
    shared.hub.notify();
    Some(((actor, thread), listening))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Results;
    use std::time::Duration;

    fn until(hub: &Hub, mut done: impl FnMut() -> bool) {
        loop {
            let seen = hub.seen();
            if done() {
                return;
            }
            hub.wait(seen, Duration::from_secs(1));
        }
    }

    fn hello(path: &Path) -> Connection {
        let mut actor = Connection::new(UnixStream::connect(path).unwrap());
        let hello = Hello {
            actor: "P".into(),
            thread: 0,
            tgid: 1,
            tid: 7,
            parent: 0,
        };
        actor.send(&Message::Hello(hello)).unwrap();
        actor
    }

    #[test]
    fn commands_are_answered_and_ends_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let hub = Arc::new(Hub::default());
        let control = Control::listen(&path, Arc::clone(&hub)).unwrap();
        let key = ("P".to_owned(), 0);
        assert!(control.send("P", 0, &Command::ExitThread, 1).is_err());

        let mut actor = hello(&path);
        until(&hub, || control.threads().contains_key(&key));
        assert_eq!(control.threads()[&key].identity.tgid, std::process::id());
        control.send("P", 0, &Command::ExitThread, 3).unwrap();
        let busy = control.send("P", 0, &Command::ExitThread, 4).unwrap_err();
        assert!(busy.contains("line 3"), "{busy}");

        assert_eq!(actor.receive().unwrap(), Some(Command::ExitThread));
        actor.send(&Message::Done(Results::default())).unwrap();
        until(&hub, || control.threads()[&key].answer.is_some());
        drop(actor);
        until(&hub, || control.threads()[&key].gone);

        // A new image connects under the same name; the end of the old one is not its own.
        let _again = hello(&path);
        until(&hub, || !control.threads()[&key].gone);
    }
}
