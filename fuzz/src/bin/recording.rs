//! A recording: a file as it lies there, or the uncompressed events of its only block.
#![no_main]

use std::ops::ControlFlow;

use gputrace::{
    recording::{Reader, Replay, harmless, of_raw_events},
    report::EndedBy,
};
use gputrace_fuzz::{SMALL, check, show};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Few inputs get past the checksums by chance.
    let file = match input.split_first() {
        Some((b'E', raw)) => of_raw_events(raw).unwrap_or_default(),
        Some((b'F', file)) => file.to_vec(),
        _ => return,
    };
    let Ok(mut reader) = Reader::new(&*file) else {
        return;
    };
    let mut events = 0;
    let replay = Replay::run(&mut reader, SMALL, |event, position| {
        events += 1;
        assert!(position <= file.len() as u64);
        harmless(event).unwrap();
        ControlFlow::Continue(())
    });
    let ledger = &replay.ledger;
    check(ledger, SMALL);
    // Nobody is told that all is there where the end is missing.
    let missing = replay.recording_report();
    let has_end = ledger.stopped().is_some();
    assert_eq!(replay.ended_by != EndedBy::RecordingBreaksOff || has_end, has_end);
    assert!(has_end || missing.is_some_and(|it| it.breaks_off_at.is_some()));
    if events > 0 {
        show(ledger);
    }
});
