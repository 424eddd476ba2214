//! What a scenario runner and an actor say to each other.
//!
//! The runner listens on the rig's `control` socket before it starts an actor as
//! `actor --rig DIR --name P`. Each *thread* of an actor connects by itself and first sends
//! [`Message::Hello`]. From then on the runner sends one [`Command`] at a time on that connection and
//! the thread answers each with exactly one [`Message::Done`] or [`Message::Failed`]. Messages are
//! JSON, one a line, in both directions. A connection that ends without an answer means that the
//! thread is gone (it was killed, say).
//!
//! Commands that end or replace the thread ([`Command::Exec`], [`Command::ExitThread`],
//! [`Command::ExitProcess`]) are answered just before they take effect; then the connection ends.
//! After an exec the new image connects again, under the same name, as thread 0.
//!
//! A command's text form is that of a scenario's step: `do` names the command, the other fields are
//! its values, sizes may be written `"4 MiB"` and durations `"100ms"` (see [`crate::units`]).
//!
//! ```
//! # use gputrace_test_rig::protocol::{Command, Site};
//! let command: Command =
//!     toml::from_str("do = 'alloc'\nbytes = '4 MiB'\nsite = 'site_B'\nlabel = 'cache'")?;
//! # assert!(matches!(command, Command::Alloc(alloc) if alloc.site == Site::named('B')));
//! # Ok::<(), toml::de::Error>(())
//! ```

mod command;
mod connection;
mod memory;
mod results;
mod values;
mod work;

pub use command::{Command, Hammer, Loop, LoopStep, RandomAllocs, Undo};
pub use connection::Connection;
pub use memory::{
    Alloc, AllocKind, ExternalImport, IpcOpen, Map, Place, PoolCreate, PoolExport, PoolImport,
    Reserve, Unmap, VmmCreate, VmmImport, VmmRetain,
};
pub use results::{Amount, KindTally, MemoryInfo, Results, Tally};
pub use values::{Any, ContextHow, Expect, Kind, Site, Via};
pub use work::{
    Copy, CopyHow, GraphHow, GraphInstantiate, Launch, LaunchHow, ModuleHow, ModuleLoad,
    SynchronizeHow,
};

use serde::{Deserialize, Serialize};

/// From an actor to the runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The first message of a connection: who is at its other end.
    Hello(Hello),
    /// The command was carried out, and every result was one that it allows.
    Done(Results),
    /// The command could not be carried out, or a result was not one that it allows.
    Failed(Failure),
}

/// Who is at the actor's end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the process in the scenario.
    pub actor: String,
    /// Number of the thread in its process: 0 is the first, the leader unless a thread forked.
    pub thread: u32,
    /// Process ID.
    pub tgid: u32,
    /// Thread ID.
    pub tid: u32,
    /// Process ID of the parent.
    pub parent: u32,
}

/// Why a command was not carried out as asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For people.
    pub message: String,
    /// What had been done until then.
    #[serde(default)]
    pub results: Results,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn commands_survive_a_round_trip() {
        let text = r#"{"do":"loop","iterations":600,"every":"100ms","body":[
            {"do":"alloc","bytes":"4 MiB","site":"site_A"},
            {"do":"free","count":1},
            {"do":"alloc","bytes":6291456,"site":"site_B","label":"kept","each":3,"expect":[0,2]},
            {"do":"free_bad","expect":"any"}]}"#;
        let command: Command = serde_json::from_str(text).unwrap();
        let Command::Loop(body) = &command else {
            panic!("{command:?}")
        };
        assert_eq!(body.every, 100_000_000);
        assert_eq!(body.body[2].each, 3);
        let again = serde_json::to_string(&command).unwrap();
        assert_eq!(serde_json::from_str::<Command>(&again).unwrap(), command);
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        for text in [
            r#"{"do":"alloc","byte":1}"#,
            r#"{"do":"alloc","bytes":1,"sight":"site_A"}"#,
            r#"{"do":"alloc","bytes":1,"site":"A"}"#,
            r#"{"do":"init","device":1}"#,
            r#"{"do":"loop","iterations":1,"body":[{"do":"alloc","bytes":1,"eech":2}]}"#,
            r#"{"do":"fly"}"#,
        ] {
            assert!(serde_json::from_str::<Command>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn messages_cross_a_connection() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut runner = Connection::new(ours);
        let mut actor = Connection::new(theirs);
        let mut results = Results::default();
        results.allocations.add(0, 4096);
        results.allocations.add(2, 8192);
        results
            .sites
            .insert(Site::named('B'), results.allocations.clone());
        runner.send(&Command::ExitThread).unwrap();
        assert_eq!(actor.receive().unwrap(), Some(Command::ExitThread));
        actor.send(&Message::Done(results.clone())).unwrap();
        assert_eq!(runner.receive().unwrap(), Some(Message::Done(results)));
        drop(actor);
        assert_eq!(runner.receive::<Message>().unwrap(), None);
    }
}
