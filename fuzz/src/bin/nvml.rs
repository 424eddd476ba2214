//! What the child process that asks NVML answers, up to the report.
#![no_main]

use gputrace::{
    event::{BootTime, Event},
    evidence::Evidence,
    ledger::Ledger,
    sensors::nvml::protocol::{Outcome, Reply, Request},
};
use gputrace_fuzz::{SMALL, check_sample, show};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(line) {
        let json = serde_json::to_vec(&request).unwrap();
        assert_eq!(serde_json::from_slice::<Request>(&json).unwrap(), request);
    }
    let Ok(reply) = serde_json::from_slice::<Reply>(line) else {
        return;
    };
    let json = serde_json::to_vec(&reply).unwrap();
    assert_eq!(serde_json::from_slice::<Reply>(&json).unwrap(), reply);
    let Outcome::Sample(sample) = reply.outcome else {
        return;
    };
    let sample = sample.checked();
    check_sample(&sample);
    let mut ledger = Ledger::new(SMALL);
    ledger.apply(&Event::Devices {
        at: BootTime(1),
        sample: Evidence::Value(sample),
    });
    show(&ledger);
});
