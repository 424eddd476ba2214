//! Reading what the programs say.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, AsRawFd, BorrowedFd},
    time::Duration,
};

use aya::{
    Pod,
    maps::{Array, HashMap as BpfHashMap, MapData, MapError, RingBuf, StackTraceMap},
};
use gputrace_ebpf::{
    ACTIVITIES, ActivityCount, CONTROL_ACTIVE, CONTROL_EPISODE, LOSS_CAUSES, LossCause, LossKey,
    Losses, ProcessState, Record,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{BpfError, Programs, translate};
use crate::{
    clock::{self, Moment},
    event::{self, Pid},
};

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Key(LossKey);
// SAFETY: repr(transparent) over a repr(C) struct of integers without implicit padding.
unsafe impl Pod for Key {}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Row(Losses);
// SAFETY: as above.
unsafe impl Pod for Row {}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct State(ProcessState);
// SAFETY: as above.
unsafe impl Pod for State {}

/// Losses of one process.
#[derive(Clone, Debug)]
pub struct RecordedLoss {
    /// Its tgid and its start in nanoseconds; `None`: unknown whose.
    pub process: Option<(u32, u64)>,
    /// What was lost since the start.
    pub losses: event::Losses,
}

/// The reading side of the programs. The probes are on the other side: [`Programs`].
pub struct Reader {
    ring: RingBuf<MapData>,
    stacks: StackTraceMap<MapData>,
    losses: BpfHashMap<MapData, Key, Row>,
    lost: Array<MapData, u64>,
    control: Array<MapData, u64>,
    processes: BpfHashMap<MapData, u32, State>,
    /// What was last said of each process's counted calls.
    seen_activity: HashMap<Pid, [ActivityCount; ACTIVITIES]>,
    seen_lost: [u64; LOSS_CAUSES],
    episode: u64,
    /// Bytes read since the last episode began.
    read_bytes: u64,
    ring_bytes: u64,
}

impl Programs {
    /// Starts the programs: every probe is in place, of those that can be by now. Returns the moment
    /// from which on they see every call.
    ///
    /// # Errors
    /// Where a map cannot be used.
    pub fn start(&mut self) -> Result<(Reader, Moment), BpfError> {
        let mut take = |name: &'static str| {
            self.ebpf
                .take_map(name)
                .ok_or_else(|| BpfError::Missing(name.to_owned()))
        };
        let error = |map| {
            move |source| BpfError::Map {
                map,
                source: Box::new(source),
            }
        };
        let mut reader = Reader {
            ring: RingBuf::try_from(take("EVENTS")?).map_err(error("EVENTS"))?,
            stacks: StackTraceMap::try_from(take("STACKS")?).map_err(error("STACKS"))?,
            losses: BpfHashMap::try_from(take("LOSSES")?).map_err(error("LOSSES"))?,
            lost: Array::try_from(take("LOST")?).map_err(error("LOST"))?,
            control: Array::try_from(take("CONTROL")?).map_err(error("CONTROL"))?,
            processes: BpfHashMap::try_from(take("PROCESSES")?).map_err(error("PROCESSES"))?,
            seen_activity: HashMap::new(),
            seen_lost: [0; LOSS_CAUSES],
            episode: 0,
            read_bytes: 0,
            ring_bytes: u64::from(self.settings.ring_bytes),
        };
        reader
            .control
            .set(CONTROL_ACTIVE, 1, 0)
            .map_err(error("CONTROL"))?;
        Ok((reader, clock::moment()))
    }
}

impl Reader {
    /// Waits until the ring buffer has a good part to read or the time is over. An interruption by
    /// a signal ends the wait as well.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, other: BorrowedFd<'_>, time: Duration) -> Result<(), BpfError> {
        // SAFETY: the descriptor is the ring's own and lives as long as this borrow.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        let mut fds = [
            PollFd::new(ring.as_fd(), PollFlags::POLLIN),
            PollFd::new(other, PollFlags::POLLIN),
        ];
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(BpfError::Wait(io::Error::from(errno))),
        }
    }

    /// Moves up to `most` records into `records`. Returns how many were read, of which kinds unknown
    /// to this build are dropped; fewer than `most` means that the ring buffer was empty for a
    /// moment.
    ///
    /// # Errors
    /// Where the programs cannot be told that there is room again.
    pub fn drain(&mut self, most: usize, records: &mut Vec<Record>) -> Result<usize, BpfError> {
        const RECORD_HEADER: u64 = 8;
        let mut read = 0;
        while read < most {
            let Some(item) = self.ring.next() else { break };
            self.read_bytes += item.len() as u64 + RECORD_HEADER;
            let record = Record::from_bytes(&item);
            drop(item);
            read += 1;
            records.extend(record);
        }
        // Each process gets a new share of the ring once as much room as was shared out is free
        // again.
        let caught_up = read < most && read > 0;
        if caught_up || self.read_bytes > self.ring_bytes / 4 {
            self.read_bytes = 0;
            self.episode += 1;
            self.control
                .set(CONTROL_EPISODE, self.episode, 0)
                .map_err(|source| BpfError::Map {
                    map: "CONTROL",
                    source: Box::new(source),
                })?;
        }
        Ok(read)
    }

    /// Addresses of a kernel stack, innermost first. `None` if it is not there.
    #[must_use]
    pub fn stack(&self, id: i32) -> Option<Vec<u64>> {
        let id = u32::try_from(id).ok()?;
        let trace = self.stacks.get(&id, 0).ok()?;
        Some(trace.frames().iter().map(|frame| frame.ip).collect())
    }

    /// Gives the places of stacks to others. One that is not there any more is fine.
    pub fn forget_stacks(&mut self, ids: &[i32]) {
        for id in ids.iter().filter_map(|&id| u32::try_from(id).ok()) {
            let _ = self.stacks.remove(&id);
        }
    }

    /// Losses, if any were added since the last call.
    ///
    /// # Errors
    /// Where a map cannot be read.
    pub fn new_losses(&mut self) -> Result<Vec<RecordedLoss>, BpfError> {
        let error = |map| {
            move |source: MapError| BpfError::Map {
                map,
                source: Box::new(source),
            }
        };
        let mut lost = [0; LOSS_CAUSES];
        for (slot, total) in (0..).zip(lost.iter_mut()) {
            *total = self.lost.get(&slot, 0).map_err(error("LOST"))?;
        }
        if lost == self.seen_lost {
            return Ok(Vec::new());
        }
        self.seen_lost = lost;
        let mut all = Vec::new();
        for entry in self.losses.iter() {
            let (Key(key), Row(row)) = entry.map_err(error("LOSSES"))?;
            all.push(RecordedLoss {
                process: (key.tgid != 0).then_some((key.tgid, key.start_ns)),
                losses: losses(&row),
            });
        }
        Ok(all)
    }

    /// The counted calls of each process in which there were any since the last call.
    ///
    /// # Errors
    /// Where a map cannot be read.
    pub fn new_activity(&mut self) -> Result<Vec<event::ActivitySeen>, BpfError> {
        let mut seen = HashMap::new();
        let mut new = Vec::new();
        for entry in self.processes.iter() {
            let (tgid, State(state)) = entry.map_err(|source| BpfError::Map {
                map: "PROCESSES",
                source: Box::new(source),
            })?;
            if state.activity == [ActivityCount::default(); ACTIVITIES] {
                continue;
            }
            let pid = Pid::from_start_ns(tgid, state.start_ns);
            if self.seen_activity.get(&pid) != Some(&state.activity) {
                new.push(translate::activity(pid, &state.activity));
            }
            seen.insert(pid, state.activity);
        }
        self.seen_activity = seen;
        new.sort_by_key(|it| it.pid);
        Ok(new)
    }
}

fn losses(row: &Losses) -> event::Losses {
    let time = |ns: u64| (ns != 0).then_some(event::BootTime(ns));
    event::Losses {
        first: time(row.first_ns),
        last: time(row.last_ns),
        causes: LossCause::ALL
            .into_iter()
            .zip(row.causes)
            .filter(|&(_, n)| n > 0)
            .map(|(cause, n)| (cause.name().to_owned(), n))
            .collect(),
        allocations: row.allocations,
        allocation_bytes: row.allocation_bytes,
        frees: row.frees,
    }
}
