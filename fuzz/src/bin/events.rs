//! Events as NDJSON, one a line: applied, and reported on.
#![no_main]

use gputrace::{event::Event, ledger::Ledger, render::ndjson};
use gputrace_fuzz::{SMALL, check, show};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: &[u8]| {
    let mut ledger = Ledger::new(SMALL);
    let mut applied = false;
    for line in lines.split(|&byte| byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Event>(line) else {
            continue;
        };
        let json = serde_json::to_vec(&event).unwrap();
        assert_eq!(serde_json::from_slice::<Event>(&json).unwrap(), event);
        ledger.apply(&event);
        ndjson::event(&mut Vec::new(), event).unwrap();
        applied = true;
    }
    if applied {
        check(&ledger, SMALL);
        show(&ledger);
    }
});
