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

use crate::units;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

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

/// What a command did; what does not apply is empty.
///
/// Counts are of this command alone, exact, and those of the calls that really were made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// When the command began; nanoseconds of `CLOCK_BOOTTIME`.
    pub started: u64,
    /// When it ended; nanoseconds of `CLOCK_BOOTTIME`.
    pub ended: u64,
    /// Allocation calls.
    pub allocations: Tally,
    /// Calls that free. The bytes of a refused free of a bad pointer are 0.
    pub frees: Tally,
    /// Allocation calls by call site.
    pub sites: BTreeMap<Site, Tally>,
    /// Every other driver call.
    pub calls: Tally,
    /// What all piles of this process hold at the end of the command.
    pub live: Amount,
    /// The child of [`Command::Fork`].
    pub child: Option<u32>,
    /// The wait status of [`Command::Wait`], as waitpid(2) gives it.
    pub status: Option<i32>,
    /// The answer to [`Command::MemoryInfo`].
    pub memory: Option<MemoryInfo>,
}

/// A number of calls or of allocations, and the sum of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Their bytes in all.
    pub bytes: u64,
}

impl Amount {
    /// Adds one of this size.
    pub fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    /// Adds another amount.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Calls by how they ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Calls with result 0.
    pub succeeded: Amount,
    /// The others, by result code.
    pub failed: BTreeMap<i32, Amount>,
}

impl Tally {
    /// Counts one call.
    pub fn add(&mut self, code: i32, bytes: u64) {
        if code == 0 {
            self.succeeded.add(bytes);
        } else {
            self.failed.entry(code).or_default().add(bytes);
        }
    }

    /// Adds the counts of another tally.
    pub fn merge(&mut self, other: &Self) {
        self.succeeded.merge(other.succeeded);
        for (code, amount) in &other.failed {
            self.failed.entry(*code).or_default().merge(*amount);
        }
    }

    /// All calls that did not end with 0.
    pub fn failures(&self) -> Amount {
        let mut sum = Amount::default();
        for amount in self.failed.values() {
            sum.merge(*amount);
        }
        sum
    }
}

/// What `cuMemGetInfo` or `cudaMemGetInfo` said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// Bytes that are free on the device.
    pub free: u64,
    /// Bytes of the device in all.
    pub total: u64,
}

/// What a thread of an actor can do.
///
/// CUDA commands act for the thread that gets them: the current context is per thread, as in CUDA.
/// Labels (of contexts and of piles of allocations) belong to the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// `cuInit(0)`.
    Init {
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxCreate_v2`, after `cuInit` if the process has not called it; the context becomes the
    /// thread's current one.
    CtxCreate {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// Name of the new context.
        #[serde(default)]
        label: String,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxDestroy_v2`. What the context still holds is gone, and out of every pile.
    CtxDestroy {
        /// Name of the context.
        #[serde(default)]
        label: String,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxSetCurrent`.
    SetCurrent {
        /// Name of the context; without it the thread has none afterwards.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuCtxSynchronize`.
    Synchronize {
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuDevicePrimaryCtxRetain`, after `cuInit` if the process has not called it; the context can
    /// be made current under the label.
    RetainPrimary {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// Name of the context.
        #[serde(default)]
        label: String,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuDevicePrimaryCtxRelease_v2`.
    ReleasePrimary {
        /// Index of the device.
        #[serde(default)]
        device: i32,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// `cuMemGetInfo_v2`, or `cudaMemGetInfo`.
    MemoryInfo {
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed.
        #[serde(default)]
        expect: Expect,
    },
    /// Allocates.
    Alloc(Alloc),
    /// Frees what a pile holds, the newest first.
    Free {
        /// Which pile.
        #[serde(default)]
        label: String,
        /// How many allocations; absent: all that the pile holds. More than it holds is a failure
        /// of the command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed. An allocation whose free is refused stays in the pile.
        #[serde(default)]
        expect: Expect,
    },
    /// Calls the freeing function with addresses that were never allocated.
    FreeBad {
        /// How many calls.
        #[serde(default = "one")]
        count: u64,
        /// How the function is reached.
        #[serde(default)]
        via: Via,
        /// Results that are allowed; by default 1, invalid value.
        #[serde(default = "Expect::invalid_value")]
        expect: Expect,
    },
    /// Repeats commands.
    Loop(Loop),
    /// Does nothing for a while.
    Sleep {
        /// For how long.
        #[serde(rename = "for", with = "units::nanoseconds")]
        duration: u64,
    },
    /// Allocates and frees from many threads as fast as they can.
    Hammer(Hammer),
    /// Allocations of random sizes that become rarer, up to an exact sum.
    RandomAllocs(RandomAllocs),
    /// One allocation during which the driver sleeps: for a process that is killed inside the call.
    /// Only the thread's own call is meant to happen meanwhile, since the delay is the process's.
    BlockInAlloc {
        /// Bytes to ask for.
        #[serde(with = "units::bytes")]
        bytes: u64,
        /// How long the call sleeps; a thousandth of a second or more.
        #[serde(rename = "for", with = "units::nanoseconds")]
        duration: u64,
        /// The function that calls the driver.
        #[serde(default)]
        site: Site,
        /// The pile that gets the allocation.
        #[serde(default)]
        label: String,
    },
    /// `gputrace_rig_set` of the fake driver library: changes injected behaviour of this process;
    /// the keys are the fields of [`crate::config::Faults`].
    RigSet {
        /// Which.
        key: String,
        /// The new value.
        value: u64,
    },
    /// Starts threads, which connect by themselves. The answer comes when all have been created;
    /// they are numbered on from the highest number that the process has had.
    Spawn {
        /// How many.
        #[serde(default = "one")]
        count: u64,
    },
    /// fork(2), without an exec. The child has this thread only; it connects under its own name as
    /// thread 0. It inherits open files, labels and piles, but its CUDA calls give 3, as real ones do.
    Fork {
        /// Name of the child.
        child: String,
    },
    /// Waits for a child's end and takes its status, so that it is no zombie any more.
    Wait {
        /// Name of the child.
        child: String,
    },
    /// execve(2) of the actor itself, under the same name. Only thread 0 of a new image is left.
    Exec {
        /// What stands as the program's name on the command line; absent: as before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
    },
    /// Sets the command name (its first 15 bytes) and the command line of the process.
    SetTitle {
        /// The whole title.
        title: String,
    },
    /// Ends this thread alone, also the leader: the process lives on while another thread does.
    ExitThread,
    /// exit(2) of the process, with the libraries' tear-down and without freeing anything.
    ExitProcess {
        /// Exit code.
        #[serde(default)]
        code: u8,
    },
}

/// [`Command::Alloc`]: allocation calls of one size from one call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alloc {
    /// Bytes of each.
    #[serde(with = "units::bytes")]
    pub bytes: u64,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile on which the allocations are put; without a label, the unnamed one.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::Loop`]: a body that is repeated on a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// How many times.
    pub iterations: u64,
    /// Time between the beginnings of two iterations, counted from the loop's own beginning so that
    /// nothing drifts: iteration n (from 1) begins at (n - 1) times this. An iteration that comes
    /// late begins at once. 0: as fast as possible.
    #[serde(default, with = "units::nanoseconds")]
    pub every: u64,
    /// What an iteration does, in this order. Commands that create, replace or end threads and
    /// processes are not allowed here.
    pub body: Vec<LoopStep>,
}

/// One command of a loop's body: the command's own fields and `each`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopStep {
    /// Only in every so many iterations: 3 is the third, the sixth, and so on.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub each: u64,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// [`Command::Hammer`]: threads that allocate and free without pause.
///
/// The threads are the command's own: they take over the current context of the thread that has the
/// command, do not connect, and have ended when it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hammer {
    /// How many threads.
    #[serde(default = "one")]
    pub threads: u64,
    /// Stop after this time. One of this and `pairs` must be given.
    #[serde(
        rename = "for",
        default,
        with = "units::nanoseconds",
        skip_serializing_if = "is_zero"
    )]
    pub duration: u64,
    /// Stop after this many allocation calls by all threads together, each followed by a free
    /// unless it failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pairs: u64,
    /// Smallest size; sizes are multiples of 256 bytes.
    #[serde(with = "units::bytes")]
    pub min: u64,
    /// Largest size, below 8 GiB; absent: as the smallest.
    #[serde(default, with = "units::bytes", skip_serializing_if = "is_zero")]
    pub max: u64,
    /// How many allocations each thread keeps while it goes on.
    #[serde(default = "one")]
    pub hold: u64,
    /// An allocation is freed by a thread other than the one that made it.
    #[serde(default)]
    pub cross_thread: bool,
    /// What is held at the end goes on the pile instead of being freed.
    #[serde(default)]
    pub leave: bool,
    /// The pile for `leave`.
    #[serde(default)]
    pub label: String,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// How the functions are reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed, of the allocations and the frees.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::RandomAllocs`]: what a cache does that warms up.
///
/// Sizes are drawn evenly between `min` and `max`, in steps of 512 bytes; the last one makes the sum
/// exactly `total`. Each pause is longer than the one before by `ratio`; all take `over` together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAllocs {
    /// The same seed gives the same sizes.
    #[serde(default)]
    pub seed: u64,
    /// Smallest size (the last allocation may be smaller).
    #[serde(with = "units::bytes")]
    pub min: u64,
    /// Largest size.
    #[serde(with = "units::bytes")]
    pub max: u64,
    /// Sum of all sizes.
    #[serde(with = "units::bytes")]
    pub total: u64,
    /// Time from the first allocation to the last.
    #[serde(with = "units::nanoseconds")]
    pub over: u64,
    /// Each pause divided by the one before; 1 spaces them evenly.
    #[serde(default = "RandomAllocs::default_ratio")]
    pub ratio: f64,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile that gets the allocations.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

// The ratio is never NaN in a command that means anything, so equality is total enough.
impl Eq for RandomAllocs {}

impl RandomAllocs {
    fn default_ratio() -> f64 {
        1.05
    }
}

/// How a function of the driver is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The exported symbol of `libcuda.so.1`, by dlsym(3).
    #[default]
    Driver,
    /// The pointer that `cuGetProcAddress_v2` gives.
    Procaddr,
    /// `libcudart.so`, which calls the driver in its turn. It uses the primary context.
    Runtime,
}

/// The results that a command allows; anything else makes it fail.
///
/// Written as a number, a list of numbers, or `"any"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Expect {
    /// This code alone.
    Code(i32),
    /// One of these.
    OneOf(Vec<i32>),
    /// Whatever it is.
    Any(Any),
}

/// The text `any`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Any {
    /// Every result is allowed.
    #[serde(rename = "any")]
    Any,
}

impl Default for Expect {
    fn default() -> Self {
        Self::Code(0)
    }
}

impl Expect {
    fn invalid_value() -> Self {
        Self::Code(1)
    }

    /// Whether this result is allowed.
    pub fn allows(&self, code: i32) -> bool {
        match self {
            Self::Code(only) => *only == code,
            Self::OneOf(codes) => codes.contains(&code),
            Self::Any(Any::Any) => true,
        }
    }
}

/// A call site: one of the actor's exported functions `site_A` to `site_Z`, each of which calls the
/// driver directly. By default `site_A`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site(u8);

impl Site {
    /// How many there are.
    pub const COUNT: usize = 26;

    /// The site with this letter, `A` to `Z`; any other letter stands for `A`.
    pub fn named(letter: char) -> Self {
        u8::try_from(letter)
            .ok()
            .filter(u8::is_ascii_uppercase)
            .map_or(Self(0), |letter| Self(letter - b'A'))
    }

    /// 0 for `site_A` and so on; below [`Site::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::named('A')
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "site_{}", char::from(b'A' + self.0))
    }
}

impl Serialize for Site {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Site {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        match name.strip_prefix("site_").map(str::as_bytes) {
            Some(&[letter @ b'A'..=b'Z']) => Ok(Self(letter - b'A')),
            _ => Err(de::Error::custom(format!(
                "`{name}` is not a call site: they are site_A to site_Z"
            ))),
        }
    }
}

fn one() -> u64 {
    1
}

fn is_one(value: &u64) -> bool {
    *value == 1
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    lines: BufReader<UnixStream>,
}

impl Connection {
    /// Speaks over this stream.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            lines: BufReader::new(stream),
        }
    }

    /// The stream below.
    pub fn stream(&self) -> &UnixStream {
        self.lines.get_ref()
    }

    /// Sends one message.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.lines.get_mut().write_all(&line)
    }

    /// Waits for the next message; None when the other end is gone.
    pub fn receive<T: de::DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => Ok(None),
            // A line without its end: the writer died while it wrote.
            Ok(_) if !line.ends_with('\n') => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line)?)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
