//! Recordings: what is read is what was written, and what cannot be read is said.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "small numbers that the test makes itself; a failure here is a failed test"
)]

use std::{fs, ops::ControlFlow, path::Path};

use borsh::BorshDeserialize as _;
use gputrace::{
    analysis::{Filter, Thresholds, report},
    clock::Moment,
    cuda::FunctionId,
    event::{
        BootTime, Call, Coverage, EndedBy, Event, Library, Losses, Op, Outcome, Pid,
        ProbedFunction, ProcessSeen, Sighting, StackId,
    },
    ledger::{Ledger, Limits},
    recording::{Block, Header, Item, ReadError, Reader, Replay, Writer},
    report::Report,
};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
/// What every block begins with.
const MAGIC: &[u8] = b"\x93gpTrc\r\n";
const START: u64 = 1000 * SECOND;

fn header() -> Header {
    let began = Moment {
        boot: BootTime(START),
        wall_ns: 1_796_000_000 * SECOND,
    };
    Header::new(began, Thresholds::default(), Limits::default())
}

/// A recording with a block for each group of events, and no end if the last group is not to be one.
fn written(header: &Header, groups: &[Vec<Event>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for (n, group) in groups.iter().enumerate() {
        for event in group {
            writer.add(event).unwrap();
        }
        if n + 1 < groups.len() {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap()
}

fn read(file: &[u8]) -> Result<(Replay, Vec<Event>), ReadError> {
    let mut reader = Reader::new(file)?;
    let mut events = Vec::new();
    let replay = Replay::run(&mut reader, Limits::default(), |event, _| {
        events.push(event);
        ControlFlow::Continue(())
    });
    Ok((replay, events))
}

fn reported(ledger: &Ledger, as_of: BootTime, by: EndedBy) -> Report {
    let filter = Filter::default();
    report(ledger, &filter, Thresholds::default(), as_of, Some(by))
}

fn replayed(replay: &Replay) -> Report {
    Report {
        recording: replay.recording_report(),
        ..reported(&replay.ledger, replay.as_of, replay.ended_by)
    }
}

fn function(symbol: &str) -> FunctionId {
    FunctionId::by_symbol(symbol).unwrap()
}

const PID: Pid = Pid {
    tgid: 7,
    start_ticks: 100_100,
};

fn call(second: u64, symbol: &str, op: Op) -> Event {
    Event::Call(Call {
        pid: PID,
        tid: 7,
        function: function(symbol),
        enclosing: None,
        entered: BootTime(START + second * SECOND),
        returned: BootTime(START + second * SECOND + 500),
        outcome: Outcome::Returned(0),
        op,
        stack: Some(StackId(3)),
        cgroup_id: 1,
    })
}

fn allocate(second: u64) -> Event {
    let op = Op::device_memory(4096, Some(second << 12));
    call(second, "cuMemAlloc_v2", op)
}

fn stopped(second: u64) -> Event {
    Event::Stopped {
        at: BootTime(START + second * SECOND),
        by: EndedBy::Signal,
    }
}

/// A process that leaks, told in blocks of few events.
fn story() -> Vec<Vec<Event>> {
    let started = Event::Started {
        at: BootTime(START),
        wall_ns: 1_796_000_000 * SECOND,
        coverage: Coverage {
            libraries: vec![Library {
                path: "/usr/lib/libcuda.so.1".to_owned(),
                device: 1,
                inode: 2,
                probed_at: None,
                functions: ["cuMemAlloc_v2", "cuMemFree_v2"]
                    .map(|symbol| ProbedFunction {
                        function: function(symbol),
                        offset: 10,
                        emulated: true,
                        placement: "je".to_owned(),
                    })
                    .to_vec(),
                missing: Vec::new(),
            }],
            ..Coverage::default()
        },
    };
    let seen = Event::Process(ProcessSeen {
        pid: PID,
        at: BootTime(START + SECOND),
        started: BootTime(START + SECOND),
        sighting: Sighting::FirstCall,
        parent: PID,
        namespace_pid: None,
        uid: 1000,
        comm: "train".to_owned(),
        cgroup: "session-4.scope".to_owned(),
        cgroup_id: 1,
    });
    let stack = Event::Stack {
        stack: StackId(3),
        pid: PID,
        frames: vec![0x1000, 0x2000],
    };
    let mut groups = vec![vec![started, seen, stack]];
    groups.extend((0..4).map(|group| (1..4).map(|n| allocate(group * 3 + n)).collect()));
    groups.push(vec![allocate(13), stopped(14)]);
    groups
}

#[test]
fn the_report_of_a_recording_is_that_of_the_trace() {
    let groups = story();
    let mut live = Ledger::new(Limits::default());
    for event in groups.iter().flatten() {
        live.apply(event);
    }
    let (as_of, by) = live.stopped().unwrap();
    let live = reported(&live, as_of, by);
    assert_eq!(live.processes[0].memory.gpu.live.count, 13);

    let (replay, events) = read(&written(&header(), &groups)).unwrap();
    assert_eq!(events, groups.concat());
    let json = |report: &Report| serde_json::to_string(report).unwrap();
    assert_eq!(json(&replayed(&replay)), json(&live));
}

#[test]
fn a_recording_cut_at_any_byte_gives_what_is_whole() {
    let groups = story();
    let all = groups.concat();
    let file = written(&header(), &groups);
    let mut least = 0;
    for length in 0..file.len() {
        let (replay, events) = match read(&file[..length]) {
            Ok(it) => it,
            Err(error) => {
                assert!(
                    matches!(error, ReadError::NoHeader | ReadError::Empty),
                    "{length}: {error}"
                );
                assert_eq!(least, 0);
                continue;
            }
        };
        assert_eq!(events, all[..events.len()], "{length}");
        assert!(events.len() >= least, "{length}");
        least = events.len();
        let missing = replay.recording_report().unwrap();
        assert!(missing.breaks_off_at.is_some(), "{length}: {missing:?}");
        assert_eq!(replay.ended_by, EndedBy::RecordingBreaksOff);
        // What was read had happened by then, and nothing of it is missing.
        assert_eq!(replayed(&replay).losses.events, 0, "{length}");
    }
    assert_eq!(least, all.len() - groups.last().unwrap().len());
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let groups = story();
    let all = groups.concat();
    let file = written(&header(), &groups);
    for byte in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[byte] ^= 1 << bit;
            let (replay, events) = read(&damaged).unwrap();
            let what = format!("bit {bit} of byte {byte}");
            let missing = replay.recording_report().expect(&what);
            assert!(missing.unreadable_bytes > 0, "{what}: {missing:?}");
            // At most one block is lost, and what is lost in the middle is counted.
            let lost = all.len() - events.len();
            assert!(lost <= 3, "{what}: {lost}");
            let at_the_end = missing.breaks_off_at.is_some();
            assert_eq!(
                missing.events_damaged,
                if at_the_end { 0 } else { lost as u64 }
            );
            let report = replayed(&replay);
            assert_eq!(report.losses.events, missing.events_damaged, "{what}");
            let mut rest = all.iter();
            assert!(
                events.iter().all(|event| rest.any(|it| it == event)),
                "{what}: something was read that was not written"
            );
        }
    }
}

#[test]
fn bytes_that_are_missing_in_the_middle_cost_one_block() {
    let groups = story();
    let all = groups.concat();
    let file = written(&header(), &groups);
    for from in (0..file.len() - 30).step_by(7) {
        let mut shorter = file.clone();
        shorter.drain(from..from + 30);
        let Ok((replay, events)) = read(&shorter) else {
            // It was of both copies of the header.
            let second = memchr::memmem::find_iter(&file, MAGIC).nth(1).unwrap();
            assert!((from..from + 30).contains(&second), "{from}");
            continue;
        };
        // Thirty bytes reach into two blocks at most.
        assert!(all.len() - events.len() <= 6, "{from}: {}", events.len());
        assert!(replay.recording_report().is_some(), "{from}");
    }
}

#[test]
fn what_was_lost_live_stays_beside_what_the_file_lost() {
    let losses = |count| Event::Losses {
        pid: None,
        losses: Losses {
            first: Some(BootTime(START)),
            last: Some(BootTime(START + SECOND)),
            causes: [("ring_full".to_owned(), count)].into(),
            ..Losses::default()
        },
    };
    let mut groups = story();
    groups[1].push(losses(5));
    let file = written(&header(), &groups);
    groups[4].push(losses(6));
    let longer = written(&header(), &groups);
    for (file, live) in [(file, 5), (longer, 6)] {
        // The third block after the two copies of the header, and the first byte of its payload.
        let block = memchr::memmem::find_iter(&file, MAGIC).nth(4).unwrap();
        let mut damaged = file;
        damaged[block + 40] ^= 1;
        let (replay, _) = read(&damaged).unwrap();
        let causes = replayed(&replay).losses.causes;
        assert_eq!(causes["ring_full"], live);
        assert_eq!(causes["recording_damaged"], 3);
    }
}

#[test]
fn functions_are_known_by_their_symbol() {
    let symbols: Vec<String> = header().functions;
    // Another build: the same functions in another order, and one that this build does not have.
    let mut other = header();
    other.functions.reverse();
    let last = symbols.len() as u16 - 1;
    let mirrored = |event: &Event| match event {
        Event::Call(call) => Event::Call(Call {
            function: FunctionId::new(last - call.function.row()).unwrap(),
            ..*call
        }),
        Event::Started {
            at,
            wall_ns,
            coverage,
        } => {
            let mut coverage = coverage.clone();
            for probed in &mut coverage.libraries[0].functions {
                probed.function = FunctionId::new(last - probed.function.row()).unwrap();
            }
            Event::Started {
                at: *at,
                wall_ns: *wall_ns,
                coverage,
            }
        }
        event => event.clone(),
    };
    let groups = story();
    let theirs: Vec<Vec<Event>> = groups
        .iter()
        .map(|group| group.iter().map(mirrored).collect())
        .collect();
    let (replay, events) = read(&written(&other, &theirs)).unwrap();
    assert_eq!(events, groups.concat());
    assert_eq!(replay.recording_report(), None);

    other.functions[usize::from(last - function("cuMemAlloc_v2").row())] =
        "cuFrom\u{1b}TheFuture".to_owned();
    let (replay, events) = read(&written(&other, &theirs)).unwrap();
    assert_eq!(events.len(), groups.concat().len() - 13);
    let missing = replay.recording_report().unwrap();
    assert_eq!(missing.events_not_understood, 13);
    assert_eq!(missing.unknown_functions[r"cuFrom\x1bTheFuture"], 13);
    let report = replayed(&replay);
    assert_eq!(report.losses.causes["not_understood"], 13);
    // The coverage is there without it.
    assert_eq!(report.coverage.libraries[0].functions.len(), 1);
}

#[test]
fn without_the_first_block_times_are_still_right() {
    let mut groups = story();
    let file = written(&header(), &groups);
    let block = memchr::memmem::find_iter(&file, MAGIC).nth(2).unwrap();
    let mut damaged = file;
    damaged[block + 40] ^= 1;
    let (replay, _) = read(&damaged).unwrap();
    let report = replayed(&replay);
    groups.remove(0);
    assert_eq!(report.losses.events, 3);
    assert!(report.started.starts_with("2026-"), "{}", report.started);
}

#[test]
fn what_is_no_recording_is_told_apart() {
    let file = written(&header(), &story());
    assert!(matches!(read(b""), Err(ReadError::Empty)));
    for other in [&b"x"[..], b"{\"schema\":\"gputrace/1\"}\n", &[0; 1 << 20]] {
        assert!(matches!(read(other), Err(ReadError::NotARecording)));
    }
    // Both copies of the header damaged.
    let mut damaged = file.clone();
    let copies: Vec<usize> = memchr::memmem::find_iter(&file, MAGIC).collect();
    damaged[copies[0] + 50] ^= 1;
    damaged[copies[1] + 50] ^= 1;
    assert!(matches!(read(&damaged), Err(ReadError::NoHeader)));
    // Another version: the checksum of each head is made anew.
    let mut newer = file;
    for at in copies {
        newer[at + 8] += 1;
        let sum = crc32fast::hash(&newer[at..at + 36]);
        newer[at + 36..at + 40].copy_from_slice(&sum.to_le_bytes());
    }
    let error = read(&newer).unwrap_err();
    assert!(matches!(error, ReadError::Version { .. }));
    assert!(
        error.to_string().contains("use a newer gputrace"),
        "{error}"
    );
}

#[test]
fn one_recording_behind_another_is_not_taken_in_twice() {
    let file = written(&header(), &story());
    let twice = [file.clone(), file.clone()].concat();
    let (replay, events) = read(&twice).unwrap();
    assert_eq!(events, story().concat());
    let missing = replay.recording_report().unwrap();
    assert_eq!(missing.unreadable_bytes, file.len() as u64);
    // The same where the first one has no end.
    let cut = file.len() - 10;
    let (_, events) = read(&[&file[..cut], &file].concat()).unwrap();
    assert_eq!(events, story().concat());
}

/// Bytes that mostly make sense as small numbers and short lengths.
struct Dice {
    state: u64,
    /// Of 16 bytes, so many are zero.
    calm: u64,
}

impl Dice {
    fn roll(&mut self) -> u64 {
        // xorshift64*: https://en.wikipedia.org/wiki/Xorshift
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }
}

impl std::io::Read for Dice {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        for byte in &mut *to {
            *byte = match self.roll() % 16 {
                n if n < self.calm => 0,
                10..14 => (self.roll() % 8) as u8,
                14 => b'a' + (self.roll() % 26) as u8,
                _ => self.roll() as u8,
            };
        }
        Ok(to.len())
    }
}

/// Every kind of event, whatever kinds there are: read from dice.
fn thrown(seed: u64, count: usize) -> Vec<Event> {
    let mut dice = Dice {
        state: seed | 1,
        calm: 10,
    };
    let mut events = Vec::new();
    for _ in 0..count * 200 {
        // Large events with many lists come out right only in calm.
        dice.calm = 10 + dice.roll() % 6;
        let kind = [(dice.roll() % 16) as u8];
        let mut bytes = std::io::Read::chain(&kind[..], std::io::Read::take(&mut dice, 4096));
        events.extend(Event::deserialize_reader(&mut bytes));
        if events.len() == count {
            break;
        }
    }
    events
}

#[test]
fn the_dice_throw_every_kind_of_event() {
    // serde tells the names of the kinds where it is given a wrong one.
    let error = serde_json::from_str::<Event>(r#"{"event":"none"}"#)
        .unwrap_err()
        .to_string();
    let kinds = error.matches('`').count() / 2 - 1;
    let mut thrown_kinds = std::collections::BTreeSet::new();
    for event in thrown(1, 4000) {
        let json = serde_json::to_value(&event).unwrap();
        thrown_kinds.insert(json["event"].as_str().unwrap().to_owned());
    }
    assert_eq!(thrown_kinds.len(), kinds, "{thrown_kinds:?}: {error}");
}

/// The types of events are the format. This recording lies in the repository with what must be read
/// of it: whoever changes a type that is written raises the version, and then writes both anew with
/// `UPDATE_GOLDEN=1 cargo test -p gputrace --test recording`.
#[test]
fn a_recording_of_this_version_that_was_made_before_is_read_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (file, text) = (folder.join("v1.gputrace"), folder.join("v1.ndjson"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut groups = story();
        let end = groups.pop().unwrap();
        groups.push(thrown(1, 150));
        groups.push(end);
        fs::write(&file, written(&header(), &groups)).unwrap();
        let mut lines = Vec::new();
        for event in groups.concat() {
            serde_json::to_writer(&mut lines, &event).unwrap();
            lines.push(b'\n');
        }
        fs::write(&text, lines).unwrap();
    }
    let (replay, events) = read(&fs::read(file).unwrap()).unwrap();
    assert_eq!(replay.recording_report(), None);
    let text = fs::read_to_string(text).unwrap();
    let expected: Vec<Event> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events, expected);
}

proptest! {
    /// Any events come back as they were, in their order, through any number of blocks.
    #[test]
    fn events_come_back_as_they_were(seed: u64, count in 0..200_usize, flush_every in 1..50_usize) {
        let events = thrown(seed, count);
        let groups: Vec<Vec<Event>> = events.chunks(flush_every).map(<[_]>::to_vec).collect();
        let file = written(&header(), &groups);
        let mut reader = Reader::new(&*file).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let mut back = Vec::new();
        while let Some(block) = reader.next_block() {
            prop_assert_eq!(block.gap, Default::default());
            let items: Block<'_> = block;
            for item in items {
                match item {
                    Item::Event(event) => back.push(event),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        prop_assert_eq!(back, events);
        prop_assert_eq!(reader.rest().0, 0);
    }

    /// No bytes make it panic.
    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, at: prop::sample::Index) {
        let mut file = written(&header(), &story());
        let at = at.index(file.len());
        file.splice(at..at, bytes);
        if let Ok((replay, _)) = read(&file) {
            replayed(&replay);
        }
    }
}
