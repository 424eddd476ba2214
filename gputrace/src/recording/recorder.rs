//! Recording while tracing goes on: the engine encodes, a thread of its own compresses and writes. A
//! disk that is full or slow costs events of the recording, never of the trace.

use std::{
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    format::{Header, Kind},
    writer::{Pending, Sink, Writer},
};
use crate::{event::Event, priority};

/// Blocks that may wait to be written: what a disk can fall behind, at about 1 MiB each.
const WAITING: usize = 32;

/// A block is written after this time at the latest, so that little is lost if gputrace is killed.
const WRITE_EVERY: Duration = Duration::from_millis(750);

/// What became of a recording.
#[derive(Debug)]
pub struct Summary {
    /// Events in the file.
    pub events: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Events that could not be recorded.
    pub not_recorded: u64,
    /// The first error of writing.
    pub error: Option<io::Error>,
    /// Whether the end could be written.
    pub complete: bool,
}

/// A block on its way to the thread that writes.
enum Job {
    Block(Pending),
    End(Pending),
}

/// What both sides count.
#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    not_recorded: AtomicU64,
}

/// The engine's end.
#[derive(Debug)]
pub struct Recorder {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    pending: Pending,
    began: Instant,
}

/// The end of whoever waits for the file.
#[derive(Debug)]
pub struct Recording {
    thread: thread::JoinHandle<Summary>,
}

impl Recorder {
    /// Begins a recording and starts the thread that writes it.
    ///
    /// # Errors
    /// Where the header cannot be written, or no thread be started.
    pub fn start(file: File, header: &Header) -> io::Result<(Self, Recording)> {
        Self::start_with(Writer::new(file, header)?)
    }

    fn start_with<S: Sink + Send + 'static>(writer: Writer<S>) -> io::Result<(Self, Recording)> {
        let (jobs, inbox) = channel();
        let shared = Arc::new(Shared::default());
        let counts = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("recording".to_owned())
            .spawn(move || {
                priority::raise();
                write(writer, &inbox, &counts)
            })?;
        let recorder = Self {
            jobs,
            shared,
            pending: Pending::at(0),
            began: Instant::now(),
        };
        Ok((recorder, Recording { thread }))
    }

    /// Takes an event in. Never waits.
    pub fn record(&mut self, event: &Event) {
        if self.pending.is_empty() {
            self.began = Instant::now();
        }
        if self.pending.add(event).is_err() {
            // Its number stays free: the reader sees that one is missing.
            let next = self.pending.next() + 1;
            self.shared.not_recorded.fetch_add(1, Ordering::Relaxed);
            self.send(next);
        } else if self.pending.is_full() {
            self.send(self.pending.next());
        }
    }

    /// To be called often: writes what has waited long enough.
    pub fn tick(&mut self) {
        if !self.pending.is_empty() && self.began.elapsed() >= WRITE_EVERY {
            self.send(self.pending.next());
        }
    }

    /// Ends the recording. Does not wait for the file.
    pub fn finish(mut self) {
        let pending = std::mem::replace(&mut self.pending, Pending::at(0));
        // Without the thread there is nobody who could write.
        let _ = self.jobs.send(Job::End(pending));
    }

    /// Hands the block over, if the thread is not too far behind. The next one begins at `next`.
    fn send(&mut self, next: u64) {
        let pending = std::mem::replace(&mut self.pending, Pending::at(next));
        if pending.is_empty() {
            return;
        }
        let events = u64::from(pending.events);
        let waiting = self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        if waiting >= WAITING || self.jobs.send(Job::Block(pending)).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            self.shared
                .not_recorded
                .fetch_add(events, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    /// What was taken in is written, also where tracing ends by an error.
    fn drop(&mut self) {
        self.send(self.pending.next());
    }
}

impl Recording {
    /// Waits until the file is written. To be called when the [`Recorder`] has ended.
    #[must_use]
    pub fn wait(self) -> Summary {
        self.thread.join().unwrap_or_else(|_| Summary {
            events: 0,
            bytes: 0,
            not_recorded: 0,
            error: Some(io::Error::other("the thread that writes has failed")),
            complete: false,
        })
    }
}

fn write<S: Sink>(mut writer: Writer<S>, jobs: &Receiver<Job>, shared: &Shared) -> Summary {
    let mut summary = Summary {
        events: 0,
        bytes: 0,
        not_recorded: 0,
        error: None,
        complete: false,
    };
    for job in jobs {
        let (kind, pending) = match job {
            Job::Block(pending) => {
                shared.waiting.fetch_sub(1, Ordering::AcqRel);
                (Kind::Events, pending)
            }
            Job::End(pending) => (Kind::End, pending),
        };
        let events = u64::from(pending.events);
        match writer.write(kind, &pending) {
            Ok(()) => {
                summary.events += events;
                summary.complete = kind == Kind::End;
            }
            Err(error) => {
                shared.not_recorded.fetch_add(events, Ordering::Relaxed);
                summary.error.get_or_insert(error);
            }
        }
    }
    summary.bytes = writer.length();
    summary.not_recorded = shared.not_recorded.load(Ordering::Acquire);
    summary
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Mutex, mpsc::sync_channel},
    };

    use super::*;
    use crate::{
        analysis::Thresholds,
        clock::Moment,
        event::{BootTime, EndedBy},
        ledger::Limits,
        recording::{Reader, Replay},
    };

    /// A disk that can be told to be slow, and to fail half-way.
    struct Disk {
        file: Arc<Mutex<Vec<u8>>>,
        /// Each block waits for one of these.
        may_write: Receiver<io::Result<()>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let allowed = self.may_write.recv().unwrap_or(Ok(()));
            let mut file = self.file.lock().unwrap();
            let written = if allowed.is_ok() {
                bytes.len()
            } else {
                bytes.len() / 2
            };
            file.extend_from_slice(&bytes[..written]);
            allowed.map(|()| written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Disk {
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.file.lock().unwrap().cut(length)
        }
    }

    fn tick(n: u64) -> Event {
        Event::Tick { at: BootTime(n) }
    }

    #[test]
    fn a_slow_and_failing_disk_costs_events_of_the_recording_only() {
        let began = Moment {
            boot: BootTime(0),
            wall_ns: 0,
        };
        let header = Header::new(began, Thresholds::default(), Limits::default());
        let file = Arc::<Mutex<Vec<u8>>>::default();
        let (allow, may_write) = sync_channel(1000);
        let disk = Disk {
            file: Arc::clone(&file),
            may_write,
        };
        // The header, twice, and the first block; the second block fails.
        for allowed in [
            Ok(()),
            Ok(()),
            Ok(()),
            Err(io::ErrorKind::StorageFull.into()),
        ] {
            allow.send(allowed).unwrap();
        }
        let (mut recorder, recording) =
            Recorder::start_with(Writer::new(disk, &header).unwrap()).unwrap();
        // Two blocks of one event each, at most one of them waiting.
        for n in 0..2 {
            recorder.record(&tick(n));
            recorder.send(recorder.pending.next());
            while recorder.shared.waiting.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            }
        }
        // Nothing is written any more: one block is in the writer's hands, the others wait, and
        // what does not find a place is left out.
        let blocks = 2 * WAITING as u64;
        for n in 0..blocks {
            recorder.record(&tick(2 + n));
            recorder.send(recorder.pending.next());
        }
        let left_out = recorder.shared.not_recorded.load(Ordering::Acquire);
        assert!((blocks - WAITING as u64 - 2..=blocks).contains(&left_out));
        drop(allow);
        let last = tick(100);
        recorder.record(&last);
        recorder.record(&Event::Stopped {
            at: BootTime(101),
            by: EndedBy::Signal,
        });
        recorder.finish();
        let summary = recording.wait();
        assert!(summary.complete, "{summary:?}");
        assert_eq!(
            summary.error.as_ref().map(io::Error::kind),
            Some(io::ErrorKind::StorageFull)
        );
        assert_eq!(summary.events + summary.not_recorded, 2 + blocks + 2);
        assert!(summary.not_recorded >= left_out);

        let file = file.lock().unwrap();
        assert_eq!(summary.bytes, file.len() as u64);
        let mut reader = Reader::new(file.as_slice()).unwrap();
        let mut read = 0;
        let replay = Replay::run(&mut reader, Limits::default(), |_, _| {
            read += 1;
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(read, summary.events);
        let missing = replay.recording_report().unwrap();
        assert_eq!(missing.events_not_recorded, summary.not_recorded);
        assert_eq!((missing.unreadable_bytes, missing.events_damaged), (0, 0));
        assert_eq!(missing.breaks_off_at, None);
        assert_eq!(
            replay.ledger.unattributed_losses().causes["not_recorded"],
            summary.not_recorded
        );
    }

    #[test]
    fn an_event_that_is_too_large_is_left_out_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let began = Moment {
            boot: BootTime(0),
            wall_ns: 0,
        };
        let header = Header::new(began, Thresholds::default(), Limits::default());
        let (mut recorder, recording) = Recorder::start(file.reopen().unwrap(), &header).unwrap();
        recorder.record(&tick(1));
        recorder.record(&Event::User {
            uid: 1,
            name: "x".repeat(8 << 20),
        });
        recorder.record(&tick(2));
        recorder.finish();
        let summary = recording.wait();
        assert_eq!(
            (summary.events, summary.not_recorded),
            (2, 1),
            "{summary:?}"
        );
        let mut reader = Reader::new(file.reopen().unwrap()).unwrap();
        let replay = Replay::run(&mut reader, Limits::default(), |_, _| {
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(replay.recording_report().unwrap().events_not_recorded, 1);
    }
}
