//! A runner for one actor, on a rig of its own.

use gputrace_test_rig::config::{Config, RIG, Rig};
use gputrace_test_rig::device::Devices;
use gputrace_test_rig::protocol::{Command, Connection, Hello, Message, Results};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::Child;
use std::sync::Arc;

pub const TOTAL: u64 = 16 << 30;
pub const CONTEXT: u64 = 300 << 20;

/// A rig with its libraries, one actor `P`, and the connections to its threads.
pub struct Stage {
    pub devices: Arc<Devices>,
    pub actor: Child,
    others: Vec<Child>,
    listener: UnixListener,
    folder: tempfile::TempDir,
}

/// A connected thread of an actor.
pub struct Thread {
    pub hello: Hello,
    connection: Connection,
}

impl Stage {
    /// Starts `P` and waits until it has connected.
    pub fn start() -> (Self, Thread) {
        let folder = tempfile::tempdir().unwrap();
        let rig = Rig::new(folder.path());
        rig.store(&Config::with_gpus(2, TOTAL)).unwrap();
        std::fs::create_dir(rig.libraries()).unwrap();
        // Cargo puts the libraries beside this test's executable.
        for (built, name) in [
            ("libcuda.so", "libcuda.so.1"),
            ("libcudart.so", "libcudart.so"),
        ] {
            let built = std::env::current_exe().unwrap().with_file_name(built);
            assert!(built.exists(), "{}", built.display());
            std::os::unix::fs::symlink(built, rig.libraries().join(name)).unwrap();
        }
        let listener = UnixListener::bind(rig.control()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let actor = start(folder.path(), "P");
        let mut stage = Self {
            devices: Devices::open(rig).unwrap(),
            actor,
            others: Vec::new(),
            listener,
            folder,
        };
        let thread = stage.accept();
        assert_eq!((thread.hello.actor.as_str(), thread.hello.thread), ("P", 0));
        (stage, thread)
    }

    /// The same, with a context `c` on GPU 0.
    pub fn ready() -> (Self, Thread) {
        let (stage, mut thread) = Self::start();
        thread.does(json!({"do": "init"}));
        thread.does(json!({"do": "ctx_create", "label": "c"}));
        (stage, thread)
    }

    /// Starts another actor on the same rig.
    pub fn another(&mut self, name: &str) -> Thread {
        self.others.push(start(self.folder.path(), name));
        self.accept()
    }

    /// The next thread that connects.
    pub fn accept(&mut self) -> Thread {
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    assert_eq!(self.actor.try_wait().unwrap(), None, "the actor has ended");
                    std::thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        };
        stream.set_nonblocking(false).unwrap();
        let mut connection = Connection::new(stream);
        match connection.receive().unwrap() {
            Some(Message::Hello(hello)) => Thread { hello, connection },
            other => panic!("{other:?}"),
        }
    }
}

fn start(rig: &std::path::Path, name: &str) -> Child {
    std::process::Command::new(env!("CARGO_BIN_EXE_actor"))
        .arg("--rig")
        .arg(rig)
        .args(["--name", name])
        .env(RIG, rig)
        .spawn()
        .unwrap()
}

impl Drop for Stage {
    fn drop(&mut self) {
        for actor in self.others.iter_mut().chain([&mut self.actor]) {
            let _ = actor.kill();
            let _ = actor.wait();
        }
    }
}

impl Thread {
    pub fn tell(&mut self, command: Value) {
        let command: Command = serde_json::from_value(command).unwrap();
        self.connection.send(&command).unwrap();
    }

    pub fn tell_raw(&mut self, line: &str) {
        let mut stream = self.connection.stream();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// None when the thread has gone.
    pub fn hear(&mut self) -> Option<Message> {
        self.connection.receive().unwrap()
    }

    /// Carries out a command that must succeed.
    pub fn does(&mut self, command: Value) -> Results {
        self.tell(command.clone());
        match self.hear() {
            Some(Message::Done(results)) => results,
            other => panic!("{command}: {other:?}"),
        }
    }

    /// Carries out a command that must fail: what it says.
    pub fn fails(&mut self, command: Value) -> (String, Results) {
        self.tell(command.clone());
        match self.hear() {
            Some(Message::Failed(failure)) => (failure.message, failure.results),
            other => panic!("{command}: {other:?}"),
        }
    }
}
