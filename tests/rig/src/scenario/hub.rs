//! Wakes the runner when something has happened in a thread that listens to an actor or to
//! gputrace.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A counter of happenings.
#[derive(Debug, Default)]
pub struct Hub {
    happened: Mutex<u64>,
    changed: Condvar,
}

impl Hub {
    /// Tells that something has happened.
    pub fn notify(&self) {
        // The counter is right whatever a thread that panicked was doing.
        *self.happened.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// How much has happened; to be read before the state is looked at.
    #[must_use]
    pub fn seen(&self) -> u64 {
        *self.happened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until more has happened than was seen, or for so long.
    pub fn wait(&self, seen: u64, at_most: Duration) {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(happened, at_most, |happened| *happened == seen);
        drop(waited);
    }
}
