//! The signals that a run listens to.

use std::{io, time::Duration};

use nix::sys::signal::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::launch::{self, Running};

/// A second signal within this time belongs to the first.
pub const SAME_SIGNAL: Duration = Duration::from_millis(200);

/// The signals that a run listens to.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    ask: Signal,
    /// Only where gputrace must not end before its command.
    quit: Option<Signal>,
}

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The last report; which signal it was.
    End(Number),
    /// A snapshot.
    Snapshot,
}

impl Signals {
    /// Begins to listen; to SIGQUIT as well, where that is asked for.
    ///
    /// # Errors
    /// The system's.
    pub fn new(quit: bool) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            ask: signal(SignalKind::user_defined1())?,
            quit: quit.then(|| signal(SignalKind::quit())).transpose()?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Asked {
        let quit = async {
            match &mut self.quit {
                Some(quit) => quit.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Asked::End(Number::SIGINT),
            _ = self.terminate.recv() => Asked::End(Number::SIGTERM),
            _ = self.hangup.recv() => Asked::End(Number::SIGHUP),
            _ = self.ask.recv() => Asked::Snapshot,
            _ = quit => Asked::End(Number::SIGQUIT),
        }
    }
}

/// Gives the command of `run` a signal that was sent to gputrace. One from the keyboard has reached
/// both already.
pub fn pass_on(command: &Running, asked: Asked) {
    if let Asked::End(signal) = asked
        && !(matches!(signal, Number::SIGINT | Number::SIGQUIT) && launch::has_terminal())
    {
        command.pass_on(signal);
    }
}
