//! Waiting with an end for calls that the kernel may keep.
//!
//! `/proc/PID/maps` and `/proc/PID/cmdline` take the memory lock of the process, which a task stuck
//! in a driver may hold for ever; a look-up of a user name may ask a directory server. Such a call
//! runs on a thread of its own. The thread that does not come back stays behind, but it does not
//! keep gputrace from ending: those waits of the kernel are killable.

use std::{sync::mpsc, thread, time::Duration};

/// The call did not come back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {} ms", .limit.as_millis())]
pub struct OutOfPatience {
    /// How long was waited.
    pub limit: Duration,
}

/// Runs `call` on a thread of its own and waits for its result, at most for `limit`.
///
/// # Errors
///
/// [`OutOfPatience`] if the limit passed, if the call panicked, or if the system has no thread left
/// to give; a result that comes later is dropped.
pub fn within<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OutOfPatience> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let started = thread::Builder::new()
        .name("patience".into())
        // Nothing that is called here recurses; abandoned threads should cost little.
        .stack_size(256 * 1024)
        .spawn(move || {
            // The receiver is gone if the result comes too late; then nobody wants it.
            let _ = sender.send(call());
        });
    if started.is_err() {
        return Err(OutOfPatience { limit });
    }
    receiver
        .recv_timeout(limit)
        .map_err(|_| OutOfPatience { limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_time_is_returned() {
        assert_eq!(within(Duration::from_secs(60), || 7), Ok(7));
    }

    #[test]
    fn a_call_that_never_returns_is_abandoned() {
        let limit = Duration::from_millis(10);
        let (_keep, never) = mpsc::channel::<()>();
        assert_eq!(
            within(limit, move || never.recv().is_ok()),
            Err(OutOfPatience { limit })
        );
    }
}
